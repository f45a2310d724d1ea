"""What a plan holds in single: its objects, a part at a time, and the commits whose data it gives up. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.gc import protocol
from lakebed.gc.protocol import BadInput, DoomedObject, ExpiringCommit, Plan, below, doomed_rows, read_part
from lakebed.gc.rules import check_rules

from .files import Files
from .history import expiring, judge
from .read import check_table
from .workshop import read_input


def objects_of(files: Files, plan: Plan, *, prefix: str = "") -> Iterator[DoomedObject]:
    """The objects whose path or address begins with `prefix`, in the plan's order; one part of it in memory at a time.

    Raises:
        BadInput: a part is missing, short or changed.
    """
    check_table(plan.doomed, protocol.DOOMED)
    for part in plan.doomed.parts:
        data = files.find(plan.doomed.folder + part.name)
        if data is None:
            raise BadInput(f"{plan.doomed.folder}{part.name} is missing", part=part.name)
        yield from doomed_rows(below(read_part(plan.doomed, protocol.DOOMED, part, data), prefix))


def expiring_of(files: Files, plan: Plan, *, limit: int) -> list[ExpiringCommit]:
    """The commits whose data a plan gives up, the newest first, without their messages: those of the verdict that the
    plan was made by, made again from what it rests on. Costs what that did (bench `active`, for a million commits).

    Raises:
        BadInput: something the plan rests on is missing or changed.
    """
    if plan.condemned is None or not plan.condemned.rows or plan.rules is None:
        return []
    commits = read_input(files, plan.commits, protocol.COMMITS)
    refs = read_input(files, plan.refs, protocol.REFS)
    return expiring(judge(commits, refs, check_rules(plan.rules), now_ms=plan.now_ms), limit=limit)
