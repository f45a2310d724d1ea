"""Server processes of several clients each, beside one another; and listings that come in pages, with writes between.

The clients of one process share its caches and its slices. Another process has its own, so what one of them
acknowledged must reach the readers of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lakebed.gc.messages import RunKind
from lakebed.versions import Versions
from sim.ports.scene import Quick, Scene

from .deeds import clean_records, close, collect, issue, link_issued, uncommitted_run
from .scenes import Do, client, commit, delete, read, scene, server, upload, write


def process_scenes() -> Iterator[Scene]:
    # The process ends its slice while another client of it has an upload under way there.
    closing, run = server("u", [upload("w2", "a", "2")], [close("x2")]), client("r", uncommitted_run("r1"))
    yield scene("server of an uploader and one who closes, run", closing, run, quick=Quick.NO_FAULT)
    one = server("g", [write("w2", "a", "2")], [read("r1", "a")])
    other = server("h", [write("w3", "a", "3")], [read("r2", "a")])
    staged = [write("w1", "a", "1")]
    yield scene("two servers, each of a writer and a reader", one, other, staged=staged, quick=Quick.NO_FAULT)
    # A listing of a slice that handed out addresses: a link sets its cell while that is between two pages.
    late, cleaner = client("l", link_issued("w3", "a", "3")), client("k", clean_records("k1"))
    run = client("r", in_pages(collect("r1", RunKind.UNCOMMITTED)))
    past = [issue("i0"), upload("w1", "b", "1"), delete("d1", "b"), upload("w2", "c", "2"), commit("p1")]
    yield scene("linker, record cleaner, run that lists in pages", late, cleaner, run, before=past)


def in_pages(do: Do) -> Do:
    """Make a process whose listings show one key a step, and whose scans of cells one cell."""

    async def act(repo: Versions) -> object:
        repo.objectstore.list_page = 1  # type: ignore[attr-defined]  # a SimObjectStore, as in every scene
        repo.context.options = replace(repo.context.options, scan_page=1)
        return await do.act(repo)

    return Do(do.operation, act)
