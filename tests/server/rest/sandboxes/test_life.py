"""Sandboxes over HTTP: what a key may do, and that nothing is left of one that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from lakebed.auth import Ref
from lakebed.auth.records import PARTITION, SANDBOXES, SandboxRecord, SandboxState, decode, encode
from lakebed.base import Unavailable
from lakebed.kv import scan_prefix
from lakebed.operations.sandboxes import LENT
from lakebed.sandboxes.life import HALF_MADE_MS, rights_of
from lakebed.server import App, AppState
from tests.server.http.test_permissions import allow
from tests.server.s3.signing import asked_as, keys_of

LAKE = "/repositories/lake"
BOXES = f"{LAKE}/sandboxes"


def asking(app: App, pair: tuple[str, str]) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=pair)


@pytest.fixture
async def lake(client: httpx.AsyncClient, repo: str) -> httpx.AsyncClient:
    """An administrator's client, and a repository with a second branch `secret`."""
    await client.post(f"{repo}/branches/main/objects", params={"path": "x"}, content=b"main")
    await client.post(f"{repo}/branches/main/commits", json={"message": "m"})
    await client.post(f"{repo}/branches", json={"name": "secret", "source": "main"})
    await client.post(f"{repo}/branches/secret/objects", params={"path": "s"}, content=b"secret")
    await client.post(f"{repo}/branches/secret/commits", json={"message": "m"})
    return client


async def make(client: httpx.AsyncClient, **body: str) -> dict[str, Any]:
    answer = await client.post(BOXES, json={"source": "main", "ttl": "2d", **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@asynccontextmanager
async def holder(app: App, box: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(app, (box["access_key_id"], box["secret_access_key"])) as client:
        yield client


async def records(state: AppState) -> Counter[str]:
    """Count the records of users, by kind, and the branches."""
    found = Counter([key.split(b"/")[0].decode() async for key, _ in scan_prefix(state.store, PARTITION, b"")])
    versions = (await state.catalog.get("lake")).versions
    found["branches"] = len(await versions.context.branches.every())
    return found


async def test_a_key_reads_the_source_writes_its_branch_opens_a_pull_request_and_does_not_merge(
    lake: httpx.AsyncClient, app: App
) -> None:
    box = await make(lake, name="kim")
    branch = box["id"]
    pull = {"title": "t", "source_branch": branch, "destination_branch": "main"}
    other = (await lake.post(f"{LAKE}/pulls", json={**pull, "source_branch": "secret"})).json()["id"]
    async with holder(app, box) as kim:
        assert (await kim.get(f"{LAKE}/refs/main/objects", params={"path": "x"})).content == b"main"
        assert (await kim.get(f"{LAKE}/refs/{branch}/objects/ls")).json()["results"][0]["path"] == "x"
        done = [
            await kim.post(f"{LAKE}/branches/{branch}/objects", params={"path": "k"}, content=b"k"),
            await kim.post(f"{LAKE}/branches/{branch}/commits", json={"message": "mine"}),
            await kim.get(f"{LAKE}/refs/main/diff/{branch}"),
            await kim.post(f"{LAKE}/pulls", json=pull),
        ]
        assert [one.status_code for one in done] == [201, 201, 200, 201], done[-1].text
        opened = done[-1].json()["id"]
        assert (await kim.get(f"{LAKE}/pulls/{opened}")).json()["author"] == branch
        secret = (await lake.get(f"{LAKE}/branches/secret")).json()["commit_id"]
        refused = [
            await kim.put(f"{LAKE}/pulls/{opened}/merge"),
            await kim.patch(f"{LAKE}/pulls/{other}", json={"title": "mine"}),
            await kim.post(f"{LAKE}/pulls", json={**pull, "source_branch": "secret"}),
            await kim.post(f"{LAKE}/refs/{branch}/merge/main"),
            await kim.post(f"{LAKE}/branches/main/objects", params={"path": "k"}, content=b"k"),
            await kim.delete(f"{LAKE}/branches/{branch}"),
            await kim.post(f"{LAKE}/branches", json={"name": "b", "source": "main"}),
            await kim.get(f"{LAKE}/branches"),
            await kim.get("/repositories"),
            await kim.post(BOXES, json={"source": "main", "ttl": "2d"}),
            await kim.delete(f"{BOXES}/{branch}"),
            await kim.post(f"/auth/users/{branch}/credentials"),
        ]
        for ref in ("secret", secret):
            refused += [
                await kim.get(f"{LAKE}/refs/{ref}/objects", params={"path": "s"}),
                await kim.post(f"{LAKE}/refs/{ref}/merge/{branch}"),
                await kim.put(f"{LAKE}/branches/{branch}/hard_reset", params={"ref": ref}),
                await kim.post(f"{LAKE}/branches/{branch}/cherry-pick", json={"ref": ref}),
            ]
    assert [(one.status_code, one.url.path) for one in refused if one.status_code not in {401, 403}] == []
    assert (await lake.put(f"{LAKE}/pulls/{opened}/merge")).status_code == 200
    assert (await lake.get(f"{LAKE}/refs/main/objects", params={"path": "k"})).content == b"k"


async def test_the_key_opens_the_s3_door_as_well(lake: httpx.AsyncClient, app: App) -> None:
    box = await make(lake)
    with asked_as(app, (box["access_key_id"], box["secret_access_key"])) as kim:
        assert (await kim.put(f"/lake/{box['id']}/k", content=b"k")).status_code == 200
        assert (await kim.get("/lake/main/x")).content == b"main"
        assert (await kim.put("/lake/main/k", content=b"k")).status_code == 403
        assert (await kim.get("/lake/secret/s")).status_code == 403


async def test_sandboxes_are_listed_page_by_page(lake: httpx.AsyncClient) -> None:
    made = sorted([(await make(lake, name=name))["id"] for name in ("a", "b", "c")])

    first = (await lake.get(BOXES, params={"amount": 2})).json()
    rest = (await lake.get(BOXES, params={"after": first["pagination"]["next_offset"]})).json()
    some = (await lake.get(BOXES, params={"prefix": "sandbox-b"})).json()

    assert [one["id"] for one in first["results"] + rest["results"]] == made
    assert (first["pagination"]["has_more"], rest["pagination"]["has_more"]) == (True, False)
    assert [one["id"] for one in some["results"]] == [made[1]]


async def test_a_key_writes_no_action_files(lake: httpx.AsyncClient, app: App) -> None:
    """They have the server send its secrets anywhere, and decide which checks a merge of the branch passes."""
    checks = {"path": "_lakefs_actions/check.yaml"}
    await lake.post(f"{LAKE}/branches/main/objects", params=checks, content=b"on: {post-merge: }\nhooks: []")
    box = await make(lake)
    own = f"{LAKE}/branches/{box['id']}/objects"
    async with holder(app, box) as kim:
        await kim.post(own, params={"path": "k"}, content=b"k")
        copied = {"src_path": "k", "src_ref": box["id"]}
        refused = [
            await kim.post(own, params={"path": "_lakefs_actions/x.yaml"}, content=b"x"),
            await kim.post(f"{own}/copy", params={"dest_path": "_lakefs_actions/x.yaml"}, json=copied),
            await kim.delete(own, params=checks),
            await kim.get(f"{LAKE}/branches/{box['id']}/staging/backing", params=checks),
        ]
        many = await kim.post(f"{own}/delete", json={"paths": [*checks.values(), "k"]})
    with asked_as(app, (box["access_key_id"], box["secret_access_key"])) as kim:
        refused.append(await kim.put(f"/lake/{box['id']}/_lakefs_actions/x.yaml", content=b"x"))

    assert [(one.status_code, one.url.path) for one in refused if one.status_code not in {401, 403}] == []
    assert many.status_code == 401 or [one["path"] for one in many.json()["errors"]] == [*checks.values()]


async def test_nor_does_a_key_that_an_earlier_release_made(lake: httpx.AsyncClient, app: App, state: AppState) -> None:
    box = await make(lake)
    key = SANDBOXES + box["id"].encode()
    held = await state.store.get(PARTITION, key)
    assert held is not None
    record = decode(SandboxRecord, held.value)
    older = tuple(one for one in record.statements if "_lakefs_actions" not in one.resource)
    assert len(older) == len(record.statements) - 1
    await state.store.set(PARTITION, key, encode(replace(record, statements=older)))

    own = f"{LAKE}/branches/{box['id']}/objects"
    async with holder(app, box) as kim:
        refused = await kim.post(own, params={"path": "_lakefs_actions/x.yaml"}, content=b"x")
        written = await kim.post(own, params={"path": "k"}, content=b"k")

    assert (refused.status_code, written.status_code) == (401, 201)


async def test_a_key_brings_no_earlier_action_files_back(lake: httpx.AsyncClient, app: App) -> None:
    """Else a branch could lose its checks by a revert of the commit that brought them, or a reset to the one before."""
    for name in ("check", "more"):
        checks = {"path": f"_lakefs_actions/{name}.yaml"}
        await lake.post(f"{LAKE}/branches/main/objects", params=checks, content=b"on: {post-merge: }\nhooks: []")
        assert (await lake.post(f"{LAKE}/branches/main/commits", json={"message": "m"})).status_code == 201
    box = await make(lake)
    own = f"{LAKE}/branches/{box['id']}"
    async with holder(app, box) as kim:
        refused = [
            await kim.post(f"{own}/revert", json={"ref": f"{box['id']}~1", "parent_number": 0}),
            await kim.put(f"{own}/hard_reset", params={"ref": f"{box['id']}~1"}),
            await kim.post(f"{own}/cherry-pick", json={"ref": "main~1"}),
        ]
        await kim.post(f"{own}/objects", params={"path": "k"}, content=b"k")
        await kim.post(f"{own}/commits", json={"message": "k"})
        done = [
            await kim.post(f"{own}/revert", json={"ref": box["id"], "parent_number": 0}),
            await kim.post(f"{own}/cherry-pick", json={"ref": f"{box['id']}~1"}),
            await kim.put(f"{own}/hard_reset", params={"ref": "main"}),
        ]

    assert [(one.status_code, one.url.path) for one in refused if one.status_code not in {401, 403}] == []
    assert [one.status_code for one in done] == [204, 201, 204]


async def test_a_sandbox_lends_no_right_that_its_maker_lacks(lake: httpx.AsyncClient, app: App) -> None:
    hidden = allow("fs:ReadObject", resource="arn:lakefs:fs:::repository/lake/object/x", effect="deny")
    rest = ("fs:ReadRepository", "fs:ReadBranch", "fs:ReadTag", "fs:ReadCommit", "fs:ListCommits", "fs:ListObjects")
    narrow = [allow("sandbox:*", *rest, "fs:CreateBranch", "pr:*")]
    async with asking(app, await keys_of(lake, "ann", *narrow)) as ann:
        answer = await ann.post(BOXES, json={"source": "main", "ttl": "2d"})
        assert (answer.status_code, "fs:ReadObject" in answer.text) == (403, True), answer.text
    async with asking(app, await keys_of(lake, "bob", allow("fs:*", "pr:*", "sandbox:*"), hidden)) as bob:
        box = await make(bob)
        assert (await bob.post(BOXES, json={"source": "secret", "ttl": "2d"})).status_code == 201
    async with holder(app, box) as kim:
        assert (await kim.get(f"{LAKE}/refs/main/objects", params={"path": "x"})).status_code == 401
        assert (await kim.get(f"{LAKE}/refs/main/objects/ls")).status_code == 200


NEVER = {"DateLessThan": {"CurrentTime": ["2001-01-01"]}}
EVERYTHING = ("fs:*", "pr:*", "sandbox:*")


@pytest.mark.parametrize(
    "condition",
    [
        {"IpAddress": {"SourceIp": ["0.0.0.0/0"]}},
        {"DateLessThan": {"CurrentTime": ["2900-01-01"]}},
    ],
)
async def test_a_right_for_some_addresses_or_times_is_not_lent(
    lake: httpx.AsyncClient, app: App, condition: dict[str, Any]
) -> None:
    """The key would have it from everywhere, and until the sandbox ends."""
    passing = {**allow("fs:ReadObject"), "condition": condition}
    rest = [allow(*EVERYTHING, resource="arn:lakefs:fs:::repository/lake"), allow("fs:C*", "fs:*B*", "fs:*Tag")]
    rest += [allow("fs:WriteObject", "fs:DeleteObject"), {**allow("fs:Read*", effect="deny"), "condition": NEVER}]
    async with asking(app, await keys_of(lake, "ann", *rest, passing)) as ann:
        assert (await ann.get(f"{LAKE}/refs/main/objects", params={"path": "x"})).status_code == 200
        answer = await ann.post(BOXES, json={"source": "main", "ttl": "2d"})
        assert (answer.status_code, "fs:ReadObject" in answer.text) == (403, True), answer.text
    async with asking(app, await keys_of(lake, "bob", *rest, allow("fs:ReadObject"))) as bob:
        await make(bob)


async def test_who_lost_a_right_extends_no_sandbox_that_has_it(lake: httpx.AsyncClient, app: App) -> None:
    async with asking(app, await keys_of(lake, "ann", allow(*EVERYTHING))) as ann:
        extend = f"{BOXES}/{(await make(ann))['id']}/extend"
        assert (await ann.post(extend, json={"ttl": "3d"})).status_code == 200
        left = [allow(*EVERYTHING), allow("fs:ReadObject", effect="deny")]
        assert (await lake.put("/auth/policies/ann", json={"id": "ann", "statement": left})).status_code == 200
        assert (await ann.post(extend, json={"ttl": "4d"})).status_code == 403
    assert (await lake.post(extend, json={"ttl": "4d"})).status_code == 200


def test_the_key_gets_no_action_that_its_maker_is_not_asked_for() -> None:
    rights = rights_of("lake", "sandbox-kim", Ref.of_branch("main"))
    given = {action for one in rights if one.effect == "allow" for action in one.actions}

    assert given - {asked.action for asked in LENT} == set()


async def test_of_an_ended_sandbox_nothing_is_left_and_its_key_opens_nothing(
    lake: httpx.AsyncClient, app: App, state: AppState
) -> None:
    before = await records(state)
    box, kept = await make(lake), await make(lake)
    async with holder(app, box) as kim:
        written = await kim.post(f"{LAKE}/branches/{box['id']}/objects", params={"path": "k"}, content=b"k")
        assert written.status_code == 201
        login = {"access_key_id": box["access_key_id"], "secret_access_key": box["secret_access_key"]}
        assert (await kim.post("/auth/login", json=login)).status_code == 200
        assert [one["id"] for one in (await lake.get(BOXES)).json()["results"]] == sorted([box["id"], kept["id"]])
        assert (await lake.delete(f"{BOXES}/{box['id']}")).json() == {"id": box["id"], "branch_kept": ""}
        assert (await kim.get(f"{LAKE}/refs/main/objects", params={"path": "x"})).status_code == 401
        assert (await kim.get("/user")).status_code == 401
    assert (await lake.delete(f"{BOXES}/{box['id']}")).status_code == 404
    # Promoted: the key is gone, and the branch stays.
    assert (await lake.post(f"{BOXES}/{kept['id']}/promote")).json()["branch_kept"] == "it was promoted"
    assert (await lake.get(f"{LAKE}/branches/{kept['id']}")).status_code == 200
    await lake.delete(f"{LAKE}/branches/{kept['id']}")

    assert await records(state) == before

    # Undeleted as any branch, and no business of upkeep.
    assert (await lake.post(f"{LAKE}/branches/{box['id']}/undelete")).status_code < 300
    await state.sandboxes.clean()
    assert (await lake.get(f"{LAKE}/branches/{box['id']}")).status_code == 200


async def change(server: AppState, id_: str, **changes: Any) -> None:
    """Alter the record of a sandbox, as if time had passed or a process had died."""
    held = await server.store.get(PARTITION, SANDBOXES + id_.encode())
    assert held is not None
    record = replace(decode(SandboxRecord, held.value), **changes)
    await server.store.set(PARTITION, SANDBOXES + id_.encode(), encode(record))
    server.authorizer.forget_all()


async def test_upkeep_ends_what_has_expired_and_a_key_ends_at_its_time(
    lake: httpx.AsyncClient, app: App, state: AppState
) -> None:
    before = await records(state)
    box, longer = await make(lake), await make(lake, ttl="1h")
    assert (await lake.post(f"{BOXES}/{longer['id']}/extend", json={"ttl": "3d"})).status_code == 200
    assert (await lake.post(f"{BOXES}/{longer['id']}/extend", json={"ttl": "1d"})).status_code == 400
    assert (await lake.post(f"{BOXES}/{longer['id']}/extend", json={"ttl": "forever"})).status_code == 400
    await change(state, box["id"], expires_ms=1)
    async with holder(app, box) as kim:
        assert (await kim.get(f"{LAKE}/refs/main/objects", params={"path": "x"})).status_code == 401
    assert (await lake.post(f"{BOXES}/{box['id']}/extend", json={"ttl": "3d"})).status_code == 409

    await state.sandboxes.clean()

    assert [one["id"] for one in (await lake.get(BOXES)).json()["results"]] == [longer["id"]]
    assert (await lake.get(f"{LAKE}/branches/{box['id']}")).status_code == 404
    # A branch that goes takes its sandbox along, at once and by any way.
    assert (await lake.delete(f"{LAKE}/branches/{longer['id']}")).status_code == 204
    assert await records(state) == before
    other = await make(lake)
    await (await state.catalog.get("lake")).versions.refs.delete_branch(other["id"])
    await state.sandboxes.clean()
    assert await records(state) == before


async def test_a_repository_or_a_sandbox_that_fails_keeps_none_behind_it_alive(
    lake: httpx.AsyncClient, state: AppState, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.post("/repositories", json={"name": "broken", "storage_namespace": namespace + "-2"})
    boxes = [await make(lake, name=name) for name in ("a", "b", "c")]
    answer = await lake.post("/repositories/broken/sandboxes", json={"source": "main", "ttl": "2d", "name": "0"})
    assert answer.status_code == 201, answer.text
    for box in boxes[:2]:
        await change(state, box["id"], expires_ms=1)
    await (await state.catalog.get("lake")).versions.refs.delete_branch(boxes[2]["id"])
    get, delete = state.catalog.get, state.accounts.delete_sandbox_user

    async def failing_get(name: str) -> Any:
        if name == "broken":
            raise Unavailable("its storage is gone")
        return await get(name)

    async def failing_delete(record: SandboxRecord) -> None:
        if record.id == boxes[0]["id"]:
            raise Unavailable("for this one")
        await delete(record)

    monkeypatch.setattr(state.catalog, "get", failing_get)
    monkeypatch.setattr(state.accounts, "delete_sandbox_user", failing_delete)
    await state.sandboxes.clean()
    shown = {one["id"]: one["state"] for one in (await lake.get(BOXES)).json()["results"]}
    assert shown == {boxes[0]["id"]: "ending"}

    monkeypatch.undo()
    await state.sandboxes.clean()
    assert (await lake.get(BOXES)).json()["results"] == []


async def test_what_is_half_made_ends_and_stays_on_record_until_no_request_can_make_it(
    lake: httpx.AsyncClient, app: App, state: AppState
) -> None:
    before = await records(state)
    box = await make(lake)
    now_ms = state.ports.clock.now_ms()
    await change(state, box["id"], state=SandboxState.CREATING)
    await state.sandboxes.clean()
    assert (await lake.get(f"{BOXES}/{box['id']}")).json()["state"] == "creating"
    async with holder(app, box) as kim:
        assert (await kim.get(f"{LAKE}/refs/main/objects", params={"path": "x"})).status_code == 401

    await change(state, box["id"], created_ms=now_ms - HALF_MADE_MS)
    await state.sandboxes.clean()

    assert (await lake.get(f"{BOXES}/{box['id']}")).json()["state"] == "ending"
    assert (await lake.get(f"{LAKE}/branches/{box['id']}")).status_code == 404
    await change(state, box["id"], ending_ms=now_ms - HALF_MADE_MS)
    await state.sandboxes.clean()
    assert await records(state) == before


async def test_a_repository_that_is_deleted_takes_its_sandboxes_along(
    lake: httpx.AsyncClient, app: App, namespace: str
) -> None:
    box = await make(lake)
    assert (await lake.delete(LAKE)).status_code == 204
    again = {"name": "lake", "storage_namespace": namespace + "-2"}
    assert (await lake.post("/repositories", json=again)).status_code == 201
    async with holder(app, box) as kim:
        assert (await kim.get(f"{LAKE}/refs/main/objects/ls")).status_code == 401
    assert (await lake.get(BOXES)).json()["results"] == []


async def test_a_key_reads_no_repository_that_has_the_name_of_its_own_before_upkeep_has_looked(
    lake: httpx.AsyncClient, app: App, namespace: str, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await make(lake)

    async def fail(_: str = "") -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(state.sandboxes, "clean", fail)
    assert (await lake.delete(LAKE)).status_code == 204
    again = {"name": "lake", "storage_namespace": namespace + "-2"}
    assert (await lake.post("/repositories", json=again)).status_code == 201
    async with holder(app, box) as kim:
        assert (await kim.get(f"{LAKE}/refs/main/objects/ls")).status_code == 401


async def test_a_branch_is_deleted_though_its_sandbox_cannot_end_yet(
    lake: httpx.AsyncClient, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await make(lake)

    async def fail(_: SandboxRecord) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(state.accounts, "delete_sandbox_user", fail)
    assert (await lake.delete(f"{LAKE}/branches/{box['id']}")).status_code == 204
    monkeypatch.undo()
    await state.sandboxes.clean()
    assert (await lake.get(BOXES)).json()["results"] == []


async def test_the_user_of_a_sandbox_gets_rights_from_nowhere_else(lake: httpx.AsyncClient) -> None:
    user = (await make(lake))["id"]
    refused = [
        await lake.put(f"/auth/groups/Admins/members/{user}"),
        await lake.put(f"/auth/users/{user}/policies/AllAccess"),
        await lake.post(f"/auth/users/{user}/credentials"),
        await lake.delete(f"/auth/users/{user}"),
    ]
    assert [one.status_code for one in refused] == [403] * 4
    assert "sandbox" in refused[0].text
    shown = (await lake.get(f"/auth/users/{user}/policies")).json()["results"]
    assert [one["id"] for one in shown] == ["sandbox"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"source": "nosuch", "ttl": "2d"}, 404),
        ({"source": "main", "ttl": "soon"}, 400),
        ({"source": "main", "ttl": "2y"}, 400),
        ({"source": "main", "ttl": "400d"}, 400),
        ({"source": "main", "ttl": "2d", "name": "a/b"}, 400),
        ({"source": "main"}, 400),
    ],
)
async def test_what_is_refused_leaves_nothing(
    lake: httpx.AsyncClient, state: AppState, body: dict[str, str], status: int
) -> None:
    before = await records(state)
    answer = await lake.post(BOXES, json=body)
    assert answer.status_code == status, answer.text
    assert await records(state) == before
