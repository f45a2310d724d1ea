"""Conditions of policies at every door: no operation forgets the branch, the tag or the ref that it reads or writes."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec.inspect
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.auth import UNKNOWN_REF, Circumstances, Identity, NotPermitted, Permissions, Ref
from lakebed.auth.permissions.statements import Statement
from lakebed.operations import AnyOperation
from lakebed.operations.objects import STAT_OBJECT
from lakebed.operations.table import OPERATIONS, OURS
from lakebed.server import App, AppState
from lakebed.server.hooks import ScriptReads
from lakebed.server.http.gate import Gate, permissions_of
from lakebed.server.http.requests import RestRequest
from tests.auth.permissions.test_conditions import SEEN, STATEMENTS, naive
from tests.server.http.test_permissions import allow, let_a_run_hold, message_of, url_of
from tests.server.s3.signing import asked_as, keys_of
from tests.server.s3.test_gateway import ROUTES, SENT
from tests.server.web.browsing import HOME, Browser

LAKE = "arn:lakefs:fs:::repository/lake"
SPELLED = {
    "branch": ("secret",),
    "tag": ("hush",),
    "ref": ("secret", "secret~0", "secret^0", "secret@", "secret$", "secret@{0}", "hush", "hush~0"),
}
BODIES: dict[str, dict[str, Any]] = {
    "createBranch": {"name": "made", "source": "main"},
    "createTag": {"id": "made", "ref": "main"},
    "resetBranch": {"type": "reset"},
    "revertBranch": {"ref": "main", "parent_number": 0, "allow_empty": True},
    "cherryPick": {"ref": "main"},
    "commit": {"message": "m", "allow_empty": True},
    "mergeIntoBranch": {"allow_empty": True},
    "copyObject": {"src_path": "x", "src_ref": "main"},
    "moveObject": {"src_path": "x", "src_branch": "main"},
    "deleteObjects": {"paths": ["x"]},
    "stageObject": {"physical_address": "mem://x/y", "checksum": "x", "size_bytes": 1},
    "linkPhysicalAddress": {"staging": {}, "checksum": "x", "size_bytes": 1},
    "updateObjectUserMetadata": {"set": {}},
    "completePresignMultipartUpload": {"physical_address": "", "parts": []},
    "uploadPartCopy": {"copy_source": {"repository": "lake", "ref": "main", "path": "x"}},
    "importStart": {"paths": [{"type": "object", "path": "mem://x/y", "destination": "y"}], "commit": {"message": "m"}},
    "createNamespace": {"namespace": ["x"]},
    "createTable": {"name": "x", "schema": {"type": "struct", "fields": []}},
    "registerTable": {"name": "x", "metadata-location": "s3://lake.tables/x"},
    "commitTable": {"requirements": [], "updates": []},
    "commitTables": {
        "table-changes": [{"identifier": {"namespace": ["x"], "name": "x"}, "requirements": [], "updates": []}]
    },
    "renameTable": {
        "source": {"namespace": ["x"], "name": "x"},
        "destination": {"namespace": ["x"], "name": "y"},
    },
    "createPullRequest": {"title": "t", "source_branch": "main", "destination_branch": "open"},
    "createSandbox": {"source": "main", "ttl": "2d"},
    "restoreGcObjects": {"run_id": "r1", "branch": "main"},
    "sweepBranches": {"policy_version": 1, "branches": [{"branch": "main", "commit_id": "x"}]},
}
SOURCES = {
    "createBranch": "source",
    "createTag": "ref",
    "createSandbox": "source",
    "hardResetBranch": "ref",
    "cherryPick": "ref",
    "revertBranch": "ref",
    "mergeIntoBranch": "sourceRef",
}
"""Where an operation names the ref whose commit it puts elsewhere. What denies counts, and what allows need not."""
INNER = {"uploadPartCopy": "copy_source", "sweepBranches": "branches"}
"""Refs that lie deeper in a body."""
APART = {
    "createEventSubscription",
    "listEvents",
    "extendSandbox",
    "listBranches",
    "listCatalogs",
    "mergePullRequest",
    "restoreGcObjects",
    "sweepBranches",
}
"""They hold a ref for each row or of a record, and other tests ask them."""
IN_DOUBT = {"restoreRefs", "restoreSubmit", "restoreStatus", "getMetaRange", "getRange", "getMetadataObject"}
"""They read or write refs that they do not name."""
NOT_HELD = {
    # A question about policies.
    "decide": {"branch", "tag", "ref"},
    # Settings and lists of a repository, by pattern or as a filter. No object and no commit is in their answers.
    "createRepository": {"default_branch"},
    "createPullRequest": {"destination_branch"},
    "listRepositoryRuns": {"branch", "commit"},
    "listQuotas": {"branch"},
    "setQuota": {"branch"},
    "removeQuota": {"branch"},
    "explainGcRules": {"branch"},
    # A number of commits.
    "lastCommits": {"commits"},
    # A pattern that filters events, each of which is held by its own ref.
    "listEvents": {"ref"},
    "setDeleteProtection": {"branches"},
    "setGCRules": {"branches"},
    "internalSetGarbageCollectionRules": {"branches"},
    "setFullGcRules": {"branches", "commits"},
    "tryGcRules": {"branches", "commits"},
    "addLegalHold": {"commits", "tags"},
    # Steps of a collector, which names commits by id.
    "expireGcCommits": {"commits"},
    "sweepGcRun": {"commits"},
    "CreateCommitRecord": {"commit_id"},
    "unstageGcEntries": {"branch", "source"},
    "startGcJob": {"branches", "commits"},
    # Namespaces and tables, which lie below the ref of the address.
    "listCatalogs": {"parent"},
    "listNamespaces": {"parent"},
    "renameTable": {"source"},
    # Held row by row, or below another name.
    "sweepBranches": {"branches"},
    "importStart": {"commit"},
}
"""Values that are called like refs and that no condition sees (docs/guide/users.md)."""


def deny(condition: dict[str, Any], *actions: str) -> dict[str, Any]:
    return {**allow(*(actions or ("*",)), effect="deny"), "condition": condition}


DENIED = [allow("*"), deny({"StringEquals": {"branch": ["secret"]}}), deny({"StringEquals": {"tag": ["hush"]}})]
ELSEWHERE = [{**allow("*"), "condition": {"StringNotEquals": {"ref": ["secret", "hush"]}}}]


@pytest.fixture
async def lake(client: httpx.AsyncClient, repo: str) -> httpx.AsyncClient:
    """An administrator's client, and a repository with a branch `secret` and a tag `hush` on it."""
    for branch in ("main", "secret"):
        if branch != "main":
            await client.post(f"{repo}/branches", json={"name": branch, "source": "main"})
        await client.post(f"{repo}/branches/{branch}/objects", params={"path": "x"}, content=branch.encode())
        made = await client.post(f"{repo}/branches/{branch}/commits", json={"message": branch})
        assert made.status_code == 201, made.text
    await client.post(f"{repo}/tags", json={"id": "hush", "ref": "secret"})
    await client.post(f"{repo}/tags", json={"id": "open", "ref": "main"})
    return client


def asking(app: App, pair: tuple[str, str], address: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=pair)


def places_of(operation: AnyOperation) -> Iterator[tuple[str, str, bool]]:
    """The values of a request that name a ref, the kind of each, and whether an allow is needed there."""
    for permission in operation.permissions or ():
        for at in permission.at:
            if at.name:
                yield at.name, at.kind, True
    if operation.id in SOURCES:
        yield SOURCES[operation.id], "ref", False
    if operation.id == "uploadPartCopy":
        yield "copy_source", "ref", True


async def request_of(caller: httpx.AsyncClient, operation: AnyOperation, place: str, value: str) -> httpx.Response:
    """Ask for an operation on `main` and `open`, and on this value at this one place."""
    given = {"repository": "lake", "tag": "open", "path": "x", "dest_path": "y", "id": "x", "address": ""}
    arguments = [value if one == place else given.get(one, "main") for one in operation.arguments]
    path = url_of(operation, operation.path_of(*(quote(one, safe="") for one in arguments)))
    params = {
        one.name: given.get(one.name, "main") for one in operation.parameters if one.is_required or one.name == "ref"
    }
    body = BODIES.get(operation.id, {}).copy() if operation.method != "GET" else None
    if place in {one.name for one in operation.parameters}:
        params[place] = value
    elif place == "copy_source" and body is not None:
        body[place] = {**body[place], "ref": value}
    elif place not in operation.arguments and body is not None:
        body[place] = value
    return await caller.request(operation.method, path, params=params, json=body)


def is_refused(operation: AnyOperation, answer: httpx.Response) -> bool:
    if operation.method == "HEAD":
        return answer.status_code == (403 if operation in OURS else 401)
    status = 403 if operation in OURS else 401
    return answer.status_code == status and message_of(answer).startswith("insufficient permissions: ")


def fields_of(kind: msgspec.inspect.Type) -> Iterator[str]:
    """The names of all fields of a record, and of records in it."""
    if isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            yield field.name
            yield from fields_of(field.type)
    for inner in ("item_type", "value_type"):
        if hasattr(kind, inner):
            yield from fields_of(getattr(kind, inner))
    for part in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from fields_of(part)


def test_every_value_that_names_a_ref_is_held_by_a_permission() -> None:
    """However deep in a body it lies, and also where an operation asks for no permission at all."""
    words = re.compile(
        r"(?i)(^|_)ref$|Ref$|branch(es)?$|^tags?$|commit(s|_?id)?$|^stop_at$"
        "|^(base|from|head|left|onto|parent|right|source|start)$"
    )
    for operation in OPERATIONS:
        fields = [*operation.arguments, *(one.name for one in operation.parameters)]
        if operation.body not in (None, bytes):
            fields += fields_of(msgspec.inspect.type_info(operation.body))
        named = {one for one in fields if words.search(one)}
        held = {name for permission in operation.permissions or () for at in permission.at for name in at[:3:2]}
        held |= {at.name for permission in operation.asked_later for at in permission.at}
        held.add(SOURCES.get(operation.id, ""))
        assert named - held == NOT_HELD.get(operation.id, set()) - held, operation.id


def test_the_walk_below_knows_every_permission_that_is_about_a_ref() -> None:
    about = {one.id for one in OPERATIONS for each in (*(one.permissions or ()), *one.asked_later) if each.at}
    walked = {one.id for one in OPERATIONS if any(True for _ in places_of(one))}

    assert about - walked == APART | IN_DOUBT


async def test_no_operation_forgets_a_ref_however_it_is_spelled(lake: httpx.AsyncClient, app: App) -> None:
    """The same request is let through where every ref is another one: so it is this ref that is refused."""
    walked = [one for one in OPERATIONS if any(True for _ in places_of(one))]
    assert len(walked) > 50
    async with (
        asking(app, await keys_of(lake, "ann", *DENIED)) as ann,
        asking(app, await keys_of(lake, "bob", *ELSEWHERE)) as bob,
    ):
        for operation in walked:
            for place, kind, needs_allow in places_of(operation):
                for value in SPELLED[kind]:
                    for caller in (ann, bob) if needs_allow else (ann,):
                        answer = await request_of(caller, operation, place, value)
                        assert is_refused(operation, answer), (operation.id, place, value, answer.text)
        # What deletes comes last.
        for operation in sorted(walked, key=lambda one: (one.method == "DELETE", one.id.startswith("forget"))):
            for caller in (ann, bob):
                answer = await request_of(caller, operation, "", "")
                assert not is_refused(operation, answer), (operation.id, answer.text)


NOW_NAMED = {
    "main": Ref.of_branch("main"),
    "sandbox-1": Ref.of_branch("sandbox-1"),
    "v1": Ref.of_tag("v1"),
    "f00d": Ref(ref="f00d"),
    "gone": UNKNOWN_REF,
}


def gate_lets_in(gate: Gate, user: Permissions, ref: str, path: str) -> bool:
    request = RestRequest({"type": "http", "headers": [], "query_string": f"path={quote(path, safe='')}".encode()})
    request.args, request.parameters = ["lake", ref], {"path"}
    try:
        gate.admit(request, user).send(None)  # No look-up of this test has to wait.
    except StopIteration:
        return True
    except NotPermitted:
        return False
    raise AssertionError("the gate waits")


@given(
    statements=st.lists(STATEMENTS, max_size=5),
    asked=st.lists(
        st.tuples(st.sampled_from(SEEN), st.sampled_from([*NOW_NAMED]), st.sampled_from(["a", "b/c"]), st.booleans()),
        min_size=4,
        max_size=8,
    ),
)
def test_the_gate_of_a_read_answers_as_the_naive_evaluator_whatever_its_last_request_was(
    statements: list[Statement], asked: list[tuple[Circumstances, str, str, bool]]
) -> None:
    """Callers at several addresses share one user's permissions, and a name may be another ref the next time."""
    gate, user, named = Gate(STAT_OBJECT), Permissions("1", statements), dict(NOW_NAMED)
    is_at_once = False

    def look(_: str, name: str) -> Ref | Awaitable[Ref]:
        return named[name] if is_at_once else later(name)

    async def later(name: str) -> Ref:
        return named[name]

    under = {seen: user.under(replace(seen, look=look)) for seen in SEEN}
    for seen, name, path, at_once in asked:
        is_at_once = at_once
        expected = naive(statements, "fs:ReadObject", f"{LAKE}/object/{path}", named[name], seen)
        assert gate_lets_in(gate, under[seen], name, path) is expected
        # From now on a tag has the name.
        named[name] = Ref.of_tag(name)


async def test_a_table_is_registered_by_one_alone_who_may_read_its_file(lake: httpx.AsyncClient, app: App) -> None:
    """All files of tables lie on one branch, whichever branch the table is on."""
    [register] = [one for one in OPERATIONS if one.id == "registerTable"]
    hides = deny({"StringEquals": {"branch": ["tables"]}}, "fs:ReadObject")
    async with (
        asking(app, await keys_of(lake, "ann", allow("*"), hides)) as ann,
        asking(app, await keys_of(lake, "bob", *DENIED)) as bob,
    ):
        refused, taken = [await request_of(caller, register, "", "") for caller in (ann, bob)]

    assert is_refused(register, refused), refused.text
    assert not is_refused(register, taken), taken.text


async def test_the_catalog_asks_for_what_its_paths_do_not_name(lake: httpx.AsyncClient, app: App) -> None:
    """A warehouse, a parent namespace and a namespace's settings are named by queries and bodies."""
    catalog, namespaces = "http://localhost/iceberg/v1", "http://localhost/iceberg/v1/namespaces"

    def of(parent: str) -> str:
        return f"{namespaces}?parent={quote(parent, safe='')}"

    async with asking(app, await keys_of(lake, "eve", allow("fs:ListRepositories"))) as eve:
        for url in (f"{catalog}/config?warehouse=lake/main", of("lake"), of("lake\x1fmain")):
            assert (await eve.get(url)).status_code == 403, url
        assert (await eve.get(namespaces)).json()["namespaces"] == []
    async with asking(app, await keys_of(lake, "fay", allow("fs:ReadRepository"))) as fay:
        assert (await fay.get(namespaces)).json()["namespaces"] == [["lake"]]
        assert (await fay.get(f"{catalog}/config?warehouse=lake/main")).status_code == 200
        assert (await fay.get(of("lake"))).status_code == 403
    async with asking(app, await keys_of(lake, "ann", *DENIED)) as ann:
        for ref, status in (("main", 200), ("secret", 403), ("secret~0", 403), ("hush", 403)):
            assert (await ann.get(of(f"lake\x1f{ref}"))).status_code == status, ref
    async with asking(app, await keys_of(lake, "gil", allow("fs:CreateCommit"))) as gil:
        answer = await gil.post(f"{catalog}/lake.main/namespaces", json={"namespace": ["n"]})
        assert answer.status_code == 403, answer.text


async def test_what_touches_refs_that_it_does_not_name_is_in_doubt(lake: httpx.AsyncClient, app: App) -> None:
    restored = {"commits_meta_range_id": "x", "tags_meta_range_id": "x", "branches_meta_range_id": "x"}

    async with asking(app, await keys_of(lake, "ann", *DENIED)) as ann:
        for method, path in (("PUT", "refs/restore"), ("POST", "restore")):
            assert (
                "insufficient permissions"
                in (await ann.request(method, f"/repositories/lake/{path}", json=restored)).text
            )
        for file in ("meta_range/x", "range/x", "object/range/x"):
            assert "insufficient permissions" in (await ann.get(f"/repositories/lake/metadata/{file}")).text
        tree = {"source_metarange": "x"}
        assert (
            "insufficient permissions"
            in (await ann.post("/repositories/lake/branches/main/commits", params=tree, json={"message": "m"})).text
        )
        # Neither a branch nor a tag, and no commit: it could be one of them a moment later.
        for ref in ("nosuch", "0000000000", "main@{0}~0", "~1"):
            answer = await ann.get(f"/repositories/lake/refs/{quote(ref, safe='')}/objects", params={"path": "x"})
            assert ("insufficient" in answer.text) == (ref != "main@{0}~0"), (ref, answer.text)


async def test_a_commit_id_names_no_branch(lake: httpx.AsyncClient, app: App) -> None:
    """So one who may read some branches alone reads none of it, and a denial of a branch does not cover it."""
    only = {**allow("fs:*"), "condition": {"StringLike": {"branch": ["main", "side-*"]}}}
    taken = (await lake.get("/repositories/lake/branches/secret")).json()["commit_id"]
    path = {"path": "x"}

    async with (
        asking(app, await keys_of(lake, "ann", *DENIED)) as ann,
        asking(app, await keys_of(lake, "cat", only)) as cat,
    ):
        for ref in (taken, taken[:20]):
            assert (await ann.get(f"/repositories/lake/refs/{ref}/objects", params=path)).content == b"secret"
            assert (await cat.get(f"/repositories/lake/refs/{ref}/objects", params=path)).status_code == 401
        for ref in ("secret", "hush", "open"):
            assert (await cat.get(f"/repositories/lake/refs/{ref}/objects", params=path)).status_code == 401
        assert (await cat.get("/repositories/lake/refs/main/objects", params=path)).content == b"main"
        # By `ref` a denial covers the commit itself, also by the beginning of its id.
        async with asking(app, await keys_of(lake, "dee", allow("*"), deny({"StringEquals": {"ref": [taken]}}))) as dee:
            for ref in (taken, taken[:20]):
                assert (await dee.get(f"/repositories/lake/refs/{ref}/objects", params=path)).status_code == 401


async def test_lists_show_of_each_branch_what_its_reader_may_see(
    lake: httpx.AsyncClient, app: App, state: AppState
) -> None:
    await let_a_run_hold(state, "held/a")
    hides = deny({"StringEquals": {"branch": ["secret"]}}, "fs:ReadCommit", "fs:ReadObject", "fs:WriteObject")
    pull = {"title": "t", "source_branch": "secret", "destination_branch": "main"}
    opened = (await lake.post("/repositories/lake/pulls", json=pull)).json()["id"]

    async with asking(app, await keys_of(lake, "ann", allow("*"), hides)) as ann:
        branches = (await ann.get("/repositories/lake/branches", params={"details": "true"})).json()["results"]
        shown = (await ann.get("/repositories/lake/refs/secret/objects/ls")).json()["results"]
        others = (await ann.get("/repositories/lake/refs/main/objects/ls")).json()["results"]
        changed = await ann.get("/repositories/lake/refs/main/diff/secret", params={"include_right_stats": "true"})
        restored = await ann.post("/repositories/lake/gc/restore", json={"run_id": "r1", "branch": "secret"})

    assert [(one["id"], "commit_message" in one) for one in branches] == [("main", True), ("secret", False)]
    assert [one["checksum"] for one in shown if one["path"] == "x"] == [""]
    assert all(one["checksum"] for one in others)
    assert [one.get("right") for one in changed.json()["results"] if one["path"] == "x"] == [None]
    assert (restored.json()["restored"], restored.json()["failed"]) == (0, 1)
    async with asking(app, await keys_of(lake, "bob", *DENIED)) as bob:
        assert (await bob.put(f"/repositories/lake/pulls/{opened}/merge")).status_code == 401
        swept = {"policy_version": 1, "branches": [{"branch": "secret", "commit_id": "x", "due_ms": 1}]}
        answer = await bob.post("/repositories/lake/lifecycle/branches/sweep", json=swept)
        assert answer.status_code in {400, 403}, answer.text


async def test_a_user_who_has_a_box_of_their_own_gets_nothing_from_elsewhere_into_it(
    lake: httpx.AsyncClient, app: App
) -> None:
    """The policy that docs/guide/users.md shows."""
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "users.md").read_text()
    [policy] = [text for text in re.findall(r"```json\n(.+?)```", guide, re.DOTALL) if "box-${user}-*" in text]
    taken = (await lake.get("/repositories/lake/branches/secret")).json()["commit_id"]
    repo = "/repositories/lake"

    async with asking(app, await keys_of(lake, "kim", *json.loads(policy))) as kim:
        made = await kim.post(f"{repo}/branches", json={"name": "box-kim-1", "source": "main"})
        assert made.status_code == 201, made.text
        assert (await kim.post(f"{repo}/branches/box-kim-1/objects?path=k", content=b"x")).status_code == 201
        assert (await kim.post(f"{repo}/branches/box-kim-1/commits", json={"message": "m"})).status_code == 201
        assert (await kim.get(f"{repo}/refs/main/diff/box-kim-1")).status_code == 200
        assert (await kim.post(f"{repo}/refs/main/merge/box-kim-1")).status_code != 401
        refused = [
            await kim.post(f"{repo}/branches", json={"name": "box-ann-1", "source": "main"}),
            await kim.post(f"{repo}/branches/main/objects?path=k", content=b"x"),
            await kim.post(f"{repo}/refs/box-kim-1/merge/main"),
            await kim.delete(f"{repo}/branches/main"),
            await kim.post(f"{repo}/tags", json={"id": "t", "ref": "main"}),
        ]
        for source in ("secret", "hush", taken, "secret~0"):
            refused += [
                await kim.get(f"{repo}/refs/{source}/objects?path=x"),
                await kim.post(f"{repo}/branches", json={"name": "box-kim-2", "source": source}),
                await kim.put(f"{repo}/branches/box-kim-1/hard_reset?ref={source}"),
                await kim.post(f"{repo}/branches/box-kim-1/cherry-pick", json={"ref": source}),
                await kim.post(f"{repo}/branches/box-kim-1/revert", json={"ref": source, "parent_number": 0}),
                await kim.post(f"{repo}/refs/{source}/merge/box-kim-1"),
                await kim.post(
                    f"{repo}/branches/box-kim-1/objects/copy?dest_path=c", json={"src_path": "x", "src_ref": source}
                ),
            ]
        assert [(each.status_code, each.url) for each in refused if each.status_code != 401] == []


S3_REFUSED = {
    name: (method, path.replace("/lake?", "/lake.main?").replace("/lake.dev", "/lake.main").replace(".gone", ".main"))
    for name, (method, path, action) in ROUTES.items()
    if action not in {"fs:ListRepositories", "fs:ReadRepository"}
}


async def test_no_operation_of_s3_forgets_a_ref_in_either_way_to_name_a_bucket(
    lake: httpx.AsyncClient, app: App
) -> None:
    with asked_as(app, await keys_of(lake, "ann", *DENIED)) as ann:
        for name, (method, path) in S3_REFUSED.items():
            ways = {path, re.sub(r"^/lake/main/", "/lake.main/", path)}
            reads = method in {"GET", "HEAD"} and "uploadId" not in path and "uploads" not in path
            for way in ways:
                for ref in ("secret", "secret~0", "hush") if reads else ("secret",):
                    asked = way.replace("main", ref, 1)
                    answer = await ann.request(method, asked, headers=SENT.get(name))
                    assert answer.status_code == 403, (asked, answer.text)
                answer = await ann.request(method, way, headers=SENT.get(name))
                assert answer.status_code != 403, (way, answer.text)


async def test_lists_copies_and_batches_of_s3_hold_each_ref(lake: httpx.AsyncClient, app: App) -> None:
    with asked_as(app, await keys_of(lake, "esti2", allow("*"))) as admin:
        (await admin.put("/lake.main/x", content=b"x")).raise_for_status()
        for branch in ("main", "secret"):
            (await admin.post(f"/lake.{branch}/big?uploads")).raise_for_status()
    with asked_as(app, await keys_of(lake, "ann", *DENIED)) as ann:
        everything, folders = await ann.get("/lake"), await ann.get("/lake?delimiter=%2F")
        inside, uploads = await ann.get("/lake?prefix=secret%2F"), await ann.get("/lake?uploads")
        copies = [
            (await ann.put(f"/lake{target}", headers={"x-amz-copy-source": f"/lake{source}"})).status_code
            for source, target in (
                (".secret/x", ".main/y"),
                ("/secret~0/x", ".main/y"),
                ("/hush/x", "/main/y"),
                (".main/x", ".secret/y"),
                (".main/x", "/main/y"),
            )
        ]
        body = b"<Delete><Object><Key>secret/x</Key></Object><Object><Key>main/y</Key></Object></Delete>"
        deleted = await ann.post("/lake?delete", content=body)

    assert ("<Key>main/x</Key>" in everything.text, "secret" in everything.text) == (True, False)
    assert "<Prefix>secret/</Prefix>" in folders.text  # A name is no more than `fs:ListBranches` shows.
    assert inside.status_code == 403
    assert ("main/big" in uploads.text, "secret" in uploads.text) == (True, False)
    assert copies == [403, 403, 403, 403, 200]
    assert "<Error><Key>secret/x</Key><Code>AccessDenied</Code>" in deleted.text
    assert "<Deleted><Key>main/y</Key></Deleted>" in deleted.text


async def test_a_new_bucket_begins_at_a_branch_that_its_maker_may_read_and_part_copies_hold_their_source(
    lake: httpx.AsyncClient, app: App
) -> None:
    hides = deny({"StringEquals": {"branch": ["main"]}}, "fs:ReadBranch", "fs:ReadCommit")
    with asked_as(app, await keys_of(lake, "cat", allow("*"), hides)) as cat:
        refused = await cat.put("/lake.made")
    with asked_as(app, await keys_of(lake, "ann", *DENIED)) as ann:
        made = await ann.put("/lake.made")
        upload = re.findall("<UploadId>(.+?)<", (await ann.post("/lake.main/big?uploads")).text)[0]
        parts = [
            (await ann.put(f"/lake{to}/big?uploadId={upload}&partNumber=1", headers={"x-amz-copy-source": source}))
            for to, source in (
                (".main", "/lake.secret/x"),
                ("/main", "/lake/secret~0/x"),
                ("/main", "/lake/hush/x"),
                ("/secret", "/lake/main/x"),
                ("/main", "/lake/main/x"),
            )
        ]
    with asked_as(app, await keys_of(lake, "dee", allow("*"), allow("fs:ListBranches", effect="deny"))) as dee:
        listed = await dee.get("/?prefix=lake.")

    moves = (await lake.get("/repositories/lake/branches/made/reflog")).json()["results"]
    assert (refused.status_code, made.status_code, [one["user"] for one in moves]) == (403, 200, ["ann"])
    assert [answer.status_code for answer in parts] == [403, 403, 403, 403, 200]
    assert listed.status_code == 403


async def test_the_address_is_the_callers_and_the_time_is_now(lake: httpx.AsyncClient, app: App) -> None:
    office, since = {"IpAddress": {"SourceIp": ["10.0.0.0/8"]}}, {"DateGreaterThan": {"CurrentTime": ["2020-01-01"]}}
    until = {"DateLessThan": {"CurrentTime": ["2020-01-01"]}}
    ann = await keys_of(lake, "ann", {**allow("fs:*"), "condition": {**office, **since}})
    bob = await keys_of(lake, "bob", {**allow("fs:*"), "condition": until})

    for pair, address, status in (
        (ann, "10.1.1.1", 200),
        (ann, "192.0.2.1", 401),
        (ann, "", 401),
        (bob, "10.1.1.1", 401),
    ):
        async with asking(app, pair, address) as caller:
            assert (await caller.get("/repositories/lake")).status_code == status, (pair, address)


async def test_hooks_and_pages_hold_the_ref_that_they_read(lake: httpx.AsyncClient, app: App, state: AppState) -> None:
    pair = await keys_of(lake, "ann", *DENIED)
    request = RestRequest({"type": "http", "headers": [], "client": ("127.0.0.1", 1)})
    request.identity = Identity(user_id="ann")
    request.permissions = await permissions_of(state, request)
    reads = ScriptReads()
    reads.catalog = state.catalog
    for name, last in (("get_object", ["x"]), ("stat_object", ["x"]), ("list_objects", []), ("diff_refs", ["main"])):
        for ref, status in (("main", 200), ("secret", 401), ("hush", 401), ("secret~0", 401)):
            assert (await reads.ask(request, name, ["lake", ref, *last]))[0] == status, (name, ref)
    assert (await reads.ask(request, "diff_refs", ["lake", "main", "secret"]))[0] == 401
    await keys_of(lake, "bob", allow("*"), deny({"StringEquals": {"branch": ["secret"]}}, "fs:ReadObject"))
    request.identity = Identity(user_id="bob")
    request.permissions = await permissions_of(state, request)
    for ref, is_shown in (("main", True), ("secret", False)):
        _, page = await reads.ask(request, "list_objects", ["lake", ref])
        assert [bool(one["checksum"]) for one in page["results"]] == [is_shown] * len(page["results"]), ref

    browser = Browser(app)
    async with browser.http:
        await browser.log_in(*pair)
        for page, query in (
            ("objects", {}),
            ("object", {"path": "x"}),
            ("changes", {}),
            ("commits", {}),
            ("why", {"path": "x"}),
        ):
            for ref, status in (("main", 200), ("secret", 403)):
                answer = await browser.get(f"/repositories/lake/{page}", ref=ref, **query)
                assert answer.status_code == status, (page, ref, answer.text)
        for ref, status in (("main", 303), ("secret", 403)):
            url = httpx.URL(browser.address("/repositories/lake/objects"), params={"ref": ref})
            form, files = {"token": await browser.token(), "prefix": ""}, {"content": ("f.txt", b"1")}
            answer = await browser.http.post(url, data=form, files=files, headers={"origin": HOME})
            assert answer.status_code == status, (ref, answer.text)
        question = {"user": "ann", "action": "fs:ReadObject", "resource": f"{LAKE}/object/x"}
        page = html.unescape((await browser.get("/user", **question, branch="secret")).text)
        doubt = html.unescape((await browser.get("/user", **question)).text)
    assert '"condition":{"StringEquals":{"branch":["secret"]}}' in page
    assert "It depends on branch, tag" in doubt


async def test_the_server_answers_whether_a_user_may_and_what_the_question_leaves_open(lake: httpx.AsyncClient) -> None:
    await keys_of(lake, "ann", *DENIED)
    url, read = "/auth/users/ann/may", {"action": "fs:ReadObject", "resource": f"{LAKE}/object/x"}

    answers = [
        (await lake.get(url, params={**read, **said})).json()
        for said in ({"branch": "main"}, {"branch": "secret"}, {"tag": "hush"}, {"ref": "f00d" * 16}, {})
    ]
    twice = await lake.get(url, params={**read, "branch": "main", "tag": "v1"})
    odd = await lake.get(url, params={**read, "time": "soon"})

    assert [(one["allowed"], one["number"], one.get("unsaid")) for one in answers] == [
        (True, 1, None),
        (False, 2, None),
        (False, 3, None),
        (True, 1, None),
        (False, 2, ["branch", "tag"]),
    ]
    assert answers[1]["statement"]["condition"] == {"StringEquals": {"branch": ["secret"]}}
    assert (twice.status_code, odd.status_code) == (400, 400)


async def test_a_question_about_what_no_request_can_have_is_refused_and_an_expression_asks_about_its_name(
    lake: httpx.AsyncClient,
) -> None:
    """Else the answer would be that for another ref, or for an unknown address."""
    await keys_of(lake, "ann", *DENIED)
    url, read = "/auth/users/ann/may", {"action": "fs:ReadObject", "resource": f"{LAKE}/object/x"}

    named = [
        (await lake.get(url, params={**read, **said})).json()["allowed"]
        for said in ({"branch": "secret~1"}, {"branch": "secret@"}, {"branch": "main~1"}, {"tag": "hush~0"})
    ]
    refused = [
        (said, (await lake.get(url, params={**read, **said})).status_code)
        for said in (
            {"branch": "a b"},
            {"branch": "~1"},
            {"tag": "a b"},
            {"ref": "main"},
            {"ref": "f00d"},
            {"branch": "main", "address": "nope"},
            {"branch": "main", "address": "10.0.0.0/8"},
        )
    ]

    assert named == [False, False, True, False]
    assert [one for one in refused if one[1] != 400] == []
