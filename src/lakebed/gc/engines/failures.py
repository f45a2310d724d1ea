"""What goes wrong in a task, told on the driver as what it is.

Spark hands an exception of a Python worker on as text: a traceback, inside a traceback of the JVM. Here the error of a
task is given a mark before it leaves (`marked`), and found again on the driver (`told`), so that a corrupt range is a
`Corrupt` error whose message names the range, in a job as in a plain function.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from lakebed.base import Conflict, Corrupt, LakebedError, Unavailable

_MARK: Final = re.compile(r"lakebed task error \((\w+)\): (.*)")


class TaskFailed(LakebedError):
    """A task of a job failed; the message is that of the error in it."""


class TaskCorrupt(TaskFailed, Corrupt):
    """A task read something that contradicts its digest, its format or its manifest. Nothing was deleted on it."""


class TaskUnavailable(TaskFailed, Unavailable):
    """A task could not reach the object store."""


class TaskStopped(TaskFailed, Conflict):
    """A task was not allowed to go on, and stopped where it was. What it did is recorded."""


_FAMILIES: Final = {"Conflict": TaskStopped, "Corrupt": TaskCorrupt, "Unavailable": TaskUnavailable}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """In a task: an error raised on purpose leaves it with a mark."""
    try:
        yield
    except LakebedError as error:
        message = " ".join(str(error).split())
        raise RuntimeError(f"lakebed task error ({_family(error)}): {type(error).__name__}: {message}") from error


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Around a job, on the driver.

    Raises:
        TaskCorrupt, TaskUnavailable, TaskFailed: in place of Spark's account of an error raised on purpose in a task.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _MARK.search(str(error))
        if found is None:
            raise
        raise _FAMILIES.get(found[1], TaskFailed)(found[2]) from error


def _family(error: LakebedError) -> str:
    families = {"Conflict": Conflict, "Corrupt": Corrupt, "Unavailable": Unavailable}
    return next((name for name, family in families.items() if isinstance(error, family)), "other")
