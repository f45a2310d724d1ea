"""Patterns: of those that match a branch the most specific wins, and the order is total."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.gc.rules import BranchRule, InvalidPattern, Rules, check_pattern, matches, specificity


def _is_canonical(text: str) -> bool:
    try:
        check_pattern(text)
    except InvalidPattern:
        return False
    return True


PATTERNS = st.text("ab*?", min_size=1, max_size=5).filter(_is_canonical)
BRANCHES = st.text("abc", min_size=1, max_size=5)
ALL_TEXTS = ["".join(text) for length in range(6) for text in itertools.product("abc", repeat=length)]


def rules_of(patterns: list[str]) -> Rules:
    return Rules(
        default="1h",
        branches=tuple(BranchRule(pattern=pattern, period=f"{i}d") for i, pattern in enumerate(patterns, 1)),
    )


def winner(patterns: list[str], branch: str) -> str | None:
    rule = rules_of(patterns).rule_of(branch)
    return None if rule is None else rule.pattern


@pytest.mark.parametrize(
    ("patterns", "branch", "wins"),
    [
        (["*", "main"], "main", "main"),
        (["ma*", "*ain-branch"], "main-branch", "ma*"),
        (["feature-*", "f*", "*"], "feature-x", "feature-*"),
        (["f*", "f*-x"], "feature-x", "f*-x"),
        (["rel-*", "rel-?"], "rel-1", "rel-?"),
        (["?*", "*"], "x", "?*"),
        (["*a", "*x"], "bx", "*x"),
        (["a*c*", "a*b*"], "abc", "a*b*"),
        (["other"], "main", None),
    ],
)
def test_the_most_specific_pattern_wins(patterns: list[str], branch: str, wins: str | None) -> None:
    assert winner(patterns, branch) == wins


@given(patterns=st.lists(PATTERNS, unique=True, max_size=6), branch=BRANCHES, chance=st.randoms())
def test_the_order_in_which_rules_were_written_never_matters(
    patterns: list[str], branch: str, chance: random.Random
) -> None:
    shuffled = chance.sample(patterns, len(patterns))

    assert winner(shuffled, branch) == winner(patterns, branch)


@given(patterns=st.lists(PATTERNS, unique=True, max_size=6), branch=BRANCHES)
def test_the_winner_matches_and_is_before_all_others_that_match(patterns: list[str], branch: str) -> None:
    found = [pattern for pattern in patterns if matches(pattern, branch)]

    assert winner(patterns, branch) == min(found, key=specificity, default=None)


@given(patterns=st.lists(PATTERNS, unique=True, max_size=6), branch=BRANCHES)
def test_an_exact_name_wins_over_every_glob(patterns: list[str], branch: str) -> None:
    assert winner([*{*patterns, branch}], branch) == branch


@given(one=PATTERNS, other=PATTERNS)
def test_two_patterns_are_never_equally_specific(one: str, other: str) -> None:
    assert (specificity(one) == specificity(other)) == (one == other)


small = st.text("ab*?", min_size=1, max_size=3).filter(_is_canonical)


@given(part=small, whole=small)
def test_a_pattern_for_a_part_of_the_branches_of_another_wins_over_it(part: str, whole: str) -> None:
    """Texts of five characters tell patterns of three apart."""
    of_part = {text for text in ALL_TEXTS if matches(part, text)}
    of_whole = {text for text in ALL_TEXTS if matches(whole, text)}

    assert of_part != of_whole or part == whole, "one pattern has one spelling"
    assert not of_part < of_whole or specificity(part) < specificity(whole)


@given(pattern=PATTERNS, branch=BRANCHES)
def test_a_star_is_any_characters_and_a_question_mark_exactly_one(pattern: str, branch: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(character, character) for character in pattern)

    assert matches(pattern, branch) == (re.fullmatch(expression, branch) is not None)


def test_a_pattern_with_many_stars_takes_no_time_to_speak_of() -> None:
    assert not matches("a*" * 100 + "b", "a" * 255)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "without a name"),
        ("a b", "matches no branch"),
        ("feature/x", "matches no branch"),
        ("[ab]*", "matches no branch"),
        ("é*", "matches no branch"),
        ("a**", r"is spelled 'a\*'"),
        ("a*?", r"is spelled 'a\?\*'"),
        ("x" * 257, "257 characters"),
    ],
)
def test_what_is_no_pattern_is_refused_saying_why(text: str, words: str) -> None:
    with pytest.raises(InvalidPattern, match=words):
        check_pattern(text)


def test_the_same_pattern_is_found_by_its_value() -> None:
    rules: Any = rules_of(["main"])

    assert rules.rule_of("main") == BranchRule(pattern="main", period="1d")
