"""Check what must hold at the end of every schedule, whatever the scene (docs/design/protocols.md, "Invariants").

A checker knows operations (what was asked, what was answered, what had been answered before) and the disk; it knows no
flow and no scene. It may not ask for more than was promised: an operation without an answer may have happened or not,
and of two that overlap either may have come last.

*Explained.* Most of it is one question: may this value be seen here? A value was put by some operation. It is stale if
an acknowledged operation on the same path began only after that one had ended, and before the moment that is looked at.
A reset that does not lie before an operation may have taken it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from explorer.actors import Check, Ending, Violation
from explorer.operations import Record
from lakebed.base import CommitId, RunState, is_commit_id
from lakebed.versions import (
    CommitOvertaken,
    NoChanges,
    PathExists,
    PathNotFound,
    PreconditionFailed,
    RunRecord,
    UploadRefused,
)

from .views import UID, Made, View

WRITES: Final = ("write", "delete")
CREATES: Final = "creation"
"""How statistics and checks tell a write that asks for nothing at its path."""
RESETS: Final = ("reset", "reset_object", "reset_prefix", "hard_reset", "delete_branch")
_DROPPING: Final = ("reset", "reset_prefix", "delete_branch")
_REFUSALS: Final = (UploadRefused, PathExists, PreconditionFailed)
SEALERS: Final = ("run", "fence", "clean", "unforced_reset")
"""Operations that may seal a token, and leave it so when they end in an error."""
MOVES: Final = ("revert", "cherry_pick", "hard_reset", "unforced_reset")
"""Operations that change what any path of a branch shows without writing to it: nothing is explained after them. (A
branch that is made again begins without the paths that are written to it: scenes keep them apart from its source's.)"""


def no_lost_write(ending: Ending) -> None:
    """Check invariant 1: each written path shows what an operation put that no later one replaced."""
    view = View(ending.disk)
    for name, branch in view.branches().items():
        if not _is_moved(ending, name):
            _check_shown(ending, name, view.visible(branch), None, f"branch {name} shows")


def causality(ending: Ending) -> None:
    """Check invariant 2: a commit holds every write acknowledged before it began, or what replaced it.

    A commit that was overtaken, or that found no change, says the same of the head."""
    view = View(ending.disk)
    for record in ending.of("commit"):
        name = record.operation.branch
        if record.ended is None or _is_moved(ending, name):
            continue
        history = view.history(name)
        shows, held = [made for made in history if made.id == record.answer], f"commit {record.operation.name} holds"
        if record.error in (CommitOvertaken, NoChanges) and not _resets(ending, name):
            shows, held = history[:1], f"after {record.operation.name} the head has"
        for made in shows:
            if not made.is_gone:
                _check_shown(ending, name, made.contents, record.before, held)


def chain(ending: Ending) -> None:
    """Check invariant 3: every acknowledged commit is in its branch's history once, and generations fall by one."""
    view = View(ending.disk)
    for name in view.branches():
        if _of_branch(ending, name, ("hard_reset", "unforced_reset", "create_branch", "delete_branch")):
            continue
        history = view.history(name)
        for newer, older in pairwise(history):
            parents = [view.commit(parent).generation for parent in newer.record.parents]
            if newer.record.generation != max(parents) + 1:
                raise Violation(f"{newer.id[:12]} has generation {newer.record.generation} above {older.id[:12]}")
        ids = [made.id for made in history]
        for record in _of_branch(ending, name, ("commit", "merge", "revert", "cherry_pick")):
            if record.is_acknowledged and ids.count(CommitId(record.answer)) != 1:
                raise Violation(f"{record.operation.name} was acknowledged and is not in the history of {name}")


def commits_are_found(ending: Ending) -> None:
    """Check that an acknowledged commit is found by its id, wherever its branch went: by its note or the history."""
    view = View(ending.disk)
    for record in (one for kind in ("commit", "merge", "revert", "cherry_pick") for one in ending.acknowledged(kind)):
        if not is_commit_id(record.answer):
            continue
        made = view.commit(CommitId(record.answer))
        if not made.published and made.id not in [one.id for one in view.history(made.made_for)]:
            raise Violation(f"{record.operation.name} was acknowledged, and nothing says that a branch took it")


def overtaken_means_absent(ending: Ending) -> None:
    """Check that a commit that failed as overtaken, or for want of changes, is not in the history."""
    view = View(ending.disk)
    for record in ending.of("commit"):
        if record.error in (CommitOvertaken, NoChanges):
            messages = [made.record.message for made in view.history(record.operation.branch)]
            if record.operation.name in messages:
                raise Violation(f"{record.operation.name} failed, and is in the history")


def refused_means_absent(ending: Ending) -> None:
    """Check that a write that was refused shows nowhere: on no branch, and in no commit that has a record."""
    view, writes = View(ending.disk), ending.of("write")
    values = [write.operation.value for write in writes]
    for write in writes:
        if not issubclass(write.error or Exception, _REFUSALS) or values.count(write.operation.value) > 1:
            continue
        trees = {commit.metarange_id for commit in view.commits()}
        places = [view.visible(branch) for branch in view.branches().values()]
        places += [view.contents(tree) for tree in trees if view.has_tree(tree)]
        if any(place.get(write.operation.key) == write.operation.value for place in places):
            raise Violation(f"{write.operation.name} was refused, and {write.operation.key!r} has what it wrote")


def idle_branch_does_not_grow(ending: Ending) -> None:
    """Check that nothing is sealed when every committer has ended with a definite answer."""
    commits = ending.of("commit")
    definite = (None, NoChanges, CommitOvertaken)
    if ending.crashed or any(record.ended is None or record.error not in definite for record in commits):
        return
    if any(not record.is_acknowledged for kind in SEALERS for record in ending.of(kind)):
        return
    for name, branch in View(ending.disk).branches().items():
        # What a freeze left stays sealed, one token for each branch, until the next commit.
        if len(branch.sealed) > any(item.stands_for for item in branch.sealed):
            raise Violation(f"branch {name} keeps {len(branch.sealed)} sealed tokens and no commit is under way")


def resets_hold(ending: Ending) -> None:
    """Check that what was acknowledged before a reset began is gone from staging and from later commits.

    A commit is later if it began after the reset had ended.
    """
    view = View(ending.disk)
    for reset in (record for kind in _DROPPING for record in ending.acknowledged(kind)):
        name = reset.operation.branch
        # All of the branch, but for the reset of a prefix: its key is that.
        dropped = [one for one in _before(ending, reset, WRITES) if one.operation.key.startswith(reset.operation.key)]
        later = [write for write in _of_branch(ending, name, WRITES) if write not in dropped]
        gone = {write.operation.value for write in dropped} - {write.operation.value for write in later} - {None}
        branch = view.branch(name)
        if branch is None:
            continue
        # The reset of an object puts back what a head had, on top of a commit under way, which may then go through.
        for one in _of_branch(ending, name, ("reset_object", "reset_prefix")):
            keys = {key for made in view.history(name) for key in made.contents if key.startswith(one.operation.key)}
            gone -= {made.contents.get(key) for made in view.history(name) for key in keys}
        # Putting back what the head has is no change.
        head = view.contents(view.commit(branch.commit_id).metarange_id)
        staged = view.staged(branch).items()
        if back := sorted(str(value) for key, value in staged if value in gone and head.get(key) != value):
            raise Violation(f"{reset.operation.name} was acknowledged, and {back} is staged again")
        for commit in ending.acknowledged("commit"):
            if reset.operation.name in (commit.before or ()):
                for made in view.history(name):
                    if made.id == commit.answer and (held := _fresh_values(made) & gone):
                        raise Violation(f"{reset.operation.name} held not: {commit.operation.name} has {sorted(held)}")


def unforced_resets_drop_nothing(ending: Ending) -> None:
    """Check that a hard reset without force drops no acknowledged write: each is staged, committed or replaced.

    Any commit counts that has a record: one may have been a head for a moment, and its committer never learnt it.
    """
    view = View(ending.disk)
    for name in sorted({reset.operation.branch for reset in ending.of("unforced_reset")}):
        branch, writes = view.branch(name), _of_branch(ending, name, WRITES)
        if branch is None:
            continue
        trees = [commit.metarange_id for commit in view.commits()]
        places: list[Mapping[bytes, str | None]] = [view.staged(branch)]
        places += [view.contents(tree) for tree in trees if view.has_tree(tree)]
        for write in [one for one in writes if one.is_acknowledged and one.operation.value is not None]:
            key, value = write.operation.key, write.operation.value
            others = [one for one in writes if one.operation.key == key and one is not write]
            if any(_may_follow(one, write) for one in (*others, *_resets(ending, name))):
                continue
            if not any(place.get(key) == value for place in places):
                raise Violation(f"{write.operation.name} was acknowledged, and a reset without force dropped it")


def reads_see_what_was_acknowledged(ending: Ending) -> None:
    """Check invariant 7, for paths: a read finds what was acknowledged before it began, or what replaced it."""
    for read in ending.of("read"):
        if _is_moved(ending, read.operation.branch):
            continue
        if read.is_acknowledged or read.error is PathNotFound:
            shown = {read.operation.key: read.answer} if read.is_acknowledged else {}
            what = f"{read.operation.name} found"
            _check_shown(ending, read.operation.branch, shown, read.before, what, paths=[read.operation.key])


def reads_see_merges(ending: Ending) -> None:
    """Check invariant 7, for merges: a read that began after a merge was acknowledged shows nothing older.

    Asked only of paths that no actor writes to on the branch, or resets: else an older value may be a newer one.
    """
    view = View(ending.disk)
    for merge in ending.acknowledged("merge"):
        name = merge.operation.branch
        commit_id = CommitId(merge.answer)
        if _is_moved(ending, name) or _resets(ending, name):
            continue
        after, before = (_tree(view, one) for one in (commit_id, view.commit(commit_id).parents[0]))
        written = {write.operation.key for write in _of_branch(ending, name, WRITES)}
        for read in _of_branch(ending, name, ("read",)):
            key = read.operation.key
            if read.ended is None or key in written or merge.operation.name not in (read.before or ()):
                continue
            is_answer = read.ended.is_ok or read.error is PathNotFound
            if is_answer and read.ended.value == before.get(key) != after.get(key):
                raise Violation(f"{read.operation.name} found {read.ended.value!r} after {merge.operation.name}")


def _tree(view: View, commit_id: CommitId) -> Mapping[bytes, str]:
    tree = view.commit(commit_id).metarange_id
    return view.contents(tree) if view.has_tree(tree) else {}


def conditions_hold(ending: Ending) -> None:
    """Check that a write that asks for nothing at its path comes after no other, unless that was taken away between.

    Of two such writes any may have been the first.
    """
    for new in ending.acknowledged("write"):
        name, key, new_name = new.operation.branch, new.operation.key, new.operation.name
        if new.operation.what != CREATES or new.before is None:
            continue
        removing = [
            one
            for one in _of_branch(ending, name, (*RESETS, *MOVES, "merge", "delete"))
            if one.before is not None and (one.operation.kind != "delete" or one.operation.key == key)
        ]
        for other in ending.acknowledged("write"):
            is_there = other.operation.name in new.before or other.operation.what == CREATES
            if other is new or not is_there or (other.operation.branch, other.operation.key) != (name, key):
                continue
            both, before_both = {new_name, other.operation.name}, new.before & (other.before or frozenset())
            between = [
                one
                for one in removing
                if one.operation.name not in before_both and not both <= (one.before or frozenset())
            ]
            if not between:
                raise Violation(f"{new_name} asked for nothing at {key!r}, where {other.operation.name} had written")


def refs_stay(ending: Ending) -> None:
    """Check that a branch or tag whose making was acknowledged is there, unless an actor may have deleted it since."""
    view = View(ending.disk)
    making = ("create_branch", "create_tag", "undelete_branch", "undelete_tag")
    for record in (one for kind in making for one in ending.acknowledged(kind)):
        name = record.operation.branch
        deletes = _of_branch(ending, name, ("delete_branch", "delete_tag"))
        if not any(_may_follow(delete, record) for delete in deletes) and not view.is_active(name):
            raise Violation(f"{record.operation.name} was acknowledged, and {name} is not there")


def no_leak(ending: Ending) -> None:
    """Check invariant 8, after cleaning: each token with a cell and each claim belong to a branch; no list is left."""
    view = View(ending.disk)
    owned = {f"{UID}/{token}".encode() for branch in view.branches().values() for token in branch.tokens()}
    if leaked := sorted(view.token_partitions() - owned):
        raise Violation(f"no cleaner will ever remove {leaked}")
    # A claim of a commit that failed, or sleeps, stays while its branch holds one of the tokens.
    held = {token for branch in view.branches().values() for token in branch.tokens()}
    if claims := [claim for claim in view.claims() if held.isdisjoint(claim.tokens)]:
        raise Violation(f"{len(claims)} claims of tokens that no branch holds are left after cleaning")
    if left := sorted(view.lists()):
        raise Violation(f"lists of what is expiring are left after cleaning: {left}")


def runs_end(ending: Ending) -> None:
    """Check invariant 8, after every run was applied again: none is left whose deletes may have begun."""
    runs = View(ending.disk).runs()
    if left := sorted(name for name, run in runs.items() if run.state is RunState.SWEEPING or is_begun(run)):
        raise Violation(f"runs whose deletes began cannot be brought to their end: {left}")


def is_begun(run: RunRecord) -> bool:
    return run.state is RunState.MARKED and run.began


def lists_have_a_run(ending: Ending) -> None:
    """Check invariant 8: an actor that dies over a list of what a run expires leaves a record by which it is found."""
    if orphans := sorted(name for name, run in View(ending.disk).lists().items() if run is None):
        raise Violation(f"lists of what is expiring without a run: {orphans}")


ALWAYS: Final[Sequence[Check]] = (
    no_lost_write,
    causality,
    chain,
    commits_are_found,
    overtaken_means_absent,
    refused_means_absent,
    idle_branch_does_not_grow,
    resets_hold,
    unforced_resets_drop_nothing,
    reads_see_what_was_acknowledged,
    reads_see_merges,
    lists_have_a_run,
    refs_stay,
)


def _check_shown(
    ending: Ending,
    branch: str,
    shown: dict[bytes, str],
    before: frozenset[str] | None,
    what: str,
    *,
    paths: Iterable[bytes] | None = None,
) -> None:
    """Check that each path shows a value as of a moment after the operations `before` (None: all) had ended."""
    writes = _of_branch(ending, branch, WRITES)
    merged = _merged_paths(ending, branch)
    for key in sorted({write.operation.key for write in writes}) if paths is None else paths:
        if key in merged:
            continue
        value = shown.get(key)
        here = [write for write in writes if write.operation.key == key]
        if not _is_explained(value, here, before, _resets(ending, branch)):
            known = ", ".join(write.operation.name for write in here if write.is_acknowledged)
            raise Violation(f"{what} {value!r} at {key!r}; acknowledged were {known or 'none'}")


def _is_explained(
    value: str | None, writes: Sequence[Record], before: frozenset[str] | None, resets: Sequence[Record]
) -> bool:
    """Return whether some operation put this value, and no acknowledged one is known to have replaced it by then."""
    closed = [
        write
        for write in writes
        if write.is_acknowledged
        and (before is None or write.operation.name in before)
        and not any(_may_follow(reset, write) for reset in resets)
    ]
    if value is None and not closed:
        return True
    putters = [write for write in writes if write.operation.value == value and write.before is not None]
    return any(not any(putter.operation.name in (write.before or ()) for write in closed) for putter in putters)


def _may_follow(reset: Record, write: Record) -> bool:
    """Return whether a reset may have taken this write back: unless it had ended before the write began."""
    return reset.before is not None and reset.operation.name not in (write.before or ())


def _resets(ending: Ending, branch: str) -> list[Record]:
    return _of_branch(ending, branch, RESETS)


def _is_moved(ending: Ending, branch: str) -> bool:
    return bool(_of_branch(ending, branch, MOVES))


def _merged_paths(ending: Ending, branch: str) -> set[bytes]:
    """Return paths that a merge may bring from its source: those written to it, or any that it got from elsewhere."""
    sources = {str(merge.operation.value) for merge in _of_branch(ending, branch, ("merge",))}
    # A pick, a revert, a reset or another merge brings a source what was written to any branch.
    writers = (
        {record.operation.branch for record in ending.records.values()}
        if any(_of_branch(ending, one, (*MOVES, "merge")) for one in sources)
        else sources
    )
    return {write.operation.key for writer in writers for write in _of_branch(ending, writer, WRITES)}


def _of_branch(ending: Ending, branch: str, kinds: Iterable[str]) -> list[Record]:
    return [
        record
        for record in ending.records.values()
        if record.operation.branch == branch and record.operation.kind in kinds
    ]


def _before(ending: Ending, record: Record, kinds: Iterable[str]) -> list[Record]:
    """Return acknowledged operations on the same branch that had ended when this one began."""
    names = record.before or frozenset()
    found = _of_branch(ending, record.operation.branch, kinds)
    return [other for other in found if other.is_acknowledged and other.operation.name in names]


def _fresh_values(made: Made) -> set[str]:
    return {made.contents[key] for key in made.changes() if key in made.contents}
