"""Hooks over HTTP: action files on a branch, webhooks and scripts, what a failure refuses, and the runs kept."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.http import children
from lakebed.catalog import Event, EventType
from lakebed.hooks import HookOptions, Runs, lua
from lakebed.hooks.options import TIMEOUT_HOLDING_S, TIMEOUT_S
from lakebed.hooks.service import AT_ONCE_MAX, default_timeout_s
from lakebed.server import AppState, ServerOptions, opened
from tests.serving import serving

needs_lua = pytest.mark.skipif(importlib.util.find_spec("lupa") is None, reason="lupa is not installed")
OPTIONS = HookOptions(loopback=True, environment={"LAKEBED_ACTION_TOKEN": "s3cret"})


@dataclass
class Hooked:
    """A webhook that notes what it is sent, and answers with the statuses in turn, then 200."""

    url: str
    statuses: list[int] = field(default_factory=list)
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)


@pytest.fixture
def webhook() -> Iterator[Hooked]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.sent.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(found.statuses.pop(0) if found.statuses else 200)
            self.end_headers()
            self.wfile.write(b"looked at " + body["event_type"].encode())

        def log_message(self, *args: object) -> None:
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        found = Hooked(f"http://127.0.0.1:{port}/look")
        yield found


@pytest.fixture
async def state(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AppState]:
    hooks = getattr(request, "param", OPTIONS)
    async with opened(ServerOptions(data_dir=tmp_path, blockstore="mem", store_uri="mem://", hooks=hooks)) as state:
        yield state


def action(on: str, *hooks: dict[str, Any]) -> str:
    return json.dumps({"name": "checks", "on": {on: {"branches": ["main"]}}, "hooks": [*hooks]})


def hook(url: str, **more: Any) -> dict[str, Any]:
    properties = {"url": url, **more.pop("properties", {})}
    return {"id": "look", "type": "webhook", "properties": properties, **more}


def script(text: str, **properties: Any) -> dict[str, Any]:
    return {"id": "script", "type": "lua", "properties": {"script": text, **properties}}


async def put(client: httpx.AsyncClient, repo: str, path: str, text: str, branch: str = "main") -> None:
    answer = await client.post(f"{repo}/branches/{branch}/objects", params={"path": path}, content=text)
    assert answer.status_code == 201, answer.text


async def put_action(client: httpx.AsyncClient, repo: str, text: str) -> None:
    await put(client, repo, "_lakefs_actions/checks.yaml", text)


async def commit(client: httpx.AsyncClient, repo: str, branch: str = "main") -> httpx.Response:
    return await client.post(f"{repo}/branches/{branch}/commits", json={"message": "m", "metadata": {"k": "v"}})


async def runs(client: httpx.AsyncClient, repo: str, **query: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{repo}/actions/runs", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


async def output(client: httpx.AsyncClient, repo: str) -> str:
    """What the first hook of the newest run wrote."""
    run = (await runs(client, repo))[0]["run_id"]
    hooks = (await client.get(f"{repo}/actions/runs/{run}/hooks")).json()["results"]
    answer = await client.get(f"{repo}/actions/runs/{run}/hooks/{hooks[0]['hook_run_id']}/output")
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_a_webhook_is_sent_the_commit_that_it_may_refuse(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))
    webhook.statuses = [403]

    refused = await commit(client, repo)
    taken = await commit(client, repo)

    assert refused.status_code == 412, refused.text
    assert "pre-commit hook aborted" in refused.json()["message"]
    assert "look: the webhook answered 403" in refused.json()["message"]
    assert taken.status_code == 201, taken.text
    _, _, event = webhook.sent[0]
    assert event | {"event_time": ""} == {
        "event_type": "pre-commit",
        "event_time": "",
        "action_name": "checks",
        "hook_id": "look",
        "repository_id": "lake",
        "branch_id": "main",
        "tag_id": "",
        "source_ref": "main",
        "commit_id": "",
        "merge_source": "",
        "commit_message": "m",
        "committer": "esti",
        "commit_metadata": {"k": "v"},
    }
    assert [run["status"] for run in await runs(client, repo)] == ["completed", "failed"]
    assert "looked at pre-commit" in await output(client, repo)


async def test_a_commit_of_a_branch_that_no_pattern_names_is_not_asked_about(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    await put(client, repo, "a", "x", "dev")

    assert (await commit(client, repo, "dev")).status_code == 201

    assert webhook.sent == []
    assert await runs(client, repo) == []


@pytest.mark.parametrize("name", ["checks", "checks.json", "checks.yaml.bak", "deep/checks.txt"])
async def test_an_action_file_counts_whatever_its_name_ends_with(
    client: httpx.AsyncClient, repo: str, webhook: Hooked, name: str
) -> None:
    await put(client, repo, f"_lakefs_actions/{name}", action("pre-commit", hook(webhook.url)))
    webhook.statuses = [400]

    assert (await commit(client, repo)).status_code == 412


async def test_an_empty_file_among_the_actions_asks_for_no_check(client: httpx.AsyncClient, repo: str) -> None:
    for name in ("", ".gitkeep"):
        await put(client, repo, f"_lakefs_actions/{name}", "")

    assert (await commit(client, repo)).status_code == 201


@pytest.mark.parametrize(
    "text",
    [
        action("pre-merge", {"id": "a", "type": "airflow", "properties": {}}),
        action("pre-merge", {"id": "a", "type": "delta-export"}),
        action("pre-lunch", {"id": "a", "type": "webhook"}),
        action("pre-commit", {"id": "a", "type": "mail"}).replace("main", "dev"),
    ],
)
async def test_an_action_for_another_event_or_branch_refuses_no_commit(
    client: httpx.AsyncClient, repo: str, text: str
) -> None:
    await put_action(client, repo, text)

    assert (await commit(client, repo)).status_code == 201


async def test_the_commit_takes_what_a_hook_writes_while_it_is_prepared(client: httpx.AsyncClient, repo: str) -> None:
    """The server of the hook writes to the branch, and both checks come in their order."""
    loop, events = asyncio.get_running_loop(), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["content-length"])))["event_type"]
            events.append(event)
            if event == "prepare-commit":
                asyncio.run_coroutine_threadsafe(put(client, repo, "made/by-hook", "x"), loop).result()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        looks = hook(f"http://127.0.0.1:{port}/")
        text = json.dumps({"name": "checks", "on": {"prepare-commit": {}, "pre-commit": {}}, "hooks": [looks]})
        await put_action(client, repo, text)
        made = await commit(client, repo)

    assert made.status_code == 201, made.text
    assert events == ["prepare-commit", "pre-commit"]
    assert (await client.get(f"{repo}/refs/{made.json()['id']}/objects", params={"path": "made/by-hook"})).text == "x"


async def test_a_hook_may_refuse_a_commit_while_it_is_prepared(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, action("prepare-commit", hook(webhook.url)))
    webhook.statuses = [400]

    assert "prepare-commit hook aborted" in (await commit(client, repo)).json()["message"]


async def test_a_refusal_names_its_reason_and_the_command_that_shows_its_log(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))
    webhook.statuses = [400]

    message = (await commit(client, repo)).json()["message"]

    assert "the webhook answered 400: looked at pre-commit" in message
    assert message.endswith(f"lakebed actions show lakefs://lake {(await runs(client, repo))[0]['run_id']}")


async def test_runs_of_a_commit_are_those_before_and_after_it(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))

    made = (await commit(client, repo)).json()["id"]

    assert [run["event_type"] for run in await runs(client, repo, commit=made)] == ["pre-commit"]


async def test_events_before_a_change_have_what_is_known_of_it(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, json.dumps({"on": dict.fromkeys(EVERY), "hooks": [hook(webhook.url)]}))
    first = (await commit(client, repo)).json()["id"]
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    await put(client, repo, "a", "x", "dev")
    second = (await commit(client, repo, "dev")).json()["id"]
    (await client.post(f"{repo}/refs/dev/merge/main", json={"metadata": {"m": "1"}})).raise_for_status()
    await client.post(f"{repo}/branches/main/revert", json={"ref": "main", "parent_number": 1})
    await client.post(f"{repo}/branches/main/cherry-pick", json={"ref": second})
    await client.post(f"{repo}/tags", json={"id": "v1", "ref": second})

    sent = {event["event_type"]: event for _, _, event in webhook.sent}
    assert sent["pre-create-branch"]["commit_id"] == first
    assert sent["pre-create-tag"]["commit_id"] == second
    assert (sent["pre-merge"]["commit_id"], sent["pre-merge"]["commit_metadata"]) == (second, {"m": "1"})
    assert sent["pre-revert"]["commit_message"] == "Revert main"
    assert sent["pre-cherry-pick"]["commit_message"] == "m"
    assert sent["pre-create-tag"]["committer"] == "esti"


EVERY = [
    "pre-commit",
    "pre-merge",
    "pre-revert",
    "pre-cherry-pick",
    "pre-create-branch",
    "pre-delete-branch",
    "pre-create-tag",
    "pre-delete-tag",
]


async def test_every_change_has_an_event_before_and_one_after_it(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    events = {name: None for before in EVERY for name in (before, before.replace("pre", "post", 1))}
    text = json.dumps({"on": events, "hooks": [hook(webhook.url)]})
    await put_action(client, repo, text)

    async def done(answer: httpx.Response) -> httpx.Response:
        assert answer.is_success, answer.text
        while len(webhook.sent) < 2 * expected:  # noqa: ASYNC110 - the webhook answers in another thread
            await asyncio.sleep(0.01)
        return answer

    expected = 1
    first = (await done(await commit(client, repo))).json()["id"]
    expected = 2
    await done(await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"}))
    await put(client, repo, "a", "x", "dev")
    expected = 3
    second = (await done(await commit(client, repo, "dev"))).json()["id"]
    expected = 4
    await done(await client.post(f"{repo}/refs/dev/merge/main", json={}))
    expected = 5
    body = {"ref": "main", "parent_number": 1}
    await done(await client.post(f"{repo}/branches/main/revert", json=body))
    expected = 6
    await done(await client.post(f"{repo}/branches/main/cherry-pick", json={"ref": second}))
    expected = 7
    await done(await client.post(f"{repo}/tags", json={"id": "v1", "ref": "main"}))
    expected = 8
    await done(await client.delete(f"{repo}/tags/v1"))
    expected = 9
    await done(await client.delete(f"{repo}/branches/dev"))

    sent = [event["event_type"] for _, _, event in webhook.sent]
    assert sent[::2] == [
        "pre-commit",
        "pre-create-branch",
        "pre-commit",
        "pre-merge",
        "pre-revert",
        "pre-cherry-pick",
        "pre-create-tag",
        "pre-delete-tag",
        "pre-delete-branch",
    ]
    assert sent[1::2] == [name.replace("pre", "post", 1) for name in sent[::2]]
    assert webhook.sent[1][2]["commit_id"] == first
    assert {run["event_type"] for run in await runs(client, repo, commit=first)} >= {"post-commit"}


@pytest.mark.parametrize(
    ("on", "method", "path", "body"),
    [
        ("pre-create-branch", "POST", "/branches", {"name": "dev", "source": "main"}),
        ("pre-create-tag", "POST", "/tags", {"id": "v1", "ref": "main"}),
        ("pre-delete-branch", "DELETE", "/branches/old", None),
        ("pre-delete-tag", "DELETE", "/tags/v0", None),
        ("pre-merge", "POST", "/refs/old/merge/main", {}),
        ("pre-revert", "POST", "/branches/main/revert", {"ref": "main", "parent_number": 0}),
        ("pre-cherry-pick", "POST", "/branches/main/cherry-pick", {"ref": "main"}),
    ],
)
async def test_a_hook_before_a_change_refuses_it(
    client: httpx.AsyncClient, repo: str, webhook: Hooked, on: str, method: str, path: str, body: object
) -> None:
    await put_action(client, repo, json.dumps({"on": {on: None}, "hooks": [hook(webhook.url)]}))
    await commit(client, repo)
    await client.post(f"{repo}/branches", json={"name": "old", "source": "main"})
    await client.post(f"{repo}/tags", json={"id": "v0", "ref": "main"})
    webhook.statuses = [400] * 9
    webhook.sent.clear()

    answer = await client.request(method, repo + path, json=body)

    if on in {"pre-create-branch", "pre-create-tag"}:
        assert len(webhook.sent) == 1
    assert answer.status_code == 412, answer.text
    assert webhook.sent[-1][2]["event_type"] == on


async def test_a_hook_after_a_change_fails_nothing(client: httpx.AsyncClient, repo: str, webhook: Hooked) -> None:
    await put_action(client, repo, action("post-commit", hook(webhook.url)))
    webhook.statuses = [500]

    assert (await commit(client, repo)).status_code == 201

    while not (found := await runs(client, repo)):  # noqa: ASYNC110 - it runs in another thread
        await asyncio.sleep(0.01)
    assert [(run["event_type"], run["status"]) for run in found] == [("post-commit", "failed")]


async def test_an_action_file_that_cannot_be_read_refuses_and_can_be_replaced(
    client: httpx.AsyncClient, repo: str
) -> None:
    await put_action(client, repo, "on: [what")

    refused = await commit(client, repo)
    await put_action(client, repo, action("post-merge", hook("http://localhost/")))

    assert refused.status_code == 412
    assert "action file _lakefs_actions/checks.yaml: no YAML" in refused.json()["message"]
    assert "no YAML" in await output(client, repo)
    assert (await commit(client, repo)).status_code == 201


async def test_a_secret_of_the_server_reaches_the_webhook_and_no_output(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    properties = {"headers": {"x-token": "{{ ENV.LAKEBED_ACTION_TOKEN }}"}, "query_params": {"a": ["1", "2"]}}
    url = webhook.url + "?t={{ENV.LAKEBED_ACTION_TOKEN}}"
    await put_action(client, repo, action("pre-commit", hook(url, properties=properties)))

    assert (await commit(client, repo)).status_code == 201

    path, headers, _ = webhook.sent[0]
    assert headers["x-token"] == "s3cret"
    assert path == "/look?t=s3cret&a=1&a=2"
    assert "s3cret" not in await output(client, repo)


@needs_lua
async def test_a_secret_that_the_cut_would_halve_is_hidden(client: httpx.AsyncClient, repo: str) -> None:
    token = "{{ ENV.LAKEBED_ACTION_TOKEN }}"
    texts = ["print(('x'):rep(65533) .. args.t)", "error(('x'):rep(4082) .. args.t)"]
    for text in texts:
        await put_action(client, repo, action("pre-commit", script(text, args={"t": token})))

        answer = await commit(client, repo)

        assert "xs3" not in await output(client, repo)
        assert "xs3" not in answer.text


async def test_a_variable_that_is_not_for_actions_is_not_filled_in(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(
        client, repo, action("pre-commit", hook(webhook.url, properties={"headers": {"x": "{{ ENV.PATH }}"}}))
    )

    answer = await commit(client, repo)

    assert answer.status_code == 412
    assert "no variable PATH for actions" in answer.json()["message"]
    assert webhook.sent == []


async def test_a_webhook_that_is_busy_is_asked_again(client: httpx.AsyncClient, repo: str, webhook: Hooked) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))
    webhook.statuses = [503]

    assert (await commit(client, repo)).status_code == 201

    assert len(webhook.sent) == 2


async def test_a_webhook_that_does_not_answer_in_time_refuses(client: httpx.AsyncClient, repo: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        await put_action(client, repo, action("pre-commit", hook(url, properties={"timeout": "200ms"})))

        answer = await commit(client, repo)

    assert answer.status_code == 412
    assert "no answer" in answer.json()["message"]


@pytest.mark.parametrize("state", [HookOptions()], indirect=True)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_no_webhook_goes_to_the_servers_own_machine_unless_it_may(
    client: httpx.AsyncClient, repo: str, webhook: Hooked, host: str
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url.replace("127.0.0.1", host))))

    answer = await commit(client, repo)

    assert answer.status_code == 412
    assert "LAKEBED_ACTIONS_LOOPBACK" in answer.json()["message"]
    assert webhook.sent == []


@pytest.mark.parametrize("state", [HookOptions(enabled=False)], indirect=True)
async def test_a_server_without_actions_runs_none(client: httpx.AsyncClient, repo: str) -> None:
    await put_action(client, repo, "nonsense")

    assert (await commit(client, repo)).status_code == 201


async def test_hooks_of_an_action_run_in_order_and_stop_at_a_failure(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    hooks = [
        hook(webhook.url, id="first"),
        hook(webhook.url, id="skipped"),
        hook(webhook.url, id="told", **{"if": "failure()"}),
        hook(webhook.url, id="always", **{"if": "always()"}),
    ]
    await put_action(client, repo, action("pre-commit", *hooks))
    webhook.statuses = [400]

    assert (await commit(client, repo)).status_code == 412

    assert [event["hook_id"] for _, _, event in webhook.sent] == ["first", "told", "always"]


@needs_lua
async def test_a_script_looks_at_the_branch_and_refuses_a_commit(client: httpx.AsyncClient, repo: str) -> None:
    text = """
    local lakefs = require("lakefs")
    local code, page = lakefs.list_objects(action.repository_id, action.source_ref, "", args.folder)
    for _, row in ipairs(page.results) do
      local _, data = lakefs.get_object(action.repository_id, action.source_ref, row.path)
      print(code, row.path, data)
      if data == "bad" then error("bad data in " .. row.path) end
    end
    """
    await put_action(client, repo, action("pre-commit", script(text, args={"folder": "data/"})))
    await put(client, repo, "data/a", "good")
    assert (await commit(client, repo)).status_code == 201
    assert await output(client, repo) == "200\tdata/a\tgood"
    await put(client, repo, "data/b", "bad")

    answer = await commit(client, repo)

    assert answer.status_code == 412
    assert "bad data in data/b" in answer.json()["message"]


@needs_lua
async def test_a_script_may_lie_in_a_file_of_the_branch(client: httpx.AsyncClient, repo: str) -> None:
    await put(client, repo, "scripts/no.lua", "error('no')")
    lua = {"id": "file", "type": "lua", "properties": {"script_path": "scripts/no.lua"}}
    await put_action(client, repo, action("pre-commit", lua))

    assert "no.lua" not in (await commit(client, repo)).json()["message"]
    assert (await commit(client, repo)).status_code == 412


@needs_lua
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("while true do end", "longer than"),
        ("while true do print() end", "printed more than 65536 characters"),
        ("print(string.rep('x', 2000000))", "more than 1048576 bytes at once"),
        ("local t = {} while true do t[#t + 1] = string.rep('x', 1000000) end", "more than 64 MiB"),
        ("os.execute('ls')", "nil value"),
        ("io.open('/etc/passwd')", "nil value"),
        ("load('return 1')()", "nil value"),
        ("require('net/http').request('http://127.0.0.1/')", "not available"),
        ("print(require('strings').split.__globals__)", "not available"),
        ("require('os')", "not available"),
        ("x = = 1", "unexpected symbol"),
    ],
)
async def test_a_script_stays_within_its_limits(client: httpx.AsyncClient, repo: str, text: str, words: str) -> None:
    await put_action(client, repo, action("pre-commit", script(text, timeout="1s" if "longer" in words else "10m")))

    answer = await commit(client, repo)

    assert answer.status_code == 412
    assert words in answer.json()["message"]


@needs_lua
async def test_a_script_reads_only_what_the_committer_may_read(client: httpx.AsyncClient, repo: str, app: Any) -> None:
    await put(client, repo, "secret", "x")
    text = 'local code = require("lakefs").get_object("lake", "main", "secret"); print(code)'
    await put_action(client, repo, action("pre-commit", script(text)))
    auth = await committer(client)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as joe:
        assert (await commit(joe, repo)).status_code == 201

    assert await output(client, repo) == "401"


MODULES = {
    'print(require("encoding/hex").encode("ab"), require("encoding/hex").decode("6162"))': "6162\tab",
    'print(require("encoding/yaml").unmarshal("a: {b: [1, 2]}").a.b[2])': "2",
    'print(require("encoding/yaml").marshal({a = "x"}))': "a: x\n",
    'print(require("encoding/base64").url_encode("\\xff\\xfe"))': "__4=",
    'print(require("crypto/md5").digest("a"))': "0cc175b9c0f1b6a831c399e269772661",
    'print(#require("crypto/hmac").sign_sha1("a", "k"))': "20",
    'print(require("time").format(1700000000123456789, "2006-01-02T15:04:05Z07:00"))': "2023-11-14T22:13:20Z",
    'print(require("time").format_iso(1700000000000000000, "UTC"))': "2023-11-14T22:13:20Z",
    'print(require("time").parse("2006-01-02", "2023-11-14"))': "1699920000000000000",
    'print(require("time").parse_iso("2023-11-14T00:00:00Z"))': "1699920000000000000",
    'print(math.type(require("time").now()), require("time").since(require("time").now()) >= 0)': "integer\ttrue",
    'print(#require("uuid").new())': "36",
    'local u = require("net/url").parse("https://a:b@h:1/p?q=1"); print(u.scheme, u.host, u.path, u.query)': (
        "https\th:1\t/p\tq=1"
    ),
    'print(require("regexp").quote_meta("a.b"), require("regexp").compile("a(.)").find("xab"))': "a\\.b\tab",
    'print(require("regexp").compile("a(.)").find_all_submatch("abac")[2][2])': "c",
    'print(#require("regexp").compile("a").find_all("aaa", 2))': "2",
}


@needs_lua
async def test_scripts_have_modules_that_change_nothing(client: httpx.AsyncClient, repo: str) -> None:
    await put_action(client, repo, action("pre-commit", script("\n".join(f"do {line} end" for line in MODULES))))

    answer = await commit(client, repo)

    assert answer.status_code == 201, answer.text
    assert await output(client, repo) == "\n".join(MODULES.values())


@needs_lua
async def test_a_script_reads_the_log_of_a_delta_table(client: httpx.AsyncClient, repo: str) -> None:
    for version, lines in enumerate((['{"metaData":{"id":"t"}}', '{"add":{"path":"a"}}'], ['{"remove":{"path":"a"}}'])):
        await put(client, repo, f"t/_delta_log/{version:020}.json", "\n".join(lines))
    text = """
    local table, meta = require("formats").delta_client("k", "s").get_table(action.repository_id, "main", "t")
    print(table[0][2], table[1][1], meta.id)
    """
    await put_action(client, repo, action("pre-commit", script(text)))
    assert (await commit(client, repo)).status_code == 201
    assert await output(client, repo) == '{"add":{"path":"a"}}\t{"remove":{"path":"a"}}\tt'
    await client.delete(f"{repo}/branches/main/objects", params={"path": f"t/_delta_log/{0:020}.json"})

    assert "checkpoints are not read" in (await commit(client, repo)).json()["message"]


@needs_lua
async def test_a_script_fails_with_its_own_words(client: httpx.AsyncClient, repo: str) -> None:
    await put_action(client, repo, action("pre-commit", script('require("hook").fail("no é today")')))

    assert "hook script: no é today; its log" in (await commit(client, repo)).json()["message"]


@needs_lua
@pytest.mark.parametrize(
    "text",
    [
        'require("encoding/yaml").unmarshal("!!python/object/apply:os.system [ls]")',
        'require("time").format(0, "2006", "Europe/Berlin")',
        'require("time").sleep(1e30)',
        'print(require("regexp").compile("a").find.__globals__)',
    ],
)
async def test_modules_lead_out_of_no_limit(client: httpx.AsyncClient, repo: str, text: str) -> None:
    await put_action(client, repo, action("pre-commit", script(text, timeout="5s")))

    assert (await commit(client, repo)).status_code == 412


@needs_lua
async def test_a_script_that_the_committer_may_not_read_does_not_run(
    client: httpx.AsyncClient, repo: str, app: Any
) -> None:
    await put(client, repo, "secret", "this is a secret")
    lua = {"id": "file", "type": "lua", "properties": {"script_path": "secret"}}
    await put_action(client, repo, action("pre-commit", lua))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    auth = await committer(client)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as joe:
        answer = await commit(joe, repo)

    assert answer.status_code == 412
    assert "script_path secret: insufficient permissions" in answer.json()["message"]
    assert "near" not in answer.json()["message"]


async def committer(client: httpx.AsyncClient) -> tuple[str, str]:
    """Return the key pair of a new user who may commit, and nothing else."""
    statement = {"effect": "allow", "action": ["fs:CreateCommit"], "resource": "*"}
    await client.post("/auth/policies", json={"id": "committer", "statement": [statement]})
    await client.post("/auth/users", json={"id": "joe"})
    await client.put("/auth/users/joe/policies/committer")
    pair = (await client.post("/auth/users/joe/credentials")).json()
    return pair["access_key_id"], pair["secret_access_key"]


@needs_lua
async def test_a_script_sees_the_commit_that_is_asked_for(client: httpx.AsyncClient, repo: str) -> None:
    head = (await client.get(f"{repo}/branches/main")).json()["commit_id"]
    text = """
    local json, commit = require("encoding/json"), action.commit
    if #commit.message == 0 or commit.metadata["k"] == nil then error("no") end
    print(commit.message, commit.metadata.k, commit.parents[1], #commit.parents, commit.meta_range_id, commit.version)
    print(action.username, action.storage_namespace, action.pre_run_id, math.type(commit.creation_date))
    print(action.run_id)
    """
    await put_action(client, repo, action("pre-commit", script(text)))

    assert (await commit(client, repo)).status_code == 201

    storage = (await client.get(repo)).json()["storage_namespace"]
    lines = (await output(client, repo)).splitlines()
    assert lines[:2] == [f"m\tv\t{head}\t1\t\t1", f"esti\t{storage}\t\tinteger"]
    assert lines[2] == (await runs(client, repo))[0]["run_id"]


@needs_lua
async def test_a_script_after_a_commit_sees_it_and_the_run_before_it(client: httpx.AsyncClient, repo: str) -> None:
    text = "print(action.commit.meta_range_id, action.pre_run_id, action.event_type)"
    on: dict[str, Any] = {"pre-commit": {}, "post-commit": {}}
    await put_action(client, repo, json.dumps({"on": on, "hooks": [script(text)]}))

    made = (await commit(client, repo)).json()

    while len(found := await runs(client, repo, commit=made["id"])) < 2:  # noqa: ASYNC110 - it runs beside the request
        await asyncio.sleep(0.01)
    assert await output(client, repo) == f"{made['meta_range_id']}\t{found[1]['run_id']}\tpost-commit"


@needs_lua
async def test_a_script_reads_no_other_repository_than_its_own(client: httpx.AsyncClient, repo: str) -> None:
    body = {"name": "other", "storage_namespace": "mem://other", "default_branch": "main"}
    assert (await client.post("/repositories", json=body)).status_code == 201
    await put(client, "/repositories/other", "secret", "x")
    text = """
    local lakefs = require("lakefs")
    print(lakefs.get_object("other", "main", "secret"))
    print((lakefs.stat_object("other", "main", "secret")))
    print((lakefs.list_objects("other", "main")))
    print((lakefs.diff_refs("other", "main", "main")))
    print((lakefs.list_objects()))
    """
    await put_action(client, repo, action("pre-commit", script(text)))

    assert (await commit(client, repo)).status_code == 201

    codes = [line[:3] for line in (await output(client, repo)).splitlines()]
    assert codes == ["403"] * 5


async def test_runs_are_listed_in_pages_newest_first_and_unknown_ones_are_not_found(
    client: httpx.AsyncClient, repo: str, webhook: Hooked
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))
    for text in "abc":
        await put(client, repo, "x", text)
        await commit(client, repo)

    every = await runs(client, repo)
    page = (await client.get(f"{repo}/actions/runs", params={"amount": 2})).json()
    rest = await runs(client, repo, after=page["pagination"]["next_offset"])

    assert [run["start_time"] for run in every] == sorted((run["start_time"] for run in every), reverse=True)
    assert page["results"] + rest == every
    assert page["pagination"]["has_more"]
    assert await runs(client, repo, branch="dev") == []
    for path in ("nope", f"{every[0]['run_id']}/hooks/9/output", "nope/hooks"):
        assert (await client.get(f"{repo}/actions/runs/{path}")).status_code == 404


async def test_runs_are_forgotten_with_time(
    state: AppState, client: httpx.AsyncClient, repo: str, webhook: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_action(client, repo, action("pre-commit", hook(webhook.url)))
    await commit(client, repo)
    kept = Runs((await state.catalog.get("lake")).versions)
    assert await kept.clean() == 0

    monkeypatch.setattr("lakebed.hooks.runs.KEPT_MS", 0)
    assert await kept.clean() == 1

    assert await runs(client, repo) == []


# One repository's hooks, and the others


async def test_hanging_hooks_of_one_repository_hold_up_no_other(client: httpx.AsyncClient, repo: str) -> None:
    may_answer, asked = threading.Event(), threading.Semaphore(0)
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            sent.append(self.path)
            asked.release()
            if self.path != "/fast":
                may_answer.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    body = {"name": "other", "storage_namespace": "mem://beside"}
    (await client.post("/repositories", json=body)).raise_for_status()
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        try:
            for number in range(AT_ONCE_MAX + 3):
                await put_hook(client, repo, f"http://127.0.0.1:{port}/{number}", number)
            await put_hook(client, "/repositories/other", f"http://127.0.0.1:{port}/fast", 0)
            hanging = asyncio.create_task(client.post(f"{repo}/branches/main/commits", json={"message": "a"}))
            for _ in range(AT_ONCE_MAX):
                await asyncio.to_thread(asked.acquire)

            other = await client.post("/repositories/other/branches/main/commits", json={"message": "b"})

            assert other.status_code == 201, other.text
            assert len(sent) == AT_ONCE_MAX + 1
            assert sent[-1] == "/fast"
        finally:
            may_answer.set()
        assert (await hanging).status_code == 201
        assert len(sent) == AT_ONCE_MAX + 3 + 1


async def put_hook(client: httpx.AsyncClient, repo: str, url: str, number: int) -> None:
    hook = {"id": "a", "type": "webhook", "properties": {"url": url, "timeout": "10m"}}
    text = json.dumps({"name": f"a{number}", "on": {"pre-commit": {}}, "hooks": [hook]})
    path = f"_lakefs_actions/{number}.yaml"
    (await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=text)).raise_for_status()


def test_a_hook_that_holds_a_change_has_less_time_by_default() -> None:
    assert default_timeout_s(Event(type=EventType.PRE_COMMIT, source_ref="main")) == TIMEOUT_HOLDING_S
    assert default_timeout_s(Event(type=EventType.PRE_COMMIT.after, source_ref="main")) == TIMEOUT_S


@needs_lua
async def test_a_script_runs_at_the_lowest_priority() -> None:
    niceness: list[int] = []
    others = {*children(os.getpid())}  # of tests that this process ran before

    def ask(_: str, __: list[Any]) -> tuple[int, Any]:
        scripts = {*children(os.getpid())} - others
        niceness.extend(os.getpriority(os.PRIO_PROCESS, child) for child in scripts)
        return 404, {"message": ""}

    script = "require('lakefs').get_object('a', 'b', 'c')"
    await asyncio.to_thread(lua.run, script, {}, {}, timeout=60.0, options=OPTIONS, ask=ask, log=lambda *_: None)

    assert niceness == [19]
