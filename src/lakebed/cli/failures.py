"""How a command ends when it cannot do what it was told: one line on stderr, and an exit code that scripts can rely on.

This file is the one table from error families to exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lakebed.base import (
    AlreadyExists,
    Conflict,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

OK: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells have it."""
PIPE_CLOSED: Final = 141
"""128 + SIGPIPE: who read our output went away."""


class Misuse(Invalid):
    """The command as typed cannot be carried out: found before anything was sent to a server."""


class Declined(LakebedError):
    """The person said no, or could not be asked."""


def exit_code(error: LakebedError) -> int:
    """The exit code for an error."""
    match error:
        case NotFound():
            return NOT_FOUND
        case AlreadyExists() | Conflict():
            return CONFLICT
        case Unavailable() | OutcomeUnknown():
            return UNAVAILABLE
        case Invalid() if "status" not in error.facts:
            # What a server finds invalid has its status among its facts, and is no misuse of this command.
            return MISUSED
        case _:
            return FAILED


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
