"""The core's ports on a real machine: asyncio, its clock, its random numbers; and set-up that our processes share."""

from .arrow import leave_pandas_out
from .live import LiveClock, LiveEvent, LiveIds, LiveTasks, live_ports

__all__ = ["LiveClock", "LiveEvent", "LiveIds", "LiveTasks", "leave_pandas_out", "live_ports"]
