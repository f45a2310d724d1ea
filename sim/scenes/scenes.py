"""Scenes over `lakebed.versions.Versions`: who does what to one small repository.

A client is one actor: a process with its own `Versions`, so with its own caches. What it does is a list of `Do`s, one
after the other. Values are unique in a scene, so that every byte found later can be traced to who wrote it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from explorer.actors import Actor, Check
from explorer.operations import Operation
from lakebed.base import Entry, Etags, to_row
from lakebed.objectstore import ShortBody
from lakebed.ranges import CutRule
from lakebed.versions import ANY, Commit, Condition, Note, Options, TreeCache, Trees, Versions
from sim.checkers.endings import ALWAYS, no_leak, runs_end
from sim.checkers.moves import branch_moves_are_legal, branch_moves_are_legal_beside_removals, tokens_leave_with_a_claim
from sim.checkers.reachable import (
    addresses_are_fresh,
    committed_bytes_stay,
    deletes_spare_open_uploads,
    garbage,
    garbage_goes,
    marks_are_true,
    names_are_unique,
    nothing_reachable_is_deleted,
    nothing_undue_is_deleted,
    sweeps_keep_promises,
)
from sim.checkers.views import PARTITION, UID, value_of
from sim.ports.ports import SimPorts, set_ahead
from sim.ports.scene import Program, Quick, Scene
from sim.ports.trees import SimTrees

from .collecting import FENCING, PRIVATE, Collecting

MAIN: Final = "main"
SIDE: Final = "side"
FAR_FUTURE_MS: Final = 10_000_000_000
"""Everything is old then."""

P = ParamSpec("P")

Act: TypeAlias = Callable[[Versions], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Do:
    """One operation: what checkers will know of it, and the call."""

    operation: Operation
    act: Act

    async def awaited(self, repo: Versions) -> str | None:
        """Return what checkers may know of the answer: a text, the id of a commit, or nothing."""
        answer = await self.act(repo)
        answer = answer.id if isinstance(answer, Commit) else answer
        return answer if isinstance(answer, str) else None

    def called(self, what: str) -> Do:
        """Have statistics call it so."""
        return Do(replace(self.operation, what=what), self.act)


Acting: TypeAlias = Callable[Concatenate[Versions, P], Awaitable[object]]


def doing(kind: str, *known: str, **fields: str) -> Callable[[Acting[P]], Callable[Concatenate[str, P], Do]]:
    """Make operations of this kind of a function that acts on a repository.

    A call takes the name of the operation, then the other arguments of the function. Checkers know those that are
    named here: each by the operation's field of its name, or by the one that it is given for.
    """
    shown = {**{name: name for name in known}, **fields}

    def made(act: Acting[P]) -> Callable[Concatenate[str, P], Do]:
        own = list(signature(act).parameters.values())[1:]
        defaults = {one.name: one.default for one in own}

        def do(name: str, /, *args: P.args, **kwargs: P.kwargs) -> Do:
            given: dict[str, Any] = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
            said = {field: given[argument] for field, argument in shown.items()}
            if "key" in said:
                said["key"] = said["key"].encode()
            return Do(Operation(name, kind, **said), lambda repo: act(repo, *args, **kwargs))

        return do

    return made


NARROW: Final = CutRule(strong=1, weak=1, weak_from=1, rows_max=1)
"""A range for each entry, and each of these is a file."""
WIDE: Final = CutRule(strong=1, weak=1, weak_from=1, rows_max=1, listed=1, sublists_min=1)
"""And a sublist for each range."""


def versions(ports: SimPorts, *, real_trees: CutRule | None = None) -> Versions:
    """Open the repository for one process. This rule cuts real trees."""
    trees: Trees = SimTrees(ports.objectstore)
    if real_trees is not None:
        ports.objectstore.has_ranges = True
        trees = Trees(ports.objectstore, TreeCache(1 << 24), ports.ports, rule=real_trees)
    return Versions(
        uid=UID,
        store=ports.store,
        objectstore=ports.objectstore,
        trees=trees,
        ports=ports.ports,
        # Collections of committed data look ten days ahead. Few worlds have more than three events.
        options=Options(owner=ports.actor, deleted_refs_ms=30 * 86_400_000, events_together=2),
    )


def note(message: str) -> Note:
    return Note(message=message, committer="sim")


def entry_of(value: str, address: str = "") -> Entry:
    """Return an entry of this value. Its address is in no namespace, or is given."""
    return Entry(address=address or f"s3://elsewhere/{value}", size_bytes=1, checksum=value, modified_ms=0)


async def put_bytes(
    repo: Versions, branch: str, path: bytes, data: bytes, value: str, *, condition: Condition = ANY, **fields: Any
) -> Entry:
    """Upload these bytes, with this value as their checksum and more fields of the entry."""

    async def store_body(address: str) -> Entry:
        stored = await repo.objectstore.put(address, data)
        return Entry(address=address, size_bytes=stored.size_bytes, checksum=value, **{"modified_ms": 0, **fields})

    return await repo.staging.upload(branch, path, store_body, condition=condition)


@doing("write", "branch", "key", "value")
async def write(repo: Versions, key: str, value: str, *, branch: str = MAIN) -> None:
    await repo.staging.put(branch, key.encode(), entry_of(value))


@doing("write", "branch", "key", "value")
async def upload(
    repo: Versions,
    key: str,
    value: str,
    *,
    branch: str = MAIN,
    is_new: bool = False,
    if_none_match: bool = False,
    if_match: str | None = None,
) -> None:
    """Write a path whose bytes go to a fresh address first. Its entry is old, or of now if it `is_new`."""
    condition = Condition(if_none_match, None if if_match is None else Etags.of(if_match))
    fields = {"modified_ms": repo.ports.clock.now_ms() if is_new else 0, "content_type": type_of(value)}
    await put_bytes(repo, branch, key.encode(), value.encode(), value, condition=condition, **fields)


def type_of(value: str) -> str:
    """Return the content type of an upload: a restore has to give it back."""
    return f"of/{value}"


def fail_upload(name: str, key: str, *, puts: bool) -> Do:
    """Fail an upload: before its bytes are put, or once they are there where it `puts` them."""

    async def act(repo: Versions) -> None:
        async def store_body(address: str) -> Entry:
            if puts:
                await repo.objectstore.put(address, name.encode())
            raise ShortBody("the body broke off")

        await repo.staging.upload(MAIN, key.encode(), store_body)

    return Do(Operation(name, "issue", MAIN, key.encode()), act)


@doing("delete", "branch", "key")
async def delete(repo: Versions, key: str, *, branch: str = MAIN, if_match: str | None = None) -> None:
    await repo.staging.delete(branch, key.encode(), if_match=None if if_match is None else Etags.of(if_match))


def commit(name: str, *, branch: str = MAIN, message: str = "") -> Do:
    return Do(Operation(name, "commit", branch), lambda repo: repo.commits.commit(branch, note(message or name)))


@doing("read", "branch", "key")
async def read(repo: Versions, key: str, *, branch: str = MAIN) -> str:
    return value_of(to_row(b"", await repo.staging.get(branch, key.encode())))


@doing("reset", "branch")
async def reset(repo: Versions, *, branch: str = MAIN) -> None:
    await repo.resets.reset(branch)


def merge(name: str, source: str, *, branch: str = MAIN) -> Do:
    merging = Operation(name, "merge", branch, value=source)
    return Do(merging, lambda repo: repo.merges.merge(source, branch, note(name)))


@doing("clean")
async def clean(repo: Versions, *, late_ms: int = 0) -> None:
    """Clean, by a clock that is `late_ms` ahead."""
    set_ahead(repo.ports, late_ms)
    await repo.cleanup.clean()


def client(name: str, *deeds: Do, again: Sequence[Do] = (), real_trees: CutRule | None = None) -> Actor:
    """Make a process that does these one after the other; after a crash it comes back to do `again`."""
    collecting = sum(any(do.operation.kind == "run" for do in life) for life in (deeds, again))
    return Actor(name, _doing(deeds, real_trees), _doing(again, real_trees) if again else None, collecting)


def server(name: str, *clients: Sequence[Do], answers_late: bool = False) -> Actor:
    """Make one process that serves several clients at once: they share its caches and its amortised reads."""

    async def program(ports: SimPorts) -> None:
        ports.store.answers_late = answers_late
        repo = versions(ports)

        async def serve(deeds: Sequence[Do]) -> None:
            await ports.pause()
            for do in deeds:
                await ports.act(do.operation, do.awaited(repo))

        await ports.tasks.gather([serve(deeds) for deeds in clients])

    return Actor(name, program)


def scene(
    name: str,
    *actors: Actor,
    before: Sequence[Do] = (),
    staged: Sequence[Do] = (),
    committed: Sequence[Do] = (),
    beside: Sequence[Do] = (),
    clocks_agree: bool = True,
    resets_objects: bool = False,
    alike: Sequence[tuple[str, ...]] = (),
    private: tuple[str, ...] = PRIVATE,
    others_look: bool = False,
    quick: Quick | None = None,
    due: Sequence[bytes] = (),
    checks: Sequence[Check] = (),
) -> Scene:
    """A repository with one branch; before the actors come, `committed` is done and committed, then `staged`.

    `before` comes first of all and may commit what it likes. Slices that were used to prepare are closed.
    With `beside` there is a second branch, `side`, made from the first and one commit ahead by these operations.

    Where clocks do not agree, a cleaner may take a claim for old that was written just now: then cells may leak, as
    protocols.md says, and nothing else.

    `quick`: by default all budgets, or none where an actor collects. `due`: paths at which commits may lose what they
    have. `checks`: what is checked beside all that every scene keeps.
    """

    async def prepare(ports: SimPorts) -> None:
        repo = versions(ports)
        await repo.commits.initialise(MAIN)
        for do in (*before, *committed, *([commit("prepared")] if committed else [])):
            await ports.act(do.operation, do.awaited(repo))
        if beside:
            await repo.refs.create_branch(SIDE, MAIN)
        for do in (*beside, *([commit("prepared beside", branch=SIDE)] if beside else []), *staged):
            await ports.act(do.operation, do.awaited(repo))
        await repo.slices.end()

    legal = branch_moves_are_legal_beside_removals if resets_objects else branch_moves_are_legal
    kept = nothing_undue_is_deleted(*due) if due else nothing_reachable_is_deleted
    collecting = sum(actor.collecting for actor in actors)
    moves = (
        legal,
        deletes_spare_open_uploads,
        addresses_are_fresh,
        sweeps_keep_promises,
        marks_are_true,
        names_are_unique,
    )
    return Scene(
        name=name,
        actors=actors,
        prepare=prepare,
        tidy=tidy,
        checks=(*ALWAYS, kept, committed_bytes_stay, *checks),
        tidy_checks=(no_leak, runs_end, garbage_goes) if clocks_agree else (garbage_goes,),
        step_checks=(*moves, tokens_leave_with_a_claim) if clocks_agree else moves,
        clocks_agree=clocks_agree,
        alike=alike,
        private=private,
        others_look=others_look or collecting > 1,
        shortens=True,
        runs_in=PARTITION,
        quick=quick if quick is not None else Quick.NEVER if collecting else Quick.ALL,
    )


async def tidy(ports: SimPorts) -> None:
    """Everything is old by now: owners and runs that did not end are dead, a cleaner leaves nothing without an owner,
    and a run of each kind takes every object that nothing names."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    repo = versions(ports)
    collecting = Collecting(repo, FENCING)
    await collecting.service.abandon_dead_runs()
    await collecting.finish()
    if [stat async for page in repo.objectstore.list("data/") for stat in page]:
        await collecting.runs.closed_slices()
        ports.clock.ms += FAR_FUTURE_MS
        await repo.cleanup.clean()
        disk = ports.disk
        assert disk is not None, "a scene is tidied alone"
        await collecting.collect_all(lambda: bool(garbage(disk)))
    await repo.cleanup.clean()
    # The cleaner fences copies and links that are stuck, which makes claims. The next pass sees their tokens retired,
    # and the one after it drops them.
    for _ in range(2):
        ports.clock.ms += FAR_FUTURE_MS
        await repo.cleanup.clean()


def _doing(deeds: Sequence[Do], real_trees: CutRule | None) -> Program:
    async def program(ports: SimPorts) -> None:
        repo = versions(ports, real_trees=real_trees)
        for do in deeds:
            await ports.act(do.operation, do.awaited(repo))

    return program
