"""Show progress on a terminal: a bar of bytes, or one line of words. A file or a pipe gets nothing.

Answers go to the same terminal: erase the line before one is written.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lakebed.base import human_size

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

CLEAR: Final = "\r\x1b[K"


class Bar:
    """Count what moved, in bytes. This one shows nothing. May be used by many threads."""

    def advance(self, amount: int) -> None:
        """Add to what is done; negative: it is to be done again."""

    def expect(self, amount: int) -> None:
        """Add to what there is to do."""


class _VisibleBar(Bar):
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)

    def expect(self, amount: int) -> None:
        with self._progress._lock:  # noqa: SLF001  # rich has no call that adds to a total, and threads race otherwise
            task = self._progress.tasks[0]
            self._progress.update(self._task, total=(task.total or 0) + amount)


@contextmanager
def bar(description: str, total: int = 0, *, visible: bool) -> Iterator[Bar]:
    """Show a bar on stderr while the block runs, and remove it at the end."""
    if not visible:
        yield Bar()
        return
    # rich is imported only where it is seen.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Amount(TextColumn):
        """Show how much is done of how much, and how fast, in the units of all our output."""

        def render(self, task: Task) -> Text:
            speed = f"  {human_size(int(task.speed))}/s" if task.speed else ""
            return Text(f"{human_size(int(task.completed))} / {human_size(int(task.total or 0))}{speed}")

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        Amount(""),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield _VisibleBar(progress, progress.add_task(description, total=total))


class Line:
    """One line of a terminal that is written over. Threads may write and erase it."""

    def __init__(self, *, visible: bool) -> None:
        self._lock = threading.Lock()
        self._is_visible = visible
        self._is_shown = False

    def update(self, look: Callable[[], str]) -> None:
        """Show the text that `look` returns; erase the line if it is empty. No other thread writes between the two."""
        if not self._is_visible:
            return
        with self._lock:
            found = look()
            if found or self._is_shown:
                sys.stderr.write(CLEAR + found)
                sys.stderr.flush()
            self._is_shown = bool(found)

    def erase(self) -> None:
        self.update(str)
