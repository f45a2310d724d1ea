"""The clean run of docs/design/0001-uncommitted-gc.md as a plain function."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId, MetarangeId, RangeId, format_address, slice_name
from lakebed.gc.rules import (
    CommitFacts,
    EmptyLiveSet,
    History,
    Namespace,
    Trees,
    check_live,
    clean_run,
    committed_addresses,
    slice_of,
)

NAMESPACE = Namespace(uri="mem://ns", closed={slice_name(7)})


def own(number: int, slice_: int = 7) -> str:
    return format_address(slice_, number)


def test_what_neither_a_commit_nor_staging_names_is_garbage() -> None:
    run = clean_run([own(1), own(2), own(3)], committed=[own(1)], uncommitted=[own(2)], namespace=NAMESPACE)

    assert run.garbage == {own(3)}


def test_slices_that_are_not_closed_are_skipped() -> None:
    run = clean_run([own(1), own(1, slice_=8)], committed=(), uncommitted=(), namespace=NAMESPACE)

    assert run.garbage == {own(1)}
    assert run.skipped == {own(1, slice_=8)}


def test_what_is_younger_than_the_least_age_stays() -> None:
    uploaded = {own(1): 99, own(2): 100, own(3): 101, own(4): 101}

    run = clean_run(
        uploaded, committed=[own(4)], uncommitted=(), namespace=NAMESPACE, young_since_ms=100, uploaded_ms=uploaded
    )

    assert run.garbage == {own(1)}
    assert run.young == {own(2), own(3)}


def test_an_object_whose_age_is_not_known_stops_a_run_that_asks_for_it() -> None:
    with pytest.raises(KeyError):
        clean_run([own(1)], committed=(), uncommitted=(), namespace=NAMESPACE, young_since_ms=100)


def test_special_paths_are_filtered() -> None:
    run = clean_run(["_lakefs/dummy", "readme", own(1)], committed=(), uncommitted=(), namespace=NAMESPACE)

    assert run.garbage == {own(1)}
    assert not run.unknown_files


@pytest.mark.parametrize(
    "key",
    [
        "data/flat",
        f"data/{slice_name(7)}/1",
        f"data/{slice_name(7)}/00000001.bak",
        f"data/{slice_name(7)}/sub/00000001",
        f"data/{'0' * 12}V/00000001",
        "data/",
    ],
)
def test_what_is_no_address_of_ours_is_an_unknown_file_and_stays(key: str) -> None:
    run = clean_run([key], committed=(), uncommitted=(), namespace=NAMESPACE)

    assert not run.garbage
    assert run.unknown_files == {key}


def test_an_absolute_address_inside_the_namespace_keeps_its_object() -> None:
    run = clean_run([own(1), own(2)], committed=[f"mem://ns/{own(1)}"], uncommitted=[], namespace=NAMESPACE)

    assert run.garbage == {own(2)}


def test_an_address_in_another_namespace_keeps_nothing() -> None:
    run = clean_run([own(1)], committed=[f"mem://ns2/{own(1)}"], uncommitted=[], namespace=NAMESPACE)

    assert run.garbage == {own(1)}


def commit(name: str, *, swept: bool = False) -> CommitFacts:
    return CommitFacts(id=CommitId(name), created_ms=0, metarange_id=MetarangeId(f"m-{name}"), swept=swept)


TREES = Trees(
    ranges={MetarangeId("m-a"): (RangeId("ra"),), MetarangeId("m-b"): (RangeId("rb"),)},
    addresses={RangeId("ra"): [own(1)], RangeId("rb"): [own(2)]},
)


def test_unreachable_commits_keep_their_objects_and_swept_ones_do_not() -> None:
    history = History(commits={CommitId(c.id): c for c in (commit("a"), commit("b", swept=True))}, heads={})

    assert committed_addresses(history, TREES) == {own(1)}


def test_commits_with_entries_and_no_address_read_stop_the_run() -> None:
    with pytest.raises(EmptyLiveSet):
        check_live(History(commits={CommitId("a"): commit("a")}, heads={}), set())


def test_a_repository_without_entries_may_be_empty() -> None:
    check_live(History(commits={CommitId("a"): CommitFacts(id=CommitId("a"), created_ms=0)}, heads={}), set())


def test_a_slice_is_known_by_its_name() -> None:
    assert slice_of(own(1)) == slice_name(7)
    assert slice_of("data/flat") is None
    assert slice_of("_lakefs/x") is None
