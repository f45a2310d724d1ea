"""Small worlds of what people do more rarely, and of what comes late: tags, merges and cherry-picks of old commits,
refs and intents whose makers sleep, applies that are resumed or doubled, listings, uploads behind a commit, quarantine.

A late write (`worlds.LATE`) is any write of a process that died, and a delete of objects that is done twice: a bulk
delete whose answer was lost may be carried out when its run has long ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.base import RunKind
from sim.ports.scene import Quick, Scene

from .collecting import FENCING
from .deeds import (
    abandon,
    apply_planned,
    bump,
    cherry_pick,
    clean_records,
    clean_refs,
    close,
    committed_run,
    create_branch,
    create_tag,
    delete_branch,
    end,
    fence,
    hard_reset,
    issue,
    link_issued,
    plan_only,
    read_listed,
    resume,
    uncommitted_run,
)
from .flows import PAST, RULED
from .scenes import FAR_FUTURE_MS, SIDE, client, commit, delete, merge, reset, scene, server, upload, write


def hazard_scenes() -> Iterator[Scene]:
    yield from _writing()
    yield from _naming()
    yield from _resuming()


def _writing() -> Iterator[Scene]:
    a1, b1, c = write("w1", "a", "1"), write("w2", "b", "2"), client("c", commit("c1"))
    lister = client("r", read_listed("r1", "b"))
    w, d = client("w", write("w3", "b", "3")), client("d", delete("d1", "b"))
    yield scene("writer, committer, lister", w, c, lister, staged=[a1, b1], quick=Quick.NO_LOSS)
    yield scene("deleter, committer, lister", d, c, lister, committed=[a1, b1], quick=Quick.NO_LOSS)
    both = server("h", [write("w3", "a", "3")], [write("w4", "b", "4")], answers_late=True)
    yield scene("server of two writers with late answers, committer", both, c, staged=[a1], quick=Quick.NEVER)
    # A committer has to build again while another one has sealed above it.
    x, t = client("x", write("w3", "b", "3"), commit("d1")), client("t", bump("t1"))
    yield scene("committer, writer that commits, bumper", c, x, t, staged=[a1])
    # Equal words and an equal clock: only the nonce tells the two commits apart.
    same = (client("c", commit("c1", message="same")), client("d", commit("d1", message="same")))
    yield scene("two committers of equal words", *same, staged=[a1], alike=[("c", "d")])
    # The slice of an upload on another branch, which fencing must freeze too.
    beside = [create_branch("b0")]
    u = client("u", upload("w3", "a", "3", branch=SIDE))
    late = client("r", uncommitted_run("r1", options=FENCING))
    yield scene("uploader beside, run that fences", u, late, before=beside)
    link, g = client("l", link_issued("w3", "a", "3")), client("g", fence("g1"))
    k = client("r", clean_records("k1"), uncommitted_run("r1"))
    yield scene("linker, fencer, run after cleaning", link, g, k, before=[issue("i0")])


def _naming() -> Iterator[Scene]:
    t = client("r", committed_run("r1"))
    h = client("h", create_branch("h1", "main~1"))
    yield scene("tagger, committed run", client("g", create_tag("g1", "main~1")), t, before=PAST)
    # A branch from before the commit that goes, which brings that commit in.
    old = [*PAST, create_branch("b0", "main~2")]
    g = client("g", merge("g1", "main~1", branch=SIDE))
    yield scene("merger of an old commit, committed run", g, t, before=old)
    p = client("p", cherry_pick("p3", "main~1", branch=SIDE))
    yield scene("picker of an old commit, committed run", p, t, before=old)
    b, g = client("b", create_branch("b1")), client("g", create_tag("g1", "main", tag=SIDE))
    yield scene("brancher, tagger of the same name", b, g, before=PAST)
    again = client("g", create_tag("g1", "main", tag=SIDE), create_tag("g2", "main", tag=SIDE))
    yield scene("brancher, deleter, tagger that tries again", b, client("d", delete_branch("d1")), again)
    k = client("k", clean_refs("k1"))
    yield scene("brancher, impatient cleaner of refs, committed run", h, k, t, before=PAST)
    late = client("k", clean_records("k1", late_ms=FAR_FUTURE_MS))
    elsewhere = client("h", hard_reset("h1", "main~1", branch=SIDE))
    beside = [*PAST, create_branch("b0")]
    yield scene("hard resetter, impatient cleaner, committed run", elsewhere, late, t, before=beside)
    x = client("x", abandon("x1"))
    yield scene("brancher, committed run, who abandons it", h, t, x, before=PAST)
    e = client("e", end("e1"), create_branch("h1", "main~1"))
    yield scene("committed run, who ends it and branches", e, t, before=PAST)
    # The commit that holds an upload's first cell expires before the upload sets its second.
    u = client("u", upload("w3", "a", "3"), close("x3"))
    expiring = client("r", commit("c1"), write("w4", "a", "4"), commit("c2"), committed_run("r1"))
    yield scene("uploader, committed run of its commit", u, expiring, before=[RULED], staged=[write("w0", "b", "0")])


def _resuming() -> Iterator[Scene]:
    t, h = client("r", committed_run("r1")), client("h", create_branch("h1", "main~1"))
    again = client("r", committed_run("r1"), again=[resume("z1")])
    yield scene("brancher, committed run that is resumed", h, again, before=PAST)
    z = client("z", resume("z1"))
    yield scene("brancher, committed run, another apply of it", h, t, z, before=PAST)
    # The plan was made before, and who applies it comes back.
    back = client("z", apply_planned("z1"), again=[apply_planned("z2")])
    made = [*PAST, plan_only("q1", RunKind.COMMITTED)]
    yield scene("brancher, apply of a plan that comes back", h, back, before=made)
    u = client("u", upload("w3", "a", "3"))
    yield scene("uploader, committed run, another apply of it", u, t, z, before=PAST)
    two = client("s", committed_run("s1"))
    yield scene("brancher, two committed runs", h, t, two, before=PAST, alike=[("r", "s")])
    # A process that comes back opens a slice of its own.
    back = client("u", upload("w3", "a", "3"), again=[upload("w4", "b", "4")])
    yield scene("uploader that comes back, resetter, run", back, client("r", reset("s1"), uncommitted_run("r1")))
