"""Read plans, runs and the ledger through the server, for a process that cannot reach the storage namespace.

The server reads the same files. Only what no operation answers is left out: the list of commits that a plan expires,
the report of an apply, and how many objects it has done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from lakebed.base import NotFound
from lakebed.gc import messages
from lakebed.gc.runs.resume import UnfinishedRun
from lakebed.gc.runs.status import ListedRun, RunStatus, listed_run, run_status_by_record, status_by_plan
from lakebed.operations.gc import collectors

from .collector import ROWS_SHOWN, Collector
from .http_requests import HttpRequests

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCollector(Collector):
    """Answer what can be read by requests alone. Everything else still needs the namespace."""

    @property
    def _requests(self) -> HttpRequests:
        return HttpRequests(self.client, self.repository, deleted=self.deleted)

    def listed(self, *, limit: int = 100) -> list[ListedRun]:
        answer = self.run_list()
        views = {view.run_id: view for view in answer.runs}
        makers = {planned.run_id: planned for planned in answer.planned}
        plans = {plan.run_id: plan for plan in self._summaries(limit)}
        listed = []
        for run_id in sorted({*views, *plans}, reverse=True)[:limit]:
            run, maker = listed_run(run_id, views.get(run_id), plans.get(run_id)), makers.get(run_id)
            begun = run_id in views and run_status_by_record(views[run_id]).is_unfinished
            by, is_own = (maker.by, maker.is_own) if maker else ("", False)
            listed.append(msgspec.structs.replace(run, has_begun=begun, planned_by=by, is_own=is_own))
        return listed

    def _summaries(self, limit: int) -> Iterator[messages.PlanSummary]:
        after, left, has_more = "", limit, True
        while has_more and left > 0:
            amount = str(min(left, _PAGE))
            page: messages.PlanList = self._requests.call(collectors.LIST_GC_PLANS, after=after, amount=amount)
            yield from page.plans
            left, has_more = left - len(page.plans), page.has_more and bool(page.plans)
            after = page.plans[-1].run_id if page.plans else ""

    def show(self, run_id: str) -> messages.Plan:
        messages.check_run_id(run_id)
        try:
            return self._requests.call(collectors.GET_GC_PLAN, run_id)
        except NotFound as error:
            raise messages.PlanMissing(str(error), run_id=run_id) from error

    def objects(self, run_id: str, *, prefix: str = "") -> Iterator[messages.GarbageObject]:
        after: str | None = ""
        while after is not None:
            page: messages.GarbagePage = self._requests.call(
                collectors.LIST_GC_PLAN_OBJECTS, run_id, prefix=prefix, after=after, amount=str(_PAGE)
            )
            yield from page.objects
            after = page.continuation_token

    def diff(self, first: str, second: str, *, limit: int = ROWS_SHOWN) -> messages.PlanDiff:
        amount = str(max(1, min(limit, _PAGE)))
        return self._requests.call(collectors.DIFF_GC_PLANS, first, second, amount=amount)

    def ledger_rows(
        self, query: messages.LedgerQuery = messages.LedgerQuery(), *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        after: str | None = ""
        while after is not None:
            page: messages.LedgerPage = self._requests.call(
                collectors.LIST_GC_LEDGER,
                run_id=query.run_id,
                path=query.path,
                address=query.address,
                state=query.state.value if query.state else "",
                since_ms=None if query.since_ms is None else str(query.since_ms),
                newest_first="true" if newest_first else "",
                amount=str(_PAGE),
                after=after,
            )
            yield from map(_as_in_files, page.rows)
            after = page.continuation_token

    def report(self, run_id: str) -> messages.RunReport | None:  # noqa: ARG002  # the signature of the files
        """Return None: the report of an apply is a file."""
        return None

    def run_status(self, run_id: str) -> RunStatus:
        view = self.status(run_id)
        try:
            return status_by_plan(self.show(run_id), view)
        except messages.PlanMissing:
            if view is None:
                raise
            return run_status_by_record(view)

    def expiring(self, run_id: str, *, limit: int = ROWS_SHOWN) -> list[messages.ExpiringCommit]:  # noqa: ARG002  # as above
        """Return no commit: their table is a file."""
        return []

    def unfinished(self) -> list[UnfinishedRun]:
        """Return the runs that are sweeping by the server's records. Their windows and beginnings are in files."""
        return [
            UnfinishedRun(
                run_id=view.run_id,
                kind=view.kind,
                state=view.state,
                began_ms=view.started_ms,
                window="",
                is_purging=view.is_purging,
                is_by_record=True,
            )
            for view in self.runs()
            if run_status_by_record(view).is_unfinished
        ]

    def unread(self) -> list[str]:
        """Return the marked runs of which only their files tell whether they have begun to delete."""
        by_record = map(run_status_by_record, self.runs())
        return [one.run_id for one in by_record if one.state == messages.RunState.MARKED and not one.nothing_deleted]


def _as_in_files(row: messages.LedgerRow) -> dict[str, Any]:
    """Return a row as the table `ledger` has it."""
    plain: dict[str, Any] = msgspec.to_builtins(row)
    deleted_at = datetime.fromtimestamp(plain.pop("deleted_ms") / 1000, UTC)
    return {**plain, "deleted_at": deleted_at}
