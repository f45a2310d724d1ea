"""Ten thousand requests made from the table of operations: none is answered by a bug of ours.

Each operation is called with names that exist and with junk, with and without credentials, with bodies that fit their
record and bodies that do not. What is generated follows from the seed alone.
"""

from __future__ import annotations

import json
import random
import resource
import time
import types
import typing
from collections import Counter
from typing import Any, Final, Literal, get_args, get_origin

import httpx
import msgspec
import pytest

from lakebed.operations import NOTHING, AnyOperation, Parameter
from lakebed.operations.table import OPERATIONS
from tests.server.http.test_permissions import message_of

REQUESTS: Final = 10_000
CPU_S_MAX: Final = 2.0
GROWTH_MIB_MAX: Final = 64
NAMES: Final = {
    "repository": ("lake", "lake", "lake", "nosuch", "LAKE", "a" * 200),
    "branch": ("main", "main", "dev", "nosuch", "main~1", "réf"),
    "ref": ("main", "dev", "main~1", "main@", "dev$", "~", "main^9", "nosuch", "f" * 64),
    "userId": ("esti", "ann", "nosuch"),
    "groupId": ("Admins", "Viewers", "nosuch"),
    "policyId": ("AllAccess", "nosuch"),
}
JUNK: Final = (
    "", " ", "x", "a/b", "..", "%2f", "\x00", "\n", "é", "😀", "a" * 5_000, "-1", "0", "1e9", "9" * 40, "true", "null",
    "[", "${user}", "lakefs://lake/main/a", "local://x", "s3://b/k", "*", "~", "@", "$", "^",
    "9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00", "x:" + "9" * 4_400,
)  # fmt: skip
RANGES: Final = ("bytes=0-0", "bytes=" + "1-1" * 60 + "x", "bytes=" + "9" * 5_000 + "-", "bytes=-1,2-", "lines=1-2")

ORIGINS: Final = (
    "null",
    "",
    "http://[",
    "http://[::1",
    "https://x:99999",
    "x",
    "http://localhost",
    "\xff",
    "http://a@b@c",
)
HOSTS: Final = (
    "",
    "[",
    "[::1",
    "]:80",
    "localhost:x",
    "localhost:" + "9" * 50,
    "a" * 3_000,
    "x@y",
    "\xff",
    "[::1%25]:1",
)
COOKIES: Final = (
    "", "=", ";;;", "internal_auth_session", "internal_auth_session=", "internal_auth_session=x.y.z", "a=b; a=c; =d",
    "internal_auth_session=" + "x" * 3_000, '"', "\xff=\xfe", "internal_auth_session=\x80.\x80.\x80",
)  # fmt: skip


class Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, name: str) -> str:
        usual = NAMES.get(name, ("a", "docs/readme.md", "lake", "main"))
        return self.random.choice(usual if self.random.random() < 0.8 else JUNK)

    def path(self, operation: AnyOperation) -> str:
        path = operation.path
        for name in operation.arguments:
            text = self.text(name).replace("\x00", "\x01") or "x"
            path = path.replace("{" + name + "}", httpx.URL("http://x", params={"p": text}).query.decode()[2:], 1)
        return path.replace("+", "%20")

    def query(self, parameter: Parameter) -> str:
        if parameter.choices and self.random.random() < 0.7:
            return self.random.choice(parameter.choices)
        if parameter.kind == "integer" and self.random.random() < 0.7:
            return str(self.random.choice([-2, -1, 0, 1, 100, 1000, 1001, 2**40]))
        if parameter.kind == "boolean" and self.random.random() < 0.7:
            return self.random.choice(["true", "false"])
        return self.text(parameter.name)

    def value(self, kind: Any, name: str, depth: int = 0) -> Any:
        """A value of this type, or sometimes one of another."""
        if self.random.random() < 0.07:
            return self.random.choice([None, 1, -1.5, True, "x", [], {}, [[]], {"x": {}}, 10**30])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            return self.value(arguments[0], name, depth)
        if origin in (typing.Union, types.UnionType):
            return self.value(self.random.choice(arguments), name, depth)
        if origin is Literal:
            return self.random.choice(arguments)
        if origin in (list, tuple, typing.Sequence) or getattr(origin, "__name__", "") == "Sequence":
            count = self.random.choice([0, 1, 2]) if depth < 4 else 0
            return [self.value(arguments[0], name, depth + 1) for _ in range(count)]
        if origin is dict or getattr(origin, "__name__", "") == "Mapping":
            return {
                self.text("key"): self.value(arguments[1], name, depth + 1) for _ in range(self.random.choice([0, 1]))
            }
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.record(kind, depth)
        if kind is bool:
            return self.random.choice([True, False])
        if kind is int:
            return self.random.choice([0, 1, -1, 1_700_000_000, 2**63, 2**70])
        if kind is float:
            return self.random.choice([0.5, -1e300])
        return self.text(name)

    def record(self, kind: type[msgspec.Struct], depth: int = 0) -> dict[str, Any]:
        found = {}
        for field in msgspec.structs.fields(kind):
            if field.required or self.random.random() < 0.6:
                found[field.encode_name] = self.value(field.type, field.encode_name, depth + 1)
        if self.random.random() < 0.05:
            found["unknown"] = 1
        return found

    def body(self, operation: AnyOperation) -> bytes | None:
        if operation.body is NOTHING:
            return None if self.random.random() < 0.9 else b"{}"
        if operation.body is bytes:
            return self.random.choice([b"", b"data", b"\x00" * 3_000])
        if self.random.random() < 0.05:
            return self.random.choice([b"", b"{", b"null", b"[]", b"\xff", b"[" * 50_000, b"1" * 6_000])
        kind = operation.body
        made = (
            self.record(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else self.value(kind, "")
        )
        return json.dumps(made).encode("utf-8", "replace")

    def headers(self) -> dict[bytes, bytes]:
        found = {
            "content-type": self.random.choice(
                ["application/json"] * 8 + ["text/plain", "multipart/form-data; boundary=x"]
            )
        }
        if self.random.random() < 0.1:
            found["range"] = self.random.choice(RANGES)
        if self.random.random() < 0.05:
            found["if-none-match"] = self.random.choice(["*", '"x"', ""])
        if self.random.random() < 0.05:
            found["origin"] = self.random.choice(ORIGINS)
        if self.random.random() < 0.05:
            found["host"] = self.random.choice(HOSTS)
        if self.random.random() < 0.05:
            found["cookie"] = self.random.choice(COOKIES)
        if self.random.random() < 0.05:
            found["authorization"] = self.random.choice(["Basic x", "Bearer x.y.z", "Basic", "x" * 3_000])
        return {name.encode(): value.encode("latin-1") for name, value in found.items()}


DESTRUCTIVE: Final = {
    "deleteUser",
    "deleteRepository",
    "deleteCredentials",
    "deleteGroupMembership",
    "logout",
    "deleteSession",
}
"""Called for names that do not exist: else the first one ends the story."""


async def prepare(client: httpx.AsyncClient, repo: str) -> None:
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    for path in ("a", "docs/readme.md"):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=path.encode())
    await client.post(f"{repo}/branches/main/commits", json={"message": "m"})
    await client.post("/auth/users", json={"id": "ann"})


def successes(operation: AnyOperation) -> set[int]:
    return {operation.status, *operation.other_statuses, 206, 304, 307}


def is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("seed", [1])
async def test_no_generated_request_is_answered_by_a_bug(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str, seed: int
) -> None:
    await prepare(client, repo)
    made = Generator(seed)
    statuses: Counter[int] = Counter()
    operations = [operation for operation in OPERATIONS if operation.id not in DESTRUCTIVE]
    before = 0.0

    for number in range(REQUESTS):
        operation = made.random.choice(operations)
        query = {one.name: made.query(one) for one in operation.parameters if made.random.random() < 0.6}
        caller = stranger if made.random.random() < 0.15 else client
        where = f"{operation.method} http://localhost{operation.root}{made.path(operation)}"
        began_s = time.process_time()
        answer = await caller.request(
            operation.method,
            where.partition(" ")[2],
            params={name: value for name, value in query.items() if "\x00" not in value},
            content=made.body(operation),
            headers=made.headers(),
        )
        spent_s = time.process_time() - began_s
        statuses[answer.status_code] += 1

        assert answer.status_code < 500 or answer.status_code in {501, 503}, (
            f"request {number}: {where}: {answer.text[:300]}"
        )
        assert spent_s < CPU_S_MAX, f"request {number}: {where} took {spent_s:.1f} s of CPU"
        if answer.status_code >= 400 and operation.method != "HEAD":
            assert isinstance(message_of(answer), str), f"request {number}: {where}"
        elif "/.." not in where:  # The client takes these away, and asks for something else.
            assert operation.method == "HEAD" or answer.status_code in successes(operation), (number, where)
            if answer.status_code == operation.status and is_record(operation.answer):
                msgspec.json.decode(answer.content, type=operation.answer)
        if number == REQUESTS // 2:
            before = peak_mib()

    # Every kind of answer was met: a generator that is refused at the door finds nothing.
    assert {200, 201, 204, 400, 401, 404} <= {*statuses}, statuses
    assert peak_mib() - before < GROWTH_MIB_MAX
