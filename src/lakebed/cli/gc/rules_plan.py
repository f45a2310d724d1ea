"""What a change of the rules would take, before it is saved: two plans of committed data by supposed rules, compared.

No rules are the same as rules by which everything stays. Both plans stay where all plans lie, marked as supposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lakebed.cli.session import Session

from .diff import diff_text
from .rules_text import changes_text
from .session import check, checked_collector, with_spark

if TYPE_CHECKING:
    from lakebed.gc.protocol import PlanDiff
    from lakebed.gc.rules import RuleChange, Rules


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two sets of rules, and between what they take: `plan.a` is by those of before."""

    changes: Sequence[RuleChange]
    plan: PlanDiff


def planned_change(
    session: Session, uri: str, pair: tuple[Rules | None, Rules | None], local_root: Path | None, *, limit: int = 20
) -> PlannedChange:
    """Plan by both, on a Spark of this machine. Deletes nothing and saves no rules."""
    from lakebed.gc.protocol import PlanRequest, RunKind
    from lakebed.gc.rules import FOREVER, Rules, diff_rules

    collector = checked_collector(session, uri, local_root)
    supposed = [rules or Rules(default=FOREVER) for rules in pair]
    requests = [PlanRequest(kinds=(RunKind.COMMITTED,), rules=rules) for rules in supposed]
    for request in requests:
        check(session, collector, request)
    with with_spark(session, collector) as collector:
        before, after = (plan for request in requests for plan in collector.plan(request))
    diff = collector.diff(before.run_id, after.run_id, limit=limit)
    return PlannedChange(changes=diff_rules(*pair), plan=diff)


def planned_text(found: PlannedChange) -> Iterator[str]:
    yield from changes_text(found.changes)
    yield ""
    yield f"{found.plan.a} is by the rules before, {found.plan.b} by those after:"
    yield from diff_text(found.plan)
