"""A collection so small that only its commands cost. Each round has a repository of its own, with ten objects in a
commit and one more that was overwritten before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

from bench.harness import Bench, Figure
from bench.http import Peer

from .commands import Took, both, commanded, make, timed

OBJECTS = 10
LIMIT_S = 1.0


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    del size  # it is small at any
    with commanded() as (peer, environment):
        numbers = itertools.count()

        def take(repeat: int) -> list[Figure]:
            rounds = [_round(peer, f"ten{next(numbers)}", environment) for _ in range(repeat + 1)][1:]
            return [
                figure
                for which, what in enumerate(("plan", "apply"))
                for figure in both(f"ten-objects: {what}", [each[which] for each in rounds], peer, limit=LIMIT_S)
            ]

        yield take


def _round(peer: Peer, name: str, environment: dict[str, str]) -> list[Took]:
    """Return what a plan took, and what an apply."""
    make(peer, name, [f"day/{number}.parquet" for number in (0, *range(OBJECTS))])
    plan, printed = timed(peer, environment, "gc", "plan", f"lakefs://{name}")
    [run_id] = [one["run_id"] for one in json.loads(printed) if one["kind"] == "uncommitted"]
    words = ("gc", "apply", f"lakefs://{name}", run_id, "--readers-grace", "0", "--yes")
    apply, printed = timed(peer, environment, *words)
    assert json.loads(printed)["objects_deleted"] == 1, printed
    return [plan, apply]


BENCH = Bench(name="ten-objects", parts=parts)
