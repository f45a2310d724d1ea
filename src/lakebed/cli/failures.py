"""How a command ends when it cannot do what it was told: one line on stderr, and an exit code that scripts can rely on.

Which error ends with which code is base/exits.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from lakebed.base import AlreadyExists, ExitCode, Invalid, LakebedError

OK: Final = ExitCode.OK
FAILED: Final = ExitCode.FAILED
MISUSED: Final = ExitCode.MISUSED
NOT_FOUND: Final = ExitCode.NOT_FOUND
CONFLICT: Final = ExitCode.CONFLICT
UNAVAILABLE: Final = ExitCode.UNAVAILABLE
INTERRUPTED: Final = ExitCode.INTERRUPTED
PIPE_CLOSED: Final = ExitCode.PIPE_CLOSED


class Misuse(Invalid):
    """The command as typed cannot be carried out: found before anything was sent to a server."""


class Declined(LakebedError):
    """The person said no, or could not be asked."""


def describe(error: LakebedError | OSError, uris: Sequence[str] = ()) -> str:
    """One line. Messages of servers may have several: the rest of them is schema dumps, for machines.

    Servers say only `not found` of most things; `uris`, what the command is about, are then named.
    """
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return f"{' or '.join(uris)}: {line}" if uris and line == "not found" else line


@contextlib.contextmanager
def being_new(what: str) -> Iterator[None]:
    """Servers say only `Already exists` of some things: they are named."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExists(f"{what} exists already", **error.facts) from error
