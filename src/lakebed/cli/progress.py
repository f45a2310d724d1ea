"""A bar for somebody who watches, and nothing at all for a file or a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakebed.base import human_size

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID


class Bar:
    """Counts what moved, in bytes. This one shows nothing. May be used by many threads."""

    def advance(self, amount: int) -> None:
        """So much more is done; negative: so much is to be done again."""

    def expect(self, amount: int) -> None:
        """So much more there is to do than was known."""


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
    """A bar on stderr while the block runs, then gone: results remain, progress does not."""
    if not visible:
        yield Bar()
        return
    # rich is imported only where it is seen.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Amount(TextColumn):
        """How much is done of how much, and how fast, in the units of all our output."""

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
