"""Translate obstore's answers and errors of remote stores into those of the port."""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

from lakebed.objectstore.store import (
    BucketMissing,
    ObjectExists,
    ObjectMissing,
    ObjectOutcomeUnknown,
    ObjectStat,
    ObjectStoreDenied,
    ObjectStoreUnavailable,
    Page,
    UnlistableKey,
)

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import AzureStore, GCSStore, S3Store

    Client: TypeAlias = AzureStore | GCSStore | S3Store

    class EveryKey(Protocol):
        def __call__(self, prefix: str, after: str, *, delimiter: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
            """List names of the bucket with a prefix, behind `after`. With a delimiter, folders end with it."""
            ...


T = TypeVar("T")

IN_COLUMNS: Final = find_spec("arro3") is not None
"""obstore lists in columns where arro3-core is installed, which Spark workers may lack."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LAST_WORDS_S: Final = 0.1
"""obstore's threads release Python objects shortly after an answer.

If the interpreter has ended by then, they abort the process, and its caller sees a crash instead of its exit code: this
hit one in two processes that failed at once. A process cannot wait for these threads, so it sleeps.
"""

atexit.register(time.sleep, _LAST_WORDS_S)

_REFUSED: Final = re.compile(r"non-2xx status code: (4\d\d|501)")
_CONFLICT: Final = "non-2xx status code: 409"
_TAKEN: Final = "BlobAlreadyExists"
"""The code of Azure's 409, where other services answer 412."""
_DENIED: Final = re.compile(r"\(code: AccessDenied\)|non-2xx status code: 40[13]")
"""A refusal of one key in a bulk delete, which itself succeeds, and of a listing."""

_BAD_PATH: Final = re.compile(r'Encountered object with invalid path: .*?[Pp]ath "([^"]*)"')

_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|ContainerBeingDeleted|ContainerDisabled")

_PANIC: Final = "RustPanic"


_BROKEN: Final = "list response body"
"""obstore's words for a listing whose answer broke after its headers. It asks again for an object, and not here."""


class ListingBroke(ObjectStoreUnavailable):
    """The answer to a listing broke off. Asking again may help."""


class ListingUnasked(ObjectStoreUnavailable):
    """The credentials at hand cannot sign a listing of ours. obstore may still list with them."""


class ObjectConflict(ObjectStoreUnavailable):
    """The store refused with 409: another request at this key is under way, or was carried out.

    The object may exist or not.
    """


def ms_of(moment: datetime) -> int:
    """Return a moment in ms since 1970."""
    return (moment - _EPOCH) // _MILLISECOND


async def next_page(pages: AsyncIterator[Any]) -> Page | None:
    """Return obstore's next page. Its dictionaries and dates take as long as our own part of a listing."""
    page = await anext(pages, None)
    if page is None:
        return None
    if not IN_COLUMNS:
        paths = [meta["path"] for meta in page]
        return Page(paths, [meta["size"] for meta in page], [ms_of(meta["last_modified"]) for meta in page])
    columns = pa.record_batch(page)
    modified_us = columns.column("last_modified").cast(pa.int64()).to_numpy()
    paths = columns.column("path").to_numpy(zero_copy_only=False).tolist()
    return Page(paths, columns.column("size").to_numpy().tolist(), (modified_us // 1000).tolist())


async def done(key: str, request: Awaitable[T], *, conditional: bool = False) -> T:
    """Await the request and return its answer, or raise its error as an error of the port.

    `conditional`: the request must not be carried out twice, so a lost answer means an unknown outcome.
    """
    try:
        return await request
    except AlreadyExistsError as error:
        if _CONFLICT in str(error) and _TAKEN not in str(error):
            raise ObjectConflict(brief(error), key=key) from error
        if not conditional:
            raise ObjectStoreUnavailable(brief(error), key=key) from error
        raise ObjectExists(f"there is an object {key!r} already", key=key) from error
    except FileNotFoundError as error:
        _check_bucket(key, error)
        raise ObjectMissing(f"there is no object {key!r}", key=key) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise ObjectStoreDenied(f"the store refused us: {brief(error)}", key=key) from error
    except BaseError as error:
        _check_bucket(key, error)
        if bad := _BAD_PATH.search(str(error)):
            raise UnlistableKey(
                f"{bad[1]!r} lies in the bucket and cannot be listed, for a part of it is empty, '.' or '..': move it"
                " away, or give the server a key to list with (docs/guide/object-stores.md); until then nothing is"
                " listed that it lies in",
                key=bad[1],
            ) from error
        if _DENIED.search(str(error)):
            raise ObjectStoreDenied(f"the store refused us: {brief(error)}", key=key) from error
        if conditional and not _REFUSED.search(str(error)):
            raise ObjectOutcomeUnknown(f"{key!r} may be stored or not: {brief(error)}", key=key) from error
        if _BROKEN in str(error):
            raise ListingBroke(brief(error), key=key) from error
        raise ObjectStoreUnavailable(brief(error), key=key) from error
    except Exception as error:
        # obstore's client panics at an unexpected answer, such as a bulk delete's errors for other keys. No module
        # exports the class. Every other exception comes from the body of a put.
        if type(error).__name__ != _PANIC:
            raise
        kind = ObjectOutcomeUnknown if conditional else ObjectStoreUnavailable
        raise kind("the store gave an answer that no such service gives", key=key) from error


def _check_bucket(key: str, error: Exception) -> None:
    if found := _NO_BUCKET.search(str(error)):
        raise BucketMissing(f"the bucket does not exist ({found[0]})", key=key) from error


def refusal(status: int, text: str) -> ObjectStoreUnavailable:
    """Return the error for a refused request that obstore did not send, by the same rules."""
    words = f"non-2xx status code: {status}: {' '.join(text.split())[:300]}"
    if found := _NO_BUCKET.search(text):
        return BucketMissing(f"the bucket does not exist ({found[0]})")
    return (
        ObjectStoreDenied(f"the store refused us: {words}") if status in {401, 403} else ObjectStoreUnavailable(words)
    )


def brief(error: Exception) -> str:
    """Return obstore's message without the dump of its own structures."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())[:500]


async def bytes_of(key: str, found: GetResult) -> bytes:
    """Return the bytes of an answer. Raises ObjectStoreUnavailable if some are missing."""
    data = bytes(await done(key, found.bytes_async()))
    start, end = found.range
    if len(data) != end - start:
        raise ObjectStoreUnavailable(f"{key!r}: the store sent {len(data)} of {end - start} bytes", key=key)
    return data


async def unasked(
    prefix: str,  # noqa: ARG001  # the form of `EveryKey`
    after: str,  # noqa: ARG001  # the same
    *,
    delimiter: str = "",  # noqa: ARG001  # the same
) -> AsyncIterator[Sequence[ObjectStat]]:
    """The listing of a store whose names cannot be listed unchanged."""
    raise ListingUnasked("no key of this store signs listings")
    yield ()  # makes this function a generator, as `EveryKey` requires
