"""`dynamodb://REGION/TABLE`: a Store in Amazon DynamoDB, over its HTTP API, with the credentials of AWS's own chain.

An item's partition key is the store's partition, its sort key the store's key, both binary: so Query reads in byte
order. All reads are consistent. Conditions test a random version that every write makes anew. So a value that was put
back is noticed (no A-B-A), and a condition carries no value.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from awscrt import auth
from awscrt.exceptions import AwsCrtError

from lakebed.base import OutcomeUnknown, aws_signing_key
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.http_client import AnswerLost, HttpAnswer, HttpClient, NotSent, Origin
from lakebed.kv.remote.pace import BURST_S, Pace, Paces, Throttled
from lakebed.kv.remote.store import (
    PAUSE_S,
    Passing,
    Place,
    answer_of,
    open_database,
    partitions_of,
)
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreSize, StoreUnavailable

FORMAT: Final = b"1"
NO_COMPACTION: Final = "DynamoDB frees the room of a deleted item by itself"
CONNECTIONS: Final = 32
CREDENTIALS_S: Final = 1.0
"""Ask for the credentials this often. The chain returns new credentials some seconds before its own expire."""
CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_Key: TypeAlias = dict[str, dict[str, bytes]]
A = TypeVar("A")
MARK: Final[_Key] = {"p": {"B": bytes(1025)}, "k": {"B": b"format"}}
"""The key of the format. No partition of a store is this long."""

SCHEMA: Final = [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}]
ATTRIBUTES: Final = "AttributeDefinitions"
TYPES: Final = [{"AttributeName": "p", "AttributeType": "B"}, {"AttributeName": "k", "AttributeType": "B"}]

ABSENT: Final[dict[str, object]] = {"ConditionExpression": "attribute_not_exists(p)"}

UNREAD: Final = "dynamodb: it hands back keys unread: it is throttled"

_THROTTLED: Final = frozenset({"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"})
_PASSING: Final = frozenset(
    {
        "TransactionConflictException",
        "LimitExceededException",
        "ResourceInUseException",  # another process makes the table
    }
)
TABLE_S: Final = 300.0
"""The longest wait of the first start for its table."""
TABLE_PAUSE_S: Final = 0.5
_OLD_CREDENTIALS: Final = frozenset(
    {"ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"}
)


def size_uri(uri: StoreUri) -> StoreSize:
    """Return the size of the table. DynamoDB updates it every six hours, and has no free space."""
    return answer_of(uri, _from, DynamoDatabase.size)


def _from(uri: StoreUri, wait_s: float) -> DynamoDatabase:
    """Open `dynamodb://eu-central-1/lakebed?connections=32&wait_s=10&endpoint=`. Make the table where it is missing."""
    region, table = uri.authority, uri.path.strip("/")
    endpoint = uri.text("endpoint", f"https://dynamodb.{region}.amazonaws.com")
    connections = uri.count("connections", CONNECTIONS)
    uri.check_all_taken()
    if not region or not 3 <= len(table) <= 255 or "/" in table:
        raise InvalidStoreUri("dynamodb: an example: dynamodb://eu-central-1/lakebed", scheme=uri.scheme)
    try:
        origin = Origin.of(endpoint)
    except ValueError as error:
        raise InvalidStoreUri(f"dynamodb: endpoint: {error}", scheme=uri.scheme) from error
    return DynamoDatabase(region, table, endpoint=origin, connections=connections, timeout_s=max(wait_s, 1))


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)  # reads the whole table


class _Binary(msgspec.Struct, gc=False):
    """A binary attribute. msgspec decodes its base64 ten times as fast as a loop of ours."""

    B: bytes


class _Text(msgspec.Struct, gc=False):
    """A binary attribute that is sent back as it was received, so it stays base64."""

    B: str


class _Keys(msgspec.Struct, gc=False):
    p: _Binary
    k: _Binary


class _Item(msgspec.Struct, gc=False):
    p: _Binary
    k: _Binary
    v: _Binary
    n: _Text


class _Row(msgspec.Struct, gc=False):
    k: _Binary
    v: _Binary


class _Name(msgspec.Struct, gc=False):
    p: _Binary


class _Unread(msgspec.Struct):
    keys: list[_Keys] = msgspec.field(name="Keys", default_factory=list)


class _Read(msgspec.Struct):
    """The answer to BatchGetItem, by table."""

    items: dict[str, list[_Item]] = msgspec.field(name="Responses")
    unread: dict[str, _Unread] = msgspec.field(name="UnprocessedKeys", default_factory=dict)


class _Rows(msgspec.Struct):
    """The answer to Query."""

    items: list[_Row] = msgspec.field(name="Items")
    last_key: Any = msgspec.field(name="LastEvaluatedKey", default=None)


class _Names(msgspec.Struct):
    """The answer to Scan."""

    items: list[_Name] = msgspec.field(name="Items")
    last_key: Any = msgspec.field(name="LastEvaluatedKey", default=None)


class _Written(msgspec.Struct):
    """The answer to BatchWriteItem, by table."""

    unwritten: dict[str, list[Any]] = msgspec.field(name="UnprocessedItems")


_ANY: Final = msgspec.json.Decoder(dict[str, Any])
_READ: Final = msgspec.json.Decoder(_Read)
_ROWS: Final = msgspec.json.Decoder(_Rows)
_NAMES: Final = msgspec.json.Decoder(_Names)
_WRITTEN: Final = msgspec.json.Decoder(_Written)


class _NotAsExpected(Exception):
    """A condition is false."""


class _CredentialsRefused(Passing):
    """The service refused the credentials. The chain may have new ones by now."""


class _NoTable(StoreUnavailable):
    """The table does not exist."""


class DynamoDatabase:
    """Requests to one table."""

    batch_keys_max = 25
    batch_bytes_max = 8 << 20
    batches_at_once = 8
    reads_together = True

    def __init__(self, region: str, table: str, *, endpoint: Origin, connections: int, timeout_s: float) -> None:
        self._table = table
        self._endpoint = endpoint
        self._connections = connections
        self._timeout_s = timeout_s
        self._client: HttpClient | None = None
        self._is_closed = False
        self._paces = Paces(timeout_s)
        self._signer = _Signer(region, endpoint.authority)

    async def prepare(self) -> None:
        try:
            described = await self._made()
            if (
                described["KeySchema"] != SCHEMA
                or {"AttributeName": "k", "AttributeType": "B"} not in described[ATTRIBUTES]
            ):
                raise StoreFormat(f"dynamodb: the table {self._table} has other keys: it is of another program")
            await self._put(MARK, FORMAT, ABSENT)
            found = (await self._post("GetItem", {"Key": MARK, "ConsistentRead": True}))["Item"]["v"]
        finally:
            await self._end_connections()
        if found != {"B": base64.b64encode(FORMAT).decode()}:
            raise StoreFormat("dynamodb: the table was written in another format, by another release")

    async def size(self) -> StoreSize:
        """Return the size of the table.

        Raises:
            StoreFormat: the table does not exist.
        """
        try:
            described = (await self._post("DescribeTable", {}))["Table"]
        except _NoTable:
            raise StoreFormat(f"dynamodb: there is no table {self._table}") from None
        return StoreSize(size_bytes=int(described["TableSizeBytes"]), log_bytes=0, free_bytes=0)

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        """Read the keys. A read of several keys does not wait for a turn, like a batch of writes."""
        found: dict[bytes, Held] = {}
        left, pauses, waits = [(partition, key) for key in keys], self._pauses(), len(keys) == 1
        if not waits:
            self._reads_of(partition).overdraw(len(keys))
        while True:
            try:
                answers = await self.read_places(left, waits=waits)
            except Throttled as error:
                answers = dict.fromkeys(left, error)
            found |= {key: held for (_, key), held in answers.items() if not isinstance(held, Passing)}
            unread = {place: held for place, held in answers.items() if isinstance(held, Passing)}
            if not unread:
                return found
            if len(keys) == 1 or not await anext(pauses):
                raise next(iter(unread.values()))
            left = list(unread)

    async def read_places(self, places: Sequence[Place], *, waits: bool = True) -> dict[Place, Held | Passing]:
        """Read the places. Return `Passing` for each key that DynamoDB handed back: its partition is throttled, others
        are not.

        A read of several partitions does not wait for a turn: the pace of each partition is charged for it. So a
        throttled partition delays no other partition.
        """
        counts = Counter(partition for partition, _ in places)
        if len(counts) == 1:
            return await self._reads_of(places[0][0]).run(
                lambda: self._read_places(places),
                len(places),
                left=lambda found: sum(_unread_of(found).values()),
                waits=waits,
            )
        sent_at = {partition: self._reads_of(partition).overdraw(count) for partition, count in counts.items()}

        def learn(refused: Counter[bytes]) -> None:
            for partition, count in counts.items():
                left = refused[partition]
                self._reads_of(partition).answered(sent_at[partition], taken=count - left, refused=left)

        try:
            found = await self._read_places(places)
        except Throttled:
            learn(counts)
            raise
        learn(_unread_of(found))
        return found

    def _reads_of(self, partition: bytes) -> Pace:
        """Return the pace of a partition's reads. DynamoDB limits reads and writes of a partition apart."""
        return self._paces.of((partition, "reads"))

    def _writes_of(self, partition: bytes) -> Pace:
        return self._paces.of((partition, "writes"))

    async def _read_places(self, places: Sequence[Place]) -> dict[Place, Held | Passing]:
        asked = {self._table: {"Keys": [_key(*place) for place in places], "ConsistentRead": True}}
        answer = await self._ask("BatchGetItem", {"RequestItems": asked}, _READ)
        found: dict[Place, Held | Passing] = {
            (item.p.B, item.k.B): Held(item.v.B, item.n.B) for item in answer.items.get(self._table, ())
        }
        if answer.unread:
            for key in answer.unread.get(self._table, _Unread()).keys:
                found[key.p.B, key.k.B] = Passing(UNREAD)
        return found

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        # DynamoDB refuses an empty value in a key condition.
        values = {":p": {"B": partition}} | ({":k": {"B": start}} if start else {})
        condition = "p = :p AND k >= :k" if start else "p = :p"
        query: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ConsistentRead": True,
            "ProjectionExpression": "k, v",
        }
        rows: list[tuple[bytes, bytes]] = []
        while len(rows) < limit:
            page = {**query, "Limit": limit - len(rows)}
            answer = await self._reads_of(partition).run(lambda page=page: self._ask("Query", page, _ROWS))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            rows += [(item.k.B, item.v.B) for item in answer.items]
            if answer.last_key is None:
                break
            query["ExclusiveStartKey"] = answer.last_key
        return rows

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        if len(items) == 1:
            await self._put(_key(partition, items[0][0]), items[0][1], {})
        else:
            await self._write_batch(
                partition, [{"PutRequest": {"Item": _item(_key(partition, key), value)}} for key, value in items]
            )

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        return await self._put(_key(partition, key), value, ABSENT if expected is None else _equal(expected))

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        if len(keys) == 1:
            await self._change(partition, "DeleteItem", {"Key": _key(partition, keys[0])})
        else:
            await self._write_batch(partition, [{"DeleteRequest": {"Key": _key(partition, key)}} for key in keys])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        try:
            await self._change(partition, "DeleteItem", {"Key": _key(partition, key), **_equal(expected)})
        except _NotAsExpected:
            return False
        return True

    async def partitions(self) -> list[bytes]:
        query: dict[str, Any] = {"TableName": self._table, "ProjectionExpression": "p", "ConsistentRead": True}
        found = set[bytes]()
        while True:
            answer = await self._ask("Scan", query, _NAMES)
            found |= {item.p.B for item in answer.items}
            if answer.last_key is None:
                return list(found - {MARK["p"]["B"]})
            query["ExclusiveStartKey"] = answer.last_key

    async def close(self) -> None:
        self._is_closed = True
        await self._end_connections()

    async def _end_connections(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _made(self) -> dict[str, Any]:
        """Describe the table once it can be used. Make it where it is missing, which takes the service half a minute.

        Raises:
            Passing: the table is not ready after `TABLE_S`. `wait_s` bounds an outage of the database, not this wait.
        """
        deadline, state = time.monotonic() + TABLE_S, "being made"
        while time.monotonic() < deadline:
            try:
                table: dict[str, Any] = (await self._post("DescribeTable", {}))["Table"]
            except _NoTable:
                made = {"KeySchema": SCHEMA, ATTRIBUTES: TYPES, "BillingMode": "PAY_PER_REQUEST"}
                await self._post("CreateTable", made)
            else:
                if (state := table["TableStatus"]) in {"ACTIVE", "UPDATING"}:
                    return table
            await asyncio.sleep(TABLE_PAUSE_S)
        raise Passing(f"dynamodb: the table is {state} since {TABLE_S:.0f} s")

    async def _put(self, key: _Key, value: bytes, condition: dict[str, object]) -> Predicate | None:
        item = _item(key, value)
        try:
            await self._change(key["p"]["B"], "PutItem", {"Item": item, **condition})
        except _NotAsExpected:
            return None
        return base64.b64encode(item["n"]["B"]).decode()

    async def _write_batch(self, partition: bytes, requests: list[Any]) -> None:
        """Send the requests until DynamoDB takes all. It hands back requests over its present limit.

        A batch waits for no turn: beside batches that do not wait, a waiting batch would starve. Single writes wait for
        its charge.
        """
        asked: Any = {self._table: requests}
        pauses = self._pauses()
        self._writes_of(partition).overdraw(len(requests))
        try:
            while True:
                try:
                    answer = await self._writes_of(partition).run(
                        lambda asked=asked: self._ask("BatchWriteItem", {"RequestItems": asked}, _WRITTEN),  # type: ignore[misc]  # as above
                        len(asked[self._table]),
                        left=lambda answer: len(answer.unwritten.get(self._table, ())),
                        waits=False,
                    )
                except Passing:
                    if not await anext(pauses):
                        raise
                    continue
                if not answer.unwritten:
                    return
                asked = answer.unwritten
                if not await anext(pauses):
                    raise Passing("dynamodb: it hands back writes undone: it is throttled")
        except StoreUnavailable as error:
            if len(asked[self._table]) == len(requests):
                raise
            raise OutcomeUnknown(f"dynamodb: a part of the batch was taken: {error}") from error

    async def _pauses(self) -> AsyncIterator[bool]:
        """Pause, twice as long each time, up to the time of a pace's burst. Yields False when the time is up."""
        deadline, pause_s = time.monotonic() + self._timeout_s, PAUSE_S
        while time.monotonic() + pause_s < deadline:
            await asyncio.sleep(pause_s)
            yield True
            pause_s = min(2 * pause_s, BURST_S)
        yield False

    async def _change(self, partition: bytes, action: str, body: dict[str, Any]) -> None:
        """Change an item of this partition, when its turn comes."""
        await self._writes_of(partition).run(lambda: self._post(action, body))

    async def _post(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request about the table."""
        return await self._ask(action, {"TableName": self._table, **body}, _ANY)

    async def _ask(self, action: str, body: dict[str, Any], answers: msgspec.json.Decoder[A]) -> A:
        """Send a request, and decode its answer."""
        content = msgspec.json.encode(body)
        headers = await self._signer.headers(f"DynamoDB_20120810.{action}", content)
        try:
            response = await self._open().request("POST", self._endpoint, "/", headers=headers, content=content)
        except NotSent as error:
            raise Passing(f"dynamodb: no connection: {error}") from error
        except AnswerLost as error:
            raise OutcomeUnknown(f"dynamodb: the answer was lost: {error}") from error
        if response.status_code != 200:
            refusal = _refusal(response)
            if isinstance(refusal, _CredentialsRefused):
                self._signer.forget()
            raise refusal
        try:
            return answers.decode(response.content)
        except msgspec.DecodeError as error:  # a missing field, too
            raise OutcomeUnknown(f"dynamodb: its answer is not one of DynamoDB: {error}") from error

    def _open(self) -> HttpClient:
        if self._is_closed:
            raise StoreUnavailable("dynamodb: this store is closed")
        if self._client is None:
            self._client = HttpClient(connections=self._connections, timeout_s=self._timeout_s)
        return self._client


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stem:
    """The part of a signature that requests of one kind share within a second of Unix time."""

    second: int
    credentials: auth.AwsCredentials
    headers: dict[str, str]
    canonical: str
    to_sign: str
    key: bytes
    authorization: str


class _Signer:
    """Sign requests by Signature Version 4, with the credentials of AWS's own chain.

    The chain answers from its own thread, so ask it every CREDENTIALS_S, not for each request.
    """

    def __init__(self, region: str, host: str) -> None:
        self._region = region
        self._host = host
        self._chain = auth.AwsCredentialsProvider.new_default_chain()
        self._chain_since_s = -math.inf
        self._credentials: Any = None
        self._asked_at_s = 0.0
        self._stems: dict[str, _Stem] = {}
        """By the request's target: few entries."""

    async def headers(self, target: str, content: bytes) -> dict[str, str]:
        """Make the headers of a request. The client adds the host.

        Raises:
            Passing: the chain has no credentials.
        """
        found, now_s = self._credentials, time.monotonic()
        if found is None or now_s - self._asked_at_s >= CREDENTIALS_S:
            try:
                found = await asyncio.wrap_future(self._chain.get_credentials())
            except AwsCrtError as error:
                raise Passing(f"dynamodb: no credentials: {error.message}") from error
            self._credentials, self._asked_at_s = found, now_s
        return self.signed(target, content, found, datetime.now(UTC))

    def forget(self) -> None:
        """Look up new credentials, after the service refused the present ones. A chain caches its own for up to 15
        minutes.

        Many requests are refused at once, so make a new chain at most every CREDENTIALS_S.
        """
        now_s = time.monotonic()
        if now_s - self._chain_since_s >= CREDENTIALS_S:
            self._chain, self._chain_since_s = auth.AwsCredentialsProvider.new_default_chain(), now_s
            self._credentials = None

    def signed(self, target: str, content: bytes, credentials: auth.AwsCredentials, now: datetime) -> dict[str, str]:
        second, stem = int(now.timestamp()), self._stems.get(target)
        if stem is None or stem.second != second or stem.credentials is not credentials:
            stem = self._stems[target] = self._stem(target, second, credentials)
        canonical = stem.canonical + hashlib.sha256(content).hexdigest()
        to_sign = stem.to_sign + hashlib.sha256(canonical.encode()).hexdigest()
        signature = hmac.digest(stem.key, to_sign.encode(), "sha256").hex()
        return {**stem.headers, "authorization": stem.authorization + signature}

    def _stem(self, target: str, second: int, credentials: auth.AwsCredentials) -> _Stem:
        moment = datetime.fromtimestamp(second, UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"content-type": CONTENT_TYPE, "x-amz-date": moment}
        headers |= {"x-amz-security-token": session} if (session := credentials.session_token) else {}
        headers["x-amz-target"] = target
        signed = {"content-type": CONTENT_TYPE, "host": self._host, **headers}
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        scope = f"{moment[:8]}/{self._region}/dynamodb/aws4_request"
        credential = f"{credentials.access_key_id}/{scope}"
        return _Stem(
            second=second,
            credentials=credentials,
            headers=headers,
            canonical=f"POST\n/\n\n{lines}\n{names}\n",
            to_sign=f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n",
            key=_signing_key(credentials.secret_access_key, scope),
            authorization=f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature=",
        )


_signing_key: Final = lru_cache(maxsize=16)(aws_signing_key)


def _unread_of(found: Mapping[Place, Held | Passing]) -> Counter[bytes]:
    """Count the keys of each partition that DynamoDB handed back."""
    return Counter(partition for (partition, _), held in found.items() if isinstance(held, Passing))


def _key(partition: bytes, key: bytes) -> _Key:
    return {"p": {"B": partition}, "k": {"B": key}}


def _item(key: _Key, value: bytes) -> _Key:
    return {**key, "v": {"B": value}, "n": {"B": os.urandom(12)}}


def _equal(version: Predicate) -> dict[str, object]:
    return {"ConditionExpression": "n = :n", "ExpressionAttributeValues": {":n": {"B": version}}}


def _refusal(response: HttpAnswer) -> Exception:
    """Translate a refusal. With a status of 500 or above, the write may still be carried out."""
    try:
        answer = _ANY.decode(response.content)
    except msgspec.DecodeError:
        answer = {}
    kind = str(answer.get("__type", "")).rpartition("#")[2]
    message = f"dynamodb: {kind or response.status_code}: {answer.get('message') or answer.get('Message') or ''}"
    if kind == "ConditionalCheckFailedException":
        return _NotAsExpected(message)
    if kind == "ResourceNotFoundException":
        return _NoTable(message)
    if kind in _OLD_CREDENTIALS:
        return _CredentialsRefused(message)
    if kind in _THROTTLED:
        return Throttled(message)
    if kind in _PASSING:
        return Passing(message)
    if response.status_code >= 500:
        return OutcomeUnknown(message)
    return StoreUnavailable(message, kind=kind)
