"""The session itself: which Java, which sockets, and what is left behind."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.gc import LocalSession, SessionOptions, SessionRunning, local_session

JOB = """
import os
from lakebed.gc import SessionOptions, local_session

def same(batches):
    yield from batches

with local_session(SessionOptions(cores=1, shuffle_partitions=1), os.environ) as session:
    rows = session.spark.range(3).mapInArrow(same, "id long").toArrow()["id"].to_pylist()
    print(sorted(rows), session.java.is_bundled, os.environ.get("JAVA_HOME"))
"""


def test_with_the_machines_java_hidden_a_session_starts_and_runs_a_job(tmp_path: Path) -> None:
    """In a process of its own, which finds no Java by JAVA_HOME or PATH, and which leaves nothing behind."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "env", "cat", "ps", "uname", "readlink", "basename"):
        where = next((p for p in (Path("/usr/bin") / tool, Path("/bin") / tool) if p.exists()), None)
        if where is not None:
            (tools / tool).symlink_to(where)
    work = tmp_path / "work"
    work.mkdir()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = {"PATH": str(tools), "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}

    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run([sys.executable, script], cwd=work, env=environ, capture_output=True, text=True, check=False)

    assert done.stdout == "[0, 1, 2] True None\n", done.stderr
    assert done.stderr == ""
    assert [*work.iterdir()] == []
    assert [path.name for path in temporary.iterdir() if path.name.startswith(("lakebed", "spark"))] == []


def test_every_socket_of_the_session_listens_on_this_machine_only(session: LocalSession) -> None:
    session.spark.range(1).count()

    listening = listening_addresses(descendants(os.getpid()))

    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert listening


def test_times_are_utc_and_nothing_else_is_running(session: LocalSession) -> None:
    conf = session.spark.conf

    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.ui.enabled") == "false"


def test_a_second_session_in_one_process_is_refused(session: LocalSession) -> None:
    with pytest.raises(SessionRunning), local_session(SessionOptions(), os.environ):
        pass


def descendants(pid: int) -> set[int]:
    found = {pid}
    parents = {
        int(stat.parent.name): int(stat.read_text().rpartition(")")[2].split()[1])
        for stat in Path("/proc").glob("[0-9]*/stat")
    }
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening_addresses(pids: set[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(readable(fields[1].split(":")[0]))
    return found


def readable(text: str) -> str:
    """The kernel writes addresses as words in the machine's own byte order."""
    data = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return (
        str(ipaddress.ip_address(data))
        if len(data) == 4 or not data.startswith(b"\0" * 10 + b"\xff\xff")
        else (f"::ffff:{ipaddress.ip_address(data[12:])}")
    )
