"""The committer: seal, build, claim, publish (document 002, "Committer flow"; docs/design/protocols.md, "Commit").

Lock-free: some committer makes progress after three KV operations, and a commit starts again only for each commit that
overtakes it, each bump and each freeze. Its promise: a commit holds every write acknowledged before it began; an
acknowledged write is in a commit or still staged; the heads of a branch form a chain.

    seal     set_if the branch: a fresh token; the old one, *mine*, in front of the sealed tokens
    build    overlay *left* (mine and everything older that is still sealed) on the head; write ranges, commit record
    claim    under a new key: branch, left, commit; so that a cleaner finds the tokens wherever a process dies
    publish  set_if the branch: the commit as head, only the tokens in front of mine still sealed
    else     look: in its history, done; mine no longer sealed, overtaken; else claim and publish again, with the same
             commit only if head and left are still those it was built from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import (
    DATE_MS_MAX,
    DATE_MS_MIN,
    EMPTY_METARANGE,
    ROWS_A_TURN,
    CommitId,
    MetarangeId,
    OutcomeUnknown,
    StagingToken,
)
from lakebed.kv import Page, PredicateFailed
from lakebed.ranges import changes_from_rows, chunk, overlay, rows_from_table
from lakebed.versions.cells import (
    REPEATED,
    TOMBSTONE,
    Cell,
    changes_table,
    decode_cells,
    hides_one,
    is_gone,
    shown_over,
    version_digest,
)
from lakebed.versions.context import Context, Retry, Seen
from lakebed.versions.errors import CommitOvertaken, InvalidNote, NoChanges
from lakebed.versions.records import BranchRecord, ClaimReason, Commit, Sealed
from lakebed.versions.refs.reflog import Reflog
from lakebed.versions.refs.refs import Refs
from lakebed.versions.retired import Retired
from lakebed.versions.taken import Taken

IN_ONE_GO_MS: Final = 3_600_000
"""The shortest period that a retention rule may have: no rule misses a commit that was a head for less."""

PART_ROWS: Final = 131_072
"""Staged cells that a commit holds of one token at once: about 50 MiB."""

LOOKED_UP_TOGETHER: Final = 500
"""Paths: 10 ms of the one thread that serves all."""

NOTE_BYTES_MAX: Final = 250_000
"""A commit's record with it stays within the largest value that every store must take, 300 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Describe the commit that a request asks for. `created_ms` None: now.

    Where the message is empty, merges, reverts and cherry-picks make one. Each flow checks its note before it does
    anything.

    Raises:
        InvalidNote: a date that no collector could write down, or more words than a record may have.
    """

    message: str = ""
    committer: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_ms: int | None = None

    def __post_init__(self) -> None:
        if self.created_ms is not None and not DATE_MS_MIN <= self.created_ms <= DATE_MS_MAX:
            raise InvalidNote("a commit's date is within the years 1 to 9999", created_ms=self.created_ms)
        words = (self.message, self.committer, *self.metadata, *self.metadata.values())
        size_bytes = sum([len(word.encode()) + 8 for word in words])
        if size_bytes > NOTE_BYTES_MAX:
            raise InvalidNote(
                f"a commit's message and metadata have at most {NOTE_BYTES_MAX} bytes", size_bytes=size_bytes
            )


@dataclass(frozen=True, slots=True)
class Built:
    """A commit, or None for no change, and all that it was built from."""

    commit: Commit | None
    commit_id: CommitId
    head: CommitId
    left: tuple[Sealed, ...]
    epoch: int
    is_taken: bool = False
    """Writers set staged cells again, because another commit sealed the first ones; it took the writes."""

    def is_from(self, record: BranchRecord, left: Sequence[Sealed]) -> bool:
        """Return whether it may be published on this record as it is."""
        # Head *and* left: keeping the metarange and changing only the parent would lose the changes between.
        return self.head == record.commit_id and self.left == tuple(left) and self.epoch == record.epoch


class Committer:
    def __init__(self, context: Context, retired: Retired, taken: Taken, refs: Refs, reflog: Reflog) -> None:
        self._context = context
        self._reflog = reflog
        self._retired = retired
        self._taken = taken
        self._refs = refs

    async def commit(self, branch: str, note: Note, *, allow_empty: bool = False) -> Commit:
        """Commit everything staged on the branch; returns the commit as it is in the branch's history.

        Costs, undisturbed: two reads (and one more for every TOGETHER ranges written but the last), two `set_if`, two
        `set` and one scan of the cells, beside the range files.

        Raises:
            BranchNotFound: there is none, or it was deleted meanwhile.
            NoChanges: the staged cells change nothing, and not `allow_empty`. Facts: `is_taken`, as in `Built`.
            CommitOvertaken: another operation took the sealed tokens.
        """
        mine, seen = await self.seal(branch)
        built = await self._publish_sealed(branch, mine, seen, note, allow_empty=allow_empty)
        if built.commit is None:
            raise NoChanges("commit: no changes", branch=branch, is_taken=built.is_taken)
        return built.commit

    async def seal(self, branch: str) -> tuple[StagingToken, Seen]:
        """Step 1: put a fresh token in place of the current one. Return the sealed token, and the branch after that."""
        retry = Retry()
        while True:
            seen = await self._context.branches.fresh(branch)
            mine = seen.record.staging_token
            try:
                return mine, await self._context.branches.set(branch, self._sealed(seen.record), seen)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                # Seal again. If the lost seal took place, its token is among the sealed ones, and this commit takes it.
                retry.lost(error)

    def _sealed(self, record: BranchRecord) -> BranchRecord:
        fresh = self._context.fresh_token()
        return replace(record, staging_token=fresh, sealed=(Sealed(record.staging_token), *record.sealed))

    async def _publish_sealed(
        self, branch: str, mine: StagingToken, seen: Seen, note: Note, *, allow_empty: bool
    ) -> Built:
        """Steps 2 to 4."""
        operation = self._context.ports.ids.fresh()
        built: Built | None = None
        attempt, retry = 0, Retry()
        while True:
            place = find_mine(seen.record.sealed, mine)
            # Not among the sealed tokens, and our commit is not in the history: another operation took its cells.
            if place is None:
                raise CommitOvertaken("commit: another operation took what was being committed", branch=branch)
            left = seen.record.sealed[place:]
            if built is None or not built.is_from(seen.record, left):
                built = await self._build(branch, seen.record, left, note, allow_empty=allow_empty)
            attempt += 1
            tokens = [sealed.token for sealed in left]
            made = built.commit_id if built.commit else None
            published = replace(seen.record, commit_id=built.commit_id, sealed=seen.record.sealed[:place])
            also: Sequence[tuple[bytes, bytes]] = ()
            if built.commit:
                published = self._reflog.move(seen.record, published, operation="commit", by=note.committer)
                also = self._reflog.to_log(branch, seen.record)
            await self._context.claim(operation, attempt, branch, tokens, made, why=ClaimReason.COMMIT, also=also)
            try:
                await self._context.branches.set(branch, published, seen)
                return await self._done(built)
            except PredicateFailed:
                seen = await self._context.branches.fresh(branch)
            except OutcomeUnknown as error:
                retry.lost(error)
                seen = await self._context.after_lost(self._context.branches.fresh(branch))
            if built.commit and await self._context.commits.is_in_chain(
                built.commit_id, built.commit.generation, seen.record.commit_id
            ):
                return await self._done(built)

    async def _done(self, built: Built) -> Built:
        if built.commit is not None:
            await self._context.commits.note_published(built.commit_id, self.counted(built.commit))
        return built

    def counted(self, commit: Commit) -> Commit:
        """Return the commit as it is noted once a branch took it. If its committer slept, retention counts from now."""
        now_ms = self._context.ports.clock.now_ms()
        is_late = now_ms - commit.written_ms >= IN_ONE_GO_MS
        return replace(commit, written_ms=now_ms, counted_ms=max(now_ms, commit.counted_ms)) if is_late else commit

    async def _build(
        self, branch: str, record: BranchRecord, left: Sequence[Sealed], note: Note, *, allow_empty: bool
    ) -> Built:
        """Step 2: lay the sealed cells over the head, and write ranges and the commit's record."""
        # `record.epoch` is from before the cells are read and before any id is asked after. So a bump in between fails
        # the publication.
        base = await self._context.commits.metarange(record.commit_id)
        metarange = await self.lay(base, [sealed.token for sealed in left])
        if metarange == base and not allow_empty:
            # The head itself stands for the new commit. Its tokens are taken all the same, or an idle branch that is
            # committed every minute would grow a token a minute.
            is_taken = await self._are_repeats_among([sealed.token for sealed in left])
            return Built(None, record.commit_id, record.commit_id, tuple(left), record.epoch, is_taken)
        commit, commit_id = await self._write_new(branch, metarange, record.commit_id, note)
        return Built(commit, commit_id, record.commit_id, tuple(left), record.epoch)

    async def lay(
        self, base: MetarangeId, tokens: Sequence[StagingToken], done: MetarangeId | None = None, start: bytes = b""
    ) -> MetarangeId:
        """Return the tree of `base` with the cells of these tokens over it, of which the newest comes first.

        `done` has those in front of `start`. Nothing names the tree yet, so all of this may be done twice.
        """
        metarange = base if done is None else done
        newest = self._context.token_partition(tokens[0])
        following: bytes | None = start
        while following is not None:
            first = await self._context.store.scan(newest, following, self._context.options.scan_page)
            laid = await self._laid_aside(base, tokens, metarange, following, first)
            if laid is not None:
                return laid
            layers, following = await self._layers(tokens, following, first)
            if not layers:
                continue
            joined = layers[0] if len(layers) == 1 else await self._context.ports.tasks.apart(partial(overlay, layers))
            changes = await self._spare(base, layers, joined)
            # The tree of each part is a step to the next, and nothing names it. A collection takes it as any other.
            metarange = await self.applied(metarange, changes)
        return metarange

    async def applied(self, before: MetarangeId, changes: pa.Table) -> MetarangeId:
        """Return the tree of `before` with these changes (CHANGES_SCHEMA) over it."""
        applied = await self._context.trees.apply(before, changes, retired_by=self._retired.retired_by)
        if applied.added + applied.changed + applied.removed < changes.num_rows:
            return await self._renewed(before, changes, applied.metarange_id)
        return applied.metarange_id

    async def _renewed(self, before: MetarangeId, changes: pa.Table, applied: MetarangeId) -> MetarangeId:
        """Apply the changes again, if some were none, so that they take the place of entries whose objects runs take.

        An equal entry is no change, and the head's entry stays. But where a run takes the object of that entry, the
        upload would be lost with it. Costs one `get_many` where no policy was ever set and nothing erased.
        """
        # First what every such run leaves, then the runs, then what they noted. A run that begins later bumps the
        # branch, and the commit is built again.
        if not await self._taken.is_ever_used():
            return applied
        may_take = await self._retired.is_lifecycle_expiring()
        puts, places = changes.filter(pc.invert(changes["tombstone"])), list[bytes]()
        for start in range(0, puts.num_rows, LOOKED_UP_TOGETHER):
            part = puts.slice(start, LOOKED_UP_TOGETHER)
            paths, digests = (part[name].to_pylist() for name in ("key", "digest"))
            rows = await self._context.trees.lookup_many(before, paths)
            found = zip(paths, rows, digests, strict=True)
            same = [(path, row) for path, row, digest in found if row is not None and row[0] == digest]
            by = await self._taken.find_rows([row for _, row in same])
            places += [path for (path, _), run in zip(same, by, strict=True) if may_take or run is not None]
            await self._context.ports.clock.sleep(0)  # Lookups in the cache let no other task have a turn.
        return await self.replaced(before, changes, places) if places else applied

    async def replaced(self, before: MetarangeId, changes: pa.Table, keys: Sequence[bytes]) -> MetarangeId:
        """Return the tree of `before` with these changes, which take the place even of equal entries at these keys."""
        gone = changes.filter(pc.is_in(changes["key"], value_set=pa.array(keys, pa.binary())))
        at = gone.schema.get_field_index("tombstone")
        gone = gone.set_column(at, gone.schema.field(at), pa.repeat(pa.scalar(True), gone.num_rows))
        trees, retired_by = self._context.trees, self._retired.retired_by
        without = await trees.apply(before, gone, retired_by=retired_by)
        return (await trees.apply(without.metarange_id, changes, retired_by=retired_by)).metarange_id

    async def _laid_aside(
        self, base: MetarangeId, tokens: Sequence[StagingToken], done: MetarangeId, start: bytes, first: Page
    ) -> MetarangeId | None:
        """Let another process do the rest of `lay`, where there is one and that takes more than some ms."""
        lay_aside, is_bulk = self._context.lay_aside, first.next_start is not None
        if lay_aside is None or not (is_bulk or await self._context.trees.is_large_at(base, first.keys[:1])):
            return None
        return await lay_aside(base, tokens, done, start, is_bulk)

    async def _write_new(
        self, branch: str, metarange: MetarangeId, head: CommitId, note: Note
    ) -> tuple[Commit, CommitId]:
        """Make and write the record of a commit on this head; where an answer is lost, that of another one."""
        retry = Retry()
        while True:
            commit = await self.new_commit(branch, metarange, (head,), note)
            try:
                return commit, await self._context.commits.write(commit)
            except OutcomeUnknown as error:
                # The lost write may come late. Under the same id it would remove the note that the commit is published.
                retry.lost(error)

    async def _are_repeats_among(self, tokens: Sequence[StagingToken]) -> bool:
        """Look at the first page of each token's cells."""
        for token in tokens:
            page = await self._context.store.scan(
                self._context.token_partition(token), b"", self._context.options.scan_page
            )
            if any(flags & REPEATED for flags, _ in decode_cells(page.values)):
                return True
        return False

    async def _layers(
        self, tokens: Sequence[StagingToken], start: bytes, first: Page
    ) -> tuple[list[pa.Table], bytes | None]:
        """Return the next part in order of key, and where another begins: the cells of each token that has any there
        (newest first), as columns. `first` is the first page of the newest."""
        # A part ends where one of the tokens has been read as far as PART_ROWS go, so memory does not grow with the
        # staged cells. Cells of another token behind that end are read again for the next part.
        found = [await self._layer(token, start, first if token == tokens[0] else None) for token in tokens]
        end = min([layer.next_start for layer in found if layer.next_start is not None], default=None)
        layers = [layer.before(end) for layer in found]
        return [layer for layer in layers if layer.num_rows], end

    async def _spare(self, base: MetarangeId, layers: Sequence[pa.Table], changes: pa.Table) -> pa.Table:
        """Leave out tombstones that hide one version of a path where another one is beneath, staged or in the head.

        `changes`: the overlay of the layers.
        """
        # A move puts these where nothing is staged, and others once it is done. If a merge came first and the mover
        # died before it looked again, the merge's entry stays. Ordinary tombstones have no digest; a doomed cell has
        # the date of its object.
        hidden = pc.and_(changes["tombstone"], pc.not_equal(changes["digest"], 0))
        places = pc.indices_nonzero(pc.and_(hidden, pc.equal(changes["modified_ms"], 0)))
        if not len(places):
            return changes
        keys = chunk(changes, "key").take(places)
        is_kept, restored = np.ones(changes.num_rows, bool), []
        for start in range(0, len(places), LOOKED_UP_TOGETHER):
            if start:
                await self._context.ports.clock.sleep(0)  # Lookups in the cache let no other task have a turn.
            here = slice(start, start + LOOKED_UP_TOGETHER)
            paths = keys[here].to_pylist()
            rows = await self._context.trees.lookup_many(base, paths)
            staged = _shown_together(layers, keys[here])
            for place, path, row in zip(places[here].to_pylist(), paths, rows, strict=True):
                cell = staged[path]
                if not is_gone(cell[0]):
                    restored.append((path, cell[1]))
                elif hides_one(cell) and row is not None:
                    is_kept[place] = version_digest(row) == cell[1][0]
        if restored:
            return overlay([changes_from_rows(*zip(*restored, strict=True)), changes.filter(pa.array(is_kept))])
        return changes if is_kept.all() else changes.filter(pa.array(is_kept))

    async def _layer(self, token: StagingToken, start: bytes, first: Page | None) -> _Layer:
        """Read cells of a token from `start` on. Each page becomes columns at once."""
        partition = self._context.token_partition(token)
        pages: list[pa.Table] = []
        next_start: bytes | None = start
        rows = 0
        while next_start is not None and rows < PART_ROWS:
            page = first or await self._context.store.scan(partition, next_start, self._context.options.scan_page)
            first = None
            for row in range(0, len(page.keys) or 1, ROWS_A_TURN):
                here = slice(row, row + ROWS_A_TURN)
                pages.append(changes_table(page.keys[here], page.values[here]))
                # An embedded store reads without ever waiting.
                await self._context.ports.clock.sleep(0)
            rows, next_start = rows + len(page.keys), page.next_start
        return _Layer(pages[0] if len(pages) == 1 else pa.concat_tables(pages), next_start)

    async def new_commit(
        self, branch: str, metarange: MetarangeId, parents: tuple[CommitId, ...], note: Note
    ) -> Commit:
        generation = 1 + max([(await self._context.commits.read(parent)).generation for parent in parents], default=0)
        now_ms = self._context.ports.clock.now_ms()
        first = await self._context.commits.read(parents[0]) if parents else None
        commit = Commit(
            generation=generation,
            message=note.message,
            committer=note.committer,
            created_ms=now_ms if note.created_ms is None else note.created_ms,
            written_ms=now_ms,
            counted_ms=_counted_ms(note.created_ms, now_ms, first),
            metarange_id=metarange,
            parents=parents,
            metadata=dict(note.metadata),
            made_for=branch,
            nonce=self._context.ports.ids.fresh(),
            tried=True,
        )
        return await self._context.commits.ancestors.placed(commit)

    async def initialise(self, default_branch: str) -> Commit:
        """Make the first commit and the default branch of a new repository. Called once, before it can be seen."""
        note = Note(message="Repository created", committer="")
        made = await self.new_commit(default_branch, EMPTY_METARANGE, (), note)
        commit = replace(made, published=True, tried=False)
        await self._context.commits.write(commit, also=[self._refs.first_branch(default_branch, commit.id)])
        return commit


def _shown_together(layers: Sequence[pa.Table], keys: pa.Array) -> dict[bytes, Cell]:
    """Return the cell that stands for all those of a path in these layers (newest first), by path."""
    shown: dict[bytes, Cell] = {}
    for layer in reversed(layers):
        found = layer.take(pc.indices_nonzero(pc.is_in(chunk(layer, "key"), value_set=keys)))
        for (key, row), is_tombstone in zip(rows_from_table(found), found["tombstone"].to_pylist(), strict=True):
            shown[key] = shown_over((TOMBSTONE if is_tombstone else 0, row), shown.get(key))
    return shown


@dataclass(frozen=True, slots=True)
class _Layer:
    """Hold cells of one token as columns, ascending, complete up to where `next_start` is. None: to the end."""

    table: pa.Table
    next_start: bytes | None

    def before(self, end: bytes | None) -> pa.Table:
        """Return the cells in front of `end`, or all where it is None."""
        if end is None or not self.table.num_rows or self.next_start == end:
            return self.table
        return self.table.filter(pc.less(self.table["key"], pa.scalar(end, self.table["key"].type)))


def _counted_ms(given_ms: int | None, now_ms: int, first: Commit | None) -> int:
    """Return the time from which retention counts a commit that is written now on top of `first`; 0: from its date."""
    if first is None:
        return 0
    # `first` was a head until now, and never until before it became one, however far this server's clock is behind.
    until_ms = max(now_ms, first.written_ms, first.counted_ms)
    # An import writes a history in one go: then the dates of its client count. Where `first` was a head for longer,
    # no date of a client makes it expire earlier.
    if given_ms is not None and max(now_ms - first.written_ms, until_ms - now_ms) < IN_ONE_GO_MS:
        return 0
    return until_ms if until_ms > (now_ms if given_ms is None else given_ms) else 0


def find_mine(sealed: Sequence[Sealed], mine: StagingToken) -> int | None:
    """Return where my token is, or the frozen one that stands for it."""
    for place, item in enumerate(sealed):
        if mine == item.token or mine in item.stands_for:
            return place
    return None
