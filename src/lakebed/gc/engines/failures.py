"""Raise Spark's errors on the driver.

Spark passes on an exception of a Python worker as text: a traceback inside a traceback of the JVM. So `marked` adds a
mark to an error in a task, and `translated` reads the mark on the driver. A corrupt range is then a `Corrupt` error
that names the range and has the task's facts, in a job as in a plain function.

`unforeseen` turns any other error of Spark into one line for the caller, and a file with the whole text.
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
    """A task of a job failed; the message is the task's error."""


class TaskCorrupt(TaskFailed, Corrupt):
    """A task read data that contradicts its digest, format or manifest. Nothing was deleted because of it."""


class TaskUnavailable(TaskFailed, Unavailable):
    """A task could not reach the object store."""


class TaskStopped(TaskFailed, Conflict):
    """A task was not allowed to continue, and stopped. Its deletes are recorded."""


_FAMILIES: Final = {"Conflict": TaskStopped, "Corrupt": TaskCorrupt, "Unavailable": TaskUnavailable}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark an error that is raised on purpose inside, in a task."""
    try:
        yield
    except LakebedError as error:
        message = " ".join(str(error).split())
        # Only texts and numbers: Spark passes on text alone, and the driver reads these types back unchanged.
        facts = json.dumps({name: fact for name, fact in error.facts.items() if isinstance(fact, str | int)})
        mark = f"lakebed task error ({_family(error)} {facts})"
        raise RuntimeError(f"{mark}: {message}") from error


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise the marked errors of tasks. Wrap a job on the driver in it.

    Raises:
        TaskCorrupt, TaskUnavailable, TaskStopped, TaskFailed: instead of Spark's text of a marked error.
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
    """Spark ended a job for a reason that is not an error of this program. `log` is a file with the whole message."""


@contextlib.contextmanager
def unforeseen(folder: Path | None = None) -> Iterator[None]:
    """Turn unforeseen errors of Spark into one line. The file is made in `folder`, or the folder of temporary files.

    Raises:
        SparkFailed: instead of an error of Spark, or of the connection to it.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_spark(error):
            raise
        text = "".join(traceback.format_exception(error))
        # The file is not deleted: the message names it.
        with tempfile.NamedTemporaryFile(
            "w", prefix="lakebed-gc-", suffix=".log", dir=folder, delete=False, errors="replace"
        ) as log:
            log.write(text)
        raise SparkFailed(f"Spark failed: {telling_line(str(error))} (all of it: {log.name})", log=log.name) from error


def _is_of_spark(error: Exception) -> bool:
    # Compare names, to save the import of pyspark in a process that has no session.
    if isinstance(error, ConnectionError):
        return True
    return any(base.__name__ in {"PySparkException", "Py4JError"} for base in type(error).__mro__)


def telling_line(text: str) -> str:
    """Return the most helpful line of a failure: the last error of the worker's trace, else the first error."""
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
