"""How a command ends when it cannot do what it was told: one line on stderr, and an exit code that scripts can rely on.

Which error ends with which code is base/exits.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from lakebed.base import AlreadyExists, ExitCode, Invalid, LakebedError, NotFound

OK: Final = ExitCode.OK
FAILED: Final = ExitCode.FAILED
MISUSED: Final = ExitCode.MISUSED
NOT_FOUND: Final = ExitCode.NOT_FOUND
CONFLICT: Final = ExitCode.CONFLICT
UNAVAILABLE: Final = ExitCode.UNAVAILABLE
INTERRUPTED: Final = ExitCode.INTERRUPTED
PIPE_CLOSED: Final = ExitCode.PIPE_CLOSED


NAMELESS: Final = "not found"
"""All that servers say of most things that are not there."""


class Misuse(Invalid):
    """The command as typed cannot be carried out: found before anything was sent to a server."""


class Declined(LakebedError):
    """The person said no, or could not be asked."""


def describe(error: LakebedError | OSError, uris: Sequence[str] = ()) -> str:
    """One line. Messages of servers may have several: the rest of them is schema dumps, for machines.

    What servers only say to be NAMELESS is named: `uris`, what the command is about.
    """
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return f"{' or '.join(uris)}: {line}" if uris and line == NAMELESS else line


@contextlib.contextmanager
def being_new(what: str) -> Iterator[None]:
    """Servers say only `Already exists` of some things: they are named."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExists(f"{what} exists already", **error.facts) from error


@contextlib.contextmanager
def being_there(what: str) -> Iterator[None]:
    """Of several things that a command is about it is this one that may be missing and has no name."""
    try:
        yield
    except NotFound as error:
        if str(error) != NAMELESS:
            raise
        raise NotFound(f"{what}: {NAMELESS}", **error.facts) from error
