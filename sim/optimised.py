"""Optimised runs of uncommitted data, raced against writers: the plain specification over the real records.

As in collecting.py, the pieces that touch the store are real, and addresses go from step to step in memory. What a run
saves is one value in the object store, written after its deletes. Where nothing is swept, an optimised run has to find
all garbage: so these scenes are tidied by one, and what is left then is looked at (`an_optimised_run_finds_all`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from lakebed.base import CommitId, from_row
from lakebed.gc.protocol import RunState
from lakebed.gc.rules import NOTHING_SAVED, Namespace, Saved, optimised_run
from lakebed.gc.service.reading import Cursor, Phase
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import metarange_key
from lakebed.versions import Commit, Options, Versions, decode_record, keys

from .actors import Actor, Ending, Scene, Violation
from .collecting import Addresses, SimCollector
from .deeds import clean_records, close, copy, create_branch, expire, link_issued
from .operations import Operation
from .ports import SimDeleter, SimObjectStore, SimPorts
from .reachable import reachable
from .scenes import FAR_FUTURE_MS, SIDE, Do, client, commit, delete, scene, upload, versions
from .surgery import mutant, patches
from .views import PARTITION, UID

SAVED: Final = "saved"
HOUR_MS: Final = 3_600_000


class OptimisedCollector(SimCollector):
    """Its methods are what mutants replace."""

    async def collect_optimised(self) -> None:
        """From what the last run saved, or from nothing: then it is a clean run.

        Raises:
            RunMoved: the run was abandoned while it marked; nothing was deleted.
        """
        base = await self.base()
        run_id, _ = await self.runs.start_marking()
        closed = await self._closed()
        uploads = await self.uploads()
        listing = await self.listing(self.fresh(closed, base))
        uncommitted = await self.read_staging()
        commits = {CommitId(id_): commit async for id_, commit in self.repo.inventory.every(Commit)}
        found, saved = optimised_run(
            base,
            listing,
            uploads=uploads,
            commits=commits,
            committed=await self._addresses(self.new_commits(commits, base)),
            uncommitted=uncommitted,
            namespace=Namespace(uri=self.repo.objectstore.uri, closed=closed),
        )
        await self.runs.move(run_id, RunState.MARKED)
        await self.carry_out(sorted(found.garbage), saved)

    async def base(self) -> Saved:
        try:
            found = await self._objectstore.get_value(SAVED)
        except ObjectMissing:
            return NOTHING_SAVED
        assert isinstance(found, Saved)
        return found

    async def uploads(self) -> set[str]:
        """The addresses handed out, as the live side reads them when a run starts."""
        rows = Addresses()
        cursor = Cursor(name="sim", phase=Phase.UPLOADS)
        while cursor.phase is Phase.UPLOADS:
            cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # its steps, not its files
        return rows.found

    def fresh(self, closed: frozenset[str], base: Saved) -> list[str]:
        return sorted(closed - base.slices)

    def new_commits(self, commits: Mapping[CommitId, Commit], base: Saved) -> list[Commit]:
        return [commit for id_, commit in commits.items() if id_ not in base.commits]

    async def listing(self, slices: list[str]) -> list[str]:
        prefixes = [f"data/{name}/" for name in slices]
        return [stat.key for prefix in prefixes async for page in self.repo.objectstore.list(prefix) for stat in page]

    async def carry_out(self, garbage: list[str], saved: Saved) -> None:
        await SimDeleter().delete(garbage)
        await self.save(saved)

    async def save(self, saved: Saved) -> None:
        await self._objectstore.put_value(SAVED, saved, 0)

    @property
    def _objectstore(self) -> SimObjectStore:
        objectstore: object = self.repo.objectstore
        assert isinstance(objectstore, SimObjectStore)
        return objectstore


# What actors do


def optimised(name: str, *, elsewhere: bool = False) -> Do:
    """A run that goes on from the last one, to what it saves. It closes the slices of its own process; `elsewhere`: it
    runs in another one, and this one's stay open."""

    async def act(repo: Versions) -> None:
        if elsewhere:
            own, options = repo.objectstore, Options(owner="elsewhere")
            repo = Versions(
                uid=UID, store=repo.store, objectstore=own, trees=repo.trees, ports=repo.ports, options=options
            )
        await OptimisedCollector(repo).collect_optimised()

    return Do(Operation(name, "run"), act)


def behind(name: str) -> Do:
    """This process's clock turns out to be an hour behind all others."""

    async def act(repo: Versions) -> None:
        repo.ports.clock.ms -= HOUR_MS  # type: ignore[attr-defined]  # a SimClock, as in every scene

    return Do(Operation(name, "close"), act)


def hand_out(name: str) -> Do:
    """An address is handed out; its client puts nothing there yet."""

    async def act(repo: Versions) -> None:
        await repo.uploads.issue("main")

    return Do(Operation(name, "issue", "main"), act)


def fill(name: str) -> Do:
    """The client puts bytes at the first address that is open. It knows it; here it looks it up."""

    async def act(repo: Versions) -> None:
        page = await repo.store.scan(repo.partition, keys.UPLOAD, 1)
        if page.keys and page.keys[0].startswith(keys.UPLOAD):
            await repo.objectstore.put(page.keys[0][len(keys.UPLOAD) :].decode(), name.encode())

    return Do(Operation(name, "issue", "main"), act)


# Scenes


def an_optimised_run_finds_all(ending: Ending) -> None:
    """Invariant 6, as far as an optimised run goes: what is left is reachable, or some commit record names it."""
    disk = ending.disk
    held = disk.cells.get(PARTITION, {})
    named = reachable(disk)
    for key, value in held.items():
        if key.startswith(keys.COMMIT):
            metarange = decode_record(Commit, value).metarange_id
            rows = disk.objectstore[metarange_key(metarange)][0] if metarange else ()
            named |= {from_row(row).address for _, row in rows}
    left = {key for key in disk.objectstore if key.startswith("data/")}
    if garbage := left - named:
        raise Violation(f"an optimised run leaves garbage: {sorted(garbage)}")


async def _tidy(ports: SimPorts) -> None:
    """Everything is old by now: what marks is abandoned, owners that did not end are dead; then one optimised run."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    repo = versions(ports)
    collector = OptimisedCollector(repo)
    await collector.resume()
    await collector.fence_all()
    ports.clock.ms += FAR_FUTURE_MS
    await repo.cleanup.clean()
    await repo.cleanup.clean()
    await collector.collect_optimised()


def _optimised(name: str, *actors: Actor, before: list[Do], is_first: bool = False) -> Scene:
    """`before` ends with the run that the others go on from, unless theirs is the first."""
    plain = scene(name, *actors, before=before if is_first else [*before, close("x0"), optimised("p0")])
    return replace(plain, tidy=_tidy, tidy_checks=(an_optimised_run_finds_all,))


Quick: TypeAlias = tuple[bool | None, bool | None, bool | None]


def optimised_scenes() -> Iterator[tuple[Scene, Quick]]:
    """With each, which budgets are quick (worlds.py)."""
    r, c = client("r", optimised("r1")), client("c", commit("c1"))
    kept = [upload("w0", "a", "0")]
    yield _optimised("committer, optimised run", c, r, before=kept), (True, True, True)
    late_c = client("c", behind("b1"), commit("c1"))
    yield _optimised("committer behind the clock, optimised run", late_c, r, before=kept), (True, False, False)
    w = client("w", upload("w2", "a", "2"), close("x2"))
    yield _optimised("uploader that closes, optimised run", w, r, before=kept), (True, True, True)
    late_w = client("w", behind("b1"), upload("w2", "b", "2"), delete("d2", "b"), close("x2"))
    yield _optimised("uploader behind the clock, optimised run", late_w, r, before=kept), (True, False, False)
    deleter = client("d", delete("d2", "a"))
    yield _optimised("deleter, committer, optimised run", deleter, c, r, before=kept), (True, False, None)
    twice = client("r", optimised("r1"), optimised("r2"))
    yield _optimised("deleter, two optimised runs", deleter, twice, before=kept), (True, True, False)
    both = (client("r", optimised("r1")), client("s", optimised("s1")))
    yield _optimised("deleter, optimised runs at once", deleter, *both, before=kept), (False, False, None)
    # An address that was handed out, in a slice that was listed before bytes came.
    out = [hand_out("i0")]
    late = client("l", fill("f1"), link_issued("w2", "a", "2"), delete("d2", "a"))
    yield _optimised("late linker that deletes, optimised run", late, r, before=out), (True, False, False)
    expirer = client("l", fill("f1"), expire("e1"), clean_records("k1"))
    yield _optimised("late client that expires, optimised run", expirer, r, before=out), (True, True, False)
    first = _optimised("late client that expires, first run", expirer, r, before=out, is_first=True)
    yield first, (True, False, False)
    # Committed before the base, in a slice that closes after it: only saved bitmaps know.
    old = [*kept, close("x1"), upload("w1", "b", "1"), commit("p1"), optimised("p2", elsewhere=True)]
    yield _optimised("closer, optimised run", client("w", upload("w2", "c", "2")), r, before=old), (True, False, False)
    # A rename between two readings.
    source = [create_branch("b0"), upload("w1", "z", "1", branch=SIDE)]
    mover = client("w", copy("w2", "z", "a", "2", ref=SIDE), delete("d2", "z", branch=SIDE))
    yield _optimised("copier that deletes, optimised run", mover, r, before=source), (True, False, False)


# Planted bugs


def _newer_than_the_base(_: Any, commits: Mapping[CommitId, Commit], base: Saved) -> list[Commit]:
    """By date, as docs/design/0001-uncommitted-gc.md has it: since the last one that the base knew."""
    last_ms = max((commits[id_].created_ms for id_ in base.commits if id_ in commits), default=-1)
    return [commit for commit in commits.values() if commit.created_ms >= last_ms]


def _sorting_before_the_base(_: Any, closed: frozenset[str], base: Saved) -> list[str]:
    """By order, down to the last slice that was read."""
    newest = min(base.slices, default="~")
    return sorted(name for name in closed if name < newest)


async def _save_first(self: OptimisedCollector, garbage: list[str], saved: Saved) -> None:
    await self.save(saved)
    await SimDeleter().delete(garbage)


async def _no_uploads(_: OptimisedCollector) -> set[str]:
    return set()


async def _no_uploads_yet(self: Any) -> set[str]:
    self.late = set()
    return self.late  # type: ignore[no-any-return]  # surgery


async def _staging_then_uploads(self: Any) -> set[str]:
    found = await SimCollector.read_staging(self)
    self.late |= await _real_uploads(self)
    return found


_real_uploads: Any = OptimisedCollector.uploads


async def _save_without_bitmaps(self: OptimisedCollector, saved: Saved) -> None:
    await self._objectstore.put_value(SAVED, replace(saved, committed=frozenset()), 0)


async def _save_without_kept(self: OptimisedCollector, saved: Saved) -> None:
    await self._objectstore.put_value(SAVED, replace(saved, kept=frozenset()), 0)


async def _read_commits_only(self: OptimisedCollector) -> set[str]:
    """Staging is taken as it was when the base was read."""
    return set((await self.base()).kept)


_CLOCK = ("committer behind the clock, optimised run",)
_ORDER = ("uploader behind the clock, optimised run",)
_LATE = ("late linker that deletes, optimised run", "late client that expires, optimised run")

OPTIMISED_MUTANTS: Final = (
    mutant(
        "issued-late",
        "addresses handed out are read before the listing",
        ("late client that expires, first run",),
        patches(OptimisedCollector, uploads=_no_uploads_yet, read_staging=_staging_then_uploads),
    ),
    mutant(
        "commits-by-date",
        "new commits are known by id",
        _CLOCK,
        patches(OptimisedCollector, new_commits=_newer_than_the_base),
    ),
    mutant(
        "slices-by-order",
        "new slices are known by name",
        _ORDER,
        patches(OptimisedCollector, fresh=_sorting_before_the_base),
    ),
    mutant(
        "saved-early",
        "saved after the deletes",
        ("deleter, two optimised runs",),
        patches(OptimisedCollector, carry_out=_save_first),
    ),
    mutant(
        "issued-unread",
        "addresses handed out are candidates",
        _LATE,
        patches(OptimisedCollector, uploads=_no_uploads),
    ),
    mutant(
        "bitmaps-unsaved",
        "what old commits name is saved",
        ("closer, optimised run",),
        patches(OptimisedCollector, save=_save_without_bitmaps),
    ),
    mutant(
        "kept-unsaved",
        "what was kept is saved",
        ("deleter, two optimised runs",),
        patches(OptimisedCollector, save=_save_without_kept),
    ),
    mutant(
        "staging-stale",
        "staging is read anew",
        ("deleter, two optimised runs",),
        patches(OptimisedCollector, read_staging=_read_commits_only),
    ),
)
