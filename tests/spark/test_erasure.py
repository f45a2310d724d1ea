"""Both engines agree with the specification of erasures (`lakebed.gc.rules`), over histories drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from lakebed.base import slice_name
from lakebed.gc import messages
from lakebed.gc.engines import Engine
from lakebed.gc.kinds.erasure import erasing
from lakebed.gc.kinds.erasure.erasing import deal_selected, read_ranges_by_span
from lakebed.gc.mark.inputs import ranges
from lakebed.gc.mark.inputs.named import deal_live
from lakebed.gc.mark.inputs.ranges import ListedRanges, from_ranges
from lakebed.gc.mark.mark import mark_expired
from lakebed.gc.mark.sets.bucketed import HELD_MAX, Bucketed
from lakebed.gc.messages import RunState
from lakebed.gc.rules import Namespace, Selection, judge_erasure
from lakebed.objectstore import ObjectStore
from tests.gc.kinds.erasure.test_plan import erase, versions_of
from tests.spark.lakeside import Lakeside
from tests.spark.test_due import IN_A, IN_B, IN_C, Built, Drawn, build, chain, drawn, engines, young
from tests.spark.test_marks import NOW_MS, URI, Engines, addresses_of, examples, outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["build", "engines"]

SELECTIONS = [
    Selection(paths=("p0/a",)),
    Selection(paths=("p0/a", "p2/e"), globs=("p1/",)),
    Selection(globs=("**/*.tmp",)),
    Selection(metadata={"class": "pii"}),
    Selection(globs=("p*/*",), metadata={"class": "pii"}),
]


async def dealt(engine: Engine, built: Built, selection: Selection) -> tuple[Bucketed, Bucketed, ListedRanges]:
    """What is selected, what else its ranges name, and the other ranges."""
    found = await read_ranges_by_span(engine, built.commits, selection, folder="_lakefs/ranges.tasks/")
    meeting = found.meeting
    due, stays = await deal_selected(engine, meeting, selection, uri=URI, folder="_lakefs/due/", closed=built.closed)
    return due, stays, found.apart


def planned(engines: Engines, built: Built, selection: Selection, *, takes_shared: bool) -> messages.Manifest:
    async def mark(engine: Engine, _: ObjectStore) -> messages.Manifest:
        due, stays, apart = await dealt(engine, built, selection)
        whole = await deal_live(
            engine,
            from_ranges,
            apart.rows,
            uri=URI,
            folder="_lakefs/live/",
            with_keys=True,
            effort=apart.effort_of_ends,
        )
        sides = [] if takes_shared else [whole, stays]
        return (await mark_expired(engine, due, sides, into="_lakefs/garbage/", now_ms=NOW_MS))[0]

    return engines.act(built.lake, mark)


@pytest.mark.parametrize("in_rows_max", [ranges.IN_ROWS_MAX, 0], ids=["in rows", "in files"])
@pytest.mark.parametrize("takes_shared", [False, True])
def test_a_plan_takes_what_the_specification_lets_go(
    engines: Engines,
    build: Callable[[Drawn], Built],
    monkeypatch: pytest.MonkeyPatch,
    takes_shared: bool,
    in_rows_max: int,
) -> None:
    monkeypatch.setattr(ranges, "IN_ROWS_MAX", in_rows_max)

    def check(given: tuple[Drawn, Selection]) -> None:
        built, selection = build(given[0]), given[1]
        namespace = Namespace(uri=URI, closed=frozenset(slice_name(number) for number in built.closed))

        found = outcome(lambda: addresses_of(built.lake, planned(engines, built, selection, takes_shared=takes_shared)))

        expected = judge_erasure(
            built.history, built.contents, selection, namespace=namespace, takes_shared=takes_shared
        )
        assert found == outcome(lambda: set(expected.goes))

    examples(engines, st.tuples(drawn(), st.sampled_from(SELECTIONS)), check)


@pytest.mark.parametrize(("held_max", "files"), [(None, 2), (1, 3)])
@pytest.mark.parametrize("engines", ["local"], indirect=True)
def test_a_task_writes_several_ranges_into_one_file_unless_they_are_large(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_max: int | None, files: int
) -> None:
    """Two tasks read three ranges: what is selected, and what stays for its foreign address."""
    monkeypatch.setattr(erasing, "HELD_MAX", held_max or HELD_MAX)
    ranges = [young(a=address, e=f"data/old/{number}") for number, address in enumerate((IN_A, IN_B, IN_C))]
    built, selection = Built(replace(chain(), ranges=ranges), tmp_path), Selection(globs=("*/a",))

    due, stays, _ = engines.act(built.lake, lambda engine, _: dealt(engine, built, selection))

    assert (len(due.files), len(stays.files)) == (files, files)
    assert (due.rows, stays.rows) == (3, 3)
    assert all(any(segment.rows for segment in file.segments) for file in (*due.files, *stays.files))


def test_every_version_goes_on_every_branch_and_nothing_else(spark: SparkSession | None, lakeside: Lakeside) -> None:
    found = versions_of(lakeside)
    before = lakeside.addresses()

    plan = erase(lakeside, "users/ann", spark=spark)
    assert lakeside.addresses() == before
    assert lakeside.collector.apply(spark, plan.run_id).state is RunState.ENDED

    assert lakeside.addresses() == before - set(found)
