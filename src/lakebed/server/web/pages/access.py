"""Groups with their members and policies, and policies as JSON with the server's own errors beside the text."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed import wire
from lakebed.operations import accounts
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import Page, Visit

ROWS: Final = 50
ALLOW_READ: Final = wire.Statement(effect="allow", action=["fs:Read*", "fs:List*"], resource="*")
"""A new policy begins with this, to show the form."""


async def show_policies(visit: Visit) -> Response:
    prefix, after = visit.query("prefix"), visit.query("after")
    policies = await visit.call(accounts.LIST_POLICIES, prefix=prefix, after=after, amount=ROWS)
    return visit.render("policies", policies=policies, text=visit.entry("statement") or _text([ALLOW_READ]))


async def create_policy(visit: Visit) -> Response:
    name = visit.entry("policy").strip()
    await visit.call(accounts.CREATE_POLICY, body=wire.Policy(id=name, statement=_statements(visit)))
    return visit.go("policy", policy=name, notice=f"Created the policy {name}. Attach it to a group or to a user.")


async def show_policy(visit: Visit) -> Response:
    policy = await visit.call(accounts.GET_POLICY, visit.query("policy"))
    return visit.render("policy", policy=policy, text=visit.entry("statement") or _text(policy.statement))


async def update_policy(visit: Visit) -> Response:
    name = visit.query("policy")
    await visit.call(accounts.UPDATE_POLICY, name, body=wire.Policy(id=name, statement=_statements(visit)))
    return visit.go("policy", policy=name, notice="Saved. It counts at once for every user and group that has it.")


async def delete_policy(visit: Visit) -> Response:
    name = visit.query("policy")
    visit.check_typed(name)
    await visit.call(accounts.DELETE_POLICY, name)
    return visit.go("policies", notice=f"Deleted the policy {name}.")


async def show_group(visit: Visit) -> Response:
    name = visit.query("group")
    group = await visit.call(accounts.GET_GROUP, name)
    return visit.render(
        "group",
        group=group,
        members=await visit.look(accounts.LIST_GROUP_MEMBERS, name, after=visit.query("after"), amount=ROWS),
        policies=await visit.look(accounts.LIST_GROUP_POLICIES, name, amount=ROWS),
        every_policy=await visit.look(accounts.LIST_POLICIES, amount=ROWS),
    )


async def add_member(visit: Visit) -> Response:
    group, user = visit.query("group"), visit.entry("user").strip()
    await visit.call(accounts.ADD_GROUP_MEMBERSHIP, group, user)
    return visit.go("group", group=group, notice=f"{user} is in the group {group}.")


async def remove_member(visit: Visit) -> Response:
    group, user = visit.query("group"), visit.query("user")
    await visit.call(accounts.DELETE_GROUP_MEMBERSHIP, group, user)
    return visit.go("group", group=group, notice=f"{user} is no longer in the group {group}.")


async def attach(visit: Visit) -> Response:
    group, policy = visit.query("group"), visit.entry("policy").strip()
    await visit.call(accounts.ATTACH_POLICY_TO_GROUP, group, policy)
    return visit.go("group", group=group, notice=f"Attached the policy {policy}.")


async def detach(visit: Visit) -> Response:
    group, policy = visit.query("group"), visit.query("policy")
    await visit.call(accounts.DETACH_POLICY_FROM_GROUP, group, policy)
    return visit.go("group", group=group, notice=f"Detached the policy {policy}.")


async def delete_group(visit: Visit) -> Response:
    group = visit.query("group")
    visit.check_typed(group)
    await visit.call(accounts.DELETE_GROUP, group)
    return visit.go("users", notice=f"Deleted the group {group}.")


def _text(statements: list[wire.Statement]) -> str:
    return msgspec.json.format(msgspec.json.encode(statements), indent=2).decode()


def _statements(visit: Visit) -> list[wire.Statement]:
    """
    Raises:
        Answer: the text is no list of statements. The message says where.
    """
    try:
        return msgspec.json.decode(visit.entry("statement").encode(), type=list[wire.Statement])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Answer(400, f"These are no statements: {error}") from error


_POLICIES: Final = Page(method="GET", path="/policies", operations=(accounts.LIST_POLICIES,), handler=show_policies)
_POLICY: Final = Page(method="GET", path="/policy", operations=(accounts.GET_POLICY,), handler=show_policy)
_GROUP: Final = Page(
    method="GET",
    path="/group",
    operations=(
        accounts.GET_GROUP,
        accounts.LIST_GROUP_MEMBERS,
        accounts.LIST_GROUP_POLICIES,
        accounts.LIST_POLICIES,
    ),
    handler=show_group,
)
_FORMS: Final = (
    (_POLICIES, "/policies", accounts.CREATE_POLICY, create_policy),
    (_POLICY, "/policy", accounts.UPDATE_POLICY, update_policy),
    (_POLICY, "/policy/delete", accounts.DELETE_POLICY, delete_policy),
    (_GROUP, "/group/members", accounts.ADD_GROUP_MEMBERSHIP, add_member),
    (_GROUP, "/group/members/remove", accounts.DELETE_GROUP_MEMBERSHIP, remove_member),
    (_GROUP, "/group/policies", accounts.ATTACH_POLICY_TO_GROUP, attach),
    (_GROUP, "/group/policies/detach", accounts.DETACH_POLICY_FROM_GROUP, detach),
    (_GROUP, "/group/delete", accounts.DELETE_GROUP, delete_group),
)
PAGES: Final = (
    _POLICIES,
    _POLICY,
    _GROUP,
    *(
        Page(method="POST", path=path, operations=(operation,), handler=handler, shown_by=page)
        for page, path, operation, handler in _FORMS
    ),
)
