"""What each route asks of its caller."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import httpx
import msgspec
import pytest

from lakebed import wire
from lakebed.auth import Circumstances, NotPermitted, Permissions, Ref, Statement
from lakebed.auth.permissions.actions import ACTIONS
from lakebed.auth.permissions.conditions import conditions_of
from lakebed.base import Entry
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, open_objectstore
from lakebed.operations import LOGGED_IN, PUBLIC, AnyOperation, objects
from lakebed.operations.table import OPERATIONS, OURS
from lakebed.server import App, AppState
from lakebed.server.http.gate import readable, refuse_denied, require, unreadable
from tests.gc.deferred import defer
from tests.server.rest.objects.test_imports import ended

BODIES: dict[type, Any] = {
    wire.UserCreation: {"id": "x"},
    wire.GroupCreation: {"id": "x"},
    wire.Policy: {"id": "x", "statement": []},
    wire.RepositoryCreation: {"name": "xxx", "storage_namespace": "mem://x"},
    wire.BranchCreation: {"name": "x", "source": "main"},
    wire.TagCreation: {"id": "x", "ref": "main"},
    wire.PathList: {"paths": ["x"]},
    wire.ObjectCopyCreation: {"src_path": "x"},
    wire.ObjectMove: {"src_path": "x"},
    wire.TableCreation: {"name": "x", "schema": {}},
    wire.TableRegistration: {"name": "x", "metadata-location": "s3://lake.tables/x"},
    wire.PullRequestCreation: {"title": "x", "source_branch": "x", "destination_branch": "y"},
    wire.ObjectStageCreation: {"physical_address": "mem://x/y", "checksum": "x", "size_bytes": 1},
}
"""Where the resource is named in the body: a body that names some."""


Login = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def login(app: App, client: httpx.AsyncClient) -> AsyncIterator[Login]:
    """Makes a user who is in some groups, and logs them in."""
    clients: list[httpx.AsyncClient] = []

    async def make(user: str, *groups: str) -> httpx.AsyncClient:
        assert (await client.post("/auth/users", json={"id": user})).status_code == 201
        for group in groups:
            assert (await client.put(f"/auth/groups/{group}/members/{user}")).status_code == 201
        pair = (await client.post(f"/auth/users/{user}/credentials")).json()
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        auth = (pair["access_key_id"], pair["secret_access_key"])
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth))
        return clients[-1]

    yield make
    for one in clients:
        await one.aclose()


def url_of(operation: AnyOperation, path: str) -> str:
    """The URL of a path of an operation, at its root."""
    return f"http://localhost{operation.root}{path}"


def message_of(answer: httpx.Response) -> str:
    """The words of a refusal, in the form of the API or in that of the catalog."""
    record = answer.json()
    if "error_description" in record:
        return str(record["error_description"])  # OAuth's.
    return str(record["error"]["message"] if "error" in record else record["message"])


def allow(*actions: str, resource: str = "*", effect: str = "allow") -> dict[str, Any]:
    return {"effect": effect, "action": list(actions), "resource": resource}


async def give(client: httpx.AsyncClient, user: str, *statements: dict[str, Any]) -> None:
    """A policy of their own."""
    answer = await client.post("/auth/policies", json={"id": f"of-{user}", "statement": statements})
    assert answer.status_code == 201, answer.text
    assert (await client.put(f"/auth/users/{user}/policies/of-{user}")).status_code == 201


async def let_a_run_hold(state: AppState, *paths: str) -> None:
    """Let run r1 hold an object that was at each of these paths, where something else is now."""
    repository = await state.catalog.get("lake")
    await defer(repository.versions, [f"data/x/{number}" for number in range(len(paths))], at=paths)
    for path in paths:

        async def store_body(address: str) -> Entry:
            stored = await repository.objectstore.put(address, b"now")
            return Entry(address=address, size_bytes=3, checksum=stored.md5, modified_ms=1)

        await repository.versions.staging.upload("main", path.encode(), store_body)


def test_what_needs_nothing_but_a_login_is_a_short_list() -> None:
    assert sorted(operation.id for operation in OPERATIONS if operation.permissions == LOGGED_IN) == [
        "createLoginTicket",
        "getCatalogConfig",
        "getConfig",
        "getCurrentUser",
        "getGarbageCollectionConfig",
        "getLakeFSVersion",
        "getStorageConfig",
        "getUsageReportSummary",
        "listCatalogs",
        "logout",
        "postStatsEvents",
    ]


def test_what_needs_no_login_is_a_shorter_list() -> None:
    assert sorted(operation.id for operation in OPERATIONS if operation.permissions is PUBLIC) == [
        "externalPrincipalLogin",
        "getAuthCapabilities",
        "getSetupState",
        "healthCheck",
        "logInByTicket",
        "logInToCatalog",
        "login",
        "oauthCallback",
        "oidcLogin",
        "setup",
        "setupCommPrefs",
        "stsLogin",
    ]


def test_every_permission_is_an_action_that_policies_can_name() -> None:
    asked = {one.action for operation in OPERATIONS for one in (*(operation.permissions or ()), *operation.asked_later)}

    assert asked <= ACTIONS


async def test_without_permissions_every_operation_refuses_and_without_login_too(
    stranger: httpx.AsyncClient, login: Login
) -> None:
    nobody = await login("nobody")

    for operation in OPERATIONS:
        path = re.sub(r"\{\w+\}", "x", operation.path)
        for caller, status, words in (
            (stranger, 401, "error authenticating request"),
            (nobody, 403 if operation in OURS else 401, "insufficient permissions: nobody needs "),
        ):
            if operation.permissions is PUBLIC or (operation.permissions == LOGGED_IN and caller is nobody):
                continue
            body = BODIES.get(operation.body)
            url = url_of(operation, path)
            answer = await caller.request(operation.method, url, params={"path": "x"}, json=body)
            assert answer.status_code == status, (operation.id, answer.text)
            assert operation.method == "HEAD" or message_of(answer).startswith(words)


LAKE = "arn:lakefs:fs:::repository/lake"
REFUSED_TO: dict[str, list[dict[str, Any]]] = {
    "elsewhere": [allow("*", resource="arn:lakefs:fs:::repository/other*"), allow("*", resource=f"{LAKE}-2*")],
    "denied": [allow("*"), allow("*", resource=LAKE, effect="deny"), allow("*", resource=LAKE + "/*", effect="deny")],
    "denied everything": [allow("*"), allow("*", effect="deny")],
}
"""Statements of callers who may do nothing in the repository `lake`."""


@pytest.mark.parametrize("who", REFUSED_TO)
@pytest.mark.parametrize("flags", [False, True])
async def test_rights_elsewhere_and_denials_refuse_every_operation_whatever_its_flags(
    client: httpx.AsyncClient, repo: str, login: Login, who: str, flags: bool
) -> None:
    """What is there makes no difference: a refusal tells nothing of it."""
    ann = await login("ann")
    await give(client, "ann", *REFUSED_TO[who])
    is_everything = who == "denied everything"
    asked = [one for one in OPERATIONS if one.permissions and (is_everything or "repository" in one.arguments)]
    assert len(asked) > 80

    for operation in asked:
        for name in ("main", "nosuch"):
            arguments = ["lake" if one == "repository" else name for one in operation.arguments]
            path = url_of(operation, operation.path_of(*arguments))
            params = {"path": "x", "dest_path": "x"}
            if flags:
                params |= {one.name: "true" for one in operation.parameters if one.kind == "boolean"}
            body = BODIES.get(operation.body)
            answer = await ann.request(operation.method, path, params=params, json=body)
            assert answer.status_code == (403 if operation in OURS else 401), (operation.id, answer.text)
            assert operation.method == "HEAD" or message_of(answer).startswith("insufficient permissions: ")


def test_what_a_flag_or_a_handler_adds_is_a_short_list() -> None:
    """Each flag here was looked at: `presign` asks for each row, `details` once, and no other one gives a right.

    `reuse` takes a namespace of which this installation knows that it is empty.
    """
    flags = {one.name for operation in OPERATIONS for one in operation.parameters if one.kind == "boolean"}
    later = {operation.id for operation in OPERATIONS if operation.asked_later}

    shown = {
        "effective",
        "forgotten",
        "first_parent",
        "include_right_stats",
        "limit",
        "newest_first",
        "show_hidden",
        "user_metadata",
        "denied",
        "committed",
    }
    assert flags == shown | {
        "bare",
        "force",
        "no_tombstone",
        "presign",
        "refuse_expired",
        "reuse",
        "details",
        "purgeRequested",
    }
    assert later == {
        "cherryPick",
        "commit",
        "commitTables",
        "createBranch",
        "createEventSubscription",
        "createNamespace",
        "createSandbox",
        "createSymlinkFile",
        "createTag",
        "diffRefs",
        "expireGcCommits",
        "extendSandbox",
        "getCatalogConfig",
        "getMetadataObject",
        "hardResetBranch",
        "importStart",
        "listBranches",
        "listCatalogs",
        "listEvents",
        "listObjects",
        "loadTable",
        "loadTableCredentials",
        "mergeIntoBranch",
        "mergePullRequest",
        "noteGcPlan",
        "registerTable",
        "renameTable",
        "restoreGcObjects",
        "revertBranch",
        "rollBackTable",
        "signFileRequest",
        "startGcJob",
        "sweepBranches",
        "undeleteRepository",
        "uploadPartCopy",
    }


async def test_a_row_that_is_denied_has_neither_checksum_nor_address_nor_metadata(
    client: httpx.AsyncClient, repo: str, login: Login
) -> None:
    ann = await login("ann")
    secret = "arn:lakefs:fs:::repository/lake/object/secret/*"
    allowed = [allow(f"fs:{action}") for action in ("ListObjects", "ReadObject", "ReadRepository", "WriteObject")]
    await give(client, "ann", *allowed, allow("fs:ReadObject", resource=secret, effect="deny"))
    headers = {"x-lakefs-meta-who": "jo"}
    for path in ("open/a", "secret/b"):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"x", headers=headers)
    await client.post(f"{repo}/branches/main/commits", json={"message": "m"})
    first = (await client.get(f"{repo}/refs/main/commits")).json()["results"][1]["id"]

    listed = (await ann.get(f"{repo}/refs/main/objects/ls")).json()["results"]
    url = f"{repo}/refs/{first}/diff/main"
    changed = (await ann.get(url, params={"include_right_stats": "true"})).json()["results"]
    tree = (await client.get(f"{repo}/commits/main")).json()["meta_range_id"]
    files = [
        await who.get(f"{repo}/metadata/object/meta_range/{tree}", params={"presign": presign})
        for who in (client, ann)
        for presign in ("false", "true")
    ]
    denied = await ann.post(f"{repo}/refs/main/symlink")
    made = await ann.post(f"{repo}/refs/main/symlink", params={"location": "open"})

    shown = {row["path"]: (row["checksum"], row["physical_address"], row.get("metadata") or {}) for row in listed}
    assert shown["secret/b"] == ("", "", {})
    assert all(shown["open/a"])
    assert [bool(row.get("right")) for row in changed] == [True, False]
    assert (denied.status_code, made.status_code) == (401, 201), (denied.text, made.text)
    # A file of a tree has the rows of many paths.
    assert [file.status_code for file in files] == [200, 200, 401, 401]
    assert "fs:ReadObject" in files[-1].json()["message"]


async def test_an_import_asks_for_each_of_its_sources(
    client: httpx.AsyncClient, repo: str, login: Login, namespace: str
) -> None:
    ann = await login("ann")
    free = "arn:lakefs:fs:::namespace/mem://free/*"
    await give(
        client, "ann", allow("fs:CreateCommit"), allow("fs:WriteObject"), allow("fs:ImportFromStorage", resource=free)
    )
    commit = {"message": "m"}
    paths = [{"type": "object", "path": f"mem://{place}/a", "destination": "a"} for place in ("free", "other")]

    answer = await ann.post(f"{repo}/branches/main/import", json={"paths": paths, "commit": commit})
    assert answer.status_code == 401
    assert "fs:ImportFromStorage on arn:lakefs:fs:::namespace/mem://other/a" in answer.json()["message"]
    answer = await ann.post(f"{repo}/branches/main/import", json={"paths": paths[:1], "commit": commit})
    assert answer.status_code == 202


async def test_an_import_writes_only_where_its_caller_may_write(
    client: httpx.AsyncClient, repo: str, login: Login, namespace: str
) -> None:
    ann = await login("ann", "Developers")
    store = open_objectstore(namespace.replace("server", "elsewhere"))
    for key in ("in/_lakefs_actions/planted.yaml", "in/z"):
        await store.put(key, b"x")
    actions = "arn:lakefs:fs:::repository/lake/object/*_lakefs_actions/*"
    await give(client, "ann", allow("fs:ImportFromStorage"), allow("fs:WriteObject", resource=actions, effect="deny"))
    url = f"{repo}/branches/main/import"

    async def import_(type_: str, source: str, destination: str) -> str:
        path = {"type": type_, "path": f"{store.uri}/{source}", "destination": destination}
        begun = await ann.post(url, json={"paths": [path], "commit": {"message": "m"}})
        if begun.status_code == 401:
            return str(begun.json()["message"])
        status = await ended(ann, repo, begun.json()["id"])
        return str(status["error"]["message"]) if "error" in status else "completed"

    planted = "arn:lakefs:fs:::repository/lake/object/_lakefs_actions/planted.yaml"
    assert (await import_("object", "in/z", "_lakefs_actions/planted.yaml")).endswith(f"fs:WriteObject on {planted}")
    assert (await import_("common_prefix", "in/", "")).endswith(f"fs:WriteObject on {planted}")
    assert await import_("object", "in/z", "free") == "completed"
    listed = (await client.get(f"{repo}/refs/main/objects/ls")).json()["results"]
    assert [row["path"] for row in listed] == ["free"]


@pytest.mark.parametrize("gone", ["a/secret", "z/secret"], ids=["before others", "behind all"])
async def test_an_import_removes_only_what_its_caller_may_delete(
    client: httpx.AsyncClient, repo: str, login: Login, namespace: str, gone: str
) -> None:
    ann = await login("ann", "Developers")
    store = open_objectstore(namespace.replace("server", "elsewhere"))
    for key in (f"in/{gone}", "in/m"):
        await store.put(key, b"x")
    secret = "arn:lakefs:fs:::repository/lake/object/*/secret"
    await give(client, "ann", allow("fs:ImportFromStorage"), allow("fs:DeleteObject", resource=secret, effect="deny"))
    paths = [{"type": "common_prefix", "path": f"{store.uri}/in/", "destination": ""}]

    async def import_(who: httpx.AsyncClient) -> dict[str, Any]:
        begun = await who.post(f"{repo}/branches/main/import", json={"paths": paths, "commit": {"message": "m"}})
        return await ended(who, repo, begun.json()["id"])

    assert (await import_(client))["completed"]
    await MemoryDeleter(cast("MemoryObjectStore", store)).delete([f"in/{gone}"])

    refused = await import_(ann)

    assert "fs:DeleteObject" in refused["error"]["message"]
    assert (await client.get(f"{repo}/refs/main/objects/stat", params={"path": gone})).status_code == 200


async def test_who_is_denied_a_ref_cannot_put_its_commit_elsewhere(
    client: httpx.AsyncClient, repo: str, login: Login
) -> None:
    await client.post(f"{repo}/branches", json={"name": "secret", "source": "main"})
    await client.post(f"{repo}/branches/secret/objects", params={"path": "a"}, content=b"x")
    taken = (await client.post(f"{repo}/branches/secret/commits", json={"message": "m"})).json()["id"]
    await client.post(f"{repo}/tags", json={"id": "hush", "ref": "secret"})
    ann, bob = await login("ann", "Developers"), await login("bob", "Developers")
    await give(
        client,
        "ann",
        allow("fs:*", resource="arn:lakefs:fs:::repository/lake/branch/secret", effect="deny"),
        allow("fs:*", resource="arn:lakefs:fs:::repository/lake/tag/hush", effect="deny"),
    )
    await give(client, "bob", allow("fs:ReadCommit", effect="deny"))

    async def all_ways(caller: httpx.AsyncClient, source: str) -> set[int]:
        name = "made-" + source[:6].strip("~")
        return {
            (await caller.post(f"{repo}/branches", json={"name": name, "source": source})).status_code,
            (await caller.post(f"{repo}/tags", json={"id": f"t-{name}", "ref": source})).status_code,
            (await caller.put(f"{repo}/branches/main/hard_reset", params={"ref": source})).status_code,
            (await caller.post(f"{repo}/branches/main/cherry-pick", json={"ref": source})).status_code,
            (await caller.post(f"{repo}/refs/{source}/merge/main")).status_code,
        }

    for source in ("secret", "secret~0", "secret@", "hush"):
        assert await all_ways(ann, source) == {401}
    assert await all_ways(bob, taken) == {401}
    assert (await ann.post(f"{repo}/branches", json={"name": "mine", "source": "main"})).status_code == 201
    assert (await bob.post(f"{repo}/branches", json={"name": "his", "source": "secret"})).status_code == 201


async def test_no_spelling_and_no_folder_leads_around_a_denial_of_what_lies_elsewhere(
    client: httpx.AsyncClient, repo: str, login: Login, namespace: str
) -> None:
    ann = await login("ann", "Developers")
    store = open_objectstore(namespace.replace("server", "elsewhere"))
    for key in ("open/a", "secret/b"):
        await store.put(key, b"x")
    secret = f"arn:lakefs:fs:::namespace/{store.uri}/secret/*"
    await give(
        client, "ann", allow("fs:ImportFromStorage"), allow("fs:ImportFromStorage", resource=secret, effect="deny")
    )
    shouted = store.uri.replace("mem://", "MEM://")

    body = {"physical_address": f"{shouted}/secret/b", "checksum": "c", "size_bytes": 1}
    staged = await ann.put(repo + "/branches/main/objects", params={"path": "a"}, json=body)
    assert staged.status_code == 401, staged.text

    async def import_(source: str) -> str:
        path = {"type": "common_prefix", "path": source, "destination": "in/"}
        body = {"paths": [path], "commit": {"message": "m"}}
        begun = await ann.post(f"{repo}/branches/main/import", json=body)
        if begun.status_code == 401:
            return "refused at once"
        assert begun.status_code == 202, begun.text
        async with asyncio.timeout(60):
            status = await ended(ann, repo, begun.json()["id"])
        return str(status["error"]["message"]) if "error" in status else "completed"

    assert await import_(f"{shouted}/secret/") == "refused at once"
    assert await import_(f"{store.uri}/open/") == "completed"
    for around in (f"{store.uri}/secret", store.uri):
        refused = await import_(around)
        assert refused.endswith(f"a statement denies ann fs:ImportFromStorage on an object of {around}")
    listed = (await client.get(f"{repo}/refs/main/objects/ls")).json()["results"]
    assert [row["path"] for row in listed] == ["in/a"]


async def test_a_body_is_not_decoded_for_who_may_do_nothing(client: httpx.AsyncClient, repo: str, login: Login) -> None:
    nobody = await login("nobody")

    for method, path in (
        ("POST", "/auth/users"),
        ("POST", repo + "/branches/main/commits"),
        ("PUT", repo + "/settings/gc_rules"),
    ):
        answer = await nobody.request(method, path, content=b"{no record")
        assert answer.json()["message"].startswith("insufficient permissions: nobody needs "), (path, answer.text)


async def test_force_overrules_no_protection(client: httpx.AsyncClient, repo: str, login: Login) -> None:
    ann = await login("ann", "Developers")
    await client.post(repo + "/branches/main/objects", params={"path": "a"}, content=b"x")
    await client.put(repo + "/settings/branch_protection", json=[{"pattern": "main"}])
    force = {"force": "true", "path": "a"}

    for method, path, body in (
        ("POST", "/branches/main/objects", None),
        ("DELETE", "/branches/main/objects", None),
        ("POST", "/branches/main/commits", {"message": "m", "force": True}),
        ("PUT", "/branches/main/hard_reset?ref=main", None),
    ):
        answer = await ann.request(method, repo + path, params=force if "?" not in path else None, json=body)
        assert answer.status_code == 403, (path, answer.text)


async def test_objects_are_allowed_by_path(client: httpx.AsyncClient, repo: str, login: Login) -> None:
    ann = await login("ann")
    await give(client, "ann", allow("fs:*Object", resource="arn:lakefs:fs:::repository/lake/object/ann/*"))
    objects = repo + "/branches/main/objects"

    for path, status in (("ann/a", 201), ("bob/a", 401), ("ann", 401)):
        answer = await ann.post(objects, params={"path": path}, content=b"x")
        assert answer.status_code == status, answer.text
    assert (await ann.get(repo + "/refs/main/objects", params={"path": "ann/a"})).content == b"x"
    assert (await ann.get(repo + "/refs/main/objects", params={"path": "bob/a"})).status_code == 401
    assert (await ann.get(repo + "/refs/main/objects/ls")).status_code == 401


async def test_every_path_of_a_bulk_deletion_must_be_allowed(
    client: httpx.AsyncClient, repo: str, login: Login
) -> None:
    ann = await login("ann")
    await give(client, "ann", allow("fs:DeleteObject", resource="arn:lakefs:fs:::repository/lake/object/ann/*"))
    for path in ("ann/a", "bob/a"):
        await client.post(repo + "/branches/main/objects", params={"path": path}, content=b"x")

    refused = await ann.post(repo + "/branches/main/objects/delete", json={"paths": ["ann/a", "bob/a"]})
    done = await ann.post(repo + "/branches/main/objects/delete", json={"paths": ["ann/a"]})

    assert refused.status_code == 401
    assert (done.status_code, done.json()) == (200, {"errors": []})
    assert (await client.get(repo + "/refs/main/objects/stat", params={"path": "bob/a"})).status_code == 200


async def test_copying_needs_the_source_to_be_readable(client: httpx.AsyncClient, repo: str, login: Login) -> None:
    ann = await login("ann")
    await give(
        client,
        "ann",
        allow("fs:WriteObject"),
        allow("fs:ReadObject", resource="arn:lakefs:fs:::repository/lake/object/open/*"),
    )
    for path in ("open/a", "secret/a"):
        await client.post(repo + "/branches/main/objects", params={"path": path}, content=b"x")

    for path, status in (("open/a", 201), ("secret/a", 401)):
        copy = await ann.post(
            repo + "/branches/main/objects/copy", params={"dest_path": "copy"}, json={"src_path": path}
        )
        assert copy.status_code == status, copy.text


async def test_staging_what_lies_elsewhere_needs_the_permission_to_import_from_there(
    client: httpx.AsyncClient, repo: str, login: Login
) -> None:
    ann = await login("ann", "Developers")
    await give(client, "ann", allow("fs:ImportFromStorage", resource="arn:lakefs:fs:::namespace/mem://open/*"))

    for address, status in (("mem://open/x", 201), ("mem://secret/x", 401)):
        body = {"physical_address": address, "checksum": "c", "size_bytes": 1}
        staged = await ann.put(repo + "/branches/main/objects", params={"path": "a"}, json=body)
        assert staged.status_code == status, staged.text


@pytest.mark.parametrize("effect", ["allow", "deny"])
@pytest.mark.parametrize("spelled", ["az://raw/x", "https://account.blob.core.windows.net/raw/x"])
def test_a_statement_about_azure_may_have_the_spelling_of_the_caller_or_ours(effect: Any, spelled: str) -> None:
    action, written = "fs:ImportFromStorage", "https://account.blob.core.windows.net/raw/x"
    statements = [Statement(effect=effect, actions=(action,), resource=f"arn:lakefs:fs:::namespace/{spelled}")]
    if effect == "deny":
        statements.append(Statement(effect="allow", actions=(action,), resource="*"))
    asked, permissions = objects.IMPORT_START.asked_later[:1], Permissions("ann", statements)

    if effect == "allow":
        require(asked, permissions, {"source": written})
        with pytest.raises(NotPermitted):
            require(asked, permissions, {"source": "az://o/x"})
        return
    for source in (written, written.replace("account", "ACCOUNT"), "az://raw/x"):
        with pytest.raises(NotPermitted):
            require(asked, permissions, {"source": source})
        with pytest.raises(NotPermitted):
            refuse_denied(asked, permissions, {"source": source})
    require(asked, permissions, {"source": "az://raw/y"})
    refuse_denied(asked, permissions, {"source": "az://raw/y"})


async def test_a_denial_wins_over_a_groups_permission(client: httpx.AsyncClient, repo: str, login: Login) -> None:
    ann = await login("ann", "Developers")
    main = "arn:lakefs:fs:::repository/lake/branch/main"
    await give(client, "ann", allow("fs:CreateCommit", "fs:DeleteBranch", resource=main, effect="deny"))
    await ann.post(repo + "/branches", json={"name": "work", "source": "main"})

    for branch, status in (("main", 401), ("work", 201)):
        commit = await ann.post(f"{repo}/branches/{branch}/commits", json={"message": "m", "allow_empty": True})
        assert commit.status_code == status, commit.text
    assert (await ann.delete(repo + "/branches/main")).status_code == 401
    assert (await ann.post(f"{repo}/refs/work/merge/main")).status_code == 401


async def test_a_repository_is_made_where_its_namespace_is_allowed(
    client: httpx.AsyncClient, namespace: str, login: Login
) -> None:
    ann = await login("ann")
    await give(
        client,
        "ann",
        allow("fs:CreateRepository", resource="arn:lakefs:fs:::repository/ann-*"),
        allow("fs:AttachStorageNamespace", resource=f"arn:lakefs:fs:::namespace/{namespace}/ann/*"),
    )

    for name, where, status in (("ann-1", "ann/1", 201), ("ann-2", "bob/2", 401), ("bob-3", "ann/3", 401)):
        made = await ann.post("/repositories", json={"name": name, "storage_namespace": f"{namespace}/{where}"})
        assert made.status_code == status, made.text


async def test_a_repository_comes_back_under_a_name_that_is_allowed(
    client: httpx.AsyncClient, repo: str, login: Login
) -> None:
    ann = await login("ann")
    await give(client, "ann", allow("fs:CreateRepository", resource="arn:lakefs:fs:::repository/lake"))
    assert (await client.delete(repo)).status_code == 204

    refused = await ann.post(f"{repo}/undelete", json={"name": "other"})
    back = await ann.post(f"{repo}/undelete", json={})

    assert (refused.status_code, "fs:CreateRepository" in refused.json()["message"]) == (403, True)
    assert (back.status_code, back.json()["id"]) == (201, "lake")


async def test_own_credentials_are_ones_own(client: httpx.AsyncClient, login: Login) -> None:
    ann = await login("ann", "Viewers")

    made = await ann.post("/auth/users/ann/credentials")

    assert made.status_code == 201
    assert (await ann.delete(f"/auth/users/ann/credentials/{made.json()['access_key_id']}")).status_code == 204
    assert (await ann.get("/auth/users/ann")).status_code == 200
    assert (await ann.get("/user")).json()["user"]["id"] == "ann"
    for method, path in (("POST", "/auth/users/esti/credentials"), ("PUT", "/auth/groups/Admins/members/ann")):
        assert (await ann.request(method, path)).status_code == 401


async def test_who_is_taken_out_of_a_group_is_refused_at_once(
    client: httpx.AsyncClient, repo: str, login: Login
) -> None:
    ann = await login("ann", "Viewers")
    assert (await ann.get(repo)).status_code == 200

    await client.delete("/auth/groups/Viewers/members/ann")

    assert (await ann.get(repo)).status_code == 401


class TestCollections:
    """The permissions of collectors are their own."""

    PLAN = ("POST", "/gc/runs", {"kind": "uncommitted"})
    SEE = (("GET", "/gc/runs"), ("GET", "/gc/rules/full"), ("GET", "/settings/gc_rules"), ("GET", "/gc/why?path=x"))
    RULES = ("PUT", "/settings/gc_rules", {"default_retention_days": 7, "branches": []})

    async def test_a_viewer_only_looks(self, repo: str, login: Login) -> None:
        viewer = await login("viewer", "Viewers")

        for method, path in self.SEE:
            assert (await viewer.request(method, repo + path)).status_code not in {401, 403}, path
        for (method, path, body), status in ((self.PLAN, 403), (self.RULES, 401)):
            assert (await viewer.request(method, repo + path, json=body)).status_code == status, path
        assert (await viewer.post(repo + "/gc/planning")).status_code == 403

    async def test_a_planner_plans_and_abandons_and_cannot_apply_or_set_rules(self, repo: str, login: Login) -> None:
        planner = await login("planner", "GCPlanners")

        asked = await planner.post(repo + "/gc/planning")
        started = await planner.post(repo + "/gc/runs", json={"kind": "uncommitted"})
        run = f"{repo}/gc/runs/{started.json()['run_id']}"

        assert (asked.status_code, asked.json()["has_rules"]) == (200, False)
        assert started.status_code == 201
        assert (await planner.get(repo)).status_code == 200, "it asks where the namespace is"
        assert (await planner.post(run + "/uncommitted")).status_code == 200
        assert (await planner.post(run + "/commits")).status_code == 200
        for step in ("applying", "expire", "retire", "sweeping", "ended"):
            assert (await planner.post(f"{run}/{step}", json={})).status_code == 403, step
        assert (await planner.post(repo + "/gc/purging")).status_code == 403
        assert (await planner.post(run + "/abandoned")).status_code == 200
        for method, path in self.SEE:
            assert (await planner.request(method, repo + path)).status_code not in {401, 403}, path
        assert (await planner.put(repo + self.RULES[1], json=self.RULES[2])).status_code == 401
        assert (await planner.put(repo + "/gc/rules/full", json={})).status_code == 403
        assert (await planner.post(repo + "/gc/restore", json={"run_id": "r1"})).status_code == 403
        assert (await planner.get(repo + "/gc/ledger")).status_code == 200
        assert (await planner.post(repo + "/gc/prepare_uncommited")).status_code == 201

    async def test_an_operator_plans_applies_and_sets_rules(self, repo: str, login: Login) -> None:
        operator = await login("operator", "GCOperators")

        assert (await operator.put(repo + self.RULES[1], json=self.RULES[2])).status_code == 204
        assert (await operator.post(repo + "/gc/planning")).json()["has_rules"]
        run = (await operator.post(repo + "/gc/runs", json={"kind": "uncommitted"})).json()["run_id"]
        for step in ("applying", "expire", "sweeping", "ended"):
            assert (await operator.post(f"{repo}/gc/runs/{run}/{step}", json={})).status_code not in {401, 403}, step
        assert (await operator.post(repo + "/gc/restore", json={"run_id": run})).status_code == 404, "none is there"
        assert (await operator.delete(repo + "/branches/main")).status_code == 401
        namespace = (await operator.get(repo)).json()["storage_namespace"]
        assert (await operator.post(repo + "/gc/purging")).json()["namespace"] == namespace

    async def test_a_preparer_in_the_contracts_words_abandons_nobodys_run(
        self, client: httpx.AsyncClient, repo: str, login: Login
    ) -> None:
        operator, preparer = await login("operator", "GCOperators"), await login("preparer")
        await give(client, "preparer", allow("retention:PrepareGarbageCollectionUncommitted"))
        run = (await operator.post(repo + "/gc/runs", json={"kind": "uncommitted"})).json()["run_id"]
        cursor = msgspec.msgpack.encode({"name": "uncommitted", "phase": "done"})

        for sealed in (cursor, b"\0" * 32 + cursor):
            token = f"{run}:{base64.urlsafe_b64encode(sealed).decode()}"
            answer = await preparer.post(repo + "/gc/prepare_uncommited", json={"continuation_token": token})
            assert (answer.status_code, "not a continuation token of run" in answer.text) == (400, True)

        assert (await operator.get(f"{repo}/gc/runs/{run}")).json()["state"] == "marking"

    async def test_restoring_needs_what_an_upload_or_a_copy_of_each_object_would(
        self, client: httpx.AsyncClient, repo: str, login: Login, state: AppState
    ) -> None:
        await let_a_run_hold(state, "private/a", "open/b")
        operator = await login("operator", "GCOperators")
        objects = "arn:lakefs:fs:::repository/lake/object/"
        nothing = await operator.post(repo + "/gc/restore", json={"run_id": "r1", "overwrite": True})
        await give(
            client,
            "operator",
            allow("fs:WriteObject", "fs:ReadObject"),
            allow("fs:*", resource=objects + "private/*", effect="deny"),
        )

        done = await operator.post(repo + "/gc/restore", json={"run_id": "r1", "overwrite": True})
        copied = await operator.post(repo + "/gc/restore", json={"run_id": "r1", "prefix": "mine"})

        assert (nothing.json()["restored"], nothing.json()["failed"]) == (0, 2)
        for page, action in ((done.json(), "fs:WriteObject"), (copied.json(), "fs:ReadObject")):
            assert (page["restored"], page["failed"]) == (1, 1)
            said = f"insufficient permissions: operator needs {action} on {objects}private/a"
            assert [failure["error"] for failure in page["failures"]] == [said]
        kept = await client.get(repo + "/refs/main/objects", params={"path": "private/a"})
        assert kept.content == b"now"

    async def test_the_contracts_names_suffice_for_the_contracts_routes(
        self, client: httpx.AsyncClient, repo: str, login: Login
    ) -> None:
        old = await login("old")
        await give(client, "old", allow("retention:*", resource="arn:lakefs:fs:::repository/lake"))

        assert (await old.put(repo + self.RULES[1], json=self.RULES[2])).status_code == 204
        assert (await old.get(repo + "/gc/rules/full")).status_code == 200
        assert (await old.post(repo + "/gc/prepare_commits")).status_code == 201
        assert (await old.post(repo + "/gc/runs", json={"kind": "uncommitted"})).status_code == 403


async def test_a_group_has_an_access_level_or_says_that_it_has_none(client: httpx.AsyncClient) -> None:
    acl = "/auth/groups/analysts/acl"
    await client.post("/auth/groups", json={"id": "analysts"})

    none = await client.get(acl)
    given = await client.post(acl, json={"permission": "Write"})

    assert (none.status_code, none.json()["no_acl"]) == (404, True)
    assert given.status_code == 201
    assert (await client.get(acl)).json() == {"permission": "Write"}
    assert (await client.get("/auth/groups/Admins/acl")).json() == {"permission": "Admin"}
    assert (await client.post(acl, json={"permission": "Root"})).status_code == 400
    assert (await client.get("/auth/groups/nobodys/acl")).status_code == 404


async def test_a_condition_that_the_server_could_not_hold_is_refused_and_others_come_back_as_they_were(
    client: httpx.AsyncClient,
) -> None:
    condition = {"StringLike": {"branch": ["a-*"]}, "IpAddress": {"SourceIp": ["10.0.0.0/8", "2001:db8::/32"]}}
    odd = {"NumericEquals": {"branch": ["1"]}}

    refused = await client.post(
        "/auth/policies", json={"id": "odd", "statement": [{**allow("fs:*"), "condition": odd}]}
    )
    made = await client.post(
        "/auth/policies", json={"id": "office", "statement": [{**allow("fs:*"), "condition": condition}]}
    )

    assert (refused.status_code, "statement 1: there is no operator 'NumericEquals'" in refused.text) == (400, True)
    assert made.status_code == 201, made.text
    assert (await client.get("/auth/policies/office")).json()["statement"][0]["condition"] == condition


async def test_the_last_administrator_can_neither_leave_nor_be_deleted(client: httpx.AsyncClient) -> None:
    assert (await client.delete("/auth/groups/Admins/members/esti")).status_code == 409
    assert (await client.delete("/auth/users/esti")).status_code == 409


async def test_the_rows_of_a_listing_are_judged_by_one_look_at_their_ref() -> None:
    looks = []

    def look(repository: str, expression: str) -> Ref:
        looks.append((repository, expression))
        return Ref.of_tag(expression)

    at_tag = conditions_of({"StringEquals": {"tag": ["v1"]}})
    lake = "arn:lakefs:fs:::repository/lake/object"
    statements = [
        Statement(effect="allow", actions=("fs:ReadObject",), resource=f"{lake}/in/*", conditions=at_tag),
        Statement(effect="deny", actions=("fs:ReadObject",), resource=f"{lake}/in/x"),
    ]
    permissions = Permissions("ann", statements).under(Circumstances(look=look))

    may_read = await readable(permissions, "lake", "v1")
    hidden = await unreadable(permissions, "lake", "v1", (b"in/a", b"in/x", b"out"))

    assert [may_read(path) for path in ("in/a", "in/x", "out")] == [True, False, False]
    assert hidden == {b"in/x"}
    assert not (await readable(permissions, "lake", "v2"))("in/a")
    assert looks == [("lake", "v1"), ("lake", "v1"), ("lake", "v2")]
