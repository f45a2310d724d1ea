"""`python -m sim exhaustive | swarm --seeds N | mutants | blind | guards`: search, report, fail on any violation.

With `--json` the last line is one JSON object; everything else goes before it. Failing seeds and schedules are printed
in full: the same seed at the same commit gives the same trace.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from explorer.actors import Violation
from explorer.exploring import Explored, TooManyStates, explore
from explorer.scheduling import run_seed
from lakebed.base import ExitCode

from .planted.blind import NothingFits, blind, warm_up
from .planted.exercised import Exercised
from .planted.guards import PAGE, filled_in
from .planted.hunting import MUTANTS, Hunt, hunt, known_killers, write_killers
from .planted.meetings import Meetings
from .planted.trials import Trials
from .scenes.swarms import SWARM_FAULTS, swarm
from .summing import sum_up
from .worlds.small import WHOLE_MAX_S, World, small_worlds, write_costs


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 if nothing was violated and no mutant missed."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["guards"]:
        PAGE.write_text(filled_in(PAGE.read_text(), MUTANTS))
        return 0
    parser = _parser()
    options = parser.parse_args(arguments)
    started_s = sum(os.times()[:4])
    found: dict[str, Any]
    match options.command:
        case "exhaustive" if options.list:
            print("\n".join(_names(options.only)))
            return 0
        case "exhaustive":
            if not any(options.only in name for name in _names()):
                parser.error(f"no world has {options.only!r} in its name: exhaustive --list names them")
            limits = ("states_max", "memory_gib", "seconds_max")
            limited = {name: getattr(options, name) for name in limits}
            found = exhaustive(quick=options.quick, only=options.only, costs=options.costs, **limited)
        case "swarm":
            found = swarms(options.seeds, first=options.first, has_due=options.due, statistics=options.statistics)
        case "blind":
            warm_up()
            try:
                found = blind(options.mutations, seed=options.seed, only=options.only, notes=options.notes)
            except NothingFits as error:
                parser.error(str(error))
        case _:
            found = mutants(seeds_max=options.seeds, only=options.only, anew=options.anew)
    found["cpu_s"] = round(sum(os.times()[:4]) - started_s, 1)
    sum_up(options.command, found, is_json=options.json)
    return 1 if found["violations"] or found.get("caught") != found.get("mutants") else 0


def _names(only: str = "") -> list[str]:
    """Return the names of the small worlds, each once."""
    return list(dict.fromkeys(world.scene.name for world in small_worlds() if only in world.scene.name))


def exhaustive(
    *,
    quick: bool = False,
    only: str = "",
    states_max: int | None = None,
    memory_gib: int = 8,
    seconds_max: int | None = None,
    costs: bool = False,
) -> dict[str, Any]:
    """Walk small worlds, those with `only` in their name, each in a process of its own. Return the peak of its memory.
    Skip a world beyond a limit, and count it as skipped. With `costs` write down the dear ones."""
    counted = ("worlds", "skipped", "schedules", "states", "steps", "faults", "violations", "peak_mib")
    total = dict.fromkeys(counted, 0)
    kinds: Counter[str] = Counter()
    spent: dict[str, float] = {}
    for world in small_worlds():
        if only not in world.scene.name or (quick and not world.is_quick):
            continue
        name = f"{world.scene.name:<55} {world.budget.name:<16}"
        explored, spent_s, peak_mib = _walked_apart(world, states_max, memory_gib, seconds_max)
        if isinstance(explored, str):
            total["skipped"] += 1
            spent[world.name] = max(spent_s, WHOLE_MAX_S + 1)
            print(f"{name} skipped: {explored}", flush=True)
            continue
        spent[world.name] = spent_s
        total["worlds"] += 1
        total["schedules"] += explored.schedules
        total["states"] += explored.states
        total["steps"] += explored.transitions
        total["faults"] += explored.faults
        kinds += explored.kinds
        total["violations"] += explored.violation is not None
        total["peak_mib"] = max(total["peak_mib"], peak_mib)
        figures = f"{explored.states:>11,} states {explored.schedules:>27,} schedules"
        print(f"{name} {figures} {spent_s:>6.1f} s {peak_mib:>5} MiB", flush=True)
        if explored.violation is not None:
            print(explored.violation)
    if costs:
        write_costs(spent)
    return {**total, "kinds_of_faults": dict(kinds)}


def _walked_apart(
    world: World, states_max: int | None, memory_gib: int, seconds_max: int | None
) -> tuple[Explored | str, float, int]:
    """Return what was found, or why nothing was; CPU seconds; the peak of resident memory in MiB."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_walk, args=(world, states_max, memory_gib, seconds_max, sending)
    )
    child.start()
    sending.close()
    try:
        found: tuple[Explored | str, float, int] = receiving.recv()
    except EOFError:
        raise RuntimeError(f"the walk of {world.scene.name!r} died") from None
    finally:
        child.join()
    return found


class _TooLong(BaseException):
    """The walk has had its CPU time. Not an Exception, for actors may catch those."""


def _walk(world: World, states_max: int | None, memory_gib: int, seconds_max: int | None, sending: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_gib << 30, memory_gib << 30))
    if seconds_max is not None:
        signal.signal(signal.SIGVTALRM, _end_walk)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds_max)
    started = time.process_time()
    explored: Explored | str
    try:
        explored = explore(world.scene, world.budget, states_max=states_max)
    except TooManyStates:
        explored = f"more than {states_max:,} states"
    except MemoryError:
        explored = f"more than {memory_gib} GiB"
    except _TooLong:
        explored = f"more than {seconds_max} CPU seconds"
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sending.send((explored, time.process_time() - started, peak_mib))


def _end_walk(*_: object) -> None:
    raise _TooLong


def swarms(seeds: int, *, first: int = 0, has_due: bool = False, statistics: bool = False) -> dict[str, Any]:
    """Run this many seeds of swarms; `has_due`: of those with lifecycle runs and erasures. With statistics it is
    counted how often each guard was reached (exercised.py), and who met whom (meetings.py)."""
    total = {"seeds": seeds, "first": first, "steps": 0, "faults": 0, "violations": 0}
    kinds: Counter[str] = Counter()
    reached, meetings = Exercised(MUTANTS if statistics else ()), Meetings()
    run_one = meetings.run_seed if statistics else run_seed
    for seed in range(first, first + seeds):
        try:
            with reached if statistics else nullcontext():
                run = run_one(swarm(seed, has_due=has_due), seed, faults=SWARM_FAULTS)
        except Violation as violation:
            total["violations"] += 1
            print(violation, flush=True)
            continue
        total["steps"] += run.steps
        total["faults"] += run.faults
        kinds += run.kinds
        if (seed - first) % 1000 == 999:
            print(f"{seed - first + 1:>9,} seeds {total['steps']:>12,} steps {total['faults']:>10,} faults", flush=True)
    found = {**total, "kinds_of_faults": dict(kinds)}
    if not statistics:
        return found
    met = {"met": _sorted(meetings.pairs), "faults_met": _sorted(meetings.faults)}
    return {**found, "guards": dict(reached.guards), "unreached": reached.unreached, **met}


def _sorted(counted: Counter[str]) -> dict[str, int]:
    return dict(sorted(counted.items()))


def mutants(*, seeds_max: int, only: str = "", anew: bool = False) -> dict[str, float]:
    """Plant each bug and look for it where it is known to show. `anew`: search as if nothing had caught it before.
    What catches a bug is written down where nothing is, where that catches it no more, or anew.
    """
    killers = known_killers()
    chosen = [mutant for mutant in MUTANTS if only in mutant.name]
    counted = ("caught", "violations", "seeds", "schedules", "states", "steps", "faults")
    total = {"mutants": len(chosen), **dict.fromkeys(counted, 0)}
    with Trials(chosen, killers) as trials:
        for mutant in chosen:
            known = "" if anew else killers.get(mutant.name, "")
            found = hunt(mutant, trials, seeds_max=seeds_max, killer=known)
            if found.killer and found.killer != known:
                write_killers(killers := killers | {mutant.name: found.killer})
            total["caught"] += found.report is not None
            for figure in ("seeds", "schedules", "states", "steps", "faults"):
                total[figure] += getattr(found, figure)
            print(f"{mutant.name:<23} {mutant.guard:<50} {found.cpu_s:>5.1f} s {_described(found)}", flush=True)
    return dict(total)


def _described(found: Hunt) -> str:
    searched = f"{found.seeds:,} seeds, {found.states:,} states"
    return f"caught in {found.where}: {searched}" if found.report else f"MISSED in {searched}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    every = commands.add_parser("exhaustive", help="walk every schedule of every small world")
    every.add_argument("--quick", action="store_true", help="only the worlds that the tests walk")
    every.add_argument("--only", default="", help="only worlds with this in their name")
    every.add_argument("--seconds-max", type=int, help="skip worlds that take more CPU seconds")
    every.add_argument("--costs", action="store_true", help="write down which worlds are dear (worlds/dear.txt)")
    every.add_argument("--list", action="store_true", help="name the worlds, and walk none")
    every.add_argument("--states-max", type=int, help="skip worlds with more states")
    every.add_argument("--memory-gib", type=int, default=8, help="skip worlds that need more")
    many = commands.add_parser("swarm", help="run seeds of 4 to 8 clients with faults")
    many.add_argument("--seeds", type=int, default=10_000)
    many.add_argument("--first", type=int, default=0, help="the first seed")
    many.add_argument("--due", action="store_true", help="seeds with lifecycle runs and erasures")
    many.add_argument("--statistics", action="store_true", help="count how often each guard is reached (slower)")
    bugs = commands.add_parser("mutants", help="plant bugs, and catch them")
    bugs.add_argument("--seeds", type=int, default=1_000, help="most seeds for one mutant")
    bugs.add_argument("--only", default="", help="only mutants with this in their name")
    bugs.add_argument("--anew", action="store_true", help="search anew, and write down what catches each (killers.txt)")
    random = commands.add_parser("blind", help="mutate the source at random, and list what nothing notices")
    random.add_argument("--mutations", type=int, default=20)
    random.add_argument("--seed", type=int, default=0, help="which mutations are drawn")
    random.add_argument("--only", default="", help="only files with this in their path")
    random.add_argument("--notes", type=Path, help="file that notes each; those in it are not looked at again")
    commands.add_parser("guards", help="write where each bug is caught into docs/design/guards.md")
    for command in (every, many, bugs, random):
        command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has enough. What is still buffered would raise again when Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.PIPE_CLOSED
    sys.exit(code)
