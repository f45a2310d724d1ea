"""The one table from errors to HTTP answers. Clients print the messages, and scripts depend on the words.

A row has a class, its status, and its words. None keeps the error's own message. The row of the nearest base class
applies, so a family has one row, and a concrete error with its own words has another. If the words need facts that
only a handler knows (an argument, a branch), the handler raises `Answer` with them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed import auth, base, catalog, objectstore, versions
from lakebed.gc import live as collections
from lakebed.kv import StoreUnavailable
from lakebed.server.collectors import NoSpark
from lakebed.server.identity.login_attempts import LoginRefused
from lakebed.wire import Error, Expired

logger = logging.getLogger(__name__)

QUIET_S: Final = 5.0
"""A process logs at most one line in this many seconds for each kind of unavailability error."""

_told: Final[dict[type, tuple[float, int]]] = {}
"""By error class: the time of its last logged line, and the number of lines suppressed since."""


class Answer(base.LakebedError):
    """An error with a status and words that a handler chose."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, status=status)
        self.status = status


class InvalidParameter(base.Invalid):
    """A parameter in path, query or header is missing or malformed."""


class InvalidBody(base.Invalid):
    """A request body does not match its schema."""


class NoSuchEndpoint(base.NotFound):
    """No route has this path."""


class MethodNotAllowed(base.Invalid):
    """The path has routes, but none for this method. Facts: `allowed`."""


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
    if isinstance(error, StoreUnavailable) and not isinstance(error, base.NotFound):
        # Name the server, or the message reads as if the client had to reach the database.
        return 503, f"the server cannot use its database now: {error}"
    for kind in type(error).__mro__:
        row = TABLE.get(kind)
        if row is not None:
            return row[0], row[1] or str(error)
    raise AssertionError("LakebedError itself is in the table")


def error_response(error: base.LakebedError, request: Callable[[], str] = str) -> Response:
    """Return the answer for an error. `request` describes the request and its user for the log."""
    status, message = status_and_message(error)
    response = message_response(status, message, expired=_expired(error))
    log_failure(logger, status, request, error)
    if status == 503:
        response.headers["retry-after"] = "1"
    if status == 405:
        response.headers["allow"] = str(error.facts["allowed"])
    return response


def log_failure(log: logging.Logger, status: int, shown: Callable[[], str], error: base.LakebedError) -> None:
    """Log the reason of an answer with status 500 or more. `shown` describes the request."""
    if status < 500:
        return
    if status == 501:
        # 501 is no fault of the server: it lacks an optional part that the caller needs.
        log.info("answered 501 to %s: %s", shown(), error)
    elif isinstance(error, base.Unavailable) and not log.isEnabledFor(logging.DEBUG):
        # While a database is unavailable, every request fails alike, and a traceback would not help.
        now_s = time.monotonic()
        told_s, untold = _told.get(type(error), (-QUIET_S, 0))
        if now_s - told_s < QUIET_S:
            _told[type(error)] = (told_s, untold + 1)
            return
        _told[type(error)] = (now_s, 0)
        more = f", as {untold} others in the last {now_s - told_s:.0f} s" if untold else ""
        log.error("answered %d to %s: %s %s%s", status, shown(), error, error.facts, more)
    else:
        log.error("answered %d to %s: %s %s", status, shown(), error, error.facts, exc_info=error)


def warn_of_wrong_secret(
    log: logging.Logger, error: base.LakebedError, client: object, shown: Callable[[], str]
) -> None:
    """Log a login with a wrong secret, so that operators see guessing."""
    if isinstance(error, auth.NotAuthenticated) and "failures" in error.facts:
        key, count = error.facts["access_key_id"], error.facts["failures"]
        log.warning("wrong secret for %s from %s, %s in a row: %s", key, client, count, shown())


def message_response(status: int, message: str, *, expired: Expired | None = None) -> Response:
    return Response(msgspec.json.encode(Error(message=message, expired=expired)), status, media_type="application/json")


def _expired(error: base.LakebedError) -> Expired | None:
    by = error.facts.get("by")
    return expired_by(by) if isinstance(by, versions.TakenBy) else None


def expired_by(by: versions.TakenBy) -> Expired:
    return Expired(policy_version=by.policy_version, rule=by.rule, run=by.run, date=by.taken_ms // 1000)
