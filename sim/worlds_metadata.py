"""Which small scenes of collections of metadata the explorer walks (metadata.py has the pieces)."""

from __future__ import annotations

from collections.abc import Iterator

from .actors import Scene
from .deeds import committed_run, hard_reset, revert
from .exploring import NO_BUDGET, Budget
from .metadata import (
    apply_plan,
    metadata_run,
    metadata_scene,
    ranged_client,
    read_trees,
    resume_metadata,
    run_beside,
    strand,
    strand_merge,
    take_plan,
    write_plan,
)
from .scenes import SIDE, commit, delete, merge, upload, write


def metadata_worlds() -> Iterator[tuple[Scene, Budget, bool]]:
    """Each with its budget, and whether the tests walk it."""
    crash, loss, late = Budget(crashes=1), Budget(losses=1), Budget(late=1)
    a1 = write("w1", "a", "1")
    stranded = [a1, strand("s1")]
    c, m = ranged_client("c", commit("c1")), ranged_client("m", metadata_run("m1"))
    one = metadata_scene("committer, metadata run", c, m, before=stranded)
    yield one, NO_BUDGET, True
    yield one, crash, True
    yield one, loss, False
    yield one, late, True
    again = ranged_client("m", metadata_run("m1"), again=[metadata_run("m2")])
    yield metadata_scene("committer, metadata run that comes back", c, again, before=stranded), crash, False
    # A tree that nobody names of ranges that the head names.
    back = [write("w2", "b", "2"), strand("s1"), write("w3", "c", "3"), commit("p2"), delete("d1", "c")]
    yield metadata_scene("committer of an old tree, metadata run", c, m, before=[a1, *back]), NO_BUDGET, True
    z = ranged_client("z", resume_metadata("z1"))
    yield metadata_scene("committer, metadata run, another apply of it", c, m, z, before=stranded), NO_BUDGET, True
    u = ranged_client("u", read_trees("u1"))
    yield metadata_scene("committer, metadata run, reader of trees", c, m, u, before=stranded), NO_BUDGET, True
    x, uploaded = ranged_client("x", run_beside("x1")), [upload("w1", "a", "1"), strand("s1")]
    yield metadata_scene("committer, metadata run, uncommitted run", c, m, x, before=uploaded), NO_BUDGET, False
    d = ranged_client("d", commit("d1"))
    two = [a1, strand("s1"), write("w2", "b", "2"), strand("s2")]
    yield metadata_scene("two committers, metadata run", c, d, m, before=two), NO_BUDGET, False
    beside = [
        write("w0", "z", "t0", branch=SIDE),
        commit("c0", branch=SIDE),
        a1,
        commit("p1"),
        strand_merge("s1", SIDE),
    ]
    g = ranged_client("g", merge("g1", SIDE))
    merging = metadata_scene("merger, metadata run", g, m, before=beside)
    yield merging, NO_BUDGET, True
    yield merging, crash, True
    p = ranged_client("p", apply_plan("p1"))
    t = ranged_client("t", take_plan("t1"))
    taken = metadata_scene("applier, metadata run that takes its plan", p, t, before=[write_plan("w0")])
    for budget in (NO_BUDGET, crash, loss):
        yield taken, budget, True
    # The first of two commits is swept, and its tree goes, or it is named again before.
    past = [upload("w1", "a", "1"), commit("p1"), upload("w2", "a", "2"), commit("p2")]
    t = ranged_client("t", committed_run("r1"), metadata_run("m1"))
    h = ranged_client("h", hard_reset("h1", "main~1"), write("w3", "b", "3"), commit("c1"))
    yield metadata_scene("resetter that commits, both runs", h, t, before=past, sweeps=True), NO_BUDGET, False
    v = ranged_client("v", revert("v1", "main"))
    yield metadata_scene("reverter, both runs", v, t, before=past, sweeps=True), NO_BUDGET, True
