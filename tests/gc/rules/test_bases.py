"""The trees that merges need: found in one walk, and never fewer than pair by pair."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.gc.rules import merge_bases


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    """Parents and generations by index, and the commits that refs name."""
    parents: list[list[int]] = [[]]
    size = draw(st.integers(1, 25))
    parents += [sorted(draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=2))) for index in range(1, size)]
    generations: list[int] = []
    for those in parents:
        generations.append(1 + max((generations[parent] for parent in those), default=0))
    named = draw(st.lists(st.integers(0, len(parents) - 1), max_size=6))
    return parents, generations, named


def ancestors(parents: list[list[int]], index: int) -> set[int]:
    found, waiting = {index}, [index]
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


@given(histories())
@settings(max_examples=500, deadline=None)
def test_the_base_of_every_two_refs_is_among_them(history: tuple[list[list[int]], list[int], list[int]]) -> None:
    parents, generations, named = history
    found = merge_bases(parents, generations, named)

    for one, other in combinations(sorted({*named}), 2):
        common = ancestors(parents, one) & ancestors(parents, other)
        highest = max(generations[index] for index in common)
        assert {index for index in common if generations[index] == highest} <= found


@given(histories())
@settings(max_examples=300, deadline=None)
def test_what_is_found_is_a_common_ancestor_of_two_refs(history: tuple[list[list[int]], list[int], list[int]]) -> None:
    parents, generations, named = history

    for index in merge_bases(parents, generations, named):
        assert sum(index in ancestors(parents, ref) for ref in {*named}) >= 2


def test_a_line_with_two_branches_has_one_base() -> None:
    parents = [[], [0], [1], [2], [1], [4]]

    assert merge_bases(parents, [1, 2, 3, 4, 3, 4], [3, 5]) == {1}


def test_forks_of_branches_that_are_gone_are_left_out() -> None:
    # 1 forks into 2 and 3, which 4 merges; only the head of main is named.
    parents = [[], [0], [1], [1], [2, 3]]

    assert merge_bases(parents, [1, 2, 3, 3, 4], [4]) == set()
