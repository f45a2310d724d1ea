"""How far Spark is, for somebody who watches: one line on stderr that is written over, and gone when nothing runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakebed.gc import LocalSession

EVERY_S: Final = 0.5
CLEAR: Final = "\r\x1b[K"


@contextlib.contextmanager
def tasks_shown(local: LocalSession, *, visible: bool) -> Iterator[None]:
    """While the block runs, count the tasks of the stages under way; nothing is shown to a file or a pipe."""
    if not visible:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(local, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(local: LocalSession, done: threading.Event) -> None:
    tracker = local.spark.sparkContext.statusTracker()
    shown = False
    while not done.wait(EVERY_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        if running:
            finished, tasks = (sum(getattr(it, name) for it in running) for name in ("numCompletedTasks", "numTasks"))
            sys.stderr.write(f"{CLEAR}{finished} of {tasks} tasks")
        elif shown:
            sys.stderr.write(CLEAR)
        shown = bool(running)
        sys.stderr.flush()
    if shown:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
