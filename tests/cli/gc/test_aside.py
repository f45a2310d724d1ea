"""`lakebed gc restore`, `purge` and `ledger`, on what runs deferred or deleted, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakebed.gc import Collector
from lakebed.gc.messages import Undone
from tests.cli.conftest import Shell

NO_RUN = "06gvsk16dis1i19se31g"
Put = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A repository of which a deferred run holds `events/0` (`abcd`) and `events/1` (`efgh`)."""

    lake: str
    run: str


def collect(shell: Shell, lake: str, data: Path, *options: str) -> str:
    """Expire what is committed, and collect it. The run's id."""
    shell.ok("commit", f"{lake}/main", "-m", "gone", "--date", _days_ago(10))
    command = ("gc", "run", lake, "--committed", "--yes", "--engine", "local", "--data", str(data), "-o", "json")
    return str(shell.ok(*command, "--readers-grace", "0", *options).json["run_id"])


def lay(shell: Shell, lake: str, put: Put, *contents: str) -> None:
    """Commit these as `events/0` …, long ago, and remove them since."""
    for number, content in enumerate(contents):
        put(f"{lake}/main/events/{number}", content)
    shell.ok("commit", f"{lake}/main", "-m", "laid", "--date", _days_ago(30))
    for number in range(len(contents)):
        shell.ok("object", "rm", f"{lake}/main/events/{number}", "--yes")


def _days_ago(count: int) -> str:
    return (datetime.now(UTC) - timedelta(days=count)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def held(shell: Shell, lake: str, data: Path, put: Put) -> Held:
    shell.ok("gc", "rules", "set-default", lake, "1d")
    lay(shell, lake, put, "abcd", "efgh")
    return Held(lake=lake, run=collect(shell, lake, data, "--window", "7d"))


def test_a_path_is_restored_to_the_default_branch_at_its_own_place(shell: Shell, held: Held) -> None:
    done = shell.ok("gc", "restore", held.lake, "events/0")

    assert done.out == f"restored 1 object, 4 B, from run {held.run} to {held.lake}/main\n"
    assert shell.ok("object", "cat", f"{held.lake}/main/events/0").out == "abcd"
    assert shell("object", "cat", f"{held.lake}/main/events/1").code != 0


def test_what_is_restored_has_the_content_type_and_the_metadata_that_it_had(
    shell: Shell, lake: str, data: Path
) -> None:
    uri = f"{lake}/main/events/0"
    shell.ok("gc", "rules", "set-default", lake, "1d")
    shell.ok("object", "upload", "-", uri, "--content-type", "text/x-mine", "--meta", "owner=ann", stdin="abcd")
    shell.ok("commit", f"{lake}/main", "-m", "laid", "--date", _days_ago(30))
    before = shell.ok("object", "stat", uri, "-o", "json").json
    shell.ok("object", "rm", uri, "--yes")
    run = collect(shell, lake, data, "--window", "7d")

    done = shell.ok("gc", "restore", lake, run, "-o", "json")

    assert (done.json["restored"], done.json["bare"]) == (1, 0)
    assert "without metadata" not in done.err
    after = shell.ok("object", "stat", uri, "-o", "json").json
    assert after["metadata"].pop("lakebed-restored-from")
    same = ("checksum", "content_type", "metadata", "size_bytes")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert (before["content_type"], before["metadata"]) == ("text/x-mine", {"owner": "ann"})
    assert after["physical_address"] != before["physical_address"]


def test_a_restore_tells_of_objects_that_no_commit_had(shell: Shell, held: Held, data: Path) -> None:
    name = held.lake.removeprefix("lakefs://")
    ranges = [*data.rglob(f"{name}/_lakefs/ranges/*.parquet")]
    for file in ranges:
        file.unlink()

    done = shell.ok("gc", "restore", held.lake, held.run, "--to", f"{held.lake}/main/back")

    assert ranges
    assert "2 objects came back without metadata: no entry of a commit was found" in done.err


def test_a_run_is_restored_by_the_beginning_of_its_id_and_the_ledger_asked_by_it(
    shell: Shell, held: Held, data: Path
) -> None:
    done = shell.ok("gc", "restore", held.lake, held.run[:12])
    rows = shell.ok("gc", "ledger", held.lake, "--run", held.run[:12], "--data", str(data), "-o", "json").json

    assert done.out == f"restored 2 objects, 8 B, from run {held.run} to {held.lake}/main\n"
    assert {row["run_id"] for row in rows} == {held.run}


def test_an_undo_that_is_stopped_says_how_to_go_on(shell: Shell, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    undo = Collector.undo

    def stopping(self: Collector, run_id: str, *, dry_run: bool = False) -> Undone:
        if not dry_run:
            raise KeyboardInterrupt
        return undo(self, run_id, dry_run=True)

    monkeypatch.setattr(Collector, "undo", stopping)

    stopped = shell("gc", "restore", held.lake, held.run, "--undo", "--yes")

    assert stopped.code == 130
    [line] = [line for line in stopped.err.splitlines() if line.startswith("stopped: ")]
    assert line.startswith(f"stopped: the undo of run {held.run} may have begun")


@pytest.mark.parametrize("words", [("latest",), ("events/0", "--run", "latest")])
def test_the_latest_run_to_restore_is_one_that_may_hold_objects(
    shell: Shell, held: Held, data: Path, words: tuple[str, ...]
) -> None:
    shell.ok("gc", "run", held.lake, "--metadata", "--yes", "--data", str(data))

    done = shell.ok("gc", "restore", held.lake, *words)

    assert f"from run {held.run} to" in done.out


def test_who_reads_a_commit_whose_contents_a_run_took_is_sent_to_why(shell: Shell, held: Held) -> None:
    uri = f"{held.lake}/main~1/events/0"

    refused = shell("object", "cat", uri)

    assert f"were taken by collection run {held.run}. `lakebed gc why '{uri}'` says" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        "branch create LAKE/back --source main~1",
        "tag create LAKE/back main~1",
        "branch revert LAKE/main main --yes",
        "branch cherry-pick LAKE/main main~1",
    ],
)
def test_who_wants_back_what_a_run_took_learns_which_run_it_was(shell: Shell, held: Held, words: str) -> None:
    refused = shell(*words.replace("LAKE", held.lake).split())

    assert refused.code != 0
    assert held.run in " ".join(refused.err.split())


@pytest.mark.parametrize(
    "words",
    [
        "branch create LAKE/new --source COMMIT",
        "tag create LAKE/new COMMIT",
        "branch cherry-pick LAKE/main COMMIT",
    ],
)
def test_who_wants_a_commit_back_that_a_run_took_is_shown_the_run(shell: Shell, held: Held, words: str) -> None:
    commit = shell.ok("log", f"{held.lake}/main", "-o", "json").json[1]["id"]

    refused = shell(*words.replace("LAKE", held.lake).replace("COMMIT", commit).split())

    assert refused.code == 4
    assert f"taken by collection run {held.run}" in refused.err
    assert f"`lakebed gc restore {held.lake} {held.run} --undo` gives it back" in refused.err


@pytest.mark.parametrize("options", [(), ("--stat",), ("-o", "json")])
def test_of_a_commit_whose_parent_a_run_took_it_is_said_that_its_changes_cannot_be_shown(
    shell: Shell, held: Held, options: tuple[str, ...]
) -> None:
    refused = shell("show", f"{held.lake}/main", *options)

    assert refused.code == 3
    assert "cannot be shown, its parent is missing: the contents of commit" in refused.err


def test_apply_of_a_deferred_run_asks_what_is_true_until_its_window_ends(shell: Shell, held: Held, data: Path) -> None:
    asked = shell("gc", "apply", held.lake, held.run, "--data", str(data))

    assert (asked.code, "for good" in asked.err) == (2, False)
    assert f"error: refusing to apply run {held.run} without --yes" in asked.err
    assert f"It deletes 2 objects, 8 B of {held.lake} after 20" in asked.err
    assert "until then they can be restored" in asked.err


def test_plans_and_the_ledger_are_read_through_the_server_without_its_folder(
    shell: Shell, held: Held, data: Path
) -> None:
    for words in (
        ("list",),
        ("show", held.run),
        ("show", "latest", "--objects"),
        ("diff", held.run, held.run),
        ("ledger",),
        ("ledger", "--run", held.run, "--path", "events/"),
    ):
        command = ("gc", words[0], held.lake, *words[1:], "-o", "json")
        near, far = shell.ok(*command, "--data", str(data)), shell.ok(*command)
        assert far.out == near.out, words
    assert "planned by ann" in shell.ok("gc", "show", held.lake, held.run).out
    assert shell("gc", "show", held.lake, "06gvsk16dis1i19se31g").code == 3
    commits = shell("gc", "show", held.lake, held.run, "--commits")
    assert (commits.code, "--data" in commits.err) == (2, True)


def test_why_gives_the_command_that_restores_what_a_run_deferred(shell: Shell, held: Held) -> None:
    told = shell.ok("gc", "why", f"{held.lake}/main~1/events/0").out

    command = next(line for line in told.splitlines() if line.startswith("restore:")).split()[2:]
    assert shell.ok(*command).out.startswith(f"restored 1 object, 4 B, from run {held.run}")
    assert shell.ok("object", "cat", f"{held.lake}/main/events/0").out == "abcd"


def test_a_deferred_run_is_not_abandoned_and_its_end_is_named(shell: Shell, held: Held) -> None:
    refused = shell("gc", "abandon", held.lake, held.run, "--yes")

    assert refused.code == 4
    assert f"run {held.run} is deferred until 2" in refused.err


def test_a_folder_is_restored_below_a_prefix_of_another_branch(shell: Shell, held: Held) -> None:
    shell.ok("branch", "create", f"{held.lake}/back", "--source", "main")

    done = shell.ok(
        "gc", "restore", held.lake, "events/", "--run", held.run, "--to", f"{held.lake}/back/found", "-o", "json"
    ).json

    assert (done["run_id"], done["restored"], done["failed"]) == (held.run, 2, 0)
    assert shell.ok("object", "cat", f"{held.lake}/back/found/events/1").out == "efgh"


def test_what_cannot_be_restored_is_named_and_ends_the_command_with_a_code_of_its_own(
    shell: Shell, held: Held, put: Put
) -> None:
    put(f"{held.lake}/main/events/0", "mine")

    failed = shell("gc", "restore", held.lake, "events/")
    again = shell.ok("gc", "restore", held.lake, "events/", "--overwrite")

    assert failed.code == 1
    assert "1 object could not be restored:\n  events/0: another object is there (--overwrite, or" in failed.out
    assert again.out == f"restored 1 object, 4 B, from run {held.run} to {held.lake}/main; 1 was there already\n"
    assert shell.ok("object", "cat", f"{held.lake}/main/events/0").out == "abcd"


def test_older_versions_are_told_with_how_to_get_them(shell: Shell, held: Held, data: Path, put: Put) -> None:
    put(f"{held.lake}/main/events/0", "newer")
    shell.ok("commit", f"{held.lake}/main", "-m", "newer", "--date", _days_ago(5))
    shell.ok("object", "rm", f"{held.lake}/main/events/0", "--yes")
    later = collect(shell, held.lake, data, "--window", "7d")

    done = shell.ok("gc", "restore", held.lake, "events/", "--to", f"{held.lake}/main/back", "--overwrite")
    each = shell.ok("gc", "restore", held.lake, "events/0", "--all-versions", "--run", held.run)

    assert done.out.startswith(
        f"restored 2 objects, 9 B, from 2 runs, {later} {held.run} to {held.lake}/main/back\n1 older version"
    )
    assert "--all-versions restores each to PATH@RUN/ADDRESS" in done.out
    assert shell.ok("object", "cat", f"{held.lake}/main/back/events/0").out == "newer"
    assert each.out == f"restored 1 object, 4 B, from run {held.run} to {held.lake}/main\n"


def test_what_no_run_holds_is_an_error_that_says_why(shell: Shell, held: Held) -> None:
    unknown = shell("gc", "restore", held.lake, "nowhere/x")
    elsewhere = shell("gc", "restore", held.lake, "events/0", "--to", "lakefs://other/main")

    assert (unknown.code, unknown.out) == (3, "")
    assert "no deferred run holds nowhere/x" in unknown.err
    assert (elsewhere.code, "is in another repository" in elsewhere.err) == (2, True)


def test_a_deferred_run_says_until_when_and_is_purged_no_earlier(shell: Shell, held: Held, data: Path) -> None:
    listed = shell.ok("gc", "list", held.lake, "--data", str(data)).out
    status = shell.ok("gc", "status", held.lake, held.run, "--data", str(data)).out
    purged = shell.ok("gc", "purge", held.lake, "--yes", "--engine", "local", "--data", str(data), "-o", "json").json

    assert "deferred" in next(line for line in listed.splitlines() if held.run in line)
    assert "window:  7d" in status
    assert "until:   20" in status
    assert (purged["purged"], purged["waiting"]) == ([], [held.run])


@pytest.fixture
def deleted(shell: Shell, lake: str, data: Path, put: Put) -> Held:
    """The same, but that the run deleted them at once."""
    shell.ok("gc", "rules", "set-default", lake, "1d")
    lay(shell, lake, put, "abcd", "efgh")
    return Held(lake=lake, run=collect(shell, lake, data))


def test_the_ledger_is_asked_by_run_path_address_state_and_date(shell: Shell, deleted: Held, data: Path) -> None:
    def asked(*options: str) -> list[tuple[str, str]]:
        out = shell.ok("gc", "ledger", deleted.lake, "--data", str(data), "-o", "json", *options).out
        return [(row["path"], row["state"]) for row in json.loads(out)]

    both = asked()
    address = json.loads(shell.ok("gc", "ledger", deleted.lake, "--data", str(data), "-o", "json").out)[0]["address"]

    assert sorted(both) == [("events/0", "deleted"), ("events/1", "deleted")]
    assert asked("--run", deleted.run, "--state", "deleted") == both
    assert asked("--path", "events/1") == [("events/1", "deleted")]
    assert asked("--address", address) == both[:1]
    assert asked("--state", "deleted", "--limit", "1") == both[:1]
    assert asked("--since", "2999-01-01") == asked("--state", "restored") == []
    assert len(asked("--since", "2000-01-01T00:00:00Z")) == 2


def test_the_ledger_is_shown_as_a_table(shell: Shell, deleted: Held, data: Path) -> None:
    lines = shell.ok("gc", "ledger", deleted.lake, "--path", "events/1", "--data", str(data)).out.splitlines()

    assert lines[0].split() == ["WHEN", "STATE", "SIZE", "OBJECT", "RUN", "WHY"]
    assert lines[1].split()[2:] == ["deleted", "4", "B", "events/1", deleted.run, "default:", "1d"]


def test_the_ledger_says_that_there_is_more_and_knows_no_run_that_never_was(
    shell: Shell, deleted: Held, data: Path
) -> None:
    some = shell.ok("gc", "ledger", deleted.lake, "--data", str(data), "--limit", "1")
    all_of_it = shell.ok("gc", "ledger", deleted.lake, "--data", str(data), "--limit", "2")
    unknown = shell("gc", "ledger", deleted.lake, "--data", str(data), "--run", NO_RUN)
    nothing_such = shell.ok("gc", "ledger", deleted.lake, "--data", str(data), "--run", deleted.run, "--state", "kept")

    assert "the newest 1 row of more" in some.err
    assert "of more" not in all_of_it.err
    assert (unknown.code, unknown.err) == (
        3,
        f"error: {deleted.lake} has no run {NO_RUN}: `lakebed gc list {deleted.lake}` shows those that there are\n",
    )
    assert nothing_such.out == ""


def test_a_ledger_is_verified_and_what_disagrees_exits_with_1(shell: Shell, deleted: Held, data: Path) -> None:
    verify = ("gc", "ledger", deleted.lake, "--data", str(data), "--verify")
    agrees = shell.ok(*verify)
    mixed = shell(*verify, "--path", "events/1")
    for file in data.rglob("ledger/date=*/*.parquet"):
        file.unlink()
    disagrees = shell(*verify, "--run", deleted.run, "-o", "json")

    assert "agree" in agrees.out + agrees.err
    assert mixed.code == 2
    assert disagrees.code == 1
    assert [(row["run_id"], row["what"]) for row in disagrees.json] == [(deleted.run, "unrecorded")] * 2


def test_what_was_deleted_cannot_be_restored_and_the_run_is_named(shell: Shell, deleted: Held) -> None:
    gone = shell("gc", "restore", deleted.lake, "events/0")

    assert (gone.code, gone.out) == (3, "")
    assert f"run {deleted.run} deleted it at" in gone.err


@pytest.mark.parametrize("option", [("--state", "lost"), ("--since", "yesterday")])
def test_a_question_that_means_nothing_is_refused(shell: Shell, lake: str, option: tuple[str, str]) -> None:
    refused = shell("gc", "ledger", lake, *option)

    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize("window", ["forever", "7", "0d"])
@pytest.mark.parametrize("action", [("apply", NO_RUN), ("run",)])
def test_a_window_that_means_nothing_is_refused_before_anything_begins(
    shell: Shell, lake: str, window: str, action: tuple[str, ...]
) -> None:
    refused = shell("gc", action[0], lake, *action[1:], "--window", window, "--yes")

    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize(
    ("days", "words", "gone"), [(7, ["--for-good"], False), (3, ["--for-good"], True), (3, [], False)]
)
def test_the_last_commits_of_a_deleted_branch_stay_or_expire_by_the_default_period(
    shell: Shell, lake: str, data: Path, put: Put, days: int, words: list[str], gone: bool
) -> None:
    """The example of dangling commits: C and D are 8 and 5 days old. A branch that can come back keeps its head."""
    shell.ok("branch", "create", f"{lake}/feature")
    for name, age in (("c", 8), ("d", 5)):
        put(f"{lake}/feature/{name}", name)
        shell.ok("commit", f"{lake}/feature", "-m", name, "--date", _days_ago(age))
    c, d = (shell.ok("branch", "show", f"{lake}/feature").out.strip() + end for end in ("~1", ""))
    shell.ok("branch", "delete", f"{lake}/feature", "--yes", *words)
    shell.ok("gc", "rules", "set-default", lake, f"{days}d")

    shell.ok(
        "gc", "run", lake, "--committed", "--yes", "--engine", "local", "--data", str(data), "--readers-grace", "0"
    )

    found = [
        shell("object", "cat", f"{lake}/{commit}/{path}").code == 0 for commit, path in ((c, "c"), (d, "d"), (d, "c"))
    ]
    assert found == [not gone] * 3 if words else found[1:] == [True, True]
