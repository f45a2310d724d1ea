"""Delete every object that a deleted repository has by record, once it cannot be restored any more.

1. plan: List the slices and the special folders. Leave out objects that other repositories name.
2. clear: The service makes the repository `collecting`, so that nothing restores it. It reads the other repositories
   again, and objects that they name stay.
3. sweep: As for other kinds. When every object is deleted, the service removes the repository's records.

The marker, ledger, certificates, legal holds, marks of installations, and folders of runs of this kind stay.
`judge_deleted` of `gc/rules/committed.py` is the specification.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain
from typing import ClassVar, Final

import pyarrow as pa

from lakebed.base import count_of, parse_address
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import CANDIDATES, PARTS, decode, parts_of, read_part, rows_by_key
from lakebed.gc.kinds import Limits, Look, SweepRule
from lakebed.gc.mark.inputs.listing import (
    SPECIAL_PREFIX,
    Special,
    find_unknown_files_around,
    is_metadata,
    list_slices,
    list_special,
    read_tree_files,
    unknown_files_of,
)
from lakebed.gc.mark.inputs.named import deal_tables
from lakebed.gc.mark.mark import mark_again, mark_expired
from lakebed.gc.mark.sets.bucketed import Bucketed, Dealer, dealt, files_of
from lakebed.gc.mark.sets.packing import Cause, pack_foreign
from lakebed.gc.mark.sets.places import may_be_swept
from lakebed.gc.messages import Cleared, CommitCounts, Expire, Part, Pieces, Plan, RangeCounts, RunKind, StartedRun
from lakebed.gc.runs.context import RunContext, folder_in, plan_frame, slice_numbers, whole, write_input

CAUSE: Final = Cause(reason="deleted-repository", rule="deleted")


def is_own(key: str) -> bool:
    """Return whether a plan of this kind may delete the key: an address of a slice, or a file of trees or runs."""
    # Imported and linked objects outside of slices, unknown files, and keys of a namespace inside this one stay.
    return (parse_address(key) is not None and may_be_swept(key)) or is_metadata(key)


class Deleted:
    name: ClassVar = RunKind.DELETED
    rule: ClassVar = SweepRule(may_delete=is_own, look=Look.NONE)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        context.progress(f"listing {count_of(len(run.closed_slices), 'slice')}")
        slices = slice_numbers(run.closed_slices)
        listed, found = await list_slices(context.engine, slices, folder=folder_in(run, "listed"), cause=CAUSE)
        special = await list_special(context.engine, context.store, folder=folder_in(run, "special"))
        # Read names after the listing, so that a name which appears meanwhile is found.
        context.progress("looking for names of its objects in other repositories")
        named = await context.service.uncommitted(run.run_id)
        prepared = await context.service.commits(run.run_id)
        garbage, totals = await mark_expired(
            context.engine,
            await _candidates(context, run, listed, special),
            [await deal_tables(context, run, [named], messages.UNCOMMITTED, "uncommitted")],
            into=folder_in(run, messages.GARBAGE.name),
            now_ms=run.now_ms,
        )
        around = (await find_unknown_files_around(context.store)).plus(special.unknown_files)
        return Plan(
            **plan_frame(context, run, prepared),
            uncommitted=named,
            listing=found,
            commit_counts=CommitCounts(all=0, kept=0, expired=0, swept=0),
            range_counts=RangeCounts(live=0, expired=special.files_count),
            garbage=garbage,
            totals=totals,
            delete_from_ms=run.delete_from_ms,
            **around.plus(unknown_files_of(found)).facts(),
        )

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        nothing = messages.arrow_schema(messages.EXPIRED).empty_table()
        commits = await write_input(context.store, folder_in(plan, messages.EXPIRED.name), messages.EXPIRED, nothing)
        request = Expire(
            kind=RunKind.DELETED, commits=commits, rules_version=rules_version, planned_ms=plan.now_ms, uid=plan.uid
        )
        answer = await context.service.expire(plan.run_id, request)
        commits, names = whole(answer)
        name, closed = commits.digest()[:16], slice_numbers(answer.closed_slices)
        named = await deal_tables(context, plan, [names], messages.UNCOMMITTED, f"uncommitted.{name}")
        garbage, totals = await mark_again(
            context, plan, plan.garbage, [named], name=name, closed=closed, all_names=False
        )
        return Cleared(garbage=garbage, commits=commits, size_bytes=totals.all.size_bytes)


def make(limits: Limits) -> Deleted:  # noqa: ARG001 - such a run has no limits
    return Deleted()


async def _candidates(context: RunContext, run: StartedRun, listed: Pieces, special: Special) -> Bucketed:
    """Return CANDIDATES: the objects listed in slices, and Lakebed's own files."""
    folder, of_trees = folder_in(run, "again.tasks"), special.file_parts

    def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        return dealt(CANDIDATES, _each_candidates(task, parts_of(share), of_trees.folder), task.store, folder)

    rows = rows_by_key([listed, of_trees])
    effort = Effort(size_bytes=listed.size_bytes + of_trees.size_bytes)
    again = files_of(folder, await context.engine.run(work, rows, PARTS, effort=effort))
    dealer = Dealer(CANDIDATES)
    for packed in _own_files(special):
        dealer.add(packed)
    if not dealer.has_rows:
        return again
    more = files_of(folder, await dealer.write(context.store, folder))
    return Bucketed(folder=folder, files=(*again.files, *more.files))


async def _each_candidates(task: Task, parts: Sequence[Part], of_trees: str) -> AsyncIterator[pa.Table]:
    """Yield CANDIDATES of these parts, whose names are whole keys. Parts in the folder `of_trees` have TREE_FILES."""
    for part in parts:
        if part.name.startswith(of_trees):
            async for files in read_tree_files(task.store, Pieces(folder="", parts=(part,))):
                for packed in _pack_files(_facts_of_files(files)):
                    yield packed
        else:
            yield decode(CANDIDATES, await read_part(task.store, "", part), part)


def _own_files(special: Special) -> Iterator[pa.Table]:
    """Yield CANDIDATES: Lakebed's own files to delete, except those in parts."""
    facts = [_facts_of_files(special.files)]
    for (kind, _), stats in special.runs.items():
        # The folders of runs of this kind stay: one of them is this run's own.
        if kind != RunKind.DELETED:
            facts.append((stat.key, stat.size_bytes, stat.modified_ms) for stat in stats)
    facts += [((stat.key, stat.size_bytes, stat.modified_ms) for stat in stats) for stats in special.written.values()]
    return _pack_files(chain.from_iterable(facts))


def _facts_of_files(files: pa.Table) -> Iterable[tuple[str, int, int]]:
    return zip(*(files[name].to_pylist() for name in ("key", "size_bytes", "modified_ms")), strict=True)


def _pack_files(facts: Iterable[tuple[str, int, int]]) -> Iterator[pa.Table]:
    """Yield CANDIDATES of keys with sizes and dates, by the folder that totals show."""
    found: dict[str, tuple[list[str], list[int], list[int]]] = {}
    for key, size_bytes, modified_ms in facts:
        keys, sizes, seen_ms = found.setdefault(key[: key.index("/", len(SPECIAL_PREFIX)) + 1], ([], [], []))
        keys.append(key)
        sizes.append(size_bytes)
        seen_ms.append(modified_ms)
    for prefix, columns in found.items():
        yield pack_foreign(*columns, CAUSE, prefix)
