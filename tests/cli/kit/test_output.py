"""What people and programs are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import count_of, human_size
from lakebed.cli.gc.text import remaining_text, standing_text
from lakebed.cli.kit.output import (
    fields,
    hanging,
    human_duration,
    human_time,
    json_array,
    json_record,
    printable,
    table,
)
from lakebed.cli.kit.session import Format, Session
from lakebed.gc.messages import Standing


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10_240, "10 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (1024**7, "1024 EiB"),
    ],
)
def test_sizes_are_short(size: int, shown: str) -> None:
    assert human_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (0.9999, "1.0 s"),
        (4.2, "4.2 s"),
        (59.96, "1 min"),
        (125, "2 min 5 s"),
        (3599.9, "1 h"),
        (12_000, "3 h 20 min"),
        (86_400, "1 d"),
        (1_051_200, "12 d 4 h"),
    ],
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert human_duration(seconds) == shown


@given(st.floats(min_value=0, max_value=1e12))
def test_every_duration_can_be_shown(seconds: float) -> None:
    assert human_duration(seconds)


def test_times_are_the_same_everywhere() -> None:
    assert human_time(1_767_225_600) == "2026-01-01 00:00:00Z"


@pytest.mark.parametrize("unix_s", [-(10**18), 10**18])
def test_times_beyond_the_calendar_are_shown_as_numbers(unix_s: int) -> None:
    assert human_time(unix_s) == f"{unix_s} s"


def test_counts_agree_with_their_noun() -> None:
    assert [count_of(number, "object") for number in (0, 1, 2500)] == ["0 objects", "1 object", "2,500 objects"]


def test_tables_are_aligned_without_trailing_spaces() -> None:
    assert list(table(("name", "commit"), [("a", "1f"), ("longer", "2")])) == [
        "NAME    COMMIT",
        "a       1f",
        "longer  2",
    ]


def test_amounts_stand_below_one_another() -> None:
    rows = [("1", "1,234", "1.5 KiB", "7 B?"), ("20", "7", "999 B", "7 B")]

    assert list(table(("version", "objects", "size", "why"), rows)) == [
        "VERSION  OBJECTS     SIZE  WHY",
        "1          1,234  1.5 KiB  7 B?",
        "20             7    999 B  7 B",
    ]


@pytest.mark.parametrize(
    ("output", "quiet", "said"),
    [
        (Format.TEXT, False, ("", "nothing here\n")),
        (Format.TEXT, True, ("", "")),
        (Format.JSON, False, ("[]\n", "")),
    ],
)
def test_an_empty_list_says_so_to_a_person(
    capsys: pytest.CaptureFixture[str], output: Format, quiet: bool, said: tuple[str, str]
) -> None:
    session = Session({"LAKEBED_PAGER": "cat"}, endpoint=None, output=output, quiet=quiet)

    session.show_all([], lambda _: [], otherwise="nothing here")

    assert capsys.readouterr() == said


def test_bytes_that_are_no_unicode_are_escaped_in_json() -> None:
    assert json_record({"data": "/a\udcff", "names": ["b\udcff", 1]}).splitlines() == [
        "{",
        '  "data": "/a\\\\udcff",',
        '  "names": [',
        '    "b\\\\udcff",',
        "    1",
        "  ]",
        "}",
    ]
    assert list(json_array([{"path": "\udcff"}])) == ["[", '{"path":"\\\\udcff"}', "]"]


def open_terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))


def test_what_an_erasure_leaves_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=40)

    standing = Standing(what="copy", where="data/1/2", why="has an erased checksum, at backup")
    assert list(map(click.unstyle, standing_text(standing))) == [
        "stands copy data/1/2: has an erased",
        "       checksum, at backup",
    ]
    first, *others = remaining_text("copies that others made of it, and backups of the bucket")

    assert first.startswith("remains: copies")
    assert others
    assert all(line.startswith(" " * 9) and len(line) <= 40 for line in others)


def test_a_column_that_is_too_wide_stands_below_its_row_wrapped_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=30)

    assert list(table(("name", "why", "of"), [("first", "nothing names it any more, so it goes", "ann")])) == [
        "NAME   OF",
        "first  ann",
        "    why: nothing names it any",
        "         more, so it goes",
    ]


def test_sentences_in_the_first_column_are_wrapped_before_others_go_below(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=40)

    assert list(table(("kept by", "size"), [("the rest: history, tags and branches", "12 B"), ("all", "3 B")])) == [
        "KEPT BY                             SIZE",
        "the rest: history, tags and         12 B",
        "  branches",
        "all                                  3 B",
    ]


def test_a_date_and_its_time_stay_together_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=40)

    assert list(hanging("why: ", "lasts until the day 2026-11-21 13:05:09Z", indent=5)) == [
        "why: lasts until the day",
        "     2026-11-21 13:05:09Z",
    ]


def test_a_size_and_its_unit_stay_together_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=20)

    assert list(table(("kind", "state", "size"), [("uncommitted", "on", "132 B")])) == [
        "KIND         STATE",
        "uncommitted  on",
        "    size: 132 B",
    ]
    assert list(hanging("", "that is 1 object, 132 B", indent=0)) == ["that is 1 object,", "132 B"]


def test_a_condition_stays_together_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=40)
    rule = 'logs: logs/** 2w, main 20d when metadata.class == "pii" and size >= 1'

    lines = list(table(("day", "rule"), [("2026-11-21", rule)]))

    assert [line[10:] for line in lines[2:]] == [
        "logs: logs/** 2w, main 20d",
        'when metadata.class == "pii"',
        "and size >= 1",
    ]


def test_ids_are_never_cut_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    run, address = "06h046ar07abcdefghij", "data/1f0279h2rhpv0/00000007"

    open_terminal(monkeypatch, columns=67)
    fits = list(table(("run", "object", "why"), [(run, address, "nothing names it")]))
    monkeypatch.setenv("COLUMNS", "40")
    wide = list(table(("run", "object", "why"), [(run, address, "nothing names it")]))

    assert max(map(len, fits)) <= 67
    assert (run in fits[1], address in fits[1]) == (True, True)
    assert wide == ["RUN                   WHY", f"{run}  nothing names it", f"    object: {address}"]


def test_only_the_longest_columns_of_a_narrow_table_go_below_and_empty_cells_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_terminal(monkeypatch, columns=24)
    rows = [("main", "1.5 KiB", "s3://bucket/lakebed/main"), ("dev", "12 KiB", "-"), ("x" * 30, "0 B", "")]

    assert list(table(("name", "size", "where"), rows[:2])) == [
        "NAME     SIZE",
        "main  1.5 KiB",
        "    where: s3://bucket/lakebed/main",
        "dev    12 KiB",
    ]
    assert list(table(("name", "where"), [*((name, where) for name, _, where in rows[:2]), ("etl", "here")])) == [
        "NAME  WHERE",
        "main",
        "    where: s3://bucket/lakebed/main",
        "dev   -",
        "etl   here",
    ]
    assert list(table(("name", "size"), rows[2:])) == ["NAME", "x" * 30, "    size: 0 B"]


def test_a_field_that_is_too_wide_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch, columns=30)

    assert list(fields([("why", "nothing names it any more, so it goes")])) == [
        "why:  nothing names it any",
        "      more, so it goes",
    ]


def test_fields_are_aligned() -> None:
    assert list(fields([("A", "1"), ("Long", "2")])) == ["A:     1", "Long:  2"]


@pytest.mark.parametrize("records", [[], [{"a": 1}], [{"a": 1}, {"b": 2}, {"c": "ä\n"}]])
def test_a_list_is_one_json_array_with_a_record_on_each_line(records: list[dict[str, object]]) -> None:
    lines = list(json_array(records))

    assert json.loads("\n".join(lines)) == records
    assert len(lines) == (len(records) + 2 if records else 1)


def test_a_list_is_written_as_it_arrives() -> None:
    taken: list[int] = []

    def records() -> Iterator[int]:
        for number in range(3):
            taken.append(number)
            yield number

    lines = json_array(records())

    assert next(lines) == "["
    assert len(taken) < 3


def test_a_record_is_an_indented_object() -> None:
    assert json_record({"a": 1}) == '{\n  "a": 1\n}'


@pytest.mark.parametrize(("text", "shown"), [("a b ä", "a b ä"), ("a\x1b[31mb", "a\\x1b[31mb"), ("a\nb", "a\\nb")])
def test_other_peoples_text_cannot_command_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
