"""Legal holds that come after the plan, by path, commit, branch and tag, for each kind of run. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from lakebed.base import Conflict
from lakebed.gc import HeldBack, Plan
from lakebed.gc.live import PolicyBook
from lakebed.gc.messages import RunKind
from lakebed.versions import CommitExpired
from tests.gc.kinds.erasure.test_plan import erase
from tests.gc.mark.test_holding import address_of, hold, plan
from tests.spark.lakeside import Lakeside

PATH: Final = "legal/a"


@pytest.fixture
def lakeside(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def planned(lake: Lakeside, kind: RunKind) -> tuple[Plan, str]:
    """Return a plan of this kind that takes one object, and its address."""
    lake.upload(PATH)
    address = address_of(lake, PATH)
    if kind is not RunKind.UNCOMMITTED:
        lake.commit(age_days=20)
        lake.wait(lake.versions.refs.create_tag("audit", "main"))
    if kind is RunKind.COMMITTED:
        lake.wait(lake.versions.refs.delete_tag("audit"))
    if kind in {RunKind.UNCOMMITTED, RunKind.COMMITTED}:
        lake.delete(PATH)
    if kind is RunKind.COMMITTED:
        lake.upload("data/now")
        lake.commit(age_days=19)
        lake.rules(10)
    if kind is RunKind.LIFECYCLE:
        lake.wait(PolicyBook(lake.versions).write(json.dumps({"all": {"prefix": "", "days": 1}}).encode()))
    made = erase(lake, PATH) if kind is RunKind.ERASURE else plan(lake, None, kind)
    assert lake.collector.taken(made.run_id) == {address}
    return made, address


def add(lake: Lakeside, by: str) -> tuple[str, ...]:
    match by:
        case "path":
            return hold(lake, "legal/")
        case "tag":
            return hold(lake, tags=("audit",))
        case _:
            return hold(lake, commits=(by,))


KINDS: Final = [
    (RunKind.UNCOMMITTED, "path"),
    (RunKind.COMMITTED, "path"),
    (RunKind.COMMITTED, "main~1"),
    *((kind, by) for kind in (RunKind.LIFECYCLE, RunKind.ERASURE) for by in ("path", "main", "tag")),
]


@pytest.mark.parametrize(("kind", "by"), KINDS)
def test_a_hold_that_comes_after_the_plan_keeps_its_objects(lakeside: Lakeside, kind: RunKind, by: str) -> None:
    made, address = planned(lakeside, kind)
    assert add(lakeside, by) == ()

    with suppress(Conflict):
        lakeside.collector.apply(None, made.run_id)

    assert address in lakeside.addresses()


@pytest.mark.parametrize(("kind", "by"), KINDS)
def test_a_hold_that_comes_just_before_the_deletes_keeps_its_objects(
    lakeside: Lakeside, kind: RunKind, by: str
) -> None:
    """A commit that a run has published is refused: its objects are held by path."""
    made, address = planned(lakeside, kind)
    refused: list[bool] = []

    def add_late() -> None:
        try:
            add(lakeside, by)
        except CommitExpired:
            refused.append(True)

    # A run of uncommitted data publishes nothing: it asks for the holds, and then it deletes.
    lakeside.before["applying" if kind is RunKind.UNCOMMITTED else "sweeping"] = add_late
    with suppress(HeldBack):
        lakeside.collector.apply(None, made.run_id)

    assert (address in lakeside.addresses()) is not bool(refused)
    assert bool(refused) is (kind is RunKind.COMMITTED and by != "path")


@pytest.mark.parametrize(("kind", "by"), [one for one in KINDS if one[0] is not RunKind.ERASURE and one[1] != "main~1"])
def test_a_hold_that_comes_within_the_window_keeps_its_objects(lakeside: Lakeside, kind: RunKind, by: str) -> None:
    made, address = planned(lakeside, kind)
    lakeside.collector.apply(None, made.run_id, window="1d")
    assert add(lakeside, by) == ()
    lakeside.end_window(made.run_id)

    with suppress(HeldBack):
        assert lakeside.collector.purge(None).objects_failed == 1

    assert address in lakeside.addresses()


def test_a_hold_names_a_run_of_uncommitted_data_whose_deletes_began(lakeside: Lakeside) -> None:
    made, _ = planned(lakeside, RunKind.UNCOMMITTED)
    named: list[tuple[str, ...]] = []
    lakeside.before["ended"] = lambda: named.append(hold(lakeside, "legal/"))

    lakeside.collector.apply(None, made.run_id)

    assert named == [(made.run_id,)]


def test_a_hold_names_a_deferred_run_once_its_purge_began(lakeside: Lakeside) -> None:
    made, _ = planned(lakeside, RunKind.LIFECYCLE)
    lakeside.collector.apply(None, made.run_id, window="1d")
    assert hold(lakeside, "elsewhere/", name="before") == ()
    lakeside.end_window(made.run_id)
    named: list[tuple[str, ...]] = []
    lakeside.before["ended"] = lambda: named.append(hold(lakeside, "legal/"))

    lakeside.collector.purge(None)

    assert named == [(made.run_id,)]
