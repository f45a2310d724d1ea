"""The drivers of remote stores, through obstore: an ObjectStore and a Deleter over a service's client.

A service adds a file with its client, its credentials and the names of its conditions: `s3.py`, `azure.py`, `gcs.py`.

A small body is one PUT, with a condition for `if_absent`. A large body is a multipart upload with a few parts in
flight: about 50 MiB in memory whatever its size, and aborted on any error. A failed put never leaves an object under
its key. A killed process may leave an unfinished multipart upload, or an object below `.lakebed-tmp/`: listings here
show neither, and a lifecycle rule of the bucket should delete both after a day. Order and completeness of listings rely
on ListObjectsV2 of general purpose buckets.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import lt
from typing import TYPE_CHECKING, Final, Literal, Protocol

import obstore
from msgspec.structs import replace

from lakebed.base import LakebedError
from lakebed.objectstore.arguments import (
    BLOCK_KEY_BYTES_MAX,
    RESERVED_SEGMENT,
    are_plain_object_keys,
    can_begin_object_key,
    check_object_key,
    gather,
    is_object_key,
    outlast,
)
from lakebed.objectstore.store import (
    CHUNK_BYTES,
    Body,
    DeleteFailure,
    InvalidObjectKey,
    Level,
    ObjectExists,
    ObjectMissing,
    ObjectStat,
    ObjectStoreUnavailable,
    Page,
    Stored,
    UnlistableKey,
)

from .feed import SINGLE_PUT_BYTES, Feed, hashed, part_bytes_for
from .remote_answers import (
    IN_COLUMNS,
    ListingBroke,
    ListingUnasked,
    ObjectConflict,
    bytes_of,
    done,
    ms_of,
    next_page,
    unasked,
)

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ListResult, ObjectMeta

    from .remote_answers import Client, EveryKey


PARTS_AT_ONCE: Final = 4
COPY_BYTES_MAX: Final = 5 << 30
COPY_WAIT_S: Final = 120
DELETE_KEYS_MAX: Final = 1000
PAGE_KEYS: Final = 1000
DELETES_AT_ONCE: Final = 16
BREAKS_MAX: Final = 5
"""Answers to a listing that may break off, one behind another, before it ends with an error."""
PAUSE_S: Final = 0.05
_LAST: Final = "\U0010ffff"


class Conditions(Protocol):
    """Checks that the service enforces conditions. Each check raises ObjectStoreUnavailable if it does not."""

    async def check_puts(self) -> None: ...

    async def check_copies(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The ways in which a service differs from S3."""

    # A pattern that no key may contain.
    forbidden: re.Pattern[str] | None = None
    # A copy may continue after it was answered.
    copies_later: bool = False
    # The credentials at hand can sign URLs.
    signs: bool = True


class RemoteObjectStore:
    """An ObjectStore in a client's bucket, below `prefix`, which is empty or ends with a slash.

    `name_download` adds to a signed URL the name under which a browser saves the object; None means that it cannot.
    `every_key` lists names of the bucket with a prefix, behind another, unchanged; None means that it cannot.
    """

    def __init__(
        self,
        uri: str,
        client: Client,
        prefix: str,
        conditions: Conditions,
        name_download: Callable[[str, str], str] | None = None,
        traits: Traits = Traits(),
        every_key: EveryKey | None = None,
    ) -> None:
        self._uri = uri
        self._client = client
        self._prefix = prefix
        self._every_key = every_key or unasked
        self._conditions = conditions
        self._name_download = name_download
        self._traits = traits

    @property
    def uri(self) -> str:
        return self._uri

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        path = self._path(key)
        head, rest = await gather(body, size_bytes, small_bytes=SINGLE_PUT_BYTES)
        if rest is None and len(head) <= SINGLE_PUT_BYTES:
            stored = await hashed(head)
            if if_absent:
                await self._conditions.check_puts()
            mode: Literal["create", "overwrite"] = "create" if if_absent else "overwrite"
            put = obstore.put_async(self._client, path, head, mode=mode, use_multipart=False)
            await self._made(key, put, if_absent=if_absent)
            return stored
        feed = Feed(head, rest)
        part_bytes = part_bytes_for(size_bytes if rest is not None else len(head))
        if not if_absent:
            return await self._put_parts(key, path, feed, part_bytes)
        return await self._put_parts_if_absent(key, path, feed, part_bytes)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        path = self._path(key)
        if start == 0 and end is None:
            return await bytes_of(key, await done(key, obstore.get_async(self._client, path)))
        found = await self._get_range(key, start, end)
        return b"" if found is None else await bytes_of(key, found)

    async def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield chunks. Requests read pieces that grow from CHUNK_BYTES to 16 times that.

        So a slow reader keeps no connection open, and the first bytes arrive soon. All pieces are of one version of the
        object.

        Raises:
            ObjectStoreUnavailable: another writer replaced the object during the read.
        """
        begin, size_bytes, e_tag, piece_bytes = start, end, None, CHUNK_BYTES
        while size_bytes is None or start < size_bytes:
            until = start + piece_bytes if size_bytes is None else min(start + piece_bytes, size_bytes)
            found = await self._get_range(key, start, until, e_tag=e_tag)
            if found is None:
                if start > begin:  # there was more before: the key now has another, shorter object
                    raise ObjectStoreUnavailable(f"{key!r} was replaced while it was read", key=key)
                return
            data = await bytes_of(key, found)
            for offset in range(0, len(data), CHUNK_BYTES):
                yield data[offset : offset + CHUNK_BYTES]
            start += len(data)
            e_tag = found.meta["e_tag"]
            size_bytes = min(end or found.meta["size"], found.meta["size"])
            piece_bytes = min(2 * piece_bytes, 16 * CHUNK_BYTES)
        if end is not None and e_tag is None:
            await self.stat(key)  # the range is empty, but the object must exist all the same

    async def stat(self, key: str) -> ObjectStat:
        meta = await done(key, obstore.head_async(self._client, self._path(key)))
        checksum, modified_ms = (meta["e_tag"] or "").strip('"'), ms_of(meta["last_modified"])
        return ObjectStat(key=key, size_bytes=meta["size"], modified_ms=modified_ms, checksum=checksum)

    async def content_type(self, key: str) -> str:
        """See `lakebed.objectstore.KnowsTypes`."""
        found = await done(key, obstore.get_async(self._client, self._path(key), options={"head": True}))
        return str(found.attributes.get("Content-Type", ""))

    async def version_of(self, key: str) -> str | None:
        """See `lakebed.objectstore.Versioned`."""
        meta = await done(key, obstore.head_async(self._client, self._path(key)))
        return meta.get("version")

    async def list_all(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """See `lakebed.objectstore.ListsAll`.

        Where names cannot be listed unchanged, UnlistableKey may end this, and each empty object costs a request: a
        folder marker is listed under a name without an object.
        """
        try:
            async for page in self._list_names(prefix, start_after):
                yield page
        except ListingUnasked:
            async for page in self._list_without_markers(prefix, start_after):
                yield page

    async def _list_names(self, prefix: str, start_after: str) -> AsyncIterator[Sequence[ObjectStat]]:
        """List names unchanged.

        Raises:
            ListingUnasked: names cannot be listed unchanged here. Raised before the first page.
        """
        after = self._prefix + start_after if start_after else ""
        async for page in self._every_key(self._prefix + prefix, after):
            yield [replace(stat, key=stat.key[len(self._prefix) :]) for stat in page] if self._prefix else page

    async def _list_without_markers(self, prefix: str, start_after: str) -> AsyncIterator[Sequence[ObjectStat]]:
        async for page in self.list(prefix, start_after=start_after):
            empty = [stat.key for stat in page if not stat.size_bytes]
            missing = {key for key in empty if await self._is_missing(key)} if empty else set()
            yield [stat for stat in page if stat.key not in missing]

    async def _is_missing(self, key: str) -> bool:
        try:
            await self.stat(key)
        except ObjectMissing:
            return True
        return False

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """List keys, with one request for a thousand.

        If the prefix ends inside a segment, the listing begins there and ends after it, at no further cost. If obstore
        fails at another program's key, the rest is listed with all names unchanged: a listing is complete or an error.
        """
        last = start_after
        try:
            async for page in self._list_keys(prefix, start_after):
                last = page[-1].key
                yield page
        except UnlistableKey as unlistable:
            try:
                async for page in self._list_names(prefix, last):
                    if shown := [stat for stat in page if RESERVED_SEGMENT not in stat.key.split("/")]:
                        yield shown
            except ListingUnasked:
                raise unlistable from None

    async def _list_keys(self, prefix: str, start_after: str) -> AsyncIterator[Sequence[ObjectStat]]:
        if not can_begin_object_key(prefix):
            return
        wanted = self._prefix + prefix
        offset = max(self._prefix + start_after if start_after else "", _just_before(wanted))
        last = ""
        async for page in self._pages(wanted, offset):
            if whole := self._whole_page(page, wanted, max(last, self._prefix + start_after)):
                last = self._prefix + whole.keys[-1]
                yield whole
                continue
            found: list[ObjectStat] = []
            for stat in page:
                path = stat.key
                if path <= last:
                    # obstore drops the slash at the end of a folder marker (an empty object that bucket browsers make),
                    # which can break the order. Nothing else may break it: a bucket that lists out of order (S3
                    # Express) is refused.
                    if stat.size_bytes or path + "/" <= last:
                        raise _out_of_order()
                    continue
                last = path
                key = path[len(self._prefix) :]
                if path.startswith(wanted) and key > start_after and is_object_key(key):
                    found.append(replace(stat, key=key))
            if found:
                yield found
            if last > wanted and not last.startswith(wanted):
                return

    async def _pages(self, wanted: str, after: str) -> AsyncIterator[Page]:
        """List the folder of `wanted` from behind `after`, until a last page is not full."""
        # Look once more behind a full last page. obstore takes a page without a token for the last, and a service that
        # supports only the older ListObjects cuts its answer and sends no token.
        broken = 0
        while True:
            # obstore cannot use an invalid key as offset: then the listing is longer, and the caller skips early names.
            offset = after if is_object_key(after) else None
            pages = obstore.list(
                self._client, _folder_of(wanted), offset=offset, chunk_size=PAGE_KEYS, return_arrow=IN_COLUMNS
            )
            seen, last = 0, ""
            try:
                while page := await done(wanted, next_page(pages)):
                    broken = 0
                    seen += len(page)
                    last = page.keys[-1]
                    yield page
            except ListingBroke:
                broken += 1
                # Behind an invalid key obstore cannot go on, and early pages must not come twice.
                if broken > BREAKS_MAX or (seen and not is_object_key(last)):
                    raise
                await asyncio.sleep(PAUSE_S * 2**broken)
                after = last or after
                continue
            if not seen or seen % PAGE_KEYS:
                return
            if last <= after:
                raise _out_of_order()
            after = last

    def _whole_page(self, page: Page, wanted: str, after: str) -> Page | None:
        """Return all of a page if it is in order, behind `after`, below the prefix, and of plain keys, as nearly all
        pages are.

        Else return nothing: the caller checks each object, which takes three times as long.
        """
        paths = page.keys
        if paths[0] <= after or not all(map(lt, paths, paths[1:])):
            return None
        begin = len(self._prefix)
        keys = [path[begin:] for path in paths]
        if not (paths[0].startswith(wanted) and paths[-1].startswith(wanted) and are_plain_object_keys(keys)):
            return None
        return Page(keys, page.sizes, page.modified_ms)

    async def level(self, folder: str = "") -> Level:
        """List one level, with one request for a thousand keys and folders. If obstore fails, list the names
        unchanged.
        """
        if not can_begin_object_key(folder):
            return Level(keys=[], folders=[])
        wanted = self._prefix + folder
        try:
            found = await self._listed_level(folder)
        except UnlistableKey as unlistable:
            try:
                return await self._level_of_names(wanted)
            except ListingUnasked:
                raise unlistable from None
        paths = [meta["path"] for meta in found["objects"]]
        folders = [path.rstrip("/") + "/" for path in found["common_prefixes"]]
        if (seen := [*paths, *folders]) and len(seen) % PAGE_KEYS == 0:
            await self._check_end(wanted, max(*paths, *(name + _LAST for name in folders)))
        return Level(keys=self._keys_below(wanted, paths), folders=self._keys_below(wanted, folders))

    async def _listed_level(self, folder: str) -> ListResult[Sequence[ObjectMeta]]:
        broken = 0
        while True:
            try:
                level = obstore.list_with_delimiter_async(self._client, _folder_of(self._prefix + folder))
                return await done(folder, level)
            except ListingBroke:
                broken += 1
                if broken > BREAKS_MAX:
                    raise
                await asyncio.sleep(PAUSE_S * 2**broken)

    async def _level_of_names(self, wanted: str) -> Level:
        keys: list[str] = []
        folders: list[str] = []
        begin = len(self._prefix)
        async for page in self._every_key(wanted, "", delimiter="/"):
            for stat in page:
                if stat.key != wanted and RESERVED_SEGMENT not in stat.key.split("/"):
                    (folders if stat.key.endswith("/") else keys).append(stat.key[begin:])
        return Level(keys=keys, folders=folders)

    async def _check_end(self, wanted: str, last: str) -> None:
        """Check that the store has no object behind `last`.

        Raises:
            ObjectStoreUnavailable: it has one, perhaps a new one.
        """
        async for page in self._pages(wanted, last):
            if page.keys[-1] > last:
                raise ObjectStoreUnavailable(f"the store shows only a part of what lies in {wanted!r}", key=wanted)

    def _keys_below(self, wanted: str, paths: Sequence[str]) -> Sequence[str]:
        """Return the keys among these paths, in order. A folder's key is its path with the slash."""
        found = sorted(
            path[len(self._prefix) :] for path in paths if len(path) > len(wanted) and path.startswith(wanted)
        )
        return [key for key in found if is_object_key(key.removesuffix("/"))]

    async def copy(self, source: str, target: str) -> None:
        """Copy an object, with three requests.

        An object over 5 GiB, too large for one copy of S3, is copied through this process.

        S3 may answer success in the status and failure in the body, which obstore does not read. So check the target:
        an earlier object with the same size passes for the copy. Every caller of ours has a new target, or one with the
        same bytes.
        """
        from_, to = self._path(source), self._path(target)
        size_bytes = (await self.stat(source)).size_bytes
        if size_bytes > COPY_BYTES_MAX:
            await self.put(target, self.stream(source), size_bytes=size_bytes)
            return
        await done(source, outlast(asyncio.ensure_future(obstore.copy_async(self._client, from_, to)), _nothing))
        await self._check_copied(source, target, size_bytes)

    async def _check_copied(self, source: str, target: str, size_bytes: int) -> None:
        """Check the size of the target, and wait for a copy that continues: until its end, Azure shows an empty object.

        Raises:
            ObjectStoreUnavailable: the target is absent, or not as large as the source.
        """
        deadline, pause_s = time.monotonic() + COPY_WAIT_S, 0.05
        while True:
            try:
                found_bytes = (await self.stat(target)).size_bytes
            except ObjectMissing as error:
                raise ObjectStoreUnavailable(
                    f"the store says that it copied {source!r}, and did not", key=source
                ) from error
            if found_bytes == size_bytes:
                return
            if not self._traits.copies_later or time.monotonic() > deadline:
                raise ObjectStoreUnavailable(
                    f"of {source!r} {found_bytes} of {size_bytes} bytes were copied", key=source
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 2)

    async def presign_get(self, key: str, *, expires_s: int, file_name: str = "") -> str | None:
        url = await self._sign("GET", key, expires_s)
        if url is None or self._name_download is None or not file_name:
            return url
        return self._name_download(url, file_name)

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:
        return await self._sign("PUT", key, expires_s)

    async def close(self) -> None:
        """Release nothing: the process shares the connections among all namespaces of the bucket."""

    async def _get_range(self, key: str, start: int, end: int | None, *, e_tag: str | None = None) -> GetResult | None:
        """Return the object's part of this range, or None if the object exists and has no byte of it."""
        path = self._path(key)
        if end is not None and end <= start:
            await self.stat(key)
            return None
        options: GetOptions = {"range": (start, end) if end is not None else {"offset": start}}
        if e_tag is not None:
            options["if_match"] = e_tag
        try:
            return await done(key, obstore.get_async(self._client, path, options=options))
        except ObjectStoreUnavailable:
            # S3 answers 416 for a range that begins at the end or behind it.
            if (await self.stat(key)).size_bytes > start:
                raise
            return None

    def _path(self, key: str) -> str:
        return _path(self._prefix, key, self._traits)

    async def _made(self, key: str, request: Awaitable[object], *, if_absent: bool) -> None:
        try:
            await done(key, outlast(asyncio.ensure_future(request), _nothing), conditional=if_absent)
        except ObjectConflict as error:
            if not if_absent:
                raise
            try:
                await self.stat(key)
            except ObjectMissing:
                raise error from None
            raise ObjectExists(f"there is an object {key!r} already", key=key) from error

    async def _put_parts(self, key: str, path: str, feed: Feed, part_bytes: int) -> Stored:
        upload = obstore.put_async(
            self._client, path, feed, use_multipart=True, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE
        )
        await done(key, outlast(asyncio.ensure_future(upload), feed.abandon))
        return feed.stored()

    async def _put_parts_if_absent(self, key: str, path: str, feed: Feed, part_bytes: int) -> Stored:
        # obstore has no conditional multipart upload: upload to a reserved key, then copy on a condition. So an object
        # over 5 GiB cannot be put with `if_absent`: one copy of S3 takes no more.
        await self._conditions.check_copies()
        temporary = f"{self._prefix}{RESERVED_SEGMENT}/{secrets.token_hex(12)}"
        try:
            # Inside `try`: an upload that is cancelled at its end may exist all the same.
            stored = await self._put_parts(key, temporary, feed, part_bytes)
            copy = obstore.copy_async(self._client, temporary, path, overwrite=False)
            await self._made(key, copy, if_absent=True)
            if self._traits.copies_later:
                await self._check_copied(key, key, stored.size_bytes)
        finally:
            remove = asyncio.ensure_future(obstore.delete_async(self._client, temporary))
            with contextlib.suppress(LakebedError):  # no listing shows it, and a lifecycle rule deletes it
                await done(temporary, outlast(remove, _nothing))
        return stored

    async def _sign(self, method: Literal["GET", "PUT"], key: str, expires_s: int) -> str | None:
        path = self._path(key)
        if not self._traits.signs:
            return None
        lifetime = timedelta(seconds=expires_s)
        return await done(key, obstore.sign_async(self._client, method, path, lifetime))


class RemoteDeleter:
    """Deletes objects of the namespace that a RemoteObjectStore with the same arguments reads and writes."""

    def __init__(self, uri: str, client: Client, prefix: str, traits: Traits = Traits()) -> None:
        self._uri = uri
        self._client = client
        self._prefix = prefix
        self._traits = traits

    @property
    def uri(self) -> str:
        return self._uri

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Delete objects, with one request for a thousand keys.

        If a request fails, each of its keys is deleted by itself: obstore names only the first failure of a batch.
        """
        paths = self._paths(keys)
        failures: list[DeleteFailure] = []
        for first in range(0, len(keys), DELETE_KEYS_MAX):
            batch, named = keys[first : first + DELETE_KEYS_MAX], paths[first : first + DELETE_KEYS_MAX]
            try:
                await done("", obstore.delete_async(self._client, named))
            except LakebedError as error:
                failures += await self._delete_singly(batch, dict(zip(batch, named, strict=True)), str(error))
        return failures

    async def close(self) -> None:
        """Release nothing: the process shares the connections among all namespaces of the bucket."""

    def _paths(self, keys: Sequence[str]) -> Sequence[str]:
        longest = len(self._prefix.encode()) + max(map(len, keys), default=0)
        if self._traits.forbidden is None and longest <= BLOCK_KEY_BYTES_MAX and are_plain_object_keys(keys):
            return [self._prefix + key for key in keys]
        return [_path(self._prefix, key, self._traits) for key in keys]

    async def _delete_singly(self, keys: Sequence[str], paths: dict[str, str], reason: str) -> Sequence[DeleteFailure]:
        failures: list[DeleteFailure] = []
        for first in range(0, len(keys), DELETES_AT_ONCE):
            wave = keys[first : first + DELETES_AT_ONCE]
            outcomes = await asyncio.gather(*(self._delete_one(key, paths[key]) for key in wave))
            failed = [failure for failure in outcomes if failure is not None]
            failures += failed
            if len(failed) == len(wave) == DELETES_AT_ONCE:  # the store is down, or refuses every request
                rest = keys[first + DELETES_AT_ONCE :]
                return [*failures, *(DeleteFailure(key=key, reason=f"not tried alone: {reason}") for key in rest)]
        return failures

    async def _delete_one(self, key: str, path: str) -> DeleteFailure | None:
        try:
            await done(key, obstore.delete_async(self._client, path))
        except ObjectMissing:
            return None
        except LakebedError as error:
            return DeleteFailure(key=key, reason=str(error))
        return None


def prefix_of(path: str) -> str:
    return path + "/" if path else ""


def _path(prefix: str, key: str, traits: Traits) -> str:
    path = prefix + check_object_key(key)
    if len(path) * 4 > BLOCK_KEY_BYTES_MAX and len(path.encode()) > BLOCK_KEY_BYTES_MAX:
        raise InvalidObjectKey(
            f"with its namespace this key is over {BLOCK_KEY_BYTES_MAX} bytes: {key[:100]!a}", key=key
        )
    if traits.forbidden is not None and (found := traits.forbidden.search(key)):
        raise InvalidObjectKey(f"this service keeps no key with {found[0]!a} as in {key[:100]!a}", key=key)
    return path


def _nothing() -> None:
    """Do nothing: a single request cannot be cancelled, so the caller waits for it."""


def _folder_of(path: str) -> str | None:
    return path.rpartition("/")[0] or None


def _out_of_order() -> ObjectStoreUnavailable:
    return ObjectStoreUnavailable("this bucket lists out of order, which no listing here can bear")


def _just_before(wanted: str) -> str:
    """Return a string before every key with this prefix, and close to it. The prefix must not be empty."""
    if not wanted or wanted.endswith("/"):
        return ""  # whole segments: obstore asks S3 for exactly these
    before = ord(wanted[-1]) - 1
    return wanted[:-1] + chr(0xD7FF if 0xD800 <= before <= 0xDFFF else before) + "\U0010fffd"
