"""Every input of every run: cut short, changed, gone or of a later version, it stops the run and nothing is deleted.

What is found by which check, tests/gc/messages has. Here each input passes through them. One harm each, in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakebed.base import Corrupt
from lakebed.gc import RunAbandoned
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.messages import RunKind
from lakebed.gc.rules import MetadataRule
from tests.spark.collecting import Collecting
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANY_AGE = -(10**13)
RULE = MetadataRule(file_age_ms_min=ANY_AGE, runs_newest=0, run_age_ms_min=ANY_AGE)
U, C, M = RunKind.UNCOMMITTED, RunKind.COMMITTED, RunKind.METADATA


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def remove(file: Path) -> None:
    file.unlink()


HARMS: list[Callable[[Path], None]] = [cut_short, flip_a_bit, remove]


def collector(lakeside: Lakeside) -> Collecting:
    lakeside.service = CollectionService(lakeside.versions, ServiceOptions(readers_grace_ms=0))
    return replace(lakeside.collector, metadata=RULE)


def tell(lakeside: Lakeside) -> None:
    """Something for every input: garbage of each kind, staged data, an address handed out."""
    lakeside.upload("a/1")
    lakeside.commit(age_days=30)
    lakeside.delete("a/1")
    lakeside.commit(age_days=20)
    lakeside.upload("a/2")
    lakeside.commit()
    lakeside.upload("a/3")
    lakeside.upload("a/3")
    lakeside.wait(lakeside.versions.uploads.issue("main"))
    lakeside.rules(1)


def after(lakeside: Lakeside, route: str, act: Callable[[Any], Any]) -> None:
    """Do something with what was written for this answer, or with the answer."""
    call = lakeside.call

    def changed(method: str, path: str, *, json: object = None) -> object:
        answer = call(method, path, json=json)
        return act(answer) if method == "POST" and path.endswith(f"/{route}") else answer

    lakeside.call = changed  # type: ignore[method-assign]  # one server, of which something is wrong


def there(lakeside: Lakeside) -> set[str]:
    special = {str(file) for file in lakeside.files("_lakefs/*ranges/*")}
    return lakeside.addresses() | special


PLANNING = [
    (U, "runs", "uncommitted/*/uploads/*"),
    (U, "commits", "uncommitted/*/uncommitted/*"),
    (U, "commits", "uncommitted/*/commits/*"),
    (C, "commits", "committed/*/commits/*"),
    (C, "commits", "committed/*/refs/*"),
    (M, "commits", "metadata/*/commits/*"),
]


@pytest.mark.parametrize(("number", "kind", "route", "pattern"), [(n, *of) for n, of in enumerate(PLANNING)])
def test_an_input_of_a_plan_that_is_not_what_its_manifest_says_stops_it(
    spark: SparkSession | None, lakeside: Lakeside, number: int, kind: RunKind, route: str, pattern: str
) -> None:
    tell(lakeside)

    def harm(answer: object) -> object:
        for file in lakeside.files(f"_lakefs/retention/gc/{pattern}.parquet"):
            HARMS[number % 3](file)
        return answer

    after(lakeside, route, harm)
    before = there(lakeside)

    with pytest.raises(Corrupt, match=r"part-\d+"):
        collector(lakeside).plan(spark, kind)

    assert lakeside.files(f"_lakefs/retention/gc/{pattern}") or HARMS[number % 3] is remove
    assert collector(lakeside).plans() == []
    assert there(lakeside) == before


APPLYING = [
    (U, "", "uncommitted/*/garbage/*"),
    (C, "", "committed/*/garbage/*"),
    (C, "", "committed/*/commits/*"),
    (C, "", "committed/*/expired/*"),
    (C, "expire", "committed/*/commits.*/*"),
    (C, "expire", "committed/*/uncommitted.*/*"),
    (C, "sweeping", "committed/*/garbage.*/*"),
    (M, "retire", "metadata/*/commits.*/*"),
    (M, "sweeping", "metadata/*/garbage.*/*"),
]


@pytest.mark.parametrize(("number", "kind", "route", "pattern"), [(n, *of) for n, of in enumerate(APPLYING)])
def test_an_input_of_an_apply_that_is_not_what_its_manifest_says_stops_it(
    spark: SparkSession | None, lakeside: Lakeside, number: int, kind: RunKind, route: str, pattern: str
) -> None:
    tell(lakeside)
    if kind is M:
        collector(lakeside).run(spark, [C])
    plan = collector(lakeside).plan(spark, kind)
    before = there(lakeside)

    def harm(answer: object = None) -> object:
        files = lakeside.files(f"_lakefs/retention/gc/{pattern}.parquet")
        assert files
        for file in files:
            HARMS[number % 3](file)
        return answer

    if route:
        after(lakeside, route, harm)
    else:
        harm()

    with pytest.raises((Corrupt, RunAbandoned), match=r"part-\d+"):
        collector(lakeside).apply(spark, plan.run_id)

    assert plan.totals.all.objects
    assert there(lakeside) == before


@pytest.mark.parametrize(
    ("kind", "route", "field"),
    [
        (U, "runs", "uploads"),
        (U, "uncommitted", "manifest"),
        (U, "commits", "commits"),
        (C, "commits", "refs"),
        (C, "expire", "commits"),
        (C, "expire", "uncommitted"),
        (M, "commits", "commits"),
        (M, "retire", "commits"),
    ],
)
def test_an_input_of_a_later_version_stops_the_run(
    spark: SparkSession | None, lakeside: Lakeside, kind: RunKind, route: str, field: str
) -> None:
    tell(lakeside)
    if kind is M:
        collector(lakeside).run(spark, [C])
    before = there(lakeside)

    def later(answer: Any) -> Any:
        answer = json.loads(json.dumps(answer))
        answer[field]["table_version"] = 99
        return answer

    after(lakeside, route, later)

    with pytest.raises(Corrupt, match="version 99"):
        collector(lakeside).apply(spark, collector(lakeside).plan(spark, kind).run_id)

    assert there(lakeside) == before
