"""Conditions of statements, against an evaluator that is written down naively; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.auth import NO_REF, UNKNOWN_REF, Circumstances, InvalidCondition, InvalidPolicy, Permissions, Ref
from lakebed.auth.permissions.actions import REFS_OF
from lakebed.auth.permissions.conditions import Condition, condition_map, conditions_of
from lakebed.auth.permissions.statements import EVERYTHING, Statement, check_statements
from lakebed.auth.records import PolicyRecord, decode, encode
from lakebed.operations.table import OPERATIONS

LAKE = "arn:lakefs:fs:::repository/lake"
RESOURCES = (LAKE, LAKE + "/object/a", LAKE + "/object/b/c")
ACTIONS = ("fs:ReadObject", "fs:WriteObject", "auth:ReadUser")
NOW = "2027-01-15T12:00:00+00:00"
NOW_MS = int(datetime.fromisoformat(NOW).timestamp() * 1000)

NAMES = ["main", "sandbox-1", "sandbox-*", "*", "sandbox-${user}", "v1"]
CONDITIONS = st.one_of(
    st.builds(
        Condition,
        operator=st.sampled_from(["StringLike", "StringNotLike"]),
        key=st.sampled_from(["branch", "tag", "ref"]),
        values=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(
        Condition,
        operator=st.sampled_from(["StringEquals", "StringNotEquals"]),
        key=st.sampled_from(["branch", "tag", "ref"]),
        values=st.lists(st.sampled_from(["main", "sandbox-1", "v1"]), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(
        Condition,
        operator=st.sampled_from(["IpAddress", "NotIpAddress"]),
        key=st.just("SourceIp"),
        values=st.lists(st.sampled_from(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]), min_size=1, max_size=2).map(
            tuple
        ),
    ),
    st.builds(
        Condition,
        operator=st.sampled_from(["DateLessThan", "DateGreaterThan"]),
        key=st.just("CurrentTime"),
        values=st.sampled_from([("2027-01-15",), ("2027-01-16T00:00:00Z",), ("2026-01-01", "2028-01-01")]),
    ),
)
STATEMENTS = st.builds(
    Statement,
    effect=st.sampled_from(["allow", "deny"]),
    actions=st.sampled_from([("*",), ("fs:*",), ("fs:Read*", "auth:*")]),
    resource=st.sampled_from(["*", LAKE + "*", LAKE + "/object/*", LAKE + "/object/a"]),
    conditions=st.lists(CONDITIONS, max_size=2, unique_by=lambda one: (one.operator, one.key)).map(tuple),
)
REFS = (NO_REF, UNKNOWN_REF, Ref.of_branch("main"), Ref.of_branch("sandbox-1"), Ref.of_tag("v1"), Ref(ref="f00d"))
SEEN = (
    Circumstances(),
    Circumstances(address="10.1.2.3", now_ms=lambda: NOW_MS),
    Circumstances(address="::ffff:192.0.2.7", now_ms=lambda: NOW_MS),
    Circumstances(address="2001:db8::5%eth0", now_ms=lambda: NOW_MS),
    Circumstances(address="unix:", now_ms=lambda: NOW_MS),
)


def naive_condition(condition: Condition, ref: Ref, seen: Circumstances) -> bool | None:
    """What the rules in conditions.py say, word by word."""
    is_negated = "Not" in condition.operator
    if condition.key == "SourceIp":
        try:
            address: Any = ip_address(seen.address.split("%")[0])
        except ValueError:
            return None
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in ip_network(value) for value in condition.values) != is_negated
    if condition.key == "CurrentTime":
        if seen.now_ms is None:
            return None
        at = [datetime.fromisoformat(value if "T" in value else value + "T00:00:00Z") for value in condition.values]
        now = datetime.fromisoformat(NOW)
        return any(now < one if condition.operator == "DateLessThan" else now > one for one in at)
    if not ref.is_known:
        return None
    value = {"branch": ref.branch, "tag": ref.tag, "ref": ref.ref}[condition.key]
    matches = [value is not None and fnmatchcase(value, one.replace("${user}", "1")) for one in condition.values]
    return any(matches) != is_negated


def naive(statements: Sequence[Statement], action: str, resource: str, ref: Ref, seen: Circumstances) -> bool:
    is_allowed = False
    for one in statements:
        if not any(fnmatchcase(action, each) for each in one.actions) or not fnmatchcase(resource, one.resource):
            continue
        answers = [naive_condition(each, ref, seen) for each in one.conditions]
        is_certain, is_possible = all(answer is True for answer in answers), False not in answers
        if one.effect == "deny" and is_possible:
            return False
        is_allowed = is_allowed or (one.effect == "allow" and is_certain)
    return is_allowed


@given(
    statements=st.lists(STATEMENTS, max_size=5),
    action=st.sampled_from(ACTIONS),
    asked=st.lists(
        st.tuples(st.sampled_from(SEEN), st.sampled_from(REFS), st.sampled_from(RESOURCES)), min_size=4, max_size=8
    ),
)
def test_the_answer_is_that_of_the_naive_evaluator_for_each_request_of_one_user(
    statements: list[Statement], action: str, asked: list[tuple[Circumstances, Ref, str]]
) -> None:
    """One user's permissions answer all requests: what was remembered of one must not decide the next."""
    user = Permissions("1", statements)
    under = {seen: user.under(seen) for seen in SEEN}

    for seen, ref, resource in asked:
        here = under[seen]
        expected = naive(statements, action, resource, ref, seen)
        assert here.allows(action, resource, ref) is expected
        assert expected or not here.allows_everywhere(action)
        assert not expected or here.allows_below(action, LAKE)
        deciding = here.deciding(action, resource, ref)
        assert expected == (deciding is not None and deciding.effect == "allow")


def test_what_applies_to_a_ref_is_kept_unless_the_time_counts() -> None:
    at_ms, main = [0], Ref.of_branch("main")
    seen = Circumstances(address="10.1.2.3", now_ms=lambda: at_ms[0])
    on_main = {"StringEquals": {"branch": ["main"]}, "IpAddress": {"SourceIp": ["10.0.0.0/8"]}}
    until = {"DateLessThan": {"CurrentTime": ["1970-01-02"]}}
    may, may_until = (
        Permissions(
            "ann",
            [Statement(effect="allow", actions=("*",), resource="*", conditions=conditions_of(conditions))],
        ).under(seen)
        for conditions in (on_main, on_main | until)
    )

    assert may.allows("fs:ReadObject", LAKE, main)
    assert not may.allows("fs:ReadObject", LAKE, Ref.of_branch("secret"))
    assert not may.under(Circumstances(address="192.0.2.7")).allows("fs:ReadObject", LAKE, main)
    assert may_until.allows("fs:ReadObject", LAKE, main)
    at_ms[0] = 2 * 86_400_000
    assert not may_until.allows("fs:ReadObject", LAKE, main)


def test_a_caller_who_says_nothing_of_the_ref_is_in_doubt() -> None:
    only_main = Statement(
        effect="allow", actions=("*",), resource="*", conditions=conditions_of({"StringEquals": {"branch": ["main"]}})
    )
    not_secret = Statement(
        effect="deny", actions=("*",), resource="*", conditions=conditions_of({"StringEquals": {"branch": ["secret"]}})
    )
    everything = Statement(effect="allow", actions=("*",), resource="*")

    for statements in ([only_main], [everything, not_secret]):
        user = Permissions("ann", statements)
        assert not user.allows("fs:ReadObject", LAKE)
        assert user.allows("fs:ReadObject", LAKE, Ref.of_branch("main"))
        assert not user.allows("fs:ReadObject", LAKE, Ref.of_branch("secret"))
        assert not user.allows_everywhere("fs:ReadObject")


def test_an_administrator_stays_one_whatever_the_condition() -> None:
    away = conditions_of({"NotIpAddress": {"SourceIp": ["10.0.0.0/8"]}})
    statements = [
        Statement(effect="allow", actions=(EVERYTHING,), resource=EVERYTHING),
        Statement(effect="deny", actions=("*",), resource="*", conditions=away),
    ]
    admin = Permissions("ann", statements, is_administrator=True).under(Circumstances(address="192.0.2.1"))

    assert admin.allows("auth:DeletePolicy", "arn:lakefs:auth:::policy/x", NO_REF)
    assert not admin.allows("fs:ReadObject", LAKE, NO_REF)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"StringEqualsIgnoreCase": {"branch": ["main"]}}, "no operator"),
        ({"StringLike": {"Branch": ["main"]}}, "no key"),
        ({"StringLike": {"SourceIp": ["10.*"]}}, "no key"),
        ({"IpAddress": {"branch": ["10.0.0.0/8"]}}, "no key"),
        ({"StringLike": {}}, "names no key"),
        ({"StringLike": {"branch": []}}, "no value"),
        ({"StringLike": {"branch": [""]}}, "it has nothing"),
        ({"StringEquals": {"branch": ["feature-*"]}}, "no wildcard"),
        ({"StringLike": {"branch": ["feature?"]}}, "'?'"),
        ({"StringLike": {"branch": ["feature/*"]}}, "'/'"),
        ({"StringLike": {"branch": ["${aws:username}"]}}, "name of no branch"),
        ({"StringLike": {"tag": ["v1~1"]}}, "'~'"),
        ({"IpAddress": {"SourceIp": ["10.0.0.1/8"]}}, "host bits"),
        ({"IpAddress": {"SourceIp": ["office"]}}, "neither an address"),
        ({"IpAddress": {"SourceIp": ["::ffff:10.0.0.0/104"]}}, "as IPv4"),
        ({"DateLessThan": {"CurrentTime": ["2027-01-15T12:00:00"]}}, "not a time"),
        ({"DateLessThan": {"CurrentTime": ["2027-02-30"]}}, "not a time"),
        ({"DateLessThan": {"CurrentTime": ["soon"]}}, "not a time"),
    ],
)
def test_a_condition_that_could_not_be_held_exactly_is_refused(condition: Any, words: str) -> None:
    with pytest.raises((InvalidPolicy, InvalidCondition), match=words.replace("?", r"\?")):
        check_statements(
            [Statement(effect="deny", actions=("fs:*",), resource="*", conditions=conditions_of(condition))]
        )


@pytest.mark.parametrize(
    ("action", "condition"),
    [
        ("gc:Apply", {"StringEquals": {"branch": ["main"]}}),
        ("fs:DeleteTag", {"StringLike": {"branch": ["main"]}}),
        ("fs:WriteObject", {"StringEquals": {"tag": ["v1"]}}),
    ],
)
def test_a_denial_by_a_key_that_no_request_has_is_refused(action: str, condition: Any) -> None:
    denied = Statement(effect="deny", actions=(action,), resource="*", conditions=conditions_of(condition))

    with pytest.raises(InvalidPolicy, match="denies nothing"):
        check_statements([denied])
    check_statements([Statement(effect="deny", actions=("*",), resource="*", conditions=denied.conditions)])


def test_the_actions_that_name_refs_are_those_of_the_table() -> None:
    # An expression is held as `fs:ReadTag` only where it is known to name a tag.
    keys = {"branch": {"branch", "ref"}, "tag": {"tag", "ref"}, "ref": {"branch", "tag", "ref"}}
    found: dict[str, set[str]] = {}
    for operation in OPERATIONS:
        for one in (*(operation.permissions or ()), *operation.asked_later):
            for at in one.at:
                if at.name:
                    is_tag = one.action == "fs:ReadTag"
                    found.setdefault(one.action, set()).update(keys["tag" if is_tag else at.kind])

    assert found == {action: set(known) for action, known in REFS_OF.items()}


def test_a_policy_without_conditions_keeps_its_bytes_and_one_with_them_is_unreadable_to_older_releases() -> None:
    plain = PolicyRecord(
        id="p", uid="u", created_ms=1, statements=(Statement(effect="allow", actions=("fs:*",), resource="*"),)
    )
    condition = {"StringLike": {"branch": ["a-*"], "ref": ["b"]}, "NotIpAddress": {"SourceIp": ["10.0.0.0/8"]}}
    narrow = PolicyRecord(
        id="p",
        uid="u",
        created_ms=1,
        statements=(Statement(effect="allow", actions=("fs:*",), resource="*", conditions=conditions_of(condition)),),
    )

    assert encode(plain).hex() == (
        "0184a26964a170a3756964a175aa637265617465645f6d7301aa73746174656d656e7473"
        "9183a6656666656374a5616c6c6f77a7616374696f6e7391a466733a2aa87265736f75726365a12a"
    )
    assert encode(narrow)[:1] == b"\x02"
    assert decode(PolicyRecord, encode(narrow)) == narrow
    assert condition_map(narrow.statements[0].conditions) == condition


def test_a_condition_of_a_later_release_denies_and_allows_nothing() -> None:
    later = (Condition(operator="Bool", key="isEncrypted", values=("true",)),)
    allows = Statement(effect="allow", actions=("*",), resource="*", conditions=later)
    denies = Statement(effect="deny", actions=("*",), resource="*", conditions=later)

    assert not Permissions("ann", [allows]).allows("fs:ReadObject", LAKE, NO_REF)
    everything = Statement(effect="allow", actions=("*",), resource="*")
    assert not Permissions("ann", [everything, denies]).allows("fs:ReadObject", LAKE, NO_REF)
