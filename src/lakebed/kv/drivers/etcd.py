"""`etcd://host:2379,host:2379`: a Store in etcd, over its JSON gateway, with no client library of its own.

A pair's key in etcd is the store's name, the partition's length and bytes, then the key: so a partition is one range,
in byte order. Each operation is one range or one transaction. Reads are linearisable, as is etcd's default.

Predicates are modification revisions. etcd never uses one twice, so a value that was put back is noticed (no A-B-A).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.http_client import AnswerLost, HttpAnswer, NotSent, Origin, Servers, certificates_of, origin_of
from lakebed.kv.remote.store import Passing, answer_of, harmless, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreSize, StoreUnavailable, prefix_end

T = TypeVar("T")

FORMAT: Final = b"1"
CONNECTIONS: Final = 16
COMPACT_S_MAX: Final = 3600.0
NO_SPACE: Final = "NOSPACE"
DENIED: Final = "auth: permission denied"
"""The maintenance API's message to a user who is not root. Its code is that of an unknown error."""

RESOURCE_EXHAUSTED: Final = 8
UNAUTHENTICATED: Final = 16
REFUSED: Final = frozenset({3, 5, 6, 7, 9, 10, 11, 12})
"""Codes of gRPC after which nothing happened. After any other code, etcd may carry out the write.

A member without space refuses with RESOURCE_EXHAUSTED a write that the other members may have taken.
"""


class _Record(msgspec.Struct, kw_only=True):
    """etcd leaves out fields that are zero, false or empty, and sends 64-bit numbers as text."""


class _Pair(_Record):
    key: bytes
    value: bytes = b""
    mod_revision: int = 0


class _Header(_Record):
    revision: int


class _Found(_Record):
    kvs: list[_Pair] = []


class _Range(_Found, kw_only=True):
    header: _Header
    """Required: an answer without it is not etcd's, and must not pass for an empty range."""


class _Response(_Record):
    response_range: _Found = msgspec.field(default_factory=_Found)


class _Done(_Record, kw_only=True):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _Alarm(_Record):
    alarm: str = ""


class _Alarms(_Record):
    alarms: list[_Alarm] = []


class _Status(_Record):
    db_size: int = msgspec.field(default=0, name="dbSize")
    in_use: int = msgspec.field(default=0, name="dbSizeInUse")


class _Token(_Record):
    token: str


class _Refusal(_Record):
    code: int = 0
    message: str = ""


def size_uri(uri: StoreUri) -> StoreSize:
    """Return the size of the whole etcd database. etcd has no size for a part of it."""
    return answer_of(uri, _from, EtcdDatabase.size)


def compact_uri(uri: StoreUri) -> None:
    """Defragment each member that the URI names, one after the other. A member answers no request meanwhile.

    etcd keeps its history: only etcd's own settings end it, for all users of the cluster.
    """
    answer_of(uri, _from, EtcdDatabase.compact)


def _from(uri: StoreUri, wait_s: float) -> EtcdDatabase:
    """Open `etcd://user:password@host:2379,other:2379?name=lakebed&connections=16&wait_s=10`; `etcds://` for TLS."""
    name, connections, certificates = uri.text("name", "lakebed"), uri.count("connections", CONNECTIONS), ""
    if uri.scheme == "etcds":
        certificates = uri.text("ca_file", "")
    uri.check_all_taken()
    uri.check_ports()
    login, _, hosts = uri.authority.rpartition("@")
    if not hosts or uri.path.strip("/") or not name:
        wrong = "it names no host" if not hosts else "name is empty" if not name else "it has a path"
        raise InvalidStoreUri(
            f"{uri.scheme}: {wrong}; an example: {uri.scheme}://127.0.0.1:2379?name=lakebed", scheme=uri.scheme
        )
    is_tls = uri.scheme == "etcds"
    servers = Servers(
        [origin_of(uri, host, is_tls=is_tls) for host in hosts.split(",")],
        connections=connections,
        timeout_s=max(wait_s, 1),
        certificates=certificates_of(uri, certificates, is_tls=is_tls),
    )
    return EtcdDatabase(servers, login=login, name=name)


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class EtcdDatabase:
    """Requests to the gateway of a member."""

    # etcd takes 128 operations and 1.5 MiB in a transaction, unless it was started with higher limits.
    batch_keys_max = 100
    batch_bytes_max = 512 << 10
    batches_at_once = 4
    reads_together = True

    def __init__(self, servers: Servers, *, login: str, name: str) -> None:
        self._servers = servers
        self._login = login
        self._prefix = name.encode() + b"/"
        self._token = ""

    async def prepare(self) -> None:
        try:
            asked, wait_s = {"action": "GET"}, self._servers.greeting_s
            alarms = await self._post("maintenance/alarm", asked, _Alarms, timeout_s=wait_s)
            if any(alarm.alarm == NO_SPACE for alarm in alarms.alarms):
                raise StoreUnavailable(
                    "etcd: its database is full (alarm NOSPACE): compact, defragment, and disarm the alarm",
                    alarm=NO_SPACE,
                )
            mark = self._prefix + b"format"
            made = {"compare": [_unchanged(mark, 0)], "success": [{"request_put": {"key": mark, "value": FORMAT}}]}
            await self._post("kv/txn", made, _Done)
            [found] = (await self._post("kv/range", {"key": mark}, _Range)).kvs
            if found.value != FORMAT:
                raise StoreFormat(f"etcd: {mark!r} is {found.value!r}: another release or program wrote it")
        finally:
            await self.close()

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        stem = self._stem(partition)
        if len(keys) == 1:
            pairs = (await self._post("kv/range", {"key": stem + keys[0]}, _Range)).kvs
        else:
            asked = [{"request_range": {"key": stem + key}} for key in keys]
            done = await self._post("kv/txn", {"success": asked}, _Done)
            pairs = [pair for response in done.responses for pair in response.response_range.kvs]
        return {pair.key[len(stem) :]: Held(pair.value, pair.mod_revision) for pair in pairs}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        stem = self._stem(partition)
        asked = {"key": stem + start, "range_end": prefix_end(stem), "limit": limit}
        return [(pair.key[len(stem) :], pair.value) for pair in (await self._post("kv/range", asked, _Range)).kvs]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        stem = self._stem(partition)
        puts = [{"request_put": {"key": stem + key, "value": value}} for key, value in items]
        await self._post("kv/txn", {"success": puts}, _Done)

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        full = self._stem(partition) + key
        asked = {
            "compare": [_unchanged(full, expected or 0)],
            "success": [{"request_put": {"key": full, "value": value}}],
        }
        done = await self._post("kv/txn", asked, _Done)
        return done.header.revision if done.succeeded else None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        stem = self._stem(partition)
        await self._post("kv/txn", {"success": [{"request_delete_range": {"key": stem + key}} for key in keys]}, _Done)

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        full = self._stem(partition) + key
        asked = {"compare": [_unchanged(full, expected)], "success": [{"request_delete_range": {"key": full}}]}
        return (await self._post("kv/txn", asked, _Done)).succeeded

    async def partitions(self) -> list[bytes]:
        found: list[bytes] = []
        start, end = self._prefix + b"\0", self._prefix + b"\5"  # partitions are shorter than 0x0500, marks are text
        while True:
            asked = {"key": start, "range_end": end, "limit": 1, "keys_only": True}
            pairs = (await self._post("kv/range", asked, _Range)).kvs
            if not pairs:
                return found
            key = pairs[0].key[len(self._prefix) :]
            found.append(key[2 : 2 + int.from_bytes(key[:2], "big")])
            after = prefix_end(self._stem(found[-1]))
            assert after is not None
            start = after

    async def size(self) -> StoreSize:
        status = await self._post("maintenance/status", {}, _Status)
        return StoreSize(size_bytes=status.db_size, log_bytes=0, free_bytes=status.db_size - status.in_use)

    async def compact(self) -> None:
        """Defragment each member.

        Raises:
            StoreUnavailable: a member cannot be reached, or failed.
        """
        for member in self._servers.all:
            await self._post("maintenance/defragment", {}, _Record, timeout_s=COMPACT_S_MAX, member=member)

    async def close(self) -> None:
        await self._servers.aclose()

    def _stem(self, partition: bytes) -> bytes:
        # The length comes first, so that no partition is a prefix of another partition's keys.
        return self._prefix + len(partition).to_bytes(2, "big") + partition

    async def _post(
        self,
        method: str,
        body: object,
        answer: type[T],
        *,
        timeout_s: float | None = None,
        member: Origin | None = None,
    ) -> T:
        if self._login and not self._token:
            user, _, password = self._login.partition(":")
            login = {"name": unquote(user), "password": unquote(password)}
            greeting_s = self._servers.greeting_s
            asked = self._send("auth/authenticate", login, _Token, timeout_s=greeting_s, member=member)
            self._token = (await harmless(lambda: asked)()).token
        return await self._send(method, body, answer, timeout_s=timeout_s, member=member)

    async def _send(
        self,
        method: str,
        body: object,
        answer: type[T],
        *,
        timeout_s: float | None = None,
        member: Origin | None = None,
    ) -> T:
        try:
            response = await self._servers.request(
                "POST",
                f"/v3/{method}",
                headers={"authorization": self._token} if self._token else {},
                content=msgspec.json.encode(body),
                timeout_s=timeout_s,
                server=member,
            )
        except NotSent as error:
            raise Passing(f"etcd: no connection: {error}") from error
        except AnswerLost as error:
            raise OutcomeUnknown(f"etcd: the answer was lost: {error}") from error
        if response.status_code != 200:
            raise self._refused(response)
        try:
            return msgspec.json.decode(response.content, type=answer, strict=False)
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"etcd: its answer is not one of etcd: {error}") from error

    def _refused(self, response: HttpAnswer) -> Exception:
        try:
            refusal = msgspec.json.decode(response.content, type=_Refusal, strict=False)
        except msgspec.DecodeError:
            return OutcomeUnknown(f"etcd: it answered {response.status_code}, and no reason")
        message = f"etcd: {refusal.message}"
        if refusal.code == UNAUTHENTICATED and self._token:
            self._token = ""  # the token has expired: the next attempt logs in again
            return Passing(message)
        if (refusal.code == RESOURCE_EXHAUSTED and "too many requests" in message) or "no leader" in message:
            return Passing(message)
        if refusal.message == DENIED:
            return StoreUnavailable(f"{message}: etcd asks for its user root here", code=refusal.code)
        if refusal.code in REFUSED | {UNAUTHENTICATED}:
            return StoreUnavailable(message, code=refusal.code)
        return OutcomeUnknown(message, code=refusal.code)


def _unchanged(key: bytes, revision: Any) -> dict[str, object]:
    """Make the condition that a key was last written at this revision. 0 stands for an absent key."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
