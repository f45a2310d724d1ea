"""End a command that failed: one line on stderr, and an exit code that scripts can rely on.

Which error ends with which code is base/exits.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote

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


_UNNAMED: Final = {
    NAMELESS,
    "repository not found",
    "branch not found",
    "tag not found",
    "commit not found",
    "group not found",
    "policy not found",
    "user not found",
    "cannot write to protected branch",
    "ref: not found",
    "stop_at: not found",
}


class Misuse(Invalid):
    """The command as typed cannot be carried out: found before anything was sent to a server."""


class Declined(LakebedError):
    """The answer to a question was no."""


def describe(error: LakebedError | OSError, uris: Sequence[str] = ()) -> str:
    """One line. Messages of servers may have several: the rest of them is schema dumps, for machines.

    What servers do not name is named: `uris`, what the command is about, or where the request went.
    """
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    if line in _UNNAMED and (names := uris or _asked_for(str(error.facts.get("request", "")))):
        return f"{' or '.join(names)}: {line}"
    return line


def _asked_for(request: str) -> list[str]:
    """Return the name that a request was about: `auth/groups/NAME/…` gives NAME."""
    _, _, path = request.partition("/auth/")
    segments = path.split("/")
    return [unquote(segments[1])] if len(segments) > 1 else []


@contextlib.contextmanager
def being_new(what: str) -> Iterator[None]:
    """Servers say only `Already exists` of some things: they are named."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExists(f"{what} exists already", **error.facts) from error


@contextlib.contextmanager
def being_there(what: str) -> Iterator[None]:
    """Name the one of several things that may be missing, where the server does not."""
    try:
        yield
    except NotFound as error:
        if str(error) != NAMELESS and not str(error).endswith(f": {NAMELESS}"):
            raise
        raise NotFound(f"{what}: {NAMELESS}", **error.facts) from error
