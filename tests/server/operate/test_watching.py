"""Probes, metrics and logs: what operators and their tools see of a server."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from lakebed.base import Corrupt, LakebedError, RunId, Unavailable
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.live import CollectionService, HoldBook, JobBook
from lakebed.gc.machine.flow import apply, plan, purge
from lakebed.gc.messages import JobState, NewHold, RunKind, RunRequest, Service, StartRun, UncommittedOptions
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import RunContext
from lakebed.kv import Page
from lakebed.objectstore import ObjectStoreUnavailable, open_deleter
from lakebed.server import App, AppState, LogOptions, create_app
from lakebed.server.operate.logs import REQUEST_ID, configure_logs
from lakebed.server.operate.metrics import BUCKETS_S, FAMILIES, Metrics, Sample, Timings, as_text
from lakebed.server.process import upkeep_loop
from lakebed.server.process.folder import RESERVE_BYTES
from tests.server.process.test_serving import serving, set_up


async def ask(app: App, path: str, auth: httpx.Auth | None = None) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://lake") as outside:
        return await outside.get(path, auth=auth)


def figures(text: str) -> dict[str, float]:
    """Each line of the exposition by its name and labels, without the process."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            labels = name.partition("{")[2].rstrip("}")
            kept = ",".join(label for label in labels.split(",") if label and not label.startswith("process="))
            found[name.partition("{")[0] + (f"{{{kept}}}" if kept else "")] = float(value)
    return found


class TestStatus:
    async def test_the_status_says_how_the_server_is_and_which_steps_of_its_upkeep_failed(
        self, client: httpx.AsyncClient, state: AppState
    ) -> None:
        async def breaks(_: AppState) -> None:
            raise RuntimeError("a bug")

        before = (await client.get("/status")).json()
        await upkeep_loop._take(upkeep_loop.clean_catalog, state)
        await upkeep_loop._take(breaks, state)
        status = (await client.get("/status")).json()
        text = as_text(state.metrics.of_all_workers())

        assert before["processes"][0]["upkeep"] == []
        assert (status["ready"], status["database"], status["audit_failures"]) == (True, "mem", 0)
        assert 0 < status["disk_free_bytes"] <= status["disk_bytes"]
        [process] = status["processes"]
        assert process["requests"] > 0
        steps = {step["name"]: (step["done"] > 0, step["failures"]) for step in process["upkeep"]}
        assert steps == {"clean_catalog": (True, 0), "breaks": (False, 1)}
        assert 'lakebed_upkeep_failures_total{step="breaks",' in text


class TestProbes:
    async def test_a_server_that_works_is_alive_and_ready(self, app: App, repo: str) -> None:
        assert (await ask(app, "/_health")).status_code == 200

        answer = await ask(app, "/_ready")

        assert answer.status_code == 200
        assert answer.json() == {"ready": True, "checks": dict.fromkeys(("kv", "objects", "disk", "process"), "ok")}

    async def test_a_draining_server_is_alive_and_not_ready(self, app: App, state: AppState) -> None:
        state.drain.is_draining = True

        assert (await ask(app, "/_health")).status_code == 200
        answer = await ask(app, "/_ready")

        assert answer.status_code == 503
        assert answer.json()["checks"]["process"] == "draining"
        assert answer.headers["connection"] == "close"

    async def test_a_store_that_is_closed_is_not_ready(self, tmp_path: Path) -> None:
        from lakebed.server import ServerOptions, opened

        async with opened(ServerOptions(data_dir=tmp_path, blockstore="mem")) as state:
            app = create_app(state)
            await state.store.close()
            answer = await ask(app, "/_ready")

        assert answer.status_code == 503
        assert answer.json()["checks"]["kv"] == "unavailable"
        assert str(tmp_path) not in answer.text

    async def test_every_bucket_in_use_is_asked(
        self, app: App, state: AppState, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("first", "second"):
            await client.post("/repositories", json={"name": name, "storage_namespace": f"mem://ready-{name}/a"})

        async def fail(_: str) -> None:
            raise ObjectStoreUnavailable("no answer from 10.0.0.1")

        monkeypatch.setattr((await state.catalog.get("first")).objectstore, "stat", fail)
        answer = await ask(app, "/_ready")

        assert (answer.status_code, answer.json()["checks"]["objects"]) == (503, "unavailable")
        assert "10.0.0.1" not in answer.text

    async def test_a_full_disk_is_not_ready(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        full = shutil.disk_usage("/")._replace(free=RESERVE_BYTES - 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: full)

        assert (await ask(app, "/_ready")).json()["checks"]["disk"] == "full"


class TestMetrics:
    async def test_requests_and_store_operations_are_counted(
        self, app: App, client: httpx.AsyncClient, repo: str
    ) -> None:
        for _ in range(3):
            await client.get(repo)
        await client.get("/repositories/none")

        answer = await ask(app, "/metrics", client.auth)

        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = figures(answer.text)
        assert found['lakebed_requests_total{operation="getRepository",status="200"}'] == 3
        assert found['lakebed_requests_total{operation="getRepository",status="404"}'] == 1
        assert found['lakebed_request_seconds_count{operation="getRepository"}'] == 4
        assert found['lakebed_request_seconds_bucket{operation="getRepository",le="+Inf"}'] == 4
        assert found['lakebed_kv_seconds_count{operation="set_if"}'] > 0
        assert found["lakebed_requests_in_progress"] == 1
        assert found["lakebed_commit_queue"] == 0
        assert found["process_resident_memory_bytes"] > 0

    async def test_what_is_staged_and_what_runs_did_is_counted(
        self, app: App, state: AppState, client: httpx.AsyncClient, repo: str
    ) -> None:
        upload = f"{repo}/branches/main/objects"
        for path, data in {"a": b"123", "b": b"4567"}.items():
            await client.post(upload, params={"path": path}, content=data)
        await client.delete(upload, params={"path": "a"})
        versions = (await state.catalog.get("lake")).versions
        run = await CollectionService(versions).start(StartRun(kind=RunKind.UNCOMMITTED))

        found = figures((await ask(app, "/metrics", client.auth)).text)

        assert found["lakebed_repositories"] == 1
        assert found['lakebed_staged_objects{repository="lake"}'] == 1
        assert found['lakebed_staged_bytes{repository="lake"}'] == 4
        assert found['lakebed_runs{repository="lake",kind="uncommitted",state="marking"}'] == 1
        assert RunId(run.run_id)

    async def test_what_is_staged_on_many_branches_is_read_some_at_a_time(
        self, app: App, state: AppState, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for branch in range(20):
            await client.post(f"{repo}/branches", json={"name": f"b{branch}", "source": "main"})
            for path in range(5 if branch in {3, 18} else 1):
                await client.post(f"{repo}/branches/b{branch}/objects", params={"path": f"{path}"}, content=b"123")
        store = (await state.catalog.get("lake")).versions.store
        scan, under_way, most = store.scan, 0, 0

        async def counted(partition: bytes, start: bytes, limit: int) -> Page:
            nonlocal under_way, most
            under_way += limit == 3
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= limit == 3
            return await scan(partition, start, limit)

        monkeypatch.setattr(store, "scan", counted)
        monkeypatch.setattr("lakebed.server.operate.survey.PAGE", 3)

        found = figures((await ask(app, "/metrics", client.auth)).text)

        assert found['lakebed_staged_objects{repository="lake"}'] == 28
        assert found['lakebed_staged_bytes{repository="lake"}'] == 84
        assert most == 16

    async def test_what_waits_to_be_deleted_at_once_what_went_and_what_failed_is_counted(
        self, app: App, state: AppState, client: httpx.AsyncClient, repo: str
    ) -> None:
        await client.put(f"{repo}/hard_delete", json={"is_on": True, "grace_s": 0})
        versions = (await state.catalog.get("lake")).versions
        await HoldBook(versions).add(NewHold(name="case 1", globs=("held/*",), why="court"), by="ann")
        for path in ("held/a", "held/a", "free/a", "free/a"):
            await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"123")
        state.hard_deleting.linger_ms = 0
        await state.hard_deleting.step(0)

        found = figures((await ask(app, "/metrics", client.auth)).text)

        assert found['lakebed_hard_delete_queued{repository="lake"}'] == 1
        assert found['lakebed_hard_delete_oldest_seconds{repository="lake"}'] >= 0
        assert found["lakebed_hard_deleted_objects_total"] == 1
        assert found["lakebed_hard_deleted_bytes_total"] == 3
        assert found['lakebed_hard_delete_failures_total{reason="held by case 1"}'] == 1

    async def test_how_long_ago_the_newest_job_began_that_is_done_is_told_by_what_it_was_asked(
        self, app: App, state: AppState, client: httpx.AsyncClient, repo: str
    ) -> None:
        book = JobBook((await state.catalog.get("lake")).versions)
        for end in (JobState.DONE, JobState.FAILED):
            job = await book.begin(RunRequest(branches=True), by="ann")
            await book.finish(replace(job, state=end))

        found = figures((await ask(app, "/metrics", client.auth)).text)

        lags = {name: lag for name, lag in found.items() if name.startswith("lakebed_job_lag_seconds")}
        assert list(lags) == ['lakebed_job_lag_seconds{repository="lake",action="run",branches="yes"}']
        assert 0 <= min(lags.values()) < 60

    async def test_what_a_collection_gave_back_is_counted_once_it_ended(
        self, app: App, state: AppState, client: httpx.AsyncClient, repo: str
    ) -> None:
        context, run_id = await self.planned(state, client, repo)
        await apply(context, run_id, grace_s=0)

        found = figures((await ask(app, "/metrics", client.auth)).text)

        assert found['lakebed_runs{repository="lake",kind="uncommitted",state="ended"}'] == 1
        assert found['lakebed_reclaimed_bytes_total{repository="lake",kind="uncommitted"}'] == 5
        assert 0 <= found['lakebed_retention_lag_seconds{repository="lake",kind="uncommitted"}'] < 60
        status = (await client.get("/status")).json()
        [kind] = status["collections"]
        assert (kind["repository"], kind["kind"], kind["reclaimed_bytes"]) == ("lake", "uncommitted", 5)
        assert 0 <= kind["lag_seconds"] < 60
        assert [week["reclaimed_bytes"] for week in status["weeks"]] == [0] * 11 + [5]

    @pytest.mark.parametrize("error", [Unavailable("the bucket is gone"), Corrupt("cut short")])
    async def test_a_report_that_cannot_be_read_stops_no_other_number(
        self,
        app: App,
        state: AppState,
        client: httpx.AsyncClient,
        repo: str,
        monkeypatch: pytest.MonkeyPatch,
        error: LakebedError,
    ) -> None:
        context, run_id = await self.planned(state, client, repo)
        await apply(context, run_id, grace_s=0)

        async def fail(*_: object, **__: object) -> bytes:
            raise error

        monkeypatch.setattr((await state.catalog.get("lake")).objectstore, "get", fail)

        found = figures((await ask(app, "/metrics", client.auth)).text)

        assert found['lakebed_runs{repository="lake",kind="uncommitted",state="ended"}'] == 1
        assert found["lakebed_repositories"] == 1

    async def test_what_a_purge_gave_back_is_counted_once_and_stays_counted(
        self, app: App, state: AppState, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lakebed.server.operate.survey.SURVEY_S", -1.0)
        name = 'lakebed_reclaimed_bytes_total{repository="lake",kind="uncommitted"}'
        context, run_id = await self.planned(state, client, repo)
        await apply(context, run_id, window="1h", grace_s=0)
        retired = (await state.catalog.get("lake")).versions.retired

        deferred = figures((await ask(app, "/metrics", client.auth)).text)
        found = await retired.find_run(RunId(run_id))
        assert found is not None
        await retired.write_run(RunId(run_id), replace(found[0], until_ms=1), found[1])  # the window is over
        await purge(context, grace_s=0)
        purged = figures((await ask(app, "/metrics", client.auth)).text)
        await retired.forget_run(RunId(run_id))
        forgotten = figures((await ask(app, "/metrics", client.auth)).text)

        assert [one.get(name, 0) for one in (deferred, purged, forgotten)] == [0, 5, 5]

    async def planned(self, state: AppState, client: httpx.AsyncClient, repo: str) -> tuple[RunContext, str]:
        """A plan that takes five bytes, and what carries it out."""
        upload = f"{repo}/branches/main/objects"
        await client.post(upload, params={"path": "a"}, content=b"12345")
        await client.delete(upload, params={"path": "a"})
        versions = (await state.catalog.get("lake")).versions
        store, ports = versions.objectstore, versions.ports
        context = RunContext(
            repository="lake",
            service=Service(CollectionService(versions)),
            engine=LocalEngine(store, ports, open_deleter=lambda: open_deleter(store.uri)),
            store=store,
            ports=ports,
            progress=lambda _: None,
        )
        made = await plan(context, kind_to_plan(RunKind.UNCOMMITTED, UncommittedOptions(), MetadataRule()))
        return context, made.run_id

    async def test_they_need_a_permission_of_their_own(
        self, app: App, client: httpx.AsyncClient, stranger: httpx.AsyncClient
    ) -> None:
        await client.post("/auth/users", json={"id": "eye"})
        pair = (await client.post("/auth/users/eye/credentials")).json()
        auth = httpx.BasicAuth(pair["access_key_id"], pair["secret_access_key"])

        assert (await ask(app, "/metrics")).status_code == 401
        assert (await ask(app, "/metrics", auth)).status_code in {401, 403}
        await client.put("/auth/groups/Monitors/members/eye")
        assert (await ask(app, "/metrics", auth)).status_code == 200

    def test_labels_are_escaped_and_histograms_add_up(self) -> None:
        timings = Timings()
        for seconds in (0.0001, 0.002, 99):
            timings.add(seconds)
        metrics = Metrics()
        metrics.kv_seconds["get"] = timings

        found = figures(as_text([*metrics.samples(), Sample("lakebed_runs", "", (("kind", 'a"\\\n'),), 1)]))

        assert found['lakebed_runs{kind="a\\"\\\\\\n"}'] == 1
        assert found['lakebed_kv_seconds_bucket{operation="get",le="0.001"}'] == 1
        assert found['lakebed_kv_seconds_bucket{operation="get",le="0.003"}'] == 2
        assert found[f'lakebed_kv_seconds_bucket{{operation="get",le="{BUCKETS_S[-1]}"}}'] == 2
        assert found['lakebed_kv_seconds_count{operation="get"}'] == 3

    def test_the_workers_of_a_server_answer_for_each_other(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (_, url), set_up(url) as client:
            deadline = time.monotonic() + 600
            while True:
                answer = httpx.get(url + "/metrics", auth=client.auth)
                assert answer.status_code == 200
                lines = [line for line in answer.text.splitlines() if line.startswith("process_start_time_seconds")]
                if len({line.split('"')[1] for line in lines}) == 2:
                    break
                assert time.monotonic() < deadline


class TestLogs:
    @pytest.fixture(autouse=True)
    def _logs_as_before(self) -> object:
        root = logging.getLogger()
        before, level = list(root.handlers), root.level
        yield
        root.handlers[:] = before
        root.setLevel(level)

    async def test_an_answered_request_is_one_object_of_json(
        self, client: httpx.AsyncClient, repo: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        configure_logs(LogOptions(level="info", format="json"))

        await client.get(f"{repo}/refs/main/objects/ls?prefix=secret", headers={"x-request-id": "mine"})

        [line] = self.lines(capsys)
        assert {name: line[name] for name in ("level", "logger", "request", "operation", "user", "status")} == {
            "level": "info",
            "logger": "lakebed.access",
            "request": "mine",
            "operation": "listObjects",
            "user": "esti",
            "status": 200,
        }
        assert line["path"] == f"/api/v1{repo}/refs/main/objects/ls"
        assert "secret" not in json.dumps(line)

    async def test_what_goes_wrong_in_a_request_has_its_id(
        self, app: App, client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
    ) -> None:
        configure_logs(LogOptions(format="json"))
        REQUEST_ID.set("mine")

        try:
            int("a bug")
        except ValueError:
            logging.getLogger("lakebed.test").exception("unexpected")

        [line] = self.lines(capsys)
        assert line["request"] == "mine"
        assert "ValueError: invalid literal" in str(line["traceback"])

    def test_text_names_the_request_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        configure_logs(LogOptions())
        REQUEST_ID.set("mine")

        logging.getLogger("lakebed.test").warning("careful")

        assert capsys.readouterr().err.rstrip().endswith("WARNING lakebed.test: careful [request mine]")

    def lines(self, capsys: pytest.CaptureFixture[str]) -> list[Mapping[str, object]]:
        # httpx logs at info, too.
        found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        return [line for line in found if str(line["logger"]).startswith("lakebed")]


def test_the_dashboard_asks_for_figures_that_exist() -> None:
    board = (Path(__file__).parents[3] / "docs" / "guide" / "grafana" / "lakebed.json").read_text()

    asked = set(re.findall(r"\b(?:lakebed|process)_[a-z_]+\b", board)) - {"lakebed_json"}

    known = {
        name + suffix
        for name, (kind, _) in FAMILIES.items()
        for suffix in (["_bucket"] if kind == "histogram" else [""])
    }
    assert asked
    assert asked <= known
