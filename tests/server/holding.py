"""How long a request holds the event loop: `python -m tests.server.holding [OPERATION…]`.

Each operation that takes a record is sent large bodies by a caller who may do everything, in memory and without a
socket. Each field is filled as far as its type, its own limit and the size of the body allow, once for each field; so
the handler behind the permission gets them, too. The table shows the longest time of CPU that the thread of the loop
spent between two looks for other work, and all CPU of the process for the request.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
from msgspec import inspect

from lakebed.operations import NOTHING, AnyOperation
from lakebed.operations.table import OPERATIONS
from lakebed.server import ServerOptions, create_app, opened

HOLD_MS_MAX = 50.0
ARGUMENTS = {"branch": "main", "repository": "lake", "ref": "main", "sourceRef": "main", "destinationBranch": "dev"}
PARAMETERS = {"path": "a", "dest_path": "a", "principalId": "p"}
SPARE_BYTES = 2_000


class Longest:
    """Measures each turn of the event loop of this thread."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def __enter__(self) -> Longest:
        self._run = run = asyncio.Handle._run

        def measured(handle: Any) -> None:
            began_s = time.thread_time()
            run(handle)
            self.cpu_s = max(self.cpu_s, time.thread_time() - began_s)

        setattr(asyncio.Handle, "_run", measured)  # noqa: B010  # the loop calls it for each turn
        return self

    def __exit__(self, *_: object) -> None:
        setattr(asyncio.Handle, "_run", self._run)  # noqa: B010  # the same


def small(kind: inspect.Type) -> Any:
    """Return a small value of a type."""
    match kind:
        case inspect.StrType():
            return "a" * max(1, kind.min_length or 0)
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.ListType() | inspect.VarTupleType():
            return []
        case inspect.DictType() | inspect.RawType() | inspect.AnyType():
            return {}
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.UnionType():
            return small(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.StructType():
            return {field.encode_name: small(field.type) for field in kind.fields if field.required}
    raise AssertionError(kind)


def large(kind: inspect.Type, size_bytes: int) -> Iterator[Any]:
    """Yield values of a type with about this size, one for each list, map or text in it."""
    match kind:
        case inspect.StrType():
            yield "a" * size_bytes
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            each = json.dumps(small(item), separators=(",", ":"))
            most = min(kind.max_length or size_bytes, size_bytes // (len(each) + 9))
            if isinstance(item, inspect.StrType):
                yield [f"a{number:07}" for number in range(most)]
            else:
                yield [small(item)] * most
                yield from ([one] for one in large(item, size_bytes - 2))
        case inspect.DictType(value_type=value):
            yield {
                f"a{number:07}": small(value) for number in range(min(kind.max_length or size_bytes, size_bytes // 14))
            }
        case inspect.RawType() | inspect.AnyType():
            yield {f"a{number:07}": 0 for number in range(size_bytes // 13)}
        case inspect.UnionType():
            for one in kind.types:
                yield from large(one, size_bytes)
        case inspect.StructType():
            for field in kind.fields:
                for value in large(field.type, size_bytes):
                    yield {**small(kind), field.encode_name: value}


def bodies(operation: AnyOperation) -> Iterator[tuple[str, bytes]]:
    for value in large(inspect.type_info(operation.body), operation.body_bytes_max - SPARE_BYTES):
        data = json.dumps(value, separators=(",", ":")).encode()
        if 1_000 < len(data) <= operation.body_bytes_max:
            name = max(value, key=lambda key: len(json.dumps(value[key]))) if isinstance(value, dict) else "[]"
            yield name, data


def valid() -> dict[str, Any]:
    """Return bodies that go through: as many rules and names as there may be, with the dearest patterns."""
    globs = [("a*" * 120 + f"{number:06}") for number in range(1_000)]
    mild = [("a" * 25 + "*") * 8 + f"{number:06}" for number in range(200)]
    rules = [{"pattern": glob[-250:], "period": "7d"} for glob in globs]
    statement = {"effect": "allow", "action": ["fs:*"], "resource": "arn:lakefs:fs:::repository/" + "a*" * 300}
    parts = [{"name": f"{number:08}.arrow", "rows": 1, "size_bytes": 9, "sha256": "0" * 64} for number in range(14_000)]
    manifest = {
        "format": 1,
        "table": "addresses",
        "table_version": 1,
        "folder": "_lakefs/retention/",
        "parts": parts,
        "rows": 14_000,
        "size_bytes": 126_000,
    }
    return {
        "setBranchProtectionRules": [{"pattern": glob} for glob in mild],
        "setDeleteProtection": {"repository": False, "branches": mild},
        "commit": {
            "message": "m",
            "metadata": {f"a{number}": "b" * 200 for number in range(1_000)},
            "allow_empty": True,
        },
        "resetBranch": {"type": "reset"},
        "setFullGcRules": {"default": "7d", "branches": rules},
        "tryGcRules": {"default": "7d", "branches": rules},
        "addLegalHold": {"name": "n", "why": "w", "globs": [f"{number:06}/*" for number in range(1_000)]},
        "createPolicy": {"id": "p", "statement": [statement] * 90},
        "deleteObjects": {"paths": [f"a/{number:07}" for number in range(1_000)]},
        "markGcRun": {"plan": manifest},
    }


async def measure(
    client: httpx.AsyncClient, operation: AnyOperation, sent: Iterable[tuple[str, bytes]]
) -> list[tuple[float, float, str]]:
    path = re.sub(r"\{(\w+)\}", lambda name: ARGUMENTS.get(name[1], "a1"), operation.path)
    rows = []
    for name, data in sent:
        gc.collect()  # of what the others left: a pause for it is no cost of this request
        with Longest() as longest:
            began_s = time.process_time()
            asked = client.request(operation.method, path, content=data, params=PARAMETERS)
            answer = await asyncio.create_task(asked)  # of its own, so that its turns are counted from the first on
            cpu_s = time.process_time() - began_s
        text = f"{operation.id}.{name} {len(data):,} B: {answer.status_code} {answer.text[:70]!r}"
        rows.append((longest.cpu_s * 1000, cpu_s * 1000, text))
    return rows


async def main(names: list[str]) -> None:
    rows: list[tuple[float, float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        options = ServerOptions(data_dir=Path(folder), blockstore="mem", store_uri="mem://")
        async with opened(options) as state:
            transport = httpx.ASGITransport(app=create_app(state), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
                pair = (await client.post("/setup_lakefs", json={"username": "esti"})).json()
                client.auth = httpx.BasicAuth(pair["access_key_id"], pair["secret_access_key"])
                await client.post("/repositories", json={"name": "lake", "storage_namespace": "mem://holding"})
                await client.post("/repositories/lake/branches", json={"name": "dev", "source": "main"})
                for operation in OPERATIONS:
                    if operation.body not in (NOTHING, bytes) and (not names or operation.id in names):
                        rows += await measure(client, operation, bodies(operation))
                for name, body in valid().items():
                    operation = next(each for each in OPERATIONS if each.id == name)
                    rows += await measure(client, operation, [("valid", json.dumps(body).encode())])
    for hold_ms, cpu_ms, text in sorted(rows, reverse=True):
        print(f"{hold_ms:8.1f} ms{'!' if hold_ms > HOLD_MS_MAX else ' '} of {cpu_ms:8.1f} ms  {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
