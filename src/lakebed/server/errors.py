"""The one table from errors to HTTP answers. Clients print the messages, and scripts depend on the words.

A row is a class, its status, and its words: None is the error's own message. The row of the nearest base class counts,
so a family is a row and a concrete error that needs words of its own is another. Where the words need what only a
handler knows (which argument, which branch), the handler raises `Answer` with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed import auth, base, catalog, objectstore, versions
from lakebed.gc import service as collections
from lakebed.wire import Error, Expired

from .collectors import NoSpark
from .login_attempts import LoginRefused

logger = logging.getLogger(__name__)


class Answer(base.LakebedError):
    """An error whose status and words a handler chose."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, status=status)
        self.status = status


class InvalidParameter(base.Invalid):
    """A parameter in path, query or header that is missing or malformed."""


class InvalidBody(base.Invalid):
    """A request body that is not what its schema says."""


class NoSuchEndpoint(base.NotFound):
    """No route has this path."""


class MethodNotAllowed(base.Invalid):
    """The path has routes, none for this method. Facts: `allowed`."""


TABLE: Final[dict[type[base.LakebedError], tuple[int, str | None]]] = {
    # Families
    base.NotFound: (404, None),
    base.AlreadyExists: (409, None),
    base.Invalid: (400, None),
    base.Denied: (403, None),
    base.Conflict: (409, None),
    base.Unavailable: (503, None),
    base.OutcomeUnknown: (500, None),
    base.Corrupt: (500, None),
    base.LakebedError: (500, None),
    # Words of the contract
    auth.NotAuthenticated: (401, "error authenticating request"),
    auth.AlreadyInitialised: (409, "lakeFS already initialized"),
    auth.UserExists: (409, "Already exists"),
    auth.GroupExists: (409, "Already exists"),
    auth.PolicyExists: (409, "Already exists"),
    auth.GroupNotFound: (404, "group not found"),
    auth.PolicyNotFound: (404, "policy not found"),
    auth.UserNotFound: (404, "user not found"),
    auth.CredentialsNotFound: (404, "credentials not found"),
    auth.PrincipalNotFound: (404, None),
    catalog.RepositoryNotFound: (404, "repository not found"),
    catalog.RepositoryExists: (409, "error creating repository: not unique"),
    catalog.SettingChanged: (412, None),
    catalog.HookRefused: (412, None),
    collections.RulesMoved: (412, None),
    versions.BranchNotFound: (404, "branch not found"),
    versions.TagNotFound: (404, "tag not found"),
    versions.CommitNotFound: (404, "commit not found"),
    versions.RefNotFound: (404, "not found"),
    versions.PathNotFound: (404, "not found"),
    versions.BranchExists: (409, "branch already exists: not unique"),
    versions.TagExists: (409, "tag already exists: not unique"),
    versions.PathExists: (412, "path already exists"),
    versions.PreconditionFailed: (412, None),
    versions.MergeConflict: (409, "update branch: conflict found"),
    versions.UploadRefused: (400, None),
    versions.CopyGivenUp: (409, None),
    versions.ContentsGone: (410, None),
    versions.PathExpired: (410, None),
    objectstore.ObjectMissing: (410, "the object's data is gone"),
    # Ours
    NoSuchEndpoint: (404, "invalid API endpoint"),
    MethodNotAllowed: (405, None),
    NoSpark: (501, None),
    LoginRefused: (401, None),
}


def status_and_message(error: base.LakebedError) -> tuple[int, str]:
    if isinstance(error, Answer):
        return error.status, str(error)
    for kind in type(error).__mro__:
        row = TABLE.get(kind)
        if row is not None:
            return row[0], row[1] or str(error)
    raise AssertionError("LakebedError itself is in the table")


def error_response(error: base.LakebedError, request: Callable[[], str] = str) -> Response:
    """`request` says for the log what was asked and by whom."""
    status, message = status_and_message(error)
    response = message_response(status, message, expired=_expired(error))
    if status == 501:
        # Nothing is wrong here: the caller asked for what this server is not equipped for.
        logger.info("answered 501 to %s: %s", request(), error)
    elif status >= 500:
        logger.error("answered %d to %s: %s %s", status, request(), error, error.facts, exc_info=error)
    if status == 503:
        response.headers["retry-after"] = "1"
    if status == 405:
        response.headers["allow"] = str(error.facts["allowed"])
    return response


def message_response(status: int, message: str, *, expired: Expired | None = None) -> Response:
    return Response(msgspec.json.encode(Error(message=message, expired=expired)), status, media_type="application/json")


def _expired(error: base.LakebedError) -> Expired | None:
    by = error.facts.get("by")
    return expired_by(by) if isinstance(by, versions.TakenBy) else None


def expired_by(by: versions.TakenBy | None) -> Expired | None:
    if by is None:
        return None
    return Expired(policy_version=by.policy_version, rule=by.rule, run=by.run, date=by.taken_ms // 1000)
