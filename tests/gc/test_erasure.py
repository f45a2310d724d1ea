"""Erasures: what goes, what stays and why, over a real repository, without HTTP. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed.base import Conflict
from lakebed.gc import BadWindow, Plan
from lakebed.gc.protocol import ErasureOrder, InvalidRequest, PlanRequest, RunKind, RunState
from lakebed.gc.rules import InvalidSelection, Selection
from lakebed.versions import PathExpired, PathNotFound
from tests.gc.test_holds import address_of, hold
from tests.spark.lakeside import Lakeside


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def erase(lake: Lakeside, *paths: str, shared: bool = False, spark: Any = None, **selected: Any) -> Plan:
    order = ErasureOrder(selection=Selection(paths=paths, **selected), why="request 12", takes_shared=shared)
    return lake.collector.on(spark).plan_erasure(order)


def apply(lake: Lakeside, plan: Plan) -> RunState:
    return lake.collector.apply(None, plan.run_id).state


def versions_of(lake: Lakeside) -> list[str]:
    """Addresses of three versions of `users/ann`: two on main, one on a branch. `users/bob` lies beside."""
    found = []
    for data, branch in ((b"one", "main"), (b"two", "main"), (b"three", "side")):
        if branch == "side":
            lake.branch("side")
        found.append(lake.upload("users/ann", data, branch=branch))
        lake.upload("users/bob", data, branch=branch)
        lake.commit(branch=branch)
    return found


def test_reads_of_an_erased_entry_say_so(lake: Lakeside) -> None:
    versions_of(lake)
    plan = erase(lake, "users/ann")
    apply(lake, plan)

    entry = lake.wait(lake.versions.staging.get("main", b"users/ann"))
    with pytest.raises(PathExpired, match=f"erased by run {plan.run_id}"):
        lake.wait(lake.versions.taken.check(entry))


def test_listings_mark_what_was_erased_though_no_policy_was_ever_set(lake: Lakeside) -> None:
    found = versions_of(lake)
    plan = erase(lake, "users/ann")
    apply(lake, plan)

    shown = lake.wait(lake.versions.taken.shown_at(found[1]))

    assert shown is not None
    assert shown.run == plan.run_id


def test_what_a_diff_would_bring_of_erased_entries_is_counted_though_no_policy_was_ever_set(lake: Lakeside) -> None:
    versions_of(lake)
    apply(lake, erase(lake, "users/ann"))

    assert lake.wait(lake.versions.history.count_expired("main~1", "main")) == 1


def test_a_copy_of_an_erased_entry_is_refused(lake: Lakeside) -> None:
    versions_of(lake)
    apply(lake, erase(lake, "users/ann"))

    with pytest.raises(PathExpired):
        lake.copy("main", "users/ann", "users/copy")


def test_what_is_staged_goes_with_its_entry(lake: Lakeside) -> None:
    draft = lake.upload("users/ann")

    assert apply(lake, erase(lake, "users/ann")) is RunState.ENDED

    assert draft not in lake.addresses()
    with pytest.raises(PathNotFound):
        address_of(lake, "users/ann")


def test_what_was_written_since_the_plan_stays(lake: Lakeside) -> None:
    old = lake.upload("users/ann", b"old")
    plan = erase(lake, "users/ann")
    new = lake.upload("users/ann", b"new")

    apply(lake, plan)

    assert new in lake.addresses()
    assert address_of(lake, "users/ann") == new
    assert old not in lake.addresses()


def test_an_object_that_another_path_names_stays_unless_shared_ones_go_too(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())

    assert lake.collector.taken(erase(lake, "users/ann").run_id) == set()
    apply(lake, erase(lake, "users/ann", shared=True))

    assert shared not in lake.addresses()


def test_a_name_that_comes_after_the_plan_keeps_the_object(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    plan = erase(lake, "users/ann")
    lake.copy("main", "users/ann", "all/ann")
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())

    apply(lake, plan)

    assert shared in lake.addresses()


def test_what_is_staged_elsewhere_keeps_the_object_even_with_shared_ones(lake: Lakeside) -> None:
    shared = lake.upload("users/ann")
    lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.wait(lake.versions.cleanup.clean())

    apply(lake, erase(lake, "users/ann", shared=True))

    assert shared in lake.addresses()


def test_a_copy_during_the_run_copies_the_bytes(lake: Lakeside) -> None:
    old = lake.upload("users/ann")
    lake.commit()
    plan = erase(lake, "users/ann")
    lake.before["sweeping"] = lambda: lake.copy("main", "users/ann", "all/ann")

    apply(lake, plan)

    assert old not in lake.addresses()
    assert lake.content("all/ann") == b"data"


def test_what_is_held_stays(lake: Lakeside) -> None:
    found = versions_of(lake)
    hold(lake, "users/")

    plan = erase(lake, "users/ann")
    assert lake.collector.taken(plan.run_id) == set()
    apply(lake, plan)

    assert set(found) <= lake.addresses()


def test_a_hold_that_comes_after_the_plan_stops_the_erasure_before_anything_goes(lake: Lakeside) -> None:
    drafts = {name: lake.upload(name) for name in ("users/ann", "users/bob")}
    plan = erase(lake, *drafts)
    hold(lake, "users/ann")

    with pytest.raises(Conflict, match="legal holds changed"):
        apply(lake, plan)

    assert {name: address_of(lake, name) for name in drafts} == drafts


def deferred(lake: Lakeside, **metadata: str) -> str:
    """Return the address of an old `users/ann`, which a deferred run keeps and no commit has any more."""
    old = lake.upload("users/ann", metadata=metadata)
    lake.commit(age_days=20)
    lake.delete("users/ann")
    lake.commit(age_days=19)
    lake.upload("data/now", b"now")
    lake.commit(age_days=1)
    lake.rules(10)
    committed = lake.collector.plan(None, RunKind.COMMITTED)
    lake.collector.apply(None, committed.run_id, window="7d")
    assert old in lake.addresses()
    return old


def test_what_a_deferred_run_keeps_goes_too(lake: Lakeside) -> None:
    old = deferred(lake)

    apply(lake, erase(lake, "users/ann"))

    assert old not in lake.addresses()


def test_what_a_deferred_run_keeps_stays_where_metadata_selects_for_it_is_not_on_record(lake: Lakeside) -> None:
    innocent = deferred(lake, **{"class": "public"})

    apply(lake, erase(lake, globs=("users/",), metadata={"class": "pii"}))

    assert innocent in lake.addresses()


def test_entries_are_selected_by_digest_and_by_metadata(lake: Lakeside) -> None:
    found = versions_of(lake)
    digest = lake.wait(lake.versions.staging.get("main", b"users/ann")).checksum

    plan = erase(lake, digests=(digest,))

    assert lake.collector.taken(plan.run_id) == {found[1], address_of(lake, "users/bob")}
    assert lake.collector.taken(erase(lake, metadata={"class": "pii"}).run_id) == set()


def test_an_erasure_cannot_be_deferred(lake: Lakeside) -> None:
    versions_of(lake)

    with pytest.raises(BadWindow):
        lake.collector.apply(None, erase(lake, "users/ann").run_id, window="7d")


def test_an_erasure_of_nothing_is_refused(lake: Lakeside) -> None:
    with pytest.raises(InvalidSelection, match="nothing is selected"):
        erase(lake)
    with pytest.raises(InvalidRequest, match="says what it erases"):
        list(lake.collector.on(None).plan(PlanRequest(kinds=(RunKind.ERASURE,))))


def test_runs_of_all_kinds_erase_nothing(lake: Lakeside) -> None:
    versions_of(lake)
    lake.rules(1)

    assert RunKind.ERASURE not in [report.kind for report in lake.collector.run_each(None)]


def test_an_erasure_that_failed_goes_on(lake: Lakeside) -> None:
    found = versions_of(lake)
    plan = erase(lake, "users/ann")

    def die() -> None:
        raise Conflict("the power went")

    lake.before["ended"] = die
    with pytest.raises(Conflict, match="power"):
        apply(lake, plan)

    assert apply(lake, plan) is RunState.ENDED
    assert not set(found) & lake.addresses()
