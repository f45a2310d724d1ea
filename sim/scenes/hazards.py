"""Small worlds of what people do more rarely, and of what comes late: tags, merges and cherry-picks of old commits,
refs and intents whose makers sleep, applies that are resumed or doubled, listings, uploads behind a commit, quarantine.

A late write (`worlds.LATE`) is any write of a process that died, and a delete of objects that is done twice: a bulk
delete whose answer was lost may be carried out when its run has long ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.base import RunKind
from sim.ports.scene import Quick, Scene

from . import deeds as do
from .collecting import FENCING
from .doing import FAR_FUTURE_MS, SIDE
from .flows import PAST, RULED
from .scenes import client, scene, server


def hazard_scenes() -> Iterator[Scene]:
    yield from _writing()
    yield from _naming()
    yield from _resuming()


def _writing() -> Iterator[Scene]:
    a1, b1, c = do.write("w1", "a", "1"), do.write("w2", "b", "2"), client("c", do.commit("c1"))
    lister = client("r", do.read_listed("r1", "b"))
    w, d = client("w", do.write("w3", "b", "3")), client("d", do.delete("d1", "b"))
    yield scene("writer, committer, lister", w, c, lister, staged=[a1, b1], quick=Quick.NO_LOSS)
    yield scene("deleter, committer, lister", d, c, lister, committed=[a1, b1], quick=Quick.NO_LOSS)
    both = server("h", [do.write("w3", "a", "3")], [do.write("w4", "b", "4")], answers_late=True)
    yield scene("server of two writers with late answers, committer", both, c, staged=[a1], quick=Quick.NEVER)
    # A committer has to build again while another one has sealed above it.
    x, t = client("x", do.write("w3", "b", "3"), do.commit("d1")), client("t", do.bump("t1"))
    yield scene("committer, writer that commits, bumper", c, x, t, staged=[a1])
    # Equal words and an equal clock: only the nonce tells the two commits apart.
    same = (client("c", do.commit("c1", message="same")), client("d", do.commit("d1", message="same")))
    yield scene("two committers of equal words", *same, staged=[a1], alike=[("c", "d")])
    # The slice of an upload on another branch, which fencing must freeze too.
    beside = [do.create_branch("b0")]
    u = client("u", do.upload("w3", "a", "3", branch=SIDE))
    late = client("r", do.uncommitted_run("r1", options=FENCING))
    yield scene("uploader beside, run that fences", u, late, before=beside)
    link, g = client("l", do.link_issued("w3", "a", "3")), client("g", do.fence("g1"))
    k = client("r", do.clean_records("k1"), do.uncommitted_run("r1"))
    yield scene("linker, fencer, run after cleaning", link, g, k, before=[do.issue("i0")])


def _naming() -> Iterator[Scene]:
    t = client("r", do.committed_run("r1"))
    h = client("h", do.create_branch("h1", "main~1"))
    yield scene("tagger, committed run", client("g", do.create_tag("g1", "main~1")), t, before=PAST)
    # A branch from before the commit that goes, which brings that commit in.
    old = [*PAST, do.create_branch("b0", "main~2")]
    g = client("g", do.merge("g1", "main~1", branch=SIDE))
    yield scene("merger of an old commit, committed run", g, t, before=old)
    p = client("p", do.cherry_pick("p3", "main~1", branch=SIDE))
    yield scene("picker of an old commit, committed run", p, t, before=old)
    b, g = client("b", do.create_branch("b1")), client("g", do.create_tag("g1", "main", tag=SIDE))
    yield scene("brancher, tagger of the same name", b, g, before=PAST)
    again = client("g", do.create_tag("g1", "main", tag=SIDE), do.create_tag("g2", "main", tag=SIDE))
    yield scene("brancher, deleter, tagger that tries again", b, client("d", do.delete_branch("d1")), again)
    k = client("k", do.clean_refs("k1"))
    yield scene("brancher, impatient cleaner of refs, committed run", h, k, t, before=PAST)
    late = client("k", do.clean_records("k1", late_ms=FAR_FUTURE_MS))
    elsewhere = client("h", do.hard_reset("h1", "main~1", branch=SIDE))
    beside = [*PAST, do.create_branch("b0")]
    yield scene("hard resetter, impatient cleaner, committed run", elsewhere, late, t, before=beside)
    x = client("x", do.abandon("x1"))
    yield scene("brancher, committed run, who abandons it", h, t, x, before=PAST)
    e = client("e", do.end("e1"), do.create_branch("h1", "main~1"))
    yield scene("committed run, who ends it and branches", e, t, before=PAST)
    # The commit that holds an upload's first cell expires before the upload sets its second.
    u = client("u", do.upload("w3", "a", "3"), do.close("x3"))
    expiring = client("r", do.commit("c1"), do.write("w4", "a", "4"), do.commit("c2"), do.committed_run("r1"))
    yield scene("uploader, committed run of its commit", u, expiring, before=[RULED], staged=[do.write("w0", "b", "0")])


def _resuming() -> Iterator[Scene]:
    t, h = client("r", do.committed_run("r1")), client("h", do.create_branch("h1", "main~1"))
    again = client("r", do.committed_run("r1"), again=[do.resume("z1")])
    yield scene("brancher, committed run that is resumed", h, again, before=PAST)
    z = client("z", do.resume("z1"))
    yield scene("brancher, committed run, another apply of it", h, t, z, before=PAST)
    # The plan was made before, and who applies it comes back.
    back = client("z", do.apply_planned("z1"), again=[do.apply_planned("z2")])
    made = [*PAST, do.plan_only("q1", RunKind.COMMITTED)]
    yield scene("brancher, apply of a plan that comes back", h, back, before=made)
    u = client("u", do.upload("w3", "a", "3"))
    yield scene("uploader, committed run, another apply of it", u, t, z, before=PAST)
    two = client("s", do.committed_run("s1"))
    yield scene("brancher, two committed runs", h, t, two, before=PAST, alike=[("r", "s")])
    # A process that comes back opens a slice of its own.
    back = client("u", do.upload("w3", "a", "3"), again=[do.upload("w4", "b", "4")])
    yield scene("uploader that comes back, resetter, run", back, client("r", do.reset("s1"), do.uncommitted_run("r1")))


def process_scenes() -> Iterator[Scene]:
    """Let server processes of several clients each meet, and listings in pages, with writes between.

    The clients of one process share its caches and its slices. Another process has its own, so what one of them
    acknowledged must reach the readers of the other.
    """
    # The process ends its slice while another client of it has an upload under way there.
    closing, run = server("u", [do.upload("w2", "a", "2")], [do.close("x2")]), client("r", do.uncommitted_run("r1"))
    yield scene("server of an uploader and one who closes, run", closing, run, quick=Quick.NO_FAULT)
    one = server("g", [do.write("w2", "a", "2")], [do.read("r1", "a")])
    other = server("h", [do.write("w3", "a", "3")], [do.read("r2", "a")])
    staged = [do.write("w1", "a", "1")]
    yield scene("two servers, each of a writer and a reader", one, other, staged=staged, quick=Quick.NO_FAULT)
    # A listing of a slice that handed out addresses: a link sets its cell while that is between two pages.
    late, cleaner = client("l", do.link_issued("w3", "a", "3")), client("k", do.clean_records("k1"))
    run = client("r", do.in_pages(do.collect("r1", RunKind.UNCOMMITTED)))
    past = [do.issue("i0"), do.upload("w1", "b", "1"), do.delete("d1", "b"), do.upload("w2", "c", "2"), do.commit("p1")]
    yield scene("linker, record cleaner, run that lists in pages", late, cleaner, run, before=past)
