"""Until when an object stays: the same verdict as the specification's, at every instant."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import CommitId
from lakebed.gc.rules import (
    DAY_MS,
    Ancestry,
    BranchRule,
    CommitFacts,
    History,
    KeepLast,
    Rules,
    StayKind,
    goes_ms,
    kept_commits,
    parse_duration,
    stays_of,
)
from tests.gc.rules.test_active import NOW, RULES, histories


def ancestry(history: History) -> Ancestry:
    ids = list(history.commits)
    rows = {id_: row for row, id_ in enumerate(ids)}
    commits = history.commits.values()
    return Ancestry(
        ids=ids,
        first_parent=[rows[commit.parents[0]] if commit.parents else -1 for commit in commits],
        created_ms=[commit.created_ms for commit in commits],
        heads={name: rows[head] for name, head in history.heads.items()},
        tags={name: rows[commit] for name, commit in history.tags.items()},
        held={str(number): rows[commit] for number, commit in enumerate(sorted(history.held))},
    )


def line(*ages_days: float) -> History:
    """Commits a, b, c, … of these ages, one behind the other; `main` is at the last."""
    names = [CommitId(chr(ord("a") + number)) for number in range(len(ages_days))]
    commits = {
        name: CommitFacts(id=name, parents=tuple(names[number - 1 : number]), created_ms=NOW - int(days * DAY_MS))
        for number, (name, days) in enumerate(zip(names, ages_days, strict=True))
    }
    return History(commits=commits, heads={"main": names[-1]})


@settings(max_examples=300, deadline=None)
@given(histories(), RULES, st.data())
def test_until_the_date_some_commit_that_names_the_object_is_kept_and_then_none(
    history: History, rules: Rules, data: st.DataObject
) -> None:
    naming = data.draw(st.sets(st.integers(0, len(history.commits) - 1)))
    names = {list(history.commits)[row] for row in naming}

    stays = stays_of(ancestry(history), naming, rules, now_ms=NOW)
    goes = goes_ms(stays, now_ms=NOW)

    def is_kept(now_ms: int) -> bool:
        return bool(names & kept_commits(history, rules, now_ms=now_ms))

    end = NOW + 10_000 * DAY_MS if goes is None else goes
    assert is_kept(NOW) == any(stay.keeps_at(NOW) for stay in stays)
    assert goes is None or not is_kept(goes)
    for now_ms in {NOW, (NOW + end) // 2, end - 1, data.draw(st.integers(NOW, max(NOW, end - 1)))}:
        assert is_kept(now_ms) or not NOW <= now_ms < end


@settings(max_examples=300)
@given(
    st.integers(10_000 * DAY_MS, 30_000 * DAY_MS),
    st.integers(-40 * DAY_MS, 80 * DAY_MS),
    st.sampled_from(["1h", "3d", "1mo", "2mo", "12mo"]),
    st.data(),
)
def test_an_event_is_within_a_period_until_it_is_over_and_not_then(
    event_ms: int, later_ms: int, period: str, data: st.DataObject
) -> None:
    duration, from_ms = parse_duration(period), event_ms + later_ms

    over = duration.over_ms(event_ms, from_ms)

    assert over is not None
    assert duration.before_ms(over) > event_ms
    if over > from_ms:
        for instant in (over - 1, data.draw(st.integers(from_ms, over - 1))):
            assert duration.before_ms(instant) <= event_ms


def test_an_object_that_was_replaced_stays_for_the_period_since_it_was_replaced() -> None:
    history = line(30, 5, 1)

    (stay,) = stays_of(ancestry(history), {0}, Rules(default="7d"), now_ms=NOW)

    assert (stay.kind, stay.name, stay.rule, stay.commit, stay.counted_by) == (
        "branch",
        "main",
        "default: 7d",
        "a",
        "b",
    )
    assert stay.until_ms == NOW + 2 * DAY_MS + 1


def test_what_the_head_has_stays_while_it_is_the_head() -> None:
    stays = stays_of(ancestry(line(30, 20)), {0, 1}, Rules(default="1d"), now_ms=NOW)

    assert [(stay.kind, stay.until_ms) for stay in stays] == [(StayKind.HEAD, None)]
    assert goes_ms(stays, now_ms=NOW) is None


def test_the_last_commits_of_a_branch_and_tags_keep_an_object_without_end() -> None:
    history = line(30, 20, 10)
    tagged = History(commits=history.commits, heads=history.heads, tags={"v1": CommitId("a")})
    pinned = Rules(default="1d", keep_last=(KeepLast(pattern="m*", commits=3),))

    by_branch, by_tag = stays_of(ancestry(tagged), {0}, pinned, now_ms=NOW)

    assert (by_branch.kind, by_branch.rule, by_branch.until_ms) == ("keep_last", "m*: last 3", None)
    assert (by_tag.kind, by_tag.name, by_tag.until_ms) == ("tag", "v1", None)


def test_a_tag_keeps_nothing_where_the_rules_say_so() -> None:
    history = line(30, 20)
    tagged = History(commits=history.commits, heads=history.heads, tags={"v1": CommitId("a")})

    stays = stays_of(ancestry(tagged), {0}, Rules(default="1d", tags_pin=False), now_ms=NOW)

    assert goes_ms(stays, now_ms=NOW) == NOW
    assert [stay.kind for stay in stays] == [StayKind.BRANCH]


def test_of_several_branches_the_one_that_keeps_it_longest_counts() -> None:
    history = line(30, 2)
    both = History(commits=history.commits, heads={"main": CommitId("b"), "dev": CommitId("b")})
    rules = Rules(default="3d", branches=(BranchRule(pattern="dev", period="5d"),))

    stays = stays_of(ancestry(both), {0}, rules, now_ms=NOW)

    assert {stay.name: stay.until_ms for stay in stays} == {"main": NOW + DAY_MS + 1, "dev": NOW + 3 * DAY_MS + 1}
    assert goes_ms(stays, now_ms=NOW) == NOW + 3 * DAY_MS + 1


def test_a_commit_on_no_branch_goes_after_the_default_from_its_own_date() -> None:
    history = line(9, 4, 1)
    deleted = History(commits=history.commits, heads={})

    (stay,) = stays_of(ancestry(deleted), {2}, Rules(default="7d"), now_ms=NOW)

    assert (stay.kind, stay.rule, stay.until_ms) == ("dangling", "default: 7d", NOW + 6 * DAY_MS + 1)


def test_without_rules_there_is_no_end() -> None:
    stays = stays_of(ancestry(line(400, 300)), {0}, None, now_ms=NOW)

    assert goes_ms(stays, now_ms=NOW) is None
    assert [stay.until_ms for stay in stays] == [None]
