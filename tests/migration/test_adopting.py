"""`lakebed migrate --in-place` and `--adopt`: what the old server wrote becomes ours when a person says so."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.base import Conflict
from lakebed.catalog.settings import Settings
from lakebed.examples.quickstart import LocalServer
from lakebed.migration import adopting, flow
from tests.cli.conftest import Shell

from .conftest import Move

META = b"m"
OLD = ("--uncommitted", "--old-layout", "--older-than", "1h")


@pytest.fixture
def in_place(move: Move) -> Move:
    at = move.options.index("--namespaces")
    move.options[at : at + 2] = ["--in-place"]
    return move


def adopt(move: Move, *words: str) -> Any:
    shell = move.shell("migrate", "old", "--data", str(move.new), "--adopt", *words, "-o", "json")
    return shell.json[0] if shell.code == 0 else (shell.code, json.loads(shell.err)["error"]["message"])


def stop(move: Move, *, endpoints: tuple[str, str] | None = None) -> None:
    """The double answers for as long as the test lasts, so the log names a server that nothing answers for."""
    before, after = endpoints or (move.old.endpoint, "http://127.0.0.1:9")
    for path in (move.new / "objects").rglob("_lakefs/old-server/*.json"):
        path.write_text(path.read_text().replace(before, after))


@contextmanager
def served(move: Move, tmp_path: Path) -> Iterator[Shell]:
    server = LocalServer(data=move.new, log=tmp_path / "log", port=0)
    server.start()
    try:
        shell = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "served.toml")})
        shell.ok("setup", "--user", "ann", "--endpoint", server.endpoint)
        yield shell
    finally:
        server.stop()


def test_a_migration_in_place_reads_as_any_other_and_can_be_called_again(in_place: Move) -> None:
    assert {one["repository"] for one in in_place.ok("--dry-run")} == {"empty", "frozen", "old"}
    [found] = in_place.ok("old")
    [again] = in_place.ok("old")

    assert (found["commits"], found["entries"], again["commits"]) == (6, 55, 0)
    with in_place.opened() as lake:
        main = lake.repository("old").branch("main")
        assert main.read("raw/d=0/f0.txt") == b"changed\n"
        assert main.stat("by-s3.txt").physical_address.startswith(f"{in_place.scheme}old/data/ft32")
        dev = lake.repository("old").branch("dev")
        dev.write("new.bin", b"1")
        assert dev.read("new.bin") == b"1"


def test_a_namespace_is_taken_over_once(in_place: Move, tmp_path: Path) -> None:
    """Another installation, which shares the store, finds the claim."""
    in_place.ok("old")
    other = tmp_path / "other"
    if in_place.scheme == "local://":
        other.mkdir()
        (other / "objects").symlink_to(in_place.new / "objects")
    in_place.new = other

    refused = in_place("old", "--dry-run")

    assert refused.code == 2
    assert "is in use" in refused.err or "holds" in refused.err


def test_adoption_is_refused_while_the_old_server_answers(in_place: Move) -> None:
    in_place.ok("old")

    code, message = adopt(in_place)

    assert code == 4
    assert "still answers: stop it for good" in message
    if in_place.scheme == "local://":
        stop(in_place)
        assert adopt(in_place)["state"] == "adopted"
        # It was started again, and may have written since.
        stop(in_place, endpoints=("http://127.0.0.1:9", in_place.old.endpoint))
        code, message = adopt(in_place, "--final", "--yes")
        assert (code, "still answers: stop it for good" in message) == (4, True)
        assert adopt(in_place, "--undo")["state"] == "kept"


def test_only_what_came_over_in_place_can_be_adopted(move: Move) -> None:
    move.ok("old")

    code, message = adopt(move)

    assert code == 2
    assert "was not brought over with --in-place" in message


def test_what_was_adopted_is_collected_once_it_is_final(in_place: Move, tmp_path: Path) -> None:
    """The whole way, on a local store: plans count, `why` explains, and nothing goes before the last word."""
    if in_place.scheme != "local://":
        pytest.skip("the server of this test has a local store")
    in_place.ok("old")
    stop(in_place)
    objects = in_place.new / "objects" / "old" / "data"
    before = sorted(objects.rglob("*"))
    [unnamed] = [path for path in before if path.is_file() and path.read_bytes() == b"not yet"]
    os.utime(unnamed, (time.time() - 9_000, time.time() - 9_000))
    assert "is not adopted yet" in adopt(in_place, "--final", "--yes")[1]
    looked = adopt(in_place, "--dry-run")
    assert (looked["state"], looked["objects"], looked["named"], looked["missing"]) == ("kept", 22, 21, 0)

    assert adopt(in_place)["state"] == "adopted"
    assert adopt(in_place, "--undo")["state"] == "kept"
    assert adopt(in_place)["state"] == "adopted"
    here = ("--engine", "local", "--data", str(in_place.new))
    how = ("--yes", "--readers-grace", "0")
    with served(in_place, tmp_path) as shell:
        erased = next(path for path in before if path.is_file() and path.read_bytes() == META)
        shell.ok("gc", "rules", "set-default", "lakefs://old", "21d")
        assert "outside" not in shell.ok("gc", "why", "lakefs://old/v1/meta.bin").out
        shell.ok("gc", "plan", "lakefs://old", "--committed", *here)
        [plan] = shell.ok("erase", "plan", "lakefs://old", "meta.bin", "--why", "asked", *here, "-o", "json").json
        assert plan["totals"]["all"]["objects"] == 1
        refused = shell("erase", "apply", "lakefs://old", plan["run_id"], *here, *how)
        assert (refused.code, "nothing may be deleted yet" in refused.err) == (4, True), refused
        [late] = shell.ok("gc", "plan", "lakefs://old", *OLD, *here, "-o", "json").json
        assert late["totals"]["all"]["objects"] == 1
        assert shell("gc", "apply", "lakefs://old", late["run_id"], *here, "--yes").code == 4
        assert sorted(objects.rglob("*")) == before

        assert adopt(in_place, "--final", "--yes")["state"] == "final"
        assert adopt(in_place, "--undo")[0] == 4
        assert adopt(in_place)["state"] == "final"
        shell.ok("gc", "apply", "lakefs://old", late["run_id"], *here, "--yes")
        # A certificate over everything would ask for a clean collection first; here the object counts.
        applied = shell("erase", "apply", "lakefs://old", plan["run_id"], *here, *how)
        assert "1 of 1 object absent" in applied.out
        assert {*before} - {*objects.rglob("*")} == {erased, unnamed}
        assert "an erasure took it" in shell.ok("gc", "why", "lakefs://old/v1/meta.bin").out
        assert shell.ok("object", "cat", "lakefs://old/main/raw/d=0/f0.txt").out == "changed\n"


def change_log(move: Move, **fields: Any) -> dict[str, Any]:
    """Change fields of the last line of the log, and return it as it was."""
    last = max((move.new / "objects" / "old" / "_lakefs/old-server").glob("*.json"))
    line: dict[str, Any] = json.loads(last.read_text())
    last.write_text(json.dumps(line | fields))
    return line


def test_what_the_old_server_wrote_since_stops_the_adoption(in_place: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here names it, so a collection would take what a user there was told is written."""
    if in_place.scheme != "local://":
        pytest.skip("once is enough")
    late = in_place.new / "objects" / "old" / "data" / "ft32ne9ksducgshadsr0" / "dc4dei1ksducgshadzzz"
    compare = flow._compare

    async def compared(*args: Any) -> int:
        late.write_bytes(b"late")  # While the migration compares.
        return await compare(*args)

    with monkeypatch.context() as patch:
        patch.setattr(flow, "_compare", compared)
        in_place.ok("old")
    stop(in_place)
    began_ms = change_log(in_place)["compared_ms"]

    # The clock of a store may have full seconds: what has the same time may have come after it was read.
    for written_ms in (None, began_ms, began_ms + 60_000):
        if written_ms is not None:
            os.utime(late, ns=(written_ms * 1_000_000,) * 2)
        code, message = adopt(in_place)
        assert (code, "1 object came that nothing here names" in message) == (4, True), message

    late.unlink()

    async def named(*_: object) -> None:
        raise Conflict("other repositories name 1 object")

    async def unfinished(*_: object) -> frozenset[str]:
        return frozenset({"migration-1"})

    for owner, name, value, message in (
        (adopting, "check_named_nowhere_else", named, "other repositories name 1 object"),
        (Settings, "work_branches", unfinished, "no migration ended with equal listings: run it to its end first"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert adopt(in_place) == (4, message)
    before = change_log(in_place, compared_ms=0)
    assert "no migration ended with equal listings" in adopt(in_place)[1]
    change_log(in_place, **before | {"marker": "another"})
    assert "was claimed by another repository" in adopt(in_place)[1]
    change_log(in_place, **before)
    assert adopt(in_place)["state"] == "adopted"
