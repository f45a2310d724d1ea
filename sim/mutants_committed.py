"""Planted bugs in runs of committed data, and in naming commits while one runs.

Each names the scenes of `worlds.py` that it is hunted in: they are the smallest in which its guard has work to do.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import RunId, from_row
from lakebed.gc.protocol import RunState
from lakebed.gc.service.commit_columns import CommitColumns
from lakebed.gc.service.commits import Snapshot, read_snapshot
from lakebed.gc.service.condemning import Condemning
from lakebed.gc.service.rules import RuleBook
from lakebed.kv import PredicateFailed
from lakebed.versions import (
    CopyState,
    HoldRecord,
    RefState,
    RunKind,
    RunRecord,
    Versions,
    encode_record,
    keys,
)
from lakebed.versions import RunState as StoredState
from lakebed.versions.cells import TOMBSTONE, TOMBSTONE_ROW
from lakebed.versions.staging import ANY

from .collecting import SimCollector
from .planting import mutant, patches
from .ports import SimDeleter

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""

# A run of committed data, and naming commits


async def _check_nothing(_: Repo, __: Any) -> None:
    return


async def _no_grace(_: SimCollector) -> None:
    return


async def _check_without_swept(self: Repo, commits: Any) -> None:
    await _check_runs(self, commits)


async def _check_swept_first(self: Repo, commits: Any) -> None:
    names = sorted(set(commits) - {""})
    for held in await self.store.get_many(self.partition, [keys.SWEPT + name.encode() for name in names]):
        if held is not None:
            raise PredicateFailed("swept")
    await _check_runs(self, commits)


async def _check_runs(self: Repo, commits: Any) -> None:
    taking = [
        run for run, record in await self.runs() if record.state in (StoredState.CONDEMNING, StoredState.SWEEPING)
    ]
    for run in taking:
        wanted = [name.encode() for name in sorted(set(commits) - {""})]
        if any(await self.store.get_many(keys.condemned_partition(self.uid, run), wanted)):
            raise PredicateFailed("condemned")


async def _move_without_hold(self: Repo, branch: str, operation: str, attempt: int, commit_id: Any, move: Any) -> Any:
    await self.check_not_condemned([commit_id])
    return await move(branch, operation, attempt, commit_id=commit_id)


async def _check_before_hold(self: Repo, branch: str, operation: str, attempt: int, commit_id: Any, move: Any) -> Any:
    await self.check_not_condemned([commit_id])
    hold = keys.HOLD + f"{operation}-{attempt:04d}".encode()
    record = HoldRecord(commit_id=commit_id, branch=branch, created_ms=self.ports.clock.now_ms())
    await self._set_record(hold, record)
    done = await move(branch, operation, attempt, commit_id=commit_id)
    await self._drop_hold(hold)
    return done


async def _hard_reset_after_one_look(self: Repo, branch: str, ref: str, *, force: bool = False) -> Any:
    commit_id, operation, attempt = await self.resolve_commit(ref), self.ports.ids.fresh(), 0
    while True:
        attempt += 1
        seen = await self._fresh(branch)
        if not force:
            await self._check_unused(branch, seen.record.commit_id, seen.record.tokens())
        move = partial(self._drop_staged, seen=seen)
        if await self._holding(branch, operation, attempt, commit_id, move):
            return commit_id


async def _check_only_what_is_current(self: Repo, branch: str, head: Any, tokens: Any) -> None:
    current = (await self._fresh(branch)).record.staging_token
    if current in tokens:
        await _real_check_unused(self, branch, head, tokens)


_real_check_unused: Any = Versions._check_unused  # noqa: SLF001  # the real one, to call from the changed one


async def _drop_what_is_current_too(self: Repo, branch: str, operation: str, attempt: int, **of: Any) -> Any:
    return await self._drop_staged(branch, operation, attempt, seen=of["seen"], commit_id=of["commit_id"])


def _staging_head(order: str) -> Any:
    """The reset of one object whose steps come in another order, or with one left out: r(ecord), c(heck), s(et)."""

    async def stage_head(self: Repo, branch: str, record: Any, key: bytes) -> None:
        row = await self.trees.lookup(await self._metarange(record.commit_id), key)
        if row is None:
            await self._set_cell(record, key, TOMBSTONE, TOMBSTONE_ROW, ANY)
            return
        copy: Any = None
        for letter in order:
            match letter:
                case "r":
                    copy = await self._begin_copy(from_row(row).address, branch)
                case "c":
                    await self.check_not_condemned([record.commit_id])
                case "s":
                    await self._set_cell(record, key, 0, row, ANY)
        if copy:
            await self._finish_copy(copy[0], replace(copy[1], state=CopyState.DONE), copy[2])

    return stage_head


async def _activate_unchecked(self: Repo, key: bytes, held: Any, active: Any, _: Any) -> None:
    await self.store.set_if(self.partition, key, encode_record(active), held.predicate)


async def _make_ref_after_check(self: Repo, key: bytes, record: Any, exists: Exception) -> Any:
    await self.check_not_condemned([record.commit_id])
    return await _real_make_ref(self, key, record, exists)


_real_make_ref: Any = Versions._make_ref  # noqa: SLF001  # the real one, to call from the changed one


async def _publish_without_touch(self: SimCollector, run_id: RunId, expired: Any, plan: Snapshot, *rules: int) -> None:
    nameless = [(id_, replace(commit, made_for="")) for id_, commit in plan.commits]
    plan = Snapshot(refs=plan.refs, commits=CommitColumns.of(nameless), swept=plan.swept)
    await _real_publish(self, run_id, expired, plan, *rules)


_real_publish: Any = SimCollector._publish  # noqa: SLF001  # the real one, to call from the changed one


async def _list_before_record(self: Any, run_id: RunId, attempt: str, body: Any, commits: Any) -> RunRecord:
    record = RunRecord(
        kind=RunKind.COMMITTED,
        state=StoredState.CONDEMNING,
        started_ms=self._versions.ports.clock.now_ms(),
        attempt=attempt,
        listed=body.commits.digest(),
    )
    await self._add_condemned(run_id, commits)
    await self._runs.write(run_id, record, None)
    return record


async def _drop_no_lists(_: Any, *, old_age_ms: int) -> None:
    del old_age_ms


async def _look_at_refs_before_holds(self: SimCollector) -> Snapshot:
    first = await read_snapshot(self.repo)
    holds = (await read_snapshot(self.repo)).refs
    refs = [ref for ref in first.refs if ref[0] != "hold"] + [ref for ref in holds if ref[0] == "hold"]
    return Snapshot(refs=refs, commits=first.commits, swept=first.swept)


async def _look_past_creating(self: SimCollector) -> Snapshot:
    found = await read_snapshot(self.repo)
    return Snapshot(
        refs=[ref for ref in found.refs if ref[3] != RefState.CREATING.value], commits=found.commits, swept=found.swept
    )


async def _sweep_then_swept(self: SimCollector, run_id: RunId, plan: str, *, has_grace: bool = False) -> None:
    del has_grace
    commits, doomed = (part.split() for part in plan.split("|"))
    await SimDeleter().delete(doomed)
    await self.runs.note_swept(run_id)
    await self.runs.move(run_id, RunState.ENDED)
    await self.write_swept(run_id, commits)


async def _keep_by_rules_once_read(self: Any, run_id: RunId, record: RunRecord, snapshot: Snapshot) -> Any:
    del run_id
    planned = await self._rules.version(int(record.rules_version))
    return snapshot.kept(planned.rules, now_ms=self._versions.ports.clock.now_ms())


async def _change_rules_after_looking(self: Any, edit: Any, **of: Any) -> Any:
    taking = tuple([run for run, one in await self._versions.runs() if one.state in _TAKING])
    return replace_taking(await _real_change(self, edit, **of), taking)


def replace_taking(answer: Any, taking: Any) -> Any:
    return type(answer)(answer.version, taking)


_TAKING: Final = (StoredState.CONDEMNING, StoredState.SWEEPING)
_real_change: Any = RuleBook.change  # the real one, to call from the changed one


async def _delete_branch_unclaimed(self: Repo, name: str) -> None:
    seen = await self._fresh(name)
    self._branches.pop(name, None)
    await self.store.delete_if(self.partition, keys.BRANCH + name.encode(), seen.held.predicate)


_BRANCH = ("brancher, committed run",)
_HARD = ("hard resetter, committed run",)
_GENTLE = ("writer, gentle hard resetter",)
_RESET = ("resetter of an object, committer that runs",)
_PAST_READ = ("reader of a commit, committed run with grace",)


COMMITTED_MUTANTS: Final = (
    mutant("hold-none", "a hard reset writes a hold", _HARD, patches(Versions, _holding=_move_without_hold)),
    mutant("hold-late", "the hold before the check", _HARD, patches(Versions, _holding=_check_before_hold)),
    mutant(
        "unforced-unsealed",
        "a hard reset without force seals, then looks",
        _GENTLE,
        patches(Versions, hard_reset=_hard_reset_after_one_look),
    ),
    mutant(
        "unforced-unseen",
        "what it sealed is looked at",
        _GENTLE,
        patches(Versions, _check_unused=_check_only_what_is_current),
    ),
    mutant(
        "unforced-current",
        "it takes what was sealed and no more",
        _GENTLE,
        patches(Versions, _drop_unused=_drop_what_is_current_too),
    ),
    mutant(
        "reset-untracked",
        "what the reset of one object names has a record",
        _RESET,
        patches(Versions, _stage_head=_staging_head("cs")),
    ),
    mutant(
        "reset-unchecked",
        "what the reset of one object names is not condemned",
        _RESET,
        patches(Versions, _stage_head=_staging_head("rs")),
    ),
    mutant("reset-late", "the record before the check", _RESET, patches(Versions, _stage_head=_staging_head("crs"))),
    mutant(
        "ref-unchecked",
        "creating, then the check, then active",
        _BRANCH,
        patches(Versions, _activate=_activate_unchecked),
    ),
    mutant(
        "ref-late",
        "creating before the check",
        _BRANCH,
        patches(Versions, _make_ref=_make_ref_after_check, _activate=_activate_unchecked),
    ),
    mutant(
        "used-unchecked",
        "what a merge or revert used is not condemned",
        ("reverter, committed run",),
        patches(Versions, check_not_condemned=_check_nothing),
    ),
    mutant(
        "swept-unread",
        "condemned is also what was swept",
        _BRANCH,
        patches(Versions, check_not_condemned=_check_without_swept),
    ),
    mutant(
        "swept-first",
        "swept is read after the runs",
        _BRANCH,
        patches(Versions, check_not_condemned=_check_swept_first),
    ),
    mutant(
        "swept-readable",
        "what was given up is not read through",
        _PAST_READ,
        patches(Versions, check_contents=_check_nothing),
    ),
    mutant("swept-no-grace", "readers of a commit have a grace", _PAST_READ, patches(SimCollector, grace=_no_grace)),
    mutant(
        "swept-late", "swept before the deletes and the end", _BRANCH, patches(SimCollector, sweep=_sweep_then_swept)
    ),
    mutant(
        "condemn-untouched",
        "branches of condemned commits are touched",
        ("reverter, committed run",),
        patches(SimCollector, _publish=_publish_without_touch),
    ),
    mutant(
        "list-first",
        "a run's record before the list of what it condemns",
        _BRANCH,
        patches(Condemning, _begin_attempt=_list_before_record),
    ),
    mutant(
        "list-kept",
        "what a finished run left of its list is dropped",
        _BRANCH,
        patches(Condemning, drop_lists=_drop_no_lists),
    ),
    mutant(
        "refs-first",
        "holds are read before branches",
        _HARD,
        patches(SimCollector, look_again=_look_at_refs_before_holds),
    ),
    mutant(
        "creating-unread",
        "a ref that is being made is a root",
        _BRANCH,
        patches(SimCollector, look_again=_look_past_creating),
    ),
    mutant(
        "rules-unread",
        "changed rules end a run",
        ("setter of rules, run by rules",),
        patches(Condemning, _kept=_keep_by_rules_once_read),
    ),
    mutant(
        "rules-late",
        "rules are written, then runs are read",
        ("setter of rules, run by rules",),
        patches(RuleBook, change=_change_rules_after_looking),
    ),
    mutant(
        "delete-unclaimed",
        "a deleted branch's tokens are claimed",
        ("writer, deleter that creates again",),
        patches(Versions, delete_branch=_delete_branch_unclaimed),
    ),
)
