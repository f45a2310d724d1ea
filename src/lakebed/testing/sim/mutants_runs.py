"""Planted bugs in both kinds of run, and in naming commits while one runs.

Each names the scenes of `worlds.py` that it is hunted in: they are the smallest in which its guard has work to do.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import RunId
from lakebed.handoff import RunState
from lakebed.kv import PredicateFailed
from lakebed.retention import Namespace, clean_run
from lakebed.upkeep.commits import Snapshot, read_snapshot
from lakebed.upkeep.condemning import Condemning
from lakebed.upkeep.reading import Cursor, Phase, Reading
from lakebed.upkeep.records import records
from lakebed.upkeep.rules import RuleBook
from lakebed.upkeep.runs import RunBook
from lakebed.versions import (
    Commit,
    HoldRecord,
    RefState,
    RunKind,
    RunRecord,
    SliceRecord,
    SliceState,
    Versions,
    encode_record,
    keys,
)
from lakebed.versions import RunState as StoredState
from lakebed.versions.committing import Built

from .collecting import READERS, Addresses, SimCollector
from .effects import effect
from .planting import mutant, patches

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""

# A run of uncommitted data


async def _no_touch(_: Repo, __: str, *, only_sealed: bool = False) -> None:
    del only_sealed


def _is_from_whatever_touched(self: Any, record: Any, left: Any) -> bool:
    return bool(self.head == record.commit_id and self.left == tuple(left))


async def _read_copies_first(self: SimCollector) -> set[str]:
    rows = Addresses()
    cursor = Cursor(name="sim", phase=Phase.COPIES)
    while cursor.phase is not Phase.DONE:
        cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # surgery
    cursor = Cursor(name="sim")
    while cursor.phase is not Phase.COPIES:
        cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # surgery
    return rows.found


async def _read_no_records(self: SimCollector) -> set[str]:
    rows = Addresses()
    cursor = Cursor(name="sim")
    while cursor.phase not in (Phase.UPLOADS, Phase.COPIES):
        cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # surgery
    return rows.found


async def _touch_phase_without_frozen(self: Any, cursor: Cursor, rows: Any) -> Cursor:
    del rows
    found = await self._next_branch(cursor.branch)
    if found is None:
        return Cursor(name=cursor.name, page=cursor.page, phase=Phase.UPLOADS)
    await self._versions.touch(found[0], only_sealed=True)
    return replace(cursor, branch=found[0])


async def _cells_of_the_current_token(self: Any, cursor: Cursor, rows: Any) -> Cursor:
    after = await _real_step_cells(self, cursor, rows)
    return replace(after, tokens=after.tokens[:1]) if after.tokens and not cursor.tokens else after  # type: ignore[no-any-return]  # surgery


_real_step_cells: Any = Reading._step_cells  # noqa: SLF001  # the real one, to call from the changed one


async def _mark_blindly(self: Any, run_id: RunId, state: RunState, *, plan: str = "") -> RunRecord:
    record, _ = await self.read(run_id)
    after = replace(record, state=StoredState(state.value), plan=plan)
    await self._versions.store.set(self._versions.partition, keys.RUN + run_id.encode(), encode_record(after))
    return after  # type: ignore[no-any-return]  # surgery


def _collecting(order: str) -> Any:
    """A clean run with its reads in another order, or with one left out."""

    async def collect(
        self: SimCollector, *, gives_up: bool = False, is_last: bool = False, has_grace: bool = False
    ) -> None:
        del has_grace
        if is_last:
            await _real_collect(self, is_last=True)
            return
        repo = self.repo
        found: dict[str, Any] = {"gives_up": gives_up, "commits": []}
        for letter in order:
            match letter:
                case "r":
                    found["run"], _ = await self.runs.start_marking()
                case "s":
                    if gives_up:
                        await self.give_up_all()
                    found["settled"] = await self._settled()
                case "S":
                    found["settled"] = {one async for one, _ in records(repo, SliceRecord, keys.SLICE)}
                case "l":
                    found["listing"] = [stat.key async for page in repo.blocks.list("data/") for stat in page]
                case "u":
                    found["uncommitted"] = await self.read_staging()
                case "c" | "p":
                    commits = [one async for _, one in records(repo, Commit, keys.COMMIT)]
                    found["commits"] = [one for one in commits if letter == "c" or one.published]
        live = found["uncommitted"] | await self._addresses(found["commits"])
        namespace = Namespace(uri=repo.blocks.uri, settled=found["settled"])
        doomed = clean_run(found["listing"], committed=live, uncommitted=(), namespace=namespace).doomed
        await self.runs.move(found["run"], RunState.MARKED)
        await repo.blocks.delete(sorted(doomed))

    return collect


_real_collect: Any = SimCollector.collect_uncommitted


# A run of committed data, and naming commits


async def _check_nothing(_: Repo, __: Any) -> None:
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


async def _move_without_hold(self: Repo, branch: str, seen: Any, operation: str, attempt: int, commit_id: Any) -> Any:
    await self.check_not_condemned([commit_id])
    return await self._drop_staged(branch, seen, operation, attempt, commit_id=commit_id)


async def _check_before_hold(self: Repo, branch: str, seen: Any, operation: str, attempt: int, commit_id: Any) -> Any:
    await self.check_not_condemned([commit_id])
    hold = keys.HOLD + f"{operation}-{attempt:04d}".encode()
    record = HoldRecord(commit_id=commit_id, branch=branch, created_ms=self.world.clock.now_ms())
    await self._set_record(hold, record)
    done = await self._drop_staged(branch, seen, operation, attempt, commit_id=commit_id)
    await self._drop_hold(hold)
    return done


async def _activate_unchecked(self: Repo, key: bytes, held: Any, active: Any, _: Any) -> None:
    await self.store.set_if(self.partition, key, encode_record(active), held.predicate)


async def _make_ref_after_check(self: Repo, key: bytes, record: Any, exists: Exception) -> Any:
    await self.check_not_condemned([record.commit_id])
    return await _real_make_ref(self, key, record, exists)


_real_make_ref: Any = Versions._make_ref  # noqa: SLF001  # the real one, to call from the changed one


async def _publish_without_touch(self: SimCollector, run_id: RunId, expired: Any, plan: Snapshot, *rules: int) -> None:
    nameless = [(id_, replace(commit, made_for="")) for id_, commit in plan.commits]
    await _real_publish(self, run_id, expired, Snapshot(refs=plan.refs, commits=nameless, swept=plan.swept), *rules)


_real_publish: Any = SimCollector._publish  # noqa: SLF001  # the real one, to call from the changed one


async def _list_before_record(self: Any, run_id: RunId, attempt: str, body: Any, commits: Any) -> RunRecord:
    record = RunRecord(
        kind=RunKind.COMMITTED,
        state=StoredState.CONDEMNING,
        started_ms=self._versions.world.clock.now_ms(),
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


async def _sweep_then_swept(self: SimCollector, run_id: RunId, plan: str) -> None:
    commits, doomed = (part.split() for part in plan.split("|"))
    await self.repo.blocks.delete(doomed)
    await self.runs.move(run_id, RunState.ENDED)
    await self.write_swept(run_id, commits)


async def _keep_by_rules_once_read(self: Any, run_id: RunId, record: RunRecord, snapshot: Snapshot) -> Any:
    del run_id
    planned = await self._rules.version(int(record.rules_version))
    return snapshot.kept(planned.rules, now_ms=self._versions.world.clock.now_ms())


async def _change_rules_after_looking(self: Any, edit: Any, **of: Any) -> Any:
    taking = tuple([run for run, one in await self._versions.runs() if one.state in _TAKING])
    return replace_taking(await _real_change(self, edit, **of), taking)


def replace_taking(answer: Any, taking: Any) -> Any:
    return type(answer)(answer.version, taking)


_TAKING: Final = (StoredState.CONDEMNING, StoredState.SWEEPING)
_real_change: Any = RuleBook.change  # the real one, to call from the changed one


async def _no_grace(_: SimCollector) -> None:
    return


async def _grace_before_reading(self: SimCollector) -> set[str]:
    page = await self.repo.store.scan(READERS, b"", 100)
    await effect(("until", READERS, tuple(page.keys)))
    return await _real_read_staging(self)  # type: ignore[no-any-return]  # surgery


_real_read_staging: Any = SimCollector.read_staging


async def _skip_first_of_next_page(self: Any, cursor: Cursor, rows: Any) -> Cursor:
    after = await _real_scan_token(self, cursor, rows)
    return replace(after, key=after.key + b"\0") if after.key else after  # type: ignore[no-any-return]  # surgery


_real_scan_token: Any = Reading._scan_token  # noqa: SLF001  # the real one, to call from the changed one


async def _settle_what_was_mine(self: Repo, **of: Any) -> None:
    async for key, one in self._records(SliceRecord, keys.SLICE):
        if one.owner == self.options.owner:
            await self._move(SliceRecord, key, {SliceState.OPEN: SliceState.SETTLED})
    await _real_close_slices(self, **of)


_real_close_slices: Any = Versions.close_slices


async def _delete_branch_unclaimed(self: Repo, name: str) -> None:
    seen = await self._fresh(name)
    self._branches.pop(name, None)
    await self.store.delete_if(self.partition, keys.BRANCH + name.encode(), seen.held.predicate)


_LINK_CLEAN = ("linker, record cleaner, run",)
_COPY = ("renamer, run in pages", "copier that deletes, cleaner, run", "copier, deleter, run")
_COMMIT = ("committer, run", "writer, committer, run")
_GRACE = ("reader of bytes, uploader, run with grace",)
_BRANCH = ("brancher, committed run",)
_HARD = ("hard resetter, committed run",)


RUN_MUTANTS: Final = (
    mutant("touch-none", "a run touches where tokens are sealed", _COMMIT, patches(Versions, touch=_no_touch)),
    mutant(
        "touch-unheeded",
        "touched is part of what a commit is from",
        _COMMIT,
        patches(Built, is_from=_is_from_whatever_touched),
    ),
    mutant(
        "copies-first", "copies are read after cells", _COPY, patches(SimCollector, read_staging=_read_copies_first)
    ),
    mutant(
        "records-unread",
        "upload and copy records are read",
        _COPY,
        patches(SimCollector, read_staging=_read_no_records),
    ),
    mutant(
        "frozen-unread",
        "frozen tokens of now are read too",
        ("freezer that cleans, run",),
        patches(Reading, _step_touch=_touch_phase_without_frozen),
    ),
    mutant(
        "sealed-unread",
        "cells of sealed tokens are read",
        _COMMIT,
        patches(Reading, _step_cells=_cells_of_the_current_token),
    ),
    mutant(
        "mark-blind",
        "marked by set_if",
        ("linker, run, cleaner that abandons it",),
        patches(RunBook, move=_mark_blindly),
    ),
    mutant(
        "run-late",
        "the run's record before all reads",
        _LINK_CLEAN,
        patches(SimCollector, collect_uncommitted=_collecting("slucr")),
    ),
    mutant(
        "slices-open",
        "only settled slices",
        ("uploader that closes, run",),
        patches(SimCollector, collect_uncommitted=_collecting("rSluc")),
    ),
    mutant(
        "slices-late",
        "slices are read before cells",
        ("uploader that closes, run",),
        patches(SimCollector, collect_uncommitted=_collecting("rucsl")),
    ),
    mutant(
        "commits-first",
        "commits are read after cells",
        _COMMIT,
        patches(SimCollector, collect_uncommitted=_collecting("rslcu")),
    ),
    mutant(
        "commits-noted",
        "commits, reachable or not",
        _COMMIT,
        patches(SimCollector, collect_uncommitted=_collecting("rslup")),
    ),
    mutant("hold-none", "a hard reset writes a hold", _HARD, patches(Versions, _hold_and_move=_move_without_hold)),
    mutant("hold-late", "the hold before the check", _HARD, patches(Versions, _hold_and_move=_check_before_hold)),
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
    mutant("grace-none", "readers have a grace", _GRACE, patches(SimCollector, grace=_no_grace)),
    mutant(
        "grace-early",
        "the grace begins after the last look",
        _GRACE,
        patches(SimCollector, read_staging=_grace_before_reading, grace=_no_grace),
    ),
    mutant(
        "page-skips",
        "a page goes on where the last one ended",
        ("renamer, run in pages",),
        patches(Reading, _scan_token=_skip_first_of_next_page),
    ),
    mutant(
        "settle-restarted",
        "a slice whose owner died is fenced and frozen first",
        ("uploader that comes back, run",),
        patches(Versions, close_slices=_settle_what_was_mine),
    ),
    mutant(
        "delete-unclaimed",
        "a deleted branch's tokens are claimed",
        ("writer, deleter that creates again",),
        patches(Versions, delete_branch=_delete_branch_unclaimed),
    ),
)
