"""Collections that the server is asked to run: processes of its own, here played by a few lines of Python."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakebed.gc.live.records.jobs import RUNNING, RunningRecord
from lakebed.objectstore import ObjectStoreOptions, environment_of
from lakebed.server import AppState, create_app
from lakebed.server import collectors as module
from lakebed.server.collectors import Collectors
from lakebed.versions import encode_record
from tests.kv.servers import is_alive

PLAYED = """
import json, os, sys, time
environment = {name: value for name, value in os.environ.items() if name not in {"LC_CTYPE"}}
assert environment.pop("LAKEBED_S3_SECRET_ACCESS_KEY")  # the line has room for little more than a token
said = {"run_id": "r1", "kind": "uncommitted", "totals": {"all": {"objects": 3, "size_bytes": 30}}, "more": 1}
applied = {"run_id": "r1", "kind": "uncommitted", "objects_deleted": 2, "bytes_deleted": 20, "objects_failed": 1}
asked = json.loads(sys.stdin.readline())
print("arguments " + " ".join(sys.argv[1:]) + " " + json.dumps(asked), file=sys.stderr, flush=True)
print("environment " + json.dumps(environment), file=sys.stderr, flush=True)
if asked["action"] in {"plan", "plan-erasure"} and asked.get("tasks") != 777:
    print(json.dumps(said), flush=True)
elif asked["action"] == "erase":
    print(json.dumps({"run_id": "r1", "objects_certified": 3, "objects_absent": 2, "stands": 1}), flush=True)
    print("error: the certificate names 1 thing of the content that still stands", file=sys.stderr, flush=True)
    sys.exit(1)
elif asked["action"] == "apply":
    print(json.dumps(applied), flush=True)
    print(json.dumps({"objects_purged": 5, "bytes_purged": 50, "objects_failed": 0}), flush=True)
    print("no record", flush=True)
    print("error: a key could not be deleted", file=sys.stderr, flush=True)
    sys.exit(1)
elif asked["action"] == "simulate":
    total = {"objects": 2, "size_bytes": 30}
    sums = {"by_date": {"2026-11-28": total}, "by_rule": {"logs": total}, "by_branch": {"main": total}}
    sums |= {"run_id": "r1", "now_ms": 0, "days": asked["days"], "policy_version": 1, "total": total}
    print(json.dumps({"simulation": sums | {"branches_by_date": {}}}), flush=True)
else:
    sys.stdin.read()
    sys.exit(130)
"""

SECRETS = frozenset(
    {
        *("LAKEBED_SERVER_SECRET", "LAKEBED_SETUP_SECRET", "LAKEBED_STORE_URI", "LAKEBED_OIDC_CLIENT_SECRET"),
        *("LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY", "LAKEBED_EVENTS_KAFKA", "LAKEBED_EVENTS_NATS"),
        *("LAKEBED_ACTION_TOKEN", "LAKEFSACTION_TOKEN", "PGPASSWORD", "LAKEBED_A_SECRET_THAT_COMES_LATER"),
    }
)

RULES = {"default": "36h", "branches": [], "keep_last": [], "tags_pin": True, "uncommitted_min_age": None}


def test_a_collector_gets_what_spark_and_object_stores_need() -> None:
    needed = {
        *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "JAVA_HOME", "https_proxy", "NO_PROXY", "SSL_CERT_FILE"),
        *("SPARK_HOME", "PYSPARK_PYTHON", "HADOOP_CONF_DIR", "LAKEBED_GC_MEMORY_MB", "LAKEBED_GC_ENGINE", "PYTHONPATH"),
        *("AWS_PROFILE", "AWS_ROLE_ARN", "AZURE_CLIENT_ID", "GOOGLE_APPLICATION_CREDENTIALS", "IDENTITY_ENDPOINT"),
        *("KRB5_CONFIG", "KRB5CCNAME", "HIVE_CONF_DIR", "CURL_CA_BUNDLE", "GCE_METADATA_HOST", "STORAGE_EMULATOR_HOST"),
        *("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "CONDA_PREFIX"),
        *environment_of(ObjectStoreOptions(local_root=Path("/d"), s3_endpoint="e", azure_key="k", gs_endpoint="g")),
    }

    passed = module.collector_environment(dict.fromkeys(needed | SECRETS, "x"))

    assert passed.keys() == needed


def test_a_collector_gets_the_variables_that_its_administrator_names() -> None:
    named = {"LAKEBED_GC_ENVIRONMENT": "CORP_CLASSPATH, OTHER"}
    environment = named | {"CORP_CLASSPATH": "/c", "OTHER": "o", "CORP": "x"} | dict.fromkeys(SECRETS, "x")

    assert module.collector_environment(environment) == named | {"CORP_CLASSPATH": "/c", "OTHER": "o"}


@pytest.fixture
async def collectors(state: AppState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collectors]:
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(module, "LINE_CHARACTERS_MAX", 1000)  # a line has its token
    program = tmp_path / "collector.py"
    program.write_text(PLAYED)
    environment = dict.fromkeys(SECRETS | module.AWS_NAMES, "a secret")
    environment["LAKEBED_S3_SECRET_ACCESS_KEY"] = "s"
    made = Collectors(environment, state.authenticator, program=(sys.executable, str(program)))
    yield made
    await made.close()


@pytest.fixture
def app(state: AppState, collectors: Collectors) -> Any:
    return create_app(dataclasses.replace(state, collectors=collectors))


async def ended(client: httpx.AsyncClient, repo: str, job: Any) -> Any:
    while job["state"] == "running":
        await asyncio.sleep(0.02)
        job = (await client.get(f"{repo}/gc/jobs/{job['id']}")).json()
    return job


def is_there(file: str) -> bool:
    return Path(file).exists()


async def test_a_plan_made_on_the_server_is_answered_with_its_progress(client: httpx.AsyncClient, repo: str) -> None:
    request = {"action": "plan", "tasks": 4, "kinds": ["uncommitted"], "mode": "clean", "rules": RULES}

    started = await client.post(repo + "/gc/jobs", json={"request": request})
    job = await ended(client, repo, started.json())

    assert started.status_code == 201, started.text
    assert (job["state"], job["error"], job["started_by"]) == ("done", "", "esti")
    assert job["request"] == request
    assert job["lines"][0] == f"arguments job lakefs://lake {json.dumps(request)}"
    assert job["results"] == [
        {
            "deed": "planned",
            "run_id": "r1",
            "kind": "uncommitted",
            "objects": 3,
            "size_bytes": 30,
            "objects_failed": 0,
            "simulation": None,
        }
    ]
    assert [found["id"] for found in (await client.get(repo + "/gc/jobs")).json()["jobs"]] == [job["id"]]


async def test_a_simulation_on_the_server_keeps_its_sums(client: httpx.AsyncClient, repo: str) -> None:
    for days, policy in ((367, ""), (5, "{"), (5, '{"rules": {"a": {"prefix": "a/", "period": "soon"}}}')):
        request = {"action": "simulate", "days": days, "policy": policy}
        assert (await client.post(repo + "/gc/jobs", json={"request": request})).status_code == 400, request

    started = await client.post(repo + "/gc/jobs", json={"request": {"action": "simulate", "days": 7}})
    [result] = (await ended(client, repo, started.json()))["results"]

    assert (result["deed"], result["objects"], result["size_bytes"]) == ("simulated", 2, 30)
    assert result["simulation"]["by_date"] == {"2026-11-28": {"objects": 2, "size_bytes": 30}}


async def test_the_next_job_begins_as_soon_as_one_is_shown_as_ended(
    client: httpx.AsyncClient, repo: str, state: AppState
) -> None:
    first = await ended(
        client, repo, (await client.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})).json()
    )
    context = (await state.catalog.get("lake")).versions.context
    beat = RunningRecord(job_id=first["id"], beat_ms=(await state.catalog.get("lake")).versions.ports.clock.now_ms())
    await context.set(RUNNING, beat)

    second = await client.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})

    assert second.status_code == 201, second.text
    assert (await ended(client, repo, second.json()))["state"] == "done"


async def test_an_erasure_on_the_server_counts_its_certificate_and_fails_where_something_stands(
    client: httpx.AsyncClient, repo: str
) -> None:
    started = await client.post(repo + "/gc/jobs", json={"request": {"action": "erase", "run_id": "r1"}})
    job = await ended(client, repo, started.json())

    assert (job["state"], job["error"].startswith("error: the certificate names 1 thing")) == ("failed", True)
    [result] = job["results"]
    assert (result["deed"], result["objects"], result["objects_failed"]) == ("certified", 2, 1)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"selection": {"paths": ["a"]}, "why": " "}, "needs a reason"),
        ({"selection": {}, "why": "x"}, "nothing is selected"),
        ({"selection": {"paths": ["/" * 99_000]}, "why": "x"}, ""),
        ({"selection": {"paths": [f"a/{n:05}" for n in range(9_000)]}, "why": "x"}, "use `lakebed erase plan`"),
        ({"selection": {"paths": ["a"]}, "why": "x", "staged": []}, "staged"),
    ],
)
async def test_an_erasure_that_selects_badly_or_too_much_for_a_job_is_refused(
    client: httpx.AsyncClient, repo: str, request_: dict[str, Any], words: str
) -> None:
    answer = await client.post(repo + "/gc/jobs", json={"request": {"action": "plan-erasure", **request_}})

    assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert (await client.get(repo + "/gc/jobs")).json()["jobs"] == []


@pytest.mark.parametrize("missing", ["gc:Plan", "gc:Apply", "gc:Erase"])
async def test_an_erasure_on_the_server_asks_for_each_of_its_permissions(
    app: Any, client: httpx.AsyncClient, repo: str, missing: str
) -> None:
    actions = sorted({"gc:ReadRuns", "gc:Plan", "gc:Apply", "gc:Erase"} - {missing})
    statement = [{"effect": "allow", "action": actions, "resource": "*"}]
    await client.post("/auth/users", json={"id": "vera"})
    await client.post("/auth/policies", json={"id": "of-vera", "statement": statement})
    await client.put("/auth/users/vera/policies/of-vera")
    pair = (await client.post("/auth/users/vera/credentials")).json()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    auth = pair["access_key_id"], pair["secret_access_key"]
    plan = {"action": "plan-erasure", "selection": {"paths": ["a"]}, "why": "x"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as vera:
        planned = await vera.post(repo + "/gc/jobs", json={"request": plan})
        if planned.status_code == 201:
            await ended(client, repo, planned.json())
        erased = await vera.post(repo + "/gc/jobs", json={"request": {"action": "erase", "run_id": "r1"}})

    assert planned.status_code == (201 if missing == "gc:Apply" else 403), planned.text
    assert (erased.status_code, missing in erased.text) == (403, True), erased.text


async def test_a_collector_gets_no_secret_of_the_server(client: httpx.AsyncClient, repo: str) -> None:
    started = await client.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})
    job = await ended(client, repo, started.json())

    environment = json.loads(job["lines"][1].removeprefix("environment "))
    assert environment["LAKEBED_ENDPOINT"].startswith("http://")
    assert environment.keys() == {"LAKEBED_ENDPOINT", "LAKEBED_TOKEN"}


async def delegated(client: httpx.AsyncClient, repo: str, job: Any) -> dict[str, str]:
    """The header that its collector sends. The job is one that goes on until it is stopped."""
    while len(job["lines"]) < 2:
        await asyncio.sleep(0.02)
        job = (await client.get(f"{repo}/gc/jobs/{job['id']}")).json()
    environment = json.loads(job["lines"][1].removeprefix("environment "))
    return {"Authorization": f"Bearer {environment['LAKEBED_TOKEN']}"}


async def test_a_jobs_token_is_good_for_collecting_in_its_repository_alone(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str
) -> None:
    other = {"name": "pond", "storage_namespace": "mem://pond"}
    assert (await client.post("/repositories", json=other)).status_code == 201
    pond = "/repositories/pond"
    for place in (repo, pond):
        await client.post(place + "/branches/main/objects", params={"path": "a"}, content=b"x")
    headers = await delegated(
        client, repo, (await client.post(repo + "/gc/jobs", json={"request": {"action": "run"}})).json()
    )
    branch = {"name": "b", "source": "main"}
    granted: list[tuple[str, str, Any]] = [
        ("GET", repo, {}),
        ("GET", repo + "/gc/runs", {}),
        ("GET", repo + "/gc/rules/full", {}),
        ("POST", repo + "/gc/purging", {}),
        ("POST", repo + "/gc/runs", {"json": {"kind": "metadata"}}),
    ]
    refused: list[tuple[str, str, Any]] = [
        ("GET", pond, {}),
        ("GET", pond + "/gc/runs", {}),
        ("GET", pond + "/refs/main/objects", {"params": {"path": "a"}}),
        ("POST", pond + "/gc/jobs", {"json": {"request": {"action": "plan"}}}),
        ("GET", repo + "/refs/main/objects", {"params": {"path": "a"}}),
        ("GET", repo + "/refs/main/objects/ls", {}),
        ("POST", repo + "/branches/main/objects", {"params": {"path": "b"}, "content": b"x"}),
        ("DELETE", repo + "/branches/main/objects", {"params": {"path": "a"}}),
        ("POST", repo + "/branches", {"json": branch}),
        ("DELETE", repo, {}),
        ("DELETE", repo + "/gc/rules/full", {}),
        ("POST", repo + "/gc/restore", {"json": {"run_id": "r1"}}),
        ("GET", repo + "/gc/ledger", {}),
        ("POST", repo + "/gc/jobs", {"json": {"request": {"action": "plan"}}}),
        ("POST", "/auth/users/esti/credentials", {}),
        ("GET", "/auth/users", {}),
        ("GET", "/repositories", {}),
        ("GET", "/user", {}),
    ]

    for method, path, extra in granted:
        answer = await stranger.request(method, path, headers=headers, **extra)
        assert answer.status_code in {200, 201}, (method, path, answer.text)
    for method, path, extra in refused:
        answer = await stranger.request(method, path, headers=headers, **extra)
        # The contract's routes say 401 to who may not, ours 403; the message tells it from an unknown login.
        assert answer.status_code in {401, 403}, (method, path, answer.status_code, answer.text)
        assert "insufficient permissions" in answer.text, (method, path, answer.text)


async def test_only_the_token_of_a_job_that_sweeps_branches_deletes_branches_of_its_repository_alone(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str
) -> None:
    other = {"name": "pond", "storage_namespace": "mem://pond-swept"}
    assert (await client.post("/repositories", json=other)).status_code == 201
    for place in (repo, "/repositories/pond"):
        assert (await client.post(place + "/branches", json={"name": "b", "source": "main"})).status_code == 201
    tokens = []
    for request in ({"action": "run"}, {"action": "run", "branches": True}):
        job = (await client.post(repo + "/gc/jobs", json={"request": request})).json()
        tokens.append(await delegated(client, repo, job))
        if "branches" not in request:
            await client.delete(f"{repo}/gc/jobs/{job['id']}")
            await ended(client, repo, job)
    sweep = repo + "/lifecycle/branches/sweep"
    body = {"policy_version": 0, "branches": [{"branch": "b", "state": "as planned"}]}

    assert (await stranger.get(repo + "/lifecycle/branches", headers=tokens[1])).status_code == 200
    swept = await stranger.post(sweep, json=body, headers=tokens[1])
    elsewhere = [
        await stranger.post(sweep.replace(repo, "/repositories/pond"), json=body, headers=tokens[1]),
        await stranger.delete(repo + "/branches/b/objects", params={"path": "a"}, headers=tokens[1]),
        await stranger.post(sweep, json=body, headers=tokens[0]),
    ]

    assert swept.json()["branches"] == [{"branch": "b", "is_deleted": False, "why": "used since it was planned"}], (
        swept.text
    )
    assert [answer.status_code in {401, 403} for answer in elsewhere] == [True] * 3


@pytest.mark.parametrize("end", ["stopped", "lost", "repository deleted"])
async def test_a_jobs_token_ends_with_the_job(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, state: AppState, repo: str, end: str
) -> None:
    job = (await client.post(repo + "/gc/jobs", json={"request": {"action": "run"}})).json()
    headers = await delegated(client, repo, job)
    assert (await stranger.get(repo, headers=headers)).status_code == 200

    if end == "stopped":
        await client.delete(f"{repo}/gc/jobs/{job['id']}")
        await ended(client, repo, job)
    elif end == "lost":
        versions = (await state.catalog.get("lake")).versions
        silent = encode_record(RunningRecord(job_id=job["id"], beat_ms=0, is_stopping=True))
        await versions.store.set(versions.partition, RUNNING, silent)
    else:
        await client.delete(repo, params={"force": "true"})

    answer = await stranger.get(repo, headers=headers)
    assert (answer.status_code, answer.json()["message"]) == (401, "error authenticating request")


async def test_a_job_counts_as_at_the_address_of_who_started_it(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str, app: Any
) -> None:
    """Its collector asks from the server's own machine, and the user may collect from elsewhere alone."""
    from_office = {"IpAddress": {"SourceIp": ["10.0.0.0/8"]}}
    statement = {"effect": "allow", "action": ["*"], "resource": "*", "condition": from_office}
    await client.post("/auth/users", json={"id": "ann"})
    await client.post("/auth/policies", json={"id": "office", "statement": [statement]})
    await client.put("/auth/users/ann/policies/office")
    pair = (await client.post("/auth/users/ann/credentials")).json()
    auth = (pair["access_key_id"], pair["secret_access_key"])
    transport = httpx.ASGITransport(app=app, client=("10.1.1.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as office:
        started = await office.post(repo + "/gc/jobs", json={"request": {"action": "run"}})
    headers = await delegated(client, repo, started.json())

    assert (await stranger.post(repo + "/gc/purging", headers=headers)).status_code == 200
    assert (await stranger.post(repo + "/gc/purging", auth=auth)).status_code == 403


async def test_a_jobs_token_may_no_more_than_its_user_may(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str
) -> None:
    await client.post("/auth/users", json={"id": "operator"})
    await client.put("/auth/groups/GCOperators/members/operator")
    pair = (await client.post("/auth/users/operator/credentials")).json()
    auth = (pair["access_key_id"], pair["secret_access_key"])
    job = (await client.post(repo + "/gc/jobs", json={"request": {"action": "run"}}, auth=auth)).json()
    headers = await delegated(client, repo, job)
    assert (await stranger.post(repo + "/gc/purging", headers=headers)).status_code == 200

    await client.delete("/auth/groups/GCOperators/members/operator")

    assert (await stranger.post(repo + "/gc/purging", headers=headers)).status_code == 403


async def test_a_job_collects_a_deleted_repository_by_its_uid_and_nothing_else_of_it(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_CHARACTERS_MAX", 2_000)  # The token says which repository, and is in a line.
    await client.delete(repo)
    [deleted] = (await client.get("/deleted/repositories")).json()["results"]
    jobs, plan = repo + "/gc/jobs?deleted=only", {"action": "plan", "kinds": ["deleted"]}
    for wrong in (
        {"action": "plan"},
        {"action": "plan", "kinds": ["deleted", "metadata"]},
        {"action": "run", "kinds": ["deleted"]},
        {"action": "purge"},
        {"action": "apply", "run_id": "r1", "window": "7d"},
    ):
        assert (await client.post(jobs, json={"request": wrong})).status_code == 400, wrong
    assert (await client.post(repo + "/gc/jobs", json={"request": plan})).status_code == 404

    job = (await client.post(jobs, json={"request": {**plan, "tasks": 777}})).json()
    while len(job["lines"]) < 2:
        await asyncio.sleep(0.02)
        job = (await client.get(f"{repo}/gc/jobs/{job['id']}?deleted={deleted['uid']}")).json()
    token = json.loads(job["lines"][1].removeprefix("environment "))["LAKEBED_TOKEN"]
    headers = {"Authorization": f"Bearer {token}"}
    started = await stranger.post(repo + "/gc/runs?deleted=only", json={"kind": "deleted"}, headers=headers)
    applied = await stranger.post(
        f"{repo}/gc/runs/{started.json()['run_id']}/applying?deleted=only", json={"plan": ""}, headers=headers
    )
    stopped = await client.delete(f"{repo}/gc/jobs/{job['id']}?deleted=only")

    assert job["lines"][0].startswith(f"arguments job lakefs://lake --uid {deleted['uid']} ")
    assert started.status_code == 201
    assert applied.status_code == 403
    assert stopped.status_code == 200
    while job["state"] == "running":
        await asyncio.sleep(0.02)
        job = (await client.get(f"{repo}/gc/jobs/{job['id']}?deleted=only")).json()
    assert (await stranger.get(repo + "/gc/runs?deleted=only", headers=headers)).status_code == 401
    assert [one["id"] for one in (await client.get(jobs)).json()["jobs"]] == [job["id"]]


async def test_to_apply_by_a_job_in_a_deleted_repository_needs_its_own_permission(
    client: httpx.AsyncClient, repo: str
) -> None:
    await client.post("/auth/users", json={"id": "operator"})
    await client.put("/auth/groups/GCOperators/members/operator")
    pair = (await client.post("/auth/users/operator/credentials")).json()
    auth = (pair["access_key_id"], pair["secret_access_key"])
    await client.delete(repo)
    apply = {"request": {"action": "apply", "run_id": "r1"}}

    refused = await client.post(repo + "/gc/jobs?deleted=only", json=apply, auth=auth)

    assert refused.status_code == 403, refused.text
    assert (await client.post(repo + "/gc/jobs?deleted=only", json=apply)).status_code == 201


async def test_the_token_of_a_plan_deletes_nothing(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str
) -> None:
    body = {"request": {"action": "plan", "tasks": 777}}
    headers = await delegated(client, repo, (await client.post(repo + "/gc/jobs", json=body)).json())

    assert (await stranger.post(repo + "/gc/runs", json={"kind": "metadata"}, headers=headers)).status_code == 201
    assert (await stranger.post(repo + "/gc/purging", headers=headers)).status_code == 403


async def test_a_partial_failure_is_no_success(client: httpx.AsyncClient, repo: str) -> None:
    started = await client.post(repo + "/gc/jobs", json={"request": {"action": "apply", "run_id": "r1"}})

    job = await ended(client, repo, started.json())

    assert (job["state"], job["error"]) == ("failed", "error: a key could not be deleted")
    assert [(one["deed"], one["objects"], one["objects_failed"]) for one in job["results"]] == [
        ("applied", 2, 1),
        ("purged", 5, 0),
    ]
    assert "no record" in job["lines"]


async def test_one_job_at_a_time_until_it_is_stopped(client: httpx.AsyncClient, repo: str) -> None:
    first = (await client.post(repo + "/gc/jobs", json={"request": {"action": "run"}})).json()
    refused = await client.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})

    stopping = await client.delete(f"{repo}/gc/jobs/{first['id']}")
    job = await ended(client, repo, stopping.json())

    assert refused.status_code == 409
    assert first["id"] in refused.json()["message"]
    assert (job["state"], job["error"]) == ("stopped", "a user asked it to stop")
    assert (await client.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})).status_code == 201


async def test_a_server_that_stops_takes_its_jobs_with_it(
    client: httpx.AsyncClient, repo: str, collectors: Collectors
) -> None:
    job = (await client.post(repo + "/gc/jobs", json={"request": {"action": "run"}})).json()

    await collectors.close()

    found = (await client.get(f"{repo}/gc/jobs/{job['id']}")).json()
    assert (found["state"], found["error"]) == ("failed", "the server was stopped")


LEFT_BEHIND = """
import os, pathlib, subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session=%s)
pathlib.Path(%r).write_text(str(child.pid))
os._exit(137)
"""


class LeavesBehind:
    """A collector that is killed while a process that it started lives on, and holds its stderr."""

    def __init__(self, state: AppState, folder: Path, *, elsewhere: bool) -> None:
        self._child = folder / "child"
        program = folder / "leaves.py"
        program.write_text(LEFT_BEHIND % (elsewhere, str(self._child)))
        self.collectors = Collectors({}, state.authenticator, program=(sys.executable, str(program)))

    def client(self, state: AppState, like: httpx.AsyncClient) -> httpx.AsyncClient:
        app = create_app(dataclasses.replace(state, collectors=self.collectors))
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=like.base_url, auth=like.auth)

    async def child(self) -> int:
        while not is_there(str(self._child)) or not self._child.read_text():  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.02)
        return int(self._child.read_text())


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_collector_that_is_killed_ends_its_job_whatever_it_left_behind(
    state: AppState,
    client: httpx.AsyncClient,
    repo: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: bool,
) -> None:
    """What is of its process group goes with it; what left the group is not ours to end, and is not waited for."""
    for name in ("BEAT_S", "STOP_S", "LAST_WORDS_S"):
        monkeypatch.setattr(module, name, 0.1)
    left = LeavesBehind(state, tmp_path, elsewhere=elsewhere)
    async with left.client(state, client) as there:
        job = await ended(
            there, repo, (await there.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})).json()
        )
        again = await there.post(repo + "/gc/jobs", json={"request": {"action": "purge"}})
        await left.collectors.close()
    child = await left.child()

    assert (job["state"], job["error"]) == ("failed", "the collector ended with code 137")
    assert again.status_code == 201
    if elsewhere:
        os.kill(child, signal.SIGKILL)
    else:
        while is_alive(child):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.02)


async def test_a_server_stops_though_a_collector_left_something_behind(
    state: AppState, client: httpx.AsyncClient, repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(module, "STOP_S", 0.1)
    left = LeavesBehind(state, tmp_path, elsewhere=False)
    async with left.client(state, client) as there:
        job = (await there.post(repo + "/gc/jobs", json={"request": {"action": "plan"}})).json()
        child = await left.child()

        await left.collectors.close()

        assert (await ended(there, repo, job))["state"] == "failed"
    assert not is_alive(child)


@pytest.mark.parametrize(
    "request_",
    [
        {"action": "apply"},
        {"action": "plan", "run_id": "r1"},
        {"action": "apply", "run_id": "../r1"},
        {"action": "apply", "run_id": "r1", "kinds": ["committed"]},
        {"action": "plan", "remote": "sc://elsewhere"},
        {"action": "plan", "window": "7d"},
        {"action": "plan", "mode": "yes"},
        {"action": "plan", "tasks": 0},
        {"action": "plan", "rules": {"default": "no time"}},
        {"action": "run", "rules": {"default": "7d"}},
        {"action": "plan", "kinds": ["metadata"], "rules": {"default": "7d"}},
        {"action": "purge", "kinds": ["committed"]},
        {"action": "sweep"},
        {},
        None,
    ],
)
async def test_an_invalid_request_starts_no_job(client: httpx.AsyncClient, repo: str, request_: Any) -> None:
    assert (await client.post(repo + "/gc/jobs", json={"request": request_})).status_code == 400
    assert (await client.get(repo + "/gc/jobs")).json() == {"jobs": []}


async def test_an_unknown_job_is_not_found(client: httpx.AsyncClient, repo: str) -> None:
    assert (await client.get(repo + "/gc/jobs/x")).status_code == 404
    assert (await client.delete(repo + "/gc/jobs/x")).status_code == 404


async def test_a_server_without_spark_says_so(
    state: AppState, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = create_app(dataclasses.replace(state, collectors=Collectors({}, state.authenticator)))
    monkeypatch.setattr("lakebed.gc.messages.requests.find_spec", lambda _: None)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=bare), base_url=client.base_url, auth=client.auth
    ) as there:
        answer = await there.post(repo + "/gc/jobs", json={"request": {"action": "plan", "engine": "spark"}})

    assert answer.status_code == 501
    assert "lakebed[spark]" in answer.json()["message"]
    assert (await client.get(repo + "/gc/jobs")).json() == {"jobs": []}


async def test_what_a_job_does_must_be_allowed_to_who_starts_it(app: Any, client: httpx.AsyncClient, repo: str) -> None:
    people = {}
    for user, group in (("viewer", "Viewers"), ("planner", "GCPlanners"), ("operator", "GCOperators")):
        await client.post("/auth/users", json={"id": user})
        await client.put(f"/auth/groups/{group}/members/{user}")
        pair = (await client.post(f"/auth/users/{user}/credentials")).json()
        people[user] = (pair["access_key_id"], pair["secret_access_key"])
    plan, apply, run = (
        {"request": body} for body in ({"action": "plan"}, {"action": "apply", "run_id": "r1"}, {"action": "run"})
    )

    for user, body, status in (
        ("viewer", plan, 403),
        ("viewer", apply, 403),
        ("planner", plan, 201),
        ("planner", apply, 403),
        ("planner", run, 403),
        ("operator", apply, 201),
    ):
        answer = await client.post(repo + "/gc/jobs", json=body, auth=people[user])
        assert answer.status_code == status, (user, body, answer.text)
        if status == 201:
            assert (
                await client.delete(f"{repo}/gc/jobs/{answer.json()['id']}", auth=people["viewer"])
            ).status_code == 403
            await ended(client, repo, answer.json())
    assert (await client.get(repo + "/gc/jobs", auth=people["viewer"])).status_code == 200
