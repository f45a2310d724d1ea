"""The whole story over an object store that was not made for tests, where LAKEBED_TEST_S3_ENDPOINT names one: a server,
the client, the command line, every collection, windows and restore. Only who applies has a key that may delete: the
server and the planner have not (docs/guide/object-stores.md).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakebed.objectstore import ObjectStoreOptions, environment_of, open_objectstore
from tests.objectstore.s3_servers import make_bucket, planner_of, real_endpoint, serve_s3
from tests.spark.served import REPOSITORY, Served, serving

pytestmark = pytest.mark.skipif(real_endpoint() is None, reason="LAKEBED_TEST_S3_ENDPOINT names no object store")

LAKE = f"lakefs://{REPOSITORY}"


@pytest.fixture
def options() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture
def uri(options: ObjectStoreOptions) -> str:
    return f"s3://{make_bucket(options)}/some/lake"


@pytest.fixture
def served(tmp_path: Path, options: ObjectStoreOptions, uri: str) -> Iterator[Served]:
    with serving(tmp_path, uri=uri, store=planner_of(options)) as found:
        yield found


def gc(served: Served, *words: str, store: ObjectStoreOptions | None = None, fails: bool = False) -> Any:
    """`lakebed gc` in a process of its own, with its own keys of the store, and what it answers."""
    environment = dict(served.environ)
    if store is not None:
        environment = {name: value for name, value in environment.items() if not name.startswith("LAKEBED_S3_")}
        environment |= environment_of(store)
    command = [sys.executable, "-m", "lakebed", "gc", *words, "-o", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def stored(uri: str, options: ObjectStoreOptions) -> set[str]:
    async def keys() -> set[str]:
        return {stat.key async for page in open_objectstore(uri, options).list("data/") for stat in page}

    return asyncio.run(keys())


def test_collections_over_an_object_store_from_plan_to_restore(
    served: Served, options: ObjectStoreOptions, uri: str
) -> None:
    expired = {served.write("a/1", b"first"), served.write("a/ü b+%&", b"second")}
    served.commit(30)
    served.client.objects.delete(REPOSITORY, "main", "a/1")
    served.client.objects.delete(REPOSITORY, "main", "a/ü b+%&")
    kept = {served.write("b/1", b"kept")}
    served.commit(20)
    garbage = {served.write("c/1", b"never committed")}
    kept.add(served.write("c/1", b"staged"))
    served.lakebed("gc", "rules", "set-default", LAKE, "7d")

    plans = {plan["kind"]: plan for plan in gc(served, "plan", LAKE)}
    assert {kind: plan["totals"]["all"]["objects"] for kind, plan in plans.items() if kind != "metadata"} == {
        "uncommitted": 1,
        "committed": 2,
    }
    committed, uncommitted = plans["committed"]["run_id"], plans["uncommitted"]["run_id"]

    now = ("--yes", "--readers-grace", "0")
    refused = gc(served, "apply", LAKE, committed, *now, fails=True)
    assert (refused["objects_deleted"], refused["objects_failed"]) == (0, 2)
    assert stored(uri, options) == kept | expired | garbage

    done = gc(served, "apply", LAKE, committed, *now, "--window", "7d", store=options)
    assert (done["garbage_objects"], done["objects_deleted"]) == (2, 0)
    assert done["deferred_until_ms"] > 0
    done = gc(served, "apply", LAKE, uncommitted, *now, store=options)
    assert (done["objects_deleted"], done["objects_failed"]) == (1, 0)
    assert stored(uri, options) == kept | expired

    served.lakebed("gc", "restore", LAKE, committed)
    assert served.client.objects.read(REPOSITORY, "main", "a/1") == b"first"
    assert served.client.objects.read(REPOSITORY, "main", "a/ü b+%&") == b"second"
    assert served.client.objects.read(REPOSITORY, "main", "b/1") == b"kept"
    assert served.client.objects.read(REPOSITORY, "main", "c/1") == b"staged"
    again = gc(served, "run", LAKE, *now, store=options)
    assert [run["objects_failed"] for run in again] == [0] * len(again)
    assert served.client.objects.read(REPOSITORY, "main", "a/1") == b"first"


def test_a_client_puts_to_the_store_itself_and_links_what_it_put(served: Served) -> None:
    """The contract's flow of physical addresses, with a presigned URL that anybody may use once it is given out."""
    routes = f"{served.environ['LAKEBED_ENDPOINT']}/api/v1/repositories/{REPOSITORY}"
    login = (served.environ["LAKEBED_ACCESS_KEY_ID"], served.environ["LAKEBED_SECRET_ACCESS_KEY"])
    place = {"path": "d/1 ü+%"}
    with httpx.Client(auth=login, timeout=600) as http:
        backing = f"{routes}/branches/main/staging/backing"
        target = http.get(backing, params={**place, "presign": "true"}).raise_for_status().json()
        put = httpx.put(target["presigned_url"], content=b"from outside")
        put.raise_for_status()
        link = {"staging": target, "checksum": put.headers["etag"].strip('"'), "size_bytes": 12}
        http.put(backing, params=place, json=link).raise_for_status()

        again = http.put(backing, params=place, json=link)
        assert 400 <= again.status_code < 500
        assert http.get(f"{routes}/refs/main/objects", params=place).content == b"from outside"
        signed = http.get(f"{routes}/refs/main/objects/stat", params={**place, "presign": "true"}).json()
    assert httpx.get(signed["physical_address"]).content == b"from outside"
