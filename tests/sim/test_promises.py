"""The promises of docs/design/protocols.md hold in every schedule of small worlds, and in swarms."""

from __future__ import annotations

import json
import os
import re
import zlib

import pytest

from checks import commit
from explorer.exploring import sample
from sim import Fate, explore, run_seed
from sim.__main__ import main
from sim.planted.hunting import MUTANTS
from sim.planted.meetings import BETWEEN, Meetings, pair_of
from sim.scenes.swarms import SWARM_FAULTS, swarm
from sim.worlds.small import DEAR_S, WHOLE_MAX_S, World, known_costs, small_worlds
from tests.tiers import has_turn

QUICK = [world for world in small_worlds() if world.is_quick]
WHOLE_ONE_IN = 12
"""The tests walk a dear world whole at one commit in twelve."""
CHEAP_WHOLE_ONE_IN = 3
WIDTHS = (16,)
TURN = commit()
TURN_NUMBER = zlib.crc32(TURN.encode())
SWARM_SEEDS = 40
SWARM_TURNS = 70
"""Commits draw one of seventy ranges of seeds: 2,800 in all."""


def _is_whole(world: World) -> bool:
    if world.cost_s:
        return world.cost_s <= WHOLE_MAX_S and has_turn(world.name, TURN, WHOLE_ONE_IN)
    return has_turn(world.name, TURN, CHEAP_WHOLE_ONE_IN)


@pytest.mark.parametrize("world", QUICK, ids=lambda world: world.name)
def test_no_schedule_of_a_small_world_breaks_a_promise(world: World) -> None:
    """Some commits walk a world whole, the others some states of each level. Of the drawn seeds, a third is this
    commit's: one without faults, one with. `python -m sim exhaustive --quick` walks and draws all.
    """
    if seeds := world.budget.seeds:
        for seed in range(TURN_NUMBER % 3, seeds, 3):
            sample(world.scene, seed)
        return
    is_whole = _is_whole(world)
    explored = explore(world.scene, world.budget, widths=() if is_whole else WIDTHS, is_whole=is_whole)

    assert explored.violation is None, explored.violation
    assert explored.endings > 0 or not is_whole


def test_each_dear_world_is_a_quick_one_and_most_have_their_turn() -> None:
    costs = known_costs()
    names = {world.name for world in QUICK}
    turns = [sum(has_turn(name, f"{turn:08x}", WHOLE_ONE_IN) for name in costs) for turn in range(50)]

    assert costs.keys() <= names
    assert all(cost >= DEAR_S for cost in costs.values())
    assert len(costs) / WHOLE_ONE_IN / 2 < sum(turns) / 50 < len(costs) / WHOLE_ONE_IN * 2


@pytest.mark.parametrize("first", range(4))
def test_no_seed_of_a_swarm_breaks_a_promise(first: int) -> None:
    """LAKEBED_SIM_SEEDS says how many; a night's run is `python -m sim swarm --seeds N`."""
    begin = TURN_NUMBER % SWARM_TURNS * SWARM_SEEDS
    for seed in range(begin + first, begin + int(os.environ.get("LAKEBED_SIM_SEEDS", SWARM_SEEDS)), 4):
        run_seed(swarm(seed), seed, faults=SWARM_FAULTS)


_BESIDE = ("copy", "merge", "revert", "hard_reset", "delete_branch", "committed run", "uncommitted run")
_FAULTS = (Fate.CRASHED, Fate.LOST, Fate.VAIN, Fate.LATE_WRITE, Fate.ECHO)
_MEETING = {
    *(pair_of(run, other) for run in ("lifecycle run", "erasure") for other in _BESIDE),
    *(pair_of("lifecycle run", other) for other in ("erasure", "policy", "tag")),
    *(pair_of("restore of what was due", other) for other in ("erasure", "committed run", "lifecycle run deferring")),
}


SEEDS_THAT_MEET = (28, 125, 18, 71, 1, 5, 8, 12, 21, 22, 62, 154)
"""In these, all of `_MEETING` met and all faults struck when we last looked. If not any more, others are tried."""
DUE_SEEDS = 20
DUE_TURNS = 15


def test_no_seed_of_a_swarm_with_lifecycle_runs_and_erasures_breaks_a_promise() -> None:
    """A night's run is `python -m sim swarm --due --seeds N`. A pair that never meets, and a fault that strikes no such
    run, would prove nothing.
    """
    meetings = Meetings()
    struck = {f"{run}{BETWEEN}{fault.value}" for run in ("lifecycle run", "erasure") for fault in _FAULTS}
    begin = TURN_NUMBER % DUE_TURNS * DUE_SEEDS
    asked = [*range(begin, begin + DUE_SEEDS), *SEEDS_THAT_MEET]
    for number, seed in enumerate(dict.fromkeys([*asked, *range(600)])):
        if number >= len(asked) and meetings.pairs.keys() >= _MEETING and meetings.faults.keys() >= struck:
            break
        meetings.run_seed(swarm(seed, has_due=True), seed, faults=SWARM_FAULTS)

    assert _MEETING - meetings.pairs.keys() == set()
    assert struck - meetings.faults.keys() == set()


def test_the_command_says_who_met_whom(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swarm", "--due", "--statistics", "--seeds", "6", "--json"]) == 0

    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["met"]["lifecycle run × upload"] > 0
    # Which one strikes in six seeds changes with every step of a run: another test asks for each.
    assert any(times for name, times in report["faults_met"].items() if name.startswith("lifecycle run × "))


def test_the_command_reports_in_json_on_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swarm", "--seeds", "5", "--json"]) == 0

    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["seeds"] == 5
    assert report["violations"] == 0
    assert report["steps"] > 100


def test_the_command_walks_worlds_and_says_which_it_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exhaustive", "--quick", "--only", "uploader, committer", "--states-max", "1500", "--json"]) == 0

    *lines, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    quick = [world for world in QUICK if "uploader, committer" in world.scene.name]
    assert report["violations"] == 0
    assert report["worlds"] + report["skipped"] == len(lines) == len(quick)
    assert report["skipped"] == sum("skipped" in line for line in lines)
    assert 0 < report["skipped"] < len(lines)


def test_the_command_shows_a_violation_with_its_schedule_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    blind = next(mutant for mutant in MUTANTS if mutant.name == "reset-blind")
    with blind.planted():
        code = main(["exhaustive", "--quick", "--only", "committer, resetter", "--json"])

    *lines, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert code == 1
    assert report["violations"] == report["worlds"] > 0
    assert any(re.match(r" +1  [cs] +\w+", line) for line in lines)


def test_a_world_that_there_is_not_is_an_error_and_the_names_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["exhaustive", "--only", "nosuch"])
    hint = capsys.readouterr().err
    listed = main(["exhaustive", "--list", "--only", "writer, comm"])

    assert (ended.value.code, listed) == (2, 0)
    assert "no world has 'nosuch' in its name: exhaustive --list" in hint
    assert "writer, committer" in capsys.readouterr().out.splitlines()


def test_a_walk_ends_with_its_sums(capsys: pytest.CaptureFixture[str]) -> None:
    main(["swarm", "--seeds", "2"])

    assert capsys.readouterr().out.splitlines()[-1].startswith("in all: 2 seeds, 0 first, ")
