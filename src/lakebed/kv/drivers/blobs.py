"""`s3://bucket/prefix`, `gs://…`, `az://…`: a Store in an object store, by conditional writes.

- A pair is an object. Its name is the partition, then the key, both in hexadecimal: so listings are in byte order. A
  partition or key that is too long for a name is cut, and a digest follows. The body has the whole key and random
  bytes, so no two bodies are equal and a value that was put back is noticed (no A-B-A).
- `set_if` is one conditional PUT: `If-None-Match: *`, `If-Match`, or a generation. Opening the store tests that the
  service enforces them.
- `delete_if` overwrites the object with an empty one: no client deletes on a condition. An empty object is no pair.
- A scan lists names, and reads each object. Azure lists a partition from its beginning each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

if TYPE_CHECKING:
    from obstore import PutMode, PutResult
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

T = TypeVar("T")
Client: TypeAlias = "AzureStore | GCSStore | S3Store"

FORMAT: Final = b"1"
NO_SIZE: Final = "the service's own tools add up the objects below the URI's path"
NO_COMPACTION: Final = (
    "each key is an object, and its room is free once it is deleted. Where the bucket keeps versions, "
    "let a rule of the bucket end them"
)
CONNECTIONS: Final = 32
PARTITION_BYTES: Final = 50
KEY_BYTES: Final = 300
"""A longer key is cut here, and a digest follows. A scan reads all keys with the same first bytes together."""

SEGMENT: Final = 200
"""Digits between slashes: some services store objects as files, with short names."""

END: Final = "-"
"""Sorts before `/` and every digit. So a key is listed before the longer keys that begin with it."""

PREFIX_MAX: Final = 100
LISTED_AT_ONCE: Final = 1000
LAST_WORDS_S: Final = 0.1
"""obstore's threads release Python objects shortly after the last answer. A process that ends before aborts."""

NO_ACCOUNT: Final = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'

_HEAD: Final = struct.Struct(">12sHH")
_NO_CONNECTION: Final = "kind: Connect"
# Not Azure's OperationTimedOut: the service may have carried out such an operation.
_THROTTLED: Final = re.compile(r"SlowDown|ServerBusy|non-2xx status code: 429")
_REFUSED: Final = re.compile(r"non-2xx status code: (4\d\d|501)")
_CONFLICT: Final = "non-2xx status code: 409"
_TAKEN: Final = "BlobAlreadyExists"
_STALE: Final = {"s3": '"00000000000000000000000000000000"', "az": '"0x0"', "gs": "1"}
"""A version that no object has."""


def _from(uri: StoreUri, wait_s: float) -> BlobDatabase:
    """Open `s3://bucket/prefix?region=&endpoint=&connections=32&wait_s=10`.

    Credentials are looked up as the service's own tools do.
    """
    endpoint, connections = uri.text("endpoint", ""), uri.count("connections", CONNECTIONS)
    region = uri.text("region", "") if uri.scheme == "s3" else ""
    account = uri.text("account", "") if uri.scheme == "az" else ""
    uri.check_all_taken()
    bucket, prefix = uri.authority, uri.path.strip("/")
    plain = re.fullmatch(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*", prefix)
    if not bucket or "@" in bucket or plain is None or len(prefix) > PREFIX_MAX:
        raise InvalidStoreUri(
            f"{uri.scheme}: a bucket and a path are required: {uri.scheme}://bucket/metadata. The path has letters and"
            f" digits, and at most {PREFIX_MAX} characters. Credentials come from the variables of the service's own"
            " tools",
            scheme=uri.scheme,
        )
    client: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "timeout": timedelta(seconds=max(wait_s, 1)),
        "pool_max_idle_per_host": str(connections),
    }
    # With retries the client would repeat a write whose answer was lost.
    retry: RetryConfig = {"max_retries": 0}
    try:
        made = _client_of(uri.scheme, bucket, endpoint, region or account, client, retry)
    except BaseError as error:
        raise InvalidStoreUri(f"{uri.scheme}: {_brief(error)}", scheme=uri.scheme) from error
    return BlobDatabase(uri.scheme, made, prefix, connections=connections)


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


def _client_of(scheme: str, bucket: str, endpoint: str, place: str, client: ClientConfig, retry: RetryConfig) -> Client:
    match scheme:
        case "gs":
            google: GCSConfig = {"base_url": endpoint} if endpoint else {}
            if endpoint.startswith("http://"):  # an emulator, which gets no credentials
                google["service_account_key"] = NO_ACCOUNT
            return GCSStore(bucket, config=google, client_options=client, retry_config=retry)
        case "az":
            azure: AzureConfig = {"endpoint": endpoint} if endpoint else {}
            if place:
                azure["account_name"] = place
            return AzureStore(bucket, config=azure, client_options=client, retry_config=retry)
        case _:
            amazon: S3Config = {}
            if endpoint:
                amazon |= {"endpoint": endpoint, "virtual_hosted_style_request": False, "region": "us-east-1"}
            if place:
                amazon["region"] = place
            return S3Store(bucket, config=amazon, client_options=client, retry_config=retry)


class _NotAsExpected(Exception):
    """A condition did not hold."""


class _Absent(Exception):
    """The service has no such object."""


class BlobDatabase:
    """Objects of one client, below a prefix."""

    batch_keys_max = 64
    batch_bytes_max = 16 << 20
    batches_at_once = 1
    reads_together = False

    def __init__(self, scheme: str, client: Client, prefix: str, *, connections: int) -> None:
        self._scheme = scheme
        self._client = client
        self._prefix = prefix
        self._free = connections
        self._turns: asyncio.Semaphore | None = None

    async def prepare(self) -> None:
        """Write the format's mark, and test on it that the service enforces conditions."""
        mark = f"{self._prefix}/format"
        try:
            if await self._is_put(mark, FORMAT, "create") and await self._is_put(mark, FORMAT, "create"):
                raise StoreUnavailable(f"{self._scheme}: this service keeps no `If-None-Match`: writes would be lost")
            if await self._is_put(mark, FORMAT, self._mode(_STALE[self._scheme])):
                raise StoreUnavailable(f"{self._scheme}: this service keeps no `If-Match`: writes would be lost")
            found = await self._read(mark)
            if found is None or found[0] != FORMAT:
                raise StoreFormat(f"{self._scheme}: {mark!r} is not ours: another release or program wrote it")
        finally:
            await self.close()

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        found = await asyncio.gather(*(self._held(_name(self._prefix, partition, key)) for key in keys))
        return {pair[1]: pair[2] for pair in found if pair is not None and pair[0] == partition}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = []
        wanted: list[str] = []
        stem = ""
        async for name in self._names(partition, start):
            cut = name.rpartition(END)[0]
            # Names with one stem are not in the order of their keys, so read them together.
            if len(wanted) >= limit - len(rows) and cut != stem:
                rows += await self._pairs(wanted, start)
                if len(rows) >= limit:
                    return rows[:limit]
                wanted = []
            wanted.append(name)
            stem = cut
        return [*rows, *await self._pairs(wanted, start)][:limit]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._all(
            [
                self._put(_name(self._prefix, partition, key), _body(partition, key, value), "overwrite")
                for key, value in items
            ]
        )

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        name, body = _name(self._prefix, partition, key), _body(partition, key, value)
        try:
            if expected is not None:
                return self._version(await self._put(name, body, self._mode(expected)))
            try:
                return self._version(await self._put(name, body, "create"))
            except _NotAsExpected:
                found = await self._read(name)
                if found is None:
                    raise Passing(f"{self._scheme}: the object went meanwhile") from None
                if found[0]:
                    return None
                return self._version(await self._put(name, body, self._mode(found[1])))
        except (_NotAsExpected, _Absent):
            return None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._all([self._delete(_name(self._prefix, partition, key)) for key in keys])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        return await self._is_put(_name(self._prefix, partition, key), b"", self._mode(expected))

    async def partitions(self) -> list[bytes]:
        listing = obstore.list_with_delimiter_async(self._client, self._prefix)
        found = []
        for folder in (await self._attempt(listing))["common_prefixes"]:
            async for name in self._names_in(folder.rstrip("/"), None):
                pair = await self._held(name)
                if pair is not None:
                    found.append(pair[0])
                    break
        return found

    async def close(self) -> None:
        """Wait LAST_WORDS_S. The client owns the connections and closes them itself."""
        self._turns = None
        await asyncio.sleep(LAST_WORDS_S)

    def _names(self, partition: bytes, start: bytes) -> AsyncIterator[str]:
        folder = f"{self._prefix}/{_digits(partition, PARTITION_BYTES)}"
        return self._names_in(folder, f"{folder}/{_split(start[:KEY_BYTES].hex())}" if start else None)

    async def _names_in(self, folder: str, after: str | None) -> AsyncIterator[str]:
        """List the names of pairs after `after`, in order. Skip empty objects: they are no pairs."""
        pages = obstore.list(self._client, folder, offset=after, chunk_size=LISTED_AT_ONCE)
        last = ""
        while (page := await self._attempt(_next(pages))) is not None:
            for meta in page:
                if meta["path"] <= last:
                    raise StoreUnavailable(f"{self._scheme}: this service lists out of order")
                last = meta["path"]
                if meta["size"]:
                    yield last

    async def _pairs(self, names: Sequence[str], start: bytes) -> list[tuple[bytes, bytes]]:
        found = await asyncio.gather(*map(self._held, names))
        return sorted((pair[1], pair[2].value) for pair in found if pair is not None and pair[1] >= start)

    async def _held(self, name: str) -> tuple[bytes, bytes, Held] | None:
        """Read a pair. Return its partition, its key, and its value with the version."""
        found = await self._read(name)
        if found is None or not found[0]:
            return None
        body, version = found
        try:
            _, partition_size, key_size = _HEAD.unpack_from(body)
        except struct.error as error:
            raise StoreFormat(f"{self._scheme}: {name!r} is not a pair of ours") from error
        begin, middle = _HEAD.size, _HEAD.size + partition_size
        end = middle + key_size
        partition, key = body[begin:middle], body[middle:end]
        if _name(self._prefix, partition, key) != name:
            raise StoreFormat(f"{self._scheme}: {name!r} holds the pair of another name")
        return partition, key, Held(body[end:], version)

    async def _read(self, name: str) -> tuple[bytes, str] | None:
        async def read() -> tuple[bytes, str]:
            found = await obstore.get_async(self._client, name)
            return bytes(await found.bytes_async()), self._version(found.meta)

        try:
            return await self._attempt(read())
        except _Absent:
            return None

    async def _put(self, name: str, body: bytes, mode: PutMode) -> PutResult:
        return await self._attempt(obstore.put_async(self._client, name, body, mode=mode, use_multipart=False))

    async def _is_put(self, name: str, body: bytes, mode: PutMode) -> bool:
        try:
            await self._put(name, body, mode)
        except (_NotAsExpected, _Absent):
            return False
        return True

    async def _delete(self, name: str) -> None:
        try:
            await self._attempt(obstore.delete_async(self._client, name))
        except _Absent:
            return

    def _version(self, found: PutResult) -> str:
        version = found["version"] if self._scheme == "gs" else found["e_tag"]
        if not version:
            raise OutcomeUnknown(f"{self._scheme}: the answer has no version of the object")
        return version

    def _mode(self, version: Predicate) -> PutMode:
        return {"version": str(version)} if self._scheme == "gs" else {"e_tag": str(version)}

    async def _all(self, requests: Sequence[Awaitable[object]]) -> None:
        """Await all requests of a batch.

        Raises:
            OutcomeUnknown: a request failed, and another was or may have been carried out.
        """
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, StoreUnavailable | OutcomeUnknown):
                raise failure
        if not failures:
            return
        if len(failures) < len(outcomes) or not all(isinstance(each, StoreUnavailable) for each in failures):
            raise OutcomeUnknown(f"{self._scheme}: a part of the batch may be done: {failures[0]}") from failures[0]
        raise failures[0]

    async def _attempt(self, request: Awaitable[T]) -> T:
        """Await one request in its turn, and translate its error into an error of the port."""
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._free)
        async with self._turns:
            try:
                return await request
            except AlreadyExistsError as error:
                if _CONFLICT in str(error) and _TAKEN not in str(error):
                    raise Passing(f"{self._scheme}: {_brief(error)}") from error  # two requests met at one object
                raise _NotAsExpected from error
            except PreconditionError as error:
                raise _NotAsExpected from error
            except FileNotFoundError as error:
                if missing := re.search("NoSuchBucket|ContainerNotFound", str(error)):
                    raise StoreUnavailable(f"{self._scheme}: the bucket does not exist ({missing[0]})") from error
                raise _Absent from error
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise StoreUnavailable(f"{self._scheme}: the service refused us: {_brief(error)}") from error
            except BaseError as error:
                text = str(error)
                if _NO_CONNECTION in text or _THROTTLED.search(text):
                    raise Passing(f"{self._scheme}: {_brief(error)}") from error
                if _REFUSED.search(text):
                    raise StoreUnavailable(f"{self._scheme}: {_brief(error)}") from error
                raise OutcomeUnknown(f"{self._scheme}: {_brief(error)}") from error


def _name(prefix: str, partition: bytes, key: bytes) -> str:
    return f"{prefix}/{_digits(partition, PARTITION_BYTES)}/{_digits(key, KEY_BYTES)}"


def _digits(data: bytes, bytes_max: int) -> str:
    digest = hashlib.sha256(data).hexdigest()[:32] if len(data) > bytes_max else ""
    return _split(data[:bytes_max].hex()) + END + digest


def _split(digits: str) -> str:
    return "/".join(digits[first : first + SEGMENT] for first in range(0, len(digits), SEGMENT))


def _body(partition: bytes, key: bytes, value: bytes) -> bytes:
    return _HEAD.pack(os.urandom(12), len(partition), len(key)) + partition + key + value


async def _next(pages: AsyncIterator[T]) -> T | None:
    try:
        return await anext(pages)
    except StopAsyncIteration:
        return None


def _brief(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())[:300]
