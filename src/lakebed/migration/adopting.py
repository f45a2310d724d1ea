"""Adopt a repository that was migrated in place: then collections may delete objects that the old server wrote.

1. A migration in place claims the old namespace. No object that was there may be deleted: `kept`.
2. `adopt`: the old server is stopped for good. Plans and `why` include its objects, and no apply deletes any:
   `adopted`. `undo` returns to 1; the old server can then start again, since it lost no object.
3. `finish`: applies may delete: `final`. No step returns from here.

Steps 2 and 3 are refused while the old server answers, or while another repository names an object of the namespace.
They are also refused if the old server wrote after the last migration that ended with equal listings. The state is a
log in the namespace (objectstore/adoption.py), which every sweep reads.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec

from lakebed.base import Conflict, Invalid, MetarangeId, RepositoryUid, count_of, is_absolute, key_inside, parse_address
from lakebed.catalog import Catalog, Repository
from lakebed.gc.live import Elsewhere, NamedElsewhere, Search, ServiceOptions
from lakebed.objectstore import Adoption, AdoptionState, read_adoption, write_adoption
from lakebed.versions import Commit

SHOWN: Final = 5
WORK: Final = "migration"
"""The mark on hidden branches of an unfinished migration (flow.py)."""


class Step(StrEnum):
    LOOK = "look"
    ADOPT = "adopt"
    UNDO = "undo"
    FINISH = "finish"


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the old server's objects.

    Commits here name `named` objects of these, and `missing` objects that do not exist.

    `lakebed gc run --uncommitted --old-layout` deletes the rest, `unnamed`, once the adoption is final.
    """

    repository: str
    state: AdoptionState
    objects: int
    size_bytes: int
    named: int
    missing: int
    unnamed: int


async def adopt(catalog: Catalog, name: str, step: Step, *, answers: Callable[[str], bool], by: str = "") -> Adopted:
    """Take a step, or only look. `answers` returns whether a server at an address answers.

    Costs a listing of the namespace, and a read of each range of every commit.

    Raises:
        Invalid, Conflict, AdoptionMoved.
    """
    repository = await catalog.get(name)
    store = repository.objectstore
    line = await read_adoption(store)
    if line is None:
        raise Invalid(f"{name} was not brought over with --in-place: its objects stay in a namespace of another")
    if line.marker != repository.record.marker:
        raise Invalid(f"{store.uri} was claimed by another repository", namespace=store.uri)
    if step is not Step.UNDO:
        if answers(line.server):
            raise Conflict(f"the server at {line.server} still answers: stop it for good", server=line.server)
        await check_named_nowhere_else(catalog, repository.record.uid, store.uri)
    counted = await _count(repository, line)
    if step is Step.FINISH and line.state is AdoptionState.KEPT:
        raise Conflict(f"{name} is not adopted yet: call this without --final first, and look at its plans")
    wanted = {Step.ADOPT: AdoptionState.ADOPTED, Step.UNDO: AdoptionState.KEPT, Step.FINISH: AdoptionState.FINAL}
    state = wanted.get(step, line.state)
    if state is not line.state and not (step is Step.ADOPT and line.state is AdoptionState.FINAL):
        next_line = msgspec.structs.replace(line, state=state, by=by)
        line = await write_adoption(store, next_line, after=line)
    return msgspec.structs.replace(counted, state=line.state)


async def note_compared(repository: Repository, began_ms: int) -> None:
    """Record that this repository names every object that the old server had when the migration began.

    Raises:
        AdoptionMoved: another process changes the adoption, or it is final.
    """
    line = await read_adoption(repository.objectstore)
    assert line is not None, "a repository in place has a claim"
    if line.state is AdoptionState.KEPT:
        noted = msgspec.structs.replace(line, compared_ms=began_ms)
        await write_adoption(repository.objectstore, noted, after=line)


async def check_named_nowhere_else(catalog: Catalog, uid: str, namespace: str) -> None:
    """Check that no other repository of this installation names an object in the namespace.

    Raises:
        Conflict: another repository, perhaps a deleted one, names an object in the namespace.
    """

    _, _, path = namespace.partition("://")[2].partition("/")
    found: dict[str, str] = {}
    async for step in Elsewhere(namespace, partial(catalog.others, RepositoryUid(uid)), ServiceOptions()).steps():
        if isinstance(step, NamedElsewhere):
            # Tools spell an address in several ways, and all of them keep the whole folder.
            found.update({address: name for address, name in step.names.items() if not path or f"/{path}/" in address})
    if found:
        shown = ", ".join(f"{address} (by {name})" for address, name in sorted(found.items())[:SHOWN])
        raise Conflict(
            f"other repositories name {count_of(len(found), 'object')} in {namespace}: {shown}", addresses=[*found]
        )


async def _count(repository: Repository, line: Adoption) -> Adopted:
    """Count the old server's objects, and those that commits here name.

    Raises:
        Conflict: no migration ended with equal listings, or the old server wrote an object since that no commit here
            names.
    """
    if not line.compared_ms or await repository.settings.work_branches(WORK):
        raise Conflict("no migration ended with equal listings: run it to its end first")
    left = await _named(repository)
    objects = size_bytes = named = 0
    since: list[str] = []
    async for page in repository.objectstore.list():
        for stat in page:
            if stat.key.startswith("_lakefs/") or parse_address(stat.key) is not None:
                continue
            objects, size_bytes = objects + 1, size_bytes + stat.size_bytes
            if stat.key in left:
                left.discard(stat.key)
                named += 1
            elif stat.modified_ms >= line.compared_ms:
                # A store's clock may count full seconds: an object of this very time may have come after it was read.
                since.append(stat.key)
    # No commit here names these objects, so a collection would delete data that the old server's users wrote.
    if since:
        raise Conflict(
            f"after the last migration began, {count_of(len(since), 'object')} came that nothing here names, first"
            f" {', '.join(since[:SHOWN])}: start the old server, and migrate again",
            keys=since[:SHOWN],
        )
    return Adopted(
        repository=repository.id,
        state=line.state,
        objects=objects,
        size_bytes=size_bytes,
        named=named,
        missing=len(left),
        unnamed=objects - named,
    )


async def _named(repository: Repository) -> set[str]:
    """Return the keys outside slices that any commit names, including swept and dangling commits."""
    trees = dict.fromkeys(
        [
            commit.metarange_id
            async for page in repository.versions.inventory.pages(Commit)
            for commit in page.records
            if commit.metarange_id
        ]
    )
    found: dict[str, None] = {}
    async for _ in Search(repository.versions).foreign([MetarangeId(tree) for tree in trees], found, set()):
        pass
    uri = repository.objectstore.uri
    return {key for address in found if (key := key_inside(address, uri)) is not None and not is_absolute(key)}
