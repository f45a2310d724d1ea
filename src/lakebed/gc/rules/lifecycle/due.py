"""Decide which objects a policy deletes, in plain Python: the specification that the planner must agree with. Pure.

An *occurrence* is a path and an object in a commit that was not swept, with every branch that reaches the commit by any
parent. The policy gives each occurrence an instant from which it is *due*, or never. The one law:

    Delete an object if every occurrence of its address is due, and no cell, upload or copy names it.

- The most specific rule that matches path, size and metadata applies to an entry. Without a rule it is never due.
- The rule's period for a branch starts at the date of the entry. The latest of several branches decides. A branch that
  the rule does not cover keeps the object without end.
- Pinned commits and paths are never due. Neither are the newest versions of a path, if the rule keeps versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import msgspec

from lakebed.base import CommitId, MetarangeId
from lakebed.gc.rules.committed import EmptyLiveSet, Namespace
from lakebed.gc.rules.history import History, judge_commits
from lakebed.gc.rules.rules import Rules

from .periods import NEVER_MS, parse_period
from .policy import LifecycleRule, Policy

__all__ = [
    "NO_BRANCH",
    "Due",
    "Entry",
    "Going",
    "Keeps",
    "LifecycleVerdict",
    "Occurrences",
    "PathVersions",
    "branches_of",
    "due_of",
    "judge_objects",
    "only_active",
    "pinned_commits",
]

NO_BRANCH = ""
"""Stands for branches that may reach a commit later: through a commit that no branch reaches, or by an operation that
is about to name it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one path of a commit. `address` is spelled as in entries, relative or absolute."""

    path: str
    address: str
    modified_ms: int
    size_bytes: int = 0
    metadata: dict[str, str] = {}


class Keeps(StrEnum):
    """Give the reason why an occurrence is never due. No rule matches, or it is pinned, or one of the newest versions
    of its path. Or a branch that reaches it keeps it without end. `nothing`: it has a date."""

    NOTHING = "nothing"
    NO_RULE = "no_rule"
    PIN = "pin"
    VERSIONS = "versions"
    BRANCH = "branch"


class Due(NamedTuple):
    """Give the instant from which an occurrence is due, or NEVER_MS, and the number of its rule, or None.

    `branch` is the branch that keeps it longest.
    """

    due_ms: int
    rule: int | None
    keeps: Keeps = Keeps.NOTHING
    branch: str = NO_BRANCH


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an object to delete: the paths that name it, and the ids of the rules by which it is due."""

    paths: tuple[str, ...]
    rules: tuple[str, ...]
    due_ms: int


class LifecycleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """List objects by key. `spared` have a due occurrence, but another occurrence or a record outside of commits keeps
    them.
    """

    goes: dict[str, Going]
    spared: frozenset[str]


def branches_of(history: History) -> dict[CommitId, frozenset[str]]:
    """Return the branches that reach each commit by any parent, or raise BrokenHistory. NO_BRANCH: no branch does, or
    an intent names it.
    """
    history.check()
    found: dict[CommitId, set[str]] = {commit: set() for commit in history.commits}
    roots = [*history.heads.items(), *((NO_BRANCH, commit) for commit in history.held)]
    for branch, head in roots:
        _add_to_ancestry(found, history, head, branch)
    loose = [commit for commit, branches in found.items() if not branches and not history.commits[commit].swept]
    # Ancestors of an unreached commit get NO_BRANCH too, beside the branches that reach them: an unpublished merge
    # brings the history of one branch to another. A swept commit brings nothing.
    for commit in loose:
        _add_to_ancestry(found, history, commit, NO_BRANCH)
    return {commit: frozenset(branches or {NO_BRANCH}) for commit, branches in found.items()}


def _add_to_ancestry(found: Mapping[CommitId, set[str]], history: History, head: CommitId, branch: str) -> None:
    todo = [head]
    while todo:
        commit = todo.pop()
        if branch not in found[commit]:
            found[commit].add(branch)
            todo += history.commits[commit].parents


def _due_on(rule: LifecycleRule, branch: str, written_ms: int) -> int:
    # An unreached commit may reach any branch. So take all periods of the rule, and no period (never) for the rest.
    periods = {rule.period, *rule.periods()} if branch == NO_BRANCH else {rule.period_of(branch)}
    return max(NEVER_MS if period is None else parse_period(period).due_ms(written_ms) for period in periods)


class PathVersions:
    """Find the newest objects at a path: hold each object that commits on each branch have had there."""

    def __init__(self) -> None:
        self._dates: dict[tuple[str, str], dict[str, int]] = {}

    def add(self, path: str, object_: str, modified_ms: int, branches: Iterable[str]) -> None:
        for branch in branches:
            dates = self._dates.setdefault((branch, path), {})
            dates[object_] = max(modified_ms, dates.get(object_, modified_ms))

    def keep(self, rule: LifecycleRule, path: str, object_: str, branches: Collection[str]) -> bool:
        """Return whether the rule keeps the object as one of the newest at its path on a branch."""
        if not rule.keep_versions:
            return False
        # The commit is on no branch yet, so no record gives the newer versions there.
        if NO_BRANCH in branches:
            return True
        return any(object_ in self._newest(branch, path)[: rule.keep_versions] for branch in branches)

    def _newest(self, branch: str, path: str) -> list[str]:
        dates = self._dates[branch, path]
        return sorted(dates, key=lambda object_: (-dates[object_], object_))


def due_of(
    policy: Policy, entry: Entry, object_: str, branches: Collection[str], *, is_pinned: bool, versions: PathVersions
) -> Due:
    """Return when one occurrence that these branches reach is due. `object_` is the same text for each spelling."""
    number = policy.rule_of(entry.path, entry.size_bytes, entry.metadata)
    if number is None:
        is_below_pin = any(entry.path.startswith(prefix) for prefix in policy.pins.prefixes)
        return Due(NEVER_MS, None, Keeps.PIN if is_below_pin else Keeps.NO_RULE)
    rule = policy.rules[number]
    if is_pinned:
        return Due(NEVER_MS, number, Keeps.PIN)
    if versions.keep(rule, entry.path, object_, branches):
        return Due(NEVER_MS, number, Keeps.VERSIONS)
    due_ms, branch = max((_due_on(rule, branch, entry.modified_ms), branch) for branch in branches)
    return Due(due_ms, number, Keeps.BRANCH if due_ms == NEVER_MS else Keeps.NOTHING, branch)


def pinned_commits(history: History, policy: Policy) -> frozenset[CommitId]:
    tagged = {commit for tag, commit in history.tags.items() if policy.pins_tag(tag)}
    return frozenset(tagged | {CommitId(commit) for commit in policy.pins.commits})


def only_active(history: History, policy: Policy, rules: Rules, *, now_ms: int) -> History:
    """Return the history with the commits that expire by the retention rules marked as swept, or raise BrokenHistory.
    Commits that the policy pins are not marked.
    """
    gone = judge_commits(history, rules, now_ms=now_ms).expired - pinned_commits(history, policy)
    commits = {id_: replace(commit, swept=commit.swept or id_ in gone) for id_, commit in history.commits.items()}
    return replace(history, commits=commits)


class Occurrences:
    """Iterate over every occurrence of a history, with its due instant."""

    def __init__(
        self,
        history: History,
        contents: Mapping[MetarangeId, Sequence[Entry]],
        policy: Policy,
        *,
        namespace: Namespace,
    ) -> None:
        """Index `contents`, the entries of every tree. Raises KeyError for an unread tree: doubt stops the run."""
        self._policy = policy
        self._namespace = namespace
        self._pinned = pinned_commits(history, policy)
        reached = branches_of(history)
        self._all = [
            (commit.id, reached[commit.id], entry)
            for commit in history.commits.values()
            if not commit.swept and commit.metarange_id
            for entry in contents[commit.metarange_id]
        ]
        self._versions = PathVersions()
        for _, branches, entry in self._all:
            self._versions.add(entry.path, self._object_of(entry), entry.modified_ms, branches)

    def __iter__(self) -> Iterator[tuple[Entry, Due]]:
        for commit, branches, entry in self._all:
            is_pinned, object_ = commit in self._pinned, self._object_of(entry)
            due = due_of(self._policy, entry, object_, branches, is_pinned=is_pinned, versions=self._versions)
            yield entry, due

    def _object_of(self, entry: Entry) -> str:
        """Return one text for both spellings of an address: they are one version."""
        return self._namespace.key_of(entry.address) or entry.address


def judge_objects(
    history: History,
    contents: Mapping[MetarangeId, Sequence[Entry]],
    policy: Policy,
    *,
    now_ms: int,
    uncommitted: Collection[str],
    namespace: Namespace,
    taken: AbstractSet[str] = frozenset(),
) -> LifecycleVerdict:
    """Apply the one law. `uncommitted`: addresses that cells, uploads and copies name. `taken`: keys deleted earlier.

    Raises:
        BrokenHistory: a named commit has no record.
        EmptyLiveSet: commits have entries, but no entry was read.
    """
    occurrences: dict[str, list[tuple[Entry, Due]]] = {}
    is_read = False
    for entry, due in Occurrences(history, contents, policy, namespace=namespace):
        is_read = True
        key = namespace.key_of(entry.address)
        if key is not None:
            occurrences.setdefault(key, []).append((entry, due))
    # Every later step would take an unread history for one without entries.
    if not is_read and any(commit.metarange_id and not commit.swept for commit in history.commits.values()):
        raise EmptyLiveSet("there are commits with entries, but no entry of theirs was read")
    named = namespace.keys_of(uncommitted)
    goes: dict[str, Going] = {}
    spared: set[str] = set()
    for key, found in occurrences.items():
        # Commits still name objects that an earlier run deleted.
        if key in taken or not namespace.may_take(key):
            continue
        is_due = [due.due_ms <= now_ms for _, due in found]
        if all(is_due) and key not in named:
            goes[key] = Going(
                paths=tuple(sorted({entry.path for entry, _ in found})),
                rules=tuple(sorted({policy.rules[due.rule].id for _, due in found if due.rule is not None})),
                due_ms=max(due.due_ms for _, due in found),
            )
        elif any(is_due):
            spared.add(key)
    return LifecycleVerdict(goes=goes, spared=frozenset(spared))
