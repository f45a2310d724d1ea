"""Errors of Spark that nobody foresaw: one line for who waits, the whole of it in a file for who looks into it.

Spark tells a failure as traces within traces: of the driver, of the JVM, of a worker. The line that helps is the last
error of the innermost one, mostly that of the worker.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lakebed.base import LakebedError

_ERROR: Final = re.compile(r"^\s*(?:Caused by: )?([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
LINE_MAX: Final = 300


class SparkFailed(LakebedError):
    """Spark ended a job for a reason that this program did not give. `log` is the file with all that it said."""


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
    """Of a long account of a failure the line that says most: the last error of the worker's trace, else the first."""
    worker = text.partition("Traceback (most recent call last)")[2]
    errors = _ERROR.findall(worker.partition("\n\n")[0]) or _ERROR.findall(text)
    if errors:
        kind, message = errors[-1] if worker else errors[0]
        line = f"{kind.rpartition('.')[2]}: {message.strip()}"
    else:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"
