"""Whether a service keeps the condition of a conditional put. Some that speak S3 read past `If-None-Match` and store.

Who claims a name by such a put would then have claimed what is another's: two repositories one namespace, two applies
one number. So before its first conditional put a process tries in the namespace, at one key that no listing shows, that
the second of two is refused. The object of one byte stays: whoever tries next needs one request instead of two, and
nobody needs a permission to delete. Large bodies get their key by a conditional copy, which a service may know or not
know by itself: that is tried too, before the first one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import obstore

from lakebed.objectstore.keys import RESERVED_SEGMENT
from lakebed.objectstore.store import ObjectExists, ObjectOutcomeUnknown, ObjectStoreUnavailable

from ._service import ObjectConflict, client_of, done

if TYPE_CHECKING:
    from lakebed.objectstore.opening import ObjectStoreOptions

_KEY: Final = f"{RESERVED_SEGMENT}/if-none-match"
_BODY: Final = b"."
"""Not empty, since not every service copies an empty part."""


@lru_cache(maxsize=1024)
def conditions_of(bucket: str, options: ObjectStoreOptions, prefix: str) -> Conditions:
    """`prefix` is that of the namespace, empty or with a slash at its end."""
    return Conditions(bucket, options, prefix)


class Conditions:
    """Of one namespace in this process. A check costs requests only until it has succeeded once."""

    def __init__(self, bucket: str, options: ObjectStoreOptions, prefix: str) -> None:
        self._client = client_of(bucket, options)
        self._path = prefix + _KEY
        self._puts_are_kept = False
        self._copies_are_kept = False

    async def check_puts(self) -> None:
        """
        Raises:
            ObjectStoreUnavailable: a condition was not kept, or this could not be tried.
        """
        if self._puts_are_kept:
            return
        # The first put may find the object of another process, and is then all that is needed.
        if await self._is_put() and await self._is_put():
            raise _not_kept("PutObject")
        self._puts_are_kept = True

    async def check_copies(self) -> None:
        """
        Raises:
            ObjectStoreUnavailable: a condition was not kept, or this could not be tried.
        """
        await self.check_puts()
        if self._copies_are_kept:
            return
        if await _is_done(obstore.copy_async(self._client, self._path, self._path, overwrite=False)):
            raise _not_kept("CompleteMultipartUpload")
        self._copies_are_kept = True

    async def _is_put(self) -> bool:
        return await _is_done(obstore.put_async(self._client, self._path, _BODY, mode="create", use_multipart=False))


async def _is_done(request: Awaitable[object]) -> bool:
    try:
        await done(_KEY, request, conditional=True)
    except (ObjectExists, ObjectConflict):  # Only who looks at conditions tells that two of them met.
        return False
    except ObjectOutcomeUnknown as error:
        raise ObjectStoreUnavailable(f"whether this store keeps conditions could not be tried: {error}") from error
    return True


def _not_kept(operation: str) -> ObjectStoreUnavailable:
    return ObjectStoreUnavailable(
        f"this store does not keep `If-None-Match: *` on {operation}: no claim made in it would hold"
    )
