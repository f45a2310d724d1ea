"""The tree of errors raised on purpose. A concrete error is defined beside the code that raises it, with facts.
HTTP and S3 each map families to status codes in one table of theirs, nowhere else.

    LakebedError
    ├── NotFound         the request names a thing that does not exist
    ├── AlreadyExists    the thing to be made exists already
    ├── Invalid          the request can never succeed as it stands
    ├── Denied           this caller may not
    ├── Conflict         read again, then retry
    ├── Unavailable      nothing happened; retry the same call
    ├── OutcomeUnknown   the write may or may not have happened; find out before you retry
    └── Corrupt          bytes contradict their digest or format; never retry, never delete on it
"""

from __future__ import annotations

import enum
import os
import re
from typing import Final

__all__ = [
    "OUTCOME_UNKNOWN",
    "AlreadyExists",
    "Conflict",
    "Corrupt",
    "Denied",
    "ExitCode",
    "Invalid",
    "LakebedError",
    "NotFound",
    "OutcomeUnknown",
    "Unavailable",
    "exit_code",
    "in_words",
    "name_in_words",
]

_NUMBER: Final = re.compile(r"\[Errno (-?\d{1,5})\] (?=(.*?)(?:\[Errno |$))", re.DOTALL)
_LOOKUP: Final = re.compile("not known|name resolution")
"""Words of a failed lookup of a host. Its numbers are not those of the system's other errors."""
_HUMP: Final = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class LakebedError(Exception):
    """An error raised on purpose. `facts` are for logs and for tests, the message is for people."""

    def __init__(self, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts

    @property
    def first_line(self) -> str:
        """Return the message without the schema dumps that a server may add below its first line."""
        return next(iter(str(self).strip().splitlines()), name_in_words(type(self)))


class NotFound(LakebedError):
    """The request names a thing that does not exist."""


class AlreadyExists(LakebedError):
    """The thing to be made exists already."""


class Invalid(LakebedError):
    """The request can never succeed as it stands: a bad name, a malformed value, a forbidden combination."""


class Denied(LakebedError):
    """This caller may not do this."""


class Conflict(LakebedError):
    """Another writer was faster. Read again, then decide whether to retry."""


class Unavailable(LakebedError):
    """Nothing happened. The same call may succeed later."""


class OutcomeUnknown(LakebedError):
    """The write may or may not have happened. Find out before you retry."""


OUTCOME_UNKNOWN: Final = "it is not known whether it took place"
"""The beginning of the recorded error of background work whose last answer was lost."""


class Corrupt(LakebedError):
    """Bytes contradict their digest or their format. Never retry, and never delete anything on their word."""


def in_words(error: BaseException) -> str:
    """Return what failed, for people: the error's own words, with plain words for the name of its class."""
    own = _NUMBER.sub(_number_in_words, str(error))
    if isinstance(error, KeyError):
        return f"there is no {own}"
    if named := re.fullmatch(rf"{type(error).__name__}\b(.*)", own, re.DOTALL):
        facts = re.sub(r"^\((.*)\)$", r": \1", named[1], flags=re.DOTALL)
        return name_in_words(type(error)) + facts.rstrip(": ")
    return own or name_in_words(type(error))


def _number_in_words(number: re.Match[str]) -> str:
    """Return `Connection refused: ` for `[Errno 111] `, or nothing where the text after it has these words."""
    words = os.strerror(int(number[1]))
    is_plain = number[1].startswith("-") or _LOOKUP.search(number[2]) or words.lower() in number[2].lower()
    return "" if is_plain else f"{words}: "


def name_in_words(kind: type) -> str:
    """Return `connect timeout` for `ConnectTimeout`: messages to people name no class of Python."""
    return _HUMP.sub(" ", kind.__name__).lower()


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
