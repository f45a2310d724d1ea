"""`python -m tests.outside.storms`: storm and judge, or judge a storm again."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sim.summing import sum_up

from .judging import NOTES, judge
from .storm import Plan, Storm, storm


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if nothing was lost and nothing is left over, 1 if not."""
    options = _parser().parse_args(arguments)
    # As by Ctrl-C, so that what it started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.check is not None:
        notes = json.loads((options.check / f"{NOTES}.json").read_text())
        found = Storm(**notes)
        found.wrong = judge(options.check)
        return _show(found, options.check, is_json=options.json)
    folder = options.out or Path(tempfile.mkdtemp(prefix="lakebed-storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, in {folder}", flush=True)
    return _show(asyncio.run(storm(_plan(options), folder)), folder, is_json=options.json)


def _plan(options: argparse.Namespace) -> Plan:
    given = {name: getattr(options, name) for name in ("seed", "kv", "store", "processes", "clients", "every")}
    seconds = options.seconds if options.minutes is None else options.minutes * 60
    kinds = options.only or ()
    return Plan(seconds=seconds, fault_rate=options.faults, kinds=kinds, has_doors=True, has_commands=True, **given)


def _show(found: Storm, folder: Path, *, is_json: bool) -> int:
    for text in found.wrong[:20]:
        print(f"WRONG: {text}")
    figures = {
        "calls": sum(found.calls.values()),
        "faults": sum(found.faults.values()),
        "requests_that_met_a_fault": sum(found.fates.values()),
        "commands": sum(found.commands.values()),
        "erasures": found.erasures_begun,
        "certified": found.erasures_certified,
        "servers_that_ended_by_themselves": found.ended_alone,
        "wrong": len(found.wrong),
    }
    groups = {"answers": found.calls, "faults": found.faults, "fates": found.fates, "commands": found.commands}
    for name, group in groups.items() if not is_json else ():
        print(f"{name}: " + ", ".join(f"{count:,} {each}" for each, count in sorted(group.items())))
    sum_up("storm", figures, is_json=is_json, beside={"folder": str(folder), "of": groups})
    return 1 if found.wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.storms", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long clients call")
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--seed", type=int, default=0, help="what clients choose, and the schedule of faults")
    parser.add_argument("--kv", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--store", choices=["local", "s3"], default="s3")
    parser.add_argument("--processes", type=int, default=2, help="servers over one folder")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--faults", type=float, default=0.01, help="the share of requests that meet a fault")
    parser.add_argument("--every", type=int, default=200, help="operations between two faults; 0: none")
    parser.add_argument("--only", action="append", metavar="FAULT", help="only this kind of fault; repeatable")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder that keeps it all. Default: a new one")
    parser.add_argument("--check", type=Path, metavar="DIR", help="judge this storm again, and make none")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser
