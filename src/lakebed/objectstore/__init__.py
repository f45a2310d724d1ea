"""Immutable bytes: the ports ObjectStore and Deleter, the drivers behind them, and how to open a storage namespace."""

from .adoption import *
from .arguments import *
from .drivers.memory import *
from .keeping import *
from .opening import *
from .options import *
from .store import *
