"""How far Spark is, for somebody who watches: one line on stderr that is written over, and gone when nothing runs.

Answers go to the same terminal: whoever writes one erases the line first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakebed.gc import LocalSession

EVERY_S: Final = 0.5
CLEAR: Final = "\r\x1b[K"


class TaskLine:
    """One line of a terminal, written by a thread that watches and erased by any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shown = False

    def update(self, look: Callable[[], tuple[int, int] | None]) -> None:
        """Show how many tasks of how many are done; nothing where `look` finds none. Nobody erases between the two."""
        with self._lock:
            found = look()
            if found is not None:
                sys.stderr.write(f"{CLEAR}{found[0]} of {found[1]} tasks")
            elif self._is_shown:
                sys.stderr.write(CLEAR)
            self._is_shown = found is not None
            sys.stderr.flush()

    def erase(self) -> None:
        self.update(lambda: None)


@contextlib.contextmanager
def tasks_shown(local: LocalSession, *, visible: bool) -> Iterator[TaskLine]:
    """While the block runs, count the tasks of the stages under way; nothing is shown to a file or a pipe."""
    line = TaskLine()
    if not visible:
        yield line
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(local, line, done), daemon=True)
    watcher.start()
    try:
        yield line
    finally:
        done.set()
        watcher.join()


def _watch(local: LocalSession, line: TaskLine, done: threading.Event) -> None:
    tracker = local.spark.sparkContext.statusTracker()

    def look() -> tuple[int, int] | None:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        if not running:
            return None
        return sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)

    while not done.wait(EVERY_S):
        line.update(look)
    line.erase()
