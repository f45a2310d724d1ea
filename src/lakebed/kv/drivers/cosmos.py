"""`cosmos://:KEY@host/database/container`: a Store in Azure Cosmos DB for NoSQL, over its maker's asyncio client.

An item's partition key `p` is the partition in hexadecimal digits, `k` the key alike: queries of one partition order by
`k`. `id` is the key too; a key longer than Cosmos takes is cut, and a digest follows. Every write is one transactional
batch. Reads and queries ask for strong consistency, and an account that has a weaker one is refused.

Predicates are the entity tags of Cosmos, which every write makes anew: a value that was put back is noticed (no A-B-A).

After many failures the client repeats a request, even a write whose answer was lost. So our transport raises errors of
ours for these failures. The client passes them on.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
from azure.core.exceptions import AzureError, ServiceRequestError, ServiceRequestTimeoutError
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos import PartitionKey, exceptions
from azure.cosmos.aio import ContainerProxy, CosmosClient

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.pace import Paces, Throttled, pause_asked_for
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

FORMAT: Final = b"1"
NO_SIZE: Final = "the account's metrics show it, as data usage"
NO_COMPACTION: Final = "Cosmos DB frees the room of a deleted item by itself"
MARK: Final = "format"
"""Partition and id of the format's item. Other items have hexadecimal digits there."""
CONNECTIONS: Final = 32
ID_BYTES_MAX: Final = 400
"""A longer key has a digest in its id. Cosmos takes ids of 1,023 characters."""
PAUSE_S_MAX: Final = 5.0
"""The longest pause, where Cosmos asks for one."""

STRONG: Final = "Strong"
INDEXING: Final[dict[str, Any]] = {
    "indexingMode": "consistent",
    "automatic": True,
    "includedPaths": [{"path": "/k/?"}],
    "excludedPaths": [{"path": "/*"}],
}
SCAN: Final = "SELECT c.k, c.v FROM c WHERE c.k >= @start ORDER BY c.k"
SELECT: Final = "SELECT c.k, c.v, c._etag FROM c WHERE ARRAY_CONTAINS(@ids, c.id)"
PARTITIONS: Final = "SELECT c.p FROM c"

NOT_FOUND: Final = 404
CONFLICT: Final = 409
NOT_AS_EXPECTED: Final = 412
_THROTTLED: Final = 429
_RACE: Final = 449
"""A race inside Cosmos, which asks to try again. Nothing happened."""
_WRITE_FORBIDDEN: Final = "3"
"""The substatus of a region that takes no writes now."""
_BEING_MADE: Final = "1013"
"""The substatus, beside NOT_FOUND, of a container that another process just asked Cosmos to make."""


def _from(uri: StoreUri, wait_s: float) -> CosmosDatabase:
    """Open `cosmos://:KEY@account.documents.azure.com/database/container?tls=yes&connections=32&wait_s=10`."""
    tls, connections = uri.choice("tls", "yes", "no"), uri.count("connections", CONNECTIONS)
    uri.check_all_taken()
    uri.check_ports()
    login, _, host = uri.authority.rpartition("@")
    user, _, key = login.partition(":")
    database, _, container = uri.path.removeprefix("/").partition("/")
    if not host or user or not _is_base64(unquote(key)) or not database or not container:
        raise InvalidStoreUri(
            f"{uri.scheme}: an example: cosmos://:KEY@account.documents.azure.com/lakebed/metadata; "
            "KEY is a key of the account, with %2F for / and %2B for +",
            scheme=uri.scheme,
        )
    for name in (database, container):
        # Cosmos refuses such a name. An HTTP client would drop the dots, and request another resource.
        if re.search(r"[/\\?#]", name) or name in {".", ".."}:
            raise InvalidStoreUri(
                f"{uri.scheme}: the name of a database or container has no / \\ ? #, and is not '.' or '..': {name!r}",
                scheme=uri.scheme,
            )
    return CosmosDatabase(
        f"{'https' if tls == 'yes' else 'http'}://{host}/",
        unquote(key),
        database=database,
        container=container,
        connections=connections,
        timeout_s=max(wait_s, 1),
    )


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)  # reads the partition of every item


class _NotAsExpected(Exception):
    """A condition is false. `position` is that of the first operation of the batch that fails."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


class _NotThere(StoreUnavailable):
    """The database or container does not exist."""


class CosmosDatabase:
    """Requests to one container."""

    # Cosmos takes 100 operations and 2 MiB in a batch, with values in base64.
    batch_keys_max = 100
    batch_bytes_max = 512 << 10
    batches_at_once = 4
    reads_together = False

    def __init__(
        self, address: str, key: str, *, database: str, container: str, connections: int, timeout_s: float
    ) -> None:
        self._address = address
        self._account_key = key
        self._database = database
        self._name = container
        self._connections = connections
        self._timeout_s = timeout_s
        self._opening = asyncio.Lock()
        self._paces = Paces(timeout_s)
        self._client: CosmosClient | None = None

    async def prepare(self) -> None:
        try:
            client = await self._open()
            async with _paused_as_asked(), _translated():
                _check_account(await client._get_database_account())  # noqa: SLF001 - the client offers no other way
                properties = await self._container_or_make_it(client)
            _check_container(properties)
            mark = {"id": MARK, "p": MARK, "v": _text(FORMAT)}
            with suppress(_NotAsExpected):  # the item exists already
                await self._batch(MARK, [("create", (mark,))])
            async with _paused_as_asked(), _translated():
                found = await (await self._container()).read_item(MARK, MARK)
        finally:
            await self.close()
        if _bytes(found["v"]) != FORMAT:
            raise StoreFormat("cosmos: the container is in another format: another release or program wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        if len(keys) == 1:
            found = await self._read_one(partition, keys[0])
        else:
            found = await self._query(SELECT, partition, {"ids": [_id(key) for key in keys]})
        return {bytes.fromhex(item["k"]): Held(_bytes(item["v"]), item["_etag"]) for item in found}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        items = await self._query(SCAN, partition, {"start": start.hex()}, limit=limit)
        return [(bytes.fromhex(item["k"]), _bytes(item["v"])) for item in items]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._batch(partition.hex(), [("upsert", (_item(partition, key, value),)) for key, value in items])

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        item = _item(partition, key, value)
        operation: Any = ("create", (item,))
        if expected is not None:
            operation = ("replace", (item["id"], item), {"if_match_etag": expected})
        try:
            [done] = await self._batch(partition.hex(), [operation])
        except _NotAsExpected:
            return None
        tag: str = done["resourceBody"]["_etag"]
        return tag

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        # A batch that deletes an absent item fails as a whole.
        left = list(await self.read(partition, keys) if len(keys) > 1 else keys)
        while left:
            try:
                await self._batch(partition.hex(), [("delete", (_id(key),)) for key in left])
            except _NotAsExpected as absent:
                del left[absent.position]
            else:
                return

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        try:
            await self._batch(partition.hex(), [("delete", (_id(key),), {"if_match_etag": expected})])
        except _NotAsExpected:
            return False
        return True

    async def partitions(self) -> list[bytes]:
        container = await self._container()
        async with _paused_as_asked(), _translated():
            found = {item["p"] async for item in container.query_items(PARTITIONS)}
        return [bytes.fromhex(name) for name in found - {MARK}]

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _read_one(self, partition: bytes, key: bytes) -> list[dict[str, Any]]:
        container = await self._container()

        async def read() -> dict[str, Any]:
            async with _translated():
                return dict(await container.read_item(_id(key), partition.hex()))

        try:
            return [await self._paces.of(partition.hex()).run(read)]
        except _NotAsExpected:
            return []

    async def _query(
        self, text: str, partition: bytes, parameters: dict[str, object], *, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Read at most `limit` items. Cosmos may return a page with fewer items than requested."""
        container = await self._container()
        asked: list[dict[str, object]] = [{"name": f"@{name}", "value": value} for name, value in parameters.items()]

        async def read() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            async with _translated():
                items = container.query_items(
                    text, parameters=asked, partition_key=partition.hex(), max_item_count=min(limit, 1000)
                )
                async for item in items:
                    found.append(item)
                    if len(found) == limit:
                        break
            return found

        return await self._paces.of(partition.hex()).run(read)

    async def _batch(self, partition: str, operations: Sequence[Any]) -> list[Any]:
        """Carry out all operations or none.

        Raises:
            _NotAsExpected: an item is unexpectedly present or absent, or has another tag.
        """
        container = await self._container()

        async def carry_out() -> list[Any]:
            async with _translated():
                return list(await container.execute_item_batch(operations, partition))

        return await self._paces.of(partition).run(carry_out, len(operations))

    async def _container_or_make_it(self, client: CosmosClient) -> dict[str, Any]:
        database = client.get_database_client(self._database)
        try:
            async with _translated():
                return dict(await database.get_container_client(self._name).read())
        except (_NotThere, _NotAsExpected):
            try:
                async with _translated():
                    await client.create_database_if_not_exists(self._database)
                    key = PartitionKey("/p", version=2)
                    made = await database.create_container_if_not_exists(self._name, key, indexing_policy=INDEXING)
                    return dict(await made.read())
            except (_NotThere, _NotAsExpected):  # the client looks first, then makes it: another process was between
                raise Passing("cosmos: another process makes the database or the container") from None

    async def _container(self) -> ContainerProxy:
        return (await self._open()).get_database_client(self._database).get_container_client(self._name)

    async def _open(self) -> CosmosClient:
        async with self._opening:
            if self._client is None:
                connector = aiohttp.TCPConnector(limit=self._connections)
                transport = _Once(session=aiohttp.ClientSession(connector=connector, auto_decompress=False))
                made = CosmosClient(
                    self._address,
                    self._account_key,
                    consistency_level=STRONG,
                    enable_endpoint_discovery=False,
                    connection_timeout=self._timeout_s,
                    read_timeout=self._timeout_s,
                    retry_total=0,
                    transport=transport,
                )
                try:
                    async with _translated(), _nothing_sent():
                        await made.__aenter__()
                except BaseException:
                    await made.close()
                    raise
                self._client = made
            return self._client


class _Once(AioHttpTransport):  # type: ignore[misc]  # the library exports it in a way that mypy does not see
    """Send each request once. Raise an error of ours for a failure that the client would repeat."""

    async def send(self, request: Any, **options: Any) -> Any:
        try:
            response = await super().send(request, **options)
        except ServiceRequestTimeoutError as error:
            raise Passing(f"cosmos: no connection: {error}") from error
        except ServiceRequestError as error:
            # The library raises this for a lost answer, too.
            if isinstance(error.inner_exception, aiohttp.ClientConnectorError):
                raise Passing(f"cosmos: no connection: {error}") from error
            raise OutcomeUnknown(f"cosmos: the answer was lost: {error}") from error
        except AzureError as error:
            raise OutcomeUnknown(f"cosmos: the answer was lost: {error}") from error
        status, substatus = response.status_code, response.headers.get("x-ms-substatus", "")
        pause_s = min(float(response.headers.get("x-ms-retry-after-ms") or 0) / 1000, PAUSE_S_MAX)
        if status == _THROTTLED:
            raise Throttled(f"cosmos: it answered {status}: it is throttled", status=status, pause_s=pause_s)
        if status == _RACE:
            await asyncio.sleep(pause_s)
            raise Passing(f"cosmos: it answered {status}: a race inside it", status=status)
        if status == 403 and substatus == _WRITE_FORBIDDEN:
            raise Passing("cosmos: it fails over to another region", status=status)
        if status == NOT_FOUND and substatus == _BEING_MADE:
            raise Passing("cosmos: the container is being made", status=status)
        if status in {408, 410} or status >= 500:
            raise OutcomeUnknown(f"cosmos: it answered {status}", status=status)
        return response


def _check_account(account: Any) -> None:
    level = (account.ConsistencyPolicy or {}).get("defaultConsistencyLevel")
    if level != STRONG:
        raise StoreUnavailable(
            f"cosmos: the account's defaultConsistencyLevel is {level}: reads would miss answered writes. "
            "Set it to Strong",
            setting="defaultConsistencyLevel",
        )
    if account._EnableMultipleWritableLocations:  # noqa: SLF001 - the client offers no other way
        raise StoreUnavailable(
            "cosmos: enableMultipleWriteLocations is true: of two conditional writes both may succeed. "
            "Use an account with one region that takes writes",
            setting="enableMultipleWriteLocations",
        )


def _check_container(properties: dict[str, Any]) -> None:
    key = properties["partitionKey"]
    if key["paths"] != ["/p"]:
        raise StoreFormat(f"cosmos: the container's partition key is {key['paths']}: it is of another program")
    if key.get("version", 1) < 2:
        raise StoreUnavailable(
            "cosmos: partitionKey.version of the container is 1: it takes no long partition keys. "
            "Make a new container, with version 2",
            setting="partitionKey.version",
        )
    if properties.get("defaultTtl", -1) != -1:
        raise StoreUnavailable(
            f"cosmos: defaultTtl of the container is {properties['defaultTtl']}: it would delete answered writes. "
            "Turn it off, and restore a backup if it was in force",
            setting="defaultTtl",
        )
    mode = properties.get("indexingPolicy", {}).get("indexingMode", "consistent")
    if mode != "consistent":
        raise StoreUnavailable(
            f"cosmos: indexingMode of the container is {mode}: scans would miss answered writes. Set it to consistent",
            setting="indexingMode",
        )


def _item(partition: bytes, key: bytes, value: bytes) -> dict[str, str]:
    return {"id": _id(key), "p": partition.hex(), "k": key.hex(), "v": _text(value)}


def _id(key: bytes) -> str:
    if len(key) <= ID_BYTES_MAX:
        return key.hex()
    return f"{key[:ID_BYTES_MAX].hex()}-{hashlib.sha256(key).hexdigest()}"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _is_base64(key: str) -> bool:
    try:
        return bool(base64.b64decode(key, validate=True))
    except ValueError:
        return False


@asynccontextmanager
async def _nothing_sent() -> AsyncIterator[None]:
    """Translate a lost answer into `Passing`, before the operation itself is sent."""
    try:
        yield
    except OutcomeUnknown as error:
        raise Passing(str(error), **error.facts) from error


@asynccontextmanager
async def _paused_as_asked() -> AsyncIterator[None]:
    """Pause where Cosmos asks for it, for requests outside a `Pace`."""
    try:
        yield
    except Throttled as error:
        await pause_asked_for(error)
        raise


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    """Translate the client's errors. Errors of our transport are translated already."""
    try:
        yield
    except exceptions.CosmosBatchOperationError as error:
        raise _failure(error.status_code, 0, error.message, error.error_index or 0) from error
    except exceptions.CosmosHttpResponseError as error:
        raise _failure(error.status_code, error.sub_status, error.message, 0) from error
    except AzureError as error:
        raise OutcomeUnknown(f"cosmos: {error}") from error


def _failure(status: int | None, substatus: int | None, reason: str | None, position: int) -> Exception:
    message = f"cosmos: it answered {status}: {(reason or '').partition(chr(10))[0]}"
    if status == NOT_FOUND and substatus:
        return _NotThere(message)
    if status in {NOT_FOUND, CONFLICT, NOT_AS_EXPECTED}:
        return _NotAsExpected(position)
    if status in {_THROTTLED, _RACE}:
        return Throttled(message) if status == _THROTTLED else Passing(message)
    if status is None or status == 408 or status >= 500:
        return OutcomeUnknown(message, status=status)
    return StoreUnavailable(message, status=status)
