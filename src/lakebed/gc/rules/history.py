"""Decide which commits keep their data: the algorithm of docs/design/0004-committed-retention.md, as written there.

Terms of the document. *Main ancestry* of a branch: its head, the head's first parent, and so on. *Active*: in the main
ancestry, and made within the branch's retention period. *Dangling*: in no branch's main ancestry. *Expired*: not kept.

Every head is kept: it is the head now. The first parent of an active commit is kept: it was the head when the period
began. A dummy child of the same date serves as head of a dangling commit, under the default period.

`kept_commits` is the specification, literal and slow. `kept_indices` (active.py) does the same for a million commits.
A date decides which commits expire, and never what is safe. A commit dated in the future is active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice

from lakebed.base import EMPTY_METARANGE, CommitId, Corrupt, MetarangeId

from .rules import Rules

__all__ = ["BrokenHistory", "CommitFacts", "History", "Verdict", "judge_commits", "kept_commits", "merge_bases"]


class BrokenHistory(Corrupt):
    """A ref or a commit names a commit without a record: the history was not read whole. Delete nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """Hold the facts of a commit that retention needs. `swept`: an earlier run deleted its data. The commit keeps no
    object, and no run expires it again.
    """

    id: CommitId
    parents: tuple[CommitId, ...] = ()
    created_ms: int
    metarange_id: MetarangeId = EMPTY_METARANGE
    swept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Hold every commit record of a repository, reachable or not, and every ref that names a commit."""

    commits: Mapping[CommitId, CommitFacts]
    # Branches by name. `tags` by name.
    heads: Mapping[str, CommitId]
    tags: Mapping[str, CommitId] = field(default_factory=dict)
    # Commits that an operation is about to name, and targets of refs that are being made. Held commits are kept
    # whatever the rules are.
    held: AbstractSet[CommitId] = frozenset()

    def check(self) -> None:
        """Check that every named commit has a record, or raise BrokenHistory."""
        named: list[tuple[str, CommitId]] = [(f"branch {name}", head) for name, head in self.heads.items()]
        named += [(f"tag {name}", commit) for name, commit in self.tags.items()]
        named += [("an intent", commit) for commit in sorted(self.held)]
        named += [(f"commit {c.id}", parent) for c in self.commits.values() for parent in c.parents]
        for who, commit in named:
            if commit not in self.commits:
                raise BrokenHistory(f"{who} names commit {commit}, which has no record", commit=commit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Split all commits but the swept ones into `kept` and `expired`. Each is in exactly one of the two."""

    kept: frozenset[CommitId]
    expired: frozenset[CommitId]


def judge_commits(history: History, rules: Rules, *, now_ms: int) -> Verdict:
    """Return the kept and the expired commits, or raise BrokenHistory."""
    history.check()
    kept = kept_commits(history, rules, now_ms=now_ms)
    there = {commit.id for commit in history.commits.values() if not commit.swept}
    return Verdict(kept=frozenset(kept & there), expired=frozenset(there - kept))


def kept_commits(history: History, rules: Rules, *, now_ms: int) -> set[CommitId]:
    """Return heads, active commits, the first parent of each active commit, and pinned or held commits.

    Pinned are commits with a tag, unless the rules exclude tags. Pinned are also the last commits of a branch, in the
    number of its rule.
    """
    kept = set(history.heads.values()) | history.held
    if rules.tags_pin:
        kept |= set(history.tags.values())
    for branch, head in history.heads.items():
        # An old head is kept without being active, so its first parent is not kept. The document's complex example
        # loses `example3` for that reason: only the parent of the old head of `feature1` names it.
        kept |= _active_and_first_parents(main_ancestry(history, head), since_ms=rules.since_ms(branch, now_ms))
        kept |= {commit.id for commit in islice(main_ancestry(history, head), rules.keep_last_of(branch))}
    for commit in dangling_commits(history):
        # The dummy child has no data of its own: it makes this commit a first parent. So a dangling commit older than
        # the default period expires, because only its dummy child is a head.
        dummy = CommitFacts(id=CommitId(""), parents=(commit.id,), created_ms=commit.created_ms)
        chain = [dummy, *main_ancestry(history, commit.id)]
        kept |= _active_and_first_parents(chain, since_ms=rules.since_ms(None, now_ms)) - {dummy.id}
    return kept


def dangling_commits(history: History) -> list[CommitFacts]:
    on_branches = {commit.id for head in history.heads.values() for commit in main_ancestry(history, head)}
    return [commit for commit in history.commits.values() if commit.id not in on_branches]


def main_ancestry(history: History, head: CommitId) -> Iterator[CommitFacts]:
    """Yield the head, its first parent, the first parent of that parent, and so on."""
    commit = history.commits[head]
    while True:
        yield commit
        if not commit.parents:
            return
        commit = history.commits[commit.parents[0]]


def _active_and_first_parents(chain: Iterable[CommitFacts], *, since_ms: int) -> set[CommitId]:
    # Look at the whole chain, not only its newer end: people set dates, which need not descend.
    active = [commit for commit in chain if commit.created_ms >= since_ms]
    return {commit.id for commit in active} | {commit.parents[0] for commit in active if commit.parents}


def merge_bases(parents: Sequence[Sequence[int]], generations: Sequence[int], named: Iterable[int]) -> set[int]:
    """Return a set that contains the merge base of every pair of the named commits (indices).

    A merge needs the tree of the base to find the changes of each side. So while two commits are kept, the tree of
    their merge base is kept, even if the base has expired and its objects are deleted. A kept tree keeps no user bytes:
    about 26 bytes an entry, and it shares most files with its neighbours.

    The merge base is a common ancestor of the highest generation. Takes one step a commit, down to where all refs meet.
    `parents` and `generations` are by index; a parent has a lower generation than its child.
    """
    refs = sorted({*named})
    reached: dict[int, int] = {}
    for bit, index in enumerate(refs):
        reached[index] = reached.get(index, 0) | 1 << bit
    everything = (1 << len(refs)) - 1
    by_generation: dict[int, set[int]] = {}
    for index in reached:
        by_generation.setdefault(generations[index], set()).add(index)
    met = _Met()
    found: set[int] = set()
    # Walk from the highest generation down. Each commit has the set of refs that lead to it. It is the base of two refs
    # if no commit above has both. Judge the commits of one generation alike: any of several bases will do.
    while by_generation:
        level = by_generation.pop(max(by_generation))
        here = {index: reached[index] for index in level}
        found |= {index for index, mask in here.items() if not met.has(mask)}
        for mask in {*here.values()}:
            met.add(mask)
        if everything in here.values():
            return found
        for index, mask in here.items():
            del reached[index]
            for parent in parents[index]:
                reached[parent] = reached.get(parent, 0) | mask
                by_generation.setdefault(generations[parent], set()).add(parent)
    return found


class _Met:
    """Hold sets of refs, as bits, that have a common ancestor above."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._largest: list[int] = []

    def has(self, mask: int) -> bool:
        """Return whether every two of these refs already met. A single ref has no base."""
        if mask & (mask - 1) == 0 or mask in self._seen:
            return True
        return any(mask & other == mask for other in self._largest)

    def add(self, mask: int) -> None:
        if mask in self._seen or mask & (mask - 1) == 0:
            return
        self._seen.add(mask)
        # Keep only the largest sets for `has`: a part of one has met, too.
        if not any(mask & other == mask for other in self._largest):
            self._largest = [other for other in self._largest if other & mask != other] + [mask]
