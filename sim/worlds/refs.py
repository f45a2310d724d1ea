"""Worlds of refs that come and go: made, deleted, brought back and made again, under every kind of run and beside
fences. And commits of a tree by its name, and imports and migrations, which fill a hidden branch of their own.

A deletion is noted before its ref goes, and a ref is there before it can be used. So of two lists that a run reads one
shows it, in this order alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from explorer.actors import Actor, Ending, Violation
from explorer.operations import Operation
from lakebed.base import Conflict, RunKind, to_row
from lakebed.catalog import Location
from lakebed.catalog.objects.imports import ImportState
from lakebed.catalog.objects.sources import Changes, Refuse
from lakebed.migration.adopting import WORK
from lakebed.ranges import changes_from_rows
from lakebed.versions import DeletedRefNotFound, DeletedRefRecord, Versions, decode_record, encode_record, keys
from sim.checkers.reachable import nothing_active_is_deleted, nothing_reachable_is_deleted
from sim.checkers.views import PARTITION, View
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.collecting import FENCING
from sim.scenes.doing import MAIN, SIDE, Do, doing, entry_of, note
from sim.scenes.flows import DEFERRED, PAST, RULED, deferring, metadata_scene, real
from sim.scenes.scenes import client, scene

from .lifecycle import DUE, set_policy
from .moves import move
from .multipart import NAME, handle_of

OLD: Final = "main~1"
"""A commit that the rules let go, unless a ref keeps it."""
_ON_SIDE: Final = (do.upload("w3", "b", "3", branch=SIDE), do.commit("p3", branch=SIDE))
"""A commit that no other branch has."""
_KEPT: Final = {"undelete_branch": "delete_branch", "undelete_tag": "delete_tag"}


def commit_tree(name: str, ref: str, *, branch: str = MAIN) -> Do:
    """Commit the tree of a commit as it is. To the checkers it is a revert: any path may change."""

    async def act(repo: Versions) -> str:
        tree = await repo.context.commits.metarange(await repo.refs.resolve_commit(ref))
        return (await repo.recorder.commit_tree(branch, tree, note(name))).id

    return Do(Operation(name, "revert", branch), act)


def what_was_deleted_comes_back(ending: Ending) -> None:
    """Check that within the window no run takes the commit of a deleted branch or tag.

    An undelete may be refused for a moment, while a run that published the commit has not let it off yet.
    """
    records = ending.disk.cells.get(PARTITION, {})
    for undeletes, deletes in _KEPT.items():
        if not ending.acknowledged(deletes):
            continue
        if any(one.error is DeletedRefNotFound for one in ending.of(undeletes)):
            raise Violation("a ref was deleted, and is not kept")
    for key, value in records.items():
        if key.startswith(keys.DELETED):
            note = decode_record(DeletedRefRecord, value)
            if keys.SWEPT + note.commit_id.encode() in records:
                raise Violation(f"a run took the commit of {note.name}, which was deleted and is kept")


def ref_scenes() -> Iterator[Scene]:
    yield from _beside_runs()
    yield from _beside_fences()
    yield from _beside_several()
    yield from _beside_metadata()
    yield from _bringing()


_branch_again: Final = (do.create_branch("h1", OLD), do.delete_branch("h2"), do.undelete_branch("h3"))
_tag_again: Final = (do.create_tag("g1", OLD), do.delete_tag("g2"), do.undelete_tag("g3"))


def _beside_runs() -> Iterator[Scene]:
    t = client("r", do.committed_run("r1"))
    back = client("d", do.delete_branch("d1"), do.undelete_branch("u1"))
    alone = [do.upload("w1", "a", "1"), do.commit("p1"), RULED, do.create_branch("b0"), *_ON_SIDE]
    yield _kept("deleter that undeletes, committed run", back, t, before=alone)
    h, g = client("h", *_branch_again), client("g", *_tag_again)
    yield _kept("brancher that deletes and undeletes, committed run", h, t, before=PAST)
    yield _kept("tagger that deletes and undeletes, committed run", g, t, before=PAST)
    active = client("r", do.collect("r1", RunKind.LIFECYCLE, active_only=True))
    twice = [do.upload("w1", "a", "1"), do.commit("p1")]
    twice += [do.copy("w3", "a", "b", "3"), do.commit("p2"), do.clean_records("k0")]
    gone = [*twice, do.write("w4", "b", "4"), do.commit("p3"), RULED, set_policy("q2")]
    h = client("h", do.promised(do.create_branch("h1", OLD), OLD), do.delete_branch("h2"), do.undelete_branch("h3"))
    made = _kept("brancher that deletes and undeletes, lifecycle run over active commits", h, active, before=gone)
    yield made.instead(nothing_reachable_is_deleted, nothing_active_is_deleted(DUE))
    # What is uploaded to a branch that is deleted, and to the next of its name.
    again = (do.upload("w4", "z", "4", branch=SIDE), do.delete_branch("h2"), do.create_branch("h3"))
    u = client("h", *again, do.upload("w5", "z", "5", branch=SIDE), do.commit("c5", branch=SIDE))
    yield scene("uploader to a branch made again, run", u, client("r", do.uncommitted_run("r1")), before=_SIDE)


_SIDE: Final = [do.create_branch("b0")]


def _beside_fences() -> Iterator[Scene]:
    """Let a branch come to be after a fence listed branches. Its uploader had its slice before."""
    late = client("r", do.uncommitted_run("r1", options=FENCING))
    first, then = do.upload("w1", "a", "1"), do.upload("w2", "b", "2", branch=SIDE)
    yield scene("uploader that branches, run that fences", client("u", first, do.create_branch("h1"), then), late)
    deleted = [*_SIDE, do.delete_branch("x0")]
    back = client("u", first, do.undelete_branch("h1"), then)
    yield scene("uploader that undeletes a branch, run that fences", back, late, before=deleted)
    again = client("u", do.upload("w1", "b", "1", branch=SIDE), do.delete_branch("h0"), do.create_branch("h1"), then)
    yield scene("uploader that makes its branch again, run that fences", again, late, before=_SIDE)
    x = client("x", do.delete_branch("h0"), do.create_branch("h1"))
    link = client("l", do.link_issued("w2", "b", "2", branch=SIDE))
    open_ = [*_SIDE, do.issue("i0", branch=SIDE)]
    yield scene("linker to a branch made again, run that fences", link, x, late, before=open_)
    copier = client("l", do.copy("w2", "a", "b", "2", branch=SIDE))
    source = [do.upload("w1", "a", "1"), *_SIDE]
    drops = client("r", do.fence("g1"), do.clean_records("k1"), do.uncommitted_run("r1"))
    yield scene("copier to a branch made again, run after fencing", copier, x, drops, before=source)
    m = client("m", *move("m1", "a", "b", to=SIDE))
    yield scene("mover to a branch made again, run after fencing", m, x, drops, before=source, resets_objects=True)


def _beside_several() -> Iterator[Scene]:
    """Several runs of several kinds, with windows and purges, beside one who names what they want."""
    h = client("h", *_branch_again)
    past = [*PAST, set_policy("q1")]
    p = client("p", do.committed_run("p9", window="7d"), do.purge("p8"))
    q = client("q", do.collect("q9", RunKind.LIFECYCLE))
    u = client("u", do.uncommitted_run("u1"))
    copier = client("h", do.copy("w3", "a", "b", "3", ref=OLD), do.commit("c1"))
    made = scene("run that defers and purges, other runs, copier", p, q, u, copier, before=past, due=[DUE])
    yield deferring(made, due=[DUE])
    yield deferring(scene("brancher that deletes and undeletes, run that defers and purges", h, p, u, before=PAST))
    two = client("q", do.committed_run("q9"))
    yield deferring(scene("purger, two runs, brancher", client("p", do.purge("p9")), two, u, h, before=DEFERRED))


def _beside_metadata() -> Iterator[Scene]:
    """The trees of what comes back, or is named by its tree."""
    both = real("t", do.committed_run("r1"), do.metadata_run("m1"))
    h = real("h", *_branch_again, do.write("w4", "z", "4", branch=SIDE), do.commit("c4", branch=SIDE))
    made = metadata_scene("brancher that deletes and undeletes, both runs", h, both, before=PAST, sweeps=True)
    yield made.also(what_was_deleted_comes_back)
    by_tree = real("h", commit_tree("v1", OLD))
    yield metadata_scene("committer of an old tree by name, both runs", by_tree, both, before=PAST, sweeps=True)


def _kept(name: str, *actors: Actor, before: Sequence[Do]) -> Scene:
    return scene(name, *actors, before=before, checks=[what_was_deleted_comes_back]).also(others_look=True)


# Imports and migrations

_BROUGHT: Final = "brought"
"""How statistics and checks tell what came to a branch so."""


@doing("close")
async def put_on_record(repo: Versions) -> None:
    """Write the repository's own record, which an import asks for before it answers."""
    record = handle_of(repo).record
    await repo.store.set(keys.REPOSITORIES, NAME.encode(), encode_record(record))


class _Listed:
    """Stands for the listing of a location: it shows one object."""

    def __init__(self, key: bytes, value: str) -> None:
        self._page = Changes(keys=[key], rows=[to_row(key, entry_of(value))], objects=1)

    async def changes(self, location: Location, onto: str, refuse: Refuse) -> AsyncIterator[Changes]:  # noqa: ARG002  # the signature of Sources
        yield self._page


def import_one(name: str, key: str) -> Do:
    """Import one object by the shipped import. To the checkers it is a revert: any path may change."""

    async def act(repo: Versions) -> str | None:
        imports = handle_of(repo).imports
        imports._sources = _Listed(key.encode(), name)  # type: ignore[assignment]  # noqa: SLF001  # only the listing is ours
        begun = await imports.begin(MAIN, ())
        location = Location(source="s3://elsewhere/", destination="", is_folder=True)
        ended = await imports.run(begun, [location], note(name))
        if ended.state is not ImportState.COMPLETED:
            raise Conflict(ended.error)
        return ended.commit_id

    return Do(Operation(name, "revert", MAIN, key.encode(), name, _BROUGHT), act)


def migrate(name: str, key: str, *, parent: str = MAIN, branch: str = MAIN) -> Do:
    """Replay a commit onto its parent, then move the branch there or make it: the calls of lakebed.migration.flow."""

    async def act(repo: Versions) -> str:
        async def changes() -> AsyncIterator[pa.Table]:
            yield changes_from_rows([key.encode()], [to_row(key.encode(), entry_of(name))])

        made_by = handle_of(repo).changes
        own, first = f"{WORK}-{name}", await repo.refs.resolve_commit(parent)
        await made_by.create_branch(own, first, force=True, work_of=WORK)
        replayed = await repo.merges.replay(own, changes, note(name))
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


def _bringing() -> Iterator[Scene]:
    """Imports and migrations work on a hidden branch. It alone names their commits and trees, until a branch of the
    users takes them: by a merge, by a reset, or as a new branch.
    """
    c, t, u = client("c", do.commit("c1")), client("t", do.committed_run("t1")), client("u", do.uncommitted_run("u1"))
    i, m = client("i", import_one("i1", "z")), client("m", migrate("m1", "y", parent=OLD, branch=SIDE))
    yield _brought("importer, committer", i, c, before=_BEFORE[:1], quick=Quick.NO_FAULT)
    yield _brought("importer, committed run", i, t, before=_BEFORE)
    yield _brought("importer, both runs of data", i, t, u, before=_BEFORE)
    yield _brought("migrator from an old commit, committed run", m, t, before=_BEFORE)
    moves = client("m", migrate("m1", "y"))
    w = client("w", do.write("w9", "x", "9"))
    yield _brought("migrator that moves its branch, writer", moves, w, before=_BEFORE[:-1])
    yield _brought("migrator that moves its branch, committer", moves, c, before=_BEFORE[:-1], quick=Quick.NEVER)
    yield _brought("importer, migrator, both runs of data", i, m, t, u, before=_BEFORE)
    # Their trees are named by a hidden branch alone, and then by another one.
    both = real("t", do.committed_run("r1"), do.metadata_run("m9"))
    for name, deed in (
        ("importer", import_one("i1", "z")),
        ("migrator from an old commit", migrate("m1", "y", parent=OLD, branch=SIDE)),
    ):
        made = metadata_scene(f"{name}, both runs", real("i", deed), both, before=_BEFORE, sweeps=True)
        yield made.also(what_was_brought_is_there)


def _brought(name: str, *actors: Actor, **how: Any) -> Scene:
    return scene(name, *actors, checks=[what_was_brought_is_there], **how)
