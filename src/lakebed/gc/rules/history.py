"""Decide which commits keep their data: the algorithm of docs/design/0004-committed-retention.md, as written there.

Words of the document. *Main ancestry* of a branch: its head, the head's first parent, and so on. *Active*: performed
within the branch's retention period and in its main ancestry. To these come the first parent of each active commit
(it was the head when the period began) and every head itself (it is the head now). *Dangling*: in no branch's main
ancestry. A dummy child of the same date stands as its hypothetical head, under the default period. *Expired*: all the
others.

The head of an old branch is kept although it was not performed within the period, so its first parent is *not*: the
document's complex example loses `example3`, which only the parent of the old head of `feature1` holds. For the same
reason a dangling commit older than the default period goes: only its dummy child is a head.

`kept_commits` is the specification, literal and slow. `kept_indices` (active.py) does the same for a million commits.
A date decides what is let go and never what is safe; a commit whose date lies in the future is simply active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice

from lakebed.base import EMPTY_METARANGE, CommitId, Corrupt, MetarangeId

from .rules import Rules


class BrokenHistory(Corrupt):
    """A ref or a commit names a commit that has no record: what was read is not all there is. Delete nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """Hold what retention needs of a commit. `swept`: an earlier run took its data; it keeps
    nothing and loses nothing.
    """

    id: CommitId
    parents: tuple[CommitId, ...] = ()
    created_ms: int
    metarange_id: MetarangeId = EMPTY_METARANGE
    swept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Every commit record of a repository, reachable or not, and everything that names one.

    `heads`: branches by name. `tags` by name. `held`: commits that an operation is about to name, and targets of refs
    that are still being made; these are kept whatever the rules say.
    """

    commits: Mapping[CommitId, CommitFacts]
    heads: Mapping[str, CommitId]
    tags: Mapping[str, CommitId] = field(default_factory=dict)
    held: AbstractSet[CommitId] = frozenset()

    def check(self) -> None:
        """
        Raises:
            BrokenHistory: a commit that something names is missing.
        """
        named: list[tuple[str, CommitId]] = [(f"branch {name}", head) for name, head in self.heads.items()]
        named += [(f"tag {name}", commit) for name, commit in self.tags.items()]
        named += [("an intent", commit) for commit in sorted(self.held)]
        named += [(f"commit {c.id}", parent) for c in self.commits.values() for parent in c.parents]
        for who, commit in named:
            if commit not in self.commits:
                raise BrokenHistory(f"{who} names commit {commit}, which has no record", commit=commit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`kept` and `expired` hold every commit but the swept ones, each in exactly one of the two."""

    kept: frozenset[CommitId]
    expired: frozenset[CommitId]


def judge_commits(history: History, rules: Rules, *, now_ms: int) -> Verdict:
    """
    Raises:
        BrokenHistory: a commit that something names is missing.
    """
    history.check()
    kept = kept_commits(history, rules, now_ms=now_ms)
    there = {commit.id for commit in history.commits.values() if not commit.swept}
    return Verdict(kept=frozenset(kept & there), expired=frozenset(there - kept))


def kept_commits(history: History, rules: Rules, *, now_ms: int) -> set[CommitId]:
    """Heads, active commits, the first parent of each active commit, and what is pinned or held.

    Pinned: what tags name, unless the rules say that tags do not pin, and the last commits of a branch, as many as the
    rules say for it.
    """
    kept = set(history.heads.values()) | history.held
    if rules.tags_pin:
        kept |= set(history.tags.values())
    for branch, head in history.heads.items():
        kept |= _active_and_first_parents(main_ancestry(history, head), since_ms=rules.since_ms(branch, now_ms))
        kept |= {commit.id for commit in islice(main_ancestry(history, head), rules.keep_last_of(branch))}
    for commit in dangling_commits(history):
        # The dummy child has no data of its own to keep; what counts is that its first parent is this commit.
        dummy = CommitFacts(id=CommitId(""), parents=(commit.id,), created_ms=commit.created_ms)
        chain = [dummy, *main_ancestry(history, commit.id)]
        kept |= _active_and_first_parents(chain, since_ms=rules.since_ms(None, now_ms)) - {dummy.id}
    return kept


def dangling_commits(history: History) -> list[CommitFacts]:
    on_branches = {commit.id for head in history.heads.values() for commit in main_ancestry(history, head)}
    return [commit for commit in history.commits.values() if commit.id not in on_branches]


def main_ancestry(history: History, head: CommitId) -> Iterator[CommitFacts]:
    """The head, its first parent, the first parent of that, …"""
    commit = history.commits[head]
    while True:
        yield commit
        if not commit.parents:
            return
        commit = history.commits[commit.parents[0]]


def _active_and_first_parents(chain: Iterable[CommitFacts], *, since_ms: int) -> set[CommitId]:
    # All of the chain is looked at, not only its newer end: dates are given by people and need not descend.
    active = [commit for commit in chain if commit.created_ms >= since_ms]
    return {commit.id for commit in active} | {commit.parents[0] for commit in active if commit.parents}
