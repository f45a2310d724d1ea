"""How history is drawn."""

from __future__ import annotations

import click
import pytest

from lakebed.cli.kit.graph import graph_lines
from lakebed.cli.nouns.history import paragraphs
from lakebed.wire import Commit


def commit(name: str, *parents: str, message: str = "") -> Commit:
    return Commit(
        id=name.ljust(64, "0"),
        parents=[parent.ljust(64, "0") for parent in parents],
        committer="ann",
        creation_date=0,
        generation=1,
        message=message or name,
        meta_range_id="",
        metadata={},
    )


def marks(*commits: Commit) -> list[str]:
    return [line.partition("  ")[0] for line in graph_lines(commits)]


def test_a_chain_is_one_lane() -> None:
    assert marks(commit("c", "b"), commit("b", "a"), commit("a")) == ["*", "*", "*"]


def test_a_merge_opens_a_lane_that_ends_where_the_branch_began() -> None:
    history = [commit("m", "b", "f"), commit("f", "a"), commit("b", "a"), commit("a")]

    assert marks(*history) == ["*", "|\\", "| *", "* |", "|/", "*"]


def test_lanes_that_wait_for_one_commit_are_one() -> None:
    history = [commit("m", "b", "f"), commit("b", "a"), commit("f", "a"), commit("a")]

    assert marks(*history) == ["*", "|\\", "* |", "| *", "|/", "*"]


def test_lanes_at_the_right_make_room_for_a_merge_and_close_up_behind_it() -> None:
    history = [commit("m", "n", "f"), commit("n", "b", "g"), commit("g", "a"), commit("b", "a"), commit("f", "a")]

    assert marks(*history, commit("a")) == ["*", "|\\", "* |", "|\\ \\", "| * |", "* | |", "|/ /", "| *", "|/", "*"]


def test_a_lane_crosses_those_between_it_and_the_one_that_it_joins() -> None:
    history = [commit("x", "b"), commit("y", "c"), commit("z", "b"), commit("c", "a"), commit("b", "a"), commit("a")]

    assert marks(*history) == ["*", "| *", "| | *", "|_|/", "| *", "* |", "|/", "*"]


def test_a_merge_of_what_another_lane_waits_for_opens_no_lane() -> None:
    history = [commit("x", "a"), commit("m", "c", "a"), commit("c", "a"), commit("a")]
    other = [commit("x", "a"), commit("m", "c", "a"), commit("y", "m"), commit("c", "a"), commit("a")]

    assert marks(*history) == ["*", "| *", "|/|", "| *", "|/", "*"]
    assert marks(*other)[:3] == ["*", "| *", "|/|"]


def test_a_root_beside_other_lanes_ends_its_own() -> None:
    history = [commit("m", "b", "f"), commit("b"), commit("f")]

    assert marks(*history) == ["*", "|\\", "* |", " /", "*"]


def test_a_history_with_gaps_has_one_lane() -> None:
    history = [commit("c", "x"), commit("b", "y"), commit("a", "z")]

    assert [line.partition("  ")[0] for line in graph_lines(history, is_whole=False)] == ["*", "*", "*"]


def test_a_history_cut_short_is_drawn_as_far_as_it_goes() -> None:
    assert marks(commit("m", "b", "f")) == ["*"]


def test_a_line_shows_only_the_first_line_of_a_message() -> None:
    (line,) = graph_lines([commit("a", message="first\nsecond")])

    assert line.endswith("first")


def test_a_paragraph_names_author_date_and_all_lines_of_the_message() -> None:
    lines = list(paragraphs([commit("b", "a", message="first\nsecond")]))

    assert "Author:  ann" in lines
    assert "Date:    1970-01-01 00:00:00Z" in lines
    assert lines[-2:] == ["    first", "    second"]


def test_a_long_message_is_wrapped_between_words_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    lines = [click.unstyle(line) for line in paragraphs([commit("a", message="a word " * 20)])]

    assert max(map(len, lines)) <= 80
    assert " ".join(lines[-2:]).split() == ["a", "word"] * 20


def test_a_paragraph_of_a_merge_names_its_parents() -> None:
    lines = list(paragraphs([commit("m", "b", "f")]))

    assert "Merge:   b00000000000 f00000000000" in lines


def test_refs_stand_beside_the_commit_and_below_it_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    head = commit("a")
    names = {head.id: ["main", "tag v1"]}
    piped = [*paragraphs([head], names)]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = [*paragraphs([head], names)]

    assert click.unstyle(piped[0]) == f"commit {head.id}  (main, tag v1)"
    assert [click.unstyle(line) for line in narrow[:2]] == [f"commit {head.id}", "Refs:    main, tag v1"]


def test_a_long_message_goes_on_below_itself_beside_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    history = [commit("m", "b", "f", message="a word " * 12), commit("f", "a"), commit("b", "a")]

    lines = [click.unstyle(line) for line in graph_lines(history)]

    assert max(map(len, lines)) <= 80
    more = lines[1 : lines.index("|\\")]
    assert more
    assert [line[:38].split() for line in more] == [["|"]] * len(more)
    assert " ".join(line[38:] for line in [lines[0], *more]).split() == ["a", "word"] * 12


def test_refs_of_a_line_stay_together_where_they_fit_and_stand_below_it_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    history = [commit("m", "b", message="Merge 'dev' into 'main'"), commit("b")]
    names = {history[0].id: ["tag v1"]}

    monkeypatch.setenv("COLUMNS", "72")
    beside = next(iter(graph_lines(history, names)))
    monkeypatch.setenv("COLUMNS", "71")
    above, below = [*graph_lines(history, names)][:2]

    assert click.unstyle(beside).endswith("Merge 'dev' into 'main'  (tag v1)")
    assert click.unstyle(above).endswith("Merge 'dev' into 'main'")
    assert click.unstyle(below).split() == ["|", "(tag", "v1)"]
