"""Small worlds of collections: every run is the shipped flow (collecting.py).

Runs of each kind beside those who name, write or read what may go; runs that go on from others, that defer, that are
resumed; and collections of metadata, in which trees are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from explorer.actors import BLOCKS, Actor, Check, Ending, StepCheck, Violation
from explorer.disk import Disk
from lakebed.base import EMPTY_METARANGE, CommitId, Corrupt, RunKind
from lakebed.gc.mark.inputs.listing import tree_file
from lakebed.gc.messages import Mode
from lakebed.gc.rules import Rules
from lakebed.ranges import CutRule, metarange_key, range_key, sublist_key
from lakebed.versions import Commit, RefState, decode_record, keys
from sim.checkers.endings import ALWAYS
from sim.checkers.moves import branch_moves_are_legal, tokens_leave_with_a_claim
from sim.checkers.reachable import addresses_of, deferred, nothing_reachable_is_deleted, reachable, waiting
from sim.checkers.views import PARTITION, View
from sim.ports.files import ranges_of, sublists_of
from sim.ports.ports import SimPorts
from sim.ports.scene import Quick, Scene

from . import deeds as do
from .collecting import FENCING, PRIVATE_BESIDE_TREES, Collecting
from .doing import FAR_FUTURE_MS, MAIN, NARROW, SIDE, WIDE, Do, versions
from .scenes import client, scene

RULED: Final = do.set_rules("q0", "1d")
PAST: Final = (do.upload("w1", "a", "1"), do.commit("p1"), do.upload("w2", "a", "2"), do.commit("p2"), RULED)
"""A commit whose object is replaced by the next, and rules by which it goes ten days later."""


# Runs that go on from others


def an_optimised_run_finds_all(ending: Ending) -> None:
    """Check invariant 6, as far as an optimised run goes: what is left is reachable, or some commit record names it."""
    disk = ending.disk
    named = reachable(disk)
    for key, value in disk.cells.get(PARTITION, {}).items():
        if key.startswith(keys.COMMIT):
            named |= addresses_of(disk, decode_record(Commit, value).metarange_id)
    left = {key for key in disk.objectstore if key.startswith("data/")}
    if garbage := left - named:
        raise Violation(f"an optimised run leaves garbage: {sorted(garbage)}")


async def _tidy_by_optimised(ports: SimPorts) -> None:
    """Everything is old by now: what marks is abandoned, owners that did not end are dead; then one optimised run."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    repo = versions(ports)
    collecting = Collecting(repo, FENCING)
    await collecting.service.abandon_dead_runs()
    await collecting.finish()
    await collecting.runs.closed_slices()
    ports.clock.ms += FAR_FUTURE_MS
    await repo.cleanup.clean()
    await repo.cleanup.clean()
    await collecting.run(RunKind.UNCOMMITTED, _GOES_ON)


_GOES_ON: Final = Mode.AUTOMATIC


def optimised(name: str, **how: Any) -> Do:
    """A run that goes on from what the last one saved, if there is one."""
    return do.uncommitted_run(name, mode=_GOES_ON, **how)


def _optimised(name: str, *actors: Actor, before: Sequence[Do], is_first: bool = False) -> Scene:
    """`before` ends with the run that the others go on from, unless theirs is the first."""
    past = before if is_first else [*before, do.close("x0"), optimised("p0")]
    made = scene(name, *actors, before=past)
    return replace(made, tidy=_tidy_by_optimised, tidy_checks=(an_optimised_run_finds_all,))


def optimised_scenes() -> Iterator[Scene]:
    r, c = client("r", optimised("r1")), client("c", do.commit("c1"))
    kept = [do.upload("w0", "a", "0")]
    yield _optimised("committer, optimised run", c, r, before=kept)
    late_c = client("c", do.behind("b1"), do.commit("c1"))
    yield _optimised("committer behind the clock, optimised run", late_c, r, before=kept)
    w = client("w", do.upload("w2", "a", "2"), do.close("x2"))
    yield _optimised("uploader that closes, optimised run", w, r, before=kept)
    late_w = client("w", do.behind("b1"), do.upload("w2", "b", "2"), do.delete("d2", "b"), do.close("x2"))
    yield _optimised("uploader behind the clock, optimised run", late_w, r, before=kept)
    deleter = client("d", do.delete("d2", "a"))
    yield _optimised("deleter, committer, optimised run", deleter, c, r, before=kept)
    twice = client("r", optimised("r1"), optimised("r2"))
    yield _optimised("deleter, two optimised runs", deleter, twice, before=kept)
    # An address that was handed out, in a slice that was listed before bytes came.
    out = [do.hand_out("i0")]
    late = client("l", do.fill("f1"), do.link_issued("w2", "a", "2"), do.delete("d2", "a"))
    yield _optimised("late linker that deletes, optimised run", late, r, before=out)
    expirer = client("l", do.fill("f1"), do.expire("e1"), do.clean_records("k1"))
    yield _optimised("late client that expires, optimised run", expirer, r, before=out)
    yield _optimised("late client that expires, first run", expirer, r, before=out, is_first=True)
    # An address in a slice that is fenced while it is handed out.
    links = (do.link_issued("w2", "a", "2"), do.delete("d2", "a"))
    issuer = client("l", do.upload("w1", "b", "1"), do.hand_out("i1"), do.fill("f1"), *links)
    fencing = client("r", optimised("r1", options=FENCING, days=1))
    # The last run goes on from what this one saved, which is of a day later: only so is the slice not listed again.
    name = "issuer that links and deletes, optimised run that fences"
    yield _optimised(name, issuer, fencing, before=kept).also(others_look=True)
    # Committed before the base, in a slice that closes after it: only what was saved knows.
    old = [*kept, do.close("x1"), do.upload("w1", "b", "1"), do.commit("p1"), optimised("p2", is_elsewhere=True)]
    yield _optimised("closer, optimised run", client("w", do.upload("w2", "c", "2")), r, before=old)
    # A rename between two readings.
    source = [do.create_branch("b0"), do.upload("w1", "z", "1", branch=SIDE)]
    mover = client("w", do.copy("w2", "z", "a", "2", ref=SIDE), do.delete("d2", "z", branch=SIDE))
    yield _optimised("copier that deletes, optimised run", mover, r, before=source)


# Windows


def nothing_names_what_waits(*due: bytes) -> Check:
    """Check that no entry names what a deferred run holds: it may be deleted once its window is over. Commits may have
    it at paths that are due.
    """

    def check(ending: Ending) -> None:
        if named := reachable(ending.disk, due=frozenset(due)) & deferred(ending.disk, ended=True):
            raise Violation(f"an entry names what a run deletes: {sorted(named)}")

    return check


def bytes_are_there(*uploaded: str) -> Check:
    """Check that until a window is over, bytes that were uploaded are there, whichever actors died."""

    def check(ending: Ending) -> None:
        if any(run.purging for run in View(ending.disk).runs().values()):
            return
        there = {content for content, _, _ in ending.disk.objectstore.values() if isinstance(content, bytes)}
        if lost := [value for value in uploaded if value.encode() not in there]:
            raise Violation(f"deleted within the window: {lost}")

    return check


def deletes_wait(*, erased: bytes = b"") -> StepCheck:
    """Check that no object goes that a deferred run holds, before its window is over; but for those at this path."""

    def check(disk: Disk, partition: bytes, key: bytes, _: bytes | None, after: bytes | None) -> None:
        is_delete = partition == BLOCKS and after is None
        if is_delete and key.decode() in disk.objectstore.keys() & waiting(disk, erased=erased.decode()):
            raise Violation(f"deleted within the window: {key.decode()}")

    return check


def deferring(made: Scene, *checks: Check, due: Sequence[bytes] = (), erased: bytes = b"") -> Scene:
    """Check a scene with deferred runs, too. `due`: paths at which commits may have what these hold; `erased`: one of
    which an erasure takes what they hold."""
    return made.also(nothing_names_what_waits(*due), *checks, steps=[deletes_wait(erased=erased)])


DEFERRED: Final = (
    do.upload("v1", "a", "1"),
    do.commit("p1"),
    do.delete("v2", "a"),
    do.commit("p2"),
    RULED,
    do.committed_run("q1", window="7d"),
)
"""Until its window is over, a run holds an object that was at `a`."""


def restoring_scenes() -> Iterator[Scene]:
    b0, bytes_ = do.upload("u0", "b", "0"), b"1"
    x = client("x", do.restore("x1", content=bytes_))
    back = client("x", do.restore("x1", content=bytes_), again=[do.restore("x2", content=bytes_)])
    c, p, r = client("c", do.commit("c1")), client("p", do.purge("p9")), client("r", do.uncommitted_run("r1"))

    def beside(name: str, *actors: Actor, quick: Quick | None = None) -> Scene:
        return deferring(scene(name, *actors, before=DEFERRED, staged=[b0], quick=quick))

    yield beside("restorer, purger", back, p)
    yield beside("restorer, committer", x, c)
    over = client("x", do.restore("x1", content=bytes_, overwrite=True))
    yield beside("restorer that overwrites, committer", over, c)
    yield beside("restorer, resetter", x, client("s", do.reset("s1")))
    yield beside("restorer, uploader", x, client("w", do.upload("w1", "a", "w")))
    yield beside("restorer, writer, committer", x, client("w", do.write("w1", "a", "w")), c, quick=Quick.NO_FAULT)
    yield beside("two restorers", x, client("y", do.restore("y1", content=bytes_)))
    yield beside("restorer, purger, run", x, p, r)
    # Of what a run defers just now, and may be deferring twice.
    t, z = client("r", do.committed_run("r1", window="7d")), client("z", do.resume("z1"))
    made = [*PAST, do.plan_only("q1", RunKind.COMMITTED)]
    first = client("r", do.apply_planned("r1", window="7d"))
    twice = scene("run that defers, another apply of it", first, z, before=made, others_look=True)
    yield deferring(twice, bytes_are_there("1", "2"))
    u = client("u", do.uncommitted_run("u1"))
    other = scene("run that defers, run of uncommitted data", t, u, before=PAST, others_look=True)
    yield deferring(other, bytes_are_there("1", "2"))
    p, q = client("p", do.apply_one("p1", 0, window="7d")), client("q", do.apply_one("q3", 1))
    yield deferring(scene("run that defers, run that deletes", p, q, before=_TWO_PLANS))
    found = client("x", do.restore("x1", key="a", content=b"1", overwrite=True))
    made_scene = scene("restorer, run that defers", found, first, before=made, others_look=True)
    yield deferring(made_scene, bytes_are_there("1"))


_TWO_PLANS: Final = (
    do.upload("w1", "a", "1"),
    do.delete("d1", "a"),
    do.close("x1"),
    do.plan_only("q1", RunKind.UNCOMMITTED),
    do.plan_only("q2", RunKind.UNCOMMITTED),
)
"""Of the same object, and neither knows of the other. Where both applies die, each finds the other run begun."""


def both_come_back() -> Scene:
    """Let both processes die, and go on with their runs."""
    p = client("p", do.apply_one("p1", 0, window="7d"), again=[do.apply_one("p2", 0)])
    q = client("q", do.apply_one("q3", 1), again=[do.apply_one("q4", 1)])
    return deferring(scene("run that defers, run that deletes, both again", p, q, before=_TWO_PLANS))


# Metadata


def metadata_scene(
    name: str, *actors: Actor, before: Sequence[Do], sweeps: bool = False, trees: CutRule = NARROW
) -> Scene:
    """A branch `main`, and one `side` made from it where the deeds before ask for it.

    `sweeps`: commits are swept, and their trees may go. Then what looks into every commit of a history is not checked.
    """

    async def prepare(ports: SimPorts) -> None:
        repo = versions(ports, real_trees=trees)
        await repo.commits.initialise(MAIN)
        for deed in before:
            if deed.operation.branch == SIDE and len(await repo.context.branches.every()) == 1:
                await repo.refs.create_branch(SIDE, MAIN)
            await ports.act(deed.operation, deed.awaited(repo))
        await repo.slices.end()

    return Scene(
        name=name,
        actors=actors,
        prepare=prepare,
        tidy=partial(_tidy_metadata, trees=trees),
        checks=(*(() if sweeps else ALWAYS), trees_are_whole, runs_read_on, nothing_reachable_is_deleted),
        tidy_checks=(trees_are_whole, unnamed_files_go),
        step_checks=() if sweeps else (branch_moves_are_legal, tokens_leave_with_a_claim),
        private=PRIVATE_BESIDE_TREES,
        others_look=True,
        shortens=True,
        runs_in=PARTITION,
    )


async def _tidy_metadata(ports: SimPorts, *, trees: CutRule) -> None:
    """All is old, and no actor is left. One run of each kind, of metadata last; none may stumble over what is there."""
    ports.clock.ms += 3 * FAR_FUTURE_MS
    repo = versions(ports, real_trees=trees)
    collecting = Collecting(repo, FENCING)
    await collecting.service.abandon_dead_runs()
    await collecting.finish()
    await repo.cleanup.clean()
    await collecting.rules.write(Rules(default="1d"))
    await collecting.run(RunKind.COMMITTED)
    await collecting.run(RunKind.METADATA)
    # What an unpublished commit names stays until it expires, so the last look is after that.
    await collecting.run(RunKind.METADATA)


def files_of_trees(ending: Ending, commits: Sequence[CommitId]) -> set[str]:
    """Return keys of every file of these commits' trees.

    Raises:
        Violation: a tree is missing.
    """
    view = View(ending.disk)
    found: set[str] = set()
    for commit_id in commits:
        tree = view.commit(commit_id).metarange_id
        if tree != EMPTY_METARANGE:
            if metarange_key(tree) not in ending.disk.objectstore:
                raise Violation(f"commit {commit_id[:12]} names tree {tree[:12]}, which is gone")
            sublists = {*map(sublist_key, sublists_of(ending.disk, tree))}
            if lost := sublists - ending.disk.objectstore.keys():
                raise Violation(f"commit {commit_id[:12]} names tree {tree[:12]}, which lacks {sorted(lost)}")
            found |= {metarange_key(tree), *sublists, *map(range_key, ranges_of(ending.disk, tree))}
    return found


def _needed(ending: Ending) -> list[CommitId]:
    """Return heads, whatever was swept; and all in their history that was not."""
    view = View(ending.disk)
    heads = [one.commit_id for one in view.branches().values() if one.state is RefState.ACTIVE]
    found: dict[CommitId, bool] = {}
    waiting = list(heads)
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in found:
            found[commit_id] = commit_id in heads or not view.is_swept(commit_id)
            waiting += view.commit(commit_id).parents
    return [commit_id for commit_id, is_needed in found.items() if is_needed]


def trees_are_whole(ending: Ending) -> None:
    """Check that nothing that a commit needs is deleted: its tree, and every range of that."""
    missing = files_of_trees(ending, _needed(ending)) - ending.disk.objectstore.keys()
    if missing:
        raise Violation(f"deleted although a commit names them: {sorted(missing)}")


def runs_read_on(ending: Ending) -> None:
    """Check that no run stops because another one of metadata took what it was about to read."""
    for run in ending.of("run"):
        if run.error is not None and issubclass(run.error, Corrupt):
            raise Violation(f"{run.operation.name} met a file that is missing")


def unnamed_files_go(ending: Ending) -> None:
    """Check that full runs leave only files that a commit needs, and the trees that these are compared with."""
    view, needed = View(ending.disk), _needed(ending)
    # A cherry-pick compares a commit with its parent, whose data may be gone (gc/rules/history.py).
    compared = {parent for commit_id in needed for parent in view.commit(commit_id).parents}
    left = {key for key in ending.disk.objectstore if tree_file(key) is not None}
    allowed = files_of_trees(ending, needed)
    for commit_id in sorted(compared):
        with suppress(Violation):  # it was not needed for a while, and went
            allowed |= files_of_trees(ending, [commit_id])
    if garbage := left - allowed:
        raise Violation(f"files of no tree stay: {sorted(garbage)}")


def metadata_scenes() -> Iterator[Scene]:
    a1 = do.write("w1", "a", "1")
    stranded = [a1, do.strand("s1")]
    c, m = real("c", do.commit("c1")), real("m", do.metadata_run("m1"))
    yield metadata_scene("committer, metadata run", c, m, before=stranded)
    again = real("m", do.metadata_run("m1"), again=[do.metadata_run("m2")])
    yield metadata_scene("committer, metadata run that comes back", c, again, before=stranded)
    # A tree without a commit, of ranges that the head names.
    back = [do.write("w2", "b", "2"), do.strand("s1"), do.write("w3", "c", "3"), do.commit("p2"), do.delete("d1", "c")]
    yield metadata_scene("committer of an old tree, metadata run", c, m, before=[a1, *back])
    z, planned = real("z", do.resume("z1")), [*stranded, do.plan_only("q1", RunKind.METADATA)]
    first = real("m", do.apply_planned("m1"))
    yield metadata_scene("committer, metadata run, another apply of it", c, first, z, before=planned)
    u = real("u", do.plan_only("u1", RunKind.UNCOMMITTED))
    yield metadata_scene("committer, metadata run, reader of trees", c, m, u, before=stranded)
    x, uploaded = real("x", do.uncommitted_run("x1")), [do.upload("w1", "a", "1"), do.strand("s1")]
    yield metadata_scene("committer, metadata run, uncommitted run", c, m, x, before=uploaded)
    d = real("d", do.commit("d1"))
    two = [a1, do.strand("s1"), do.write("w2", "b", "2"), do.strand("s2")]
    yield metadata_scene("two committers, metadata run", c, d, m, before=two)
    apart = [do.write("w0", "z", "t0", branch=SIDE), do.commit("c0", branch=SIDE)]
    beside = [*apart, a1, do.commit("p1"), do.strand_merge("s1", SIDE)]
    yield metadata_scene("merger, metadata run", real("g", do.merge("g1", SIDE)), m, before=beside)
    # A plan of committed data that was never applied, whose folder another plan takes.
    p, t = real("p", do.apply_one("p1", 0)), real("m", do.apply_one("m1", 1))
    unapplied = [do.upload("w1", "a", "1"), do.commit("p0"), do.delete("d0", "a"), do.commit("p2"), RULED]
    held = [*unapplied, do.plan_only("q1", RunKind.COMMITTED), do.plan_only("q2", RunKind.METADATA)]
    yield metadata_scene("applier, metadata run that takes its plan", p, t, before=held, sweeps=True)
    # The first of two commits is swept, and its tree goes, or it is named again before.
    t = real("t", do.committed_run("r1"), do.metadata_run("m1"))
    h = real("h", do.hard_reset("h1", "main~1"), do.write("w3", "b", "3"), do.commit("c1"))
    yield metadata_scene("resetter that commits, both runs", h, t, before=PAST, sweeps=True)
    v = real("v", do.revert("v1", "main"))
    yield metadata_scene("reverter, both runs", v, t, before=PAST, sweeps=True)
    # Wide trees: what the committer writes and the merger keeps are sublists of trees that the run takes apart.
    wide_c, wide_m = real("c", do.commit("c1"), trees=WIDE), real("m", do.metadata_run("m1"), trees=WIDE)
    yield metadata_scene("committer, metadata run, wide trees", wide_c, wide_m, before=[a1, *back], trees=WIDE)
    wide_g = real("g", do.merge("g1", SIDE), trees=WIDE)
    yield metadata_scene("merger, metadata run, wide trees", wide_g, wide_m, before=beside, trees=WIDE)


def real(name: str, *deeds: Do, again: Sequence[Do] = (), trees: CutRule = NARROW) -> Actor:
    return client(name, *deeds, again=again, real_trees=trees)
