"""How a command ends, for scripts: the one table from error families to exit codes (for people: docs/guide/cli.md).

Every entry of ours has it: the command line, and the collectors' own, which clusters start.
"""

from __future__ import annotations

import enum

from .errors import AlreadyExists, Conflict, Invalid, LakebedError, NotFound, OutcomeUnknown, Unavailable


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    MISUSED = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130
    """128 + SIGINT, as shells have it."""
    PIPE_CLOSED = 141
    """128 + SIGPIPE: who read our output went away."""


def exit_code(error: LakebedError) -> ExitCode:
    match error:
        case NotFound():
            return ExitCode.NOT_FOUND
        case AlreadyExists() | Conflict():
            return ExitCode.CONFLICT
        case Unavailable() | OutcomeUnknown():
            return ExitCode.UNAVAILABLE
        case Invalid() if "status" not in error.facts:
            # What a server finds invalid has its status among its facts, and is no misuse of this command.
            return ExitCode.MISUSED
        case _:
            return ExitCode.FAILED
