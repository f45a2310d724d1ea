"""A month later: what a lifecycle policy took, as the command line and unchanged clients show it, and what comes back.

A server with a clock that is 40 days behind writes, one that is 20 days behind collects a deleted repository, and a
third goes on today.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import httpx
import lakefs
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from lakefs.client import Client
from lakefs.exceptions import ServerException
from lakefs_sdk.exceptions import ApiException
from lakefs_spec import LakeFSFileSystem

import lakebed
from lakebed.client import ObjectExpired
from lakebed.lake.filesystem import LakebedFileSystem
from lakebed.server import opened, options_of
from lakebed.server.process.upkeep_loop import clean_catalog
from tests.cli.conftest import Shell

from .serving import Server, listening

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend

RULE = 'logs: logs/ 30d when metadata.class == "raw"'
POLICY = {"rules": {"logs": {"prefix": "logs/", "period": "30d", "when": "metadata.class == 'raw'"}}}


class Later(NamedTuple):
    """`lakefs://lake/main/logs/old` went by run `run`; `logs/kept` and `data/a` are there."""

    server: Server
    shell: Shell
    run: str
    day: date

    @property
    def words(self) -> str:
        return f"expired by policy version 1, {RULE}, run {self.run}, {self.day}"

    @property
    def here(self) -> tuple[str, ...]:
        return ("--engine", "local", "--data", str(self.server.folder))


def shell_of(server: Server) -> Shell:
    names = ("LAKEBED_ENDPOINT", "LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY")
    facts = (server.url, server.access_key_id, server.secret_access_key)
    return Shell(environment={**dict(zip(names, facts, strict=True)), "LAKEBED_CONFIG": str(server.folder / "none")})


def clean(folder: Path, *, days_ago: int) -> None:
    """Do what the upkeep of a server did within a minute so many days ago."""

    async def take() -> None:
        async with opened(options_of(folder, {})) as state:
            await clean_catalog(state)

    real = time.time_ns
    with pytest.MonkeyPatch.context() as machine:
        machine.setattr(time, "time_ns", lambda: real() - days_ago * 86_400 * 10**9)
        asyncio.run(take())


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Later]:
    folder = tmp_path_factory.mktemp("later")
    with listening(folder, {}, days_ago=40) as url:
        pair = httpx.post(url + "/api/v1/setup_lakefs", json={"username": "esti"}).json()
        server = Server(url, pair["access_key_id"], pair["secret_access_key"], folder)
        shell = shell_of(server)
        for name in ("lake", "away"):
            shell.ok("repo", "create", f"lakefs://{name}", f"local://{name}")
            shell.ok("object", "upload", "-", f"lakefs://{name}/main/data/a", stdin="here")
        shell.ok("object", "upload", "-", "lakefs://lake/main/logs/old", "--meta", "class=raw", stdin="secret")
        shell.ok("object", "upload", "-", "lakefs://lake/main/logs/kept", stdin="kept")
        shell.ok("commit", "lakefs://lake/main", "-m", "a month ago")
        for noun in ("tag", "branch"):
            shell.ok(noun, "create", f"lakefs://lake/short-{noun}", *(["main"] if noun == "tag" else []))
            shell.ok(noun, "delete", f"lakefs://lake/short-{noun}", "--yes")
        shell.ok("repo", "delete", "lakefs://away", "--yes")
    here = ("--engine", "local", "--data", str(folder))
    with listening(folder, {}, days_ago=20) as url:
        shell = shell_of(replace(server, url=url))
        plan = shell.ok("gc", "deleted", "plan", "lakefs://away", *here, "-o", "json").json
        shell.ok("gc", "deleted", "apply", "lakefs://away", plan["run_id"], *here, "--yes")
        early = shell("repo", "create", "lakefs://early", "local://away", "--reuse")
        assert (early.code, "which is collected: --reuse takes it again once" in early.err) == (4, True)
    # The records go, and are looked at again when older requests are over.
    clean(folder, days_ago=19)
    clean(folder, days_ago=18)
    with listening(folder, {}) as url:
        server = replace(server, url=url)
        shell = shell_of(server)
        policy = folder / "policy.json"
        policy.write_text(json.dumps(POLICY))
        shell.ok("lifecycle", "policy", "set", "lakefs://lake", str(policy))
        [plan] = shell.ok("lifecycle", "plan", "lakefs://lake", *here, "-o", "json").json
        assert (plan["totals"]["all"]["objects"], [*plan["totals"]["by_rule"]]) == (1, [RULE])
        grace = ("--readers-grace", "0", "--yes")
        report = shell.ok("lifecycle", "apply", "lakefs://lake", plan["run_id"], *here, *grace, "-o", "json").json
        assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", 1, 0)
        taken_s = shell.ok("object", "stat", "lakefs://lake/main/logs/old", "-o", "json").json["expired"]["date"]
        assert plan["now_ms"] // 1000 <= taken_s <= time.time()
        yield Later(server, shell, plan["run_id"], datetime.fromtimestamp(taken_s, UTC).date())


def test_commands_name_policy_rule_run_and_date(later: Later) -> None:
    gone = "lakefs://lake/main/logs/old"

    read = later.shell("object", "cat", gone)
    downloaded = later.shell("object", "download", gone, str(later.server.folder / "copy"))
    stat = later.shell.ok("object", "stat", gone)
    listed = later.shell.ok("object", "ls", "lakefs://lake/main/logs/").out
    diff = later.shell.ok("diff", "lakefs://lake/main~1", "lakefs://lake/main").out
    ledger = later.shell.ok("gc", "ledger", "lakefs://lake", "--run", later.run, *later.here[2:], "-o", "json").json

    assert (read.code, read.out, later.words in read.err) == (3, "", True)
    assert (downloaded.code, later.words in downloaded.err) == (3, True)
    assert not (later.server.folder / "copy").exists()
    [line] = [line for line in stat.out.splitlines() if line.startswith("Expired")]
    assert re.fullmatch(rf"Expired: +{later.day} \S+ by policy version 1, {re.escape(RULE)}, run {later.run}", line)
    assert [line.split()[-1] for line in listed.splitlines()] == ["logs/kept", "(expired)"]
    assert re.search(r"^\+ logs/old .*\(expired\)$", diff, re.MULTILINE)
    assert [(row["path"], row["rule"], row["state"]) for row in ledger] == [("logs/old", RULE, "deleted")]


def test_http_answers_410_with_policy_rule_run_and_date(later: Later) -> None:
    at = f"{later.server.url}/api/v1/repositories/lake/refs/main/objects"
    auth = (later.server.access_key_id, later.server.secret_access_key)

    gone = httpx.get(at, params={"path": "logs/old"}, auth=auth)

    assert (gone.status_code, gone.json()["message"]) == (410, later.words)
    expired = gone.json()["expired"]
    assert (expired["policy_version"], expired["rule"], expired["run"]) == (1, RULE, later.run)


def test_the_package_lakefs_raises_a_server_exception_and_lists_it(later: Later) -> None:
    client = Client(host=later.server.url, username=later.server.access_key_id, password=later.server.secret_access_key)
    try:
        main = lakefs.Repository("lake", client=client).branch("main")
        gone = main.object("logs/old")

        with pytest.raises(ServerException) as read, gone.reader("rb") as reader:
            reader.read()
        with pytest.raises(ApiException) as direct:
            client.sdk_client.objects_api.get_object("lake", "main", "logs/old")

        assert (read.value.status_code, read.value.body["message"]) == (410, later.words)
        assert (direct.value.status, json.loads(direct.value.body)["expired"]["rule"]) == (410, RULE)
        assert gone.stat().size_bytes == 6
        with pytest.raises(ServerException):
            # It asks by a HEAD, and knows only 404.
            gone.exists()
        assert [found.path for found in main.objects(prefix="logs/")] == ["logs/kept", "logs/old"]
    finally:
        client.sdk_client._api.rest_client.pool_manager.clear()


def test_lakefs_spec_raises_a_server_exception_and_lists_it(later: Later) -> None:
    files = LakeFSFileSystem(
        host=later.server.url,
        username=later.server.access_key_id,
        password=later.server.secret_access_key,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    try:
        with pytest.raises(ServerException) as read:
            files.cat_file("lakefs://lake/main/logs/old")

        assert (read.value.status_code, read.value.reason) == (410, "Gone")
        assert files.info("lakefs://lake/main/logs/old")["size"] == 6
        assert files.cat_file("lakefs://lake/main/logs/kept") == b"kept"
    finally:
        files.client.sdk_client._api.rest_client.pool_manager.clear()


def test_boto3_names_the_error_object_expired(later: Later) -> None:
    made: Any = boto3.client(
        "s3",
        endpoint_url=later.server.url,
        aws_access_key_id=later.server.access_key_id,
        aws_secret_access_key=later.server.secret_access_key,
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}),
    )
    with closing(made) as s3:
        with pytest.raises(ClientError) as read:
            s3.get_object(Bucket="lake", Key="main/logs/old")
        with pytest.raises(ClientError) as head:
            s3.head_object(Bucket="lake", Key="main/logs/old")
        listed = s3.list_objects_v2(Bucket="lake", Prefix="main/logs/")["Contents"]

    error = read.value.response["Error"]
    assert (error["Code"], error["Message"]) == ("ObjectExpired", later.words)
    assert head.value.response["ResponseMetadata"]["HTTPStatusCode"] == 410
    assert [one["Key"] for one in listed] == ["main/logs/kept", "main/logs/old"]


def test_the_python_library_and_its_file_system_name_the_run(later: Later) -> None:
    with lakebed.connect(
        later.server.url, access_key_id=later.server.access_key_id, secret_access_key=later.server.secret_access_key
    ) as lake:
        files = LakebedFileSystem(lake=lake, skip_instance_cache=True)
        with pytest.raises(FileNotFoundError, match=re.escape(later.words)):
            files.cat_file("lakebed://lake/main/logs/old")
        with pytest.raises(ObjectExpired, match=re.escape(later.words)) as read:
            lake.repository("lake").ref("main").read("logs/old")

    expired: Any = read.value.facts["expired"]
    assert (expired.policy_version, expired.rule, expired.run) == (1, RULE, later.run)


def test_a_former_version_of_the_policy_is_shown(later: Later) -> None:
    later.shell.ok("repo", "create", "lakefs://policies", "local://policies")
    file = later.server.folder / "versions.json"
    for days in (1, 2):
        file.write_text(json.dumps({"logs": {"prefix": "logs/", "days": days}}))
        later.shell.ok("lifecycle", "policy", "set", "lakefs://policies", str(file))
    get = ("lifecycle", "policy", "show", "lakefs://policies")

    assert json.loads(later.shell.ok(*get).out)["logs"]["days"] == 2
    assert json.loads(later.shell.ok(*get, "--version", "1").out)["logs"]["days"] == 1
    missing = later.shell(*get, "--version", "9")
    assert (missing.code, "9" in missing.err) == (3, True)


def test_yesterday_is_where_a_branch_was_and_before_its_log_there_is_nothing(later: Later) -> None:
    log = later.shell.ok("log", "lakefs://lake/main@{yesterday}", "-o", "json").json

    assert log[0]["message"] == "a month ago"
    later.shell.ok("object", "upload", "-", "lakefs://lake/main/data/b", stdin="today")
    later.shell.ok("commit", "lakefs://lake/main", "-m", "today")
    again = later.shell.ok("log", "lakefs://lake/main@{yesterday}", "-o", "json").json
    assert [one["message"] for one in again] == [one["message"] for one in log]
    assert later.shell.ok("object", "cat", "lakefs://lake/main@{yesterday}/data/a").out == "here"
    assert later.shell("log", "lakefs://lake/main@{50 days ago}").code == 3


@pytest.mark.parametrize("noun", ["tag", "branch"])
def test_a_deleted_ref_does_not_come_back_after_its_window(later: Later, noun: str) -> None:
    refused = later.shell(noun, "undelete", f"lakefs://lake/short-{noun}")

    assert refused.code == 3
    assert f"short-{noun}" in refused.err
    assert later.shell.ok(noun, "list", "lakefs://lake", "--deleted").out == ""


def test_a_namespace_is_used_again_on_request_once_its_repository_is_collected(later: Later) -> None:
    create = ("repo", "create", "lakefs://next", "local://away")
    [gone] = later.shell.ok("repo", "list", "--deleted", "-o", "json").json
    unasked = later.shell(*create)

    later.shell.ok(*create, "--reuse")

    assert (gone["id"], gone["state"]) == ("away", "gone")
    assert (unasked.code, "which is gone: --reuse takes it again" in unasked.err) == (4, True)
    assert later.shell.ok("object", "ls", "lakefs://next/main/").out == ""
    later.shell.ok("object", "upload", "-", "lakefs://next/main/a", stdin="new")
    assert later.shell.ok("object", "cat", "lakefs://next/main/a").out == "new"
    assert later.shell.ok("repo", "list", "--deleted", "-o", "json").json == []


def test_a_namespace_is_not_used_again_over_http_unless_that_is_asked_for(later: Later) -> None:
    """`?reuse=` of a namespace that no deleted repository had is the same as without it; `lake` is in use."""
    at, auth = f"{later.server.url}/api/v1/repositories", (later.server.access_key_id, later.server.secret_access_key)

    refused = httpx.post(
        at, params={"reuse": "true"}, json={"name": "second", "storage_namespace": "local://lake"}, auth=auth
    )
    fresh = httpx.post(
        at, params={"reuse": "true"}, json={"name": "second", "storage_namespace": "local://second"}, auth=auth
    )

    assert (refused.status_code, fresh.status_code) == (400, 201)
