"""A lifecycle run deletes objects whose every occurrence is due by the policy, although commits name them.

A plan publishes nothing, so it may be stale when it is applied (docs/design/protocols.md, "A lifecycle run"):

1. The service publishes the run, records staged, uploaded and copied objects, and reads refs, commits and the policy.
   A new version of the policy ends the run.
2. Keep the plan's objects that a staged, uploaded or copied entry names, or that are not due everywhere by the commits
   and refs as they are now. Write the rest as a second table, `garbage.<recheck>`.

A run reads only the changes since the last run that saved hours (learning.py). With `active_only`, commits that the
retention rules expire have no occurrences.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from lakebed.base import Conflict, Invalid, RangeId, count_of, human_size, slice_name
from lakebed.gc import messages
from lakebed.gc.engines import Engine, Task
from lakebed.gc.engines.engine import PARTS, Table, required
from lakebed.gc.kinds import Limits, Look, SweepRule
from lakebed.gc.kinds.saved import read_saved_dues
from lakebed.gc.mark.holding import deal_held
from lakebed.gc.mark.inputs.named import deal_tables, only_active
from lakebed.gc.mark.inputs.ranges import ListedRanges, deal_ranges, effort_of_whole, get_range, texts_of
from lakebed.gc.mark.mark import mark_again, mark_expired, sum_parts, write_ordered
from lakebed.gc.mark.sets.bucketed import HELD_IN_JOIN, Bucketed
from lakebed.gc.mark.sets.packing import CAUSE, Integers, Rows, each_once
from lakebed.gc.mark.sets.places import Namespace, first_folders, may_be_swept
from lakebed.gc.messages import (
    BadInput,
    Cleared,
    CommitCounts,
    Manifest,
    Mode,
    Pieces,
    Plan,
    PreparedCommits,
    RangeCounts,
    RecheckInputs,
    RunKind,
    RunMode,
    StartedRun,
    Totals,
)
from lakebed.gc.rules import NO_RULES, NoRules, Rules, check_rules
from lakebed.gc.rules.lifecycle import Policy, check_policy
from lakebed.gc.runs.context import RunContext, folder_in, plan_frame, slice_numbers, whole
from lakebed.gc.runs.resume import held_tables, runs_over, taken_tables
from lakebed.ranges import range_number

from .hours import with_due
from .learning import Base, Learned, learn, only_ranges, read_known
from .reaching import Ranges, Reached, pinned_commits, reach_metaranges
from .rows import LIFECYCLE, Bitmap, Judging, deal_due, deal_going, goes_of, open_range, read_going, rows_that_go

CLEAN_EVERY: Final = 90
"""Make a clean run after this many runs, because saved files keep ranges and trees that no longer exist."""

ACTIVE_ONLY: Final = "active commits only"
NO_HOURS: Final = "the policy keeps versions, or there are too many rows"
NO_POLICY: Final = "no lifecycle policy is set: `lakebed lifecycle policy set` says which objects go"


class NoPolicy(Invalid):
    """No lifecycle policy is set, so no object is due."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    mode: Mode = Mode.AUTOMATIC
    active_only: bool = False
    name: ClassVar = RunKind.LIFECYCLE
    rule: ClassVar = SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Plan as in docs/design/0003-lifecycle.md. The apply looks at staged data."""

        async def decide(prepared: PreparedCommits) -> Plan:
            return await _plan(context, run, prepared, self.mode, active_only=self.active_only)

        return await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        async def recheck(answer: RecheckInputs) -> Cleared:
            return await _recheck(context, plan, answer)

        return await context.expire_no_commits(plan, rules_version, recheck, planned_ms=plan.now_ms)


def make(limits: Limits) -> Lifecycle:
    return Lifecycle(limits.options.mode, active_only=limits.options.active_only)


async def _plan(
    context: RunContext, run: StartedRun, prepared: PreparedCommits, mode: Mode, *, active_only: bool
) -> Plan:
    policy = policy_of(prepared)
    rules = await _rules(context) if active_only else None
    if active_only and rules is None:
        raise NoRules(NO_RULES)
    # Such a run reads trees of active commits only, so it uses no saved hours and saves none.
    base, note = (None, ACTIVE_ONLY) if active_only else await _choose(context, run, prepared, mode)
    commits, reached = await _reach(context, prepared.commits, prepared.refs, policy, rules, now_ms=run.now_ms)
    learned = await learn(context, run, policy, reached, base, reads_rows=not active_only)
    if base is not None and learned.base is None:
        note = learned.note or NO_HOURS
        if mode is Mode.OPTIMISED:
            raise Conflict(f"no optimised run can be made: {note}")
    views = await context.service.runs()
    held = await held_tables(context, views, runs_over(views))
    gone = await taken_tables(context, views, held)
    besides = [*held.values()]
    into, closed = folder_in(run, messages.GARBAGE.name), slice_numbers(run.closed_slices)
    # Objects that earlier runs deleted are in no plan, although commits still name them. Hours mark them as taken, but
    # foreign keys have no hours.
    if learned.known is None or learned.known.has_foreign:
        besides += gone.values()
    keeps = [
        await deal_tables(context, run, besides, messages.GARBAGE, "held"),
        await deal_held(context, run, commits, prepared.holds, name="holds"),
    ]
    if learned.known is None:
        due, stays = await _deal(context, run, policy, learned.ranges, closed=closed)
        garbage, totals = await mark_expired(
            context.engine, due, [*stays, *keeps], into=into, now_ms=run.now_ms, all_names=True
        )
    else:
        await learned.known.take(context, gone)
        garbage, totals = await mark_known(context, run, policy, learned, keeps, closed=closed, into=into)
    objects, size = count_of(totals.all.objects, "object"), human_size(totals.all.size_bytes)
    context.progress(f"{objects}, {size}, to go; writing the plan")
    swept = int(commits["swept"].to_numpy().sum())
    return Plan(
        **plan_frame(context, run, prepared),
        policy=prepared.policy,
        mode=RunMode.CLEAN if learned.base is None else RunMode.OPTIMISED,
        mode_note=note,
        based_on="" if learned.base is None else learned.base.run_id,
        dues=None if learned.known is None else await learned.known.keep(context, run, learned.base),
        active_only=active_only,
        beside=tuple(held),
        commit_counts=CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept),
        range_counts=RangeCounts(
            live=ListedRanges(learned.ranges.whole).count, expired=ListedRanges(learned.ranges.due).count
        ),
        garbage=garbage,
        totals=totals,
    )


async def _choose(
    context: RunContext, run: StartedRun, prepared: PreparedCommits, mode: Mode
) -> tuple[Base | None, str]:
    """Return the state of an earlier run to go on from, or None for a clean run, and the reason for people."""
    if mode is Mode.CLEAN:
        return None, "asked for"
    try:
        saved = await read_saved_dues(context, run, prepared.policy)
        base = await read_known(context.store, saved.run_id, saved.dues)
    except BadInput as error:
        if mode is Mode.OPTIMISED:
            raise Conflict(f"no optimised run can be made: {error}") from error
        return None, str(error)
    if saved.dues.runs_since_clean + 1 >= CLEAN_EVERY and mode is not Mode.OPTIMISED:
        return None, f"{saved.dues.runs_since_clean} optimised runs since clean run {saved.dues.clean_run}"
    return base, f"goes on from run {saved.run_id}"


def policy_of(prepared: PreparedCommits) -> Policy:
    """Return the policy in force, or raise NoPolicy."""
    if not prepared.policy:
        raise NoPolicy(NO_POLICY)
    return check_policy(prepared.policy.encode())


async def _rules(context: RunContext) -> Rules | None:
    found = (await context.service.rules()).rules
    return None if found is None else check_rules(found)


async def _reach(
    context: RunContext,
    commits: Manifest,
    refs: Manifest,
    policy: Policy,
    rules: Rules | None = None,
    *,
    now_ms: int = 0,
) -> tuple[pa.Table, Reached]:
    """Return the rows of COMMITS, and the classes that reach their trees. With `rules`, expired commits reach none."""
    rows = await context.read(commits, messages.COMMITS)
    named = await context.read(refs, messages.REFS)
    active = rows
    if rules is not None:
        active = only_active(rows, named, rules, pinned=pinned_commits(named, policy), now_ms=now_ms)
    return rows, reach_metaranges(active, named, policy)


async def mark_due(
    context: RunContext,
    run: StartedRun,
    policy: Policy,
    prepared: PreparedCommits,
    *,
    until_ms: int,
) -> tuple[Manifest, Totals]:
    """Write GARBAGE for a simulation: objects that are due by `until_ms`, stay nowhere, and were not deleted yet."""
    _, reached = await _reach(context, prepared.commits, prepared.refs, policy)
    ranges = (await learn(context, run, policy, reached, None, reads_rows=False)).ranges
    closed = slice_numbers(run.closed_slices)
    due, stays = await _deal(context, run, policy, ranges, closed=closed, until_ms=until_ms)
    gone = await taken_tables(context, await context.service.runs(), ())
    return await mark_expired(
        context.engine,
        due,
        [*stays, await deal_tables(context, run, [*gone.values()], messages.GARBAGE, "held")],
        into=folder_in(run, messages.GARBAGE.name),
        now_ms=run.now_ms,
    )


async def mark_known(
    context: RunContext,
    run: StartedRun,
    policy: Policy,
    learned: Learned,
    keeps: Sequence[Bucketed],
    *,
    closed: Collection[int],
    into: str,
    held_max: int = HELD_IN_JOIN,
) -> tuple[Manifest, Totals]:
    """Write GARBAGE: the objects that are due by saved hours. `keeps` are sides of LIVE.

    Join if foreign keys or rows of `keeps` exist, or if the ranges of a portion have more than `held_max` rows.
    """
    assert learned.known is not None, "the caller looked"
    known, ranges = learned.known, learned.ranges
    hours = known.dues.going(run.now_ms)
    going = {slice_: hours[slice_] for slice_ in closed if slice_ in hours}
    groups = with_due(known.ranges, going)
    chosen = only_ranges(ranges, groups)
    context.progress(f"reading {count_of(chosen.due.num_rows, 'range')} that something goes from")
    written = await known.write_going(context, run, going, folder=folder_in(run, "hours.tasks"))
    judging, engine = _judging(run, policy, ranges, closed=closed), context.engine
    if not any(side.rows for side in keeps) and not any(known.ranges[id_].has_foreign for id_ in groups):
        portions = portions_of({id_: [one for one in known.ranges[id_].slices if one in going] for id_ in groups})
        counts = dict(zip(chosen.due["range_id"].to_pylist(), chosen.due["count"].to_pylist(), strict=True))
        # A task has all due rows of a portion in memory, so large portions join, too.
        if max((sum(counts[id_] for id_ in portion) for portion in portions), default=0) <= held_max:
            return await mark_going(
                engine, chosen.due, judging, portions, groups=groups, going=written, into=into, now_ms=run.now_ms
            )
    due, stays = await deal_going(
        engine, chosen.due, judging, groups=groups, going=written, folder=folder_in(run, "due.tasks")
    )
    whole = await deal_ranges(context, run, ListedRanges(chosen.whole), folder=folder_in(run, "live.tasks"))
    return await mark_expired(engine, due, [stays, whole, *keeps], into=into, now_ms=run.now_ms, all_names=True)


async def _deal(
    context: RunContext,
    run: StartedRun | Plan,
    policy: Policy,
    ranges: Ranges,
    *,
    closed: Collection[int],
    until_ms: int | None = None,
    suffix: str = "",
) -> tuple[Bucketed, list[Bucketed]]:
    """Return the CANDIDATES that are due, and the sides of LIVE that stay."""
    listed, whole = (ListedRanges(rows).count for rows in (ranges.due, ranges.whole))
    stay = f"; of {whole:,} all stays" if whole else ""
    context.progress(f"reading {count_of(listed, 'range')}{stay}")
    judging = _judging(run, policy, ranges, closed=closed, until_ms=until_ms)
    due, stays = await deal_due(context.engine, ranges.due, judging, folder=folder_in(run, f"due.tasks{suffix}"))
    unread = await deal_ranges(context, run, ListedRanges(ranges.whole), folder=folder_in(run, f"live.tasks{suffix}"))
    return due, [stays, unread]


def _judging(
    run: StartedRun | Plan, policy: Policy, ranges: Ranges, *, closed: Collection[int], until_ms: int | None = None
) -> Judging:
    return Judging(
        policy=policy,
        terms=ranges.terms,
        namespace=Namespace(run.namespace),
        closed=pa.array(sorted(closed), pa.int64()),
        now_ms=run.now_ms,
        until_ms=until_ms,
    )


async def _recheck(context: RunContext, plan: Plan, answer: RecheckInputs) -> Cleared:
    """Write the plan's objects that nothing keeps now, into tables named by this recheck."""
    # Judge by the plan's now: an object that became due later is not in the plan.
    commits, uncommitted = whole(answer)
    if answer.refs is None:
        raise BadInput("the server did not say which refs there are", run_id=plan.run_id)
    name = commits.digest()[:16]
    suffix = f".{name}"
    policy, closed = check_policy(plan.policy.encode()), slice_numbers(answer.closed_slices)
    # If the rules were removed since the plan, all commits are active.
    rules = await _rules(context) if plan.active_only else None
    _, reached = await _reach(context, commits, answer.refs, policy, rules, now_ms=plan.now_ms)
    base = None if plan.dues is None else await read_known(context.store, plan.run_id, plan.dues)
    slices = [] if base is None else [*base.known.dues.going(plan.now_ms)]
    learned = await learn(context, plan, policy, reached, base, reads_rows=base is not None, suffix=suffix)
    # The plan's candidates are enough here: deal only the objects that stay now.
    if learned.known is None:
        _, stays = await _deal(context, plan, policy, learned.ranges, closed=closed, suffix=suffix)
    else:
        # Foreign keys have no hours, so judge their ranges by rows.
        foreign = only_ranges(learned.ranges, with_due(learned.known.ranges, {}))
        _, stays = await _deal(context, plan, policy, foreign, closed=closed, suffix=suffix)
        folder = folder_in(plan, f"hours.tasks{suffix}")
        stays.append(await learned.known.deal_staying(context, plan, slices, folder=folder))
    # Another unfinished run may hold an object of this plan. Leave it to that run.
    views = [view for view in await context.service.runs() if view.run_id != plan.run_id]
    held = [*(await held_tables(context, views, runs_over(views))).values()]
    staged = await deal_tables(context, plan, [uncommitted], messages.UNCOMMITTED, f"uncommitted{suffix}")
    sides = [*stays, staged, await deal_tables(context, plan, held, messages.GARBAGE, f"held{suffix}")]
    garbage, totals = await mark_again(context, plan, plan.garbage, sides, name=name, closed=closed)
    return Cleared(garbage=garbage, commits=commits, size_bytes=totals.all.size_bytes)


# Plan due objects from saved hours, without a join. Hours select the objects, rows only give their paths. Many ranges
# may name an object, and a plan has it once. So ranges that share a slice with due objects form a *portion*, and no two
# portions name the same object. A task reads whole portions, and puts each of their objects into the plan once.
# Foreign keys have no hours. With these, or with held objects, a run joins instead (mark.py).

HELD_MAX: Final = 100_000
"""A task writes its portions as soon as they have this many objects."""

PORTIONS: Final = Table("some ranges, and all that they alone name", required(("portion", pa.int64())))


def portions_of(slices_of: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Join ranges that share a slice. `slices_of` has for each range its slices with due objects, at least one."""
    # A union-find: `above` leads from a slice to the root of its portion.
    above: dict[int, int] = {}

    def root(slice_: int) -> int:
        while (next_ := above.setdefault(slice_, slice_)) != slice_:
            above[slice_] = above[next_]
            slice_ = next_
        return slice_

    for slices in slices_of.values():
        for slice_ in slices:
            above[root(slice_)] = root(slices[0])
    found: dict[int, list[str]] = {}
    for id_, slices in sorted(slices_of.items()):
        found.setdefault(root(slices[0]), []).append(id_)
    return [*found.values()]


async def mark_going(
    engine: Engine,
    ranges: pa.Table,
    judging: Judging,
    portions: Sequence[Sequence[str]],
    *,
    groups: Mapping[str, Sequence[int]],
    going: Pieces,
    into: str,
    now_ms: int,
) -> tuple[Manifest, Totals]:
    """Write GARBAGE: the objects of these row groups that are `going`, a bitmap (LIVE) for each slice. No foreign keys.

    Raises:
        BadInput: a slice is open, a row stays by its own range, or a part is missing or altered.
    """
    facts = {row["range_id"]: row for row in ranges.to_pylist()}
    closed = frozenset(judging.closed.to_pylist())

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        bitmaps = await read_going(task.store, going)
        # Plans take objects of closed slices only.
        if open_ := sorted(bitmaps.keys() - closed):
            raise BadInput(f"slice {slice_name(open_[0])} is open, and hours say that something of it goes")
        mine = [portions[number] for number in share["portion"].to_pylist()]
        last = {portion[-1] for portion in mine}

        async def verdicts() -> AsyncIterator[pa.Table]:
            batch = _Batch(judging)
            ids = [id_ for portion in mine for id_ in portion]
            async for name, data in task.ahead(ids, lambda id_: get_range(task.store, RangeId(id_))):
                batch.add(name, data, facts[name], groups[name], bitmaps)
                # Cut only between portions: several ranges of a portion may name the same object.
                if name in last and batch.held >= HELD_MAX:
                    yield batch.verdicts()
                    batch = _Batch(judging)
            if batch.held:
                yield batch.verdicts()

        async for part in write_ordered(task, into, verdicts(), now_ms=now_ms):
            yield part

    rows = PORTIONS.rows({"portion": [*range(len(portions))]})
    return sum_parts(await engine.run(work, rows, PARTS, effort=effort_of_whole(ranges)), into)


class _Batch:
    """Hold the rows of due objects in some portions, and their causes by number."""

    def __init__(self, judging: Judging) -> None:
        self.held = 0
        self._judging = judging
        self._rows: list[Rows] = []
        self._causes: dict[tuple[str, ...], int] = {}

    def add(
        self,
        name: str,
        data: bytes,
        fact: Mapping[str, Any],
        groups: Sequence[int],
        bitmaps: Mapping[int, Bitmap],
    ) -> None:
        """Add the rows of these row groups whose objects are in the bitmaps."""
        policy, number = self._judging.policy, fact["terms"]
        file = open_range(RangeId(name), data, fact["count"])
        goes = goes_of(file.table(["slice", "sequence"], groups), bitmaps)
        rows = rows_that_go(file, policy, groups, goes, with_addresses=False)
        if not rows.num_rows:
            return
        rule_of, is_due = self._judging.judge(rows, number)
        # The saved hours are wrong, so delete nothing by them.
        if not is_due.all():
            raise BadInput(f"range {name} has rows that stay, and hours say that they go", range_id=name)
        self.held += rows.num_rows
        self._rows.append(
            Rows(
                slices=rows["slice"].to_numpy(),
                sequences=rows["sequence"].to_numpy().astype(np.int64),
                sizes=rows["size_bytes"].to_numpy(),
                seen_ms=rows["modified_ms"].to_numpy(),
                causes=self._causes_of(rows, rule_of, number),
                paths=texts_of(rows["key"]),
                seen_in=np.full(rows.num_rows, range_number(RangeId(name)), np.int64),
            )
        )

    def _causes_of(self, rows: pa.Table, rule_of: Integers, number: int) -> Integers:
        texts = [rule.text() for rule in self._judging.policy.rules]
        branches, found = self._judging.terms[number].branches, np.empty(rows.num_rows, np.int64)
        for prefix, start, stop in first_folders(rows["key"]):
            part = slice(start, stop)
            for rule in np.unique(rule_of[part]).tolist():
                cause = (LIFECYCLE, texts[rule], branches[rule], prefix)
                found[part][rule_of[part] == rule] = self._causes.setdefault(cause, len(self._causes))
        return found

    def verdicts(self) -> pa.Table:
        """Return VERDICTS, each object once."""
        texts = zip(*self._causes, strict=True)
        causes = pa.table({name: pa.array(column, pa.string()) for name, column in zip(CAUSE, texts, strict=True)})
        *numbers, paths, seen_in = zip(*self._rows, strict=True)
        slices, sequences, sizes, seen_ms, of_rows = (np.concatenate(column) for column in numbers)
        rows = Rows(slices, sequences, sizes, seen_ms, of_rows, pa.concat_arrays(paths), np.concatenate(seen_in))
        return each_once(causes, rows, all_names=True)
