"""One real server for all tests of the command line, as a process of its own, and a way to type commands at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lakebed.cli import app
from lakebed.examples.quickstart import LocalServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Types commands in this process, with the environment of one who configured the server."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, stdin: str | bytes = "", **environment: str) -> Outcome:
        result = CliRunner().invoke(
            app, [*arguments], input=stdin, obj={**self.environment, **environment}, prog_name="lakebed"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(code=result.exit_code, out=result.stdout, err=result.stderr)

    def ok(self, *arguments: str, stdin: str | bytes = "") -> Outcome:
        outcome = self(*arguments, stdin=stdin)
        assert outcome.code == 0, outcome
        return outcome

    def process(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """The same as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "lakebed", *arguments],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **self.environment},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's data folder."""
    return tmp_path_factory.mktemp("server") / "data"


@pytest.fixture(scope="session")
def server(data: Path) -> Iterator[LocalServer]:
    server = LocalServer(data=data, log=data.parent / "log", port=0)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shell(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = Shell(environment={"LAKEBED_CONFIG": str(tmp_path_factory.mktemp("config") / "config.toml")})
    shell.ok("setup", "--user", "ann", "--endpoint", server.endpoint)
    return shell


@pytest.fixture
def lake(shell: Shell, request: pytest.FixtureRequest) -> str:
    """The URI of a new repository with a branch `main` and nothing in it."""
    name = f"lake-{zlib.crc32(request.node.nodeid.encode())}"
    shell.ok("repo", "create", f"lakefs://{name}", f"local://{name}")
    return f"lakefs://{name}"


@pytest.fixture
def put(shell: Shell) -> Callable[[str, str], None]:
    """Writes an object."""

    def put(uri: str, content: str) -> None:
        shell.ok("object", "upload", "-", uri, stdin=content)

    return put
