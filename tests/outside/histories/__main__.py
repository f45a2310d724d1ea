"""`python -m tests.outside.histories`: record and judge, or judge a recording again."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lakebed.base import Conflict, LakebedError
from lakebed.kv import open_store, store_partitions
from sim.summing import sum_up

from .events import Event, calls_of, elle_lines, read_events, write_events
from .judging import Verdict, judge
from .recording import Plan, Recording, record


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if the recording keeps every promise, 1 if not."""
    parser = _parser()
    options = parser.parse_args(arguments)
    kills, errors = 0, 0
    if options.check is not None:
        events = read_events(options.check)
    else:
        if options.kv is not None:
            try:
                asyncio.run(_check_empty(options.kv))
            except LakebedError as error:
                parser.error(f"--kv: {error}")
        recording = _record(options)
        events, kills, errors = recording.events, recording.kills, len(recording.server_errors)
        for text in sorted(set(recording.server_errors))[:5]:
            print(f"a server answered: {text}")
    if options.out is not None:
        _save(options.out, events)
    verdict = judge(calls_of(events))
    _show(verdict)
    found = {"calls": sum(verdict.calls.values()), "kills": kills, "server_errors": errors}
    found |= {"violations": len(verdict.forbidden), "allowed": len(verdict.allowed)}
    sum_up("histories", found, is_json=options.json)
    return 0 if verdict.is_valid else 1


async def _check_empty(uri: str) -> None:
    """Make the store of this URI where it is not there yet.

    Raises:
        Conflict: it holds records, of an installation or an earlier recording. They stay as they are.
        InvalidStoreUri, StoreUnavailable, StoreFormat: as `open_store`.
    """
    store = open_store(uri)
    try:
        if found := store_partitions(uri):
            raise Conflict(f"the store holds {len(found):,} partitions: name a new schema, prefix, table or name")
    finally:
        await store.close()


def _record(options: argparse.Namespace) -> Recording:
    given = {name: getattr(options, name) for name in ("seconds", "seed", "processes", "clients", "kv")}
    plan = Plan(is_killing=options.kill, **given)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(record(plan, Path(folder)))


def _save(folder: Path, events: Sequence[Event]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_events(folder / "history.jsonl", events)
    (folder / "elle.jsonl").write_bytes(elle_lines(events))
    (folder / "elle-alone.jsonl").write_bytes(elle_lines(events, alone=True))


def _show(verdict: Verdict) -> None:
    print(", ".join(f"{count:,} {name}" for name, count in sorted(verdict.calls.items())))
    shown: set[str] = set()
    for anomaly in verdict.allowed:
        if anomaly.name not in shown:  # one example of each is enough
            shown.add(anomaly.name)
            print(f"allowed: {anomaly}")
    for anomaly in verdict.forbidden:
        print(f"FORBIDDEN: {anomaly}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long clients call")
    parser.add_argument("--seed", type=int, default=0, help="what clients choose; the schedule is the machine's")
    parser.add_argument("--processes", type=int, default=3, help="servers over one folder")
    parser.add_argument("--clients", type=int, default=8, help="clients at once, each on all servers")
    parser.add_argument(
        "--kv",
        metavar="URI",
        default=os.environ.get("LAKEBED_STORE_URI") or None,
        help="the servers' database, or LAKEBED_STORE_URI: an empty one. Without both: a file in the folder",
    )
    parser.add_argument("--kill", action="store_true", help="kill -9 servers at random, and start them again")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="keep history.jsonl and, for Elle, elle.jsonl and elle-alone.jsonl there",
    )
    parser.add_argument("--check", type=Path, metavar="FILE", help="judge this history.jsonl, and record nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser
