"""Names and texts from anyone: nothing of them becomes our HTML, on any page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from lakebed.catalog.tables import TableChange, TableName
from lakebed.server import App, AppState
from lakebed.server.web.render import FOLDER, paragraphs, shown
from lakebed.versions import Note
from tests.server.web.browsing import Browser, Forms

MARK = "zq"
HOSTILE = (
    f"<script>alert({MARK})</script>",
    f"\"'><img src=x onerror={MARK}>",
    f"{{{{ {MARK} }}}}{{% {MARK} %}}",
    f"\u202e{MARK}\u2066\u200f",
    f"{MARK}\x01\x1b[31m\r\n\ttab",
    f"javascript:{MARK}",
    f"{MARK}../..//%2e%2e%00&amp;?#a=b;c",
)
LAKE = "/repositories/lake"
INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\x00-\x08\x0b-\x1f\x7f]")
ELEMENTS = re.compile(
    "html|head|meta|title|link|script|body|a|main|nav|p|section|ul|ol|li|h[123]|form|label|input|textarea|select|option|"
    "button|datalist|table|thead|tbody|tr|th|td|details|summary|dl|dt|dd|code|pre|bdi|span|strong|time|div|header|img|"
    "progress|br|svg|rect|line|circle"
)


def of_collections(text: str, path: str) -> list[tuple[str, dict[str, str]]]:
    """Addresses of pages about collections and what keeps objects, with hostile queries."""
    segment = quote(text[:1000], safe="")
    return [
        (f"{LAKE}/collections", {"after": text}),
        (f"{LAKE}/collections/{segment}", {"prefix": text, "after": text}),
        (f"{LAKE}/rules", {"branch": text, "version": text}),
        (f"{LAKE}/rules", {"branch": text}),
        (f"{LAKE}/holds", {}),
        (f"{LAKE}/lifecycle", {"version": text, "prefix": text, "after": text, "simulation": text}),
        (f"{LAKE}/lifecycle", {"prefix": "", "after": ""}),
        (f"{LAKE}/sandboxes", {"after": text}),
        (f"{LAKE}/quotas", {"after": text}),
        (f"{LAKE}/sandboxes/{segment}", {}),
        (f"{LAKE}/events", {"after": text}),
        (f"{LAKE}/why", {"ref": "main", "path": path}),
        (f"{LAKE}/why", {"address": text, "continuation_token": text}),
        (f"{LAKE}/hooks", {"branch": text, "after": text}),
        (f"{LAKE}/hooks/{segment}", {"hook": text}),
    ]


async def make_table(state: AppState, text: str, *, time_ms: int = 1) -> str:
    """Make a table with hostile names on `main`, as its writers may, and return its path."""
    tables = (await state.catalog.get("lake")).tables
    await tables.start()
    part = re.sub(r"[/\x00-\x1f\x7f]", "_", text)[:200].strip(".") or "x"
    name, file = TableName((part,), part), "u/metadata/00000-x.metadata.json"
    field = {"id": 1, "name": text, "type": text, "doc": text}
    snapshot = {"snapshot-id": 7, "timestamp-ms": time_ms, "summary": {"operation": text, "added-records": text}}
    metadata = {
        "format-version": 2,
        "location": text,
        "schemas": [{"fields": [field]}],
        "partition-specs": [{"fields": [{"source-id": 1, "transform": text}]}],
        "sort-orders": [{"fields": [{"source-id": 1, "transform": text, "direction": text, "null-order": text}]}],
        "properties": {text: text},
        "current-snapshot-id": 7,
        "snapshots": [snapshot],
        "refs": {text: {"snapshot-id": 7, "type": text}},
    }
    note = Note(message=text, committer=text)
    await tables.put(file, json.dumps(metadata).encode())
    await tables.create_namespace("main", (part,), {}, note)
    await tables.commit("main", [TableChange(name=name, expected=None, metadata=file, uuid="u")], note)
    return f"{part}/{part}"


def check(page: httpx.Response, text: str) -> None:
    """The page has only elements of ours, no handlers, no styles, and no address that leads elsewhere."""
    assert page.status_code < 500, (page.url, text)
    forms = Forms(page.text)
    for tag, values in forms.elements:
        assert ELEMENTS.fullmatch(tag), (page.url, tag)
        assert not [name for name in values if name.startswith("on") or name == "style"], (page.url, tag, values)
        assert tag != "script" or values["src"].endswith("/page.js"), values
    for link in forms.links:
        assert link.startswith(("./", "../")) or link == "#main" or link == "", link
    # Between the tags: names in fields are sent back as they are.
    words = re.sub(r"<textarea[^>]*>[^<]*</textarea>|<[^>]*>", "", page.text)
    assert not INVISIBLE.search(words), (page.url, text)


@pytest.mark.parametrize("text", [*HOSTILE, MARK * 5000], ids=range(len(HOSTILE) + 1))
async def test_no_name_and_no_text_becomes_html(
    app: App, state: AppState, client: httpx.AsyncClient, repo: str, text: str
) -> None:
    path = text[:1000]
    made = await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"x")
    assert made.status_code == 201, made.text
    body = {"src_path": path}
    await client.post(f"{repo}/branches/main/objects/copy", params={"dest_path": f"{path}/{path}"[:1000]}, json=body)
    await client.post(f"{repo}/branches/main/objects", params={"path": "README.md"}, content=text.encode())
    metadata = {"key " + text[:200]: text}
    policy: dict[str, object] = {
        "rules": {"r": {"prefix": text[:200], "period": "9d", "metadata": {text[:200]: text[:200]}}}
    }
    policy |= {"branches": {"*": {"idle": "9d"}}, "pins": {"prefixes": [text[:200]]}}
    await client.put(f"{repo}/lifecycle/policy", json={"policy": policy})
    await client.put(f"{repo}/branches/main/objects/stat/user_metadata", params={"path": path}, json={"set": metadata})
    changed = Browser(app)
    pair = (await client.post("/auth/users/esti/credentials")).json()
    async with changed.http:
        await changed.log_in(pair["access_key_id"], pair["secret_access_key"])
        check(await changed.get(f"{LAKE}/changes", ref="main"), text)
        done = await client.post(f"{repo}/branches/main/commits", json={"message": text, "metadata": metadata})
        commit = done.json().get("id", "main")
        table = await make_table(state, text)
        for address, query in (
            (LAKE, {}),
            (f"{LAKE}/objects", {"path": path}),
            (f"{LAKE}/objects", {"ref": "main"}),
            (f"{LAKE}/objects", {"ref": "main", "details": "1"}),
            (f"{LAKE}/objects", {"ref": text}),
            (f"{LAKE}/object", {"ref": "main", "path": path}),
            (f"{LAKE}/object", {"ref": text, "path": text}),
            (f"{LAKE}/changes", {"ref": text, "prefix": text, "after": text}),
            (f"{LAKE}/changes", {"ref": "main", "prefix": text, "tree": "1", "count": "1"}),
            (f"{LAKE}/compare", {"ref": "main", "base": f"{commit}~1", "tree": "1", "count": "1", "all": "1"}),
            (f"{LAKE}/tables", {"ref": "main"}),
            (f"{LAKE}/tables", {"ref": text, "namespace": text, "after": text}),
            (f"{LAKE}/table", {"ref": "main", "table": table}),
            (f"{LAKE}/table", {"ref": text, "table": text, "after": text}),
            (f"{LAKE}/compare/table", {"base": "main~1", "ref": "main", "table": table}),
            (f"{LAKE}/compare/table", {"base": text, "ref": text, "table": text}),
            (f"{LAKE}/commits", {"ref": "main", "path": path}),
            (f"{LAKE}/commits", {"ref": "main", "after": text}),
            (f"{LAKE}/commits", {"ref": "main", "since": text, "first": text, "committer": text}),
            (f"{LAKE}/commits/{commit}", {"ref": text}),
            (f"{LAKE}/commits/{commit}", {"ref": "main", "prefix": text[:1], "tree": "1", "count": "1"}),
            (f"{LAKE}/branches", {"prefix": text, "after": text}),
            (f"{LAKE}/branches", {"distances": "1"}),
            (f"{LAKE}/tags", {"prefix": text}),
            (f"{LAKE}/compare", {"ref": text, "base": text}),
            (f"{LAKE}/compare", {"ref": "main", "base": f"{commit}~1", "prefix": ""}),
            (f"{LAKE}/compare", {"ref": "main", "base": f"{commit}~1", "conflicts": "1"}),
            (f"{LAKE}/compare/contents", {"base": "main", "ref": text, "path": path}),
            (f"{LAKE}/moves", {"branch": text, "after": text}),
            (f"{LAKE}/moves", {"branch": "main"}),
            (f"{LAKE}/moves", {"tag": text}),
            (f"{LAKE}/object", {"ref": "main", "path": path, "presign": "1"}),
            (f"{LAKE}/pulls", {"status": text}),
            (f"{LAKE}/pulls", {"status": "all"}),
            (f"{LAKE}/pulls/{quote(text, safe='')}", {}),
            ("/deleted-repositories", {"after": text}),
            ("/users", {"prefix": text}),
            ("/user", {"user": text}),
            ("/user", {"user": "esti", "action": text, "resource": text}),
            ("/group", {"group": text}),
            ("/policies", {"prefix": text, "after": text}),
            ("/policy", {"policy": text}),
            ("/audit", {}),
            ("/health", {}),
            ("/audit", {"user": text, "since": text}),
            *of_collections(text, path),
            ("/search", {"text": text, "repository": text}),
            ("/search", {"text": text, "repository": "lake"}),
            ("/search", {"text": f"lakefs://{text}"}),
            ("/", {"search": text, "after": text}),
            ("/", {"details": "1"}),
            (f"{LAKE}/import", {"ref": text, "id": text}),
            ("/new-repository", {"sample": text}),
            ("/login", {"next": text}),
            (f"/{quote(text, safe='')}", {}),
        ):
            check(await changed.follow(await changed.get(address, **query)), text)
        token = await changed.token()
        for address in (
            "changes/commit",
            "changes/discard",
            "object/delete",
            "object/copy",
            "object/move",
            "moves/back",
            f"commits/{commit}/cherry-pick",
            "delete",
            "compare/merge",
            "branches",
            "tags",
        ):
            fields = {"token": token, "typed": text, "message": text, "metadata": text, "branch": text, "to": text}
            asked = httpx.QueryParams({"ref": text, "path": path})
            check(await changed.post(f"{LAKE}/{address}?{asked}", fields), text)
        fields = {
            "token": token,
            "typed": "lake",
            "rules": text,
            "default": text,
            "pattern": text,
            "period": text,
            "keep_pattern": text,
            "keep_commits": text,
            "name": text,
            "globs": text,
            "why": text,
            "kind": text,
            "policy": text,
            "id": text,
            "was": "",
            "path": text,
            "exceptions": f"{text}={text}",
            "idle_was": "",
            "idle": text,
            "branch": text,
            "state": text,
            "if_version": text,
            "source": text,
            "ttl": text,
            "target": text,
            "refs": text,
            "operations": text,
            "after": text,
        }
        for address in (
            "rules",
            "rules/try",
            "rules/plan",
            "rules?by=fields",
            "rules/try?by=fields",
            "lifecycle?by=fields",
            "lifecycle/check",
            "lifecycle/check?by=fields",
            "lifecycle/simulate",
            "lifecycle/branches",
            "lifecycle/remove",
            "sandboxes",
            "import",
            "sandboxes/x/extend",
            "quotas",
            "quotas/remove",
            "events",
            "events/x/replay",
            "holds",
            "holds/release",
            "collections",
            "collections/r1/apply",
            "collections/r1/undo",
        ):
            asked = httpx.QueryParams({"hold": text})
            mark = "&" if "?" in address else "?"
            check(await changed.post(f"{LAKE}/{address}{mark}{asked}", fields), text)
        check(await changed.get(f"{LAKE}/holds"), text)
        fields = {"token": token, "group": text, "policy": text, "statement": text, "user": text, "typed": text}
        for address in ("groups", "policies", "policy", "group/members", "group/policies", "user/policies"):
            asked = httpx.QueryParams({"group": text, "policy": text, "user": text})
            check(await changed.post(f"/{address}?{asked}", fields), text)
        fields = {"token": token, "name": text, "namespace": text, "branch": text}
        check(await changed.post("/new-repository", fields), text)


def test_hidden_characters_are_shown_and_long_texts_are_cut() -> None:
    assert shown("a\u202eb\x00c\nd") == "a⟨202E⟩b⟨0⟩c⟨A⟩d"
    assert shown("x" * 10_000) == "x" * 260 + "…" + "x" * 39
    assert paragraphs("one\ntwo\r") == "one\ntwo⟨D⟩"


def test_templates_have_no_inline_script_or_style_and_never_trust_a_text() -> None:
    templates = sorted((FOLDER / "templates").rglob("*.html"))
    wrong = re.compile(r"\|\s*safe|autoescape|<style|style=|\son\w+=|<script(?! src=)|javascript:|Markup|=\{\{|=\{%")

    assert len(templates) > 10
    assert [(file.name, hit[0]) for file in templates for hit in wrong.finditer(file.read_text())] == []
    assert [file for file in Path(FOLDER).rglob("*.py") if "Markup" in file.read_text()] == []


async def test_no_time_that_a_writer_chose_breaks_a_page(
    app: App, state: AppState, client: httpx.AsyncClient, repo: str
) -> None:
    last_s = 253_402_300_799
    await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=b"x")
    done = await client.post(f"{repo}/branches/main/commits", json={"message": "m", "date": last_s})
    assert done.status_code == 201, done.text
    table = await make_table(state, "t", time_ms=10**18)
    browser = Browser(app)
    pair = (await client.post("/auth/users/esti/credentials")).json()
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        pages = [
            await browser.get(f"{LAKE}/why", ref="main", path="a"),
            await browser.get(f"{LAKE}/commits", ref="main"),
            await browser.get(f"{LAKE}/table", ref="main", table=table),
            await browser.get(f"{LAKE}/compare/table", base=done.json()["id"], ref="main", table=table),
        ]

    assert [page.status_code for page in pages] == [200] * len(pages)
    assert "9999-12-31" in pages[1].text
    assert f"{10**15} s" in pages[3].text
