"""Planted bugs in what still stands in for the collectors (`collecting.py`, `metadata.py`, `optimised.py`).

They go with these: a guard of the shipped flow is taken out in its own file (`mutants/*.txt`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from lakebed.base import RunId, RunKind
from lakebed.gc.protocol import RunState
from lakebed.gc.rules import Namespace, clean_run
from lakebed.versions import Commit, RunRecord, SliceRecord, keys

from .collecting import READERS, SimCollector
from .effects import effect
from .metadata import PLAN, RangedTrees, SimMetadata
from .optimised import OPTIMISED_MUTANTS
from .ports import SimDeleter
from .restoring import RESTORE_MUTANTS
from .surgery import mutant, patches
from .worlds_metadata import metadata_worlds

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""


def _collecting(order: str) -> Any:
    """A clean run with its reads in another order, or with one left out."""

    async def collect(
        self: SimCollector,
        *,
        fences: bool = False,
        is_last: bool = False,
        has_grace: bool = False,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        del has_grace, meanwhile
        if is_last:
            await _real_collect(self, is_last=True)
            return
        repo = self.repo
        found: dict[str, Any] = {"fences": fences, "commits": []}
        for letter in order:
            match letter:
                case "r":
                    found["run"], _ = await self.runs.start_marking()
                case "s":
                    if fences:
                        await self.fence_all()
                    found["closed"] = await self._closed()
                case "S":
                    found["closed"] = {one async for one, _ in repo.inventory.every(SliceRecord)}
                case "l":
                    found["listing"] = [stat.key async for page in repo.objectstore.list("data/") for stat in page]
                case "u":
                    found["uncommitted"] = await self.read_staging()
                case "c" | "p":
                    commits = [one async for _, one in repo.inventory.every(Commit)]
                    found["commits"] = [one for one in commits if letter == "c" or one.published]
        live = found["uncommitted"] | await self._addresses(found["commits"])
        namespace = Namespace(uri=repo.objectstore.uri, closed=found["closed"])
        garbage = clean_run(found["listing"], committed=live, uncommitted=(), namespace=namespace).garbage
        await self.runs.move(found["run"], RunState.MARKED)
        await SimDeleter().delete(sorted(garbage))

    return collect


_real_collect: Any = SimCollector.collect_uncommitted


async def _no_grace(_: SimCollector) -> None:
    return


async def _grace_before_reading(self: SimCollector) -> set[str]:
    page = await self.repo.store.scan(READERS, b"", 100)
    await effect(("until", READERS, tuple(page.keys)))
    return await _real_read_staging(self)  # type: ignore[no-any-return]  # surgery


_real_read_staging: Any = SimCollector.read_staging


_LINK_CLEAN = ("linker, record cleaner, run",)


_COMMIT = ("committer, run", "writer, committer, run")


_GRACE = ("reader of bytes, uploader, run with grace",)


async def _open_ones_too(self: SimCollector) -> frozenset[str]:
    return frozenset([name async for name, _ in self.repo.inventory.every(SliceRecord)])


async def _not_yet_closed(self: Any) -> set[str]:
    self.late = set()
    return self.late  # type: ignore[no-any-return]  # surgery


async def _staging_then_closed(self: Any) -> set[str]:
    found = await _real_read_staging(self)
    self.late |= await _real_closed(self)
    return found  # type: ignore[no-any-return]  # surgery


_real_closed: Any = SimCollector._closed  # noqa: SLF001  # the real one, to call from the changed one


_BEHIND: Final = ("uploader, committed run of its commit",)


async def _sweep_then_swept(self: SimCollector, run_id: RunId, plan: str, *, has_grace: bool = False) -> None:
    del has_grace
    commits, garbage = (part.split() for part in plan.split("|"))
    await SimDeleter().delete(garbage)
    await self.runs.note_swept(run_id)
    await self.runs.move(run_id, RunState.ENDED)
    await self.write_swept(run_id, commits)


_BRANCH = ("brancher, committed run",)


_PAST_READ = ("reader of a commit, committed run with grace",)


async def _take_back(self: SimMetadata, run_id: Any, plan: str) -> None:
    await _real_sweep(self, run_id, plan)
    taken = [key.rpartition("/")[2].removesuffix(".parquet").encode() for key in plan.removeprefix("|").split()]
    await self.repo.store.delete_many(keys.retired_partition(self.repo.uid), taken)


_real_sweep: Any = SimMetadata.sweep


async def _write_tree_unasked(self: RangedTrees, contents: Any, retired_by: Any) -> Any:
    """Ranges are asked after, the tree that names them is not."""

    async def only_ranges(ids: Sequence[str]) -> Sequence[str]:
        is_range = ids[0] in _range_ids(contents)
        return await retired_by(ids) if is_range else [""] * len(ids)

    return await _real_write(self, contents, only_ranges)


_real_write: Any = RangedTrees._write  # noqa: SLF001  # the real one, to call from the changed one


def _range_ids(contents: Any) -> set[str]:
    from .metadata import id_of

    return {id_of(repr((key, row[0])), "") for key, row in contents.items()}


_ALL: Final = tuple(dict.fromkeys(scene.name for scene, _, is_quick in metadata_worlds() if is_quick))


async def _check_then_publish(self: SimMetadata) -> None:
    await self.runs.check_not_retired(PLAN)
    record = RunRecord(kind=RunKind.COMMITTED, state=RunState.EXPIRING, started_ms=0)
    await self.runs.write(PLAN, record, None)


async def _read_committed_once(self: SimCollector) -> set[str]:
    snapshot = await self.look_again()
    return await self._addresses(commit for id_, commit in snapshot.commits if id_ not in snapshot.swept)


STAND_IN_MUTANTS: Final = (
    mutant(
        "run-late",
        "the run's record before all reads",
        _LINK_CLEAN,
        patches(SimCollector, collect_uncommitted=_collecting("slucr")),
    ),
    mutant(
        "slices-late",
        "slices are read before cells",
        ("uploader that closes, run",),
        patches(SimCollector, collect_uncommitted=_collecting("rucsl")),
    ),
    mutant("grace-none", "readers have a grace", _GRACE, patches(SimCollector, grace=_no_grace)),
    mutant(
        "grace-early",
        "the grace begins after the last look",
        _GRACE,
        patches(SimCollector, read_staging=_grace_before_reading, grace=_no_grace),
    ),
    mutant(
        "committed-open",
        "a committed run takes only closed slices",
        _BEHIND,
        patches(SimCollector, _closed=_open_ones_too),
    ),
    mutant(
        "committed-closed-late",
        "they had closed before staging was read",
        _BEHIND,
        patches(SimCollector, _closed=_not_yet_closed, read_staging=_staging_then_closed),
    ),
    mutant("swept-no-grace", "readers of a commit have a grace", _PAST_READ, patches(SimCollector, grace=_no_grace)),
    mutant(
        "swept-after", "swept before the deletes and the end", _BRANCH, patches(SimCollector, sweep=_sweep_then_swept)
    ),
    mutant("tree-unasked", "he asks after the tree's id too", _ALL, patches(RangedTrees, _write=_write_tree_unasked)),
    mutant("retired-back", "retired for ever", _ALL, patches(SimMetadata, sweep=_take_back)),
    mutant(
        "plan-checked-early",
        "he looks after his record is there",
        _ALL,
        patches(SimMetadata, apply_plan=_check_then_publish),
    ),
    mutant(
        "trees-read-once",
        "a run that misses a file asks which commits are gone",
        ("committer, metadata run, reader of trees",),
        patches(SimCollector, read_committed=_read_committed_once),
    ),
    *OPTIMISED_MUTANTS,
    *RESTORE_MUTANTS,
)
