"""A real server in a process of its own, over a folder, and what its users and the command line do there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from lakebed.cli.kit.tree import app
from lakebed.client import Client, Credentials
from lakebed.objectstore import ObjectStoreOptions, environment_of
from lakebed.testing.contracts.network import held_port

REPOSITORY = "lake"
DAY_S = 86_400
IN_THE_PAST = """
import sys, time
from lakebed.cli.__main__ import main
real, days = time.time_ns, int(sys.argv.pop(1))
time.time_ns = lambda: real() - days * 86_400 * 10**9
main()
"""


class Ready(msgspec.Struct):
    endpoint: str


@dataclass(frozen=True, kw_only=True)
class Served:
    client: Client
    objects: Path
    environ: dict[str, str]
    restart: Callable[[], None]
    """Kill the server as a power cut would, and start it again at its port, with the clock of today."""

    def files(self) -> set[str]:
        """Keys of all that lies under `data/`."""
        root = self.objects / "lake" / REPOSITORY
        return {str(file.relative_to(root)) for file in root.glob("data/*/*")}

    def write(self, path: str, data: bytes, branch: str = "main") -> str:
        """The object's address, relative to the namespace."""
        self.client.objects.write(REPOSITORY, branch, path, data)
        address: str = self.client.objects.stat(REPOSITORY, branch, path).physical_address
        return "data/" + address.partition("/data/")[2]

    def commit(self, age_days: int, branch: str = "main") -> str:
        date_s = int(time.time()) - age_days * DAY_S
        return self.client.history.commit(REPOSITORY, branch, message=f"{age_days} days ago", date_s=date_s).id

    def lakebed(self, *words: str) -> Any:
        """What a command of `lakebed` answers, as JSON. In this process: starting one takes longer than the command."""
        done = CliRunner().invoke(app, [*words, "-o", "json"], obj=self.environ)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@contextlib.contextmanager
def serving(
    tmp_path: Path,
    *,
    uri: str = f"local://lake/{REPOSITORY}",
    store: ObjectStoreOptions | None = None,
    days_ago: int = 0,
) -> Iterator[Served]:
    """`store` says where another namespace than a local one lies. The server's clock is so many days behind."""
    options = {} if store is None else {"LAKEBED_BLOCKSTORE": "s3", **environment_of(store)}
    with held_port() as port, contextlib.ExitStack() as ending:
        serve = ["serve", "--data", str(tmp_path / "server")]
        endpoint = f"http://127.0.0.1:{port}"
        log = ending.enter_context((tmp_path / "log").open("ab"))
        running: list[subprocess.Popen[str]] = []

        def start(days_ago: int) -> None:
            program = ["-c", IN_THE_PAST, str(days_ago)] if days_ago else ["-m", "lakebed"]
            process = subprocess.Popen(
                [sys.executable, *program, *serve, "--port", str(port), "-o", "json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **options},
            )
            assert process.stdout is not None
            ending.callback(process.stdout.close)
            ending.callback(end, process)
            said = ""
            while not said.endswith("}\n"):
                line = process.stdout.readline()
                assert line, (tmp_path / "log").read_text()
                said += line
            assert msgspec.json.decode(said, type=Ready).endpoint == endpoint
            running.append(process)

        def restart() -> None:
            running[-1].kill()
            running[-1].wait()
            start(0)

        start(days_ago)
        with Client(endpoint) as nobody:
            first = nobody.setup("admin")
        credentials = Credentials(access_key_id=first.access_key_id, secret_access_key=first.secret_access_key)
        objects = tmp_path / "server" / "objects"
        environ = {
            **os.environ,
            **options,
            "LAKEBED_CONFIG": str(tmp_path / "config.toml"),
            "LAKEBED_ENDPOINT": endpoint,
            "LAKEBED_ACCESS_KEY_ID": credentials.access_key_id,
            "LAKEBED_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "LAKEBED_BLOCKS_LOCAL_ROOT": str(objects),
        }
        with Client(endpoint, credentials) as client:
            client.repositories.create(REPOSITORY, storage_namespace=uri)
            yield Served(client=client, objects=objects, environ=environ, restart=restart)


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait()
