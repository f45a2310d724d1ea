"""Every commit record and everything that names one, as tables.

Refs are read before commits, because a commit is written before it is named. Swept records are read before all else: a
commit that was swept when we began can never be named again, so whoever skips it skips nothing that a later operation
could bring back.

A commit that is void (void.py) is said to be swept: it keeps nothing either, and its files are gone too.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId
from lakebed.gc.protocol import COMMITS, REFS, arrow_schema
from lakebed.gc.rules import Rules, first_parent_indices, kept_indices, rows_of
from lakebed.versions import (
    BranchRecord,
    HoldRecord,
    RefState,
    SweptRecord,
    TagRecord,
    Versions,
    keys,
)

from .commit_columns import CommitColumns, packed, read_commits, text_lists, texts
from .records import records
from .void import find_void

PART_ROWS: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was read in one pass. `refs` are (kind, name, commit, state); `late` were swept after staging was read."""

    refs: list[tuple[str, str, CommitId, str]]
    commits: CommitColumns
    swept: frozenset[CommitId]
    late: frozenset[CommitId] = frozenset()

    def refs_table(self) -> pa.Table:
        kinds, names, commits, states = zip(*self.refs, strict=True) if self.refs else ((), (), (), ())
        columns = [list(kinds), list(names), list(commits), list(states)]
        return pa.table(columns, schema=arrow_schema(REFS))

    def commits_tables(self, condemned: AbstractSet[CommitId] = frozenset()) -> Iterator[pa.Table]:
        """COMMITS, so many rows at a time: there may be a million. About 1 µs a commit. The date is that from which
        retention counts."""
        schema = arrow_schema(COMMITS)
        sets = [packed(sorted(ids)) for ids in (self.swept, condemned)]
        for start in range(0, len(self.commits), PART_ROWS):
            rows = self.commits.table.slice(start, PART_ROWS).combine_chunks()
            ids = rows["id"].chunk(0)
            columns = [
                texts(ids),
                rows["generation"],
                rows["created_ms"].cast(schema.field("creation_date").type),
                texts(rows["metarange_id"].chunk(0)),
                text_lists(rows["parents"].chunk(0)).cast(schema.field("parents").type),
                *(pc.is_in(ids, value_set=those) for those in sets),
            ]
            yield pa.table(columns, schema=schema)

    def kept(self, rules: Rules, *, now_ms: int) -> set[CommitId]:
        """What the rules keep; and what a branch or hold names, or a tag where tags pin, being made or not.

        Raises:
            BrokenHistory: a commit that something names was not among those read.
        """
        ids = texts(self.commits.column("id"))
        kept = kept_indices(
            first_parent=first_parent_indices(ids, text_lists(self.commits.column("parents"))),
            created_ms=self.commits.numbers("created_ms"),
            heads=self._rows(ids, "branch"),
            pinned=[*self._rows(ids, "hold").values(), *(self._rows(ids, "tag").values() if rules.tags_pin else ())],
            rules=rules,
            now_ms=now_ms,
        )
        return set(ids.filter(pa.array(kept)).to_pylist())

    def there(self) -> pa.Array:
        """Of each commit, whether it was not swept."""
        return pc.invert(pc.is_in(self.commits.column("id"), value_set=packed(sorted(self.swept))))

    def _rows(self, ids: pa.Array, *kinds: str) -> dict[str, int]:
        chosen = [(name, commit) for kind, name, commit, _ in self.refs if kind in kinds]
        found = rows_of(ids, [commit for _, commit in chosen], who=f"a {' or '.join(kinds)}")
        return dict(zip((name for name, _ in chosen), found, strict=True))


async def read_swept(versions: Versions) -> frozenset[CommitId]:
    """Return every commit that was swept until now."""
    return frozenset([CommitId(name) async for name, _ in records(versions, SweptRecord, keys.SWEPT)])


async def read_snapshot(versions: Versions, *, known: frozenset[CommitId] | None = None) -> Snapshot:
    """Read swept records, then holds, then branches and tags (those being made too), then every commit record.

    A run that has read staging before passes what was swept by then as `known`.
    """
    swept = await read_swept(versions)
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
    snapshot = Snapshot(refs=refs, commits=await read_commits(versions), swept=swept)
    void = await find_void(versions, snapshot.commits, snapshot.there(), heads=[commit for _, _, commit, _ in refs])
    # A copy from a commit may set its cell after we read staging, and before another run sweeps that commit: the run
    # sees the cell and spares the object. To us only the commit names it, so it must count as not swept.
    late = frozenset() if known is None else swept - known
    return replace(snapshot, swept=(swept | void) - late, late=late) if void or late else snapshot


async def read_snapshot_for_metadata(versions: Versions, *, grace_ms: int) -> Snapshot:
    """The same, where `swept` leaves out what was swept by a run that began less than `grace_ms` ago: somebody may be
    reading a listing of it. A run whose record is gone began before that."""
    snapshot = await read_snapshot(versions)
    since_ms = versions.ports.clock.now_ms() - grace_ms
    young = {run for run, record in await versions.retired.runs() if record.started_ms > since_ms}
    if not young:
        return snapshot
    late = {name async for name, swept in records(versions, SweptRecord, keys.SWEPT) if swept.run in young}
    return replace(snapshot, swept=snapshot.swept - late)
