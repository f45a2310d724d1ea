"""The command line, by noun. `lakebed.cli.__main__` is where it starts; `session.py` carries every command.

The names below are what a command outside of this folder is made of (`lakebed.examples`).
"""

from lakebed.settings import Settings, read_settings, write_settings

from .kit.failures import Misuse
from .kit.output import human_duration
from .kit.parameters import Argument, Option
from .kit.progress import bar
from .kit.session import Session, command, connect
from .kit.tree import app, noun

__all__ = [
    "Argument",
    "Misuse",
    "Option",
    "Session",
    "Settings",
    "app",
    "bar",
    "command",
    "connect",
    "human_duration",
    "noun",
    "read_settings",
    "write_settings",
]
