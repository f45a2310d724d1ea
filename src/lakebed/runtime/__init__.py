"""The real ports behind the core's ports: asyncio, the machine's clock, the operating system's random numbers; and what
processes of ours have in common."""

from .arrow import leave_pandas_out
from .live import LiveClock, LiveEvent, LiveIds, LiveTasks, live_ports

__all__ = ["LiveClock", "LiveEvent", "LiveIds", "LiveTasks", "leave_pandas_out", "live_ports"]
