"""A repository as it lies on a simulated disk, decoded without running any flow: what checkers look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from explorer.actors import Violation
from explorer.disk import Disk
from lakebed.base import EMPTY_METARANGE, CommitId, MetarangeId, RepositoryUid, Row, RunState, StagingToken, from_row
from lakebed.gc.messages import RESTORED_FROM
from lakebed.ranges import metarange_key
from lakebed.versions import (
    BranchRecord,
    ClaimRecord,
    Commit,
    IntentRecord,
    Record,
    RefState,
    RunRecord,
    SweptRecord,
    TagRecord,
    decode_cell,
    decode_record,
    is_gone,
    keys,
)
from sim.ports.files import pairs_in

R = TypeVar("R", bound=Record)
UID: Final = RepositoryUid("r")
PARTITION: Final = keys.repository_partition(UID)


@dataclass(frozen=True, slots=True)
class Made:
    """A commit in a branch's history: its record, what it holds, and what its first parent held. `is_gone`: it was
    swept, or its parent was, and a collection of metadata took the tree; then nothing is known of it."""

    id: CommitId
    record: Commit
    contents: dict[bytes, str]
    before: dict[bytes, str]
    is_gone: bool = False

    def changes(self) -> set[bytes]:
        """Return paths that it changed."""
        if self.is_gone:
            return set()
        named = self.contents.keys() | self.before.keys()
        return {key for key in named if self.contents.get(key) != self.before.get(key)}


_OWN: Final = (keys.retired_partition, keys.taken_partition, keys.garbage_partition, keys.events_partition)


def value_of(row: Row) -> str:
    """Return what stands for an entry: its checksum, which scenes make unique.

    A restore gives the checksum back. So its value also has the content type, which differs for each upload.
    """
    return f"{row[5]}+{row[7]}" if RESTORED_FROM.encode() in row[8] else row[5]


class View:
    """Values stand for entries: see `value_of`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def branches(self) -> dict[str, BranchRecord]:
        return self.records(BranchRecord, keys.BRANCH)

    def branch(self, name: str) -> BranchRecord | None:
        value = self.disk.value(PARTITION, keys.BRANCH + name.encode())
        return None if value is None else decode_record(BranchRecord, value)

    def is_active(self, name: str) -> bool:
        """Return whether there is a branch or tag of this name, for all to see."""
        held = self.disk.value(PARTITION, keys.TAG + name.encode())
        refs = [self.branch(name), None if held is None else decode_record(TagRecord, held)]
        return any(ref is not None and ref.state is RefState.ACTIVE for ref in refs)

    def claims(self) -> list[ClaimRecord]:
        return [*self.records(ClaimRecord, keys.CLAIM).values()]

    def held(self) -> set[CommitId]:
        """Return commits that a hard reset is about to name, or was when it died."""
        return {intent.commit_id for intent in self.records(IntentRecord, keys.INTENT).values()}

    def has_commit(self, commit_id: CommitId) -> bool:
        return self.disk.value(PARTITION, keys.COMMIT + commit_id.encode()) is not None

    def commit(self, commit_id: CommitId) -> Commit:
        value = self.disk.value(PARTITION, keys.COMMIT + commit_id.encode())
        if value is None:
            raise Violation(f"commit {commit_id[:12]} is named and has no record")
        return decode_record(Commit, value)

    def commits(self) -> list[Commit]:
        """Return every record, published or not."""
        return [*self.records(Commit, keys.COMMIT).values()]

    def history(self, name: str) -> list[Made]:
        """List commits by first parents, the head first."""
        branch = self.branch(name)
        found: list[Made] = []
        commit_id = None if branch is None else branch.commit_id
        while commit_id is not None:
            record = self.commit(commit_id)
            parent = record.parents[0] if record.parents else None
            if self._is_gone(commit_id) or (parent is not None and self._is_gone(parent)):
                found.append(Made(commit_id, record, {}, {}, is_gone=True))
            else:
                before = {} if parent is None else self.contents(self.commit(parent).metarange_id)
                found.append(Made(commit_id, record, self.contents(record.metarange_id), before))
            commit_id = parent
        return found

    def _is_gone(self, commit_id: CommitId) -> bool:
        is_there = self.has_tree(self.commit(commit_id).metarange_id)
        return not is_there and self.is_swept(commit_id)

    def is_swept(self, commit_id: CommitId) -> bool:
        """A run took it, and that run was not undone."""
        swept = self.disk.value(PARTITION, keys.SWEPT + commit_id.encode())
        run = None if swept is None else self.runs().get(decode_record(SweptRecord, swept).run)
        return swept is not None and (run is None or run.state is not RunState.UNDONE)

    def has_tree(self, metarange: MetarangeId) -> bool:
        return metarange == EMPTY_METARANGE or metarange_key(metarange) in self.disk.objectstore

    def contents(self, metarange: MetarangeId) -> dict[bytes, str]:
        try:
            return {key: value_of(row) for key, row in pairs_in(self.disk, metarange)}
        except KeyError as error:
            raise Violation(f"metarange {metarange[:12]} is named and does not exist") from error

    def pairs(self, commit_id: CommitId) -> Sequence[tuple[bytes, Row]]:
        """Return the entries of a commit's tree, as they are."""
        return pairs_in(self.disk, self.commit(commit_id).metarange_id)

    def rows(self, token: StagingToken) -> dict[bytes, Row | None]:
        """Return the rows of cells by key; None for a tombstone."""
        held = self.disk.cells.get(keys.token_partition(UID, token), {}).items()
        cells = [(key, *decode_cell(value)) for key, value in held]
        return {key: None if is_gone(flags) else row for key, flags, row in cells}

    def cells(self, token: StagingToken) -> dict[bytes, str | None]:
        """Return cells by key; None for a tombstone."""
        return {key: None if row is None else value_of(row) for key, row in self.rows(token).items()}

    def addresses(self, branch: BranchRecord) -> dict[bytes, str]:
        """Return the address that a reader of the branch should see at each path."""
        found: dict[bytes, Row | None] = dict(self.pairs(branch.commit_id))
        for token in reversed(branch.tokens()):
            found.update(self.rows(token))
        return {key: from_row(row).address for key, row in found.items() if row is not None}

    def staged(self, branch: BranchRecord) -> dict[bytes, str | None]:
        """Return the overlay of all its tokens."""
        found: dict[bytes, str | None] = {}
        for token in reversed(branch.tokens()):
            found.update(self.cells(token))
        return found

    def visible(self, branch: BranchRecord) -> dict[bytes, str]:
        """Return what a reader of the branch should see."""
        found: dict[bytes, str | None] = dict(self.contents(self.commit(branch.commit_id).metarange_id))
        found.update(self.staged(branch))
        return {key: value for key, value in found.items() if value is not None}

    def token_partitions(self) -> set[bytes]:
        """Return the partitions of all tokens that hold a cell."""
        own = tuple(of(UID) for of in _OWN)
        others = (PARTITION + b"/run-", *own)  # Collections'.
        return {one for one in self.disk.cells if one.startswith(PARTITION + b"/") and not one.startswith(others)}

    def runs(self) -> dict[str, RunRecord]:
        return self.records(RunRecord, keys.RUN)

    def lists(self) -> dict[str, RunRecord | None]:
        """Return the runs that have a list of what they expire, by id. None: no record tells of such a run."""
        prefix = PARTITION + b"/run-"
        names = sorted(one[len(prefix) :].decode() for one in self.disk.cells if one.startswith(prefix))
        found = {name: self.disk.value(PARTITION, keys.RUN + name.encode()) for name in names}
        return {name: None if held is None else decode_record(RunRecord, held) for name, held in found.items()}

    def records(self, kind: type[R], prefix: bytes) -> dict[str, R]:
        """Return the records whose keys begin so, by the rest of the key, in order."""
        cells = self.disk.cells.get(PARTITION, {}).items()
        held = sorted((key, value) for key, value in cells if key.startswith(prefix))
        return {key[len(prefix) :].decode(): decode_record(kind, value) for key, value in held}
