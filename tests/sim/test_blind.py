"""Random mutations of the shipped source are drawn by a seed, planted, and noticed or listed."""

from __future__ import annotations

import ast
import json

import pytest

from sim.__main__ import main
from sim.apart import ROOT
from sim.blind import draw, fitting_tests, look_at, mutated, mutations_of
from sim.planting import SOURCE

FILE = "versions/amortized.py"


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
    for file in (FILE, "gc/service/runs.py", "gc/rules/committed.py", "gc/sweep.py"):
        tests = fitting_tests(file)
        assert tests
        assert all((ROOT / test).exists() for test in tests)


def test_a_mutation_that_matters_is_noticed() -> None:
    [mutation] = [one for one in mutations_of(FILE) if one.before.startswith("read.end()")]

    assert look_at(mutation).caught


def test_the_command_lists_what_survives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blind", "--mutations", "1", "--seed", "3", "--only", FILE, "--json"]) == 0

    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["mutations"] == 1 == report["noticed"] + len(report["survivors"])
