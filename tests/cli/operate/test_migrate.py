"""`lakebed migrate`: from one server to the data folder of another, over the contract alone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.migration import SourceRepository
from lakebed.server import opened, options_of
from lakebed.versions import RefKind
from lakebed.versions.commits.merger import Merger
from tests.cli.conftest import Shell


class Move:
    """An old repository with objects outside every namespace, and the data folder of a new server."""

    def __init__(self, shell: Shell, lake: str, old: Path, new: Path, folder: str) -> None:
        self.shell, self.lake, self.name = shell, lake, lake.removeprefix("lakefs://")
        self.old, self.new, self.folder = old, new, folder

    def add(self, path: str, text: str) -> str:
        """Write an object into the store that both servers use; returns its address."""
        for data in (self.old, self.new):
            file = data / "objects" / self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return f"local://{self.folder}/{path}"

    def commit(self, branch: str, path: str, text: str, message: str) -> None:
        address = self.add(f"{message}/{path}", text)
        self.shell.ok("import", address, f"{self.lake}/{branch}/{path}", "--object", "-m", message)

    def run(self, *options: str) -> dict[str, object]:
        [found] = self.shell.ok(*self.words(*options), "-o", "json").json
        return dict(found)

    def words(self, *options: str) -> list[str]:
        return ["migrate", self.name, "--data", str(self.new), "--namespaces", "local://new/{repository}", *options]

    @contextmanager
    def opened(self) -> Iterator[lakebed.Repository]:
        """The repository as the new server has it."""
        with lakebed.open_local(self.new, environment={}) as lake:
            yield lake.repository(self.name)


@pytest.fixture
def move(shell: Shell, lake: str, data: Path, tmp_path: Path) -> Move:
    move = Move(shell, lake, data, tmp_path / "new", f"raw-{tmp_path.name}")
    shell.ok(*move.words("--dry-run"))  # makes the folder
    move.commit("main", "a.csv", "1", "first")
    shell.ok("branch", "create", f"{lake}/side", "-s", "main")
    move.commit("side", "b.csv", "2", "second")
    move.commit("main", "a.csv", "3", "third")
    shell.ok("merge", f"{lake}/side", f"{lake}/main", "-m", "both")
    shell.ok("object", "rm", "--yes", f"{lake}/side/a.csv")
    shell.ok("commit", f"{lake}/side", "-m", "removed")
    shell.ok("tag", "create", f"{lake}/v1", "main~1")
    return move


def test_history_branches_tags_and_entries_come_over_without_a_byte(move: Move) -> None:
    found = move.run()

    assert (found["branches"], found["tags"], found["left"], found["stays"]) == (2, 1, [], [])
    with move.opened() as repository:
        log = [*repository.branch("main").log()]
        assert sorted(commit.message for commit in log if commit.metadata) == sorted(
            commit["message"] for commit in move.shell.ok("log", f"{move.lake}/main", "-o", "json").json
        )
        assert len(log[0].parents) == 2
        assert log[0].committer == "ann"
        assert repository.branch("main").read("a.csv") == b"3"
        assert [stats.path for stats in repository.branch("side").list()] == ["b.csv"]
        assert repository.ref("v1").stat("a.csv").physical_address == f"local://{move.folder}/third/a.csv"
        assert {branch.name for branch in repository.branches()} == {"main", "side"}  # nothing of the work is left
    assert not [*(move.new / "objects" / "new").rglob("data/*")]


def test_a_second_run_brings_over_what_is_new_and_keeps_what_was_changed_here(move: Move) -> None:
    first = move.run()
    move.commit("side", "c.csv", "4", "later")
    with move.opened() as repository, repository.branch("main").transaction("here") as tx:
        tx.write("own.csv", b"5")
    move.commit("main", "d.csv", "6", "beside")

    second = move.run()

    assert (second["commits_before"], second["left"]) == (first["commits"], ["main"])
    with move.opened() as repository:
        assert repository.branch("side").read("c.csv") == b"4"
        assert repository.branch("main").read("own.csv") == b"5"
        assert not repository.branch("main").exists("d.csv")
    assert "main: changed here since, left as it is" in move.shell.ok(*move.words()).out


def test_a_second_run_knows_commits_that_only_tags_reach(move: Move) -> None:
    move.commit("side", "c.csv", "4", "tagged")
    move.shell.ok("tag", "create", f"{move.lake}/v2", "side")
    move.shell.ok("branch", "rm", "--yes", f"{move.lake}/side")
    first = move.run()

    second = move.run()

    assert (second["commits"], second["commits_before"], second["left"]) == (0, first["commits"], [])


def test_a_second_run_moves_branches_whose_protection_came_over(move: Move) -> None:
    move.shell.ok("branch", "protect", move.lake, "main")
    move.run()
    move.shell.ok("branch", "create", f"{move.lake}/more", "-s", "main")
    move.commit("more", "c.csv", "4", "later")
    move.shell.ok("merge", f"{move.lake}/more", f"{move.lake}/main", "-m", "more")

    assert move.run()["left"] == []
    with move.opened() as repository:
        assert repository.branch("main").read("c.csv") == b"4"


def test_every_hidden_branch_of_a_killed_run_goes_and_none_can_come_back(move: Move) -> None:
    """Two may stand at one commit."""
    move.run()

    async def leave_two() -> None:
        async with opened(options_of(move.new, {}, None)) as state:
            target = await state.catalog.get(move.name)
            for name in ("migration-1", "migration-2"):
                await target.changes.create_branch(name, "main", work_of="migration")

    async def left() -> tuple[set[str], list[str]]:
        async with opened(options_of(move.new, {}, None)) as state:
            refs = (await state.catalog.get(move.name)).versions.refs
            deleted = await refs.list_deleted(RefKind.BRANCH)
            return {branch.name for branch in (await refs.list_branches())[0]}, [one.name for one in deleted]

    asyncio.run(leave_two())
    move.run()

    assert asyncio.run(left()) == ({"main", "side"}, [])


def test_a_migration_that_was_killed_goes_on(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, calls = Merger.replay, iter(range(2))

    async def dies(*arguments: Any, **options: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("killed")
        return await replay(*arguments, **options)

    monkeypatch.setattr(Merger, "replay", dies)
    with pytest.raises(RuntimeError):
        move.run()
    monkeypatch.undo()

    assert move.run()["commits_before"] == 2
    with move.opened() as repository:
        assert repository.branch("main").read("a.csv") == b"3"


def test_branches_of_users_whose_names_look_like_those_of_the_work_stay_with_what_is_staged(move: Move) -> None:
    move.shell.ok("branch", "create", f"{move.lake}/migration-plan", "-s", "main")
    move.run()
    with move.opened() as repository:
        head = next(repository.branch("side").log()).id
        mine = repository.create_branch("migration-notes", "side")
        mine.write("staged.txt", b"not committed")
    move.commit("side", "c.csv", "4", "later")

    move.run()

    with move.opened() as repository:
        assert {branch.name for branch in repository.branches()} == {
            "main",
            "side",
            "migration-notes",
            "migration-plan",
        }
        assert repository.branch("migration-notes").read("staged.txt") == b"not committed"
        assert next(repository.branch("migration-notes").log()).id == head
        assert repository.branch("migration-plan").read("a.csv") == b"3"


def test_protection_that_was_set_here_stays_in_a_later_run(move: Move) -> None:
    move.shell.ok("branch", "protect", move.lake, "release-*")
    move.run()
    with lakebed.open_local(move.new, environment={}) as lake:
        patterns, version = lake.client.repositories.protected_branches(move.name)
        assert [*patterns] == ["release-*"]
        lake.client.repositories.protect_branches(move.name, ["ours-*"], version=version)

    move.run()

    with lakebed.open_local(move.new, environment={}) as lake:
        assert [*lake.client.repositories.protected_branches(move.name)[0]] == ["ours-*"]


def test_a_difference_is_found_and_named(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = SourceRepository.changes
    monkeypatch.setattr(
        SourceRepository,
        "changes",
        lambda self, commit: ([row for row in page if row[0] != "b.csv"] for page in changes(self, commit)),
    )

    failed = move.shell(*move.words())

    assert failed.code == 4
    assert "is not the same here, first at b.csv" in failed.err


def test_uncommitted_changes_stay_and_are_named(move: Move) -> None:
    move.shell.ok("object", "rm", "--yes", f"{move.lake}/main/a.csv")

    assert move.run()["stays"] == ["uncommitted changes on main stay there: commit or reset them"]


def test_nothing_is_written_where_the_new_server_cannot_read_or_keep(move: Move, tmp_path: Path) -> None:
    shutil.rmtree(move.new / "objects" / move.folder)
    elsewhere = move.shell(*move.words())
    assert elsewhere.code == 3
    assert "this server finds nothing there" in elsewhere.err

    inside = ["--data", str(move.new), "--namespaces", f"local://{move.name}/{{repository}}"]
    assert "--namespaces has no {repository}" in move.shell("migrate", "--data", str(tmp_path), "--namespaces", "x").err
    assert move.shell("migrate", "none-such", *inside).code == 3
    with lakebed.open_local(move.new, environment={}) as lake:
        assert [*lake.repositories()] == []


def test_data_in_a_namespace_that_a_lakebed_server_collects_is_refused(move: Move) -> None:
    move.shell.ok("object", "upload", "-", f"{move.lake}/main/own.csv", stdin="7")
    move.shell.ok("commit", f"{move.lake}/main", "-m", "its own")
    shutil.copytree(move.old / "objects" / move.name, move.new / "objects" / move.name)

    refused = move.shell(*move.words())

    assert refused.code == 2
    assert "lies inside the storage namespace" in refused.err


def test_a_dry_run_counts_and_writes_no_repository(move: Move) -> None:
    [plan] = move.shell.ok(*move.words("--dry-run"), "-o", "json").json

    assert (plan["commits_before"], plan["branches"], plan["tags"]) == (0, 2, 1)
    assert plan["commits"] >= 6
    with lakebed.open_local(move.new, environment={}) as lake:
        assert [*lake.repositories()] == []
