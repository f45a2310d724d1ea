"""The background task: it cleans, and no error of one step ends it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lakebed.base import Unavailable
from lakebed.catalog import Catalog
from lakebed.gc.live import Installation
from lakebed.gc.messages import INSTALLATION_PREFIX
from lakebed.lake import open_local
from lakebed.server import AppState
from lakebed.server.process.upkeep_loop import (
    APART,
    AT_ONCE,
    STEPS,
    clean_versions,
    end_sandboxes,
    run_upkeep,
    say_alive,
)
from lakebed.versions import keys


async def run_until_clean(state: AppState, partition: bytes) -> None:
    """Run the upkeep at full speed until this partition is empty."""
    upkeep = asyncio.create_task(run_upkeep(state, interval_s=0.001))
    try:
        async with asyncio.timeout(600):
            while (await state.store.scan(partition, b"", 10)).keys:  # noqa: ASYNC110  # nothing tells when it is empty
                await asyncio.sleep(0.001)
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)


async def commit_something(client: httpx.AsyncClient, state: AppState, repo: str) -> bytes:
    """The partition of the token that the commit took."""
    versions = (await state.catalog.get("lake")).versions
    token = (await versions.context.branches.every())[0][1].staging_token
    await client.post(repo + "/branches/main/objects?path=a", content=b"x")
    await client.post(repo + "/branches/main/commits", json={"message": "m"})
    partition = keys.token_partition(versions.uid, token)
    assert (await state.store.scan(partition, b"", 10)).keys == [b"a"]
    return partition


async def test_a_hook_that_hangs_at_the_end_of_a_sandbox_delays_no_other_step(
    state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, done = asyncio.Event(), state.metrics.upkeep_done_s
    others = {step.__name__ for step in (*STEPS, *APART) if step is not end_sandboxes}

    async def clean() -> None:
        hangs.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(state.sandboxes, "clean", clean)
    upkeep = asyncio.create_task(run_upkeep(state, interval_s=0.001))
    try:
        async with asyncio.timeout(600):
            await hangs.wait()
            for _ in range(2):  # The second time round began after the hook.
                done.clear()
                while len(done) < len(others):  # noqa: ASYNC110  # no event says when a step is done
                    await asyncio.sleep(0.001)
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)

    assert set(done) == others


async def test_it_says_that_this_installation_lives(state: AppState, client: httpx.AsyncClient, repo: str) -> None:
    versions = (await state.catalog.get(repo.rpartition("/")[2])).versions

    await say_alive(state)
    await say_alive(state)

    assert len([stat async for page in versions.objectstore.list(INSTALLATION_PREFIX) for stat in page]) == 1
    # Another one goes on from there: a collection over HTTP stops, and goes on when somebody who may adopts.
    await versions.objectstore.put(f"{INSTALLATION_PREFIX}{2:012d}-other", b"{}")
    refused = await client.post(repo + "/gc/runs", json={"kind": "uncommitted"})
    assert refused.status_code == 409
    assert "lakebed gc adopt" in refused.json()["message"]
    assert (await client.post(repo + "/gc/adopting")).json()["adopted_by"] == "esti"
    assert (await client.post(repo + "/gc/runs", json={"kind": "uncommitted"})).status_code == 201


async def test_a_server_that_starts_says_at_once_that_it_lives(state: AppState, repo: str) -> None:
    """Else a copy of its store that was made since its last mark would collect here for hours."""
    versions = (await state.catalog.get(repo.rpartition("/")[2])).versions
    await say_alive(state)
    upkeep = asyncio.create_task(run_upkeep(state, interval_s=3600))

    async with asyncio.timeout(600):
        while (await Installation(versions).read()).number < 2:  # noqa: ASYNC110  # nothing tells when it is 2
            await asyncio.sleep(0.001)

    upkeep.cancel()
    await asyncio.gather(upkeep, return_exceptions=True)


async def test_it_removes_what_commits_leave_behind(state: AppState, client: httpx.AsyncClient, repo: str) -> None:
    partition = await commit_something(client, state, repo)

    await run_until_clean(state, partition)

    assert (await client.get(repo + "/refs/main/objects?path=a")).content == b"x"


@pytest.mark.parametrize("error", [Unavailable("not now"), ZeroDivisionError()])
async def test_a_step_that_fails_does_not_end_the_others(
    state: AppState, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    partition = await commit_something(client, state, repo)

    async def fail(_: Catalog) -> None:
        raise error

    monkeypatch.setattr(Catalog, "clean", fail)

    await run_until_clean(state, partition)


@pytest.mark.parametrize("error", [Unavailable("its bucket is gone"), ZeroDivisionError()])
async def test_a_repository_that_fails_keeps_no_other_from_its_upkeep(
    state: AppState,
    client: httpx.AsyncClient,
    repo: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    partition = await commit_something(client, state, repo)
    broken = await state.catalog.create("a-broken", storage_namespace=f"{namespace}-broken")

    async def fail() -> None:
        raise error

    monkeypatch.setattr(broken.versions.cleanup, "clean", fail)

    await run_until_clean(state, partition)

    assert state.metrics.upkeep_failures["clean_versions"] > 0


async def test_a_repository_whose_bucket_hangs_keeps_no_other_from_its_upkeep(
    state: AppState, client: httpx.AsyncClient, repo: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await commit_something(client, state, repo)
    hangs = await state.catalog.create("a-hangs", storage_namespace=f"{namespace}-hangs")

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(hangs.versions.cleanup, "clean", hang)

    await run_until_clean(state, partition)


async def test_a_step_works_on_a_few_repositories_at_once(
    state: AppState, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most = 0, 0
    for number in range(2 * AT_ONCE):
        repository = await state.catalog.create(f"lake-{number}", storage_namespace=f"{namespace}/{number}")

        async def clean() -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.001)
            under_way -= 1

        monkeypatch.setattr(repository.versions.cleanup, "clean", clean)

    await clean_versions(state)

    assert most == AT_ONCE


async def test_it_visits_every_repository_page_by_page(state: AppState, namespace: str) -> None:
    for number in range(3):
        await state.catalog.create(f"lake-{number}", storage_namespace=f"{namespace}/{number}")

    assert [repository.id async for repository in state.catalog.each()] == ["lake-0", "lake-1", "lake-2"]


# Main ends while its lake is open; then Python gives out no more threads, which object stores need.
ENDS_WITH_ITS_LAKE_OPEN = """
import asyncio, os, sys, threading
from pathlib import Path
from lakebed.server import opened, options_of
from lakebed.server.process.upkeep_loop import run_upkeep

async def outlive():
    async with opened(options_of(Path(sys.argv[1]), {})) as state:
        try:
            while True:
                await asyncio.to_thread(int)
        except RuntimeError:
            print("no more threads")
        await asyncio.wait([asyncio.ensure_future(run_upkeep(state, interval_s=0))], timeout=0.2)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

threading.Thread(target=lambda: asyncio.run(outlive())).start()
"""


def test_a_program_that_ends_with_its_lake_open_prints_no_traceback(tmp_path: Path) -> None:
    with open_local(tmp_path) as lake:
        lake.create_repository("lake")

    ended = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_ITS_LAKE_OPEN, tmp_path], capture_output=True, text=True, check=True
    )

    assert ended.stdout == "no more threads\n"
    assert ended.stderr == ""
