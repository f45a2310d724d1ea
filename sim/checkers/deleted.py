"""Endings of worlds in which a repository is deleted: nothing named is gone, and nothing unnamed is left."""

from __future__ import annotations

from collections.abc import Iterator

from explorer.actors import Ending, Violation
from explorer.disk import Disk
from lakebed.base import Row, from_row
from lakebed.catalog import DeletedState
from lakebed.catalog.records import DELETED_REPOSITORIES, RepositoryState
from lakebed.ranges import metarange_key
from lakebed.versions import BranchRecord, Commit, RefState, decode_cell, decode_record, is_gone, keys
from sim.scenes.repositories import deleted_records, repositories

ONE = "sim://one"
OTHER = "other"


def _named_by(disk: Disk, uid: str, *, due: bytes = b"") -> Iterator[str]:
    """Yield the addresses that the branches of a repository name, and the trees of their heads, as keys on the disk.
    What trees have at the path `due` does not count.
    """
    record = next(one for one in repositories(disk).values() if one.uid == uid)
    root = f"{record.namespace_uri}/"
    partition = uid.encode()
    for key in disk.cells.get(partition, {}):
        if not key.startswith(keys.BRANCH):
            continue
        branch = decode_record(BranchRecord, disk.value(partition, key) or b"")
        if branch.state is not RefState.ACTIVE:
            continue
        for token in branch.tokens():
            where = keys.token_partition(record.uid, token)
            for cell in disk.cells.get(where, {}):
                flags, row = decode_cell(disk.value(where, cell) or b"")
                if not is_gone(flags):
                    yield _key_of(row, root)
        commit = decode_record(Commit, disk.value(partition, keys.COMMIT + branch.commit_id.encode()) or b"")
        if commit.metarange_id:
            tree = root + metarange_key(commit.metarange_id)
            yield tree
            for path, row in disk.objectstore.get(tree, ((),))[0]:
                if path != due:
                    yield _key_of(row, root)


def _key_of(row: Row, root: str) -> str:
    address = from_row(row).address
    return address if "://" in address else root + address


def nothing_named_is_deleted(ending: Ending, *, due: bytes = b"") -> None:
    """Check that all that a branch in use names lies in this installation's namespaces, and its tree too."""
    for record in repositories(ending.disk).values():
        for key in _named_by(ending.disk, record.uid, due=due):
            if key.startswith("sim://") and key not in ending.disk.objectstore:
                raise Violation(f"a repository in use names {key}, which was deleted")


def one_of_both(ending: Ending) -> None:
    """Check that a repository that was brought back is in use, and one that is being collected never is."""
    # One that is `deleting` still, because the answer to its deletion was lost, is not.
    in_use = {one.uid for one in repositories(ending.disk).values() if one.state is RepositoryState.ACTIVE}
    for uid, record in deleted_records(ending.disk).items():
        over = record.state in {
            DeletedState.COLLECTING,
            DeletedState.COLLECTED,
            DeletedState.PURGING,
            DeletedState.GONE,
        }
        if over and uid in in_use:
            raise Violation(f"a repository in use is {record.state}")


def a_namespace_has_one(ending: Ending) -> None:
    """Check that no two repositories that are in use, or may be, have one namespace."""
    kept = {DeletedState.KEPT, DeletedState.RESTORING, DeletedState.RESTORED, DeletedState.COLLECTING}
    found = {one.uid: one.namespace_uri for one in repositories(ending.disk).values() if one.state.value == "active"}
    for uid, record in deleted_records(ending.disk).items():
        if record.state in kept and record.repository is not None:
            found[record.repository.uid] = record.repository.namespace_uri
            assert record.repository.uid == uid, "a record is by its repository"
    if len({*found.values()}) < len(found):
        raise Violation(f"one namespace has several repositories: {found}")


def nothing_is_left(ending: Ending) -> None:
    """Check that nothing lies in the slices of a collected repository."""
    for record in deleted_records(ending.disk).values():
        if record.state in {DeletedState.COLLECTED, DeletedState.GONE}:
            left = [key for key in ending.disk.objectstore if key.startswith(f"{ONE}/data/")]
            if left:
                raise Violation(f"collected, and there is {left}")


def no_record_is_left(ending: Ending) -> None:
    """Check that nothing of the key-value store is about a repository that is gone."""
    gone = {uid for uid, record in deleted_records(ending.disk).items() if record.state is DeletedState.GONE}
    for partition, cells in ending.disk.cells.items():
        if cells and partition.decode().partition("/")[0] in gone and partition != DELETED_REPOSITORIES:
            raise Violation(f"{len(cells)} records of a repository that is gone stay in {partition.decode()}")
