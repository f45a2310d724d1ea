"""Quotas over HTTP: no door forgets them, each answers clearly, and what they count is what was written."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import httpx
import pytest

import lakebed
from lakebed.quotas import Books, mark_stale, of_branch, of_repository
from lakebed.quotas.meter import CACHE_MS
from lakebed.server import App, AppState
from lakebed.server.process.upkeep_loop import count_quotas
from tests.server.http.test_permissions import let_a_run_hold
from tests.server.s3.signing import allow, asked_as, keys_of

LAKE = "/repositories/lake"
QUOTAS = f"{LAKE}/quotas"
MAIN = f"{LAKE}/branches/main"
LIMIT = 1_000
SMALL, LARGE = b"s" * 10, b"l" * 2_000
S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"

Door = Callable[[httpx.AsyncClient, httpx.AsyncClient, bytes], Awaitable[httpx.Response]]


@pytest.fixture
async def lake(client: httpx.AsyncClient, repo: str) -> httpx.AsyncClient:
    """An administrator's client. `big` has the object `l`, of more bytes than any quota here has room for."""
    await client.post(f"{repo}/branches", json={"name": "big", "source": "main"})
    for path, content in (("l", LARGE), ("s", SMALL)):
        await client.post(f"{repo}/branches/big/objects", params={"path": path}, content=content)
    await client.post(f"{repo}/branches/big/commits", json={"message": "m"})
    return client


@pytest.fixture
async def s3(app: App, lake: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    with asked_as(app, await keys_of(lake, "ann", allow("fs:*"))) as client:
        yield client


async def limit(client: httpx.AsyncClient, branch: str = "main", *, limit_bytes: int = LIMIT) -> dict[str, Any]:
    answer = await client.put(QUOTAS, params={"branch": branch}, json={"limit_bytes": limit_bytes})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def used(state: AppState, client: httpx.AsyncClient, branch: str = "main") -> int:
    await state.catalog.meter.settle(is_stopping=True)
    [found] = (await client.get(QUOTAS, params={"branch": branch})).json()["results"]
    assert found["reserved_bytes"] == 0
    return int(found["used_bytes"])


async def put(client: httpx.AsyncClient, content: bytes, path: str = "p", branch: str = "main") -> httpx.Response:
    return await client.post(f"{LAKE}/branches/{branch}/objects", params={"path": path}, content=content)


# Doors


async def upload(rest: httpx.AsyncClient, _: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await put(rest, content)


async def upload_of_unknown_size(rest: httpx.AsyncClient, _: httpx.AsyncClient, content: bytes) -> httpx.Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield content[:5]
        yield content[5:]

    return await put(rest, chunks())  # type: ignore[arg-type]  # httpx takes both


async def form(rest: httpx.AsyncClient, _: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await rest.post(f"{MAIN}/objects", params={"path": "p"}, files={"content": content})


async def stage(rest: httpx.AsyncClient, _: httpx.AsyncClient, content: bytes) -> httpx.Response:
    body = {"physical_address": "mem://elsewhere/x", "checksum": "c", "size_bytes": len(content)}
    return await rest.put(f"{MAIN}/objects", params={"path": "p"}, json=body)


async def copy(rest: httpx.AsyncClient, _: httpx.AsyncClient, content: bytes) -> httpx.Response:
    body = {"src_path": "l" if content is LARGE else "s", "src_ref": "big"}
    return await rest.post(f"{MAIN}/objects/copy", params={"dest_path": "p"}, json=body)


async def s3_put(_: httpx.AsyncClient, s3: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await s3.put("/lake/main/p", content=content)


async def s3_part(_: httpx.AsyncClient, s3: httpx.AsyncClient, content: bytes) -> httpx.Response:
    begun = await s3.post("/lake/main/p?uploads")
    found = re.search(r"<UploadId>([^<]+)", begun.text)
    assert found
    part = await s3.put(f"/lake/main/p?partNumber=1&uploadId={found[1]}", content=content)
    if part.is_error:
        return part
    xml = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part.headers['etag']}</ETag></Part>"
    return await s3.post(f"/lake/main/p?uploadId={found[1]}", content=f"{xml}</CompleteMultipartUpload>".encode())


async def s3_copied_part(_: httpx.AsyncClient, s3: httpx.AsyncClient, content: bytes) -> httpx.Response:
    begun = await s3.post("/lake/main/p?uploads")
    found = re.search(r"<UploadId>([^<]+)", begun.text)
    assert found
    source = {"x-amz-copy-source": "lake/big/l" if content is LARGE else "lake/big/s"}
    part = await s3.put(f"/lake/main/p?partNumber=1&uploadId={found[1]}", headers=source)
    if part.is_error:
        return part
    etag = re.search(r"<ETag>([^<]+)", part.text)
    assert etag
    xml = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag[1]}</ETag></Part>"
    return await s3.post(f"/lake/main/p?uploadId={found[1]}", content=f"{xml}</CompleteMultipartUpload>".encode())


async def s3_copy(rest: httpx.AsyncClient, s3: httpx.AsyncClient, content: bytes) -> httpx.Response:
    """Copy from another repository: the bytes are stored once more."""
    body = {"name": "other", "storage_namespace": f"mem://{uuid4()}"}
    await rest.post("/repositories", json=body)
    await rest.post("/repositories/other/branches/main/objects", params={"path": "x"}, content=content)
    return await s3.put("/lake/main/p", headers={"x-amz-copy-source": "other/main/x"})


DOORS: tuple[Door, ...] = (upload, upload_of_unknown_size, form, stage, copy, s3_put, s3_part, s3_copied_part, s3_copy)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_no_door_forgets_the_quota_of_a_branch(
    door: Door, state: AppState, lake: httpx.AsyncClient, s3: httpx.AsyncClient
) -> None:
    await limit(lake)

    refused = await door(lake, s3, LARGE)
    passed = await door(lake, s3, SMALL)

    assert refused.status_code == 403
    assert "the quota of branch main has no room" in refused.text
    assert passed.status_code < 300, passed.text
    assert await used(state, lake) == len(SMALL)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_no_door_forgets_the_quota_of_a_user(door: Door, lake: httpx.AsyncClient, s3: httpx.AsyncClient) -> None:
    user = "ann" if door.__name__.startswith("s3") else "esti"
    (await lake.put(f"/auth/users/{user}/quota", json={"limit_bytes": LIMIT})).raise_for_status()

    refused = await door(lake, s3, LARGE)

    assert refused.status_code == 403
    assert f"the quota of user {user} has no room" in refused.text


async def test_an_address_that_a_client_stored_itself_counts_once_it_is_linked(
    state: AppState, lake: httpx.AsyncClient
) -> None:
    await limit(lake, limit_bytes=100)
    repository = await state.catalog.get("lake")

    async def link(content: bytes) -> httpx.Response:
        address = (await lake.get(f"{MAIN}/staging/backing", params={"path": "p"})).json()["physical_address"]
        await repository.objectstore.put(address.removeprefix(repository.address_prefix), content)
        body = {"staging": {"physical_address": address}, "checksum": "c", "size_bytes": len(content)}
        return await lake.put(f"{MAIN}/staging/backing", params={"path": "p"}, json=body)

    answers = [(await link(content)).status_code for content in (LARGE, b"x" * 100)]

    assert answers == [403, 200]
    issued = await lake.get(f"{MAIN}/staging/backing", params={"path": "q"})
    assert issued.status_code == 403, "nothing is left"


@pytest.mark.parametrize("whose", ["branch main", "user esti", "the repository"])
async def test_a_restore_of_what_a_run_took_counts_as_an_upload(
    whose: str, state: AppState, lake: httpx.AsyncClient
) -> None:
    await let_a_run_hold(state, "a", "b")
    match whose:
        case "branch main":
            await limit(lake, limit_bytes=5)
        case "user esti":
            (await lake.put("/auth/users/esti/quota", json={"limit_bytes": 5})).raise_for_status()
        case _:
            stored = (await lake.put(QUOTAS, json={"limit_bytes": 10_000})).json()["used_bytes"]
            (await lake.put(QUOTAS, json={"limit_bytes": stored + 5})).raise_for_status()

    page = (await lake.post(f"{LAKE}/gc/restore", json={"run_id": "r1", "overwrite": True})).json()

    assert (page["restored"], page["failed"]) == (1, 1), page
    assert f"the quota of {whose} has no room for 4 bytes" in page["failures"][0]["error"]


async def test_a_part_counts_for_the_user_who_sends_it_whoever_began_the_upload(
    app: App, lake: httpx.AsyncClient, s3: httpx.AsyncClient
) -> None:
    (await lake.put("/auth/users/ann/quota", json={"limit_bytes": LIMIT})).raise_for_status()
    with asked_as(app, await keys_of(lake, "bob", allow("fs:*"))) as bob:
        begun = await bob.post("/lake/main/p?uploads")
    found = re.search(r"<UploadId>([^<]+)", begun.text)
    assert found
    part = f"/lake/main/p?partNumber=1&uploadId={found[1]}"

    sent = await s3.put(part, content=LARGE)
    copied = await s3.put(part, headers={"x-amz-copy-source": "lake/big/l"})

    assert [("the quota of user ann" in one.text, one.status_code) for one in (sent, copied)] == [(True, 403)] * 2


async def test_a_size_below_nothing_is_refused(lake: httpx.AsyncClient) -> None:
    stated = {"checksum": "c", "size_bytes": -1}
    path = {"path": "p"}

    linked = await lake.put(f"{MAIN}/staging/backing", params=path, json={"staging": {}, **stated})
    staged = await lake.put(f"{MAIN}/objects", params=path, json={"physical_address": "mem://elsewhere/x", **stated})

    assert [(one.status_code, "/size_bytes" in one.text) for one in (linked, staged)] == [(400, True)] * 2


async def test_s3_answers_with_a_code_of_its_own(lake: httpx.AsyncClient, s3: httpx.AsyncClient) -> None:
    await limit(lake)

    answer = await s3_put(lake, s3, LARGE)

    assert "<Code>QuotaExceeded</Code>" in answer.text


async def test_a_write_that_fills_it_passes_and_the_next_does_not(state: AppState, lake: httpx.AsyncClient) -> None:
    await limit(lake, limit_bytes=2 * len(SMALL))

    answers = [(await put(lake, SMALL, f"p{number}")).status_code for number in range(3)]

    assert answers == [201, 201, 403]
    assert await used(state, lake) == 2 * len(SMALL)


async def test_deletes_commits_resets_and_a_branch_brought_back_change_nothing(
    state: AppState, lake: httpx.AsyncClient
) -> None:
    await lake.post(f"{LAKE}/branches", json={"name": "dev", "source": "main"})
    await limit(lake, "dev")
    dev = f"{LAKE}/branches/dev"
    await put(lake, SMALL, branch="dev")
    await lake.post(f"{dev}/commits", json={"message": "m"})
    await put(lake, SMALL, "q", "dev")
    await lake.delete(f"{dev}/objects", params={"path": "p"})
    await lake.put(dev, json={"type": "reset"})
    (await lake.delete(dev)).raise_for_status()
    (await lake.post(f"{dev}/undelete")).raise_for_status()

    assert await used(state, lake, "dev") == 2 * len(SMALL)
    assert (await put(lake, LARGE, branch="dev")).status_code == 403


async def test_a_failed_upload_gives_its_bytes_back(state: AppState, lake: httpx.AsyncClient) -> None:
    await limit(lake)
    path = {"path": "p"}
    await put(lake, SMALL)

    answer = await lake.post(f"{MAIN}/objects", params=path, content=SMALL, headers={"if-none-match": "*"})

    assert answer.status_code == 412
    assert await used(state, lake) == len(SMALL)


async def test_a_repository_counts_what_is_stored_and_again_when_objects_were_deleted(
    state: AppState, lake: httpx.AsyncClient
) -> None:
    answer = await lake.put(QUOTAS, json={"limit_bytes": 10_000})
    stored = len(LARGE) + len(SMALL)
    first = answer.json()["used_bytes"]
    await put(lake, SMALL)
    await state.catalog.meter.settle(is_stopping=True)
    uid = (await state.catalog.get("lake")).versions.uid
    books, scope = Books(state.catalog.meter), of_repository(uid)
    assert not await books.is_due(scope)
    await mark_stale(state.store, scope)
    assert await books.is_due(scope)

    await count_quotas(state)

    assert first == stored
    record = await books.get(scope)
    assert (record.used_bytes, record.is_stale) == (stored + len(SMALL), False)
    assert (await put(lake, b"x" * 10_000)).status_code == 403


async def test_a_user_is_limited_in_all_repositories(lake: httpx.AsyncClient, s3: httpx.AsyncClient) -> None:
    answer = await lake.put("/auth/users/ann/quota", json={"limit_bytes": LIMIT})
    assert answer.status_code == 200

    refused = await s3_put(lake, s3, LARGE)

    assert "the quota of user ann" in refused.text
    assert (await put(lake, LARGE)).status_code == 201, "another user's write"
    (await lake.delete("/auth/users/ann")).raise_for_status()
    assert (await lake.get("/auth/users/ann/quota")).status_code == 404


async def test_a_sandbox_has_its_quota_until_its_end(state: AppState, lake: httpx.AsyncClient) -> None:
    body = {"source": "main", "ttl": "2d", "quota_bytes": LIMIT}
    box = (await lake.post(f"{LAKE}/sandboxes", json=body)).json()
    uid = (await state.catalog.get("lake")).versions.uid

    assert (await put(lake, LARGE, branch=box["id"])).status_code == 403
    assert (await put(lake, SMALL, branch=box["id"])).status_code == 201

    (await lake.delete(f"{LAKE}/sandboxes/{box['id']}")).raise_for_status()
    assert await state.store.get(*of_branch(uid, box["id"])[:2]) is None
    # One that came later goes with the branch, too, and stays with one that is promoted.
    for end, is_left in (("", False), ("/promote", True)):
        box = (await lake.post(f"{LAKE}/sandboxes", json={"source": "main", "ttl": "2d"})).json()
        await limit(lake, box["id"])
        method = "POST" if end else "DELETE"
        (await lake.request(method, f"{LAKE}/sandboxes/{box['id']}{end}")).raise_for_status()
        assert (await state.store.get(*of_branch(uid, box["id"])[:2]) is not None) is is_left


async def test_who_may_not_write_quotas_sets_none(app: App, lake: httpx.AsyncClient) -> None:
    access, secret = await keys_of(lake, "bob", allow("fs:*"))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=(access, secret)) as bob:
        answers = [
            (await bob.put(QUOTAS, params={"branch": "main"}, json={"limit_bytes": 1})).status_code,
            (await bob.get(QUOTAS)).status_code,
            (await bob.delete(QUOTAS)).status_code,
            (await bob.put("/auth/users/bob/quota", json={"limit_bytes": 1 << 40})).status_code,
        ]

    assert answers == [403] * 4
    assert CACHE_MS <= 5_000, "docs/guide/quotas.md says how soon a new quota holds everywhere"


def entered(folder: str) -> tuple[Callable[[FrameType, str, object], None], Counter[str]]:
    """Return a profiler, and the functions of this package that it saw entered, with how often."""
    counts: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            counts[f"{frame.f_code.co_filename.removeprefix(folder)} {frame.f_code.co_qualname}"] += 1

    return profile, counts


async def test_a_look_runs_the_same_code_with_and_without_quotas_and_an_upload_asks_no_store_for_them(
    lake: httpx.AsyncClient,
) -> None:
    """Counted, since a time would not show some microseconds."""
    folder = str(Path(lakebed.__file__).parent) + os.sep
    numbers = itertools.count()

    async def look() -> httpx.Response:
        return await lake.get(f"{LAKE}/refs/main/objects/stat", params={"path": "p"})

    async def upload() -> httpx.Response:
        return await put(lake, SMALL, f"up/{next(numbers)}")

    async def counted(ask: Callable[[], Awaitable[httpx.Response]]) -> Counter[str]:
        """The least of several turns: caches end after some seconds, and more is called then."""
        turns = []
        for _ in range(8):
            profile, counts = entered(folder)
            sys.setprofile(profile)
            try:
                await ask()
            finally:
                sys.setprofile(None)
            turns.append(counts)
        return min(turns, key=Counter.total)

    await put(lake, SMALL)
    free = [await counted(look), await counted(upload)]
    await limit(lake, limit_bytes=1 << 40)
    await lake.put(QUOTAS, json={"limit_bytes": 1 << 40})
    await lake.put("/auth/users/esti/quota", json={"limit_bytes": 1 << 40})
    bound = [await counted(look), await counted(upload)]

    assert bound[0] == free[0]
    assert len(free[0]) > 50
    assert not [name for name in free[0] if name.startswith("quotas")]
    added = {name: count - free[1][name] for name, count in bound[1].items() if count != free[1][name]}
    assert added == {f"quotas{os.sep}meter.py Account.left": 3}
