"""Writing and reading entries: document 002's writer and reader flows, and the ways in which an address gets into a
cell.

The writer (docs/design/protocols.md, "Write"): set the cell in the current token, then read the branch again, never
from the cache. Same token: acknowledged, because no commit sealed it before the cell was there. Another token, even if
ours is still among the sealed: the same entry again in the new token. If the first cell did get into the commit, the
second equals it and is no change.

Cells are replaced by `set_if`, so every write knows the cell that it replaced; and a cell knows whether it is
exclusive: whether no other cell and no commit names its address. A mark is set once, by the write that finds no cell of
its own, and comes off before a second cell names the address. A writer that cannot make sure of that takes a fresh
address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from lakebed.base import (
    TABLES,
    CommitId,
    Entry,
    Etags,
    LakebedError,
    OutcomeUnknown,
    Row,
    StagingToken,
    Unavailable,
    from_row,
    is_absolute,
    is_inside,
    to_row,
)
from lakebed.kv import PredicateFailed
from lakebed.objectstore import ObjectMissing
from lakebed.versions.cells import (
    CONDITIONAL,
    DOOMED,
    EXCLUSIVE,
    REPEATED,
    TOMBSTONE,
    TOMBSTONE_ROW,
    Cell,
    decode_cell,
    encode_cell,
    hides_one,
    is_exclusive,
    is_gone,
)
from lakebed.versions.context import Context, Retry
from lakebed.versions.errors import AddressNotAllowed, PathExists, PathNotFound, PreconditionFailed, UploadRefused
from lakebed.versions.hard_delete import HardDelete, LetGoBy
from lakebed.versions.records import BranchRecord
from lakebed.versions.refs.refs import Refs
from lakebed.versions.retired import Retired, says_who_took
from lakebed.versions.taken import Taken

from .conditions import ANY, Condition, OwnCell, Owning
from .layers import LISTING_PAGE, Layers, Listing, Size, View
from .slices import Place, Slices


class AddressSpent(LakebedError):
    """No further cell may name this address. Never leaves this package: an upload begins again at a fresh address.

    Its slice was fenced, or its cell is not there to take the exclusive mark off.
    """

    # Cells of earlier rounds.
    own: tuple[OwnCell, ...] = ()


class _LookedTooLate(LakebedError):
    """The branch left the token while a condition was looked at: nothing may be set there.

    `is_set`: an earlier attempt, whose answer was lost, may have set the cell.
    """

    is_set = False


class Staging:
    def __init__(
        self,
        context: Context,
        *,
        retired: Retired,
        taken: Taken,
        refs: Refs,
        layers: Layers,
        slices: Slices,
        hard_delete: HardDelete,
    ) -> None:
        self._context = context
        self._retired = retired
        self._taken = taken
        self._refs = refs
        self._layers = layers
        self._slices = slices
        self._hard_delete = hard_delete
        self._owning = Owning(context)

    # Reading

    async def open(self, ref: str, key: bytes) -> Entry:
        """Return the entry whose bytes are to be read: they stay for the readers' grace from now.

        Raises:
            RefNotFound, PathNotFound: see `get`.
            PathExpired: a lifecycle run took the object.
        """
        found = await self._find(ref, key)
        if found is None:
            raise PathNotFound("not found", key=key)
        entry = from_row(found[1])
        # Runs take objects that commits name, and no commit names the object of an exclusive cell.
        if not is_exclusive(found[0]):
            # An object that a run takes from now on stays for the run's grace.
            await self._taken.check(entry)
        return entry

    async def get(self, ref: str, key: bytes) -> Entry:
        """
        Raises:
            RefNotFound: the expression names nothing.
            PathNotFound: nothing is at this path.
        """
        row = await self.get_row(ref, key)
        if row is None:
            raise PathNotFound("not found", key=key)
        return from_row(row)

    async def get_row(self, ref: str, key: bytes) -> Row | None:
        found = await self._find(ref, key)
        return None if found is None else found[1]

    @says_who_took
    async def _find(self, ref: str, key: bytes) -> Cell | None:
        resolved = await self._refs.resolve(ref)
        if resolved.branch is not None:
            return await self._context.branches.consistent(
                resolved.branch, lambda record: self._layers.find(View.of(record), key)
            )
        row = await self._context.trees.lookup(await self._context.commits.metarange(resolved.commit_id), key)
        # After the read, never before: contents read before a run gave them up stay readable for its grace.
        await self._retired.check_contents([resolved.commit_id])
        return None if row is None else (0, row)

    async def get_many(self, ref: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entries in the order of `keys`; None where there is none. Those of a branch are of one state."""
        return [None if row is None else from_row(row) for row in await self.get_rows(ref, keys)]

    @says_who_took
    async def get_rows(self, ref: str, keys: Sequence[bytes]) -> list[Row | None]:
        """Return the rows of `get_many`."""
        resolved = await self._refs.resolve(ref)
        if resolved.branch is None:
            return await self.rows_of_commit(resolved.commit_id, keys)
        return await self._context.branches.consistent(resolved.branch, lambda record: self._look_up_many(record, keys))

    async def rows_of_commit(self, commit_id: CommitId, keys: Sequence[bytes]) -> list[Row | None]:
        """Return the rows in the order of `keys`; None where the commit has none."""
        rows = await self._context.trees.lookup_many(await self._context.commits.metarange(commit_id), keys)
        await self._retired.check_contents([commit_id])
        return rows

    async def _look_up_many(self, record: BranchRecord, keys: Sequence[bytes]) -> list[Row | None]:
        rows = await self._context.trees.lookup_many(await self._context.commits.metarange(record.commit_id), keys)
        moved: list[int] = []
        # Oldest first, so that a newer cell replaces an older one.
        for token in reversed(record.tokens()):
            for index, held in enumerate(
                await self._context.store.get_many(self._context.token_partition(token), keys)
            ):
                if held is not None:
                    flags, row = cell = decode_cell(held.value)
                    rows[index] = None if is_gone(flags) else row
                    if hides_one(cell):
                        moved.append(index)
        # Such a tombstone hides one version only, so all layers decide. Moves under way are rare.
        for index in moved:
            rows[index] = await self._layers.look_up(View.of(record), keys[index])
        return rows

    # Writing

    async def upload(
        self,
        branch: str,
        key: bytes,
        store_body: Callable[[str], Awaitable[Entry]],
        *,
        condition: Condition = ANY,
    ) -> Entry:
        """Have `store_body` put bytes at a fresh address, then stage the entry it returns.

        Costs, beside the body: two reads of the branch, one of the slice, one of the cell, one `set_if`; all of it
        again, but for the body, for every commit that began meanwhile.

        Raises:
            BranchNotFound: there is no such branch, or it was deleted meanwhile.
            PathExists, PreconditionFailed: the condition does not hold.
        """
        # A refusal costs no body. The write decides again, later.
        await self.check(branch, key, condition)
        place = await self._slices.place()
        try:
            entry = await store_body(place.address)
            assert entry.address == place.address, "the body went elsewhere"
        except BaseException as error:
            # Cancelled, or without a clear answer, the bytes may yet come.
            is_over = isinstance(error, Exception) and not isinstance(
                error, OutcomeUnknown | Unavailable | TimeoutError
            )
            await self._slices.leave(place, is_unused=is_over)
            raise
        return await self._stage_placed(branch, key, entry, place, condition)

    async def check(self, branch: str, key: bytes, condition: Condition) -> None:
        """Refuse an unknown branch or a failed condition before a body is read. The write checks again.

        Raises:
            BranchNotFound, PathExists, PreconditionFailed.
        """
        if condition == ANY:
            await self._context.branches.cached(branch)
            return
        condition.check(
            await self._context.branches.consistent(branch, lambda record: self._layers.look_up(View.of(record), key))
        )

    async def _stage_placed(self, branch: str, key: bytes, entry: Entry, place: Place, condition: Condition) -> Entry:
        own: tuple[OwnCell, ...] = ()
        while True:
            here = place

            # Asked after each reading of the branch: a collector that gives up the slice first fences it, then freezes
            # the branch. So a write that saw the slice open on an older record meets another token, and asks again.
            async def slice_is_open(_: BranchRecord, here: Place = here) -> None:
                if not await self._slices.is_open(here):
                    raise AddressSpent("slice given up", address=here.address)

            try:
                row = to_row(key, entry)
                await self.write(branch, key, EXCLUSIVE, row, before=slice_is_open, condition=condition, own=own)
            except AddressSpent as spent:
                own = spent.own
                place, entry = await self._move_to_fresh_place(place, entry)
            except BaseException as error:
                # Cancelled, or without an answer, the cell may be set after this: then the slice is not ours to close.
                await self._slices.leave(
                    place, in_doubt=isinstance(error, OutcomeUnknown) or not isinstance(error, Exception)
                )
                raise
            else:
                await self._slices.leave(place)
                return entry

    async def _move_to_fresh_place(self, place: Place, entry: Entry) -> tuple[Place, Entry]:
        """Copy the bytes to a fresh address. Fails where a collector was faster."""
        # The body came as a stream and was read once: only the store has it.
        fresh = await self._slices.place()
        try:
            await self._context.objectstore.copy(place.address, fresh.address)
        except ObjectMissing as error:
            await self._slices.leave(fresh)
            raise PreconditionFailed("the upload took too long and was given up; send it again") from error
        except BaseException:
            await self._slices.leave(fresh)
            raise
        finally:
            await self._slices.leave(place)
        return fresh, replace(entry, address=fresh.address)

    async def put(self, branch: str, key: bytes, entry: Entry) -> Entry:
        """Stage an address outside the namespace, which no collector ever deletes.

        Raises:
            AddressNotAllowed: the address is inside the namespace (document 001, "StageObject").
        """
        if not is_absolute(entry.address) or is_inside(entry.address, self._context.objectstore.uri):
            raise AddressNotAllowed("address is inside the repository's storage namespace", address=entry.address)
        await self.write(branch, key, 0, to_row(key, entry))
        return entry

    async def delete(self, branch: str, key: bytes, *, if_match: Etags | None = None) -> None:
        """Delete the entry at this path, if there is one.

        Raises:
            PreconditionFailed: it is none of `if_match`, and stays.
        """
        condition = ANY if if_match is None else Condition(if_match=if_match, or_nothing=True)
        # Look first: a tombstone over nothing costs a write, and a cell in the next commit.
        if (
            await self._context.branches.consistent(branch, lambda record: self._layers.look_up(View.of(record), key))
            is not None
        ):
            await self.write(branch, key, TOMBSTONE, TOMBSTONE_ROW, condition=condition)

    async def delete_many(self, branch: str, keys: Sequence[bytes]) -> list[tuple[bytes, LakebedError]]:
        """Delete each key; return the keys that failed, with their errors. Not atomic."""

        async def attempt(key: bytes) -> LakebedError | None:
            try:
                await self.write(branch, key, TOMBSTONE, TOMBSTONE_ROW)
            except LakebedError as error:
                return error
            return None

        rows = await self._context.branches.consistent(branch, lambda record: self._look_up_many(record, keys))
        present = [key for key, row in zip(keys, rows, strict=True) if row is not None]
        outcomes = await self._context.ports.tasks.gather([attempt(key) for key in present])
        return [(key, error) for key, error in zip(present, outcomes, strict=True) if error is not None]

    async def is_staged_now(self, branch: str, key: bytes, entry: Entry) -> bool:
        """Answer whether the branch's current token has this entry.

        Then the writer that set it is done, though it died before its second look: no commit began since.
        """

        async def look(record: BranchRecord) -> bool:
            held = await self._context.store.get(self._context.token_partition(record.staging_token), key)
            return held is not None and from_row(decode_cell(held.value)[1]) == entry

        return await self._context.branches.consistent(branch, look)

    async def write(
        self,
        branch: str,
        key: bytes,
        flags: int,
        row: Row,
        *,
        before: Callable[[BranchRecord], Awaitable[None]] | None = None,
        unused: Callable[[], Awaitable[None]] | None = None,
        condition: Condition = ANY,
        own: tuple[OwnCell, ...] = (),
    ) -> None:
        """The writer flow. `before` runs ahead of each cell, after the branch was read; its errors end the write.

        Call `unused` when the condition fails before a cell named the address. With None, release the address.

        A condition counts in each round. Cells of earlier rounds (`own`) are no obstacle.

        Raises:
            AddressSpent: an exclusive cell cannot be repeated; the write begins again with another address.
            OutcomeUnknown: refused in a later round, and a commit may have taken the cell of an earlier one.
        """
        # A condition needs a fresh reading: the cache may show the head from before an acknowledged merge. A merge
        # keeps the token, so the second look would not notice.
        branches = self._context.branches
        seen = await (branches.cached(branch) if condition == ANY else branches.fresh(branch))
        is_fresh = is_exclusive(flags)
        # A commit of a table names a staged file (catalog/tables): so no cell of that branch is exclusive.
        shown = ~EXCLUSIVE if branch == TABLES else ~0
        flags |= 0 if condition == ANY else CONDITIONAL
        earlier = own
        try:
            while True:
                if before is not None:
                    await before(seen.record)
                # From now on our cell may be there, in a token that is sealed or committed.
                own = (*own, OwnCell(seen.record.staging_token, seen.record.commit_id, row, is_fresh))
                try:
                    replaced = await self.set_cell(
                        seen.record, key, flags & shown, row, condition, earlier, branch=branch
                    )
                except _LookedTooLate as late:
                    own, seen = own if late.is_set else earlier, await branches.fresh(branch)
                    earlier = own
                    continue
                except (PathExists, PreconditionFailed):
                    # Where the mark is on: not set here, and repeated nowhere.
                    if is_exclusive(flags) and unused is not None:
                        await unused()
                    elif is_exclusive(flags):
                        self._hard_delete.let_go_unnamed(row, key, LetGoBy.REFUSED)
                    raise
                # Sent again, a conditional write would meet its own cell: it may not say that nothing happened.
                fresh = branches.used(branch)
                again = await (fresh if condition == ANY else self._context.after_lost(fresh))
                if again.record.staging_token == seen.record.staging_token:
                    # A committer that seals this token from now on finds our cell. In any other token, a commit may
                    # have read the old cell.
                    if replaced is not None:
                        by = LetGoBy.DELETE if flags & TOMBSTONE else LetGoBy.OVERWRITE
                        self._hard_delete.let_go(replaced, key, by, instead=row)
                    return
                if is_exclusive(flags):
                    # Two cells will name the address: neither may claim it for itself.
                    await self._share_cell(seen.record.staging_token, key, row)
                    flags &= ~EXCLUSIVE
                # A commit that finds no change then knows that an earlier one took the writes.
                flags |= REPEATED
                earlier, seen = own, again
        except AddressSpent as spent:
            spent.own = own
            raise
        except (UploadRefused, PathExists, PreconditionFailed) as error:
            if not earlier or not await self._context.after_lost(self._owning.may_count(branch, key, earlier)):
                raise
            raise OutcomeUnknown("a commit may have taken this write before it was refused", key=key) from error

    async def set_cell(
        self,
        record: BranchRecord,
        key: bytes,
        flags: int,
        row: Row,
        condition: Condition,
        own: Sequence[OwnCell] = (),
        *,
        branch: str = "",
    ) -> Cell | None:
        """Replace whatever the current token holds at `key`. Loops only when another writer of this very path won.

        `branch`: where a condition is looked at.

        Returns the replaced cell. None: there was none, or ours was there after a lost answer.

        Raises:
            AddressSpent: the answer to an exclusive cell was lost, and it is not there.
        """
        partition = self._context.token_partition(record.staging_token)
        value = encode_cell(flags, row)
        is_lost, retry = False, Retry()
        while True:
            look = self._context.store.get(partition, key)
            old = await (self._context.after_lost(look) if is_lost else look)
            # Ours, of an attempt whose answer was lost, whatever its flags: a copy may have taken the mark off since,
            # and set again it would say that the copy's address is named by no other cell.
            found = None if old is None else decode_cell(old.value)
            # Without a condition it does not matter whose equal cell is there. A copy with one may meet another copy's.
            is_ours = old is not None and found is not None and (old.value == value or found[1] == row != TOMBSTONE_ROW)
            # After a lost answer the cell that ours replaced is unknown: another writer may have let it go already.
            if is_ours and (is_lost or condition == ANY):
                return None
            if is_lost and is_exclusive(flags):
                # It may have been there, and been replaced: that writer owns the object, and may delete it.
                raise AddressSpent("the cell may have been replaced", address=from_row(row).address)
            if condition != ANY:
                cell = old.value if old is not None else None
                check = self._check(branch, record, key, cell, condition, own)
                try:
                    await (self._context.after_lost(check) if is_lost or own else check)
                except _LookedTooLate as late:
                    late.is_set = is_lost
                    raise
            try:
                await self._context.store.set_if(partition, key, value, old.predicate if old is not None else None)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                retry.lost(error)
                is_lost = True
                continue
            return found

    async def _check(
        self,
        branch: str,
        record: BranchRecord,
        key: bytes,
        cell: bytes | None,
        condition: Condition,
        own: Sequence[OwnCell],
    ) -> None:
        while True:
            visible = await self._visible(record, key, cell)
            if not record.sealed:
                break
            # A cleaner removes the cells of a token that a commit took: then this record shows what was before both.
            now = (await self._context.branches.fresh(branch)).record
            if now.staging_token != record.staging_token:
                raise _LookedTooLate("the branch has another token", branch=branch)
            if now == record:
                break
            record = now
        try:
            condition.check(visible)
        except (PathExists, PreconditionFailed):
            if visible is None or not await self._owning.is_own(record, key, visible, own):
                raise

    async def _visible(self, record: BranchRecord, key: bytes, cell: bytes | None) -> Row | None:
        found = None if cell is None else decode_cell(cell)
        # A mover that died may have left its tombstone over the entry of a merge.
        if found is None or hides_one(found):
            return await self._layers.look_up(View.of(record), key)
        return None if is_gone(found[0]) else found[1]

    async def _share_cell(self, token: StagingToken, key: bytes, row: Row) -> None:
        """Take the exclusive mark off our cell in a token that we leave.

        Raises:
            AddressSpent: the cell is gone, or being deleted, or another's.
        """
        partition = self._context.token_partition(token)
        retry = Retry()
        while True:
            held = await self._context.after_lost(self._context.store.get(partition, key))
            flags, found = (DOOMED, None) if held is None else decode_cell(held.value)
            if held is None or found != row or flags & DOOMED:
                # The writer that took it away may delete the object, and a cell in another token would still name it.
                raise AddressSpent("the first cell was replaced", address=from_row(row).address)
            if not flags & EXCLUSIVE:
                return
            try:
                await self._context.store.set_if(partition, key, encode_cell(flags & ~EXCLUSIVE, row), held.predicate)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                retry.lost(error)
                continue
            return

    @says_who_took
    async def list_commit(
        self, commit_id: CommitId, *, prefix: bytes = b"", after: bytes = b"", delimiter: bytes = b"", limit: int = 1000
    ) -> Listing:
        """Return one page of a published commit, in key order."""
        view = View((), commit_id)  # Nothing of it ever changes: no second look is needed.
        listing = await self._layers.list(view, prefix=prefix, after=after, delimiter=delimiter, limit=limit)
        await self._retired.check_contents([commit_id])
        return listing

    # `list` comes last: below it the name is the method, not the type.

    @says_who_took
    async def measure(self, ref: str, *, prefix: bytes, after: bytes = b"", limit: int = LISTING_PAGE) -> Size:
        """Count the objects below a prefix behind `after`, and their bytes, up to `limit` uncommitted paths."""
        resolved = await self._refs.resolve(ref)
        if resolved.branch is None:
            view = View((), resolved.commit_id)
            size = await self._layers.measure(view, prefix=prefix, after=after, limit=limit)
            await self._retired.check_contents([resolved.commit_id])
            return size
        return await self._context.branches.consistent(
            resolved.branch,
            lambda record: self._layers.measure(View.of(record), prefix=prefix, after=after, limit=limit),
        )

    @says_who_took
    async def list(
        self, ref: str, *, prefix: bytes = b"", after: bytes = b"", delimiter: bytes = b"", limit: int = 1000
    ) -> Listing:
        """Return one page, in key order. A branch's page is of one state of it; the next page may be of a later one."""
        resolved = await self._refs.resolve(ref)
        if resolved.branch is None:
            return await self.list_commit(
                resolved.commit_id, prefix=prefix, after=after, delimiter=delimiter, limit=limit
            )
        return await self._context.branches.consistent(
            resolved.branch,
            lambda record: self._layers.list(
                View.of(record), prefix=prefix, after=after, delimiter=delimiter, limit=limit
            ),
        )
