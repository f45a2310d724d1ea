"""The real world behind the core's ports: asyncio, the machine's clock, the operating system's random numbers."""

from .live import LiveClock, LiveEvent, LiveIds, LiveTasks, live_world

__all__ = ["LiveClock", "LiveEvent", "LiveIds", "LiveTasks", "live_world"]
