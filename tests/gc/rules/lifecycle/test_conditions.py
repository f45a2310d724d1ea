"""The `when` of a rule: another spelling of `metadata` and `min_size`, and refused with the character."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakebed.gc.rules.lifecycle import InvalidPolicy, Policy, check_policy

texts = st.text(st.characters(codec="utf-8"), max_size=8)
metadata = st.dictionaries(texts | st.sampled_from(["class", "data-owner"]), texts, max_size=3)
sizes = st.integers(0, 1 << 53)
spaces = st.sampled_from(["", " ", "  ", "\t", "\n "])


def policy(**fields: Any) -> Policy:
    rule = {"prefix": "users/", "period": "6mo", **fields}
    return check_policy(json.dumps({"rules": {"personal": rule}}).encode())


def single_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def test_the_condition_of_the_guide_is_metadata_and_a_least_size() -> None:
    found = policy(when="metadata.class == \"pii\" and metadata['data owner'] == 'ann' and size >= 1048576")

    assert found == policy(metadata={"class": "pii", "data owner": "ann"}, min_size=1 << 20)
    text = 'metadata.class == "pii" and metadata["data owner"] == "ann" and size >= 1048576'
    assert found.rules[0].text() == f"personal: users/ 6mo when {text}"


@given(metadata, sizes, spaces, st.sampled_from([json.dumps, single_quoted]), st.sampled_from(["and", "&&"]))
@example({"a": 'x"y\\'}, 0, "", json.dumps, "and")
def test_a_condition_means_what_the_fields_mean(
    wanted: dict[str, str], size: int, space: str, quoted: Any, joined: str
) -> None:
    conditions = [f"metadata[{space}{quoted(k)}{space}]{space}=={space}{quoted(v)}" for k, v in wanted.items()]
    conditions += [f"size{space}>={space}{size}"] if size or not wanted else []

    assert policy(when=f"{space}{f' {joined} '.join(conditions)}{space}") == policy(metadata=wanted, min_size=size)


@given(metadata, sizes)
def test_the_text_of_a_rule_is_printable_and_reads_back(wanted: dict[str, str], size: int) -> None:
    found = policy(metadata=wanted, min_size=size)

    _, _, condition = found.rules[0].text().partition(" when ")

    assert condition.isprintable()
    assert (policy(when=condition) if condition else policy()) == found


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("", "at character 1: expected metadata.NAME"),
        ("class == 'pii'", "at character 1: expected metadata.NAME"),
        ("metadata.class = 'pii'", "at character 16: expected == after the name"),
        ("metadata.class != 'pii'", "at character 16: expected == after the name"),
        ("metadata.class == pii", "at character 19: expected a text in quotes"),
        ("metadata.class == 'pii", "at character 19: expected a text in quotes"),
        ('metadata.class == "\\x"', "at character 19: the text in quotes has an escape"),
        ('metadata["\\x"] == "a"', "at character 10: the text in quotes has an escape"),
        (r"metadata.class == 'a\nb'", "at character 21: in single quotes a backslash stands before a quote"),
        ("metadata.class == 'a\\\nb'", "at character 21: in single quotes a backslash stands before a quote"),
        (r"metadata['\x'] == 'a'", "at character 11: in single quotes a backslash stands before a quote"),
        ("metadata.a == 'x' or metadata.b == 'y'", "at character 19: expected and, or the end"),
        ("metadata.a == 'x' and", "at character 22: expected metadata.NAME"),
        ("metadata.a == 'x' and metadata['a'] == 'y'", "at character 23: metadata.a is given twice"),
        ("size > 5", "at character 6: expected >= after size"),
        ("size >= -1", "at character 9: expected a number of bytes"),
        ("size >= 5MB", "at character 9: expected a number of bytes"),
        ("size >= 5 and size >= 6", "at character 15: size is given twice"),
        (f"size >= {1 << 54}", "size is a whole number, 0 to 9,007,199,254,740,992"),
        ("metadata.a == '\ud800'", "a text is not valid Unicode"),
        (5, "5 is not text"),
        ({"class": "pii"}, "is not text, such as metadata.class == 'pii'"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(when: object, words: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        policy(when=when)

    problems: Any = refused.value.facts["problems"]
    assert [(one["rule"], one["place"]) for one in problems] == [("personal", "rules.personal.when")]
    assert words in problems[0]["message"]


@pytest.mark.parametrize("other", [{"metadata": {"class": "pii"}}, {"min_size": 5}])
def test_a_condition_beside_the_fields_that_it_stands_for_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicy, match="when, or metadata and min_size, not both"):
        policy(when="size >= 5", **other)


def test_metadata_that_are_no_valid_text_are_refused() -> None:
    with pytest.raises(InvalidPolicy, match=r"metadata: a text is not valid Unicode"):
        policy(metadata={"a": "\ud800"})
