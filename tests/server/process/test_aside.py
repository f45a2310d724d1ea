"""Large work in a process of its own: the same results as here, and nothing lost where that process fails."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from bench.embedded.commit import rows
from bench.http import children
from lakebed.base import Invalid, to_row
from lakebed.server import AppState, ServerOptions, app, create_app, opened, options_of, prepare_folder
from lakebed.server.operate.logs import LogOptions
from lakebed.server.process import aside
from lakebed.server.process.aside import Aside
from lakebed.server.process.serving import ProcessOptions, WorkerOrders, encode_orders
from lakebed.versions import EXCLUSIVE, Note, Versions, encode_cell, keys
from tests.server.process.test_serving import serving, set_up, wait_until_gone

STAGED = 6_000
"""More than a commit reads at once."""
PAGE = "/repositories/lake/refs/committed/objects/ls?amount=1000&after=events/day%3D0001"


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[AppState, Versions]]:
    """A server's parts, with a repository whose branches all have the same large data, staged and here committed."""
    options = ServerOptions(data_dir=folder / "data")
    prepare_folder(options.data_dir)
    process = ProcessOptions(drain_s=1, notice_s=0, log=LogOptions())
    orders = WorkerOrders(options=options, listener_fds=(), other_fds=(), process=process)
    async with opened(options, Aside(encode_orders(orders))) as state:
        repository = await state.catalog.create("lake", storage_namespace="local://x/lake", default_branch="committed")
        versions = repository.versions
        cells = [(key, encode_cell(EXCLUSIVE, to_row(key, entry))) for key, entry in rows(STAGED)]
        for name in ("first", "second", "committed"):
            if name != "committed":
                await versions.refs.create_branch(name, "committed")
            token = (await versions.context.branches.fresh(name)).record.staging_token
            await state.store.set_many(keys.token_partition(versions.uid, token), cells)
        yield state, versions


async def commit(versions: Versions, branch: str) -> str:
    """Commit all of it, and return the tree."""
    return (await versions.commits.commit(branch, Note(message="all", committer="esti"))).metarange_id


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # another process decides
        await asyncio.sleep(0.02)


async def started(state: AppState, versions: Versions) -> tuple[Aside, int]:
    """Commit one branch, so that the process starts. Return it once it is up."""
    assert state.aside is not None
    before = {*children(os.getpid())}  # other tests of this process may have left some
    await commit(versions, "committed")
    await until(lambda: state.aside is not None and state.aside.is_up)
    [pid] = {*children(os.getpid())} - before
    return state.aside, pid


async def test_large_work_is_done_aside_with_the_same_result_and_here_once_that_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "ALONE_S", 600.0)
    async with served(tmp_path) as (state, versions):
        process, pid = await started(state, versions)
        here = (await versions.refs.get_branch("committed")).commit_id
        tree = (await versions.history.get_commit(here)).metarange_id
        transport = httpx.ASGITransport(app=create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
            pair = (await client.post("/setup_lakefs", json={"username": "esti"})).json()
            auth = (pair["access_key_id"], pair["secret_access_key"])
            page = (await client.get(PAGE, auth=auth)).content
            assert await commit(versions, "first") == tree
            assert process.counts == {"done": 2}, "the page and the commit"
            refused = await client.get(PAGE.replace("committed", "nowhere"), auth=auth)
            assert refused.status_code == 404, "as here"

            os.kill(pid, signal.SIGSTOP)
            committing = asyncio.create_task(commit(versions, "second"))
            await until(lambda: process.waiting > 0)
            os.kill(pid, signal.SIGKILL)
            assert await committing == tree
            assert (await client.get(PAGE, auth=auth)).content == page, "and done here, the page is the same"
            assert not process.is_up
            metrics = (await client.get("http://localhost/metrics", auth=auth)).text
            assert re.search(r'lakebed_aside_total{outcome="failed".*} 2\n', metrics), (
                "the refused page, and the commit"
            )
    assert "what it had is done here" in caplog.text


async def test_a_page_shows_only_what_the_server_allows_now_and_is_made_here_where_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "ALONE_S", 600.0)
    async with served(tmp_path) as (state, versions):
        process, pid = await started(state, versions)
        transport = httpx.ASGITransport(app=create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
            pair = (await client.post("/setup_lakefs", json={"username": "esti"})).json()
            client.auth = (pair["access_key_id"], pair["secret_access_key"])
            await client.post("/auth/users", json={"id": "bob"})
            pair = (await client.post("/auth/users/bob/credentials")).json()
            bob = (pair["access_key_id"], pair["secret_access_key"])
            lake = "arn:lakefs:fs:::repository/lake"
            for name, effect, actions, resource in (
                ("all", "allow", ["fs:List*", "fs:Read*"], "*"),
                ("narrow", "allow", ["fs:List*", "fs:Read*"], lake + "*"),
                ("no", "deny", ["fs:ReadObject"], lake + "/object/events/*"),
            ):
                statement = {"effect": effect, "action": actions, "resource": resource}
                created = await client.post("/auth/policies", json={"id": name, "statement": [statement]})
                assert created.status_code == 201, created.text

            async def shown() -> list[bool]:
                page = (await client.get(PAGE, auth=bob)).json()["results"]
                assert len(page) == 1000
                return [bool(row["checksum"]) for row in page]

            await client.put("/auth/users/bob/policies/all")
            assert all(await shown())
            assert process.counts == {"done": 1}
            await client.put("/auth/users/bob/policies/no")
            assert not any(await shown()), "at once"
            await client.delete("/auth/users/bob/policies/no")
            await client.put("/auth/users/bob/policies/narrow")
            await client.delete("/auth/users/bob/policies/all")
            assert all(await shown())
            assert process.counts == {"done": 1}, "here, where not all rows of all repositories are allowed"

            monkeypatch.setattr(aside, "SHORT_S", 0.1)
            monkeypatch.setattr(aside, "SILENT_S", 600.0)
            os.kill(pid, signal.SIGSTOP)
            assert (await client.get(PAGE)).status_code == 200
            assert process.counts == {"done": 1, "failed": 1}
            assert process.is_up, "it was only slow"


async def test_a_process_that_hangs_is_killed_and_its_work_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aside.SILENT_S <= 5
    monkeypatch.setattr(aside, "SILENT_S", 3.0)
    async with served(tmp_path) as (state, versions):
        process, pid = await started(state, versions)
        os.kill(pid, signal.SIGSTOP)
        assert await commit(versions, "first") == await commit(versions, "second")
        assert process.counts == {"failed": 1}
        wait_until_gone([pid])


async def test_one_that_soon_ends_is_not_started_again_for_a_while(tmp_path: Path) -> None:
    async with served(tmp_path) as (state, versions):
        process, pid = await started(state, versions)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not process.is_up)
        starting = process._starting
        await commit(versions, "first")
        assert process._starting is starting


@pytest.mark.parametrize("text", ["false", "off", "2"])
def test_a_setting_that_is_neither_on_nor_off_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match=r"LAKEBED_ASIDE .* known are 0 and 1"):
        options_of(tmp_path, {"LAKEBED_ASIDE": text})


async def test_where_it_cannot_start_the_work_is_done_here_and_no_other_is_started_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    async with served(tmp_path) as (state, versions):
        assert state.aside is not None
        await commit(versions, "committed")
        await until(lambda: bool(caplog.text))
        await commit(versions, "first")
        assert not state.aside.is_up
    assert caplog.text.count("could not start") == 1


def test_it_ends_with_a_server_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_ASIDE", "1")
    with serving(tmp_path / "lake") as (process, url), set_up(url) as client:
        client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
        while not (its := children(process.pid)):
            assert client.get("/repositories/lake/refs/main/objects/ls?amount=1000").status_code == 200
            assert client.get("/repositories/lake").status_code == 200, "a small request that waits for the large ones"
        process.kill()
        process.wait(600)
        wait_until_gone(its)
