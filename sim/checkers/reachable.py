"""Invariants 5 and 6: nothing reachable is deleted, and what is not reachable goes.

An address is reachable if one of three names it. The first is a cell of a token that a branch holds, shadowed by a
newer one or not. The second is a commit in the history of a branch or tag that no committed run swept; a head counts in
any case. The third is an upload that may still be linked. A copy under way counts while its source does: a copy of
garbage fails at its second look, and one that does not fail ends in a cell. Addresses are fresh, and what was deleted
never comes back: so what the end of a schedule shows was there all along. An upload that was issued may have no bytes
yet; so for these each delete is looked at as it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from explorer.actors import BLOCKS, Ending, Violation
from explorer.disk import Disk
from lakebed.base import CommitId, MetarangeId, Row, RunId, RunKind, RunState, from_row
from lakebed.gc.messages import GARBAGE, decode_deferred, deferred_path, read_part
from lakebed.versions import (
    BranchRecord,
    ClaimReason,
    QueuedRecord,
    RefState,
    RunRecord,
    SweptRecord,
    TagRecord,
    UploadRecord,
    UploadState,
    decode_cell,
    decode_record,
    is_exclusive,
    is_gone,
    keys,
)
from sim.ports.files import pairs_in

from .views import PARTITION, UID, View

PROMISES: Final = b"(promises)"
"""A partition of the simulation's own: versions of rules whose setter got the answer that they count at once."""
NAMED: Final = b"(named)"
"""Likewise: commits of which it was promised that all they name stays, but for paths that are due."""
SIGNED: Final = b"(signed)"
"""Likewise: addresses for which a URL was signed, with which its client may still replace the bytes."""
TOKENS: Final = PARTITION + b"/"
_LIVE_UPLOADS = (UploadState.ISSUED, UploadState.LINKING)


def nothing_reachable_is_deleted(ending: Ending) -> None:
    """Check invariant 5, at the end."""
    named = {address for address in reachable(ending.disk) if address.startswith("data/")}
    if missing := named - ending.disk.objectstore.keys():
        raise Violation(f"deleted although reachable: {sorted(missing)}")


def committed_bytes_stay(ending: Ending) -> None:
    """Check that no cell and no commit names an address whose bytes a client can replace, at the end."""
    signed = {key.decode() for key in ending.disk.cells.get(SIGNED, {})}
    if signed and (named := signed & reachable(ending.disk)):
        raise Violation(f"a signed URL can replace bytes that are named: {sorted(named)}")


def nothing_undue_is_deleted(*due: bytes) -> Callable[[Ending], None]:
    """Check invariant 5 beside a lifecycle run: what commits have at due paths may go, and nothing else."""

    def check(ending: Ending) -> None:
        kept = {address for address in reachable(ending.disk, due=frozenset(due)) if address.startswith("data/")}
        if missing := kept - ending.disk.objectstore.keys():
            raise Violation(f"deleted although something that is not due names it: {sorted(missing)}")

    return check


def nothing_active_is_deleted(*due: bytes) -> Callable[[Ending], None]:
    """Check invariant 5 beside a lifecycle run to which only active commits count.

    Heads of branches, and commits of which it was promised, keep what they name at paths that are not due. So does each
    cell.
    """

    def check(ending: Ending) -> None:
        disk, view = ending.disk, View(ending.disk)
        commits = {CommitId(key.decode()) for key in disk.cells.get(NAMED, {})}
        main = view.branch("main")
        commits |= set() if main is None else {main.commit_id}
        kept = _staged(view)
        for commit_id in commits:
            kept |= addresses_of(disk, view.commit(commit_id).metarange_id, but=frozenset(due))
        if missing := {one for one in kept if one.startswith("data/")} - disk.objectstore.keys():
            raise Violation(f"deleted although an active commit names it where it is not due: {sorted(missing)}")

    return check


def deletes_spare_open_uploads(disk: Disk, partition: bytes, key: bytes, _: bytes | None, new: bytes | None) -> None:
    """Check invariant 5, at each delete: no address that may still be linked, or is just being."""
    if partition != BLOCKS or new is not None:
        return
    value = disk.value(PARTITION, keys.UPLOAD + key)
    if value is None:
        return
    state = decode_record(UploadRecord, value).state
    # Of one that is queued the link can set no cell any more: were that wrong, the end would show it. And it may be
    # deleted twice.
    is_let_go = key.decode() in queued(disk) or key.decode() not in disk.objectstore
    if state in _LIVE_UPLOADS and not (state is UploadState.LINKING and is_let_go):
        raise Violation(f"{key.decode()} was deleted, and may still be linked")


def addresses_are_fresh(disk: Disk, partition: bytes, key: bytes, _: bytes | None, new: bytes | None) -> None:
    """Check that no address of ours is written to twice: a late delete could take what another writer put there."""
    if partition == BLOCKS and new is not None and key.startswith(b"data/") and key.decode() in disk.objectstore:
        raise Violation(f"{key.decode()} was handed out twice")


def sweeps_keep_promises(disk: Disk, partition: bytes, key: bytes, _: bytes | None, new: bytes | None) -> None:
    """Check that rules count at once where the answer promised it: no run by older rules takes a commit after that."""
    if partition != PARTITION or not key.startswith(keys.SWEPT) or new is None:
        return
    run = disk.value(PARTITION, keys.RUN + decode_record(SweptRecord, new).run.encode())
    version = 0 if run is None else int(decode_record(RunRecord, run).rules_version or 0)
    promised = [int(held) for held in disk.cells.get(PROMISES, {}).values()]
    if version and version < max(promised, default=0):
        raise Violation(f"rules of version {max(promised)} counted, and a run takes commits by those of {version}")


def names_are_unique(disk: Disk, partition: bytes, key: bytes, _: bytes | None, new: bytes | None) -> None:
    """Check that no branch and tag of one name can be used."""
    if partition != PARTITION or new is None or not key.startswith((keys.BRANCH, keys.TAG)):
        return
    name = key.partition(b"/")[2]
    branch, tag = disk.value(PARTITION, keys.BRANCH + name), disk.value(PARTITION, keys.TAG + name)
    if branch is None or tag is None:
        return
    if {decode_record(BranchRecord, branch).state, decode_record(TagRecord, tag).state} == {RefState.ACTIVE}:
        raise Violation(f"a branch and a tag have the name {name.decode()}")


def marks_are_true(disk: Disk, partition: bytes, key: bytes, _: bytes | None, new: bytes | None) -> None:
    """Check that an exclusive cell is true: no other cell and no commit names the address, as far as its token shows.

    A token that a freeze retired is left out, and what a commit that claims the token holds at the path."""
    if new is None or not (partition.startswith(TOKENS) or (partition == PARTITION and key.startswith(keys.BRANCH))):
        return
    view = View(disk)
    cells = [(token, *found) for token in view.token_partitions() for found in _cells(disk, token)]
    marked = [(token, path, row) for token, path, flags, row in cells if is_exclusive(flags) and not is_gone(flags)]
    if not marked:
        return
    held = {keys.token_partition(UID, token) for branch in view.branches().values() for token in branch.tokens()}
    named: dict[str, set[tuple[bytes, bytes]]] = {}
    for token, path, flags, row in cells:
        if token in held and not is_gone(flags):
            named.setdefault(from_row(row).address, set()).add((token, path))
    committed = _committed(disk, view)
    for token, path, row in marked:
        address = from_row(row).address
        claims = [one for one in view.claims() if token in {keys.token_partition(UID, mine) for mine in one.tokens}]
        if any(claim.why is ClaimReason.FREEZE for claim in claims):
            continue
        # A collection of metadata removes the record of a commit that lost its race, and its claim may stay for longer.
        taken = [claim.commit_id for claim in claims if claim.commit_id and view.has_commit(claim.commit_id)]
        if any((path, row) in view.pairs(commit_id) for commit_id in taken):
            continue
        if address in committed or named.get(address, set()) - {(token, path)}:
            raise Violation(f"{address} at {path!r} is marked exclusive, and something else names it")


def nothing_queued_is_named(disk: Disk, partition: bytes, _: bytes, __: bytes | None, new: bytes | None) -> None:
    """Check that no address that may be deleted at once is reachable, from the moment on at which it is queued."""
    is_ours = partition.startswith(PARTITION) and new is not None
    if is_ours and (waiting := queued(disk)) and (named := waiting & reachable(disk)):
        raise Violation(f"{sorted(named)} may be deleted at once, and something names it")


def queued(disk: Disk) -> set[str]:
    """Return addresses that wait to be deleted at once."""
    held = disk.cells.get(keys.garbage_partition(UID), {})
    return {decode_record(QueuedRecord, value).address for value in held.values()}


def _cells(disk: Disk, token: bytes) -> list[tuple[bytes, int, Row]]:
    return [(path, *decode_cell(value)) for path, value in disk.cells.get(token, {}).items()]


def garbage_goes(ending: Ending) -> None:
    """Check invariant 6, after full runs: only reachable objects are left."""
    if left := garbage(ending.disk):
        raise Violation(f"garbage stays: {sorted(left)}")


def garbage(disk: Disk) -> set[str]:
    """Return objects that nothing names, and no run holds until the end of a window."""
    return {key for key in disk.objectstore if key.startswith("data/")} - reachable(disk) - deferred(disk)


def deferred(disk: Disk, *, ended: bool = False) -> set[str]:
    """Return addresses that deferred runs hold until the end of a window; `ended`: also of those that ended."""
    return _held(disk, lambda run: ended or run.state is not RunState.ENDED)


def waiting(disk: Disk, *, erased: str = "") -> set[str]:
    """Return addresses that runs hold whose windows are not over; but for those that they hold for this path."""
    return _held(disk, lambda run: not run.purging and run.state is not RunState.ENDED, but=erased)


def what_was_undone_stays(ending: Ending) -> None:
    """Check that the objects of lifecycle runs that were undone are there, unless another run took them, too."""
    disk, ended = ending.disk, View(ending.disk).runs()
    undone = {run for run, record in ended.items() if record.state is RunState.UNDONE}
    kept = {run for run in undone if ended[run].kind is RunKind.LIFECYCLE}
    others = [run for run, record in ended.items() if run not in undone and record.kind.takes_named and record.plan]
    for run in kept if not others else ():
        if lost := _table(disk, RunKind.LIFECYCLE, RunId(run), but="") - disk.objectstore.keys():
            raise Violation(f"run {run} was undone, and its objects are gone: {sorted(lost)}")


def _held(disk: Disk, holds: Callable[[RunRecord], bool], *, but: str = "") -> set[str]:
    runs = View(disk).runs().items()
    holding = [(run.kind, RunId(run_id)) for run_id, run in runs if run.until_ms and holds(run)]
    return {address for kind, run_id in holding for address in _table(disk, kind, run_id, but=but)}


def _table(disk: Disk, kind: RunKind, run_id: RunId, *, but: str) -> set[str]:
    """Return addresses in the table of a deferred run."""
    table = disk.objectstore.get(deferred_path(kind, run_id))
    if table is None:
        return set()
    garbage = decode_deferred(table[0], run_id).garbage
    found: set[str] = set()
    for part in garbage.parts:
        rows = read_part(garbage, GARBAGE, part, disk.objectstore[garbage.folder + part.name][0])
        held_rows = zip(rows["address"].to_pylist(), rows["path"].to_pylist(), strict=True)
        found.update(address for address, path in held_rows if not but or path != but)
    return found


def reachable(disk: Disk, *, due: AbstractSet[bytes] = frozenset()) -> set[str]:
    """Return addresses that cells of held tokens and commits in histories name; commits but for paths that are due."""
    view = View(disk)
    return _staged(view) | _committed(disk, view, due=due)


def _staged(view: View) -> set[str]:
    """Return addresses that cells of held tokens name."""
    rows = (view.rows(token).values() for branch in view.branches().values() for token in branch.tokens())
    return {from_row(row).address for staged in rows for row in staged if row is not None}


def _committed(disk: Disk, view: View, *, due: AbstractSet[bytes] = frozenset()) -> set[str]:
    """Return addresses that commits in histories name, but for these paths."""
    found: set[str] = set()
    branches = view.branches()
    refs: list[BranchRecord | TagRecord] = [*branches.values(), *view.records(TagRecord, keys.TAG).values()]
    for commit_id in histories(view, {ref.commit_id for ref in refs}):
        if not view.is_swept(commit_id):
            found |= addresses_of(disk, view.commit(commit_id).metarange_id, but=due)
    for ref in refs:
        # Its own commit counts whatever was swept: naming one that was is what must not happen.
        if ref.state is RefState.ACTIVE:
            found |= addresses_of(disk, view.commit(ref.commit_id).metarange_id, but=due)
    return found


def addresses_of(disk: Disk, metarange: MetarangeId, *, but: AbstractSet[bytes] = frozenset()) -> set[str]:
    """Return what a tree names, but for these paths."""
    return {from_row(row).address for path, row in pairs_in(disk, metarange) if path not in but}


def histories(view: View, heads: Iterable[CommitId]) -> set[CommitId]:
    found: set[CommitId] = set()
    waiting = list(heads)
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in found:
            found.add(commit_id)
            waiting += view.commit(commit_id).parents
    return found
