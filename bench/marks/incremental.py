"""The second collection of uncommitted data after 1 % of a repository changed, beside a clean one.

1,000,000 objects in 100 slices, of which 50,000 are garbage; then 10,000 new ones, 5,000 of them committed, and 4,875
that become garbage (bench/marks/incremental_session.py). Planned and applied, Spark local[2]; driver, live side, JVM
and workers together, without the start of the session. Floor: the clean run that began the session; and, to see what
remains when the JVM is warm, a clean run that ends it.

Sketch: the second run lists one slice (10,000 names, 20 ms), reads the bitmaps of a hundred, the ends of nearly all
ranges there are (140, 40 ms), for the change is all over the tree, and what the server wrote (10,000 rows), marks and
deletes, all of it in the driver: 0.25 s.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from bench.harness import Bench, Figure

from .mark import run
from .mark_session import Took

SIZES = {"small": (4, 500), "full": (100, 10_000)}
LIMIT = 0.05


def take(slices: int, each: int, repeat: int) -> list[Figure]:
    sessions = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            printed = run("marks.incremental_session", Path(folder), slices, each)
        sessions.append(msgspec.json.decode(printed, type=list[Took]))
    return [
        figure("incremental", sessions, 0, limit=LIMIT),
        figure("incremental, beside a clean run in the warm session", sessions, 2, limit=None),
    ]


def figure(what: str, sessions: list[list[Took]], floor: int, *, limit: float | None) -> Figure:
    return Figure.of(
        what,
        [session[1].cpu_s for session in sessions],
        [session[floor].cpu_s for session in sessions],
        wall_s=[session[1].wall_s for session in sessions],
        limit=limit,
        peak_mib=max(took.peak_mib for session in sessions for took in session),
    )


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    yield partial(take, *SIZES[size])


BENCH = Bench(name="incremental", parts=parts)
