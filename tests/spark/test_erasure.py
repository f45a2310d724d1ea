"""Both engines agree with the specification of erasures (`lakebed.gc.rules`), over histories drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from lakebed.base import slice_name
from lakebed.gc import protocol
from lakebed.gc.engines import Engine
from lakebed.gc.erasure.erasing import deal_selected, read_ranges_by_span
from lakebed.gc.inputs.named import deal_live
from lakebed.gc.inputs.ranges import effort_of_ends, from_ranges
from lakebed.gc.mark import mark_expired
from lakebed.gc.protocol import RunState
from lakebed.gc.rules import Namespace, Selection, judge_erasure
from lakebed.objectstore import ObjectStore
from tests.gc.test_erasure import erase, versions_of
from tests.spark.lakeside import Lakeside
from tests.spark.test_due import Built, Drawn, build, drawn, engines
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


def planned(engines: Engines, built: Built, selection: Selection, *, takes_shared: bool) -> protocol.Manifest:
    async def mark(engine: Engine, _: ObjectStore) -> protocol.Manifest:
        meeting, apart = await read_ranges_by_span(engine, built.commits, selection, folder="_lakefs/ranges.tasks/")
        due, stays = await deal_selected(
            engine, meeting, selection, uri=URI, folder="_lakefs/due/", closed=built.closed
        )
        whole = await deal_live(
            engine,
            from_ranges,
            apart,
            uri=URI,
            folder="_lakefs/live/",
            with_keys=True,
            effort=effort_of_ends(apart),
        )
        sides = [] if takes_shared else [whole, stays]
        return (await mark_expired(engine, due, sides, into="_lakefs/garbage/", now_ms=NOW_MS))[0]

    return engines.act(built.lake, mark)


@pytest.mark.parametrize("takes_shared", [False, True])
def test_a_plan_takes_what_the_specification_lets_go(
    engines: Engines, build: Callable[[Drawn], Built], takes_shared: bool
) -> None:
    def check(given: tuple[Drawn, Selection]) -> None:
        built, selection = build(given[0]), given[1]
        namespace = Namespace(uri=URI, closed=frozenset(slice_name(number) for number in built.closed))

        found = outcome(lambda: addresses_of(built.lake, planned(engines, built, selection, takes_shared=takes_shared)))

        expected = judge_erasure(
            built.history, built.contents, selection, namespace=namespace, takes_shared=takes_shared
        )
        assert found == outcome(lambda: set(expected.goes))

    examples(engines, st.tuples(drawn(), st.sampled_from(SELECTIONS)), check)


def test_every_version_goes_on_every_branch_and_nothing_else(spark: SparkSession | None, lakeside: Lakeside) -> None:
    found = versions_of(lakeside)
    before = lakeside.addresses()

    plan = erase(lakeside, "users/ann", spark=spark)
    assert lakeside.addresses() == before
    assert lakeside.collector.apply(spark, plan.run_id).state is RunState.ENDED

    assert lakeside.addresses() == before - set(found)
