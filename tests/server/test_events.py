"""Events over HTTP: moves by position, subscriptions, and signed deliveries by the part of each process that sends."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import threading
from collections.abc import AsyncIterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from lakebed.base import EVENT_OPERATIONS, EventKind, RunKind, RunState
from lakebed.catalog import DeliveryFailed
from lakebed.gc.live import ServiceOptions
from lakebed.gc.live.records.runs import RunBook
from lakebed.hooks import HookOptions
from lakebed.hooks.webhook import Answer
from lakebed.server import AppState, ServerOptions, opened
from lakebed.server.brokers import Brokers
from lakebed.server.events import BEGINS_S, Senders
from lakebed.server.process.upkeep_loop import clean_events
from lakebed.versions import PlannedRecord, encode_record
from tests.serving import serving

Json = dict[str, Any]


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[AppState]:
    hooks = HookOptions(loopback=True)
    async with opened(ServerOptions(data_dir=tmp_path, blockstore="mem", store_uri="mem://", hooks=hooks)) as state:
        yield state


@pytest.fixture
async def subscription(client: httpx.AsyncClient, repo: str) -> Json:
    """One whose receiver cannot be reached."""
    return await _subscribe(client, repo, target="http://127.0.0.1:1/")


async def _subscribe(client: httpx.AsyncClient, repo: str, **wanted: object) -> Json:
    answer = await client.post(f"{repo}/event_subscriptions", json=wanted)
    assert answer.status_code == 201, answer.text
    made: Json = answer.json()
    return made


async def _commit(client: httpx.AsyncClient, repo: str, path: str) -> str:
    await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=path.encode())
    answer = await client.post(f"{repo}/branches/main/commits", json={"message": path})
    return str(answer.json()["id"])


async def _events(client: httpx.AsyncClient, repo: str, **query: Any) -> Json:
    answer = await client.get(f"{repo}/events", params=query)
    assert answer.status_code == 200, answer.text
    page: Json = answer.json()
    return page


async def _deliver(state: AppState) -> None:
    state.eventing.watch("lake")
    await state.eventing.step(0)
    await state.eventing.wait()


async def test_without_a_subscription_there_are_no_events(client: httpx.AsyncClient, repo: str) -> None:
    await _commit(client, repo, "a")

    page = await _events(client, repo)

    assert (page["results"], page["oldest"], page["last"]) == ([], 1, 0)


async def test_each_move_of_a_ref_has_an_event(client: httpx.AsyncClient, repo: str, subscription: Json) -> None:
    assert subscription["behind"] == 0
    commit = await _commit(client, repo, "a")
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await client.delete(f"{repo}/branches/side")
    await client.post(f"{repo}/tags", json={"id": "v1", "ref": "main"})

    before = await _events(client, repo)
    # A branch that came and went is found by the next look at all logs: a new subscription begins with one.
    await _subscribe(client, repo, target="http://127.0.0.1:1/")
    page = await _events(client, repo)
    rest = await _events(client, repo, after=1, amount=1)

    moves = [(event["name"], event["operation"], event["after"], event["by"]) for event in page["results"]]
    assert moves == [
        ("main", "commit", commit, "esti"),
        ("v1", "create", commit, "esti"),
        ("side", "create", commit, "esti"),
        ("side", "delete", "", "esti"),
    ]
    assert before["results"] == page["results"][:2]
    assert rest["results"] == page["results"][1:2]
    assert rest["pagination"]["next_offset"] == "2"


async def test_a_caller_sees_the_events_of_refs_that_it_may_read(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str, subscription: Json
) -> None:
    for name in ("side", "secret"):
        await client.post(f"{repo}/branches", json={"name": name, "source": "main"})
    await client.post(f"{repo}/tags", json={"id": "v1", "ref": "main"})
    lake = "arn:lakefs:fs:::repository/lake"
    reader = await _reader(
        client,
        {"effect": "allow", "action": ["events:*"], "resource": lake},
        {"effect": "allow", "action": ["fs:ReadBranch"], "resource": f"{lake}/branch/*"},
        {"effect": "deny", "action": ["fs:ReadBranch"], "resource": f"{lake}/branch/secret"},
    )

    seen = (await stranger.get(f"{repo}/events", auth=reader)).json()["results"]
    answers = {
        refs: (
            await stranger.post(
                f"{repo}/event_subscriptions",
                json={"target": "http://127.0.0.1:1/", "refs": [*refs], "kinds": ["branch"]},
                auth=reader,
            )
        ).status_code
        for refs in ((), ("side",), ("secret",), ("si*",), ("main", "side"))
    }

    assert [event["name"] for event in seen] == ["side"]
    assert answers == {(): 403, ("side",): 201, ("secret",): 403, ("si*",): 403, ("main", "side"): 201}


async def test_events_are_filtered_by_ref_operation_and_kind(
    client: httpx.AsyncClient, repo: str, subscription: Json
) -> None:
    commits = [await _commit(client, repo, name) for name in ("a", "b")]
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await client.post(f"{repo}/tags", json={"id": "v1", "ref": "main"})

    async def of(**query: Any) -> list[tuple[str, str]]:
        page = await _events(client, repo, **query)
        return [(event["name"], event["after"]) for event in page["results"]]

    first = await _events(client, repo, ref="ma*", amount=1)
    assert await of(ref="ma*") == [("main", commit) for commit in commits]
    assert (first["pagination"]["next_offset"], await of(ref="main", after=1)) == ("1", [("main", commits[1])])
    assert [name for name, _ in await of(operation="create")] == ["side", "v1"]
    assert [name for name, _ in await of(kind=["tag", "run"])] == ["v1"]


async def _reader(client: httpx.AsyncClient, *statements: Json) -> httpx.BasicAuth:
    """Make a user with these rights."""
    await client.post("/auth/users", json={"id": "rita"})
    await client.post("/auth/policies", json={"id": "few", "statement": [*statements]})
    await client.put("/auth/users/rita/policies/few")
    key = (await client.post("/auth/users/rita/credentials")).json()
    return httpx.BasicAuth(key["access_key_id"], key["secret_access_key"])


async def test_each_change_of_a_pull_request_has_an_event(
    client: httpx.AsyncClient, repo: str, subscription: Json
) -> None:
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await client.post(f"{repo}/branches/side/objects", params={"path": "a"}, content=b"a")
    await client.post(f"{repo}/branches/side/commits", json={"message": "a"})
    wanted = {"title": "t", "source_branch": "side", "destination_branch": "main"}
    pull = (await client.post(f"{repo}/pulls", json=wanted)).json()["id"]
    for body in ({"title": "t"}, {"title": "u"}, {"status": "closed"}, {"status": "open"}):
        assert (await client.patch(f"{repo}/pulls/{pull}", json=body)).status_code == 204
    merged = (await client.put(f"{repo}/pulls/{pull}/merge")).json()["reference"]

    events = [event for event in (await _events(client, repo))["results"] if event["kind"] == "pull"]

    steps = ["create", "change", "close", "reopen", "merge"]
    assert [(event["name"], event["operation"], event["about"]) for event in events] == [
        (pull, step, "main") for step in steps
    ]
    assert (events[-1]["after"], events[-1]["by"]) == (merged, "esti")


async def test_each_step_of_a_run_has_an_event_before_its_record_goes(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    versions = (await state.catalog.get("lake")).versions
    book = RunBook(versions, ServiceOptions(), user_id="ann")
    run_id, _ = await book.start_marking(RunKind.UNCOMMITTED)
    await versions.retired.note_planned(
        run_id, PlannedRecord(kind=RunKind.UNCOMMITTED, by="ann", plan="p", made_ms=versions.ports.clock.now_ms())
    )
    await book.move(run_id, RunState.MARKED)
    await book.note(run_id, RunState.MARKED, began=True, sweeps="", saved="")
    await book.move(run_id, RunState.ENDED)
    assert not await versions.retired.forget_run(run_id, changes=0)
    told = await versions.outbox.told()
    assert told is not None
    assert told(run_id) == (1, 2)
    assert await versions.retired.forget_run(run_id, changes=2)

    events = [event for event in (await _events(client, repo))["results"] if event["kind"] == "run"]

    assert [(event["operation"], event["by"], event["about"]) for event in events] == [
        (step, "ann", "uncommitted") for step in ("plan", "apply", "end")
    ]


@pytest.mark.parametrize("refusal", [302, 503])
async def test_events_are_delivered_signed_and_in_order(
    client: httpx.AsyncClient, repo: str, state: AppState, refusal: int
) -> None:
    received: list[tuple[Json, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            signed = self.headers["x-lakebed-timestamp"].encode() + b"." + body
            received.append((json.loads(body), self.headers["x-lakebed-signature"], signed))
            self.send_response(refusal if len(received) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        made = await _subscribe(client, repo, target=f"http://127.0.0.1:{port}/", operations=["commit"])
        path = f"{repo}/event_subscriptions/{made['id']}"
        commits = [await _commit(client, repo, name) for name in ("a", "b")]
        await client.post(f"{repo}/tags", json={"id": "v1", "ref": "main"})
        await _deliver(state)
        failed = (await client.get(path)).json()
        await client.post(path + "/replay", json={"after": 0})
        await _deliver(state)
        done = (await client.get(path)).json()

    assert (failed["failures"], failed["behind"], failed["error"]) == (1, 3, f"the webhook answered {refusal}")
    assert (done["failures"], done["behind"], done["error"]) == (0, 0, "")
    body, signature, signed = received[1]
    assert [event["after"] for event in body["events"]] == commits
    assert (body["repository"], body["subscription"]) == ("lake", made["id"])
    assert signature == "sha256=" + hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()


async def test_deliveries_leave_the_threads_of_the_server_alone(
    client: httpx.AsyncClient, repo: str, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads count digests in the common threads, and a slow receiver would hold one of them."""
    threads: list[str] = []

    def request(*_: object, **__: object) -> Answer:
        threads.append(threading.current_thread().name)
        return Answer(status=204, body=b"")

    monkeypatch.setattr("lakebed.server.events.request", request)
    await _subscribe(client, repo, target="http://127.0.0.1:1/")
    await _commit(client, repo, "a")
    await _deliver(state)

    assert threads == ["event"]


async def test_a_dead_broker_holds_up_no_webhook_and_not_the_end_of_the_process(
    client: httpx.AsyncClient, repo: str, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, posted = threading.Event(), threading.Event()
    monkeypatch.setattr("lakebed.server.events.SENDERS_MAX", 1)
    monkeypatch.setattr("lakebed.server.events.AT_ONCE_MAX", 1)

    class Hung(Brokers):
        def check(self, target: str) -> bool:
            return target.startswith("nats:")

        def to_nats(self, subject: str, messages: Sequence[tuple[str, bytes]]) -> None:
            hangs.wait(30)

    def request(*_: object, **__: object) -> Answer:
        posted.set()
        return Answer(status=204, body=b"")

    monkeypatch.setattr("lakebed.server.events.request", request)
    state.eventing.brokers = Hung()
    await _subscribe(client, repo, target="nats:lake")
    await _subscribe(client, repo, target="http://127.0.0.1:1/")
    await _commit(client, repo, "a")

    state.eventing.watch("lake")
    await state.eventing.step(0)

    assert await asyncio.to_thread(posted.wait, 30)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "event")
    hangs.set()
    await state.eventing.wait()


async def test_a_sender_that_hangs_is_a_failed_delivery() -> None:
    hangs = threading.Event()
    with pytest.raises(DeliveryFailed, match="has not ended"):
        await Senders(1).run(hangs.wait, wait_s=0.01)
    hangs.set()


async def test_a_sender_without_a_thread_is_a_failed_delivery_and_the_next_one_has_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    senders = Senders(1)
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DeliveryFailed, match="no thread"):
            await senders.run(lambda: None, wait_s=30)
    await senders.run(lambda: None, wait_s=30)


async def test_a_receiver_out_of_reach_shows_and_never_stops_a_commit(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    await _commit(client, repo, "a")
    await _deliver(state)
    await _commit(client, repo, "b")

    [shown] = (await client.get(f"{repo}/event_subscriptions")).json()["results"]

    assert (shown["behind"], shown["failures"]) == (1, 1)
    assert shown["error"].startswith("no answer from http://127.0.0.1:")
    assert "secret" not in shown
    assert len(subscription["secret"]) == 64


@pytest.mark.parametrize(
    "wanted",
    [
        {"target": "ftp://example.org/"},
        {"target": "http:///nowhere"},
        {"target": "http://user:word@example.org/"},
        {"target": "http://example.org:x/"},
        {"target": "http://example.org/\r\nx: y"},
        {"target": "http://example.org/", "secret": "short"},
        {"target": "http://example.org/", "after": 7},
        {"target": "http://example.org/" + "x" * 2_000},
    ],
)
async def test_bad_subscriptions_are_refused(client: httpx.AsyncClient, repo: str, wanted: Json) -> None:
    answer = await client.post(f"{repo}/event_subscriptions", json=wanted)

    assert answer.status_code == 400
    assert not (await client.get(f"{repo}/event_subscriptions")).json()["results"]


async def test_a_subscription_ends(client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json) -> None:
    path = f"{repo}/event_subscriptions/{subscription['id']}"

    assert (await client.post(path + "/replay", json={"after": 9})).status_code == 400
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404
    assert (await client.post(path + "/replay", json={"after": 0})).status_code == 404
    await _deliver(state)


async def test_there_is_a_limit_of_subscriptions(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch, subscription: Json
) -> None:
    monkeypatch.setattr("lakebed.catalog.subscriptions.SUBSCRIPTIONS_MAX", 1)

    answer = await client.post(f"{repo}/event_subscriptions", json={"target": subscription["target"]})

    assert answer.status_code == 400


async def test_parallel_requests_do_not_pass_the_limit(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.catalog.subscriptions.SUBSCRIPTIONS_MAX", 2)
    wanted = {"target": "http://127.0.0.1:1/?token=secret"}

    answers = await asyncio.gather(*(client.post(f"{repo}/event_subscriptions", json=wanted) for _ in range(6)))

    made = [answer.json() for answer in answers if answer.status_code == 201]
    found = (await client.get(f"{repo}/event_subscriptions")).json()["results"]
    assert len(made) == len(found) <= 2
    assert {one["target"] for one in [*made, *found]} <= {"http://127.0.0.1:1/?***"}


async def test_old_events_are_removed_and_count_as_missed(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    await _commit(client, repo, "a")
    repository = await state.catalog.get("lake")
    outbox = repository.versions.outbox
    await outbox.gather()
    object.__setattr__(repository.versions.context.options, "events_age_ms_max", -1)

    removed = await outbox.clean()

    shown = await repository.subscriptions.get(subscription["id"])
    assert (removed, shown.missed, shown.behind) == (1, 1, 1)
    assert (await _events(client, repo))["oldest"] == 2


async def test_after_the_last_subscription_nothing_is_gathered_and_old_events_go(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    await _commit(client, repo, "a")
    assert (await _events(client, repo))["last"] == 1
    await client.delete(f"{repo}/event_subscriptions/{subscription['id']}")
    await _commit(client, repo, "b")
    repository = await state.catalog.get("lake")
    object.__setattr__(repository.versions.context.options, "events_age_ms_max", -1)

    await clean_events(state)

    page = await _events(client, repo)
    assert (page["results"], page["oldest"], page["last"]) == ([], 2, 1)


async def test_what_was_moved_since_the_last_look_has_its_event_when_the_process_ends(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    """No other process knows of it."""
    assert subscription
    await _deliver(state)
    running = asyncio.create_task(state.eventing.run())
    await asyncio.sleep(0)
    await _commit(client, repo, "a")

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    outbox = (await state.catalog.get("lake")).versions.outbox
    assert [event.operation for _, event in await outbox.events(0, limit=9)] == ["commit"]


async def test_in_the_first_minutes_a_process_looks_at_what_others_moved(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    """They do not know of the subscription yet."""
    assert subscription
    outbox = (await state.catalog.get("lake")).versions.outbox
    seen = []
    for now_s in (0, 1, BEGINS_S - 1, BEGINS_S + 1):
        await _commit(client, repo, f"a{now_s}")
        outbox._context.touched = set()  # as if another process had made it
        await state.eventing.step(now_s)
        seen.append(len(await outbox.events(0, limit=9)))
    await state.eventing.wait()

    assert seen == [1, 2, 3, 3]


async def test_events_are_read_from_each_position(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    """Those of one look are written together."""
    assert subscription
    outbox = (await state.catalog.get("lake")).versions.outbox
    for number in range(20):
        await _commit(client, repo, f"a{number}")
        if number == 0:
            await outbox.gather()

    await outbox.gather()

    everything = await outbox.events(0, limit=99)
    assert [position for position, _ in everything] == list(range(1, 21))
    assert not any(event.more for _, event in everything)
    for after in range(21):
        for limit in (1, 3, 99):
            assert await outbox.events(after, limit=limit) == everything[after:][:limit]


async def test_an_event_at_a_removed_position_stops_no_later_removal(
    client: httpx.AsyncClient, repo: str, state: AppState, subscription: Json
) -> None:
    """A gatherer that slept finds a removed position free."""
    assert subscription
    repository = await state.catalog.get("lake")
    outbox = repository.versions.outbox
    options = repository.versions.context.options
    object.__setattr__(options, "events_age_ms_max", -1)
    await _commit(client, repo, "a")
    await outbox.gather()
    [(_, event)] = await outbox.events(0, limit=9)
    await outbox.clean()
    young = replace(event, gathered_ms=event.gathered_ms + 60_000)
    await repository.versions.store.set(outbox.partition, b"event/%015d" % 1, encode_record(young))
    await _commit(client, repo, "b")
    await outbox.gather()

    removed = await outbox.clean()

    assert removed == 2
    assert not await outbox.events(0, limit=9)


@pytest.mark.parametrize("refs", [[], ["*"]])
@pytest.mark.parametrize("but", [{"StringNotEquals": {"branch": ["secret"]}}, {"StringNotLike": {"branch": ["sec*"]}}])
async def test_a_subscription_of_all_needs_the_right_to_read_all(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str, but: Json, refs: list[str]
) -> None:
    await client.post(f"{repo}/branches", json={"name": "secret", "source": "main"})
    lake = "arn:lakefs:fs:::repository/lake"
    reader = await _reader(
        client,
        {"effect": "allow", "action": ["events:*"], "resource": lake},
        {"effect": "allow", "action": ["fs:ReadBranch"], "resource": f"{lake}/branch/*", "condition": but},
    )
    wanted = {"target": "http://127.0.0.1:1/", "refs": refs, "kinds": ["branch"]}

    seen = (await stranger.get(f"{repo}/events", auth=reader)).json()["results"]
    made = await stranger.post(f"{repo}/event_subscriptions", json=wanted, auth=reader)
    of_main = await stranger.post(f"{repo}/event_subscriptions", json={**wanted, "refs": ["main"]}, auth=reader)

    assert "secret" not in {event["name"] for event in seen}
    assert (made.status_code, of_main.status_code) == (403, 201)


async def test_filters_that_no_event_can_match_are_refused(client: httpx.AsyncClient, repo: str) -> None:
    """A subscription to `comit` would never hear of a commit, and say nothing of it."""
    answers = [
        await client.post(f"{repo}/event_subscriptions", json={"target": "http://x.example/", "operations": ["comit"]}),
        await client.get(f"{repo}/events", params={"operation": "comit"}),
        await client.get(f"{repo}/events", params={"kind": "brunch"}),
    ]

    assert [answer.status_code for answer in answers] == [400] * 3
    assert "no event has the operation 'comit': there are abandon, apply" in answers[0].text
    assert "there are branch, tag, pull, run, erasure" in answers[2].text
    assert (await client.get(f"{repo}/event_subscriptions")).json()["results"] == []
    every = sorted(frozenset().union(*EVENT_OPERATIONS.values()))
    await _subscribe(client, repo, target="http://x.example/", operations=every)


def test_the_operations_that_filters_take_are_those_of_the_flows_and_of_the_guide() -> None:
    root = Path(__file__).parents[2]
    source = "".join(
        file.read_text()
        for part in ("versions", "catalog/refs")
        for file in (root / "src/lakebed" / part).rglob("*.py")
    )
    named = re.compile(r'(?:operation(?:: str)? ?= ?|_advance\(branch, plan, |self\._change\()"([a-z-]+)"')
    known = frozenset().union(*EVENT_OPERATIONS.values())
    guide = (root / "docs/guide/events.md").read_text()
    table = re.findall(r"^\| ([a-z, ]+) \| (commit|create|plan|request)(.*?) \|", guide, re.MULTILINE)

    assert set(named.findall(source)) >= EVENT_OPERATIONS[EventKind.BRANCH] - {"merge"}
    assert set(named.findall(source)) - known == set()
    for kinds, first, rest in table:
        words = set(re.findall(r"[a-z-]+", re.sub(r"\(.*?\)|on hidden branches", "", first + rest)))
        for kind in kinds.split(", "):
            assert words == EVENT_OPERATIONS[EventKind(kind)], kind
    assert len(table) == 4
