"""The errors of a client, in the families of `lakebed.base.errors`.

HTTP status codes become families here, and nowhere else on the client's side: `ErrorAnswer` and its subclasses. The
others are of calls without an answer, or with one that cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from lakebed.base import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.wire import Expired


class ErrorAnswer(LakebedError):
    """The server answered with an error. The message is the server's own."""

    def __init__(self, message: str, /, *, status: int, **facts: object) -> None:
        super().__init__(message, status=status, **facts)
        self.status = status


class BadRequest(ErrorAnswer, Invalid):
    """The server cannot make sense of the request: 400, and every other 4xx."""


class Refused(ErrorAnswer, Denied):
    """The server does not know these credentials, or they may not do this: 401, 403."""


class NotLoggedIn(Refused):
    """The server does not know these credentials."""


class Missing(ErrorAnswer, NotFound):
    """The server does not have the named thing: 404, 410."""


class ObjectExpired(Missing):
    """A lifecycle run took the object. Facts: `expired` (a wire.Expired): run, rule, policy version, date."""


class Clash(ErrorAnswer, Conflict):
    """The present state contradicts the request: 409, 412."""


class MovedAsCopy(Clash):
    """The source of a move was replaced meanwhile: it stays, and the target is a copy."""


class Taken(ErrorAnswer, AlreadyExists):
    """The name that should be made exists: 409, 412 of a call that creates."""


class Busy(ErrorAnswer, Unavailable):
    """The server did nothing, and asks to come back: 429, 503."""


class ServerFault(ErrorAnswer, OutcomeUnknown):
    """The server failed while it worked on the request: every other 5xx."""


class Unreachable(Unavailable):
    """There is no server at the endpoint, or it did not answer a call that changes nothing."""


class AnswerLost(OutcomeUnknown):
    """The request was sent, the connection broke, and the request may have been carried out."""


class BadAnswer(Corrupt):
    """The answer does not follow the contract. Often the endpoint is not a Lakebed server at all."""


class Damaged(Corrupt):
    """The bytes that arrived are not those that were sent."""


class _Words(msgspec.Struct, frozen=True, kw_only=True):
    """The API's answer, or, with `error`, that of the catalog of tables."""

    message: str = ""
    expired: Expired | None = None
    error: _Words | str | None = None


_words = msgspec.json.Decoder(_Words).decode


_UNNAMED: Final = frozenset(
    {
        "not found",
        "repository not found",
        "branch not found",
        "tag not found",
        "commit not found",
        "group not found",
        "policy not found",
        "user not found",
        "ref: not found",
        "stop_at: not found",
    }
)
"""The contract's words that do not say what they are about."""
AS_COPY: Final = "the target is a copy"
"""The end of the server's message about a move that became a copy."""
_NEXT: Final = {
    "uncommitted changes (dirty branch)": "commit or reset them first",
    "uncommitted changes (dirty branch) on a protected branch": (
        "it takes no commits, so copy what you want to keep to another branch, then reset this one"
    ),
    "cannot write to protected branch": "write to another branch, and merge that",
    "cannot commit to protected branch": "commit to another branch, and merge that",
    "read-only repository": "it was made so; only calls of the API with force=true change it",
}
"""The contract's words about the branch or repository that is written to, and what to do. Its name may follow them."""


def error_of(
    status: int,
    body: bytes,
    *,
    request: str,
    about: Sequence[str] = (),
    query: Mapping[str, object],
    creates: bool = False,
) -> ErrorAnswer:
    """The error for an answer of this status. `request` (method and path) goes into the facts.

    Where the server's words name nothing, the message names the things that the request was `about`, or the ref in its
    `query`.
    `creates` tells apart a name that is taken from other conflicts: the status is the same for both.
    """
    message, expired = _message(status, body)
    if expired is not None:
        return ObjectExpired(message, status=status, request=request, expired=expired)
    if about and message in _UNNAMED:
        parameter, _, words = message.rpartition(": ")
        message = f"{_missing(parameter, words, about, query)}: {words}"
    elif about and (words := next((one for one in _NEXT if f"{message}:".startswith(f"{one}:")), "")):
        # The server's name of the branch is in the words that the request was about.
        named = _repository(about) if words == "read-only repository" else about[-1]
        message = f"{named}: {words}: {_NEXT[words]}"
    family = _family(status, creates)
    # On the contract's routes a missing permission is 401 too, and only the words tell it from an unknown login.
    if status == 401 and not message.startswith("insufficient permissions"):
        family = NotLoggedIn
    return family(message, status=status, request=request)


def _missing(parameter: str, words: str, about: Sequence[str], query: Mapping[str, object]) -> str:
    """Return what the server did not find. `parameter`: the one that its words name, if any."""
    if words == "repository not found":
        return _repository(about)
    if ref := query.get("branch" if words == "branch not found" else parameter):
        return f"{_repository(about)}/{ref}"
    if parameter == "ref":
        return about[0]
    # Only the last is a branch for sure: the others are refs of any kind.
    return about[-1] if words == "branch not found" else " or ".join(about)


def _repository(about: Sequence[str]) -> str:
    return "/".join(about[0].split("/")[:3])


def _family(status: int, creates: bool) -> type[ErrorAnswer]:
    match status:
        case 401 | 403:
            return Refused
        case 404 | 410:
            return Missing
        case 409 | 412:
            return Taken if creates else Clash
        case 429 | 503:
            return Busy
        case _ if 400 <= status < 500:
            return BadRequest
        case _:
            return ServerFault


def _message(status: int, body: bytes) -> tuple[str, Expired | None]:
    if body.lstrip().startswith((b"<?xml", b"<Error>")):
        return f"the endpoint answers as S3 does ({status} {_phrase(status)}): name the server's own port", None
    try:
        words = _words(body)
    except msgspec.DecodeError:
        words = _Words()
    if isinstance(words.error, _Words):
        words = words.error
    return words.message or f"the server answered {status} {_phrase(status)}", words.expired


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "(no standard status)"
