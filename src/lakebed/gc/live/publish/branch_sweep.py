"""Delete branches that are idle or expired by the lifecycle policy.

A plan deletes and publishes nothing; the caller shows it (docs/design/0003-lifecycle.md, "Branches"). A sweep deletes a
branch only if the plan named it, it did not change since, and the policy still agrees. The delete is an ordinary one:
hooks run, and the branch can be restored for a while.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from lakebed.base import (
    CommitId,
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LakebedError,
    OutcomeUnknown,
    Unavailable,
    from_row,
    in_waves,
    key_to_path,
)
from lakebed.catalog import PullState, Repository, matching
from lakebed.gc.live.errors import RulesMoved
from lakebed.gc.live.records.settings import HoldBook, PolicyBook
from lakebed.gc.messages import (
    BRANCH_GONE,
    BRANCH_IN_DOUBT,
    SWEEP_MAX,
    BranchesPlan,
    BranchToGo,
    PlannedBranch,
    SweptBranch,
    not_tried,
)
from lakebed.gc.rules import Holds
from lakebed.gc.rules.lifecycle import (
    BranchFacts,
    IdleRule,
    Pin,
    Policy,
    check_policy,
    first_going_ms,
    idle_rule_of,
    judge_branch,
)
from lakebed.kv import StoreUnavailable
from lakebed.versions import BranchNotFound, BranchRecord, RefState, decode_cell, encode_record, is_exclusive

__all__ = ["BranchSweep", "TooManyBranches"]

_PAGE: Final = 1_000
_WALKED_AT_ONCE: Final = 500
"""Commits that a walk reads before the server answers other requests: an embedded store never awaits."""

IN_USE: Final = "used since it was planned"


class TooManyBranches(Invalid):
    """The request names more than `SWEEP_MAX` branches."""


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Hold all facts that may keep a branch, apart from its record."""

    version: int
    policy: Policy
    holds: Holds
    default: str
    protected: Sequence[str]
    at_work: Collection[str]
    pulled: Collection[str]

    def pins(self, name: str, commit_id: CommitId) -> tuple[Pin, ...]:
        kept = {
            Pin.DEFAULT: name == self.default,
            Pin.TARGET: any(name in rule.into for rule in self.policy.branches),
            Pin.PROTECTED: matching(self.protected, name) is not None,
            Pin.HELD: bool(self.holds.of(commit=commit_id)),
            Pin.PINNED: commit_id in self.policy.pins.commits,
            Pin.PULL: name in self.pulled,
            Pin.WORK: name in self.at_work,
        }
        return tuple(pin for pin, is_kept in kept.items() if is_kept)


@dataclass(frozen=True, slots=True)
class _Staged:
    """Hold facts about a branch's staged cells, as far as its rule needs them.

    `digest` covers all cells, if the rule drops them.
    """

    has_any: bool = False
    is_held: bool = False
    # A cell has no date, so each check treats it as staged now.
    has_undated: bool = False
    active_ms: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class _Walk:
    """Hold a walk of the history from `heads`: the commits of `asked` that they reach.

    The ancestors of a commit never change, so a walk is valid while the heads are the same.
    """

    heads: Sequence[CommitId]
    asked: Collection[CommitId]
    reached: Collection[CommitId]


_Walks = dict[tuple[str, ...], _Walk]
"""Walks of one request, by the names of their first branches."""


class BranchSweep:
    """Plan and sweep the branches of one repository. Open a fresh `Repository` handle for each sweep."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._versions = repository.versions

    async def plan(self, *, prefix: str = "", after: str = "", limit: int = _PAGE) -> BranchesPlan:
        """Judge a page of branches, by name. If a rule depends on merges, walk the history once for the page.

        Leave out the branches of flows, which no list of branches shows.
        """
        around = await self._surroundings()
        branches, has_more = await self._versions.refs.list_branches(prefix=prefix, after=after, limit=limit)
        tasks = self._versions.ports.tasks
        names = [str(branch.name) for branch in branches if branch.name not in around.at_work]

        async def find(name: str) -> BranchRecord | None:
            return await self._versions.inventory.find(BranchRecord, name)

        records = dict(zip(names, await in_waves(tasks, names, find), strict=True))
        there = {
            name: record for name, record in records.items() if record is not None and record.state is RefState.ACTIVE
        }
        merged = await self._merged({name: record.commit_id for name, record in there.items()}, around, {})
        now_ms = self._versions.ports.clock.now_ms()

        async def judge(named: tuple[str, BranchRecord]) -> PlannedBranch:
            return await self._judge(*named, around, now_ms, is_merged=merged.get(named[0], False))

        planned = await in_waves(tasks, list(there.items()), judge)
        return BranchesPlan(
            repository=self._repository.id,
            policy_version=around.version,
            now_ms=now_ms,
            branches=tuple(planned),
            next_after=branches[-1].name if has_more else "",
        )

    async def sweep(self, version: int, wanted: Sequence[BranchToGo], *, by: str = "") -> list[SweptBranch]:
        """Delete branches of a plan one by one, if they may still be deleted.

        An error at a branch becomes its row, and the sweep continues. If the store is unavailable, the sweep stops.
        Walks the history once for all branches, and again if a branch moved that they may be merged into.

        Raises:
            TooManyBranches: the request names too many branches. Nothing was deleted.
            RulesMoved: the policy has another version. Nothing was deleted.
            ReadOnly: the repository is read-only.
        """
        if len(wanted) > SWEEP_MAX:
            raise TooManyBranches(f"{len(wanted):,} branches, at most {SWEEP_MAX} in one request")
        self._repository.guards.check_writable()
        around = await self._surroundings()
        if around.version != version:
            raise RulesMoved(
                f"the lifecycle policy is of version {around.version}, not {version}: plan again",
                version=around.version,
                expected=version,
            )
        walks = await self._walks([branch.branch for branch in wanted], around)
        swept: list[SweptBranch] = []
        for at, branch in enumerate(wanted):
            try:
                swept.append(await self._delete(branch, version, by, walks))
            except StoreUnavailable as error:
                swept.append(_in_doubt(branch, error))
                return [*swept, *(not_tried(later.branch) for later in wanted[at + 1 :])]
        return swept

    async def _walks(self, names: Sequence[str], around: _Surroundings) -> _Walks:
        """Walk the history once for all these branches. Decides nothing: it only saves a walk for each branch."""
        walks: _Walks = {}
        # The row of an unreadable branch shows its error later.
        with suppress(LakebedError):
            heads = {name: await self._head_of(name) for name in names}
            await self._merged({name: head for name, head in heads.items() if head is not None}, around, walks)
        return walks

    async def _delete(self, wanted: BranchToGo, version: int, by: str, walks: _Walks) -> SweptBranch:
        why = IN_USE

        async def may_go(record: BranchRecord) -> bool:
            nonlocal why
            # Read again for each branch: hooks may take long, and a pull request may be opened meanwhile.
            around = await self._surroundings()
            if around.version != version:
                return False
            merged = await self._merged({wanted.branch: record.commit_id}, around, walks)
            now_ms = self._versions.ports.clock.now_ms()
            planned = await self._judge(
                wanted.branch, record, around, now_ms, is_merged=merged.get(wanted.branch, False)
            )
            if planned.state == wanted.state and not planned.goes:
                why = planned.why
            return planned.state == wanted.state and planned.goes

        try:
            # `may_go` runs after the branch is marked as leaving. From then on a write must remove the mark before it
            # is acknowledged, so no acknowledged write is lost.
            is_deleted = await self._repository.changes.delete_branch(wanted.branch, by=by, may_go=may_go)
        except BranchNotFound:
            return SweptBranch(branch=wanted.branch, is_deleted=False, why=BRANCH_GONE)
        except (Conflict, Denied, Invalid) as error:
            return SweptBranch(branch=wanted.branch, is_deleted=False, why=str(error))
        except StoreUnavailable:
            raise
        except (Unavailable, OutcomeUnknown, Corrupt) as error:
            return _in_doubt(wanted, error)
        return SweptBranch(branch=wanted.branch, is_deleted=is_deleted, why="" if is_deleted else why)

    async def _pulled(self) -> set[str]:
        pulled: set[str] = set()
        after, has_more = "", True
        while has_more:
            pulls, has_more = await self._repository.pulls.list(state=PullState.OPEN, after=after, limit=_PAGE)
            pulled.update(name for _, pull in pulls for name in (pull.source, pull.destination))
            after = pulls[-1][0] if pulls else after
        return pulled

    async def _surroundings(self) -> _Surroundings:
        """Read the facts that may keep a branch."""
        repository = self._repository
        record = await PolicyBook(self._versions).read()
        patterns, _ = await repository.settings.protection_patterns()
        return _Surroundings(
            version=record.version,
            policy=Policy() if record.policy is None else check_policy(record.policy),
            holds=await HoldBook(self._versions).in_force(),
            default=repository.record.default_branch,
            protected=(*repository.record.protected_branches, *patterns),
            at_work=await repository.settings.work_branches(),
            pulled=await self._pulled(),
        )

    async def _judge(
        self, name: str, record: BranchRecord, around: _Surroundings, now_ms: int, *, is_merged: bool | None
    ) -> PlannedBranch:
        rule = idle_rule_of(around.policy.branches, name)
        staged = await self._staged(record, rule, around.holds, now_ms)
        head = await self._versions.context.commits.read(record.commit_id)
        # Branch records of earlier releases have no `moved`.
        moved_ms = record.moved.at_ms if record.moved else max(head.created_ms, head.written_ms)
        pins = around.pins(name, record.commit_id)
        facts = BranchFacts(
            name=name,
            active_ms=max(record.created_ms, moved_ms, staged.active_ms),
            expires_ms=record.expires_ms,
            is_merged=is_merged,
            has_uncommitted=staged.has_any,
            pins=(*pins, Pin.HELD) if staged.is_held else pins,
        )
        verdict = judge_branch(rule, facts, now_ms)
        return PlannedBranch(
            branch=name,
            commit_id=record.commit_id,
            goes=verdict.goes,
            why=verdict.why,
            rule=verdict.rule,
            active_ms=facts.active_ms,
            expires_ms=record.expires_ms or None,
            due_ms=verdict.due_ms,
            goes_ms=first_going_ms(rule, replace(facts, active_ms=0) if staged.has_undated else facts, now_ms),
            has_uncommitted=staged.has_any,
            state=_state_of(record, staged),
        )

    async def _staged(self, record: BranchRecord, rule: IdleRule | None, holds: Holds, now_ms: int) -> _Staged:
        """Read the staged cells: all if the rule drops them, else the first, which is enough to keep the branch."""
        drops = rule is not None and rule.drops_uncommitted
        has_any, is_held, has_undated, active_ms, digest = False, False, False, 0, hashlib.sha256()
        for token in record.tokens():
            start: bytes | None = b""
            while start is not None:
                page = await self._versions.inventory.cells(token, start, _PAGE if drops else 1)
                has_any = has_any or bool(page.keys)
                if page.keys and not drops:
                    return _Staged(has_any=True)
                for key, value in zip(page.keys, page.values, strict=True):
                    digest.update(b"%d %d " % (len(key), len(value)) + key + value)
                    is_held = is_held or bool(holds.of(path=key_to_path(key)))
                    flags, row = decode_cell(value)
                    # Only an upload's date is the time of staging. A tombstone has no date. A copied, moved or linked
                    # entry has the date of its object. Each of these may have been staged just now.
                    has_undated = has_undated or not is_exclusive(flags)
                    active_ms = max(active_ms, from_row(row).modified_ms if is_exclusive(flags) else now_ms)
                start = page.next_start
        return _Staged(
            has_any=has_any,
            is_held=is_held,
            has_undated=has_undated,
            active_ms=active_ms,
            digest=digest.hexdigest() if drops else "",
        )

    async def _merged(self, heads: dict[str, CommitId], around: _Surroundings, walks: _Walks) -> dict[str, bool | None]:
        """Return whether each branch is merged, if its rule depends on that. None: a target branch does not exist.

        Reads the heads of target branches in every call. Uses walks of the same heads, and adds new walks to `walks`.
        """
        asked: dict[tuple[str, ...], dict[str, CommitId]] = {}
        for name, commit_id in heads.items():
            rule = idle_rule_of(around.policy.branches, name)
            if rule is not None and rule.merged is not None:
                asked.setdefault(rule.into or (around.default,), {})[name] = commit_id
        merged: dict[str, bool | None] = {}
        for into, candidates in asked.items():
            commits, known = set(candidates.values()), walks.get(into)
            targets = [await self._head_of(name) for name in into]
            there = [commit_id for commit_id in targets if commit_id is not None]
            if known is None or known.heads != there or not commits.issubset(known.asked):
                known = await self._walk(there, commits.union(known.asked if known else ()))
                walks[into] = known
            # A missing target may have had the commit.
            otherwise = False if None not in targets else None
            merged |= {name: commit_id in known.reached or otherwise for name, commit_id in candidates.items()}
        return merged

    async def _walk(self, heads: Sequence[CommitId], commits: set[CommitId]) -> _Walk:
        """Find the commits that the heads reach, by any parent."""
        records = self._versions.context.commits
        oldest = min([(await records.read(commit)).generation for commit in commits])
        reached: set[CommitId] = set()
        count = 0
        async for commit in self._versions.history.ancestry(heads):
            # Generations descend, so the walk has passed every commit in question.
            if commit.generation < oldest or len(reached) == len(commits):
                break
            if commit.id in commits:
                reached.add(commit.id)
            count += 1
            if count % _WALKED_AT_ONCE == 0:
                await self._versions.ports.clock.sleep(0)
        return _Walk(heads, commits, reached)

    async def _head_of(self, name: str) -> CommitId | None:
        record = await self._versions.inventory.find(BranchRecord, name)
        return record.commit_id if record is not None and record.state is RefState.ACTIVE else None


def _in_doubt(wanted: BranchToGo, error: LakebedError) -> SweptBranch:
    # In doubt: the error may come from a step after the branch was deleted.
    return SweptBranch(branch=wanted.branch, is_deleted=False, why=f"{BRANCH_IN_DOUBT}: {error}")


def _state_of(record: BranchRecord, staged: _Staged) -> str:
    """Return a digest of a branch's record and staged cells. Ignores the epoch and the mark of a sweep."""
    data = encode_record(replace(record, epoch=0, leaving=""))
    return hashlib.sha256(data + staged.digest.encode()).hexdigest()
