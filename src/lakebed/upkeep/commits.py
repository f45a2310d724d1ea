"""Every commit record and everything that names one, as tables.

Refs are read before commits, because a commit is written before it is named. Swept records are read before all else: a
commit that was swept when we began can never be named again, so whoever skips it skips nothing that a later operation
could bring back.

A commit that is void (void.py) is said to be swept: it keeps nothing either, and its files are gone too.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId
from lakebed.handoff import COMMITS, REFS, arrow_schema
from lakebed.retention import Rules, first_parent_indices, kept_indices, rows_of
from lakebed.versions import (
    BranchRecord,
    Commit,
    HoldRecord,
    RefState,
    SweptRecord,
    TagRecord,
    Versions,
    keys,
)

from .records import record_pages, records
from .void import find_void


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was read in one pass. `refs` are (kind, name, commit, state). `commits` are (id, record) by generation."""

    refs: list[tuple[str, str, CommitId, str]]
    commits: list[tuple[CommitId, Commit]]
    swept: frozenset[CommitId]

    def refs_table(self) -> pa.Table:
        kinds, names, commits, states = zip(*self.refs, strict=True) if self.refs else ((), (), (), ())
        columns = [list(kinds), list(names), list(commits), list(states)]
        return pa.table(columns, schema=arrow_schema(REFS))

    def commits_table(self, condemned: AbstractSet[CommitId] = frozenset()) -> pa.Table:
        """COMMITS. About 1 µs a commit."""
        ids = pa.array([id_ for id_, _ in self.commits], pa.string())
        records_ = [record for _, record in self.commits]
        numbers = [
            np.fromiter(values, np.int64, len(records_))
            for values in ((record.generation for record in records_), (record.created_ms for record in records_))
        ]
        schema = arrow_schema(COMMITS)
        columns = [
            ids,
            pa.array(numbers[0]),
            pa.array(numbers[1]).cast(schema.field("creation_date").type),
            pa.array([record.metarange_id for record in records_], pa.string()),
            _lists([record.parents for record in records_], schema.field("parents").type),
            _among(ids, self.swept),
            _among(ids, condemned),
        ]
        return pa.table(columns, schema=schema)

    def kept(self, rules: Rules, *, now_ms: int) -> set[CommitId]:
        """What the rules keep; and what a branch or hold names, or a tag where tags pin, being made or not.

        Raises:
            BrokenHistory: a commit that something names was not among those read.
        """
        table = self.commits_table()
        ids = table.column("id").combine_chunks()
        kept = kept_indices(
            first_parent=first_parent_indices(ids, table.column("parents").combine_chunks()),
            created_ms=_numbers(table, "creation_date"),
            heads=self._rows(ids, "branch"),
            pinned=[*self._rows(ids, "hold").values(), *(self._rows(ids, "tag").values() if rules.tags_pin else ())],
            rules=rules,
            now_ms=now_ms,
        )
        return {self.commits[row][0] for row in np.flatnonzero(kept)}

    def _rows(self, ids: pa.Array, *kinds: str) -> dict[str, int]:
        chosen = [(name, commit) for kind, name, commit, _ in self.refs if kind in kinds]
        found = rows_of(ids, [commit for _, commit in chosen], who=f"a {' or '.join(kinds)}")
        return dict(zip((name for name, _ in chosen), found, strict=True))


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(table.column(name).cast(pa.int64()).to_numpy())


def _lists(values: Sequence[Sequence[str]], type_: pa.DataType) -> pa.Array:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array([*chain.from_iterable(values)], pa.string()), type=type_)


def _among(ids: pa.Array, those: AbstractSet[CommitId]) -> pa.Array:
    return pc.is_in(ids, value_set=pa.array(sorted(those), pa.string()))


async def read_snapshot(versions: Versions) -> Snapshot:
    """Swept records, then holds, then branches and tags (those being made too), then every commit record."""
    swept = frozenset([CommitId(name) async for name, _ in records(versions, SweptRecord, keys.SWEPT)])
    refs = [
        ("hold", name, hold.commit_id, RefState.ACTIVE.value)
        async for name, hold in records(versions, HoldRecord, keys.HOLD)
    ]
    refs += [
        ("branch", name, branch.commit_id, branch.state.value)
        async for name, branch in records(versions, BranchRecord, keys.BRANCH)
    ]
    refs += [
        ("tag", name, tag.commit_id, tag.state.value) async for name, tag in records(versions, TagRecord, keys.TAG)
    ]
    commits: list[tuple[CommitId, Commit]] = []
    async for names, found in record_pages(versions, Commit, keys.COMMIT):
        commits += zip(map(CommitId, names), found, strict=True)
    # They come by id, and a sort leaves equals as they are.
    commits.sort(key=lambda item: item[1].generation)
    there = [item for item in commits if item[0] not in swept]
    void = await find_void(versions, there, heads=[commit for _, _, commit, _ in refs])
    return Snapshot(refs=refs, commits=commits, swept=swept | void)


async def read_snapshot_for_metadata(versions: Versions, *, grace_ms: int) -> Snapshot:
    """The same, where `swept` leaves out what was swept by a run that began less than `grace_ms` ago: somebody may be
    reading a listing of it. A run whose record is gone began before that."""
    snapshot = await read_snapshot(versions)
    since_ms = versions.world.clock.now_ms() - grace_ms
    young = {run for run, record in await versions.runs() if record.started_ms > since_ms}
    if not young:
        return snapshot
    late = {name async for name, swept in records(versions, SweptRecord, keys.SWEPT) if swept.run in young}
    return replace(snapshot, swept=snapshot.swept - late)
