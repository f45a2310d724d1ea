"""`consul://host:8500,host:8500`: a Store in Consul's key-value store, over its HTTP API, with no client library.

A pair's key in Consul is the store's name, the partition and the key, both in hexadecimal digits, with `/` between: so
a partition is one folder, in byte order. Every write is one transaction. Reads ask for consistency (`?consistent`).

Predicates are modification indexes. Consul never reuses an index, so a value that was put back is noticed (no A-B-A).
But Consul keeps the index where a write changes nothing: two writers of one value would both succeed. So each write
also sets the key's flags to a random number, and always changes the record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlencode

import msgspec

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.http_client import AnswerLost, HttpAnswer, NotSent, Servers, certificates_of, origin_of
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

T = TypeVar("T")

FORMAT: Final = b"1"
NO_SIZE: Final = "it is that of `raft` in each server's data folder"
NO_COMPACTION: Final = "Consul writes a snapshot by itself, and drops what is older from its log"
CONNECTIONS: Final = 16
OPERATIONS_MAX: Final = 64
"""Consul refuses a transaction with more operations."""
RATE_LIMITED: Final = "rate limit exceeded"
NO_LEADER: Final = "No cluster leader"
ABSENT: Final = 0
"""Stands for the modification index of an absent key."""


class _Pair(msgspec.Struct, rename="pascal", kw_only=True):
    """Consul writes an empty value as null."""

    key: str
    value: bytes | None = None
    modify_index: int


class _Result(msgspec.Struct, rename={"kv": "KV"}, kw_only=True):
    kv: _Pair


class _Error(msgspec.Struct, rename="pascal", kw_only=True):
    op_index: int
    what: str


class _Done(msgspec.Struct, rename="pascal", kw_only=True):
    """The answer to a transaction. With errors, Consul carried out no part of the transaction."""

    results: list[_Result] | None
    errors: list[_Error] | None


class _Debug(msgspec.Struct, rename="pascal", kw_only=True):
    dev_mode: bool


class _Agent(msgspec.Struct, rename="pascal", kw_only=True):
    debug_config: _Debug


def _from(uri: StoreUri, wait_s: float) -> ConsulDatabase:
    """Open `consul://:TOKEN@host:8500,other:8500?name=lakebed&connections=16&tls=no&ca_file=&wait_s=10`."""
    name, connections = uri.text("name", "lakebed"), uri.count("connections", CONNECTIONS)
    tls, ca_file = uri.choice("tls", "no", "yes"), uri.text("ca_file", "")
    uri.check_all_taken()
    uri.check_ports()
    login, _, hosts = uri.authority.rpartition("@")
    user, _, token = login.partition(":")
    if not hosts or user or uri.path.strip("/"):
        wrong = "it names no host" if not hosts else "a token stands behind a colon" if user else "it has a path"
        raise InvalidStoreUri(
            f"{uri.scheme}: {wrong}; an example: consul://:TOKEN@127.0.0.1:8500?name=lakebed", scheme=uri.scheme
        )
    # The name is part of the request's address: with other characters, Consul would list another folder.
    if not re.fullmatch("[A-Za-z0-9._-]+", name) or name in {".", ".."}:
        raise InvalidStoreUri(
            f"{uri.scheme}: name has letters of ASCII, digits, '.', '_' and '-', and is not '.' or '..'; not {name!r}",
            scheme=uri.scheme,
        )
    # The token is sent in a header of each request.
    if not re.fullmatch("[!-~]*", unquote(token)):
        raise InvalidStoreUri(f"{uri.scheme}: a token has printable characters of ASCII only", scheme=uri.scheme)
    servers = Servers(
        [origin_of(uri, host, is_tls=tls == "yes") for host in hosts.split(",")],
        connections=connections,
        timeout_s=max(wait_s, 1),
        certificates=certificates_of(uri, ca_file, is_tls=tls == "yes"),
    )
    return ConsulDatabase(servers, token=unquote(token), name=name)


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class ConsulDatabase:
    """Requests to an agent."""

    batch_keys_max = OPERATIONS_MAX
    # Consul takes a request of 512 KiB: these values in base64, and 64 keys and partitions of 1,024 bytes each.
    batch_bytes_max = 128 << 10
    batches_at_once = 4
    reads_together = True

    def __init__(self, servers: Servers, *, token: str, name: str) -> None:
        self._servers = servers
        self._headers = {"x-consul-token": token} if token else {}
        self._name = name

    async def prepare(self) -> None:
        try:
            response = await self._send("GET", "agent/self", {}, wait_s=self._servers.greeting_s)
            if response.status_code != 200:
                raise _refusal(response)
            _check_agent(_decoded(response, _Agent))
            mark = f"{self._name}/format"
            await self._transact([_write("cas", mark, FORMAT, Index=ABSENT)])
            [found] = await self._read([mark])
        finally:
            await self.close()
        if found.value != FORMAT:
            raise StoreFormat(f"consul: {mark} is {found.value!r}: another release or program wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        stem = self._stem(partition)
        pairs = await self._read([stem + key.hex() for key in keys])
        return {_key(pair, stem): Held(pair.value or b"", pair.modify_index) for pair in pairs}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return one page. Consul lists no part of a folder: read the names of all its keys, then the values of one
        page.
        """
        stem = self._stem(partition)
        names = [name for name in await self._names(stem) if name >= stem + start.hex()]
        rows: list[tuple[bytes, bytes]] = []
        while names and len(rows) < limit:
            count = min(limit - len(rows), OPERATIONS_MAX)
            asked, names = names[:count], names[count:]
            rows += [(_key(pair, stem), pair.value or b"") for pair in await self._read(asked)]
        return rows

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        stem = self._stem(partition)
        await self._transact([_write("set", stem + key.hex(), value) for key, value in items])

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        index = ABSENT if expected is None else expected
        done = await self._transact([_write("cas", self._stem(partition) + key.hex(), value, Index=index)])
        return done.results[0].kv.modify_index if done.results else None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        stem = self._stem(partition)
        await self._transact([_operation("delete", stem + key.hex()) for key in keys])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        name = self._stem(partition) + key.hex()
        # Not delete-cas: it succeeds where the key is absent.
        done = await self._transact([_operation("check-index", name, Index=expected), _operation("delete", name)])
        return not done.errors

    async def partitions(self) -> list[bytes]:
        stem = f"{self._name}/"
        folders = [name for name in await self._names(stem, separator="/") if name.endswith("/")]
        return [bytes.fromhex(folder[len(stem) : -1]) for folder in folders]

    async def close(self) -> None:
        await self._servers.aclose()

    def _stem(self, partition: bytes) -> str:
        return f"{self._name}/{partition.hex()}/"

    async def _names(self, stem: str, *, separator: str = "") -> list[str]:
        """List the names below a stem, in order. With a separator, list folders instead of the keys in them."""
        asked = {"keys": "true", "consistent": "true"} | ({"separator": separator} if separator else {})
        response = await self._send("GET", f"kv/{stem}", asked)
        if response.status_code == 404 and not response.content:
            return []
        if response.status_code != 200:
            raise _refusal(response)
        if response.headers.get(b"x-consul-results-filtered-by-acls") == b"true":
            raise StoreUnavailable("consul: the token may not list every key of this store", setting="token")
        return sorted(_decoded(response, list[str]))

    async def _read(self, names: Sequence[str]) -> list[_Pair]:
        """Read the keys that exist, in one transaction. Consul fails the transaction and lists absent keys: repeat
        without them.
        """
        left = list(names)
        while left:
            done = await self._transact([_operation("get", name) for name in left], consistent="true")
            if not done.errors:
                pairs = [result.kv for result in done.results or ()]
                if len(pairs) < len(left):  # not absence, which is an error
                    raise StoreUnavailable("consul: the token may not read every key of this store", setting="token")
                return pairs
            absent = {error.op_index for error in done.errors}
            left = [name for index, name in enumerate(left) if index not in absent]
        return []

    async def _transact(self, operations: Sequence[object], **asked: str) -> _Done:
        """Carry out all operations. With errors, Consul carried out none: a condition is false, or a key is absent."""
        response = await self._send("PUT", "txn", asked, msgspec.json.encode(operations))
        if response.status_code not in {200, 409}:
            raise _refusal(response)
        done = _decoded(response, _Done)
        if bool(done.errors) != (response.status_code == 409):
            raise OutcomeUnknown(f"consul: it answered {response.status_code}, with {len(done.errors or ())} errors")
        for error in done.errors or ():
            if not _is_condition(error.what):
                raise StoreUnavailable(f"consul: it refuses the transaction: {error.what}")
        return done

    async def _send(
        self, method: str, path: str, asked: Mapping[str, str], content: bytes = b"", *, wait_s: float | None = None
    ) -> HttpAnswer:
        target = f"/v1/{path}?{urlencode(asked)}" if asked else f"/v1/{path}"
        try:
            return await self._servers.request(method, target, headers=self._headers, content=content, timeout_s=wait_s)
        except NotSent as error:
            raise Passing(f"consul: no connection: {error}") from error
        except AnswerLost as error:
            raise OutcomeUnknown(f"consul: the answer was lost: {error}") from error


def _check_agent(agent: _Agent) -> None:
    if agent.debug_config.dev_mode:
        raise StoreUnavailable(
            "consul: the agent runs with -dev, and keeps all in memory: start it with -server and -data-dir",
            setting="-dev",
        )


def _operation(verb: str, name: str, **fields: object) -> dict[str, object]:
    return {"KV": {"Verb": verb, "Key": name, **fields}}


# The random flags make each write change the record: see the module's head.
def _write(verb: str, name: str, value: bytes, **fields: Any) -> dict[str, object]:
    return _operation(verb, name, Value=value, Flags=int.from_bytes(os.urandom(8), "big"), **fields)


def _key(pair: _Pair, stem: str) -> bytes:
    return bytes.fromhex(pair.key[len(stem) :])


def _is_condition(what: str) -> bool:
    """Return whether Consul's message means a false condition, or a missing key that is read or compared."""
    return "index is stale" in what or "doesn't exist" in what or "failed index check" in what


def _decoded(response: HttpAnswer, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=type_)
    except msgspec.DecodeError as error:
        raise OutcomeUnknown(f"consul: its answer is not one of Consul: {error}") from error


def _refusal(response: HttpAnswer) -> Exception:
    """Translate a refusal. After a status of 500 Consul may have begun, except for messages that exclude this."""
    reason = response.text.strip()[:500]
    message = f"consul: it answered {response.status_code}: {reason}"
    if response.status_code == 429 or RATE_LIMITED in reason:
        return Passing(message)
    if response.status_code == 500 and reason.removeprefix("rpc error making call: ") == NO_LEADER:
        return Passing(message)
    if response.status_code < 500:
        return StoreUnavailable(message, status=response.status_code)
    return OutcomeUnknown(message, status=response.status_code)
