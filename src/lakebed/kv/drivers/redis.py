"""`redis://user:password@host:6379/0`: a Store in Redis (or Valkey) that keeps an append-only file.

Two Redis keys hold a partition: a hash of its pairs, and a sorted set of its keys. All scores are 0, so Redis sorts the
keys in byte order. Both names have the partition in braces, so that a cluster would store them together. Each operation
is one script or one command, which Redis completes before the next. ROLE follows each read: a primary that becomes a
replica leaves its connections open, and then answers stale values.

Predicates are the values themselves. They allow A-B-A: a value that was replaced and then put back looks unchanged.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from redis import exceptions
from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from lakebed.base import OutcomeUnknown, in_words
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing, Place, SetIf, answer_of, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreSize, StoreUnavailable

FORMAT: Final = b"1"
CONNECTIONS: Final = 16
REWRITE_LOOK_S: Final = 0.05

# KEYS: the hash and the sorted set of a partition.
SCAN: Final = b"""
local keys = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. ARGV[1], '+', 'LIMIT', 0, ARGV[2])
if #keys == 0 then return {{}, {}} end
return {keys, redis.call('HMGET', KEYS[1], unpack(keys))}
"""
SET: Final = b"""
for at = 1, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[2], 0, ARGV[at])
end
"""
SET_IF: Final = b"""
local found = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[3] == 'absent' then
  if found then return 0 end
elseif found ~= ARGV[4] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
"""
DELETE: Final = b"""
redis.call('HDEL', KEYS[1], unpack(ARGV))
redis.call('ZREM', KEYS[2], unpack(ARGV))
"""
DELETE_IF: Final = b"""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

_PASSING: Final = (
    exceptions.BusyLoadingError,  # it loads its file after a start
    exceptions.ReadOnlyError,  # a primary that just became a replica
    exceptions.TryAgainError,
)


def size_uri(uri: StoreUri) -> StoreSize:
    """Return the size of the append-only file, which is that of the whole server."""
    return answer_of(uri, _from, RedisDatabase.size)


def compact_uri(uri: StoreUri) -> None:
    """Let Redis rewrite its append-only file, as it does by itself when the file has doubled.

    Redis serves requests meanwhile.
    """
    answer_of(uri, _from, RedisDatabase.compact)


def _from(uri: StoreUri, wait_s: float) -> RedisDatabase:
    """Open `redis://:password@host:6379/0?name=lakebed&fsync=always&replicas=0&connections=16&wait_s=10`.

    `rediss`: TLS.

    `fsync=everysec` accepts that a crash loses the writes of the last second. `fsync=unchecked` is for services that
    hide their settings and promise to keep every answered write. `replicas=N`: a write is answered when N replicas have
    it too.
    """
    name = uri.text("name", "lakebed")
    if not name or not name.isascii() or not name.isprintable() or "{" in name:
        raise InvalidStoreUri(f"{uri.scheme}: name is printable, without braces, not {name!r}", scheme=uri.scheme)
    fsync = uri.choice("fsync", "always", "everysec", "unchecked")
    replicas = uri.count("replicas", 0, least=0)
    connections = uri.count("connections", CONNECTIONS)
    passed = {key: value for key in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile") if (value := uri.readable(key))}
    uri.check_all_taken()
    if passed and uri.scheme == "redis":
        raise InvalidStoreUri(f"redis: {', '.join(passed)} is for TLS: write rediss://", scheme=uri.scheme)
    uri.check_ports()
    address = f"{uri.scheme}://{uri.authority}{quote(uri.path)}" + (f"?{urlencode(passed)}" if passed else "")
    return RedisDatabase(
        address, name=name, fsync=fsync, replicas=replicas, connections=connections, timeout_s=max(wait_s, 1)
    )


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class RedisDatabase:
    """Commands over a pool of connections. The first operation opens the first connection."""

    batch_keys_max = 1000
    batch_bytes_max = 4 << 20
    batches_at_once = 2
    reads_together = True

    def __init__(
        self, address: str, *, name: str, fsync: str, replicas: int, connections: int, timeout_s: float
    ) -> None:
        self._address = address
        self._prefix = name.encode()
        self._fsync = fsync
        self._replicas = replicas
        self._connections = connections
        self._timeout_s = timeout_s
        self._pool: BlockingConnectionPool | None = None

    async def prepare(self) -> None:
        pool = self._new_pool()
        try:
            if self._fsync != "unchecked":
                flat = await _ask(pool, b"CONFIG", b"GET", b"*")
                settings = dict(zip(flat[::2], flat[1::2], strict=True))
                _check_settings({name.decode(): value.decode() for name, value in settings.items()}, self._fsync)
            mark = self._prefix + b":format"
            await _ask(pool, b"SET", mark, FORMAT, b"NX")
            [found] = await _ask_primary(pool, (b"GET", mark))
            if self._replicas:
                # Fails at once where the user may not WAIT, which each write will need.
                await _ask(pool, b"WAIT", b"0", b"1")
        finally:
            await pool.aclose()
        if found != FORMAT:
            raise StoreFormat(f"redis: {mark!r} is {found!r}: another release or program wrote it", format=found)

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        found = await self.read_places([(partition, key) for key in keys])
        return {key: held for (_, key), held in found.items()}

    async def read_places(self, places: Sequence[Place]) -> dict[Place, Held]:
        asked: dict[bytes, list[bytes]] = {}
        for partition, key in places:
            asked.setdefault(partition, []).append(key)
        commands = [(b"HMGET", self._names(partition)[0], *keys) for partition, keys in asked.items()]
        answers = await _ask_primary(self._open_pool(), *commands)
        return {
            (partition, key): Held(value, value)
            for (partition, keys), values in zip(asked.items(), answers, strict=True)
            for key, value in zip(keys, values, strict=True)
            if value is not None
        }

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        names, pool = self._names(partition), self._open_pool()
        command = (b"EVAL", SCAN, b"2", *names, start, b"%d" % limit)
        [(keys, values)] = await _ask_primary(pool, command)
        return list(zip(keys, values, strict=True))

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._change(SET, partition, *(each for item in items for each in item))

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        [answer] = await self.write_ifs(((partition, key, value, expected),))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def write_ifs(self, asked: Sequence[SetIf]) -> list[Predicate | Exception | None]:
        commands = [
            self._script(SET_IF, partition, key, value, *((b"absent",) if expected is None else (b"equal", expected)))
            for partition, key, value, expected in asked
        ]
        return [
            answer if isinstance(answer, Exception) else value if answer else None
            for (_, _, value, _), answer in zip(asked, await self._change_each(commands), strict=True)
        ]

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._change(DELETE, partition, *keys)

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        return bool(await self._change(DELETE_IF, partition, key, expected))

    async def partitions(self) -> list[bytes]:
        head, tail, found, cursor = self._prefix + b":{", b"}:values", set[bytes](), b"0"
        pattern = re.sub(rb"([*?[\]\\])", rb"\\\1", head) + b"*" + tail
        while True:
            command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
            [(cursor, names)] = await _ask_primary(self._open_pool(), command)
            found |= {bytes.fromhex(name[len(head) : -len(tail)].decode()) for name in names}
            if cursor == b"0":
                return list(found)

    async def size(self) -> StoreSize:
        """Return the size of the append-only file.

        Raises:
            StoreUnavailable: Redis keeps no append-only file, or its service hides it.
        """
        facts = await self._persistence()
        return StoreSize(size_bytes=int(facts["aof_current_size"]), log_bytes=0, free_bytes=0)

    async def compact(self) -> None:
        """Rewrite the append-only file.

        Raises:
            StoreUnavailable: as `size`; or Redis could not rewrite the file.
        """
        facts = await self._persistence()
        if not _is_rewriting(facts):
            await _ask(self._open_pool(), b"BGREWRITEAOF")
            facts = await self._persistence()
        while _is_rewriting(facts):
            await asyncio.sleep(REWRITE_LOOK_S)
            facts = await self._persistence()
        if facts["aof_last_bgrewrite_status"] != "ok":
            raise StoreUnavailable("redis: it could not rewrite its append-only file: its log says why")

    async def _persistence(self) -> dict[str, str]:
        answer = await _ask(self._open_pool(), b"INFO", b"persistence")
        facts = dict(line.split(":", 1) for line in answer.decode().split("\r\n") if ":" in line)
        if facts.get("aof_enabled") != "1" or "aof_current_size" not in facts:
            raise StoreUnavailable("redis: it shows no append-only file: the tools of its service tell of its files")
        return facts

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def _script(self, script: bytes, partition: bytes, *arguments: Any) -> tuple[Any, ...]:
        return (b"EVAL", script, b"2", *self._names(partition), *arguments)

    async def _change(self, script: bytes, partition: bytes, *arguments: Any) -> Any:
        [answer] = await self._change_each((self._script(script, partition, *arguments),))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _change_each(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Carry out commands that write, and wait for the replicas. Refusals are returned."""
        # WAIT covers the writes of its own connection only.
        async with _lent(self._open_pool()) as connection:
            result = await _call_each(connection, *commands)
            if not self._replicas or all(isinstance(answer, Exception) for answer in result):
                return result
            try:
                reached = await _call(connection, b"WAIT", b"%d" % self._replicas, b"%d" % (self._timeout_s * 500))
            except StoreUnavailable as error:  # the write itself is done
                raise OutcomeUnknown(f"redis: how many replicas have the write is unknown: {error}") from error
        if reached < self._replicas:
            raise OutcomeUnknown(
                f"redis: {reached} replicas have the write, and {self._replicas} should", replicas=reached
            )
        return result

    def _open_pool(self) -> BlockingConnectionPool:
        self._pool = self._pool or self._new_pool()
        return self._pool

    def _new_pool(self) -> BlockingConnectionPool:
        return BlockingConnectionPool.from_url(
            self._address,
            max_connections=self._connections,
            timeout=self._timeout_s,
            socket_timeout=None,  # else the client makes a task for each command; `_call_each` has one timeout for all
            socket_connect_timeout=self._timeout_s,
            # The client's own retries would repeat a write whose answer was lost.
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            protocol=2,
        )

    def _names(self, partition: bytes) -> tuple[bytes, bytes]:
        stem = self._prefix + b":{" + partition.hex().encode() + b"}:"
        return stem + b"values", stem + b"keys"


def _is_rewriting(facts: dict[str, str]) -> bool:
    return "1" in {facts["aof_rewrite_in_progress"], facts["aof_rewrite_scheduled"]}


def _check_settings(found: dict[str, str], fsync: str) -> None:
    safe = {"appendonly": "yes", "appendfsync": fsync, "cluster-enabled": "no"}
    if fsync == "always":
        safe["no-appendfsync-on-rewrite"] = "no"
    if found.get("maxmemory", "0") != "0":
        safe["maxmemory-policy"] = "noeviction"
    for name, wanted in safe.items():
        # `always` is stronger than `everysec`.
        if found.get(name, wanted) not in {wanted, "always"}:
            raise StoreUnavailable(
                f"redis: {name} is {found[name]}: answered writes would be lost. Set {name} {wanted}", setting=name
            )


async def _ask(pool: BlockingConnectionPool, *command: Any) -> Any:
    async with _lent(pool) as connection:
        return await _call(connection, *command)


async def _ask_primary(pool: BlockingConnectionPool, *commands: tuple[Any, ...]) -> list[Any]:
    """Read from a primary. Ask for its role in the same round trip, after the reads."""
    async with _lent(pool) as connection:
        *answers, role = await _call_all(connection, *commands, (b"ROLE",))
    if role[0] != b"master":
        raise Passing("redis: this is a read only replica: name the primary", setting="host")
    return answers


@asynccontextmanager
async def _lent(pool: BlockingConnectionPool) -> AsyncIterator[Any]:
    """Lend a working connection. A failure before that is `Passing`: nothing was sent."""
    try:
        async with asyncio.timeout(pool.timeout):
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # a decorator hides its type
    except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
        raise StoreUnavailable(f"redis: no connection: {error}") from error
    except (exceptions.RedisError, OSError, TimeoutError) as error:
        raise Passing(f"redis: no connection: {in_words(error)}") from error
    try:
        yield connection
    finally:
        await pool.release(connection)


async def _call(connection: Any, *command: Any) -> Any:
    [answer] = await _call_all(connection, command)
    return answer


async def _call_all(connection: Any, *commands: tuple[Any, ...]) -> list[Any]:
    answers = await _call_each(connection, *commands)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


async def _call_each(connection: Any, *commands: tuple[Any, ...]) -> list[Any]:
    """Send the commands at once and read their answers. A script that Redis refuses has written nothing."""
    try:
        async with asyncio.timeout(connection.socket_connect_timeout):
            await connection.send_packed_command(connection.pack_commands(commands))
            answers = [await _answer(connection) for _ in commands]
    except (exceptions.RedisError, OSError, TimeoutError) as error:
        await connection.disconnect(nowait=True)  # a late answer must not meet the next command
        raise OutcomeUnknown(f"redis: the answer was lost: {in_words(error)}") from error
    except BaseException:
        await connection.disconnect(nowait=True)  # cancelled: a late answer must not meet the next command
        raise
    return answers


async def _answer(connection: Any) -> Any:
    """Read one answer. Return a refusal instead of raising it: the answers of the other commands follow it."""
    try:
        return await connection.read_response(disconnect_on_error=False)
    except (exceptions.ResponseError, exceptions.BusyLoadingError) as refusal:
        return (Passing if isinstance(refusal, _PASSING) else StoreUnavailable)(f"redis: {refusal}")
