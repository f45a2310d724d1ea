"""A server that runs the collector itself: with Spark, for somebody who may do no more than collect."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lakebed.client import Client, Credentials, path_to
from lakebed.examples.quickstart import LocalServer
from lakebed.gc.messages import JobDeed, JobState, JobView, PlanRequest, Request, RunKind, RunRequest, StartJob
from lakebed.operations.gc.collectors import LIST_GC_JOBS

JOBS = path_to(LIST_GC_JOBS, "lake")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    server = LocalServer(data=tmp_path / "data", log=tmp_path / "log", port=0)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def admin(server: LocalServer) -> Iterator[Client]:
    with Client(server.endpoint) as nobody:
        pair = nobody.setup("admin")
    credentials = Credentials(access_key_id=pair.access_key_id, secret_access_key=pair.secret_access_key)
    with Client(server.endpoint, credentials) as client:
        client.repositories.create("lake", storage_namespace="local://lake")
        yield client


@pytest.fixture
def operator(server: LocalServer, admin: Client) -> Iterator[Client]:
    admin.users.create("operator")
    admin.groups.add("GCOperators", "operator")
    pair = admin.users.create_key("operator")
    credentials = Credentials(access_key_id=pair.access_key_id, secret_access_key=pair.secret_access_key)
    with Client(server.endpoint, credentials) as client:
        yield client


def start(client: Client, request: Request) -> JobView:
    return msgspec.convert(client.call("POST", JOBS, json=StartJob(request=request)), JobView)


def look(client: Client, job: JobView) -> JobView:
    return msgspec.convert(client.call("GET", f"{JOBS}/{job.id}"), JobView)


def collectors() -> set[int]:
    """Processes that run a collector for some server, on this machine."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\x00")
            except OSError:
                continue
            if b"lakebed.gc" in words and b"job" in words:
                found.add(int(folder.name))
    return found


def test_an_operator_has_the_server_collect_and_a_killed_server_leaves_no_collector(
    server: LocalServer, admin: Client, operator: Client, tmp_path: Path
) -> None:
    """One test, for Spark starts in each job."""
    admin.objects.write("lake", "main", "a", b"overwritten")
    admin.objects.write("lake", "main", "a", b"kept")
    files = set((tmp_path / "data" / "objects" / "lake" / "data").glob("*/*"))

    job = start(operator, RunRequest(kinds=(RunKind.UNCOMMITTED,)))
    while job.state is JobState.RUNNING:
        time.sleep(0.2)
        job = look(operator, job)

    assert (job.state, job.error) == (JobState.DONE, ""), job
    assert [(result.deed, result.objects) for result in job.results] == [(JobDeed.APPLIED, 1), (JobDeed.PURGED, 0)]
    assert len(files) - len(set((tmp_path / "data" / "objects" / "lake" / "data").glob("*/*"))) == 1
    assert admin.objects.read("lake", "main", "a") == b"kept"

    before = collectors()
    job = start(operator, PlanRequest())
    while not look(operator, job).lines and not collectors() - before:
        time.sleep(0.1)
    ours = collectors() - before
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    while ours & collectors():
        time.sleep(0.1)
