"""`lakebed gc` on runs that the server knows, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lakebed.base import Conflict
from lakebed.cli.gc.text import missing_text
from lakebed.cli.kit.session import Session
from lakebed.client import Client, Credentials, path_to
from lakebed.gc import Collector, messages
from lakebed.gc.messages import (
    ApplyRequest,
    CommitCounts,
    MissingCommit,
    MissingCommits,
    Plan,
    RangeCounts,
    RunKind,
    RunReport,
    Total,
    Totals,
    encode_plan,
    plan_path,
)
from lakebed.operations.gc import collectors
from lakebed.settings import read_settings
from tests.cli.conftest import Shell

PLANNED = "06gvsk16dis1i19se31f"

LOCAL_NEEDS = (
    "error: local:// repositories need the server's data folder: --data DIR, LAKEBED_DATA, or for good "
    "`lakebed config set --data DIR`"
)


def start_run(shell: Shell, lake: str) -> str:
    """A run that begins to mark, and whose collector is never heard of again."""
    started = call(shell, path_to(collectors.START_GC_RUN, lake.removeprefix("lakefs://")), {"kind": "uncommitted"})
    assert isinstance(started, dict)
    return str(started["run_id"])


def call(shell: Shell, path: str, body: dict[str, str]) -> object:
    settings = read_settings(Path(shell.environment["LAKEBED_CONFIG"]))
    credentials = Credentials(access_key_id=settings.access_key_id, secret_access_key=settings.secret_access_key)
    with closing(Client(settings.endpoint, credentials)) as client:
        return client.call("POST", path, json=body)


def test_a_reader_that_goes_away_from_a_plan_is_no_failure_of_spark(shell: Shell, lake: str, data: Path) -> None:
    shell.ok("gc", "rules", "set-default", lake, "7d")

    process = shell.process("gc", "plan", lake, "--committed", "-q", "--engine", "local", "--data", str(data))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert (process.stderr.read(), process.wait()) == (b"", 141)
    process.stderr.close()


def test_slices_of_a_deleted_repository_are_not_adopted_and_it_says_what_to_do(shell: Shell, lake: str) -> None:
    refused = shell("gc", "deleted", "adopt", lake, "--slices", "--uid", "r1")

    said = " ".join(refused.err.split())
    assert refused.code == 2
    assert f"`lakebed repo undelete {lake} --uid r1`" in said
    assert f"`lakebed gc adopt {lake} --slices`" in said


@pytest.mark.parametrize("uri", ["nonsense", "x/y/z", "lakefs://lake/main"])
@pytest.mark.parametrize("command", ["gc adopt", "gc deleted adopt"])
def test_slices_of_what_is_no_repository_are_refused_by_its_uri(shell: Shell, command: str, uri: str) -> None:
    refused = shell(*command.split(), uri, "--slices")

    assert refused.code == 2
    assert uri in refused.err
    assert "repository" in refused.err
    assert "undelete" not in refused.err


def test_where_another_installation_was_seen_one_is_adopted(shell: Shell, lake: str) -> None:
    started = start_run(shell, lake)

    refused = shell("gc", "adopt", lake)
    adopted = shell.ok("gc", "adopt", lake, "--yes", "-o", "json").json
    soon = shell("gc", "adopt", lake, "--slices")  # the server refuses before a question

    assert started
    assert refused.code == 2
    assert adopted["adopted_by"]
    assert adopted["adopted_ms"] > 0
    assert (soon.code, "a day after `lakebed gc adopt`" in " ".join(soon.err.split())) == (4, True)


def test_commits_whose_trees_lack_files_are_listed_and_marked_after_a_question(shell: Shell, lake: str) -> None:
    refused = shell("gc", "missing", lake, "--mark")
    found = shell.ok("gc", "missing", lake, "-o", "json").json
    marked = shell.ok("gc", "missing", lake, "--mark", "--yes")

    assert refused.code == 2
    assert (found["count"], found["commits"]) == (0, [])
    assert marked.out.strip() == "no commit lacks files of its tree"


def test_plans_of_every_kind_go_on_once_a_commit_without_a_tree_is_marked(shell: Shell, lake: str, data: Path) -> None:
    shell.ok("branch", "create", f"{lake}/gone", "--source", f"{lake}/main")
    shell.ok("object", "upload", "-", f"{lake}/gone/a", stdin="data")
    shell.ok("commit", f"{lake}/gone", "-m", "gone")
    shell.ok("branch", "delete", f"{lake}/gone", "--yes")
    (lost,) = data.glob(f"**/{lake.removeprefix('lakefs://')}/_lakefs/metaranges/*.parquet")
    lost.unlink()

    here = ("--engine", "local", "--data", str(data))
    stopped = shell("gc", "plan", lake, *here)
    shell.ok("gc", "missing", lake, "--mark", "--yes")

    assert stopped.code == 1
    assert "`lakebed gc missing`" in stopped.err
    shell.ok("gc", "plan", lake, *here)
    shell.ok("gc", "run", lake, "--yes", *here)


def test_the_words_for_missing_trees_say_what_to_do_next() -> None:
    commits = (MissingCommit(id="c1", refs=("branch old",)), MissingCommit(id="c2"))

    assert list(missing_text(MissingCommits(count=2, named=1, commits=commits, marked=2, run_id="r"))) == [
        "marked as gone, by run r: 2 commits",
        "2 commits without the files of the tree, 1 named by a ref",
        "  c1  branch old",
        "  c2",
        "reset or delete the refs named above: their commits cannot be read, and are never marked",
    ]


def test_a_run_that_was_left_behind_is_abandoned_once(shell: Shell, lake: str) -> None:
    run = start_run(shell, lake)

    refused = shell("gc", "abandon", lake, run)
    abandoned = shell.ok("gc", "abandon", lake, run, "--yes", "-o", "json").json
    unknown = shell("gc", "abandon", lake, "06gvsk16dis1i19se31f", "--yes")

    assert refused.code == 2
    assert (abandoned["run_id"], abandoned["state"]) == (run, "abandoned")
    assert shell.ok("gc", "status", lake, run, "-o", "json").json["state"] == "abandoned"
    assert (unknown.code, unknown.err) == (
        3,
        f"error: {lake} has no run 06gvsk16dis1i19se31f: `lakebed gc list {lake}` shows those that there are\n",
    )


def test_a_run_that_is_planned_or_applied_is_not_abandoned_and_no_question_is_asked(
    shell: Shell, lake: str, data: Path, put: Callable[[str, str], None]
) -> None:
    here = ("--engine", "local", "--data", str(data))
    put(f"{lake}/main/a", "one")
    [plan] = shell.ok("gc", "plan", lake, "--uncommitted", *here, "-o", "json").json
    planned = shell("gc", "abandon", lake, "latest-uncommitted", "--data", str(data), "-q")
    afar = shell("gc", "abandon", lake, plan["run_id"])
    shell.ok("gc", "apply", lake, plan["run_id"], "--yes", *here)
    applied = shell("gc", "abandon", lake, plan["run_id"], "--data", str(data))

    apply = f"`lakebed gc apply {lake} {plan['run_id']} --data {data}`"
    assert (planned.code, planned.err) == (
        4,
        f"error: run {plan['run_id']} is planned: it deletes nothing before {apply}, so there is nothing to abandon\n",
    )
    assert (afar.code, "goes on with it" in afar.err) == (4, True)
    assert (applied.code, "there is nothing to abandon" in applied.err) == (4, True)
    assert "is over" not in applied.err


def test_where_the_bytes_lie_is_checked_before_a_run_begins(shell: Shell, lake: str, tmp_path: Path) -> None:
    unsaid = shell("gc", "plan", lake)
    wrong = shell("gc", "plan", lake, "--data", str(tmp_path))
    unknown = shell("gc", "plan", "lakefs://no-such-lake", "--data", str(tmp_path))

    assert (unsaid.code, unsaid.err) == (
        2,
        LOCAL_NEEDS + "\n",
    )
    assert (wrong.code, wrong.out) == (3, "")
    assert f"is not below {tmp_path}" in wrong.err
    assert unknown.code == 3
    assert unknown.err.startswith("error: lakefs://no-such-lake: repository not found. `lakebed repo list`")
    assert [*tmp_path.iterdir()] == []


def test_supposed_rules_say_nothing_of_metadata(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text('{"default": "7d"}')

    refused = shell("gc", "plan", lake, "--metadata", "--rules", str(tmp_path / "rules.json"))

    assert (refused.code, refused.out) == (2, "")
    assert "rules do not apply to metadata" in refused.err


def write_plan(lake: str, data: Path, *, what_if: bool = False) -> None:
    """A finished plan of committed data, of which the server has no record before somebody applies it."""
    manifest = messages.manifest_of(messages.COMMITS, "_lakefs/x/", [])
    plan = Plan(
        run_id=PLANNED,
        kind=RunKind.COMMITTED,
        repository=lake.removeprefix("lakefs://"),
        namespace=lake.replace("lakefs:", "local:"),
        now_ms=1_790_000_000_000,
        what_if=what_if,
        closed_slices=1,
        rules=None,
        rules_version=1,
        commits=manifest,
        refs=manifest,
        expired=manifest,
        commit_counts=CommitCounts(all=2, kept=1, expired=1, swept=0),
        range_counts=RangeCounts(live=1, expired=1),
        garbage=messages.manifest_of(messages.GARBAGE, "_lakefs/x/", []),
        totals=Totals(all=Total(objects=3, size_bytes=2048)),
    )
    file = data / "objects" / lake.removeprefix("lakefs://") / plan_path(plan.kind, PLANNED)
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_plan(plan))


def test_a_plan_nobody_applied_is_told_as_one(shell: Shell, lake: str, data: Path) -> None:
    write_plan(lake, data)

    status = shell.ok("gc", "status", lake, PLANNED, "--data", str(data))
    shown = shell.ok("gc", "show", lake, PLANNED, "--data", str(data))
    abandoned = shell("gc", "abandon", lake, PLANNED, "--data", str(data), "--yes", "-q")

    assert "committed" in status.out
    assert "2026-09-21" in status.out
    assert "3 objects, 2.0 KiB" in status.out
    assert "state:    planned; not applied\n" in shown.out
    assert (abandoned.code, abandoned.err) == (
        4,
        f"error: {PLANNED} is a plan that was not applied: there is nothing to abandon\n",
    )


def test_a_run_of_nowhere_is_told_with_the_repository_that_has_none(shell: Shell, lake: str, data: Path) -> None:
    for action in ("show", "status", "apply"):
        unknown = shell("gc", action, lake, "06gvsk16dis1i19se31g", "--data", str(data))

        assert (unknown.code, unknown.err) == (
            3,
            f"error: {lake} has no run 06gvsk16dis1i19se31g: `lakebed gc list {lake}` shows those that there are\n",
        )


def test_settings_of_spark_are_refused_before_it_is_said_to_start(shell: Shell, lake: str, data: Path) -> None:
    refused = shell("gc", "plan", lake, "--data", str(data), LAKEBED_GC_CORES="many")

    assert (refused.code, "starting Spark" in refused.err) == (2, False)


def keys_of_a_new_user(shell: Shell, name: str, group: str) -> dict[str, str]:
    pair = shell.ok("auth", "users", "create", name, "--group", group, "-o", "json").json
    return {"LAKEBED_ACCESS_KEY_ID": pair["access_key_id"], "LAKEBED_SECRET_ACCESS_KEY": pair["secret_access_key"]}


def test_what_somebody_may_not_do_is_refused_before_spark_is_started(shell: Shell, lake: str, data: Path) -> None:
    write_plan(lake, data)
    shell.ok("gc", "rules", "set-default", lake, "7d")
    viewer = keys_of_a_new_user(shell, "early-viewer", "Viewers")
    planner = keys_of_a_new_user(shell, "early-planner", "GCPlanners")

    for keys, action, command in (
        (viewer, "gc:Plan", ("plan", lake)),
        (viewer, "gc:Plan", ("run", lake, "--yes")),
        (planner, "gc:Apply", ("run", lake, "--yes")),
        (planner, "gc:Apply", ("apply", lake, PLANNED, "--yes")),
        (planner, "gc:Apply", ("purge", lake, "--yes")),
    ):
        refused = shell("gc", *command, "--data", str(data), **keys)
        assert (refused.code, refused.out) == (1, ""), refused
        assert refused.err.startswith("error: insufficient permissions: early-"), refused
        assert f"needs {action} on" in refused.err


def test_what_cannot_be_is_refused_before_spark_is_started(shell: Shell, lake: str, data: Path) -> None:
    write_plan(lake, data)

    unset = shell("gc", "plan", lake, "--committed", "--data", str(data))
    ruleless = shell("gc", "apply", lake, PLANNED, "--yes", "--data", str(data))
    grace = shell("gc", "run", lake, "--readers-grace", "-1", "--yes", "--data", str(data))

    assert (unset.code, unset.err[:36]) == (2, "error: no retention rules are set: `")
    assert (ruleless.code, ruleless.err) == (3, "error: no retention rules are set for this repository\n")
    assert (grace.code, "starting Spark" in grace.err) == (2, False)


def test_the_question_says_whether_objects_are_deferred(shell: Shell, lake: str, data: Path) -> None:
    bare = shell("gc", "run", lake, "--data", str(data))
    deferred = shell("gc", "run", lake, "--window", "7d", "--data", str(data))
    objects = shell("gc", "run", lake, "--uncommitted", "--window", "7d", "--data", str(data))

    assert (bare.code, "Defer" in bare.err) == (2, False)
    for asked, is_of_metadata in ((deferred, True), (objects, False)):
        assert (asked.code, "to be deleted after 7d" in asked.err, "for good" in asked.err) == (2, True, False)
        assert ("Files of metadata are deleted at once." in asked.err) == is_of_metadata


def test_objects_of_a_plan_are_listed_without_a_limit_only_as_json(shell: Shell, lake: str, data: Path) -> None:
    write_plan(lake, data)

    as_json = shell.ok("gc", "show", lake, PLANNED, "--objects", "--data", str(data), "-o", "json")
    as_text = shell.ok("gc", "show", lake, PLANNED, "--objects", "--path", "logs/", "--data", str(data))
    commits = shell.ok("gc", "show", lake, PLANNED, "--commits", "--data", str(data))

    assert (as_json.json, as_text.out, commits.out) == ([], "no object\n", "no commit\n")


def test_ways_to_show_a_plan_that_do_not_go_together_are_refused(shell: Shell, lake: str) -> None:
    for options in (("--objects", "--commits"), ("--path", "a"), ("--limit", "1"), ("--objects", "--html", "x")):
        assert shell("gc", "show", lake, PLANNED, *options).code == 2


def test_a_run_is_named_by_the_beginning_of_its_id_or_as_the_latest(shell: Shell, lake: str, data: Path) -> None:
    write_plan(lake, data)
    # No record says yet that the caller made it.
    assert shell("gc", "show", lake, "latest-committed", "--data", str(data)).code == 3
    path = path_to(collectors.NOTE_GC_PLAN, lake.removeprefix("lakefs://"), PLANNED)
    call(shell, path, {"kind": "committed", "plan": "0" * 64})

    for name in (PLANNED[:8], "latest", "latest-committed"):
        shown = shell.ok("gc", "show", lake, name, "--data", str(data))
        assert (PLANNED in shown.out, shown.err) == (True, f"run {PLANNED} (committed)\n")
    assert shell.ok("gc", "status", lake, PLANNED[:8], "--data", str(data)).code == 0
    started = start_run(shell, lake)
    assert started in shell.ok("gc", "status", lake, "latest-uncommitted", "--data", str(data)).out
    assert PLANNED in shell.ok("gc", "show", lake, "latest-committed", "--data", str(data)).out
    latest = shell.ok("gc", "status", lake, "latest", "--data", str(data))
    assert latest.err == f"run {started} (uncommitted); of other kinds: latest-committed\n"
    assert shell("gc", "abandon", lake, started[:12], "--yes").code == 0
    assert shell("gc", "show", lake, "0", "--data", str(data)).err.startswith("error: 2 runs begin with '0': ")
    assert shell("gc", "show", lake, "zz", "--data", str(data)).code == 3


def test_an_apply_takes_all_the_plans_that_one_plan_printed(
    shell: Shell, lake: str, data: Path, put: Callable[[str, str], None]
) -> None:
    here = ("--engine", "local", "--data", str(data))
    shell.ok("gc", "rules", "set-default", lake, "1d")
    put(f"{lake}/main/a", "one")
    shell.ok("commit", f"{lake}/main", "-m", "a")
    printed = shell.ok("gc", "plan", lake, *here, "-o", "json").json
    runs = [one["run_id"] for one in printed]
    assert len(runs) == 3

    wrong = shell("gc", "apply", lake, runs[0], "0" * 20, *here, "--yes")
    untouched = shell("gc", "status", lake, runs[0], "--data", str(data), "-o", "json").json["state"]
    applied = shell.ok("gc", "apply", lake, *runs, *here, "--yes", "-o", "json").json
    again = shell.ok("gc", "apply", lake, *runs, *here).out.splitlines()

    assert (wrong.code, untouched) == (3, "marked")
    assert [(one["run_id"], one["state"]) for one in applied] == [(run, "ended") for run in runs]
    assert ["was applied" in line for line in again] == [True] * 3


def two_plans(shell: Shell, lake: str, put: Callable[[str, str], None], *here: str) -> list[str]:
    """Return the runs of two plans of uncommitted data that each take something."""
    put(f"{lake}/main/a", "one")
    shell.ok("object", "rm", f"{lake}/main/a", "--yes")
    plan = ("gc", "plan", lake, "--uncommitted", *here, "-o", "json")
    return [str(shell.ok(*plan).json[0]["run_id"]) for _ in range(2)]


@pytest.mark.parametrize("answers", ["n\n", "y\nn\n"])
def test_a_no_to_any_of_several_plans_comes_before_the_first_delete(
    shell: Shell,
    lake: str,
    data: Path,
    put: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    answers: str,
) -> None:
    here = ("--engine", "local", "--data", str(data))
    runs = two_plans(shell, lake, put, *here)
    monkeypatch.setattr(Session, "check_can_ask", lambda *_, **__: None)

    outcome = shell("gc", "apply", lake, *runs, *here, stdin=answers)

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.count("[y/N]") == answers.count("\n")
    assert outcome.err.endswith("error: nothing was done\n")
    for run in runs:
        assert shell.ok("gc", "status", lake, run, "--data", str(data), "-o", "json").json["state"] == "marked"


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Conflict("overtaken"), 4)])
def test_what_was_deleted_is_told_where_a_later_plan_is_stopped(
    shell: Shell,
    lake: str,
    data: Path,
    put: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    stop: BaseException,
    code: int,
) -> None:
    here = ("--engine", "local", "--data", str(data))
    runs = two_plans(shell, lake, put, *here)
    apply = Collector.apply

    def stopped(collector: Collector, request: ApplyRequest) -> RunReport:
        if request.run_id == runs[1]:
            raise stop
        return apply(collector, request)

    monkeypatch.setattr(Collector, "apply", stopped)
    outcome = shell("gc", "apply", lake, *runs, *here, "--yes")

    assert outcome.code == code
    assert outcome.out.startswith(f"{runs[0]} (uncommitted): deleted 1 object")


def test_a_plan_by_rules_that_are_not_saved_is_never_the_latest(shell: Shell, lake: str, data: Path) -> None:
    write_plan(lake, data, what_if=True)

    for name in ("latest", "latest-committed"):
        assert shell("gc", "show", lake, name, "--data", str(data)).code == 3
    shell.ok("gc", "show", lake, PLANNED, "--data", str(data))


def test_the_folder_of_another_server_is_named_in_the_refusal(shell: Shell, lake: str, tmp_path: Path) -> None:
    refused = shell("gc", "plan", lake, "--data", str(tmp_path))

    assert refused.code == 3
    assert refused.err.endswith(f"; is {tmp_path} the data folder of this repository's server?\n")


@pytest.mark.parametrize("kind", ["--uncommitted", "--metadata"])
def test_a_copy_of_the_servers_folder_is_recognised_and_refused(
    shell: Shell, lake: str, data: Path, put: Callable[[str, str], None], tmp_path: Path, kind: str
) -> None:
    put(f"{lake}/main/a", "1")
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)

    refused = shell("gc", "plan", lake, kind, "--engine", "local", "--data", str(copy))

    assert refused.code == 1
    assert "is a copy here, or another store. Name the server's own, by --data" in refused.err


def test_an_apply_over_a_copy_that_was_made_after_the_plan_is_refused(
    shell: Shell, lake: str, data: Path, put: Callable[[str, str], None], tmp_path: Path
) -> None:
    put(f"{lake}/main/a", "1")
    put(f"{lake}/main/a", "2")
    here = ("--engine", "local", "--data", str(data))
    [plan] = shell.ok("gc", "plan", lake, "--uncommitted", *here, "-o", "json").json
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)

    for command in (("apply", lake, plan["run_id"]), ("purge", lake)):
        refused = shell("gc", *command, "--yes", "--engine", "local", "--data", str(copy))

        assert refused.code == 1
        assert "is a copy here, or another store. Name the server's own, by --data" in refused.err
    assert shell("gc", "apply", lake, plan["run_id"], "--yes", *here).code == 0


def test_a_folder_that_there_is_not_is_told_as_one(shell: Shell, lake: str) -> None:
    refused = shell("gc", "plan", lake, "--data", "/nonexistent")

    assert (refused.code, refused.err) == (
        3,
        "error: --data /nonexistent: no such folder. It, or LAKEBED_DATA, names the server's data folder\n",
    )


def test_a_grace_is_a_duration_or_a_number_of_seconds(shell: Shell, lake: str) -> None:
    refused = shell("gc", "apply", lake, PLANNED, "--readers-grace", "soon")

    assert refused.code == 2
    assert "use 900 (seconds), 15m or 1h" in refused.err


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        (("plan", "lakefs://lake", "--engine", "turbo"), "plan"),
        (("job", "start", "lakefs://lake", "bogus"), "job start"),
    ],
)
def test_a_word_that_is_not_known_names_the_help(shell: Shell, words: tuple[str, ...], helps: str) -> None:
    refused = shell("gc", *words)

    assert refused.code == 2
    assert refused.err.endswith(f"(lakebed gc {helps} -h)\n")
