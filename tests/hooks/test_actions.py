"""Action files: what they may say, and when their hooks run."""

from __future__ import annotations

import pytest

from lakebed.catalog import Event, EventType
from lakebed.hooks import InvalidAction, parse
from lakebed.hooks.actions import NODES_MAX, duration_s, should_run
from lakebed.hooks.options import Secrets

GOOD = b"""
name: checks
on:
  pre-commit:
    branches: [main, "release-*"]
  post-merge:
hooks:
  - {id: one, type: webhook, properties: {url: "https://a.example", timeout: 1m30s}}
"""

AT_MAIN = Event(type=EventType.PRE_COMMIT, source_ref="main", branch="main")


def test_an_action_is_for_the_events_and_branches_that_it_names() -> None:
    action = parse("_lakefs_actions/a.yaml", GOOD)

    def is_for(kind: EventType, branch: str) -> bool:
        return bool(action.hooks_for(Event(type=kind, source_ref=branch, branch=branch)))

    assert is_for(EventType.PRE_COMMIT, "main")
    assert is_for(EventType.PRE_COMMIT, "release-1")
    assert not is_for(EventType.PRE_COMMIT, "dev")
    assert is_for(EventType.POST_MERGE, "dev")
    assert not is_for(EventType.PRE_MERGE, "main")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("on:", "when:", "names no event"),
        ("hooks:", "others:", "`hooks` is not a list"),
        ("type: webhook", "type: mail", "the type 'mail' is not known"),
        ("id: one", 'id: "a b"', "the hook id"),
        ('url: "https://a.example"', "uri: x", "the property url is missing"),
        ("timeout: 1m30s", "timeout: soon", "not a duration"),
        ("{id: one,", '{id: one, if: "maybe()",', "`if` is one of"),
        ("name: checks", "- name", "no YAML"),
        ("branches: [main", "branches: [1", "`branches` is not text"),
        ('branches: [main, "release-*"]', "branches: main", "`branches` of `pre-commit` is not a list"),
        ('branches: [main, "release-*"]', "tags: 5", "`tags` of `pre-commit` is not a list"),
        ('branches: [main, "release-*"]', "branches: {}", "`branches` of `pre-commit` is not a list"),
        ("type: webhook", "type: []", "the type [] is not known"),
        ("timeout: 1m30s", "since: 2001-99-99", "no YAML"),
        ("timeout: 1m30s", "n: 0b_", "no YAML"),
        ("timeout: 1m30s", "n: !!bool x", "no YAML"),
        ("timeout: 1m30s", "n: !!timestamp x", "no YAML"),
        ("timeout: 1m30s", "timeout: 0x" + "f" * 5000, "no YAML"),
        ("name: checks", r'name: "\ud800"', "no YAML"),
        ("timeout: 1m30s", "a: &a [x], b: *a", "aliases are not taken"),
        ("timeout: 1m30s", "a: [" + "[]," * NODES_MAX + "]", "more than 10000 values"),
        ("timeout: 1m30s", "a: " + "[" * 1000 + "]" * 1000, "deeper than 50"),
    ],
)
def test_a_file_that_does_not_follow_the_schema_says_what_is_wrong(old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidAction, match="action file _lakefs_actions/a") as caught:
        parse("_lakefs_actions/a.yaml", GOOD.replace(old.encode(), new.encode())).hooks_for(AT_MAIN)

    assert words in str(caught.value)


MISTAKES_BELOW = [
    ("pre-commit:", "pre-push:"),
    ("hooks:", "others:"),
    ("type: webhook", "type: databricks"),
    ("id: one", 'id: "a b"'),
    ("timeout: 1m30s", "timeout: soon"),
    ('branches: [main, "release-*"]', "branches: [dev]"),
    ("timeout: 1m30s", "timeout: 0x" + "f" * 5000),
]


@pytest.mark.parametrize(("old", "new"), MISTAKES_BELOW)
def test_a_mistake_in_what_is_for_another_event_or_branch_refuses_nothing(old: str, new: str) -> None:
    action = parse("_lakefs_actions/a.yaml", GOOD.replace(old.encode(), new.encode()))

    for at in (
        Event(type=EventType.PRE_MERGE, source_ref="main", branch="main"),
        Event(type=EventType.PRE_COMMIT, source_ref="other", branch="other"),
    ):
        assert action.hooks_for(at) == ()


def test_an_event_that_is_not_known_leaves_the_others_of_its_file() -> None:
    action = parse("_lakefs_actions/a.yaml", GOOD.replace(b"post-merge:", b"pre-lunch: 5"))

    assert [hook.id for hook in action.hooks_for(AT_MAIN)] == ["one"]


def test_an_airflow_hook_names_its_server_its_dag_and_a_user() -> None:
    text = b"{on: {pre-commit: }, hooks: [{id: a, type: airflow, properties: {url: u, dag_id: d, username: n}}]}"

    with pytest.raises(InvalidAction, match="the property password is missing"):
        parse("_lakefs_actions/a.yaml", text).hooks_for(AT_MAIN)


@pytest.mark.parametrize(("text", "seconds"), [("1m30s", 90), ("250ms", 0.25), ("1h", 3600), (5, 5), ("1.5s", 1.5)])
def test_durations_are_read_as_action_files_write_them(text: object, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("condition", "has_failed", "runs"),
    [
        ("success()", False, True),
        ("success()", True, False),
        ("failure()", False, False),
        ("failure()", True, True),
        ("always()", True, True),
    ],
)
def test_a_condition_looks_at_the_hooks_before_it(condition: str, has_failed: bool, runs: bool) -> None:
    assert should_run(condition, has_failed=has_failed) is runs


def test_secrets_are_filled_in_everywhere_and_hidden_again() -> None:
    secrets = Secrets({"LAKEBED_ACTION_KEY": "abc", "LAKEBED_ACTION_LONG": "abcdef"})

    filled = secrets.fill({"a": ["{{ ENV.LAKEBED_ACTION_KEY }}"], "b": {"c": "x{{ENV.LAKEBED_ACTION_LONG}}"}, "d": 1})

    assert filled == {"a": ["abc"], "b": {"c": "xabcdef"}, "d": 1}
    assert secrets.hide("abcdef abc") == "*** ***"
