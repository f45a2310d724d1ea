"""The command line, by noun. `lakebed.cli.__main__` is where it starts; `session.py` carries every command."""

from .tree import app

__all__ = ["app"]
