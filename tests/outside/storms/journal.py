"""The journal of a storm: JSON lines, each with its seconds since the storm began. A judge needs nothing else.

calls.jsonl     what clients asked for (`begin`) and what came of it (`end`), which `model.py` reads
faults.jsonl    each fault with its beginning and its end
commands.jsonl  each command of a collector with its exit code and the end of what it printed
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

CALLS: Final = "calls"
FAULTS: Final = "faults"
COMMANDS: Final = "commands"

Line = dict[str, Any]


class Journal:
    """Writes lines at once: a storm that is ended keeps what it noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._began_s = time.monotonic()
        self._files = {name: (folder / f"{name}.jsonl").open("a") for name in (CALLS, FAULTS, COMMANDS)}

    @property
    def now_s(self) -> float:
        return round(time.monotonic() - self._began_s, 4)

    def write(self, name: str, line: Line) -> Line:
        """Write a line with the present time, and return it."""
        line = {"t": self.now_s, **line}
        file = self._files[name]
        file.write(json.dumps(line) + "\n")
        file.flush()
        return line

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def read_journal(folder: Path, name: str) -> Iterator[Line]:
    """Read the lines of a storm. The last one is left out where the storm was ended in the middle of it."""
    file = folder / f"{name}.jsonl"
    for text in file.read_text().splitlines() if file.exists() else ():
        try:
            yield json.loads(text)
        except ValueError:
            return
