"""`mongodb://user:password@host,host/database?name=lakebed`: a Store in MongoDB, over its maker's asyncio client.

One collection has all pairs. A document's `_id` is a text: the partition in hexadecimal digits, `/`, and the key with
each byte as the character of that number. MongoDB orders texts by their bytes in UTF-8, which is the order of those
characters, so a partition is one range, in byte order. (It orders binary values by their length first.)

On a replica set, writes wait for the journals of a majority, and reads are linearisable. Predicates are random versions
that every write makes anew, so a value that was put back is noticed (no A-B-A).
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from pymongo import AsyncMongoClient, ReadPreference, UpdateOne, errors
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from lakebed.base import OutcomeUnknown, in_words
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

FORMAT: Final = b"1"
NO_SIZE: Final = "`db.COLLECTION.stats()` in mongosh shows it"
NO_COMPACTION: Final = (
    "MongoDB uses free room again by itself; `db.runCommand({compact: COLLECTION})` in mongosh gives it "
    "back, on each member"
)
CONNECTIONS: Final = 16
MARK: Final = "format"
"""The `_id` of the format's document. It has no slash, so it is in no partition."""
OF_THE_CLIENT: Final = ("tls", "authSource", "authMechanism", "replicaSet")
FILES_OF_THE_CLIENT: Final = ("tlsCAFile", "tlsCertificateKeyFile")

DUPLICATE_KEY: Final = 11000
NOT_A_REPLICA_SET: Final = 123
_NOT_BEGUN: Final = frozenset({10107, 13435})
"""Codes of a member that is no primary: it refuses before it begins."""
_NOT_SENT: Final = frozenset({"Connection is closed", "connection pool paused"})
"""The client's messages when it had no connection to send the request on."""
_PERHAPS_DONE: Final = frozenset({50, 64, 91, 175, 189, 262, 11600, 11602})
"""A time limit, a shutdown or a step-down interrupted the operation."""


def _from(uri: StoreUri, wait_s: float) -> MongoDatabase:
    """Open `mongodb://user:password@host:27017,other:27017/database?name=lakebed&connections=16&wait_s=10`."""
    name, connections = uri.text("name", "lakebed"), uri.count("connections", CONNECTIONS)
    passed = {each: value for each in OF_THE_CLIENT if (value := uri.text(each, ""))}
    passed |= {each: value for each in FILES_OF_THE_CLIENT if (value := uri.readable(each))}
    uri.check_all_taken()
    uri.check_ports()
    database = uri.path.removeprefix("/")
    if not uri.authority or not database or set(database) & set('/\\. "$') or not name.isidentifier():
        raise InvalidStoreUri(
            f"{uri.scheme}: an example: mongodb://10.0.0.1:27017/lakebed?name=lakebed", scheme=uri.scheme
        )
    address = f"mongodb://{uri.authority}/{quote(database)}" + (f"?{urlencode(passed)}" if passed else "")
    try:
        return MongoDatabase(address, database, name=name, connections=connections, timeout_s=max(wait_s, 1))
    except errors.PyMongoError as error:
        raise InvalidStoreUri(f"{uri.scheme}: {error}", scheme=uri.scheme) from error


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class MongoDatabase:
    """Requests to one collection."""

    batch_keys_max = 500
    batch_bytes_max = 8 << 20
    batches_at_once = 4
    reads_together = True

    def __init__(self, address: str, database: str, *, name: str, connections: int, timeout_s: float) -> None:
        self._address = address
        self._database = database
        self._name = name
        self._connections = connections
        self._timeout_s = timeout_s
        self._client: AsyncMongoClient[dict[str, Any]] | None = None
        self._is_replicated = True

    async def prepare(self) -> None:
        try:
            client = self._open()
            async with _translated():
                await client.admin.command("ping")
                self._is_replicated = _is_replicated(client.topology_description.topology_type_name)
                if self._is_replicated:
                    _check_replica_set(await client.admin.command("replSetGetConfig"))
                _check_engine((await client.admin.command("serverStatus")).get("storageEngine", {}))
            await self._insert({"_id": MARK, "v": FORMAT, "n": b""})
            async with _translated():
                found = await self._collection().find_one({"_id": MARK})
        finally:
            await self.close()
        if found is None or found["v"] != FORMAT:
            raise StoreFormat(f"mongodb: {self._name} is not in format 1: another release or program wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        stem = _stem(partition)
        ids = [stem + key.decode("latin-1") for key in keys]
        rows = await self._find({"_id": ids[0]} if len(ids) == 1 else {"_id": {"$in": ids}})
        return {_key(row, stem): Held(bytes(row["v"]), bytes(row["n"])) for row in rows}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        stem = _stem(partition)
        # The character "0" comes after "/".
        chosen = {"_id": {"$gte": stem + start.decode("latin-1"), "$lt": stem[:-1] + "0"}}
        return [(_key(row, stem), bytes(row["v"])) for row in await self._find(chosen, limit=limit)]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        stem = _stem(partition)
        writes = [
            UpdateOne({"_id": stem + key.decode("latin-1")}, {"$set": {"v": value, "n": _new_version()}}, upsert=True)
            for key, value in items
        ]
        is_begun = False
        while writes:
            try:
                async with _translated():
                    await self._collection().bulk_write(writes, ordered=False)
                writes = []
            except _Refused as refused:  # two writers inserted one document: it exists now, so update it
                is_begun = is_begun or len(refused.indexes) < len(writes)
                writes = [writes[index] for index in refused.indexes]
            except StoreUnavailable as error:
                if not is_begun:
                    raise
                # Repeating the whole batch might overwrite another writer's changes since the first attempt.
                raise OutcomeUnknown(f"only a part of the batch is done: {error}") from error

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        id_, version = _stem(partition) + key.decode("latin-1"), _new_version()
        if expected is None:
            return version if await self._insert({"_id": id_, "v": value, "n": version}) else None
        async with _translated():
            done = await self._collection().update_one(
                {"_id": id_, "n": expected}, {"$set": {"v": value, "n": version}}
            )
        return version if done.matched_count else None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        stem = _stem(partition)
        async with _translated():
            await self._collection().delete_many({"_id": {"$in": [stem + key.decode("latin-1") for key in keys]}})

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        async with _translated():
            done = await self._collection().delete_one({"_id": _stem(partition) + key.decode("latin-1"), "n": expected})
        return bool(done.deleted_count)

    async def partitions(self) -> list[bytes]:
        found: list[bytes] = []
        start = ""
        while rows := await self._find({"_id": {"$gte": start, "$lt": "g", "$ne": MARK}}, limit=1):
            name = rows[0]["_id"].partition("/")[0]
            found.append(bytes.fromhex(name))
            start = name + "0"
        return found

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _find(self, chosen: dict[str, Any], *, limit: int = 0) -> list[dict[str, Any]]:
        async with _translated():
            try:
                return await self._collection().find(chosen, sort={"_id": 1}, limit=limit).to_list()
            except errors.OperationFailure as error:
                if error.code != NOT_A_REPLICA_SET:
                    raise
                self._is_replicated = False
                raise Passing("mongodb: a single server") from error

    async def _insert(self, document: dict[str, Any]) -> bool:
        """Insert a document. Return False where it exists already."""
        try:
            async with _translated():
                await self._collection().insert_one(document)
        except _Refused:
            return False
        return True

    def _collection(self) -> AsyncCollection[dict[str, Any]]:
        reads = ReadConcern("linearizable" if self._is_replicated else "local")
        return self._open()[self._database].get_collection(
            self._name,
            read_preference=ReadPreference.PRIMARY,
            read_concern=reads,
            write_concern=WriteConcern(w="majority", j=True),
        )

    def _open(self) -> AsyncMongoClient[dict[str, Any]]:
        if self._client is None:
            timeout_ms = int(self._timeout_s * 1000)
            # By default the client would repeat a read or write by itself, and wait for a server longer than `wait_s`.
            self._client = AsyncMongoClient(
                self._address,
                maxPoolSize=self._connections,
                retryReads=False,
                retryWrites=False,
                serverSelectionTimeoutMS=min(timeout_ms, 500),
                connectTimeoutMS=timeout_ms,
                socketTimeoutMS=timeout_ms,
                heartbeatFrequencyMS=500,
            )
        return self._client


class _Refused(Exception):
    """Documents that exist already, by their position in the batch. The rest of the batch was carried out."""

    def __init__(self, indexes: Sequence[int]) -> None:
        super().__init__()
        self.indexes = indexes


def _stem(partition: bytes) -> str:
    return partition.hex() + "/"


def _key(row: dict[str, Any], stem: str) -> bytes:
    id_: str = row["_id"]
    return id_[len(stem) :].encode("latin-1")


def _new_version() -> bytes:
    return os.urandom(12)


def _is_replicated(topology: str) -> bool:
    """Refuse servers that offer no linearisable read. Return False for a single server."""
    if topology == "Sharded":
        raise StoreUnavailable("mongodb: this is mongos, of a sharded cluster. Name the members of a replica set")
    return topology != "Single"


def _check_replica_set(answer: dict[str, Any]) -> None:
    """Refuse a replica set whose majority answers before its data is on a disk."""
    if not answer["config"].get("writeConcernMajorityJournalDefault", True):
        raise StoreUnavailable(
            "mongodb: writeConcernMajorityJournalDefault is false: a crash would take back answered writes. "
            "Reconfigure the replica set: true",
            setting="writeConcernMajorityJournalDefault",
        )


def _check_engine(engine: dict[str, Any]) -> None:
    if not engine.get("persistent", True):
        raise StoreUnavailable(
            f"mongodb: storageEngine is {engine.get('name')}, which keeps nothing: use wiredTiger",
            setting="storageEngine",
        )


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    """Translate the errors of a request."""
    try:
        yield
    except errors.DuplicateKeyError as error:
        raise _Refused([0]) from error
    except errors.BulkWriteError as error:
        refused = (error.details or {}).get("writeErrors", [])
        if any(each["code"] != DUPLICATE_KEY for each in refused) or (error.details or {}).get("writeConcernErrors"):
            raise OutcomeUnknown(f"mongodb: a part of the batch may not be done: {error}") from error
        raise _Refused([each["index"] for each in refused]) from error
    except (errors.ServerSelectionTimeoutError, errors.WaitQueueTimeoutError) as error:
        raise Passing(f"mongodb: no connection: {_shown(error)}") from error
    except errors.ConfigurationError as error:
        raise StoreUnavailable(f"mongodb: {_shown(error)}") from error
    except errors.NotPrimaryError as error:
        raise _of_code(error, dict(error.details or {}).get("code")) from error
    except errors.OperationFailure as error:
        raise _of_code(error, error.code) from error
    except errors.PyMongoError as error:
        if isinstance(error.__cause__, ConnectionRefusedError) or str(error.__cause__) in _NOT_SENT:
            raise Passing(f"mongodb: no connection: {_shown(error)}") from error
        raise OutcomeUnknown(f"mongodb: the answer was lost: {_shown(error)}") from error


def _of_code(error: errors.PyMongoError, code: int | None) -> Exception:
    message = f"mongodb: {_shown(error)}"
    if isinstance(error, errors.WriteConcernError):
        # Whatever its code: the write is done, though perhaps not on a majority.
        return OutcomeUnknown(message)
    if code in _NOT_BEGUN:
        return Passing(message)
    if code is None or code in _PERHAPS_DONE or isinstance(error, errors.NotPrimaryError):
        return OutcomeUnknown(message)
    return StoreUnavailable(message, code=code)


def _shown(error: BaseException) -> str:
    return re.split(", Timeout: | \\(configured timeouts: |, full error: ", in_words(error))[0]
