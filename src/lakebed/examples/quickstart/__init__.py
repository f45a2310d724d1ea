"""The quickstart: the command (command.py) starts a server and tells a story of three months on real data.

`data.py` reads the flights, `story.py` writes them and keeps the book, `collect.py` plans, applies and proves.
"""

from __future__ import annotations

from .command import app
from .server import LocalServer

__all__ = ["LocalServer", "app"]
