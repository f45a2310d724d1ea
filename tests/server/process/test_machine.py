"""The cores that a process may use, and the ends of processes that it inherited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.server.process import machine
from lakebed.server.process.machine import usable_cores


@pytest.mark.parametrize(
    ("text", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_cores_are_those_that_the_process_may_use(tmp_path: Path, text: str, cores: int | None) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert usable_cores(limit) == (cores or len(os.sched_getaffinity(0)))


_WITH_TWO_CHILDREN = """
import os, runpy, signal, subprocess, sys
reap_others = runpy.run_path(sys.argv[1])["reap_others"]
known = subprocess.Popen(["sleep", "600"])
other = subprocess.Popen(["true"])
os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
reap_others({known.pid})
assert not os.path.exists(f"/proc/{other.pid}"), "it still has its number"
known.kill()
os.waitid(os.P_PID, known.pid, os.WEXITED | os.WNOWAIT)
reap_others({known.pid})
assert known.wait() == -signal.SIGKILL, "its end is its own object's to read"
reap_others(set())
"""


def test_only_the_ends_of_children_that_it_did_not_start_are_read() -> None:
    subprocess.run([sys.executable, "-c", _WITH_TWO_CHILDREN, machine.__file__], check=True)
