"""A catalog over memory, as the tests of the catalog have it; and an old server beside a new data folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.objectstore import environment_of
from tests.catalog.conftest import catalog, clock, make_catalog, namespace, open_namespace, ports, store
from tests.cli.conftest import Outcome, Shell
from tests.objectstore.s3_servers import client_of, serve_moto

from .old_server import OLD_ROOT, OldServer, objects, serve_old, unpack

__all__ = ["catalog", "clock", "make_catalog", "namespace", "open_namespace", "ports", "store"]


class Move:
    """The old server, the store that both servers use, and the data folder of the new one."""

    def __init__(self, old: OldServer, new: Path, environment: dict[str, str], options: list[str], scheme: str) -> None:
        self.old, self.new, self.environment, self.options, self.scheme = old, new, environment, options, scheme
        self.shell = Shell(
            environment={
                "LAKEBED_CONFIG": str(new.parent / "config.toml"),
                "LAKEBED_ENDPOINT": old.endpoint,
                "LAKEBED_ACCESS_KEY_ID": "any",
                "LAKEBED_SECRET_ACCESS_KEY": "any",
                **environment,
            }
        )

    def __call__(self, *words: str) -> Outcome:
        return self.shell("migrate", *words, "--data", str(self.new), *self.options)

    def ok(self, *words: str) -> Any:
        outcome = self(*words, "-o", "json")
        assert outcome.code == 0, outcome
        return outcome.json

    @contextmanager
    def opened(self) -> Iterator[lakebed.Lake]:
        with lakebed.open_local(self.new, environment=self.environment) as lake:
            yield lake


@pytest.fixture(params=["s3", "local"])
def move(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Move]:
    kind, new = request.param, tmp_path / "new"
    with serve_old(kind) as old:
        if kind == "local":
            unpack(kind, new / "objects")
            options = ["--namespaces", "local://here/{repository}", "--objects", OLD_ROOT]
            yield Move(old, new, {}, options, "local://")
            return
        with serve_moto() as server:
            client = client_of(server)
            client.create_bucket(Bucket="oldb")
            for key, body in objects(kind):
                client.put_object(Bucket="oldb", Key=key.removeprefix("oldb/"), Body=body)
            environment = {**environment_of(server), "LAKEBED_BLOCKSTORE": "s3"}
            options = ["--namespaces", "s3://oldb/here/{repository}"]
            yield Move(old, new, environment, options, "s3://oldb/")
            # All servers of this double in a process have the same buckets.
            for page in client.get_paginator("list_objects_v2").paginate(Bucket="oldb"):
                for each in page["Contents"]:
                    client.delete_object(Bucket="oldb", Key=each["Key"])
            client.delete_bucket(Bucket="oldb")
