"""The product shows the anomalies that it does not promise to prevent (docs/guide/isolation.md, "The exception").

Each test runs the shipped code in an order of the store's operations that shows one. The counts of steps are tried
around those of today, so that a read more or less in a flow does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

from explorer.operations import Operation
from explorer.scheduling import Following
from lakebed.versions import Versions
from sim import Ending, Scene
from sim.checkers.views import View
from sim.planted.hunting import read_schedule
from sim.scenes.deeds import commit, read, write
from sim.scenes.doing import MAIN, Do
from sim.scenes.scenes import client, scene


def shows(made: Scene, anomaly: Callable[[Ending], bool], schedules: Iterable[str]) -> bool:
    """Return whether one of the schedules ends in the anomaly."""
    found: list[bool] = []

    def look(ending: Ending) -> None:
        found.append(anomaly(ending))

    # What every scene promises is checked elsewhere (test_promises.py).
    made = replace(made, checks=(look,), step_checks=(), tidy=None, tidy_checks=())
    for text in schedules:
        Following(made, read_schedule(text)).play()
        if any(found):
            return True
    return False


def increment(name: str) -> Do:
    """Read the number at a path, and write the next one there, on no condition."""

    async def act(repo: Versions) -> None:
        number = int((await repo.staging.get(MAIN, b"a")).checksum)
        await write(name, "a", str(number + 1)).act(repo)

    return Do(Operation(name, "increment"), act)


def test_of_two_unsafe_increments_a_reader_may_see_1_3_2() -> None:
    """A commit makes the first writer set its cell once more, over what the second made of its value."""
    made = scene(
        "two increments, committer, reader",
        client("v", increment("v1")),
        client("w", increment("w1")),
        client("c", commit("c1")),
        client("r", *[read(f"r{number}", "a") for number in range(3)]),
        staged=[write("w0", "a", "1")],
    )
    counts = product(range(2, 5), range(4, 9), range(2, 5), range(2, 5))
    schedules = (f"r*{r} v*{v} w*{w} c*60 w*20 r*{again} v*20 r*10" for r, v, w, again in counts)

    assert shows(made, lambda ending: values_read(ending) == ["1", "3", "2"], schedules)


def values_read(ending: Ending) -> list[str]:
    records = sorted(ending.acknowledged("read"), key=lambda record: record.operation.name)
    return [str(record.ended.value) for record in records if record.ended is not None]


def test_of_two_writers_beside_a_committer_history_may_show_b_a_n_a_n_a() -> None:
    """Each commit makes the writer whose cell it took set it once more, so this goes on for as long as commits come."""
    made = scene(
        "two writers, committer of five commits",
        client("v", write("v1", "a", "N")),
        client("w", write("w1", "a", "A")),
        client("c", *[commit(f"c{number}") for number in range(1, 6)]),
        committed=[write("w0", "a", "B")],
    )
    counts = product(range(2, 5), range(2, 5), range(6, 16), range(1, 5))
    schedules = (
        f"w*{w} c*{c} v*{v} c*{c} w*{again} c*{c} v*{again} c*{c} w*{again} c*{c} w*20 v*20 c*60"
        for w, v, c, again in counts
    )

    def is_banana(ending: Ending) -> bool:
        history = [made.contents.get(b"a") for made in reversed(View(ending.disk).history(MAIN))]
        return history[-6:] == ["B", "A", "N", "A", "N", "A"]

    assert shows(made, is_banana, schedules)
