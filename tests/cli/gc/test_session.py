"""What `lakebed gc` understands and how it tells a plan, without server or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from lakebed.base import Invalid
from lakebed.cli.gc.session import objects_in, warn_of_unfinished
from lakebed.cli.gc.text import open_text, plan_text
from lakebed.gc import NoRules, Plan, ServedCollector, Total, Totals, messages, session_options
from lakebed.gc.__main__ import _print, _unknown_here, main
from lakebed.gc.messages import CommitCounts, RangeCounts, RunKind, RunState, RunView


def test_the_servers_folder_and_its_folder_of_objects_both_name_the_objects(tmp_path: Path) -> None:
    (tmp_path / "server" / "objects").mkdir(parents=True)

    assert objects_in(tmp_path / "server") == objects_in(tmp_path / "server" / "objects")


def test_a_plan_tells_what_goes_and_why_and_shows_no_control_characters() -> None:
    total = Total(objects=1200, size_bytes=3 << 20)
    manifest = messages.manifest_of(messages.COMMITS, "_lakefs/x/", [])
    plan = Plan(
        run_id="r1",
        kind=RunKind.COMMITTED,
        repository="repo",
        namespace="local://lake/repo",
        now_ms=1_790_000_000_000,
        closed_slices=2,
        rules=None,
        rules_version=3,
        commits=manifest,
        refs=manifest,
        commit_counts=CommitCounts(all=30, kept=20, expired=9, swept=1),
        range_counts=RangeCounts(live=4, expired=5),
        garbage=manifest,
        totals=Totals(all=total, by_rule={"main: 7d": total}, by_prefix={"a\x1b[2J/": total}),
        unknown_files=("_lakefs/x",),
    )

    text = "\n".join(plan_text(plan))

    assert "1,200 objects, 3.0 MiB" in text
    assert "main: 7d" in text
    assert "reported and never deleted" in text
    assert "\x1b" not in text


def test_the_session_can_be_told_to_hide_the_machines_java() -> None:
    assert session_options({"LAKEBED_GC_JAVA": "bundled"}).bundled_java
    assert not session_options({}).bundled_java


@pytest.mark.parametrize(
    "environ", [{"LAKEBED_GC_JAVA": "none"}, {"LAKEBED_GC_CORES": "0"}, {"LAKEBED_GC_MEMORY_MB": "much"}]
)
def test_settings_that_nobody_can_mean_are_refused_by_name(environ: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=next(iter(environ))):
        session_options(environ)


def test_what_one_run_did_is_told_even_where_the_next_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def one_and_an_error() -> Iterator[Total]:
        yield Total(objects=7, size_bytes=1)
        raise NoRules("no retention rules are set")

    with pytest.raises(NoRules):
        _print(one_and_an_error())

    assert '"objects":7' in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["plan"],
        ["plan", "lake"],
        ["apply", "lakefs://lake"],
        ["plan", "lakefs://lake", "--tasks", "0"],
        ["why", "lakefs://lake"],
        ["why", "lakefs://lake/main"],
        ["why", "lakefs://lake/main/a", "data/x"],
        ["why", "lake", "data/x"],
    ],
)
def test_the_entry_for_spark_submit_refuses_what_it_does_not_understand(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments, {})

    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [["--metadata"], ["--committed", "--metadata"]])
def test_the_entry_for_spark_submit_refuses_supposed_rules_for_metadata(
    kind: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"default": "7d"}')

    with pytest.raises(SystemExit) as ended:
        main(["plan", "lakefs://lake", "--rules", str(rules), *kind], {})

    assert ended.value.code == 2
    assert "rules do not apply to metadata" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["show", "r1"], ["plan"], ["apply", "r1"], ["run"], ["purge"]])
def test_the_entry_for_spark_submit_says_when_there_is_no_server(
    action: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any session: none can begin here."""
    monkeypatch.setattr("lakebed.gc.__main__.local_session", None)

    code = main([action[0], "lakefs://lake", *action[1:]], {"LAKEBED_ENDPOINT": "http://127.0.0.1:9"})

    assert code == 5
    assert "cannot reach" in capsys.readouterr().err


def test_the_entry_for_spark_submit_reads_variables_from_a_file_which_count_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "lakebed.env").write_text("# a comment\n\nLAKEBED_ENDPOINT=http://127.0.0.1:9/?a=b\n")
    environ = {"LAKEBED_ENVIRONMENT_FILE": str(file), "LAKEBED_ENDPOINT": "http://127.0.0.1:10"}

    main(["show", "lakefs://lake", "r1"], environ)

    assert "127.0.0.1:9/?a=b" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, b"LAKEBED_TOKEN=a\nSECRET", b"=SECRET", b"export A=SECRET", b"\xff=SECRET"])
def test_the_entry_for_spark_submit_refuses_another_file_and_shows_nothing_of_it(
    text: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lakebed.env"
    if text is not None:
        file.write_bytes(text)

    code = main(["list", "lakefs://lake"], {"LAKEBED_ENVIRONMENT_FILE": str(file)})

    said = capsys.readouterr().err
    assert code == 2
    assert str(file) in said
    assert "SECRET" not in said


@pytest.mark.parametrize("asked", [["lakefs://lake/main/logs/a b"], ["lakefs://lake", "data/x/00000001"]])
def test_the_entry_for_spark_submit_asks_why_after_a_path_or_an_address(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["why", *asked], {"LAKEBED_ENDPOINT": "http://127.0.0.1:9"})

    assert code == 5
    assert "cannot reach" in capsys.readouterr().err


def test_slices_that_were_not_closed_are_listed() -> None:
    assert open_text(1) == "1 slice of another server, or with uploads under way, is not closed yet"
    assert open_text(6) == "6 slices of other servers, or with uploads under way, are not closed yet"


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "no credentials: set LAKEBED_ACCESS_KEY_ID and LAKEBED_SECRET_ACCESS_KEY, or LAKEBED_TOKEN"),
        ({"LAKEBED_ACCESS_KEY_ID": "k"}, "no credentials: set LAKEBED_SECRET_ACCESS_KEY, or LAKEBED_TOKEN"),
        ({"LAKEBED_TOKEN": "t"}, "the server does not accept the token in LAKEBED_TOKEN"),
        (
            {"LAKEBED_ACCESS_KEY_ID": "k", "LAKEBED_SECRET_ACCESS_KEY": "s"},
            "the server does not accept access key k (from LAKEBED_ACCESS_KEY_ID) with LAKEBED_SECRET_ACCESS_KEY",
        ),
    ],
)
def test_who_is_unknown_is_told_which_variables_count(environment: dict[str, str], told: str) -> None:
    assert _unknown_here(environment) == told


def test_without_files_runs_that_sweep_are_warned_of_and_those_that_may_have_begun_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    day = RunView(run_id="r1", kind=RunKind.COMMITTED, state=RunState.SWEEPING, started_ms=1_790_000_000_000)
    views = (
        day,
        replace(day, run_id="r2", state=RunState.MARKED),
        replace(day, run_id="r3", until_ms=1_800_000_000_000),
        replace(day, run_id="r4", state=RunState.ENDED),
    )
    monkeypatch.setattr(ServedCollector, "runs", lambda _: views)
    collector = ServedCollector(client=Mock(), repository="lake")
    session = Mock()

    warn_of_unfinished(session, collector)

    first, second = (call.args[0] for call in session.note.call_args_list)
    assert first.startswith("warning: run r1 (committed) of 2026-09-21")
    assert "may have begun to delete and has not ended" in first
    assert first.endswith("lakebed gc apply lakefs://lake r1")
    assert second == "files that were not read tell whether these runs have begun to delete: r2"
