"""Worlds of lifecycle runs: the shipped plan and apply, beside everyone who can come to name an object that they take.

The policy lets go what any commit has at the path `a`. A cell that names the object, or a commit that has it at another
path, keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from explorer.actors import Actor
from lakebed.gc.live import PolicyBook
from lakebed.gc.messages import Mode, RunKind
from sim.checkers.reachable import nothing_active_is_deleted, nothing_reachable_is_deleted
from sim.ports.scene import Scene
from sim.scenes import deeds as do
from sim.scenes.doing import MAIN, SIDE, Do, doing
from sim.scenes.flows import RULED
from sim.scenes.scenes import client, scene

DUE: Final = b"a"


set_policy = doing("policy")(lambda repo, policy=b'{"due": {"prefix": "a", "days": 1}}': PolicyBook(repo).write(policy))


_PAST: Final = [do.upload("w1", "a", "1"), do.commit("p1"), set_policy("q0")]
"""A commit whose object is due ten days later."""
_DEFERRED: Final = [*_PAST, do.collect("q1", RunKind.LIFECYCLE, window="7d")]
"""The object was taken, and waits for the end of a window."""


def lifecycle_scenes() -> Iterator[Scene]:
    """Committers beside a whole run are too many schedules to walk: tests/spark/test_lifecycle.py has some of these."""
    run = client("r", do.collect("r1", RunKind.LIFECYCLE))
    yield _scene("copier from a commit, lifecycle run", client("h", do.copy("w3", "a", "b", "3")), run)
    graceful = client("r", do.collect("r1", RunKind.LIFECYCLE, has_grace=True))
    reader = client("b", do.read_bytes("b1", "a", ref=MAIN))
    yield _scene("reader of bytes, lifecycle run with grace", reader, graceful)
    yield _scene("brancher, lifecycle run", client("h", do.create_branch("h1", "main")), run)
    back = client("h", do.reset_object("s1", "a"))
    yield _scene("object resetter, lifecycle run", back, run, staged=[do.upload("w2", "a", "2")])
    purging = client("p", do.purge("p9"))
    copier = client("h", do.copy("w3", "a", "b", "3"))
    yield _scene("copier from a commit, purger of a lifecycle run", copier, purging, before=_DEFERRED)
    restorer = client("x", do.restore("x1", content=b"1"))
    yield _scene("restorer, purger of a lifecycle run", restorer, purging, before=_DEFERRED)
    changed = client("s", set_policy("q1", b'{"due": {"prefix": "z", "days": 1}}'))
    yield _scene("setter of the policy, lifecycle run", changed, run)
    yield from _bringing_scenes(run)
    yield from _run_scenes(run)
    yield from _optimised_scenes()
    yield from _active_scenes()


def _bringing_scenes(run: Actor) -> Iterator[Scene]:
    """Let commits bring the object back to a head, at its path or at another."""
    beside = [do.copy("w3", "a", "b", "3", branch=SIDE)]
    yield _scene("merger of a copy, lifecycle run", client("m", do.merge("m1", SIDE)), run, beside=beside)
    moved = client("m", do.merge("m1", SIDE), do.delete_branch("d1"))
    yield _scene("merger of a copy that deletes its branch, lifecycle run", moved, run, beside=beside)
    gone = [*_PAST, do.delete("d1", "a"), do.commit("p2")]
    yield _scene("reverter, lifecycle run", client("v", do.revert("v1", MAIN)), run, before=gone)
    yield _scene("hard resetter, lifecycle run", client("v", do.hard_reset("v1", "main~1")), run, before=gone)
    copied = [*_PAST, do.copy("w3", "a", "b", "3"), do.commit("p2"), do.delete("d1", "b"), do.commit("p3")]
    yield _scene("reverter to a copy, lifecycle run", client("v", do.revert("v1", MAIN)), run, before=copied)


def _run_scenes(run: Actor) -> Iterator[Scene]:
    """Let another run want the same objects."""
    old = [*_PAST[:2], do.upload("w2", "a", "2"), do.commit("p2"), RULED, set_policy("q2")]
    yield _scene("committed run, lifecycle run", client("q", do.committed_run("q9")), run, before=old)
    staged = [do.upload("w2", "a", "2"), do.delete("d2", "a")]
    yield _scene("uncommitted run, lifecycle run", client("u", do.uncommitted_run("u1")), run, staged=staged)


def _optimised_scenes() -> Iterator[Scene]:
    """Let a run go on from the hours that another saved, when nothing was due."""
    later = set_policy("q0", b'{"due": {"prefix": "a", "days": 15}}')
    saved = [do.upload("w1", "a", "1", is_new=True), do.commit("p1"), later, do.collect("q1", RunKind.LIFECYCLE)]
    goes_on = do.collect("r1", RunKind.LIFECYCLE, mode=Mode.OPTIMISED, days=30)
    run = client("r", goes_on)
    name = "lifecycle run that goes on from another"
    copier = client("h", do.copy("w3", "a", "b", "3"))
    yield _scene(f"copier from a commit, {name}", copier, run, before=saved)
    copied = [do.copy("w3", "a", "b", "3")]
    # A record of the copy would keep the object, too.
    cleaned = client("c", do.commit("c1"), do.clean_records("k1"))
    yield _scene(f"committer of a copy, {name}", cleaned, run, before=saved, staged=copied)
    again = client("r", goes_on, again=[do.resume("r2")])
    yield _scene(f"copier from a commit, {name} and comes back", copier, again, before=saved)


def _active_scenes() -> Iterator[Scene]:
    """Let only active commits count. The commit in the middle has the object at a path that is not due, too, and the
    rules let it go: so the object goes, unless a ref or the rules keep that commit.
    """
    middle = "main~1"
    copied = [*_PAST[:2], do.copy("w3", "a", "b", "3"), do.commit("p2"), do.clean_records("k0")]
    before = [*copied, do.delete("d3", "b"), do.commit("p3"), RULED, set_policy("q2")]
    run = client("r", do.collect("r1", RunKind.LIFECYCLE, active_only=True))
    name = "lifecycle run over active commits"
    brancher = client("h", do.promised(do.create_branch("h1", middle), middle))
    yield _active(f"brancher from an old commit, {name}", brancher, run, before=before)
    tagger = client("h", do.promised(do.create_tag("h1", middle), middle))
    yield _active(f"tagger of an old commit, {name}", tagger, run, before=before)
    setter = client("s", do.promised(do.set_rules("s1", "30d"), middle))
    yield _active(f"setter of rules, {name}", setter, run, before=before)
    # The deletion is kept for longer than the run looks ahead.
    back = client("d", do.delete_branch("d1"), do.undelete_branch("u1"))
    beside = [*before, do.promised(do.create_branch("h1", middle), middle)]
    yield _active(f"branch deleter that undeletes, {name}", back, run, before=beside)
    cleaned = client("c", do.commit("c1"), do.clean_records("k1"))
    yield _active(f"committer of a copy, {name}", cleaned, run, before=before, staged=[do.copy("w4", "a", "c", "4")])


def _active(name: str, *actors: Actor, **how: Any) -> Scene:
    return scene(name, *actors, **how).instead(nothing_reachable_is_deleted, nothing_active_is_deleted(DUE))


def _scene(name: str, *actors: Actor, before: Sequence[Do] = _PAST, **how: Any) -> Scene:
    return scene(name, *actors, before=before, due=[DUE], **how)
