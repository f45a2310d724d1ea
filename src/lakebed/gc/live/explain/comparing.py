"""Compare the ledger with plans and the store, page by page: `gc ledger --verify`. Read-only, without Spark.

1. each object that an ended run swept has a row                     RUNS:run:part
2. each row of a sweep is about an object of its run's plan          ROWS:record:address
3. an object with a row as deleted is absent, or was written later
4. each deletion has one row                                         TWICE:first:last:other

The right column is the position in a token. Checks 1 and 2 skip a run without a plan file. Records written between two
pages may be missed. A page costs a listing of the ledger and one of: `PARTS_MAX` parts of plans; `RECORDS_MAX` records
and `LOOKED_MAX` requests to the store; two blocks of records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import RunId, RunKind, RunState
from lakebed.gc import messages
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.publish.expiring import read_garbage
from lakebed.gc.live.records.runs import RunBook
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.versions import Versions

PARTS_MAX: Final = 20
RECORDS_MAX: Final = 100
LOOKED_MAX: Final = 5_000
BLOCK_ROWS: Final = 1 << 19
"""Size of a block. Each block is compared with each other, so the cost is quadratic: 1 M rows are 2 blocks."""
BLOCK_RECORDS: Final = 1_000
LISTED_FROM: Final = 8
"""From this many objects of a slice, list the slice. For fewer, stat each object."""
AT_ONCE: Final = 16

_Record = tuple[str, ...]


class _Stage(enum.StrEnum):
    RUNS = "runs"
    ROWS = "rows"
    TWICE = "twice"


_POSITIONS: Final = {_Stage.RUNS: 2, _Stage.ROWS: 2, _Stage.TWICE: 3}
_NEXT: Final = {_Stage.RUNS: "rows::", _Stage.ROWS: "twice:::", _Stage.TWICE: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ledger:
    """Hold the ledger's records in the order of their names, without `LEDGER_PREFIX`."""

    records: Sequence[_Record]

    def of_run(self, run_id: str) -> list[_Record]:
        return [names for names in self.records if messages.run_of_record(names) == run_id]


class Comparing:
    def __init__(self, versions: Versions, runs: RunBook) -> None:
        self._versions = versions
        self._runs = runs
        self._store: ObjectStore = versions.objectstore
        self._apart = versions.ports.tasks.apart

    async def page(self, run_id: str = "", token: str | None = None) -> messages.DisagreementPage:
        """Compare a page of the ledger, for this run or all.

        Raises:
            BadContinuation: the token is invalid.
            InvalidRunId: the run id is malformed.
            BadInput: a file of the ledger or of a plan is damaged; the message names it.
        """
        if run_id:
            messages.check_run_id(run_id)
        stage, position = _parse(token)
        # Runs before the ledger: skip a run that ends later, because the listing may lack its rows.
        views = await self._runs.views({})
        ledger = await self._ledger()
        match stage:
            case _Stage.RUNS:
                ended = sorted((view for view in views if view.state is RunState.ENDED), key=lambda view: view.run_id)
                disagreements, after = await self._compare_runs(ledger, _only(ended, run_id), *position)
            case _Stage.ROWS:
                disagreements, after = await self._compare_rows(ledger, views, run_id, *position)
            case _Stage.TWICE:
                disagreements, after = await self._compare_records(ledger, run_id, *position)
        following = _NEXT[stage] if after is None else _token(stage, *after)
        return messages.DisagreementPage(disagreements=tuple(disagreements), continuation_token=following)

    # Stages: each returns disagreements and the next position

    async def _compare_runs(
        self, ledger: _Ledger, views: Sequence[messages.RunView], first: str, part: str
    ) -> tuple[list[messages.Disagreement], tuple[str, ...] | None]:
        """Check for a row of each object that an ended run swept."""
        disagreements: list[messages.Disagreement] = []
        looked = 0
        for view in views:
            if view.run_id < first or not view.plan:
                continue
            if looked > PARTS_MAX:
                return disagreements, (view.run_id, "0")
            begin = _number(part) if view.run_id == first else 0
            looked += 1  # Count the read of its plan as a part.
            taken = await self._taken(view)
            if taken is None:
                continue
            for number, one in list(enumerate(taken.parts))[begin:]:
                if looked > PARTS_MAX:
                    return disagreements, (view.run_id, str(number))
                looked += 1
                planned = (await read_garbage(self._versions, taken, one))["address"]
                rest = await self._without_rows(ledger, view.run_id, one.name, planned)
                disagreements += _of(view.run_id, rest, messages.Disagrees.UNRECORDED)
        return disagreements, None

    async def _compare_rows(
        self, ledger: _Ledger, views: Sequence[messages.RunView], run_id: str, first: str, after: str
    ) -> tuple[list[messages.Disagreement], tuple[str, ...] | None]:
        """Check each row against its run's plan, and each deleted object against the store."""
        disagreements: list[messages.Disagreement] = []
        asked = 0
        kinds = {view.run_id: view.kind for view in views}
        plans: dict[str, messages.Plan | None] = {}
        for number, names in enumerate(names for names in _of_interest(ledger, run_id) if names[0] >= first):
            if number == RECORDS_MAX or asked >= LOOKED_MAX:
                return disagreements, (names[0], "")
            rows = await self._read(names)
            is_from_begin = names[0] != first or not after
            run = messages.run_of_record(names)
            if is_from_begin and messages.DELETED_AT_ONCE not in f"/{names[0]}":
                if run not in plans:
                    plans = {run: await self._plan(run, kinds.get(run))}
                if (plan := plans[run]) is not None:
                    disagreements += _of(
                        run, await self._unplanned(plan, names, _tried(rows)), messages.Disagrees.UNPLANNED
                    )
            rows = await self._apart(partial(_deleted_from, rows, "" if is_from_begin else after))
            some = rows.slice(0, LOOKED_MAX - asked)
            asked += some.num_rows
            disagreements += await self._there(some)
            if some.num_rows < rows.num_rows:
                return disagreements, (names[0], some["address"][-1].as_py())
        return disagreements, None

    async def _compare_records(
        self, ledger: _Ledger, run_id: str, first: str, last: str, other: str
    ) -> tuple[list[messages.Disagreement], tuple[str, ...] | None]:
        """Compare a block of records with itself and one later block. For one run, compare its records with all."""
        rest = [names for names in _of_interest(ledger, run_id) if names[0] >= first]
        block, tables = await self._block([names for names in rest if not last or names[0] <= last])
        if not block:
            return [], None
        last = block[-1][0]
        mine = pa.concat_tables(tables)
        disagreements = [] if other else await self._apart(partial(_twice_in, mine))
        is_mine = set(_of_interest(ledger, run_id)) if run_id else set[_Record]()
        others = [names for names in ledger.records if names[0] > last or (run_id and names not in is_mine)]
        some, tables = await self._block([names for names in others if names[0] >= other])
        if tables:
            rows = pa.concat_tables(tables)
            # Report the later of two runs, or the requested run.
            reported, beside = (mine, rows) if run_id else (rows, mine)
            disagreements += await self._apart(partial(_in_both, reported, beside))
        if some and (following := [names for names in others if names[0] > some[-1][0]]):
            return disagreements, (first or block[0][0], last, following[0][0])
        if following := [names for names in rest if names[0] > last]:
            return disagreements, (following[0][0], "", "")
        return disagreements, None

    async def _block(self, records: Sequence[_Record]) -> tuple[Sequence[_Record], list[pa.Table]]:
        """Read the first records, at least one, until a block is full. Return the rows of deleted objects.

        Rows with other states are few.
        """
        tables: list[pa.Table] = []
        rows = 0
        for names in records[:BLOCK_RECORDS]:
            if rows >= BLOCK_ROWS:
                break
            tables.append(_deleted(await self._read(names)))
            rows += tables[-1].num_rows
        return records[: len(tables)], tables

    # Comparisons

    async def _without_rows(self, ledger: _Ledger, run_id: str, part: str, planned: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the addresses without a row of the run's sweeps."""
        records = ledger.of_run(run_id)
        # The part's own record first: it mostly has all rows. An overtaken apply may have distributed them otherwise.
        own = messages.record_of(messages.ledger_name(part, 0))
        for names in sorted(records, key=lambda names: not messages.record_of(names[0]).endswith(f"/{run_id}-{own}")):
            if not len(planned):
                break
            recorded = _tried(await self._read(names))["address"]
            planned = await self._apart(partial(_without, planned, recorded))
        return planned

    async def _unplanned(self, plan: messages.Plan, names: _Record, rows: pa.Table) -> pa.ChunkedArray:
        """Return the addresses of these rows that the plan lacks."""
        rest = rows["address"]
        own = messages.record_of(names[0])
        for part in sorted(plan.garbage.parts, key=lambda part: not own.endswith(f"/{plan.run_id}-{part.name}")):
            if not len(rest):
                break
            planned = (await read_garbage(self._versions, plan.garbage, part))["address"]
            rest = await self._apart(partial(_without, rest, planned))
        return rest

    async def _there(self, rows: pa.Table) -> list[messages.Disagreement]:
        """Return the rows, in the order of addresses, with an object that exists and was not written later."""
        disagreements: list[messages.Disagreement] = []
        for folder, by_address in await self._apart(partial(_by_folder, rows)):
            # A later object is new: a client may use a signed URL, and keys outside of slices are reused.
            disagreements += [
                _disagreement(by_address[address], messages.Disagrees.THERE)
                for address, modified_ms in await self._modified(folder, list(by_address))
                if modified_ms <= int(by_address[address]["deleted_at"].timestamp() * 1000)
            ]
        return disagreements

    async def _modified(self, folder: str, addresses: Sequence[str]) -> list[tuple[str, int]]:
        """Return the present objects of a folder with their modification times."""
        if len(addresses) >= LISTED_FROM and folder.startswith(messages.DATA_PREFIX):
            return await self._listed(folder, addresses)

        async def stat(address: str) -> tuple[str, int] | None:
            try:
                return address, (await self._store.stat(address)).modified_ms
            except ObjectMissing:
                return None

        there: list[tuple[str, int] | None] = []
        for start in range(0, len(addresses), AT_ONCE):
            some = [stat(address) for address in addresses[start : start + AT_ONCE]]
            there += await self._versions.ports.tasks.gather(some)
        return [modified_ms for modified_ms in there if modified_ms is not None]

    async def _listed(self, folder: str, addresses: Sequence[str]) -> list[tuple[str, int]]:
        wanted, there = set(addresses), list[tuple[str, int]]()
        # `start_after` is exclusive: without its last character the name sorts before the first address.
        async for page in self._store.list(f"{folder}/", start_after=addresses[0][:-1]):
            there += [(stat.key, stat.modified_ms) for stat in page if stat.key in wanted]
            if page and page[-1].key >= addresses[-1]:
                break
        return there

    # Reads

    async def _ledger(self) -> _Ledger:
        names = [
            stat.key.removeprefix(messages.LEDGER_PREFIX)
            async for page in self._store.list(messages.LEDGER_PREFIX)
            for stat in page
        ]
        return _Ledger(records=await self._apart(partial(messages.ledger_records, names)))

    async def _read(self, names: _Record) -> pa.Table:
        """Return `run_id`, `address`, `state` and `deleted_at` of a record's rows."""
        keys = [messages.LEDGER_PREFIX + name for name in names]
        data = await self._versions.ports.tasks.gather([self._store.get(key) for key in keys])
        # Apart, one record at a time: decoding would block the event loop.
        return await self._apart(
            lambda: messages.decode_record(keys, data).select(["run_id", "address", "state", "deleted_at"])
        )

    async def _plan(self, run_id: str, kind: RunKind | None) -> messages.Plan | None:
        for each in [kind] if kind else RunKind:
            data = await self._find(messages.plan_path(each, run_id))
            if data is not None:
                return messages.decode_plan(data, run_id)
        return None

    async def _taken(self, view: messages.RunView) -> messages.Manifest | None:
        """Return the table that an ended run swept, by its record, or None if its plan was deleted."""
        plan = await self._plan(view.run_id, view.kind)
        if plan is None:
            return None
        data = await self._find(messages.purge_path(plan.kind, plan.run_id))
        if data is not None:
            listed = messages.decode_deferred(data, plan.run_id)
            if listed.garbage.digest() == view.sweeps:
                return listed.garbage
        return await self._rechecked(plan, view) if view.sweeps or plan.kind.publishes else plan.garbage

    async def _rechecked(self, plan: messages.Plan, view: messages.RunView) -> messages.Manifest:
        digest = view.plan if plan.kind.publishes else view.sweeps
        async for page in self._store.list(messages.run_folder(plan.kind, RunId(plan.run_id)) + messages.RECHECK):
            for stat in page:
                cleared = messages.decode_recheck(await self._store.get(stat.key), name=stat.key)
                if cleared.is_of(digest):
                    return cleared.garbage
        raise messages.BadInput(
            f"run {plan.run_id} has swept, and what it was let to sweep is missing", input="recheck"
        )

    async def _find(self, key: str) -> bytes | None:
        try:
            return await self._store.get(key)
        except ObjectMissing:
            return None


def _only(views: Iterable[messages.RunView], run_id: str) -> list[messages.RunView]:
    return [view for view in views if run_id in ("", view.run_id)]


def _of_interest(ledger: _Ledger, run_id: str) -> Sequence[_Record]:
    return ledger.of_run(run_id) if run_id else ledger.records


def _tried(rows: pa.Table) -> pa.Table:
    """Return the rows without restored objects: these rows are not a sweep's."""
    return rows.filter(pc.not_equal(rows["state"], messages.LedgerState.RESTORED.value))


def _deleted(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.equal(rows["state"], messages.LedgerState.DELETED.value))


def _deleted_from(rows: pa.Table, after: str) -> pa.Table:
    """Return the rows of deleted objects after this address, in the order of addresses."""
    rows = _deleted(rows).sort_by("address")
    return rows.filter(pc.greater(rows["address"], after)) if after else rows


def _by_folder(rows: pa.Table) -> list[tuple[str, dict[str, Any]]]:
    """Group rows, in the order of addresses, by folder and address."""
    groups = groupby(rows.to_pylist(), key=lambda row: row["address"].rpartition("/")[0])
    return [(folder, {row["address"]: row for row in group}) for folder, group in groups]


def _without(addresses: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    return addresses.filter(pc.invert(pc.is_in(addresses, value_set=others.combine_chunks())))


def _twice_in(rows: pa.Table) -> list[messages.Disagreement]:
    counts = pc.value_counts(rows["address"].combine_chunks())
    more = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    twice = rows.filter(pc.is_in(rows["address"], value_set=more)).to_pylist()
    return [_disagreement(row, messages.Disagrees.TWICE) for row in {row["address"]: row for row in twice}.values()]


def _in_both(rows: pa.Table, others: pa.Table) -> list[messages.Disagreement]:
    same = rows.filter(pc.is_in(rows["address"], value_set=others["address"].combine_chunks()))
    return [_disagreement(row, messages.Disagrees.TWICE) for row in same.to_pylist()]


def _of(run_id: str, addresses: pa.ChunkedArray, what: messages.Disagrees) -> list[messages.Disagreement]:
    return [messages.Disagreement(run_id=run_id, address=address, what=what) for address in addresses.to_pylist()]


def _disagreement(row: dict[str, str], what: messages.Disagrees) -> messages.Disagreement:
    return messages.Disagreement(run_id=row["run_id"], address=row["address"], what=what)


def _token(stage: _Stage, *position: str) -> str:
    return ":".join([stage.value, *position])


def _parse(token: str | None) -> tuple[_Stage, list[str]]:
    if token is None:
        return _Stage.RUNS, ["", ""]
    name, *position = token.split(":", 1)
    try:
        stage = _Stage(name)
        position = position[0].split(":", _POSITIONS[stage] - 1)
    except (ValueError, IndexError):
        position = []
    if not position or len(position) != _POSITIONS[stage]:
        raise BadContinuation("not a continuation token")
    if stage is _Stage.RUNS:
        _number(position[1])
    return stage, position


def _number(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadContinuation("not a continuation token")
    return int(text or 0)
