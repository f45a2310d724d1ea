"""Map error families to the exit codes of commands, in this table only (for people: docs/guide/cli.md).

The command line uses it, and the entry point of collectors that clusters start.
"""

from __future__ import annotations

import enum

from .errors import AlreadyExists, Conflict, Invalid, LakebedError, NotFound, OutcomeUnknown, Unavailable

__all__ = ["ExitCode", "exit_code"]


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    MISUSED = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130
    """128 + SIGINT, as shells report it."""
    PIPE_CLOSED = 141
    """128 + SIGPIPE: the reader of our output closed it."""


def exit_code(error: LakebedError) -> ExitCode:
    match error:
        case NotFound():
            return ExitCode.NOT_FOUND
        case AlreadyExists() | Conflict():
            return ExitCode.CONFLICT
        case Unavailable() | OutcomeUnknown():
            return ExitCode.UNAVAILABLE
        case Invalid() if "status" not in error.facts:
            # A server's error has its status among its facts, and is no misuse of this command.
            return ExitCode.MISUSED
        case _:
            return ExitCode.FAILED
