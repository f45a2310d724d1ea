"""Checks of the ledger, where each of its files is a step of its own."""

from __future__ import annotations

from collections import Counter
from typing import cast

from explorer.actors import Check, Ending, Violation
from explorer.disk import Disk
from lakebed.base import RunState
from lakebed.gc.messages import (
    GC_PREFIX,
    LEDGER_PREFIX,
    LedgerState,
    decode_record,
    decode_report,
    ledger_records,
    run_of_record,
)
from sim.checkers.views import View


def recorded(disk: Disk) -> list[tuple[str, str]]:
    """Return address and state of each row of the ledger, as its readers see it."""
    return [row for _, rows in _records(disk) for row in rows]


def _records(disk: Disk) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return address and state of the rows of each record, with its run."""
    found = []
    for names in ledger_records(_ledger(disk)):
        rows = decode_record(names, [cast("bytes", disk.objectstore[name][0]) for name in names])
        pairs = zip(rows["address"].to_pylist(), rows["state"].to_pylist(), strict=True)
        found.append((run_of_record(names), [*pairs]))
    return found


def _ledger(disk: Disk) -> list[str]:
    return [key for key in disk.objectstore if key.startswith(LEDGER_PREFIX)]


def parts_recorded(ending: Ending) -> int:
    """Return how many parts are recorded as done."""
    return len(ledger_records(_ledger(ending.disk)))


def what_is_recorded_is_gone(ending: Ending) -> None:
    """Check that no object is there of which a ledger says that it was deleted. Its address was given once."""
    for key, state in recorded(ending.disk):
        if state == LedgerState.DELETED and key in ending.disk.objectstore:
            raise Violation(f"recorded as deleted, and still there: {key}")


def deletions_count_once(ending: Ending) -> None:
    """Check that the ledger counts a deletion once. A row that leaves it to another row is not alone."""
    rows = recorded(ending.disk)
    times = Counter(key for key, state in rows if state == LedgerState.DELETED)
    if double := sorted(key for key, count in times.items() if count > 1):
        raise Violation(f"recorded as deleted more than once: {double}")
    if lost := sorted(key for key, state in rows if state == LedgerState.GONE and key not in times):
        raise Violation(f"recorded as deleted by something else, and by nothing: {lost}")


def totals_are_those_of_the_ledger(ending: Ending) -> None:
    """Check that the report of a run that ended counts the deletions that the ledger has of it."""
    counts = Counter(run for run, rows in _records(ending.disk) for _, state in rows if state == LedgerState.DELETED)
    runs = View(ending.disk).runs()
    for key, (content, _, _) in ending.disk.objectstore.items():
        if key.startswith(GC_PREFIX) and key.endswith("/report.json"):
            report = decode_report(cast("bytes", content), name=key)
            run, said = report.run_id, report.objects_deleted
            if run in runs and runs[run].state is RunState.ENDED and said != counts[run]:
                raise Violation(f"run {run} counts {said} deletions, and the ledger {counts[run]}")


def unless_one_died(check: Check) -> Check:
    """Return the check for endings in which no process died: who died before its last look left it to its next one."""

    def checked(ending: Ending) -> None:
        if not ending.crashed:
            check(ending)

    return checked
