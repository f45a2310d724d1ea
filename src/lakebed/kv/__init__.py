"""Mutable metadata: the narrow Store port, the drivers behind it, and how to open one."""

from .copying import *
from .opening import *
from .store import *
