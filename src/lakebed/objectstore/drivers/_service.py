"""An S3 service as obstore reaches it: the client of a bucket, and its errors in the words of the port.

What `ObjectStoreOptions` leave open (region, endpoint, credentials), obstore looks up as AWS's own tools do.
"""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from lakebed.objectstore.store import (
    InvalidNamespace,
    ObjectExists,
    ObjectMissing,
    ObjectOutcomeUnknown,
    ObjectStoreDenied,
    ObjectStoreUnavailable,
    UnlistableKey,
)

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential

    from lakebed.objectstore.opening import ObjectStoreOptions

T = TypeVar("T")

_LAST_WORDS_S: Final = 0.1
"""obstore's threads put away Python's objects a moment after an answer was handed over. Were the interpreter gone by
then, they would abort the process, and whoever called it would learn of a crash and not of its exit code: that was so
for one process in two that failed at once. There is no way to wait for them, so they are given time.
"""

atexit.register(time.sleep, _LAST_WORDS_S)

_ENDPOINT: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:([0-9]{1,5}))?/?")
_REFUSED: Final = re.compile(r"non-2xx status code: (4\d\d|501)")
_CONFLICT: Final = "non-2xx status code: 409"
_DENIED: Final = re.compile(r"\(code: AccessDenied\)|non-2xx status code: 40[13]")
"""Of a key in a bulk delete, which itself succeeds; of a listing."""

_BAD_PATH: Final = re.compile(r'Encountered object with invalid path: .*?[Pp]ath "([^"]*)"')

_PANIC: Final = "RustPanic"


class ObjectConflict(ObjectStoreUnavailable):
    """Refused with 409: something else is under way at this key, or has its place. Whether it exists is not said."""


@lru_cache(maxsize=64)
def client_of(bucket: str, options: ObjectStoreOptions) -> S3Store:
    """One connection pool for all namespaces of a bucket. obstore's clients have nothing to close.

    Raises:
        InvalidNamespace: the options cannot be used.
    """
    _check_options(options)
    config: S3Config = {
        "virtual_hosted_style_request": options.s3_virtual_hosted or options.s3_endpoint is None,
        "copy_if_not_exists": "multipart",
    }
    if options.s3_endpoint is not None:
        config |= {"endpoint": options.s3_endpoint, "region": "us-east-1"}
    if options.s3_region is not None:
        config["region"] = options.s3_region
    timeout = timedelta(seconds=options.s3_timeout_s)
    try:
        return S3Store(
            bucket,
            config=config,
            client_options={"allow_http": (options.s3_endpoint or "").startswith("http://"), "timeout": timeout},
            retry_config={"max_retries": options.s3_retries_max, "retry_timeout": timeout},
            credential_provider=_credentials(options),
        )
    except BaseError as error:
        raise InvalidNamespace(f"s3://{bucket} cannot be opened: {brief(error)}") from error


def _check_options(options: ObjectStoreOptions) -> None:
    """obstore would find these out too, by panicking in the first request."""
    if options.s3_endpoint is not None:
        found = _ENDPOINT.fullmatch(options.s3_endpoint)
        if not found or int(found[3] or 0) > 0xFFFF:
            raise InvalidNamespace(f"{options.s3_endpoint!r} is no endpoint: http(s)://, a host, and perhaps a port")
    if (options.s3_access_key_id is None) != (options.s3_secret_access_key is None):
        raise InvalidNamespace("an S3 access key id and its secret are given together or not at all")


def _credentials(options: ObjectStoreOptions) -> Callable[[], S3Credential] | None:
    """The options' credentials, whole: as part of the configuration, a session token that the environment holds for
    another key would be added to them.
    """
    if options.s3_access_key_id is None or options.s3_secret_access_key is None:
        return None
    credential: S3Credential = {
        "access_key_id": options.s3_access_key_id,
        "secret_access_key": options.s3_secret_access_key,
        "token": options.s3_session_token,
        "expires_at": None,
    }
    return lambda: credential


async def done(key: str, request: Awaitable[T], *, conditional: bool = False) -> T:
    """What the request answers, or the port's word for its error.

    `conditional`: done twice it would not be the same as done once, so a lost answer leaves its outcome unknown.
    """
    try:
        return await request
    except AlreadyExistsError as error:
        if _CONFLICT in str(error):
            raise ObjectConflict(brief(error), key=key) from error
        if not conditional:
            raise ObjectStoreUnavailable(brief(error), key=key) from error
        raise ObjectExists(f"there is an object {key!r} already", key=key) from error
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise ObjectStoreUnavailable(brief(error), key=key) from error
        raise ObjectMissing(f"there is no object {key!r}", key=key) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise ObjectStoreDenied(f"the store refused us: {brief(error)}", key=key) from error
    except BaseError as error:
        if bad := _BAD_PATH.search(str(error)):
            raise UnlistableKey(
                f"{bad[1]!r} lies in the bucket and cannot be listed, for a part of it is empty, '.' or '..': move it"
                " away; until then nothing is listed that it lies in",
                key=bad[1],
            ) from error
        if _DENIED.search(str(error)):
            raise ObjectStoreDenied(f"the store refused us: {brief(error)}", key=key) from error
        if conditional and not _REFUSED.search(str(error)):
            raise ObjectOutcomeUnknown(f"{key!r} may be stored or not: {brief(error)}", key=key) from error
        raise ObjectStoreUnavailable(brief(error), key=key) from error
    except Exception as error:
        # obstore's client gives up in this way over an answer that it did not foresee, such as a bulk delete's errors
        # for keys that nobody named. The class can be imported from nowhere. All else comes from the body of a put.
        if type(error).__name__ != _PANIC:
            raise
        kind = ObjectOutcomeUnknown if conditional else ObjectStoreUnavailable
        raise kind("the store gave an answer that no S3 service gives", key=key) from error


def brief(error: Exception) -> str:
    """obstore's messages without the dump of its own structures after them."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())[:500]
