"""The floors of `kv`: what each database's client library does for one operation, called directly.

No repetition, no translation of errors, no checks; the same rows, statements and guarantees as our drivers have. Each
class has `get`, `set`, `create` (the `set_if` of an absent key) and `scan` of the partition P. Of etcd and HBase, whose
protocol is HTTP, the library is httpx. DynamoDB's is botocore, in threads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

P = b"partition"


class Bare(Protocol):
    async def get(self, key: bytes) -> object: ...
    async def set(self, key: bytes, value: bytes) -> object: ...
    async def create(self, key: bytes, value: bytes) -> object: ...
    async def scan(self, limit: int) -> object: ...
    async def close(self) -> None: ...


async def bare(uri: str, callers: int) -> Bare | None:
    """Open the client library of a store that our driver made. None: nothing bare is written for this database."""
    parts = urlsplit(uri)
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    match parts.scheme:
        case "postgres":
            return await _Postgres.open(uri, asked["schema"], callers)
        case "redis":
            return _Redis(parts.port or 0, asked["name"])
        case "mysql":
            return await _Mysql.open(parts, asked["prefix"], callers)
        case "mongodb":
            return _Mongo(parts.netloc, parts.path[1:], asked["name"], callers)
        case "cassandra":
            return await asyncio.to_thread(
                _Cassandra, parts.hostname or "", parts.port or 0, parts.path[1:], asked["table"]
            )
        case "dynamodb":
            return _Dynamo(asked["endpoint"], parts.path[1:], callers)
        case "etcd":
            return _Etcd(f"http://{parts.netloc}", asked["name"], callers)
        case "hbase":
            return _HBase(f"http://{parts.netloc}", parts.path[1:], callers)
        case "bigtable":
            return _Bigtable(parts, asked["endpoint"])
        case "spanner":
            return _Spanner(parts, asked["table"], asked["endpoint"])
    return None


class _Postgres:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, uri: str, schema: str, callers: int) -> _Postgres:
        import asyncpg

        dsn = uri.partition("?")[0]
        return cls(
            await asyncpg.create_pool(dsn, min_size=1, max_size=callers, server_settings={"search_path": schema})
        )

    async def get(self, key: bytes) -> object:
        return await self._pool.fetchval("SELECT value FROM kv WHERE partition = $1 AND key = $2", P, key)

    async def set(self, key: bytes, value: bytes) -> object:
        sql = "INSERT INTO kv VALUES ($1, $2, $3) ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value"
        return await self._pool.execute(sql, P, key, value)

    async def create(self, key: bytes, value: bytes) -> object:
        return await self._pool.execute("INSERT INTO kv VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", P, key, value)

    async def scan(self, limit: int) -> object:
        sql = "SELECT key, value FROM kv WHERE partition = $1 AND key >= '' ORDER BY key LIMIT $2"
        return await self._pool.fetch(sql, P, limit)

    async def close(self) -> None:
        await self._pool.close()


class _Redis:
    """Each read asks for the server's role in the same round trip: what a former primary answers is old."""

    def __init__(self, port: int, name: str) -> None:
        import redis.asyncio

        self._redis: Any = redis.asyncio.Redis(port=port)
        stem = name.encode() + b":{" + P.hex().encode() + b"}:"
        self._names = (stem + b"values", stem + b"keys")

    async def get(self, key: bytes) -> object:
        return await self._read("HGET", self._names[0], key)

    async def set(self, key: bytes, value: bytes) -> object:
        from lakebed.kv.drivers.redis import SET

        return await self._redis.eval(SET, 2, *self._names, key, value)

    async def create(self, key: bytes, value: bytes) -> object:
        from lakebed.kv.drivers.redis import SET_IF

        return await self._redis.eval(SET_IF, 2, *self._names, key, value, b"absent")

    async def scan(self, limit: int) -> object:
        from lakebed.kv.drivers.redis import SCAN

        return await self._read("EVAL", SCAN, 2, *self._names, b"", limit)

    async def _read(self, *command: object) -> object:
        together = self._redis.pipeline(transaction=False)
        answer, role = await together.execute_command(*command).execute_command("ROLE").execute()
        assert role[0] == b"master"
        return answer

    async def close(self) -> None:
        await self._redis.aclose()


class _Mysql:
    def __init__(self, pool: Any, table: str) -> None:
        self._pool, self._table = pool, table

    @classmethod
    async def open(cls, parts: Any, prefix: str, callers: int) -> _Mysql:
        import aiomysql

        to = {"host": parts.hostname, "port": parts.port, "user": parts.username or "", "db": parts.path[1:]}
        pool = await aiomysql.create_pool(**to, autocommit=True, maxsize=callers)
        return cls(pool, f"{prefix}_kv")

    async def _run(self, sql: str, *values: bytes | int) -> object:
        # It cannot put bytes into a statement itself.
        literals = [f"x'{value.hex()}'" if isinstance(value, bytes) else value for value in values]
        async with self._pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute(sql.format(*literals, kv=self._table))
            return await cursor.fetchall()

    async def get(self, key: bytes) -> object:
        return await self._run("SELECT k, v FROM {kv} WHERE p = {} AND k = {}", P, key)

    async def set(self, key: bytes, value: bytes) -> object:
        return await self._run("REPLACE INTO {kv} (p, k, v) VALUES ({}, {}, {})", P, key, value)

    async def create(self, key: bytes, value: bytes) -> object:
        return await self._run("INSERT INTO {kv} (p, k, v) VALUES ({}, {}, {})", P, key, value)

    async def scan(self, limit: int) -> object:
        return await self._run("SELECT k, v FROM {kv} WHERE p = {} AND k >= '' ORDER BY k LIMIT {}", P, limit)

    async def close(self) -> None:
        self._pool.close()
        await self._pool.wait_closed()


class _Mongo:
    def __init__(self, hosts: str, database: str, name: str, callers: int) -> None:
        from pymongo import AsyncMongoClient

        self._client: Any = AsyncMongoClient(f"mongodb://{hosts}", maxPoolSize=callers)
        self._collection = self._client[database][name]
        self._stem = P.hex() + "/"

    def _id(self, key: bytes) -> str:
        return self._stem + key.decode("latin-1")

    async def get(self, key: bytes) -> object:
        return await self._collection.find_one({"_id": self._id(key)})

    async def set(self, key: bytes, value: bytes) -> object:
        changed = {"$set": {"v": value, "n": os.urandom(12)}}
        return await self._collection.update_one({"_id": self._id(key)}, changed, upsert=True)

    async def create(self, key: bytes, value: bytes) -> object:
        return await self._collection.insert_one({"_id": self._id(key), "v": value, "n": os.urandom(12)})

    async def scan(self, limit: int) -> object:
        chosen = {"_id": {"$gte": self._stem, "$lt": self._stem[:-1] + "0"}}
        return await self._collection.find(chosen, sort=[("_id", 1)], limit=limit).to_list()

    async def close(self) -> None:
        await self._client.close()


class _Cassandra:
    def __init__(self, host: str, port: int, keyspace: str, table: str) -> None:
        from cassandra import ConsistencyLevel
        from cassandra.cluster import Cluster

        self._cluster: Any = Cluster([host], port=port, protocol_version=4)
        self._session = self._cluster.connect(keyspace)
        self._serial, self._quorum = ConsistencyLevel.SERIAL, ConsistencyLevel.QUORUM
        insert = f"INSERT INTO {table} (p, k, v, n) VALUES (?, ?, ?, ?)"
        # A plain write is a transaction too, or a serial read would miss it (the driver's `ALWAYS`).
        always = f"UPDATE {table} SET always_null = null WHERE p = ? IF always_null = null"
        get = f"SELECT k, v, n FROM {table} WHERE p = ? AND k = ?"
        scan = f"SELECT k, v FROM {table} WHERE p = ? LIMIT ?"
        texts = (insert, always, f"{insert} IF NOT EXISTS", get, scan)
        self._insert, self._always, self._create, self._get, self._scan = map(self._session.prepare, texts)
        self._get.consistency_level = self._scan.consistency_level = self._serial
        self._scan.fetch_size = None

    async def _run(self, statement: Any) -> object:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        back = partial(partial, loop.call_soon_threadsafe)
        self._session.execute_async(statement).add_callbacks(back(answer.set_result), back(answer.set_exception))
        return await answer

    async def get(self, key: bytes) -> object:
        return await self._run(self._get.bind((P, key)))

    async def set(self, key: bytes, value: bytes) -> object:
        from cassandra.query import BatchStatement, BatchType

        batch = BatchStatement(BatchType.UNLOGGED, None, self._quorum, self._serial)
        batch.add(self._always, (P,))
        batch.add(self._insert, (P, key, value, os.urandom(12)))
        return await self._run(batch)

    async def create(self, key: bytes, value: bytes) -> object:
        return await self._run(self._create.bind((P, key, value, os.urandom(12))))

    async def scan(self, limit: int) -> object:
        return await self._run(self._scan.bind((P, limit)))

    async def close(self) -> None:
        await asyncio.to_thread(self._cluster.shutdown)


class _Dynamo:
    def __init__(self, endpoint: str, table: str, callers: int) -> None:
        import boto3
        from botocore.config import Config

        config = Config(max_pool_connections=callers)
        self._client: Any = boto3.client("dynamodb", "eu-central-1", endpoint_url=endpoint, config=config)
        self._table = table

    async def _run(self, action: str, **asked: object) -> object:
        return await asyncio.to_thread(getattr(self._client, action), TableName=self._table, **asked)

    async def get(self, key: bytes) -> object:
        return await self._run("get_item", Key={"p": {"B": P}, "k": {"B": key}}, ConsistentRead=True)

    async def set(self, key: bytes, value: bytes, **condition: object) -> object:
        item = {"p": {"B": P}, "k": {"B": key}, "v": {"B": value}, "n": {"B": os.urandom(12)}}
        return await self._run("put_item", Item=item, **condition)

    async def create(self, key: bytes, value: bytes) -> object:
        return await self.set(key, value, ConditionExpression="attribute_not_exists(p)")

    async def scan(self, limit: int) -> object:
        values = {":p": {"B": P}}
        query = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": values}
        return await self._run("query", **query, ConsistentRead=True, Limit=limit)

    async def close(self) -> None:
        self._client.close()


class _Http:
    def __init__(self, address: str, callers: int) -> None:
        import httpx

        limits = httpx.Limits(max_connections=callers, max_keepalive_connections=callers)
        headers = {"accept": "application/json", "content-type": "application/json"}
        self._client = httpx.AsyncClient(base_url=address, limits=limits, headers=headers, trust_env=False)

    async def _ask(self, method: str, path: str, body: object = None, **asked: str) -> object:
        content = None if body is None else json.dumps(body)
        response = await self._client.request(method, path, content=content, params=asked)
        assert response.status_code == 200, response.text
        return response.json() if response.content else None

    async def close(self) -> None:
        await self._client.aclose()


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


class _Etcd(_Http):
    def __init__(self, address: str, name: str, callers: int) -> None:
        super().__init__(address, callers)
        self._stem = name.encode() + b"/" + len(P).to_bytes(2, "big") + P

    async def get(self, key: bytes) -> object:
        return await self._ask("POST", "/v3/kv/range", {"key": _text(self._stem + key)})

    async def set(self, key: bytes, value: bytes) -> object:
        return await self._ask("POST", "/v3/kv/put", {"key": _text(self._stem + key), "value": _text(value)})

    async def create(self, key: bytes, value: bytes) -> object:
        put = {"request_put": {"key": _text(self._stem + key), "value": _text(value)}}
        absent = {"key": _text(self._stem + key), "target": "MOD", "result": "EQUAL", "mod_revision": 0}
        return await self._ask("POST", "/v3/kv/txn", {"compare": [absent], "success": [put]})

    async def scan(self, limit: int) -> object:
        end = self._stem[:-1] + bytes([self._stem[-1] + 1])
        asked = {"key": _text(self._stem), "range_end": _text(end), "limit": limit}
        return await self._ask("POST", "/v3/kv/range", asked)


class _HBase(_Http):
    """Without the history of a row, which our driver reads before each write."""

    def __init__(self, address: str, table: str, callers: int) -> None:
        super().__init__(address, callers)
        self._table = table

    def _row(self, key: bytes) -> str:
        return f"{P.hex()}.{key.hex()}"

    async def get(self, key: bytes) -> object:
        return await self._ask("GET", f"/{self._table}/multiget", row=self._row(key))

    async def set(self, key: bytes, value: bytes) -> object:
        return await self._put(key, {}, [(b"c:v", value), (b"c:n", os.urandom(12))])

    async def create(self, key: bytes, value: bytes) -> object:
        return await self._put(key, {"check": "put"}, [(b"c:v", value), (b"c:n", os.urandom(12)), (b"c:n", b"")])

    async def _put(self, key: bytes, asked: dict[str, str], cells: list[tuple[bytes, bytes]]) -> object:
        encoded = [{"column": _text(column), "timestamp": 1, "$": _text(value)} for column, value in cells]
        row = self._row(key)
        body = {"Row": [{"key": _text(row.encode()), "Cell": encoded}]}
        return await self._ask("PUT", f"/{self._table}/{row}", body, **asked)

    async def scan(self, limit: int) -> object:
        return await self._ask("GET", f"/{self._table}/*", startrow=f"{P.hex()}.", limit=str(limit))


class _Bigtable:
    def __init__(self, parts: Any, endpoint: str) -> None:
        import grpc
        from google.cloud.bigtable_v2.services.bigtable import BigtableAsyncClient
        from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcAsyncIOTransport

        instance, table = parts.path[1:].split("/")
        channel = grpc.aio.insecure_channel(urlsplit(endpoint).netloc)
        self._client: Any = BigtableAsyncClient(transport=BigtableGrpcAsyncIOTransport(channel=channel))
        self._target = {"table_name": f"projects/{parts.netloc}/instances/{instance}/tables/{table}"}
        self._stem = len(P).to_bytes(2, "big") + P

    async def _read(self, rows: object, limit: int) -> object:
        from google.cloud.bigtable_v2.types import ReadRowsRequest

        request = ReadRowsRequest(**self._target, rows=rows, rows_limit=limit)
        return [chunk async for answer in await self._client.read_rows(request) for chunk in answer.chunks]

    def _set(self, value: bytes) -> list[Any]:
        from google.cloud.bigtable_v2.types import Mutation

        cells = {b"v": value, b"n": os.urandom(12)}
        return [
            Mutation(set_cell={"family_name": "c", "column_qualifier": name, "value": value, "timestamp_micros": 0})
            for name, value in cells.items()
        ]

    async def get(self, key: bytes) -> object:
        return await self._read({"row_keys": [self._stem + key]}, 1)

    async def set(self, key: bytes, value: bytes) -> object:
        return await self._client.mutate_row(
            {**self._target, "row_key": self._stem + key, "mutations": self._set(value)}
        )

    async def create(self, key: bytes, value: bytes) -> object:
        request = {**self._target, "row_key": self._stem + key, "false_mutations": self._set(value)}
        return await self._client.check_and_mutate_row(
            {**request, "predicate_filter": {"cells_per_row_limit_filter": 1}}
        )

    async def scan(self, limit: int) -> object:
        end = self._stem[:-1] + bytes([self._stem[-1] + 1])
        row_range = {"start_key_closed": self._stem, "end_key_open": end}
        return await self._read({"row_ranges": [row_range]}, limit)

    async def close(self) -> None:
        await self._client.transport.close()


class _Spanner:
    """With a session for each caller, and one write at a time: the emulator aborts others."""

    def __init__(self, parts: Any, table: str, endpoint: str) -> None:
        import grpc
        from google.cloud.spanner_v1 import SpannerAsyncClient
        from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcAsyncIOTransport

        instance, database = parts.path[1:].split("/")
        channel = grpc.aio.insecure_channel(urlsplit(endpoint).netloc)
        self._client: Any = SpannerAsyncClient(transport=SpannerGrpcAsyncIOTransport(channel=channel))
        self._database = f"projects/{parts.netloc}/instances/{instance}/databases/{database}"
        self._table = table
        self._idle: list[str] = []
        self._turns = asyncio.Semaphore(1)

    async def _session(self) -> str:
        return self._idle.pop() if self._idle else (await self._client.create_session(database=self._database)).name

    async def _read(self, wanted: object, limit: int) -> object:
        session = await self._session()
        read = {"session": session, "table": self._table, "columns": ["k", "v", "n"], "limit": limit}
        strong = {"single_use": {"read_only": {"strong": True}}}
        answers = await self._client.streaming_read({**read, "key_set": wanted, "transaction": strong})
        found = [value for answer in [each async for each in answers] for value in answer.values]
        self._idle.append(session)
        return found

    async def _commit(self, kind: str, key: bytes, value: bytes) -> object:
        row = [_text(each) for each in (P, key, value, os.urandom(12))]
        mutation = {kind: {"table": self._table, "columns": ["p", "k", "v", "n"], "values": [row]}}
        async with self._turns:
            session = await self._session()
            request = {"session": session, "mutations": [mutation], "single_use_transaction": {"read_write": {}}}
            done = await self._client.commit(request)
            self._idle.append(session)
        return done

    async def get(self, key: bytes) -> object:
        return await self._read({"keys": [[_text(P), _text(key)]]}, 0)

    async def set(self, key: bytes, value: bytes) -> object:
        return await self._commit("insert_or_update", key, value)

    async def create(self, key: bytes, value: bytes) -> object:
        return await self._commit("insert", key, value)

    async def scan(self, limit: int) -> object:
        return await self._read({"ranges": [{"start_closed": [_text(P)], "end_closed": [_text(P)]}]}, limit)

    async def close(self) -> None:
        for session in self._idle:
            await self._client.delete_session(name=session)
        await self._client.transport.close()
