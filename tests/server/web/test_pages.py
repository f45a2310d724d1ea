"""Every page and form answers as its operation does, for five callers; and the stories of a first visit."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest

from lakebed.server import App, AppState
from lakebed.server.http.requests import RestRequest
from lakebed.server.operate.audit import AuditQuery
from lakebed.server.web.door import HEADERS, Door
from lakebed.server.web.pages import PAGES
from lakebed.server.web.render import FOLDER
from tests.server.web.browsing import HOME, Browser, Forms

LAKE = "/repositories/lake"
CALLERS = ("stranger", "bare", "other", "denied", "esti")
DENIED = [
    {"effect": "allow", "action": ["*"], "resource": "*"},
    {"effect": "deny", "action": ["fs:*", "gc:*", "ci:*"], "resource": "arn:lakefs:fs:::repository/lake*"},
    {"effect": "deny", "action": ["fs:ListRepositories", "fs:CreateRepository"], "resource": "*"},
]
OTHER = [{"effect": "allow", "action": ["fs:*"], "resource": "arn:lakefs:fs:::repository/other*"}]


@dataclass(frozen=True)
class Case:
    """A page or form, and the request of the API that decides whether it works."""

    page: str
    address: str
    api: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] | None = None
    json: object = None
    fails: int = 0
    """With which status it fails even for the administrator."""


def of_refs(folder: str, kind: str) -> tuple[Case, ...]:
    page, address = "/repositories/{repository}/" + folder, f"{LAKE}/{folder}"
    new = f"new-{kind}"
    name = {"branch": {"name": new}, "tag": {"id": new}}[kind]
    source = {"branch": {"source": "main"}, "tag": {"ref": "main"}}[kind]
    return (
        Case(page, address, f"GET {address}"),
        Case(page, address, f"POST {address}", form={"name": new, "source": "main"}, json={**name, **source}),
        Case(f"{page}/delete", f"{address}/delete", f"DELETE {address}/{new}", {kind: new}, form={"typed": new}),
        Case(f"{page}/undelete", f"{address}/undelete", f"POST {address}/{new}/undelete", {kind: new}, form={}),
    )


def of_holder(holder: str, api: str, name: str) -> tuple[Case, ...]:
    """The forms that attach a policy to a user or a group, and detach it."""
    address, policy = f"/{holder}/policies", f"{api}/policies/look"
    return (
        Case(address, address, f"PUT {policy}", {holder: name}, form={"policy": "look"}),
        Case(f"{address}/detach", f"{address}/detach", f"DELETE {policy}", {holder: name, "policy": "look"}, form={}),
    )


def of_one(
    folder: str, kind: str, *forms: tuple[str, str, str, Mapping[str, str] | None], api: str = ""
) -> tuple[Case, ...]:
    """The page of a thing that is not there, and its forms, which ask for its name."""
    page, address, own = "/repositories/{repository}/" + f"{folder}/{{{kind}}}", f"{LAKE}/{folder}/none", api or folder
    return (
        Case(page, address, f"GET {LAKE}/{own}/none", fails=404),
        *(
            Case(
                f"{page}/{action}",
                f"{address}/{action}",
                f"{method} {LAKE}/{own}/none{end}",
                form={"typed": "none", **(body or {})},
                json=body and {name: int(value) if value.isdigit() else value for name, value in body.items()},
                fails=404,
            )
            for action, method, end, body in forms
        ),
    )


POLICY = '{"rules": {"logs": {"prefix": "logs/", "period": "90d"}}}'
STATEMENTS = '[{"effect": "allow", "action": ["fs:Read*"], "resource": "*"}]'
MAIN = {"ref": "main"}
ONE = {"ref": "main", "path": "a/b.csv"}
RUN = "r1"
CASES = (
    Case("/", "/", "GET /repositories"),
    Case("/new-repository", "/new-repository", "GET /config/storage"),
    Case(
        "/new-repository",
        "/new-repository",
        "POST /repositories",
        form={"name": "fresh", "namespace": "mem://fresh", "branch": "main"},
        json={"name": "fresh", "storage_namespace": "mem://fresh"},
    ),
    Case("/search", "/search", "GET /user", {"text": "la", "repository": "lake"}),
    Case("/repositories/{repository}", LAKE, f"GET {LAKE}"),
    Case("/repositories/{repository}/objects", f"{LAKE}/objects", f"GET {LAKE}/refs/main/objects/ls", MAIN),
    Case(
        "/repositories/{repository}/objects",
        f"{LAKE}/objects",
        f"POST {LAKE}/branches/main/objects?path=n",
        MAIN,
        form={"path": "n"},
    ),
    Case("/repositories/{repository}/object", f"{LAKE}/object", f"GET {LAKE}/refs/main/objects/stat?path=a/b.csv", ONE),
    Case("/repositories/{repository}/tables", f"{LAKE}/tables", f"GET {LAKE}/refs/main/tables", MAIN),
    Case(
        "/repositories/{repository}/table",
        f"{LAKE}/table",
        f"GET {LAKE}/refs/main/tables/stat?table=sales/orders",
        {**MAIN, "table": "sales/orders"},
        fails=404,
    ),
    Case("/repositories/{repository}/import", f"{LAKE}/import", f"GET {LAKE}/branches/main", MAIN),
    Case(
        "/repositories/{repository}/import",
        f"{LAKE}/import",
        f"POST {LAKE}/branches/main/import",
        MAIN,
        form={"source": "nowhere://a/b"},
        json={"paths": [], "commit": {"message": "m"}},
        fails=400,
    ),
    Case(
        "/repositories/{repository}/import/cancel",
        f"{LAKE}/import/cancel",
        f"DELETE {LAKE}/branches/main/import?id=none",
        {"ref": "main", "id": "none"},
        form={},
        fails=404,
    ),
    Case("/repositories/{repository}/changes", f"{LAKE}/changes", f"GET {LAKE}/branches/main/diff", MAIN),
    Case(
        "/repositories/{repository}/changes/commit",
        f"{LAKE}/changes/commit",
        f"POST {LAKE}/branches/main/commits",
        MAIN,
        form={"message": "m"},
        json={"message": "m"},
    ),
    Case(
        "/repositories/{repository}/object/copy",
        f"{LAKE}/object/copy",
        f"POST {LAKE}/branches/main/objects/copy?dest_path=copied",
        ONE,
        form={"branch": "main", "to": "copied"},
        json={"src_path": "a/b.csv", "src_ref": "main"},
    ),
    Case(
        "/repositories/{repository}/object/move",
        f"{LAKE}/object/move",
        f"POST {LAKE}/branches/main/objects/move?dest_path=moved",
        {"ref": "main", "path": "a/c.csv"},
        form={"to": "moved"},
        json={"src_path": "a/c.csv"},
    ),
    Case(
        "/repositories/{repository}/object/delete",
        f"{LAKE}/object/delete",
        f"DELETE {LAKE}/branches/main/objects?path=a/b.csv",
        ONE,
        form={"typed": "b.csv"},
    ),
    Case(
        "/repositories/{repository}/changes/discard",
        f"{LAKE}/changes/discard",
        f"PUT {LAKE}/branches/main",
        MAIN,
        form={"typed": "main"},
        json={"type": "reset"},
    ),
    Case("/repositories/{repository}/commits", f"{LAKE}/commits", f"GET {LAKE}/refs/main/commits", MAIN),
    Case("/repositories/{repository}/commits/{commit}", f"{LAKE}/commits/main", f"GET {LAKE}/commits/main"),
    *of_refs("branches", "branch"),
    *of_refs("tags", "tag"),
    Case(
        "/repositories/{repository}/compare",
        f"{LAKE}/compare",
        f"GET {LAKE}/refs/main~1/diff/main",
        {"ref": "main", "base": "main~1"},
    ),
    Case(
        "/repositories/{repository}/compare/contents",
        f"{LAKE}/compare/contents",
        f"GET {LAKE}/refs/main/objects/stat?path=none",
        {"base": "main", "ref": "main", "path": "none"},
        fails=404,
    ),
    Case(
        "/repositories/{repository}/compare/table",
        f"{LAKE}/compare/table",
        f"GET {LAKE}/refs/main/diff/side/table?table=sales/orders",
        {"base": "main", "ref": "side", "table": "sales/orders"},
        fails=404,
    ),
    Case(
        "/repositories/{repository}/compare/merge",
        f"{LAKE}/compare/merge",
        f"POST {LAKE}/refs/side/merge/main",
        {"ref": "side", "base": "main"},
        form={},
        json={},
    ),
    Case("/deleted-repositories", "/deleted-repositories", "GET /deleted/repositories"),
    Case(
        "/deleted-repositories",
        "/deleted-repositories",
        "POST /repositories/gone/undelete",
        {"repository": "gone"},
        form={},
        json={},
    ),
    Case("/repositories/{repository}/pulls", f"{LAKE}/pulls", f"GET {LAKE}/pulls?status=open"),
    Case(
        "/repositories/{repository}/pulls",
        f"{LAKE}/pulls",
        f"POST {LAKE}/pulls",
        form={"title": "two", "source": "side", "destination": "main"},
        json={"title": "two", "source_branch": "side", "destination_branch": "main"},
    ),
    Case("/repositories/{repository}/pulls/{pull}", f"{LAKE}/pulls/PULL", f"GET {LAKE}/pulls/PULL"),
    Case(
        "/repositories/{repository}/pulls/{pull}/status",
        f"{LAKE}/pulls/PULL/status",
        f"PATCH {LAKE}/pulls/PULL",
        {"status": "open"},
        form={},
        json={"status": "open"},
    ),
    Case(
        "/repositories/{repository}/pulls/{pull}/merge",
        f"{LAKE}/pulls/PULL/merge",
        f"PUT {LAKE}/pulls/PULL/merge",
        form={},
    ),
    Case(
        "/repositories/{repository}/commits/{commit}/revert",
        f"{LAKE}/commits/side/revert",
        f"POST {LAKE}/branches/side/revert",
        form={"branch": "side"},
        json={"ref": "side", "parent_number": 0},
    ),
    Case(
        "/repositories/{repository}/commits/{commit}/cherry-pick",
        f"{LAKE}/commits/pulled/cherry-pick",
        f"POST {LAKE}/branches/side/cherry-pick",
        form={"branch": "side"},
        json={"ref": "pulled"},
    ),
    Case("/repositories/{repository}/moves", f"{LAKE}/moves", f"GET {LAKE}/branches/side/reflog", {"branch": "side"}),
    Case(
        "/repositories/{repository}/moves/back",
        f"{LAKE}/moves/back",
        f"PUT {LAKE}/branches/side/hard_reset?ref=main",
        {"branch": "side", "commit": "main"},
        form={"typed": "side"},
    ),
    Case("/users", "/users", "GET /auth/users"),
    Case("/users", "/users", "POST /auth/users", form={"user": "maia"}, json={"id": "maia"}),
    Case("/user", "/user", "GET /auth/users/nox", {"user": "nox"}),
    Case(
        "/user/groups",
        "/user/groups",
        "PUT /auth/groups/Viewers/members/nox",
        {"user": "nox"},
        form={"group": "Viewers"},
    ),
    Case(
        "/user/groups/remove",
        "/user/groups/remove",
        "DELETE /auth/groups/Viewers/members/nox",
        {"user": "nox", "group": "Viewers"},
        form={},
    ),
    Case(
        "/user/quota/remove",
        "/user/quota/remove",
        "DELETE /auth/users/nox/quota",
        {"user": "nox"},
        form={"typed": "nox"},
    ),
    Case(
        "/user/quota",
        "/user/quota",
        "PUT /auth/users/nox/quota",
        {"user": "nox"},
        form={"limit": "1TiB"},
        json={"limit_bytes": 1 << 40},
    ),
    Case("/groups", "/groups", "POST /auth/groups", form={"group": "staff"}, json={"id": "staff"}),
    Case("/group", "/group", "GET /auth/groups/staff", {"group": "staff"}),
    Case("/policies", "/policies", "GET /auth/policies"),
    Case(
        "/policies",
        "/policies",
        "POST /auth/policies",
        form={"policy": "look", "statement": STATEMENTS},
        json={"id": "look", "statement": json.loads(STATEMENTS)},
    ),
    Case("/policy", "/policy", "GET /auth/policies/look", {"policy": "look"}),
    Case(
        "/policy",
        "/policy",
        "PUT /auth/policies/look",
        {"policy": "look"},
        form={"statement": STATEMENTS},
        json={"id": "look", "statement": json.loads(STATEMENTS)},
    ),
    *of_holder("user", "/auth/users/nox", "nox"),
    *of_holder("group", "/auth/groups/staff", "staff"),
    Case(
        "/group/members",
        "/group/members",
        "PUT /auth/groups/staff/members/nox",
        {"group": "staff"},
        form={"user": "nox"},
    ),
    Case(
        "/group/members/remove",
        "/group/members/remove",
        "DELETE /auth/groups/staff/members/nox",
        {"group": "staff", "user": "nox"},
        form={},
    ),
    Case("/group/delete", "/group/delete", "DELETE /auth/groups/staff", {"group": "staff"}, form={"typed": "staff"}),
    Case("/policy/delete", "/policy/delete", "DELETE /auth/policies/look", {"policy": "look"}, form={"typed": "look"}),
    Case("/user/pairs", "/user/pairs", "POST /auth/users/nox/credentials", {"user": "nox"}, form={}),
    Case(
        "/user/pairs/delete",
        "/user/pairs/delete",
        "DELETE /auth/users/nox/credentials/KEY",
        {"user": "nox", "key": "KEY"},
        form={"typed": "KEY"},
    ),
    Case(
        "/user/sessions/end",
        "/user/sessions/end",
        "DELETE /auth/users/nox/sessions/none",
        {"user": "nox", "session": "none"},
        form={},
        fails=404,
    ),
    Case("/user/delete", "/user/delete", "DELETE /auth/users/nox", {"user": "nox"}, form={"typed": "nox"}),
    Case("/audit", "/audit", "GET /audit"),
    Case("/health", "/health", "GET /status"),
    Case("/repositories/{repository}/collections", f"{LAKE}/collections", f"GET {LAKE}/gc/plans"),
    Case("/repositories/{repository}/storage", f"{LAKE}/storage", f"GET {LAKE}/gc/storage"),
    Case(
        "/repositories/{repository}/collections",
        f"{LAKE}/collections",
        f"POST {LAKE}/gc/jobs",
        form={"kind": "none"},
        json={"request": {"action": "plan", "kinds": ["none"]}},
        fails=400,
    ),
    Case(
        "/repositories/{repository}/collections/{run}",
        f"{LAKE}/collections/{RUN}",
        f"GET {LAKE}/gc/plans/{RUN}",
        fails=404,
    ),
    Case(
        "/repositories/{repository}/collections/{run}/apply",
        f"{LAKE}/collections/{RUN}/apply",
        f"GET {LAKE}/gc/plans/{RUN}",
        form={"typed": "1"},
        fails=404,
    ),
    Case(
        "/repositories/{repository}/collections/{run}/undo",
        f"{LAKE}/collections/{RUN}/undo",
        f"POST {LAKE}/gc/runs/{RUN}/undone",
        form={"typed": RUN},
        json={},
        fails=404,
    ),
    Case(
        "/repositories/{repository}/collections/{run}/restore",
        f"{LAKE}/collections/{RUN}/restore",
        f"POST {LAKE}/gc/restore",
        form={"path": "a/"},
        json={"run_id": RUN, "path": "a/"},
        fails=404,
    ),
    Case("/repositories/{repository}/erasures", f"{LAKE}/erasures", f"GET {LAKE}/gc/plans?kind=erasure"),
    Case(
        "/repositories/{repository}/erasures",
        f"{LAKE}/erasures",
        f"POST {LAKE}/gc/jobs",
        form={"why": "x"},
        json={"request": {"action": "plan-erasure", "selection": {}, "why": "x"}},
        fails=400,
    ),
    Case(
        "/repositories/{repository}/erasures/{run}", f"{LAKE}/erasures/{RUN}", f"GET {LAKE}/gc/plans/{RUN}", fails=404
    ),
    Case(
        "/repositories/{repository}/erasures/{run}",
        f"{LAKE}/erasures/{RUN}",
        f"GET {LAKE}/gc/plans/{RUN}",
        form={"typed": "1"},
        fails=404,
    ),
    Case(
        "/repositories/{repository}/erasures/{run}/certificate",
        f"{LAKE}/erasures/{RUN}/certificate",
        f"GET {LAKE}/gc/runs/{RUN}/certificate",
        fails=404,
    ),
    Case("/repositories/{repository}/rules", f"{LAKE}/rules", f"GET {LAKE}/gc/rules/full"),
    Case(
        "/repositories/{repository}/rules",
        f"{LAKE}/rules",
        f"PUT {LAKE}/gc/rules/full",
        form={"typed": "lake", "rules": '{"default": "30d"}', "if_version": "0"},
        json={"default": "30d"},
    ),
    Case(
        "/repositories/{repository}/rules/try",
        f"{LAKE}/rules/try",
        f"POST {LAKE}/gc/rules/try",
        query={"rules": '{"default":"1h"}'},
        json={"default": "1h"},
    ),
    Case(
        "/repositories/{repository}/rules/try",
        f"{LAKE}/rules/try",
        f"POST {LAKE}/gc/rules/try",
        form={"rules": '{"default": "1h"}'},
        json={"default": "1h"},
    ),
    Case(
        "/repositories/{repository}/rules/plan",
        f"{LAKE}/rules/plan",
        f"POST {LAKE}/gc/jobs",
        form={"rules": '{"default": "soon"}'},
        json={"request": {"action": "plan", "kinds": ["committed"], "rules": {"default": "soon"}}},
        fails=400,
    ),
    Case("/repositories/{repository}/holds", f"{LAKE}/holds", f"GET {LAKE}/holds"),
    Case(
        "/repositories/{repository}/holds",
        f"{LAKE}/holds",
        f"POST {LAKE}/holds",
        form={"name": "case-7", "globs": "a/*", "why": "court"},
        json={"name": "case-7", "globs": ["a/*"], "why": "court"},
    ),
    Case(
        "/repositories/{repository}/holds/release",
        f"{LAKE}/holds/release",
        f"DELETE {LAKE}/holds/case-7?why=over",
        {"hold": "case-7"},
        form={"typed": "case-7", "why": "over"},
    ),
    Case("/repositories/{repository}/lifecycle", f"{LAKE}/lifecycle", f"GET {LAKE}/lifecycle/policy"),
    Case(
        "/repositories/{repository}/lifecycle",
        f"{LAKE}/lifecycle",
        f"PUT {LAKE}/lifecycle/policy",
        form={"typed": "lake", "policy": POLICY, "if_version": "0"},
        json={"policy": json.loads(POLICY)},
    ),
    Case(
        "/repositories/{repository}/lifecycle/check",
        f"{LAKE}/lifecycle/check",
        f"POST {LAKE}/lifecycle/policy/validate",
        form={"policy": POLICY},
        json={"policy": json.loads(POLICY)},
    ),
    Case(
        "/repositories/{repository}/lifecycle/simulate",
        f"{LAKE}/lifecycle/simulate",
        f"POST {LAKE}/gc/jobs",
        {"by": "saved"},
        form={"days": "999"},
        json={"request": {"action": "simulate", "days": 999}},
        fails=400,
    ),
    Case(
        "/repositories/{repository}/lifecycle/branches",
        f"{LAKE}/lifecycle/branches",
        f"POST {LAKE}/lifecycle/branches/sweep",
        form={"typed": "1", "branch": "side", "state": "x", "if_version": "9"},
        json={"policy_version": 9, "branches": [{"branch": "side", "state": "x"}]},
        fails=412,
    ),
    Case(
        "/repositories/{repository}/lifecycle/remove",
        f"{LAKE}/lifecycle/remove",
        f"DELETE {LAKE}/lifecycle/policy?if_version=1",
        form={"typed": "lake", "if_version": "2"},
    ),
    Case("/repositories/{repository}/sandboxes", f"{LAKE}/sandboxes", f"GET {LAKE}/sandboxes"),
    Case(
        "/repositories/{repository}/sandboxes",
        f"{LAKE}/sandboxes",
        f"POST {LAKE}/sandboxes",
        form={"source": "main", "ttl": "2d", "name": "kim"},
        json={"source": "main", "ttl": "2d", "name": "kim"},
    ),
    *of_one("sandboxes", "sandbox", ("extend", "POST", "/extend", {"ttl": "3d"})),
    *of_one("sandboxes", "sandbox", ("promote", "POST", "/promote", None), ("end", "DELETE", "", None))[1:],
    Case("/repositories/{repository}/quotas", f"{LAKE}/quotas", f"GET {LAKE}/quotas"),
    Case(
        "/repositories/{repository}/quotas",
        f"{LAKE}/quotas",
        f"PUT {LAKE}/quotas",
        form={"branch": "", "limit": "1TiB"},
        json={"limit_bytes": 1 << 40},
    ),
    Case("/repositories/{repository}/quotas/count", f"{LAKE}/quotas/count", f"POST {LAKE}/quotas/count", form={}),
    Case(
        "/repositories/{repository}/quotas/remove",
        f"{LAKE}/quotas/remove",
        f"DELETE {LAKE}/quotas?branch=none",
        {"branch": "none"},
        form={"typed": "none"},
    ),
    Case("/repositories/{repository}/events", f"{LAKE}/events", f"GET {LAKE}/event_subscriptions"),
    Case(
        "/repositories/{repository}/events",
        f"{LAKE}/events",
        f"POST {LAKE}/event_subscriptions",
        form={"target": "https://example.org/"},
        json={"target": "https://example.org/"},
    ),
    *of_one("events", "subscription", ("replay", "POST", "/replay", {"after": "0"}), api="event_subscriptions")[1:],
    *of_one("events", "subscription", ("end", "DELETE", "", None), api="event_subscriptions")[1:],
    Case("/repositories/{repository}/why", f"{LAKE}/why", f"GET {LAKE}/gc/why?ref=main&path=a/b.csv", ONE),
    Case("/repositories/{repository}/hooks", f"{LAKE}/hooks", f"GET {LAKE}/actions/runs"),
    Case("/repositories/{repository}/hooks/{run}", f"{LAKE}/hooks/none", f"GET {LAKE}/actions/runs/none", fails=404),
    Case("/repositories/{repository}/delete", f"{LAKE}/delete", f"DELETE {LAKE}", form={"typed": "lake"}),
    Case("/logout", "/logout", "POST /auth/logout", form={}),
)
PUBLIC = {("GET", "/setup"), ("POST", "/setup"), ("GET", "/login"), ("POST", "/login"), ("POST", "/colours")}


@pytest.fixture
async def browser(app: App) -> AsyncIterator[Browser]:
    browser = Browser(app)
    async with browser.http:
        yield browser


async def make_user(client: httpx.AsyncClient, name: str, statement: object) -> tuple[str, str]:
    await client.post("/auth/users", json={"id": name})
    if statement:
        policy = {"id": f"of-{name}", "statement": statement}
        assert (await client.post("/auth/policies", json=policy)).status_code == 201
        assert (await client.put(f"/auth/users/{name}/policies/of-{name}")).status_code == 201
    pair = (await client.post(f"/auth/users/{name}/credentials")).json()
    return pair["access_key_id"], pair["secret_access_key"]


@pytest.fixture
async def filled(client: httpx.AsyncClient, repo: str) -> httpx.AsyncClient:
    for path in ("a/b.csv", "a/c.csv"):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"x,y\n1,2\n")
    await client.post(f"{repo}/branches/main/commits", json={"message": "first"})
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await client.post(f"{repo}/branches/side/objects", params={"path": "s"}, content=b"x")
    await client.post(f"{repo}/branches/side/commits", json={"message": "aside"})
    await client.post(f"{repo}/branches/main/objects", params={"path": "a/d.csv"}, content=b"x")
    await client.post(f"{repo}/branches", json={"name": "pulled", "source": "main"})
    await client.post(f"{repo}/branches/pulled/objects", params={"path": "p"}, content=b"x")
    await client.post(f"{repo}/branches/pulled/commits", json={"message": "to pull"})
    pull = {"title": "one", "source_branch": "pulled", "destination_branch": "main"}
    await client.post(f"{repo}/pulls", json=pull)
    gone = {"name": "gone", "storage_namespace": f"mem://gone-{id(client)}"}
    await client.post("/repositories", json=gone)
    await client.delete("/repositories/gone")
    await client.post("/auth/users", json={"id": "nox"})
    return client


@asynccontextmanager
async def of_caller(
    app: App, filled: httpx.AsyncClient, caller: str
) -> AsyncIterator[tuple[Browser, httpx.AsyncClient]]:
    """The browser of a caller, and a client of the API with the same rights."""
    browser = Browser(app)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    pair: tuple[str, str] | None = None
    if caller != "stranger":
        statement = {"bare": None, "other": OTHER, "denied": DENIED, "esti": None}[caller]
        if caller == "esti":
            made = (await filled.post("/auth/users/esti/credentials")).json()
            pair = made["access_key_id"], made["secret_access_key"]
        else:
            pair = await make_user(filled, caller, statement)
        await browser.log_in(*pair)
    async with httpx.AsyncClient(transport=transport, base_url=f"{HOME}/api/v1", auth=pair) as api:
        yield browser, api
    await browser.http.aclose()


def test_the_cases_are_every_page_and_form() -> None:
    cases = {("GET" if case.form is None else "POST", case.page) for case in CASES}

    assert cases | PUBLIC == {(page.method, page.path) for page in PAGES}


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_page_answers_as_its_operation_does(app: App, filled: httpx.AsyncClient, caller: str) -> None:
    async with of_caller(app, filled, caller) as (browser, api):
        token = await browser.token()
        pulls = (await filled.get(f"{LAKE}/pulls")).json()["results"]
        for case in [of_pull(case, pulls[0]["id"]) for case in CASES]:
            if case.form is None:
                page = await browser.get(case.address, **case.query)
            elif case.address.endswith("/objects"):
                url = httpx.URL(browser.address(case.address), params=dict(case.query))
                files = {"content": ("f.txt", b"1")}
                page = await browser.http.post(url, data={"token": token, **case.form}, files=files)
            else:
                address = f"{case.address}?{httpx.QueryParams(dict(case.query))}"
                page = await browser.post(address, {"token": token, **case.form})
            method, _, path = case.api.partition(" ")
            if caller == "esti" and "KEY" not in path:
                assert page.status_code in ({case.fails} if case.fails else {200, 303}), (case, page.text)
                if case.fails:
                    continue
            own = await api.request(method, path, json=case.json)
            compare(caller, case, page, own)


def of_pull(case: Case, pull: str) -> Case:
    return replace(case, address=case.address.replace("PULL", pull), api=case.api.replace("PULL", pull))


def compare(caller: str, case: Case, page: httpx.Response, own: httpx.Response) -> None:
    if caller == "stranger":
        assert own.status_code == 401, case
        if case.form is None:
            assert page.status_code == 303, case
            assert "login" in page.headers["location"], case
        else:
            assert page.status_code == 401, case
    elif case.form is not None and page.status_code in {200, 303}:
        # The page did it already, so the second one may find nothing to do.
        assert own.status_code not in {401, 403}, (case, own.text)
    elif own.is_success:
        assert page.status_code in {200, 303}, (case, page.text)
    else:
        assert page.status_code == {401: 403}.get(own.status_code, own.status_code), (case, own.text, page.text)
        assert own.json()["message"] in html.unescape(page.text), case
    assert {name: page.headers[name] for name in HEADERS} == HEADERS


async def test_what_a_page_does_not_show_it_says(app: App, filled: httpx.AsyncClient) -> None:
    statement = [{"effect": "allow", "action": ["fs:ReadRepository"], "resource": "*"}]
    pair = await make_user(filled, "few", statement)
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(*pair)
        page = await browser.get(LAKE)

    assert page.status_code == 200
    assert "Some parts of this page are not shown to you" in page.text
    assert "fs:ListBranches" in page.text


async def test_a_first_visit_makes_an_administrator_and_a_sample_lake(browser: Browser, state: AppState) -> None:
    welcome = await browser.follow(await browser.get("/"))
    pair = await browser.fill(welcome, "setup", username="vera")
    new = await browser.get("/new-repository", sample="1")
    lake = await browser.follow(await browser.fill(new, "new-repository"))
    again = await browser.post("/setup", {"token": await browser.token(), "username": "mallory"})

    assert "Welcome to Lakebed" in welcome.text
    assert pair.text.count("data-copy") == 2
    assert "Created the repository sample-lake." in lake.text
    assert "Add sample data" in lake.text
    assert "vera" in (await browser.get("/")).text
    assert again.status_code == 409
    [line] = state.audit.read(AuditQuery(operation="createRepository"))[0]
    assert (line.user, line.what["name"], line.allowed) == ("vera", "sample-lake", True)


async def test_a_week_of_one_object(browser: Browser, filled: httpx.AsyncClient) -> None:
    made = (await filled.post("/auth/users/esti/credentials")).json()
    await browser.log_in(made["access_key_id"], made["secret_access_key"])
    folder = await browser.get(f"{LAKE}/objects", path="a/")
    [form] = [form for form in Forms(folder.text).forms if form.fields.get("path") == "a/" and form.method == "post"]
    url = folder.url.join(form.action)
    sent = await browser.http.post(url, data=form.fields, files={"content": ("new.csv", b"p,q\n3,4\n", "text/csv")})
    shown = await browser.follow(sent)
    changes = await browser.get(f"{LAKE}/changes")
    kept = await browser.follow(await browser.fill(changes, "changes/commit", message="add it", metadata="why = test"))
    stored = await filled.get(f"{LAKE}/refs/main/objects", params={"path": "a/new.csv"})
    looked = await browser.get(f"{LAKE}/object", path="a/new.csv")
    gone = await browser.follow(await browser.fill(looked, "object/delete", typed="new.csv"))
    changes = await browser.get(f"{LAKE}/changes")
    back = await browser.follow(await browser.fill(changes, "changes/discard?ref=main&path=a%2Fnew.csv"))

    assert "Uploaded a/new.csv" in shown.text
    assert "data-preview" in shown.text
    assert "add it" in kept.text
    assert "why" in kept.text
    assert (stored.content, stored.headers["content-type"]) == (b"p,q\n3,4\n", "text/csv")
    assert "Deleted a/new.csv from main" in gone.text
    assert "Discarded the change of a/new.csv" in back.text


async def test_a_form_without_its_token_or_from_elsewhere_changes_nothing(
    browser: Browser, filled: httpx.AsyncClient, state: AppState
) -> None:
    made = (await filled.post("/auth/users/esti/credentials")).json()
    await browser.log_in(made["access_key_id"], made["secret_access_key"])
    token = await browser.token()
    for fields, origin in (
        ({"typed": "lake"}, HOME),
        ({"typed": "lake", "token": "x" * 43}, HOME),
        ({"typed": "lake", "token": token}, "https://evil.example"),
        ({"typed": "lake", "token": token}, "null"),
    ):
        answer = await browser.post(f"{LAKE}/delete", fields, origin=origin)
        assert answer.status_code == 403, (fields, origin)
    other = Browser(browser.http._transport.app)  # type: ignore[attr-defined]  # the transport keeps its application
    async with other.http:
        stolen = await other.post(f"{LAKE}/delete", {"typed": "lake", "token": token})
    wrong = await browser.post(f"{LAKE}/delete", {"typed": "other", "token": token})

    assert stolen.status_code == 401
    assert (wrong.status_code, "type lake to confirm" in wrong.text) == (400, True)
    assert (await filled.get(LAKE)).status_code == 200
    refused = state.audit.read(AuditQuery(is_denied=True))[0]
    assert [line.what for line in refused] == [{"path": f"{LAKE}/delete"}] * 4


async def test_a_login_returns_to_the_page_that_was_asked_for_and_to_no_other_server(
    app: App, filled: httpx.AsyncClient
) -> None:
    key, secret = await make_user(filled, "vera", None)
    for target, location in (
        (f"{LAKE}/objects?ref=main", "./repositories/lake/objects?ref=main"),
        ("//evil.example/", "./"),
        ("/\\evil.example", "./"),
        ("/javascript:alert(1)", "./javascript:alert(1)"),
        ("https://evil.example", "./"),
        ("/a\r\nset-cookie: x=y", "./"),
    ):
        browser = Browser(app)
        async with browser.http:
            page = await browser.get("/login")
            token = Forms(page.text).forms[-1].fields["token"]
            fields = {"token": token, "access_key_id": key, "secret_access_key": secret}
            done = await browser.post(f"/login?{httpx.QueryParams({'next': target})}", fields)
        assert (done.status_code, done.headers["location"]) == (303, location)


async def test_a_login_is_ended_by_its_user(browser: Browser, filled: httpx.AsyncClient, app: App) -> None:
    key, secret = await make_user(filled, "vera", DENIED[:1])
    other = Browser(app)
    async with other.http:
        await other.log_in(key, secret)
        await browser.log_in(key, secret)
        first = (await filled.get("/auth/users/vera/sessions")).json()["results"]
        ended = await browser.follow(await browser.fill(await browser.get("/user"), f"session={first[0]['id']}"))
        left = (await filled.get("/auth/users/vera/sessions")).json()["results"]

    assert len(first) == 2
    assert [each["id"] for each in left] == [first[1]["id"]]
    assert "Ended the login" in ended.text or ended.url.path == "/login"


async def test_a_wrong_key_pair_is_401_and_says_so(browser: Browser, client: httpx.AsyncClient) -> None:
    answer = await browser.fill(await browser.get("/login"), "login", access_key_id="a", secret_access_key="b")

    assert (answer.status_code, "This key pair is not right" in answer.text) == (401, True)


async def test_a_large_form_is_refused_before_it_is_decoded(browser: Browser, client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}
    made = (await client.post("/auth/users/esti/credentials")).json()
    for path, size_bytes in (("/login", 65_537), ("/setup", 65_537), ("/colours", 65_537), ("/logout", 393_217)):
        if path == "/logout":
            await browser.log_in(made["access_key_id"], made["secret_access_key"])

        answer = await browser.http.post(browser.address(path), content=b"&" * size_bytes, headers=headers)

        assert answer.status_code == 400, (path, answer.status_code)
        assert f"request body is larger than {size_bytes - 1} bytes" in answer.text


async def test_links_hold_below_a_path_of_a_proxy(app: App, browser: Browser, filled: httpx.AsyncClient) -> None:
    made = (await filled.post("/auth/users/esti/credentials")).json()
    await browser.log_in(made["access_key_id"], made["secret_access_key"])
    for address in ("/", LAKE, f"{LAKE}/objects", f"{LAKE}/commits/main", "/no/such/page/at/all"):
        page = await browser.get(address)
        for link in Forms(page.text).links:
            assert not link.startswith(("/", "http")), (address, link)
            below = httpx.URL(f"http://proxy/deep{address}").join(link)
            assert below.path.startswith("/deep/"), (address, link)


async def test_only_a_browser_gets_the_page_at_the_root(app: App, stranger: httpx.AsyncClient) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as http:
        plain = await http.get("/")
        page = await http.get("/", headers={"accept": "text/html"})
        signed = await http.get("/", headers={"accept": "text/html", "authorization": "AWS4-HMAC-SHA256 x"})

    assert (plain.status_code, "described in" in plain.text) == (200, True)
    assert page.status_code == 303
    assert signed.headers["content-type"] == "application/xml"


async def test_the_api_and_s3_answer_before_the_door_is_asked(
    app: App, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So neither costs more for the page."""
    asked: list[str] = []

    def note(_: Door, request: RestRequest) -> bool:
        asked.append(request.scope["path"])
        return False

    monkeypatch.setattr(Door, "is_asked", note)
    await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=b"x")
    await client.get(f"{repo}/refs/main/objects", params={"path": "a"}, headers={"accept": "text/html"})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as http:
        await http.get("/lake/main/a", headers={"accept": "text/html", "authorization": "AWS4-HMAC-SHA256 x"})
        assert asked == []
        await http.get("/lake", headers={"accept": "text/html"})

    assert asked == ["/lake"]


def test_the_reader_of_parquet_is_the_one_that_was_bundled() -> None:
    """docs/design/0012-page.md has the command, "Parquet"."""
    reader = (FOLDER / "static" / "hyparquet.js").read_bytes()

    assert hashlib.sha256(reader).hexdigest() == "4f3cc9a007c1cbca3edfa773b8362270015d0e9d3e16b6d55b40515cdbac19fc"
    assert (FOLDER / "static" / "hyparquet.txt").read_text().count("MIT License") == 3


async def test_static_files_are_kept_by_browsers_and_are_few_bytes(browser: Browser) -> None:
    page = await browser.follow(await browser.get("/"))
    total = len(page.content)
    for link in Forms(page.text).links:
        if "static" in link:
            answer = await browser.http.get(page.url.join(link))
            assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            total += len(answer.content)

    assert total < 100 << 10
    assert (await browser.get("/static/0/page.css")).headers["cache-control"] == "no-cache"
    assert (await browser.get("/static/0/../door.py")).status_code == 404
