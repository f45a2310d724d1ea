"""Planted bugs in collections of metadata and in what committers ask of them: each must show in `metadata_worlds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from lakebed.gc.service import commits as snapshots
from lakebed.gc.service.commit_columns import CommitColumns
from lakebed.gc.service.commits import Snapshot
from lakebed.gc.service.metadata import MetadataRuns
from lakebed.gc.service.runs import RunBook
from lakebed.versions import RefState, RunKind, RunRecord, RunState, Versions, keys
from lakebed.versions.committing import Built

from .collecting import SimCollector
from .metadata import PLAN, RangedTrees, SimMetadata
from .planting import Mutant, mutant, patches
from .worlds_metadata import metadata_worlds

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""


async def _unasked(_: Repo, ids: Sequence[str]) -> list[str]:
    return [""] * len(ids)


async def _seal_after_asking(self: Repo, branch: str) -> Any:
    page = await self.store.scan(keys.given_up_partition(self.uid), b"", 100)
    self.asked_early = {key.decode(): value.decode() for key, value in zip(page.keys, page.values, strict=True)}
    return await _real_seal(self, branch)


_real_seal: Any = Versions._seal  # noqa: SLF001  # the real one, to call from the changed one


async def _asked_before(self: Repo, ids: Sequence[str]) -> list[str]:
    if not hasattr(self, "asked_early"):
        return await _real_given_up(self, ids)  # type: ignore[no-any-return]  # surgery
    return [self.asked_early.get(id_, "") for id_ in ids]


_real_given_up: Any = Versions.given_up


def _publishing(order: str) -> Any:
    """The steps of a publication in another order, or with one left out: g(ive up), t(ouch)."""

    async def publish(self: Any, run_id: str, *, files: Sequence[str], runs: Sequence[str]) -> list[str]:
        del runs
        versions = self._versions
        for letter in order:
            if letter == "g":
                items = [(id_.encode(), run_id.encode()) for id_ in files]
                await versions.store.set_many(keys.given_up_partition(versions.uid), items)
                continue
            for name, record in await versions.branch_records():
                if record.state is RefState.ACTIVE:
                    await versions.touch(name)
        return []

    return publish


async def _look_once(self: Any) -> Snapshot:
    """What the plan saw is what the recheck goes by."""
    if not hasattr(self, "seen"):
        self.seen = await _real_look(self)
    return self.seen  # type: ignore[no-any-return]  # surgery


_real_look: Any = MetadataRuns.look


async def _look_at_noted(self: SimMetadata) -> Snapshot:
    found = await _real_look(self.metadata)
    noted = [item for item in found.commits if item[1].published]
    return Snapshot(refs=found.refs, commits=CommitColumns.of(noted), swept=found.swept)


async def _take_back(self: SimMetadata, run_id: Any, plan: str) -> None:
    await _real_sweep(self, run_id, plan)
    taken = [key.rpartition("/")[2].removesuffix(".parquet").encode() for key in plan.removeprefix("|").split()]
    await self.repo.store.delete_many(keys.given_up_partition(self.repo.uid), taken)


_real_sweep: Any = SimMetadata.sweep


def _is_from_whatever_touched(self: Any, record: Any, left: Any) -> bool:
    return bool(self.head == record.commit_id and self.left == tuple(left))


async def _nothing_void(*_: Any, **__: Any) -> frozenset[str]:
    return frozenset()


async def _write_tree_unasked(self: RangedTrees, contents: Any, salts: Any) -> Any:
    """Ranges are asked after, the tree that names them is not."""

    async def only_ranges(ids: Sequence[str]) -> Sequence[str]:
        is_range = ids[0] in _range_ids(contents)
        return await salts(ids) if is_range else [""] * len(ids)

    return await _real_write(self, contents, only_ranges)


_real_write: Any = RangedTrees._write  # noqa: SLF001  # the real one, to call from the changed one


def _range_ids(contents: Any) -> set[str]:
    from .metadata import id_of

    return {id_of(repr((key, row[0])), "") for key, row in contents.items()}


_ALL: Final = tuple(dict.fromkeys(scene.name for scene, _, is_quick in metadata_worlds() if is_quick))
"""Each is hunted in all that are quick."""


async def _unchecked(_: Any, __: Any) -> None:
    return


async def _check_then_publish(self: SimMetadata) -> None:
    await self.runs.check_not_given_up(PLAN)
    record = RunRecord(kind=RunKind.COMMITTED, state=RunState.CONDEMNING, started_ms=0)
    await self.runs.write(PLAN, record, None)


async def _over(_: Any, __: Any) -> bool:
    return True


async def _read_committed_once(self: SimCollector) -> set[str]:
    snapshot = await self.look_again()
    return await self._addresses(commit for id_, commit in snapshot.commits if id_ not in snapshot.swept)


METADATA_MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("ids-unasked", "a committer asks whether his ids were given up", _ALL, patches(Versions, given_up=_unasked)),
    mutant(
        "ids-asked-early",
        "he asks after he read his branch",
        _ALL,
        patches(Versions, _seal=_seal_after_asking, given_up=_asked_before),
    ),
    mutant("tree-unasked", "he asks after the tree's id too", _ALL, patches(RangedTrees, _write=_write_tree_unasked)),
    mutant("metadata-untouched", "every branch is touched", _ALL, patches(MetadataRuns, publish=_publishing("g"))),
    mutant("metadata-touch-first", "given up before the touch", _ALL, patches(MetadataRuns, publish=_publishing("tg"))),
    mutant("metadata-ungiven", "ids are given up at all", _ALL, patches(MetadataRuns, publish=_publishing("t"))),
    mutant("metadata-look-once", "commits are read after the touch", _ALL, patches(MetadataRuns, look=_look_once)),
    mutant("metadata-noted", "commits, noted or not", _ALL, patches(SimMetadata, look_again=_look_at_noted)),
    mutant("given-back", "given up for ever", _ALL, patches(SimMetadata, sweep=_take_back)),
    mutant(
        "metadata-touch-unheeded",
        "touched is part of what a commit is from",
        _ALL,
        patches(Built, is_from=_is_from_whatever_touched),
    ),
    mutant(
        "plan-unchecked",
        "who publishes a plan looks whether it was given up",
        _ALL,
        patches(RunBook, check_not_given_up=_unchecked),
    ),
    mutant(
        "plan-checked-early",
        "he looks after his record is there",
        _ALL,
        patches(SimMetadata, apply_plan=_check_then_publish),
    ),
    mutant(
        "runs-unread", "a run's record is read after it was given up", _ALL, patches(MetadataRuns, _end_planned=_over)
    ),
    mutant(
        "trees-read-once",
        "a run that misses a file asks which commits are gone",
        ("committer, metadata run, reader of trees",),
        patches(SimCollector, read_committed=_read_committed_once),
    ),
    mutant("void-unseen", "void commits are passed over", _ALL, ((snapshots, "find_void", _nothing_void),)),  # type: ignore[arg-type]  # a module has attributes too
)
