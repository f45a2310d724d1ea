"""Collections through the shipped flow: `lakebed.gc.flow`, the in-process service and the local engine, on simulated
stores. Nothing here decides anything: it hands the flow its ports, and says which scenes it races in.

A run writes and reads dozens of files of its own. No other actor of a scene reads these, so they are no steps
(`ports.Private`), unless an actor applies what another one planned. Reading a tree is no step either, for none is ever
deleted here; nor are listings that only go into reports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Final

from lakebed.gc import flow
from lakebed.gc.context import RunContext, list_plans
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.protocol import GC_PREFIX, INSTALLATION_PREFIX, Mode, Plan, RunKind, Service, UncommittedOptions
from lakebed.gc.rules import MetadataRule
from lakebed.gc.service import CollectionService, ServiceOptions
from lakebed.gc.service.installation import INSTALLATION_KEY
from lakebed.versions import Versions

from .actors import Actor, Scene
from .deeds import DAY_MS, clean_records, close, copy, create_branch, hard_reset, issue, link_issued, revert, set_rules
from .operations import Operation
from .ports import REPORTS, TREES, SimDeleter, SimObjectStore
from .scenes import SIDE, Do, client, commit, delete, reset, scene, upload, write

SHARED: Final = (INSTALLATION_KEY.decode(), INSTALLATION_PREFIX, TREES, REPORTS)
PRIVATE: Final = (*SHARED, GC_PREFIX)

OPTIONS: Final = ServiceOptions(scan_page=100, dead_run_age_ms=0)
FENCING: Final = ServiceOptions(scan_page=100, dead_run_age_ms=0, dead_owner_age_ms=0)
"""Takes every owner for dead."""


class Collecting:
    """One process that plans and applies."""

    def __init__(self, repo: Versions, options: ServiceOptions = OPTIONS) -> None:
        store: object = repo.objectstore
        assert isinstance(store, SimObjectStore)
        self.context = RunContext(
            repository="sim",
            service=Service(CollectionService(repo, options)),
            engine=LocalEngine(repo.objectstore, repo.ports, open_deleter=lambda: SimDeleter(store.own)),
            store=repo.objectstore,
            ports=repo.ports,
            progress=lambda _: None,
        )

    async def plan(self, kind: RunKind) -> Plan:
        return await flow.plan(self.context, kind_to_plan(kind, UncommittedOptions(mode=Mode.CLEAN), MetadataRule()))

    async def apply(self, run_id: str) -> None:
        await flow.apply(self.context, run_id, grace_s=0)

    async def apply_all(self) -> None:
        """Every plan there is, the oldest first."""
        for run_id in await list_plans(self.context.store):
            await self.apply(run_id)


# Deeds


def collect(name: str, kind: RunKind, *, fences: bool = False) -> Do:
    """Plan and apply. Committed data goes ten days after everything was made; with `fences` every owner is dead."""

    async def act(repo: Versions) -> None:
        collecting = Collecting(repo, FENCING if fences else OPTIONS)
        await collecting.apply((await collecting.plan(kind)).run_id)

    return Do(Operation(name, "run"), _later(act) if kind in {RunKind.COMMITTED, RunKind.LIFECYCLE} else act)


def plan_only(name: str, kind: RunKind) -> Do:
    async def act(repo: Versions) -> None:
        await Collecting(repo).plan(kind)

    return Do(Operation(name, "run"), _later(act))


def apply_planned(name: str) -> Do:
    """Carry out every plan there is: another apply of each may be under way, or have died anywhere."""

    async def act(repo: Versions) -> None:
        await Collecting(repo).apply_all()

    return Do(Operation(name, "run"), _later(act))


def _later(act: Callable[[Versions], Awaitable[None]]) -> Callable[[Versions], Awaitable[None]]:
    async def later(repo: Versions) -> None:
        clock = repo.ports.clock
        clock.ms += 10 * DAY_MS  # type: ignore[attr-defined]  # a SimClock, as in every scene
        try:
            await act(repo)
        finally:
            clock.ms -= 10 * DAY_MS  # type: ignore[attr-defined]  # as above: what else it does is done now

    return later


# Scenes

LARGE: Final = frozenset({"committer, whole run", "hard resetter, whole committed run"})
"""Too large for the tests to walk."""


def flow_scenes() -> Iterator[Scene]:
    """Each with the files of runs to themselves, but for the last, whose plan is there before."""
    yield from (replace(one, private=PRIVATE) for one in (*_of_uncommitted(), *_of_committed()))
    past = [*_PAST, plan_only("q1", RunKind.COMMITTED)]
    h = client("h", create_branch("h1", "main~1"))
    again = client("z", apply_planned("z1"), again=[apply_planned("z2")])
    yield replace(scene("brancher, apply of a plan that comes back", h, again, before=past), private=SHARED)


_PAST: Final = [
    upload("w1", "a", "1"),
    commit("p1"),
    upload("w2", "a", "2"),
    commit("p2"),
    set_rules("q0", "1d"),
]
"""A commit whose object is replaced by the next, and rules by which it goes ten days later."""


def _of_uncommitted() -> Iterator[Scene]:
    a1 = upload("w1", "a", "1")
    r, fencing = (client("r", collect("r1", RunKind.UNCOMMITTED, fences=fences)) for fences in (False, True))
    u = client("u", upload("w2", "a", "2"))
    yield scene("uploader that closes, whole run", client("w", upload("w2", "a", "2"), close("x2")), r, staged=[a1])
    yield scene("uploader, whole run that fences", u, fencing, staged=[write("w1", "a", "1")])
    yield scene("resetter, whole run", client("s", reset("s1")), r, staged=[a1])
    yield scene("committer, whole run", client("c", commit("c1")), r, staged=[a1])
    source = [create_branch("b0"), upload("w1", "z", "1", branch=SIDE)]
    copier = client("w", copy("w2", "z", "a", "2", ref=SIDE), delete("d2", "z", branch=SIDE))
    yield scene("copier that deletes, whole run", copier, r, before=source)
    link, k = client("l", link_issued("w3", "a", "3")), client("k", clean_records("k1"))
    yield scene("linker, record cleaner, whole run", link, k, r, before=[issue("i0")])


def _of_committed() -> Iterator[Scene]:
    r = client("r", collect("r1", RunKind.COMMITTED))
    actors: dict[str, Actor] = {
        "brancher": client("h", create_branch("h1", "main~1")),
        "reverter": client("h", revert("h1", "main")),
        "copier from a commit": client("h", copy("w3", "a", "b", "3", ref="main~1")),
        "hard resetter": client("h", hard_reset("h1", "main~1")),
        "setter of rules": client("s", set_rules("q1", "20d")),
    }
    for name, actor in actors.items():
        yield scene(f"{name}, whole committed run", actor, r, before=_PAST)
