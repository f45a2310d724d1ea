"""What a deed is: one operation on a repository, and what checkers will know of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from explorer.operations import Operation
from lakebed.base import Entry
from lakebed.ranges import CutRule
from lakebed.versions import ANY, Commit, Condition, Note, Options, TreeCache, Trees, Versions
from sim.checkers.views import UID
from sim.ports.ports import SimPorts
from sim.ports.trees import SimTrees

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


def type_of(value: str) -> str:
    """Return the content type of an upload: a restore has to give it back."""
    return f"of/{value}"
