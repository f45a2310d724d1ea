"""Raise the errors of Spark on the driver.

Spark hands an exception of a Python worker on as text: a traceback, inside a traceback of the JVM. Here the error of a
task is given a mark before it leaves (`marked`), and found again on the driver (`translated`), so that a corrupt range
is a `Corrupt` error whose message names the range and whose facts are those of the task, in a job as in a plain
function.

An error of Spark that nothing here foresaw becomes one line for who waits (`unforeseen`), and a file with the whole of
it. The line that helps is the last error of the innermost trace, mostly that of the worker.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lakebed.base import Conflict, Corrupt, LakebedError, Unavailable

from .package import NEEDED

_MARK: Final = re.compile(r"lakebed task error \((\w+) (\{.*?\})\): (.*)")


class TaskFailed(LakebedError):
    """A task of a job failed; the message is that of the error in it."""


class TaskCorrupt(TaskFailed, Corrupt):
    """A task read something that contradicts its digest, its format or its manifest. Nothing was deleted on it."""


class TaskUnavailable(TaskFailed, Unavailable):
    """A task could not reach the object store."""


class TaskStopped(TaskFailed, Conflict):
    """A task was not allowed to go on, and stopped where it was. Its deletes are recorded."""


_FAMILIES: Final = {"Conflict": TaskStopped, "Corrupt": TaskCorrupt, "Unavailable": TaskUnavailable}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """In a task: an error raised on purpose leaves it with a mark."""
    try:
        yield
    except LakebedError as error:
        message = " ".join(str(error).split())
        # Text and numbers only: all that Spark hands on is text, and the driver reads these back as they were.
        facts = json.dumps({name: fact for name, fact in error.facts.items() if isinstance(fact, str | int)})
        mark = f"lakebed task error ({_family(error)} {facts})"
        raise RuntimeError(f"{mark}: {type(error).__name__}: {message}") from error


@contextlib.contextmanager
def translated() -> Iterator[None]:
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
        raise _FAMILIES.get(found[1], TaskFailed)(found[3], **json.loads(found[2])) from error


def _family(error: LakebedError) -> str:
    families = {"Conflict": Conflict, "Corrupt": Corrupt, "Unavailable": Unavailable}
    return next((name for name, family in families.items() if isinstance(error, family)), "other")


_ERROR: Final = re.compile(r"^\s*(?:Caused by: )?([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
LINE_MAX: Final = 300
_LACKING: Final = re.compile(r"No module named '([\w]+)")
_NO_PACKAGE: Final = (
    "Spark's workers do not have this package: make a zip of it with `lakebed gc package`, and name it with --py-files "
    "or spark.submit.pyFiles; or install lakebed[collector] on the workers"
)


class SparkFailed(LakebedError):
    """Spark ended a job for a reason that this program did not give. `log` is the file with the
    whole of its message.
    """


@contextlib.contextmanager
def unforeseen(folder: Path | None = None) -> Iterator[None]:
    """Around whatever runs jobs. The file is made in `folder`, else where temporary files lie, and stays there.

    Raises:
        SparkFailed: in place of an error of Spark, or of the way to it.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_spark(error):
            raise
        text = "".join(traceback.format_exception(error))
        with tempfile.NamedTemporaryFile(
            "w", prefix="lakebed-gc-", suffix=".log", dir=folder, delete=False, errors="replace"
        ) as log:
            log.write(text)
        raise SparkFailed(f"Spark failed: {telling_line(str(error))} (all of it: {log.name})", log=log.name) from error


def _is_of_spark(error: Exception) -> bool:
    # Not imported for the question: what started no session need not wait for the import.
    if isinstance(error, ConnectionError):
        return True
    return any(base.__name__ in {"PySparkException", "Py4JError"} for base in type(error).__mro__)


def telling_line(text: str) -> str:
    """Return the line that says most in a long account of a failure: the last error of the worker's trace, else the
    first.
    """
    worker = text.partition("Traceback (most recent call last)")[2]
    errors = _ERROR.findall(worker.partition("\n\n")[0]) or _ERROR.findall(text)
    if errors:
        kind, message = errors[-1] if worker else errors[0]
        line = f"{kind.rpartition('.')[2]}: {message.strip()}"
    else:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    lacking = _LACKING.search(line)
    if lacking is not None and lacking[1] == "lakebed":
        return _NO_PACKAGE
    if lacking is not None and lacking[1] in NEEDED:
        return f"Spark's workers lack the Python package {lacking[1]}: they need {', '.join(NEEDED)}"
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"
