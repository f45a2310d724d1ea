"""Ctrl-C: one line that says what was done, what was not and how to go on; no traceback; exit code 130."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import lakebed
from lakebed.client.transfers import Files
from lakebed.gc import Collector

from .conftest import Shell

Put = Callable[[str, str], None]


def stop(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


AGAIN = "run the same command again"
PLANNING = ["stopped: nothing was deleted", AGAIN]
RUN = "06gvsk16dis1i19se31g"
COMMANDS = [
    ("gc plan LAKE HERE", (Collector, "plan"), PLANNING),
    ("gc run LAKE HERE --yes", (Collector, "run"), ["all deletions so far are recorded"]),
    ("lifecycle plan LAKE HERE", (Collector, "plan"), PLANNING),
    ("lifecycle simulate LAKE HERE", (Collector, "simulate"), ["nothing was deleted", "run the same command again"]),
    ("erase plan LAKE a.csv --why request HERE", (Collector, "plan_erasure"), PLANNING),
    ("erase run LAKE a.csv --why request HERE --yes", (Collector, "plan_erasure"), PLANNING),
    (f"erase verify LAKE {RUN} HERE", (Collector, "certificate"), ["not all was checked", AGAIN]),
    ("gc purge LAKE HERE --yes", (Collector, "purge"), ["all deletions so far are recorded", AGAIN]),
    ("gc ledger LAKE --verify DATA", (Collector, "verify_ledger"), ["not all was compared", AGAIN]),
    ("gc restore LAKE a.csv", (Collector, "restore"), ["what came back so far is on the branch", AGAIN]),
    ("kv copy sqlite://A sqlite://B", ("lakebed.kv.store_partitions",), ["FROM is as it was", AGAIN, "it goes on"]),
    ("kv compact DATA", ("lakebed.kv.compact_store",), ["the metadata is whole"]),
    ("kv migrate DATA", ("lakebed.kv.migrate_store",), [AGAIN]),
    ("kv check DATA", ("lakebed.server.check_metadata",), ["nothing was changed", AGAIN]),
    ("backup verify A", ("lakebed.server.verify_backup",), ["A was not verified to its end", AGAIN]),
    ("migrate old DATA --adopt", ("lakebed.migration.adopt",), ["migrate old ", " --adopt --dry-run` shows it", AGAIN]),
    ("migrate old DATA --adopt --dry-run", ("lakebed.migration.adopt",), ["nothing was changed", AGAIN]),
]


@pytest.mark.parametrize(("words", "stopped", "expected"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_long_command_that_is_stopped_says_that_nothing_is_lost(
    shell: Shell,
    lake: str,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    stopped: tuple[Any, ...],
    expected: list[str],
) -> None:
    # A class and its method, or the whole name of a function.
    place: Any = monkeypatch.setattr
    place(*stopped, stop)
    names = {"LAKE": lake, "HERE": f"--engine local --data {data}", "DATA": f"--data {data}"}

    found = shell(*re.sub(r"\b(LAKE|HERE|DATA)\b", lambda match: names[match[0]], words).split())

    assert (found.code, found.out) == (130, "")
    assert found.err.count("stopped") == 1
    assert all(text in found.err for text in expected), found.err


def test_an_erasure_that_is_stopped_names_the_command_that_goes_on(
    shell: Shell, lake: str, data: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{lake}/main/a.csv", "1")
    shell.ok("commit", f"{lake}/main", "-m", "a")
    monkeypatch.setattr(Collector, "check", stop)

    found = shell("erase", "run", lake, "a.csv", "--why", "request", "--engine", "local", "--data", str(data), "--yes")

    assert found.code == 130
    assert f"`lakebed erase apply {lake} " in found.err.splitlines()[-1]


def test_stopping_to_watch_a_job_says_that_the_job_goes_on(
    shell: Shell, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The group of commands hides the module of the same name.
    monkeypatch.setattr(importlib.import_module("lakebed.cli.gc.jobs"), "_get", stop)

    found = shell("gc", "job", "start", lake, "plan", "--engine", "local")

    assert (found.code, found.out) == (130, "")
    last = found.err.splitlines()[-1]
    assert last.startswith("stopped watching: job ")
    assert f"`lakebed gc job stop {lake} " in last
    job = last.split()[3]
    monkeypatch.undo()
    shell("gc", "job", "stop", lake, job)


@pytest.mark.parametrize("command", ["upload", "sync"])
def test_an_upload_that_is_stopped_says_how_many_files_are_there(
    shell: Shell, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    upload, count = Files.upload, iter(range(3))

    def stopping(self: Files, *arguments: Any, **more: Any) -> Any:
        if next(count) == 2:
            raise KeyboardInterrupt
        return upload(self, *arguments, **more)

    monkeypatch.setattr(Files, "upload", stopping)
    words = ["object", "upload", "-r"] if command == "upload" else ["sync"]
    found = shell(*words, str(tmp_path), f"{lake}/main/", "-j", "1")

    assert (found.code, found.out) == (130, "")
    [line] = found.err.splitlines()
    assert line.startswith("stopped: 2 of 3 files, 2 B, were moved; ")
    assert ("`lakebed sync " if command == "upload" else "run the same command again: it moves the rest") in line


def test_a_download_that_is_stopped_says_how_many_files_are_there(
    shell: Shell, lake: str, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{lake}/main/a", "a")
    monkeypatch.setattr(Files, "download", stop)

    found = shell("object", "download", "-r", f"{lake}/main/", str(tmp_path / "copy"), "-j", "1")

    assert found.code == 130
    assert found.err.startswith("stopped: 0 files, 0 B, were moved")
    assert f"`lakebed sync {lake}/main/ {tmp_path}/copy` moves the rest" in found.err


def test_a_backup_that_is_stopped_says_that_it_is_none(
    shell: Shell, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.server.create_backup", stop)

    found = shell("backup", "create", "--data", str(data), "--to", str(tmp_path / "copy"))

    assert (found.code, found.out) == (130, "")
    assert found.err.startswith(f"stopped: {tmp_path}/copy is not a whole backup")


@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_a_migration_that_is_stopped_says_how_to_go_on(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    async def stopping(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakebed.migration.plan_repository", stopping)
    monkeypatch.setattr("lakebed.migration.migrate_repository", stopping)

    found = shell("migrate", "--data", str(tmp_path / "new"), "--namespaces", "local://new-{repository}", *option)

    assert (found.code, found.out) == (130, "")
    assert "run the same command again" in found.err
    assert ("no repository was written" if option else "the commits that came over stay") in found.err


@pytest.mark.parametrize(
    ("words", "stops_at", "expected"),
    [
        (
            "object rm -r LAKE/main/ --yes",
            1,
            "stopped: 0 objects or more deleted; run the same command again: it deletes",
        ),
        (
            "object mv -r LAKE/main/a LAKE/main/b",
            2,
            "stopped: 1 of 2 objects moved; run the same command again: it takes",
        ),
        (
            "commit LAKE/main -m x",
            1,
            "stopped: a request was on its way, and the server may carry it out. Look before you",
        ),
        (
            "object rm LAKE/main/a/1",
            1,
            "stopped: a request was on its way, and the server may carry it out. Look before you",
        ),
        ("log LAKE/main", 0, ""),
    ],
)
def test_a_change_that_is_stopped_on_its_way_says_so(
    shell: Shell, lake: str, put: Put, monkeypatch: pytest.MonkeyPatch, words: str, stops_at: int, expected: str
) -> None:
    """The user stops while the server has this change, counted from 1, or a read where it is 0."""
    for name in "12":
        put(f"{lake}/main/a/{name}", name)
    send, changes = httpx.Client.send, 0

    def stopping(self: httpx.Client, request: httpx.Request, **more: Any) -> Any:
        nonlocal changes
        changes += request.method != "GET"
        return stop() if changes == stops_at else send(self, request, **more)

    monkeypatch.setattr(httpx.Client, "send", stopping)

    found = shell(*words.replace("LAKE", lake).split())

    assert (found.code, found.out, found.err.count("\n")) == (130, "", bool(expected))
    assert found.err.startswith(expected)


STARTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["lakebed", "gc", "plan", "lakefs://lake"]
from lakebed.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["click", "lakebed.cli.gc"])
def test_ctrl_c_in_the_first_moments_of_a_command_ends_without_a_word(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STARTING.format(module=module)], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


LOADED = """
import sys
{statement}
print(*sys.modules)
"""


def test_nothing_but_signals_is_loaded_before_ctrl_c_ends_a_process_at_once() -> None:
    """Each module more is time in which Ctrl-C shows a traceback."""

    def loaded(statement: str) -> set[str]:
        program = LOADED.format(statement=statement)
        return set(subprocess.check_output([sys.executable, "-S", "-c", program], text=True).split())

    source = repr(str(Path(lakebed.__file__).parents[1]))
    ours = loaded(f"sys.path.append({source}); from lakebed import __main__")

    assert ours - loaded("import signal, os") == {"lakebed", "lakebed.__main__", "lakebed.interrupts"}


LISTING = """
import asyncio, contextlib, signal
from pathlib import Path
from lakebed.gc.engines.files import Files, Lake
from lakebed.objectstore import ObjectStoreOptions

async def rows():
    while True:
        await asyncio.sleep(0)
        yield 1

async def read(number):
    async for _ in rows():
        if number == 2:
            signal.raise_signal(signal.SIGINT)

async def work(_):
    await asyncio.gather(*(read(number) for number in range(4)))

lake = Lake(uri="local://lake", options=ObjectStoreOptions(local_root=Path(".")))
with contextlib.suppress(KeyboardInterrupt), Files(lake) as files:
    files.act(work)
"""


def test_ctrl_c_leaves_no_task_and_no_generator_of_a_listing() -> None:
    ended = subprocess.run([sys.executable, "-X", "dev", "-c", LISTING], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
