"""A real server in a process of its own, set up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

_SERVE = """
import json, sys, time
from pathlib import Path
# The clock of the machine, as this process sees it.
real, ahead_ns = time.time_ns, int(sys.argv[3]) * 10**9
time.time_ns = lambda: real() + ahead_ns
from lakebed.server import options_of, serve
from lakebed.server.process import upkeep_loop
upkeep_loop.run_upkeep.__kwdefaults__["interval_s"] = float(sys.argv[4])
options = options_of(Path(sys.argv[1]), json.loads(sys.argv[2]))
serve(options, port=0, on_ready=lambda url: print(url, flush=True))
"""


@dataclass(frozen=True)
class Server:
    url: str
    access_key_id: str
    secret_access_key: str
    folder: Path = Path()


@contextmanager
def serving(folder: Path, *, upkeep_s: str = "60", **settings: str) -> Iterator[Server]:
    """Run a server with these settings and no others, and make its first user, `esti`."""
    with listening(folder, settings, upkeep_s=upkeep_s) as url:
        pair = httpx.post(url + "/api/v1/setup_lakefs", json={"username": "esti"}).json()
        yield Server(url, pair["access_key_id"], pair["secret_access_key"], folder)


@contextmanager
def listening(folder: Path, settings: Mapping[str, str], *, days_ago: int = 0, upkeep_s: str = "60") -> Iterator[str]:
    """Run a server whose clock is so many days behind, with upkeep each so many seconds, and yield its URL."""
    command = [sys.executable, "-c", _SERVE, str(folder), json.dumps(settings), str(-86_400 * days_ago), upkeep_s]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(600) == 0
