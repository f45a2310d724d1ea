"""Random mutations of the shipped source are drawn by a seed, planted, and noticed or listed."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sim.__main__ import main
from sim.planted.apart import ROOT
from sim.planted.blind import FILES, blind, draw, fitting, look_at, mutated, mutated_files, mutations_of
from sim.planted.planting import SOURCE

FILE = "versions/context.py"
MATTERS = "raise BranchNotFound(f'branch {branch} not found'"
"""The mutation that leaves this out is noticed."""


def test_equal_seeds_draw_equal_mutations() -> None:
    one, again, other = (draw(5, seed=seed, files=[FILE]) for seed in (1, 1, 2))

    assert one == again != other
    assert len(draw(10_000, seed=1, files=[FILE])) == len(list(mutations_of(FILE)))


def test_each_mutation_changes_the_source_in_its_own_way() -> None:
    source = (SOURCE / FILE).read_text()
    changed = [ast.unparse(mutated(source, mutation.index)) for mutation in mutations_of(FILE)]

    assert len({ast.unparse(ast.parse(source)), *changed}) == len(changed) + 1
    assert {mutation.kind for mutation in mutations_of(FILE)} >= {"drop", "negate", "empty handler"}


def test_every_test_that_fits_a_file_exists() -> None:
    for file in mutated_files():
        tests, _ = fitting(file)
        assert tests
        assert all((ROOT / test).exists() for test in tests)


def test_all_that_is_mutated_exists() -> None:
    assert [files for files in FILES if not [*SOURCE.glob(files)]] == []


def test_a_mutation_that_matters_is_noticed() -> None:
    [mutation] = [one for one in mutations_of(FILE) if one.before.startswith(MATTERS)]

    assert look_at(mutation).caught


def test_a_run_with_notes_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    drawn = draw(10_000, seed=3, files=[FILE])
    [left] = [one for one in drawn if one.before.startswith(MATTERS)]
    lines = [{"mutation": asdict(one), "caught": "by a test of before", "cpu_s": 1.5} for one in drawn if one != left]
    notes.write_text("".join([json.dumps(line) + "\n" for line in lines]) + '{"mutation": {"file": "cut o\n')

    found = blind(10_000, seed=3, only=FILE, notes=notes)

    assert [json.loads(line)["mutation"] for line in notes.read_text().splitlines()[len(drawn) :]] == [asdict(left)]
    assert found["mutations"] == found["noticed"] == len(drawn)


def test_the_command_lists_what_survives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blind", "--mutations", "1", "--seed", "3", "--only", FILE, "--json"]) == 0

    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["mutations"] == 1 == report["noticed"] + len(report["survivors"])


def test_notes_of_another_draw_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "notes.jsonl"
    one = draw(2, seed=3, files=[FILE])[0]
    noted = json.dumps({"mutation": asdict(replace(one, before="before an edit")), "caught": "", "cpu_s": 1.5}) + "\n"
    notes.write_text(noted)

    with pytest.raises(SystemExit) as ended:
        main(["blind", "--mutations", "2", "--seed", "3", "--only", FILE, "--notes", str(notes)])

    assert ended.value.code == 2
    assert f"none of the 1 notes in {notes} is of this draw" in capsys.readouterr().err
    assert notes.read_text() == noted


def test_files_that_are_not_mutated_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["blind", "--only", "no such file"])

    assert ended.value.code == 2
    assert "no file that is mutated has 'no such file' in its path" in capsys.readouterr().err
