"""Which files of metadata go, told on small examples."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import CommitId, MetarangeId, RangeId, SublistId
from lakebed.gc.rules import (
    DAY_MS,
    CommitFacts,
    History,
    MetadataRule,
    RunFacts,
    Trees,
    WrittenFacts,
    named_files,
    old_runs,
    old_written,
    unnamed_files,
)

NOW = 1_000 * DAY_MS
RULE = MetadataRule()
searched = settings(deadline=None, max_examples=100)


def history(*commits: tuple[str, str, bool]) -> History:
    """(id, metarange, swept) of each commit."""
    facts = {
        CommitId(id_): CommitFacts(
            id=CommitId(id_), parents=(), created_ms=0, metarange_id=MetarangeId(tree), swept=swept
        )
        for id_, tree, swept in commits
    }
    return History(commits=facts, heads={}, tags={}, held=frozenset())


TREES = Trees(
    ranges={MetarangeId("m1"): [RangeId("r1"), RangeId("r2")], MetarangeId("m2"): [RangeId("r2")]}, addresses={}
)


def run(number: int, *, state: str = "ended", days_ago: float = 100, kind: str = "committed", **of: bool) -> RunFacts:
    return RunFacts(id=f"{number:03d}", kind=kind, state=state, touched_ms=NOW - int(days_ago * DAY_MS), **of)


def test_commits_that_were_not_swept_name_their_tree_and_its_ranges() -> None:
    assert named_files(history(("c1", "m1", True), ("c2", "m2", False)), TREES) == {"m2", "r2"}
    assert named_files(history(("c1", "m1", False), ("c2", "m2", True)), TREES) == {"m1", "r1", "r2"}


def test_a_wide_tree_keeps_its_sublists_too() -> None:
    trees = replace(TREES, sublists={MetarangeId("m2"): [SublistId("s2")]})

    assert named_files(history(("c1", "m1", False), ("c2", "m2", False)), trees) == {"m1", "m2", "s2", "r1", "r2"}
    assert named_files(history(("c1", "m1", False), ("c2", "m2", True)), trees) == {"m1", "r1", "r2"}


def test_a_tree_that_two_commits_have_goes_only_when_both_were_swept() -> None:
    assert named_files(history(("c1", "m2", True), ("c2", "m2", False)), TREES) == {"m2", "r2"}
    assert named_files(history(("c1", "m2", True), ("c2", "m2", True)), TREES) == set()


def test_a_commit_without_entries_names_no_file() -> None:
    assert named_files(history(("c1", "", False)), TREES) == set()


def test_what_nothing_names_goes_once_it_is_a_day_old() -> None:
    written = {"named": 0, "old": NOW - DAY_MS - 1, "young": NOW - DAY_MS}

    assert unnamed_files(written, {"named"}, rule=RULE, now_ms=NOW) == {"old"}


@searched
@given(st.dictionaries(st.integers(0, 20).map(str), st.integers(0, NOW)), st.sets(st.integers(0, 20).map(str)))
def test_nothing_that_is_named_goes_and_nothing_else_stays_but_for_its_age(
    written: dict[str, int], named: set[str]
) -> None:
    gone = unnamed_files(written, named, rule=RULE, now_ms=NOW)

    assert not gone & named
    assert all(written[id_] >= NOW - DAY_MS for id_ in written.keys() - named - gone)


def test_of_each_kind_the_newest_runs_stay_and_older_ones_go() -> None:
    rule = MetadataRule(runs_newest=2)
    runs = [run(number, kind=kind) for kind in ("committed", "uncommitted") for number in range(4)]

    assert old_runs(runs, rule=rule, now_ms=NOW) == {"000", "001"}


def test_a_run_stays_until_its_last_file_is_old() -> None:
    rule = MetadataRule(runs_newest=0)

    assert old_runs([run(1, days_ago=29), run(2, days_ago=31)], rule=rule, now_ms=NOW) == {"002"}


def test_a_run_that_somebody_may_work_on_stays_and_a_plan_that_was_never_applied_goes() -> None:
    states = ["marking", "planning", "expiring", "sweeping", "marked", "ended", "abandoned", ""]
    runs = [run(number, state=state) for number, state in enumerate(states)]

    gone = old_runs(runs, rule=MetadataRule(runs_newest=0), now_ms=NOW)

    assert {states[int(id_)] for id_ in gone} == {"marked", "ended", "abandoned", ""}


def test_what_the_next_run_goes_on_from_stays_however_many_are_newer() -> None:
    runs = [run(1, has_saved=True), run(2, has_saved=True), *(run(number) for number in range(3, 9))]

    assert old_runs(runs, rule=MetadataRule(runs_newest=1), now_ms=NOW) == {f"{n:03d}" for n in (1, 3, 4, 5, 6, 7)}


def test_a_marked_run_whose_deletes_began_stays_to_be_applied_again() -> None:
    runs = [run(1, state="marked", has_begun=True), run(2, state="marked"), run(3, state="ended", has_begun=True)]

    assert old_runs(runs, rule=MetadataRule(runs_newest=0), now_ms=NOW) == {"002", "003"}


def dump(number: int, *, days_ago: float, is_whole: bool = True, group: str = "refs") -> WrittenFacts:
    return WrittenFacts(group=group, id=f"{number:03d}", touched_ms=NOW - int(days_ago * DAY_MS), is_whole=is_whole)


def test_a_dump_goes_once_it_is_30_days_old_and_a_newer_one_is_whole() -> None:
    dumps = [dump(1, days_ago=40), dump(2, days_ago=29), dump(3, days_ago=5)]

    assert old_written(dumps, rule=RULE, now_ms=NOW) == {("refs", "001")}


def test_the_newest_whole_dump_of_a_group_stays_however_old() -> None:
    dumps = [dump(1, days_ago=400), dump(2, days_ago=300), dump(3, days_ago=200, is_whole=False)]
    others = [dump(4, days_ago=100, group="other")]

    assert old_written([*dumps, *others], rule=RULE, now_ms=NOW) == {("refs", "001"), ("refs", "003")}


def test_old_symlinks_go_with_their_branch() -> None:
    gone = WrittenFacts(group="symlinks/a", id="001", touched_ms=0, is_whole=True, is_wanted=False)
    kept = WrittenFacts(group="symlinks/b", id="001", touched_ms=0, is_whole=True)

    assert old_written([gone, kept], rule=RULE, now_ms=NOW) == {("symlinks/a", "001")}
