"""Worlds of imports and migrations: the shipped import, and the calls of a migration in its order, beside runs.

Both work on a hidden branch of their own. Nothing else names its commits and trees until a branch of the users takes
them: by a merge, by a reset, or as a new branch. Then the hidden branch goes, and is not kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lakebed.base import Conflict, Entry, to_row
from lakebed.catalog import Location
from lakebed.catalog.imports import ImportState
from lakebed.catalog.sources import Changes, Refuse
from lakebed.migration.adopting import WORK
from lakebed.ranges import changes_from_rows
from lakebed.versions import Note, Versions, encode_record, keys
from sim.checkers.views import View
from sim.ports.actors import Actor, Ending, Quick, Scene, Violation
from sim.ports.operations import Operation
from sim.scenes.deeds import committed_run, metadata_run, uncommitted_run
from sim.scenes.flows import PAST, metadata_scene
from sim.scenes.scenes import MAIN, NARROW, SIDE, Do, client, commit, scene, write

from .multipart import NAME, handle_of
from .refs import OLD

_BROUGHT: Final = "brought"
"""How statistics and checks tell what came to a branch so."""


def _entry(value: str) -> Entry:
    return Entry(address=f"s3://elsewhere/{value}", size_bytes=1, checksum=value, modified_ms=0)


def put_on_record(name: str) -> Do:
    """Write the repository's own record, which an import asks for before it answers."""

    async def act(repo: Versions) -> None:
        record = handle_of(repo).record
        await repo.store.set(keys.REPOSITORIES, NAME.encode(), encode_record(record))

    return Do(Operation(name, "close"), act)


class _Listed:
    """Stands for the listing of a location: it shows one object."""

    def __init__(self, key: bytes, value: str) -> None:
        self._page = Changes(keys=[key], rows=[to_row(key, _entry(value))], objects=1)

    async def changes(self, location: Location, onto: str, refuse: Refuse) -> AsyncIterator[Changes]:  # noqa: ARG002  # the signature of Sources
        yield self._page


def import_one(name: str, key: str) -> Do:
    """Import one object by the shipped import. To the checkers it is a revert: any path may change."""

    async def act(repo: Versions) -> str | None:
        imports = handle_of(repo).imports
        imports._sources = _Listed(key.encode(), name)  # type: ignore[assignment]  # noqa: SLF001  # only the listing is ours
        begun = await imports.begin(MAIN, ())
        location = Location(source="s3://elsewhere/", destination="", is_folder=True)
        ended = await imports.run(begun, [location], Note(message=name, committer="sim"))
        if ended.state is not ImportState.COMPLETED:
            raise Conflict(ended.error)
        return ended.commit_id

    return Do(Operation(name, "revert", MAIN, key.encode(), name, _BROUGHT), act)


def migrate(name: str, key: str, *, parent: str = MAIN, branch: str = MAIN) -> Do:
    """Replay a commit onto its parent, then move the branch there or make it: the calls of lakebed.migration.flow."""

    async def act(repo: Versions) -> str:
        async def changes() -> AsyncIterator[pa.Table]:
            yield changes_from_rows([key.encode()], [to_row(key.encode(), _entry(name))])

        made_by = handle_of(repo).changes
        own, first = f"{WORK}-{name}", await repo.refs.resolve_commit(parent)
        await made_by.create_branch(own, first, force=True, work_of=WORK)
        replayed = await repo.merges.replay(own, changes, Note(message=name, committer="sim"))
        if branch == MAIN:
            await repo.resets.hard_reset(branch, replayed.id)
        else:
            await made_by.create_branch(branch, replayed.id, force=True)
        await made_by.delete_branch(own, force=True, is_ours=True)
        return replayed.id

    kind = "unforced_reset" if branch == MAIN else "create_branch"
    return Do(Operation(name, kind, branch, key.encode(), name, _BROUGHT), act)


def what_was_brought_is_there(ending: Ending) -> None:
    """Check that a branch shows what an acknowledged import or migration brought. No other actor writes that path."""
    view = View(ending.disk)
    for record in ending.records.values():
        one = record.operation
        if one.what == _BROUGHT and record.is_acknowledged:
            there = view.branch(one.branch)
            if there is None or view.visible(there).get(one.key) != one.value:
                raise Violation(f"{one.name} was acknowledged, and {one.branch} lacks it")


_BEFORE: Final = (put_on_record("o1"), *PAST)


def bringing_scenes() -> Iterator[Scene]:
    c, t, u = client("c", commit("c1")), client("t", committed_run("t1")), client("u", uncommitted_run("u1"))
    i, m = client("i", import_one("i1", "z")), client("m", migrate("m1", "y", parent=OLD, branch=SIDE))
    yield _scene("importer, committer", i, c, before=_BEFORE[:1], quick=Quick.NO_FAULT)
    yield _scene("importer, committed run", i, t, before=_BEFORE)
    yield _scene("importer, both runs of data", i, t, u, before=_BEFORE)
    yield _scene("migrator from an old commit, committed run", m, t, before=_BEFORE)
    moves = client("m", migrate("m1", "y"))
    yield _scene(
        "migrator that moves its branch, writer", moves, client("w", write("w9", "x", "9")), before=_BEFORE[:-1]
    )
    yield _scene("migrator that moves its branch, committer", moves, c, before=_BEFORE[:-1], quick=Quick.NEVER)
    yield _scene("importer, migrator, both runs of data", i, m, t, u, before=_BEFORE)
    # Their trees are named by a hidden branch alone, and then by another one.
    both = client("t", committed_run("r1"), metadata_run("m9"), real_trees=NARROW)
    for name, deed in (
        ("importer", import_one("i1", "z")),
        ("migrator from an old commit", migrate("m1", "y", parent=OLD, branch=SIDE)),
    ):
        actor = client("i", deed, real_trees=NARROW)
        made = metadata_scene(f"{name}, both runs", actor, both, before=_BEFORE, sweeps=True)
        yield replace(made, checks=(*made.checks, what_was_brought_is_there))


def _scene(name: str, *actors: Actor, before: Sequence[Do], quick: Quick | None = None) -> Scene:
    made = scene(name, *actors, before=before, quick=quick)
    return replace(made, checks=(*made.checks, what_was_brought_is_there))
