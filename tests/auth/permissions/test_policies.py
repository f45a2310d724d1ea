"""What statements allow, taken together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.auth import InvalidAction, InvalidPolicy, Permissions, Statement
from lakebed.auth.permissions.conditions import compile_glob
from lakebed.auth.permissions.statements import Effect, check_statements

LAKE = "arn:lakefs:fs:::repository/lake"


def says(effect: Effect, action: str, resource: str = "*") -> Statement:
    return Statement(effect=effect, actions=(action,), resource=resource)


def permissions(*statements: Statement, user: str = "ann") -> Permissions:
    return Permissions(user, statements)


def test_nothing_is_allowed_by_default() -> None:
    assert not permissions().allows("fs:ReadObject", LAKE + "/object/a")


def test_a_statement_allows_its_action_on_its_resource_and_nothing_else() -> None:
    ann = permissions(says("allow", "fs:ReadObject", LAKE + "/object/public/*"))

    assert ann.allows("fs:ReadObject", LAKE + "/object/public/a/b")
    assert not ann.allows("fs:ReadObject", LAKE + "/object/private/a")
    assert not ann.allows("fs:WriteObject", LAKE + "/object/public/a")


def test_one_denial_wins_over_any_number_that_allow() -> None:
    ann = permissions(
        says("allow", "*"), says("deny", "fs:Delete*", LAKE + "/branch/main"), says("allow", "fs:DeleteBranch")
    )

    assert not ann.allows("fs:DeleteBranch", LAKE + "/branch/main")
    assert ann.allows("fs:DeleteBranch", LAKE + "/branch/other")
    assert not ann.allows_everywhere("fs:DeleteBranch")
    assert ann.allows_everywhere("fs:ReadObject")


def test_a_resource_that_is_all_of_one_repository_is_not_everywhere() -> None:
    ann = permissions(says("allow", "fs:*", LAKE + "*"))

    assert not ann.allows_everywhere("fs:ListRepositories")
    assert not ann.allows("fs:ListRepositories", "*")


def test_the_user_in_a_resource_is_who_asks() -> None:
    own = says("allow", "auth:CreateCredentials", "arn:lakefs:auth:::user/${user}")

    assert permissions(own, user="ann").allows("auth:CreateCredentials", "arn:lakefs:auth:::user/ann")
    assert not permissions(own, user="bob").allows("auth:CreateCredentials", "arn:lakefs:auth:::user/ann")


def test_a_user_called_star_is_not_everybody() -> None:
    star = permissions(says("allow", "auth:CreateCredentials", "arn:lakefs:auth:::user/${user}"), user="*")

    assert star.allows("auth:CreateCredentials", "arn:lakefs:auth:::user/*")
    assert not star.allows("auth:CreateCredentials", "arn:lakefs:auth:::user/ann")


def test_the_contracts_names_for_rules_are_ours_too_to_allow_and_to_deny() -> None:
    for name, other in (
        ("retention:GetGarbageCollectionRules", "gc:ReadRules"),
        ("gc:WriteRules", "retention:SetGarbageCollectionRules"),
    ):
        assert permissions(says("allow", name)).allows(other, LAKE)
        assert permissions(says("allow", other)).allows(name, LAKE)
        assert not permissions(says("allow", "*"), says("deny", name)).allows(other, LAKE)


def test_planning_covers_the_contracts_preparing_and_not_the_other_way_round() -> None:
    assert permissions(says("allow", "gc:Plan")).allows("retention:PrepareGarbageCollectionCommits", LAKE)
    assert not permissions(says("allow", "retention:Prepare*")).allows("gc:Plan", LAKE)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("", "", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("*", "a/b", True),
        ("a*", "a", True),
        ("a*", "ba", False),
        ("*a", "ba", True),
        ("*a", "ab", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "acb", False),
        ("ab*bc", "abc", False),
        ("*ab*", "xaby", True),
        ("a**b", "ab", True),
        ("*aab*aab*", "aaab", False),
        (r"a.b\d", "axb1", False),
    ],
)
def test_a_star_is_any_characters_and_all_else_is_itself(pattern: str, text: str, matches: bool) -> None:
    assert compile_glob(pattern)(text) is matches


def test_many_stars_do_not_take_for_ever() -> None:
    assert not compile_glob("*a" * 60 + "b")("a" * 1000)


@pytest.mark.parametrize(
    "statement",
    [
        says("allow", "ReadObject"),
        says("allow", "fs:"),
        says("allow", "s3:GetObject"),
        says("allow", "fs:Read Object"),
        says("deny", "fs:DeleteObjekt"),
        says("deny", "fs:Obliterate*"),
    ],
)
def test_an_action_that_cannot_be_meant_is_refused(statement: Statement) -> None:
    with pytest.raises(InvalidAction):
        check_statements([statement])


@pytest.mark.parametrize(
    "place",
    ["namespace/https://*", "namespace/https://*/raw/*", "namespace/*.blob.core.windows.net/raw/*", "*https://*"],
)
def test_a_denial_of_only_one_spelling_of_azure_is_refused(place: str) -> None:
    with pytest.raises(InvalidPolicy, match="write az://container/key"):
        check_statements([says("deny", "fs:*", f"arn:lakefs:fs:::{place}")])
    check_statements([says("allow", "fs:*", f"arn:lakefs:fs:::{place}")])


@pytest.mark.parametrize(
    "place", ["namespace/https://*.blob.core.windows.net/raw/*", "namespace/az://raw/*", "repository/http/*", "*"]
)
def test_a_denial_of_both_spellings_of_azure_is_valid(place: str) -> None:
    check_statements([says("deny", "fs:*", f"arn:lakefs:fs:::{place}")])


@pytest.mark.parametrize("resource", ["", "lake", "arn:aws:s3:::bucket", "arn:lakefs:fs:::", LAKE + "/object/a?"])
def test_a_resource_that_cannot_be_meant_is_refused(resource: str) -> None:
    with pytest.raises(InvalidPolicy):
        check_statements([says("allow", "fs:*", resource)])


def test_statements_without_actions_and_policies_without_statements_are_refused() -> None:
    with pytest.raises(InvalidPolicy):
        check_statements([])
    with pytest.raises(InvalidPolicy):
        check_statements([Statement(effect="allow", actions=(), resource="*")])


ACTIONS_TRIED = ("fs:ReadObject", "fs:DeleteObject", "auth:ReadUser", "gc:ReadRules")
RESOURCES_TRIED = ("*", LAKE, LAKE + "/object/a", "arn:lakefs:auth:::user/ann")
STATEMENTS = st.builds(
    Statement,
    effect=st.sampled_from(["allow", "deny"]),
    actions=st.sampled_from([("*",), ("fs:*",), ("fs:Read*", "auth:*"), ("retention:Get*",), ("gc:ReadRules",)]),
    resource=st.sampled_from(["*", LAKE, LAKE + "*", LAKE + "/object/*", "arn:lakefs:auth:::user/${user}"]),
)


@given(statements=st.lists(STATEMENTS, max_size=5), is_administrator=st.booleans())
def test_the_deciding_statement_agrees_with_the_answer(statements: list[Statement], is_administrator: bool) -> None:
    ann = Permissions("ann", statements, is_administrator=is_administrator)

    for action in ACTIONS_TRIED:
        for resource in RESOURCES_TRIED:
            deciding = ann.deciding(action, resource)
            assert ann.allows(action, resource) == (deciding is not None and deciding.effect == "allow")
            assert deciding is None or any(deciding is statement for statement in statements)
