"""A BlockStore in an S3 bucket, or in anything that speaks S3, through obstore.

A small body is one PUT, conditional where `if_absent` says so. A large one is a multipart upload with a few parts in
flight, about 50 MiB in memory whatever its size, and aborted when anything goes wrong. obstore has no conditional
multipart upload: a large body with `if_absent` goes to a reserved key first, then a conditional copy names it.

What a failure leaves behind: nothing under the key, ever. A process that is killed may leave an unfinished multipart
upload, or an object below `.lakebed-tmp/`: no listing here shows either; a lifecycle rule of the bucket should drop
both after a day. Objects over 5 GiB cannot be copied by S3 in one call: they are copied through this process, and
cannot be put with `if_absent`.

Order and completeness rest on ListObjectsV2 of general purpose buckets. A bucket that lists out of order (S3 Express)
is refused when that shows, and so is a namespace that holds keys with empty or dotted segments: a listing is complete
or an error.

What `BlockOptions` leave open (region, endpoint, credentials), obstore looks up as AWS's own tools do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from lakebed.base import LakebedError
from lakebed.blocks.bodies import gather
from lakebed.blocks.keys import (
    BLOCK_KEY_BYTES_MAX,
    RESERVED_SEGMENT,
    are_plain_block_keys,
    can_begin_block_key,
    check_block_key,
    is_block_key,
)
from lakebed.blocks.store import (
    CHUNK_BYTES,
    BlockExists,
    BlockNotFound,
    BlockOutcomeUnknown,
    BlockStat,
    BlocksUnavailable,
    Body,
    DeleteFailure,
    InvalidBlockKey,
    InvalidNamespace,
    Level,
    Stored,
)

from ._feed import Feed
from ._outlast import outlast

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import S3Config, S3Credential

    from lakebed.blocks.opening import BlockOptions

T = TypeVar("T")

SINGLE_PUT_BYTES: Final = 8 << 20
PARTS_MAX: Final = 10_000
PARTS_AT_ONCE: Final = 4
COPY_BYTES_MAX: Final = 5 << 30
DELETE_KEYS_MAX: Final = 1000
PAGE_KEYS: Final = 1000
DELETES_AT_ONCE: Final = 16
INLINE_BYTES: Final = 1 << 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_ENDPOINT: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:([0-9]{1,5}))?/?")
_REFUSED: Final = re.compile(r"non-2xx status code: 4\d\d")


@lru_cache(maxsize=64)
def _client(bucket: str, options: BlockOptions) -> S3Store:
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
        raise InvalidNamespace(f"s3://{bucket} cannot be opened: {_brief(error)}") from error


def _check_options(options: BlockOptions) -> None:
    """obstore would find these out too, by panicking in the first request."""
    if options.s3_endpoint is not None:
        found = _ENDPOINT.fullmatch(options.s3_endpoint)
        if not found or int(found[3] or 0) > 0xFFFF:
            raise InvalidNamespace(f"{options.s3_endpoint!r} is no endpoint: http(s)://, a host, and perhaps a port")
    if (options.s3_access_key_id is None) != (options.s3_secret_access_key is None):
        raise InvalidNamespace("an S3 access key id and its secret are given together or not at all")


def _credentials(options: BlockOptions) -> Callable[[], S3Credential] | None:
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


class S3Blocks:
    """Keys lie in `bucket` after `prefix` and a slash; with no prefix, the namespace is the bucket."""

    def __init__(self, uri: str, bucket: str, prefix: str, options: BlockOptions) -> None:
        self._uri = uri
        self._prefix = prefix + "/" if prefix else ""
        self._client = _client(bucket, options)

    @property
    def uri(self) -> str:
        return self._uri

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        path = self._path(key)
        head, rest = await gather(body, size_bytes, small_bytes=SINGLE_PUT_BYTES)
        if rest is None and len(head) <= SINGLE_PUT_BYTES:
            stored = await _hashed(head)
            put = obstore.put_async(
                self._client, path, head, mode="create" if if_absent else "overwrite", use_multipart=False
            )
            await _done(key, outlast(asyncio.ensure_future(put), _nothing), conditional=if_absent)
            return stored
        feed = Feed(head, rest)
        part_bytes = _part_bytes(size_bytes if rest is not None else len(head))
        if not if_absent:
            return await self._put_parts(key, path, feed, part_bytes)
        return await self._put_parts_if_absent(key, path, feed, part_bytes)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        path = self._path(key)
        if start == 0 and end is None:
            return await _bytes(key, await _done(key, obstore.get_async(self._client, path)))
        found = await self._get_range(key, start, end)
        return b"" if found is None else await _bytes(key, found)

    async def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """In pieces of its own, each a request, growing from CHUNK_BYTES to 16 times that: a slow reader holds no
        connection open, and the first bytes come soon. All pieces are of one version of the object.
        """
        size_bytes, e_tag, piece_bytes = end, None, CHUNK_BYTES
        while size_bytes is None or start < size_bytes:
            until = start + piece_bytes if size_bytes is None else min(start + piece_bytes, size_bytes)
            found = await self._get_range(key, start, until, e_tag=e_tag)
            if found is None:
                return
            data = await _bytes(key, found)
            for offset in range(0, len(data), CHUNK_BYTES):
                yield data[offset : offset + CHUNK_BYTES]
            start += len(data)
            e_tag = found.meta["e_tag"]
            size_bytes = min(end or found.meta["size"], found.meta["size"])
            piece_bytes = min(2 * piece_bytes, 16 * CHUNK_BYTES)
        if end is not None and e_tag is None:
            await self.stat(key)  # an empty range was asked for, of an object that must exist all the same

    async def stat(self, key: str) -> BlockStat:
        meta = await _done(key, obstore.head_async(self._client, self._path(key)))
        return _block_stat(key, meta)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[BlockStat]]:
        """One request for a thousand keys. Where the prefix ends inside a segment the listing begins at it and ends
        after it, so that costs no more.
        """
        if not can_begin_block_key(prefix):
            return
        wanted = self._prefix + prefix
        offset = max(self._prefix + start_after if start_after else "", _just_before(wanted))
        pages = obstore.list(
            self._client,
            wanted.rpartition("/")[0] or None,
            # A key that obstore could not take for one only makes the listing longer: what is too early is left out.
            offset=offset if is_block_key(offset) else None,
            chunk_size=PAGE_KEYS,
        )
        last = ""
        while (page := await _done(prefix, _next_page(pages))) is not None:
            if whole := self._whole_page(page, wanted, max(last, self._prefix + start_after)):
                last = self._prefix + whole[-1].key
                yield whole
                continue
            found: list[BlockStat] = []
            for meta in page:
                path = meta["path"]
                if path <= last:
                    # obstore drops the slash at the end of a folder marker (an empty object that browsers of buckets
                    # make), which can break the order. Nothing else may.
                    if meta["size"]:
                        raise BlocksUnavailable("this bucket lists out of order, which no listing here can bear")
                    continue
                last = path
                key = path[len(self._prefix) :]
                if path.startswith(wanted) and key > start_after and is_block_key(key):
                    found.append(_block_stat(key, meta))
            if found:
                yield found
            if last > wanted and not last.startswith(wanted):
                return

    def _whole_page(self, page: Sequence[ObjectMeta], wanted: str, after: str) -> Sequence[BlockStat]:
        """All of a page, if it is as nearly all are: in order, behind `after`, below the prefix, and of plain keys.
        Else nothing, and its objects are looked at one by one, which takes three times as long.
        """
        paths = [meta["path"] for meta in page]
        if not paths or paths[0] <= after or len({*paths}) < len(paths) or sorted(paths) != paths:
            return []
        keys = [path[len(self._prefix) :] for path in paths]
        if not (paths[0].startswith(wanted) and paths[-1].startswith(wanted) and are_plain_block_keys(keys)):
            return []
        return [_block_stat(key, meta) for key, meta in zip(keys, page, strict=True)]

    async def level(self, folder: str = "") -> Level:
        """One request for a thousand keys and folders."""
        if not can_begin_block_key(folder):
            return Level(keys=[], folders=[])
        wanted = self._prefix + folder
        listing = obstore.list_with_delimiter_async(self._client, wanted.rstrip("/") or None)
        found = await _done(folder, listing)
        keys = [meta["path"][len(self._prefix) :] for meta in found["objects"]]
        folders = [path[len(self._prefix) :].rstrip("/") + "/" for path in found["common_prefixes"]]
        return Level(
            keys=sorted(key for key in keys if is_block_key(key) and key != folder.rstrip("/")),
            folders=sorted(one for one in folders if is_block_key(one[:-1])),
        )

    async def copy(self, source: str, target: str) -> None:
        from_, to = self._path(source), self._path(target)
        copy = asyncio.ensure_future(obstore.copy_async(self._client, from_, to))
        try:
            await _done(source, outlast(copy, _nothing))
        except BlocksUnavailable:
            size_bytes = (await self.stat(source)).size_bytes
            if size_bytes <= COPY_BYTES_MAX:
                raise
            await self.put(target, self.stream(source), size_bytes=size_bytes)

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """One request for a thousand keys. If one answers with an error, its keys are tried one by one, since obstore
        names only the first failure of a batch.
        """
        paths = self._paths(keys)
        failures: list[DeleteFailure] = []
        for first in range(0, len(keys), DELETE_KEYS_MAX):
            batch, named = keys[first : first + DELETE_KEYS_MAX], paths[first : first + DELETE_KEYS_MAX]
            try:
                await _done("", obstore.delete_async(self._client, named))
            except LakebedError as error:
                failures += await self._delete_singly(batch, dict(zip(batch, named, strict=True)), str(error))
        return failures

    async def presign_get(self, key: str, *, expires_s: int) -> str | None:
        return await self._sign("GET", key, expires_s)

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:
        return await self._sign("PUT", key, expires_s)

    async def close(self) -> None:
        """Nothing is let go: the connections are the process's, shared by all namespaces of the bucket."""

    def _paths(self, keys: Sequence[str]) -> Sequence[str]:
        longest = len(self._prefix.encode()) + max(map(len, keys), default=0)
        if longest <= BLOCK_KEY_BYTES_MAX and are_plain_block_keys(keys):
            return [self._prefix + key for key in keys]
        return [self._path(key) for key in keys]

    def _path(self, key: str) -> str:
        path = self._prefix + check_block_key(key)
        if len(path) * 4 > BLOCK_KEY_BYTES_MAX and len(path.encode()) > BLOCK_KEY_BYTES_MAX:
            raise InvalidBlockKey(
                f"with its namespace this key is over S3's {BLOCK_KEY_BYTES_MAX} bytes: {key[:100]!a}", key=key
            )
        return path

    async def _get_range(self, key: str, start: int, end: int | None, *, e_tag: str | None = None) -> GetResult | None:
        """What is there of this range; None where the object exists and has none of it."""
        path = self._path(key)
        if end is not None and end <= start:
            await self.stat(key)
            return None
        options: GetOptions = {"range": (start, end) if end is not None else {"offset": start}}
        if e_tag is not None:
            options["if_match"] = e_tag
        try:
            return await _done(key, obstore.get_async(self._client, path, options=options))
        except BlocksUnavailable:
            # S3 answers 416 to a range that begins at the end or after it.
            if (await self.stat(key)).size_bytes > start:
                raise
            return None

    async def _put_parts(self, key: str, path: str, feed: Feed, part_bytes: int) -> Stored:
        upload = obstore.put_async(
            self._client, path, feed, use_multipart=True, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE
        )
        await _done(key, outlast(asyncio.ensure_future(upload), feed.abandon))
        return feed.stored()

    async def _put_parts_if_absent(self, key: str, path: str, feed: Feed, part_bytes: int) -> Stored:
        temporary = f"{self._prefix}{RESERVED_SEGMENT}/{secrets.token_hex(12)}"
        stored = await self._put_parts(key, temporary, feed, part_bytes)
        try:
            copy = asyncio.ensure_future(obstore.copy_async(self._client, temporary, path, overwrite=False))
            await _done(key, outlast(copy, _nothing), conditional=True)
        finally:
            remove = asyncio.ensure_future(obstore.delete_async(self._client, temporary))
            with contextlib.suppress(LakebedError):  # it is in nobody's way, and a lifecycle rule takes it
                await _done(temporary, outlast(remove, _nothing))
        return stored

    async def _delete_singly(self, keys: Sequence[str], paths: dict[str, str], reason: str) -> Sequence[DeleteFailure]:
        failures: list[DeleteFailure] = []
        for first in range(0, len(keys), DELETES_AT_ONCE):
            wave = keys[first : first + DELETES_AT_ONCE]
            outcomes = await asyncio.gather(*(self._delete_one(key, paths[key]) for key in wave))
            failed = [failure for failure in outcomes if failure is not None]
            failures += failed
            if len(failed) == len(wave) == DELETES_AT_ONCE:  # the store is down, or refuses us everything
                rest = keys[first + DELETES_AT_ONCE :]
                return [*failures, *(DeleteFailure(key=key, reason=f"not tried alone: {reason}") for key in rest)]
        return failures

    async def _delete_one(self, key: str, path: str) -> DeleteFailure | None:
        try:
            await _done(key, obstore.delete_async(self._client, path))
        except BlockNotFound:
            return None
        except LakebedError as error:
            return DeleteFailure(key=key, reason=str(error))
        return None

    async def _sign(self, method: Literal["GET", "PUT"], key: str, expires_s: int) -> str:
        lifetime = timedelta(seconds=expires_s)
        return await _done(key, obstore.sign_async(self._client, method, self._path(key), lifetime))


def _nothing() -> None:
    """A single request cannot be taken back: it is waited for."""


def _part_bytes(size_bytes: int | None) -> int:
    """Parts as small as the number of them allows; where the size is unknown, 160 GB fit."""
    if size_bytes is None:
        return 16 << 20
    return max(SINGLE_PUT_BYTES, -(-size_bytes // PARTS_MAX))


def _just_before(wanted: str) -> str:
    """A string below every key that begins with `wanted`, with hardly a key between the two. Not for an empty one."""
    if not wanted or wanted.endswith("/"):
        return ""  # whole segments: obstore asks S3 for just these
    before = ord(wanted[-1]) - 1
    return wanted[:-1] + chr(0xD7FF if 0xD800 <= before <= 0xDFFF else before) + "\U0010fffd"


async def _hashed(data: bytes) -> Stored:
    md5 = hashlib.md5(usedforsecurity=False)
    if len(data) > INLINE_BYTES:
        await asyncio.to_thread(md5.update, data)
    else:
        md5.update(data)
    return Stored(size_bytes=len(data), md5=md5.hexdigest())


async def _bytes(key: str, found: GetResult) -> bytes:
    data = bytes(await _done(key, found.bytes_async()))
    start, end = found.range
    if len(data) != end - start:
        raise BlocksUnavailable(f"{key!r}: the store sent {len(data)} of {end - start} bytes", key=key)
    return data


async def _next_page(pages: AsyncIterator[Sequence[ObjectMeta]]) -> Sequence[ObjectMeta] | None:
    try:
        return await anext(pages)
    except StopAsyncIteration:
        return None


def _block_stat(key: str, meta: ObjectMeta) -> BlockStat:
    modified_ms = (meta["last_modified"] - _EPOCH) // _MILLISECOND
    return BlockStat(key=key, size_bytes=meta["size"], modified_ms=modified_ms)


async def _done(key: str, request: Awaitable[T], *, conditional: bool = False) -> T:
    """What the request answers, or the port's word for its error.

    `conditional`: done twice it would not be the same as done once, so a lost answer leaves its outcome unknown.
    """
    try:
        return await request
    except AlreadyExistsError as error:
        raise BlockExists(f"there is an object {key!r} already", key=key) from error
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise BlocksUnavailable(_brief(error), key=key) from error
        raise BlockNotFound(f"there is no object {key!r}", key=key) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise BlocksUnavailable(f"the store refused us: {_brief(error)}", key=key) from error
    except BaseError as error:
        if conditional and not _REFUSED.search(str(error)):
            raise BlockOutcomeUnknown(f"{key!r} may be stored or not: {_brief(error)}", key=key) from error
        raise BlocksUnavailable(_brief(error), key=key) from error


def _brief(error: Exception) -> str:
    """obstore's messages without the dump of its own structures after them."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())[:500]
