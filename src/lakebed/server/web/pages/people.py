"""Users with key pairs, groups with members and policies, policies as JSON; the audit log; health of the server."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound, bars
from lakebed.operations import accounts, operators, sandboxes
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import MALFORMED, Page, Visit

from .quotas import limit_of, used

ROWS: Final = 50
ALLOW_READ: Final = wire.Statement(effect="allow", action=["fs:Read*", "fs:List*"], resource="*")
"""The initial statement of a new policy, as an example."""


async def show_users(visit: Visit) -> Response:
    users = await visit.call(accounts.LIST_USERS, prefix=visit.query("prefix"), after=visit.query("after"), amount=ROWS)
    groups = await visit.look(accounts.LIST_GROUPS, amount=ROWS)
    return visit.render("users", users=users, groups=groups)


async def create_user(visit: Visit) -> Response:
    user = visit.entry("user").strip()
    await visit.call(accounts.CREATE_USER, body=wire.UserCreation(id=user))
    return visit.go("user", user=user, notice=f"Created the user {user}, without rights yet: add the user to a group.")


async def create_group(visit: Visit) -> Response:
    group = visit.entry("group").strip()
    await visit.call(accounts.CREATE_GROUP, body=wire.GroupCreation(id=group))
    return visit.go("group", group=group, notice=f"Created the group {group}, without members and policies yet.")


async def show_user(visit: Visit) -> Response:
    name = visit.query("user") or visit.user
    user = await visit.call(accounts.GET_USER, name)
    decision = await _decision(visit, name)
    return visit.render(
        "user",
        user=user,
        decision=decision,
        statement=decision and decision.statement and msgspec.json.encode(decision.statement).decode(),
        groups=await visit.look(accounts.LIST_USER_GROUPS, name, amount=ROWS),
        every_group=await visit.look(accounts.LIST_GROUPS, amount=ROWS),
        policies=await visit.look(accounts.LIST_USER_POLICIES, name, amount=ROWS),
        effective=await visit.look(accounts.LIST_USER_POLICIES, name, amount=ROWS, effective=True),
        every_policy=await visit.look(accounts.LIST_POLICIES, amount=ROWS),
        pairs=await visit.look(accounts.LIST_USER_CREDENTIALS, name, amount=ROWS),
        logins=await visit.look(accounts.LIST_SESSIONS, name),
        **await _quota(visit, name),
    )


async def _quota(visit: Visit, name: str) -> dict[str, object]:
    """Return the user's quota with its bar, and whether the caller may see it."""
    try:
        found = await visit.look(sandboxes.GET_USER_QUOTA, name)
    except NotFound:
        return {"quota": None, "may_see_quota": True}
    return {"quota": None if found is None else used([found])[0], "may_see_quota": found is not None}


async def set_quota(visit: Visit) -> Response:
    user = visit.query("user")
    await visit.call(sandboxes.SET_USER_QUOTA, user, body=limit_of(visit))
    return visit.go("user", user=user, notice="Set the quota. It holds after 5 seconds.")


async def remove_quota(visit: Visit) -> Response:
    user = visit.query("user")
    visit.check_typed(user)
    await visit.call(sandboxes.REMOVE_USER_QUOTA, user)
    return visit.go("user", user=user, notice="Removed the quota.")


async def _decision(visit: Visit, user: str) -> wire.Decision | None:
    """Return the decision on the question in the address, or None without one."""
    if not (action := visit.query("action").strip()):
        return None
    return await visit.call(
        accounts.DECIDE,
        user,
        action=action,
        resource=visit.query("resource").strip(),
        branch=visit.query("branch").strip(),
        tag=visit.query("tag").strip(),
        address=visit.query("address").strip(),
    )


async def add_to_group(visit: Visit) -> Response:
    user, group = visit.query("user"), visit.entry("group")
    await visit.call(accounts.ADD_GROUP_MEMBERSHIP, group, user)
    return visit.go("user", user=user, notice=f"{user} is in the group {group}.")


async def remove_from_group(visit: Visit) -> Response:
    user, group = visit.query("user"), visit.query("group")
    await visit.call(accounts.DELETE_GROUP_MEMBERSHIP, group, user)
    return visit.go("user", user=user, notice=f"{user} is no longer in the group {group}.")


async def attach_to_user(visit: Visit) -> Response:
    user, policy = visit.query("user"), visit.entry("policy").strip()
    await visit.call(accounts.ATTACH_POLICY_TO_USER, user, policy)
    return visit.go("user", user=user, notice=f"Attached the policy {policy}.")


async def detach_from_user(visit: Visit) -> Response:
    user, policy = visit.query("user"), visit.query("policy")
    await visit.call(accounts.DETACH_POLICY_FROM_USER, user, policy)
    return visit.go("user", user=user, notice=f"Detached the policy {policy}.")


async def create_pair(visit: Visit) -> Response:
    pair = await visit.call(accounts.CREATE_CREDENTIALS, visit.query("user"))
    return visit.render("key_pair", pair=pair, is_first=False)


async def delete_pair(visit: Visit) -> Response:
    user, key = visit.query("user"), visit.query("key")
    visit.check_typed(key)
    await visit.call(accounts.DELETE_CREDENTIALS, user, key)
    return visit.go("user", user=user, notice=f"Deleted the key pair {key}.")


async def end_session(visit: Visit) -> Response:
    user = visit.query("user")
    await visit.call(accounts.DELETE_SESSION, user, visit.query("session"))
    return visit.go("user", user=user, notice="Ended the login: its browser or program is refused at once.")


async def delete_user(visit: Visit) -> Response:
    user = visit.query("user")
    visit.check_typed(user)
    await visit.call(accounts.DELETE_USER, user)
    return visit.go("users", notice=f"Deleted the user {user}.")


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


async def attach_to_group(visit: Visit) -> Response:
    group, policy = visit.query("group"), visit.entry("policy").strip()
    await visit.call(accounts.ATTACH_POLICY_TO_GROUP, group, policy)
    return visit.go("group", group=group, notice=f"Attached the policy {policy}.")


async def detach_from_group(visit: Visit) -> Response:
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
    """Read the statements of a policy.

    Raises:
        Answer: the text is no list of statements. The message names the place of the error.
    """
    try:
        return msgspec.json.decode(visit.entry("statement").encode(), type=list[wire.Statement])
    except MALFORMED as error:
        raise Answer(400, f"These are no statements: {error}") from error


async def show_audit(visit: Visit) -> Response:
    filters = {name: visit.query(name) for name in ("user", "operation", "repository", "since", "until")}
    is_denied = visit.query("denied") == "1"
    records = await visit.call(
        operators.LIST_AUDIT_RECORDS,
        after=visit.query("after"),
        amount=ROWS,
        denied=is_denied or None,
        user=filters["user"],
        operation=filters["operation"],
        repository=filters["repository"],
        since=filters["since"],
        until=filters["until"],
    )
    return visit.render("audit", records=records, filters=filters, is_denied=is_denied)


_USERS: Final = Page(
    method="GET", path="/users", operations=(accounts.LIST_USERS, accounts.LIST_GROUPS), handler=show_users
)
_USER: Final = Page(
    method="GET",
    path="/user",
    operations=(
        accounts.GET_USER,
        accounts.DECIDE,
        accounts.LIST_GROUPS,
        accounts.LIST_USER_GROUPS,
        accounts.LIST_USER_POLICIES,
        accounts.LIST_POLICIES,
        accounts.LIST_USER_CREDENTIALS,
        accounts.LIST_SESSIONS,
        sandboxes.GET_USER_QUOTA,
    ),
    handler=show_user,
)
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
    (_GROUP, "/group/policies", accounts.ATTACH_POLICY_TO_GROUP, attach_to_group),
    (_GROUP, "/group/policies/detach", accounts.DETACH_POLICY_FROM_GROUP, detach_from_group),
    (_GROUP, "/group/delete", accounts.DELETE_GROUP, delete_group),
    (_USERS, "/users", accounts.CREATE_USER, create_user),
    (_USER, "/user/groups", accounts.ADD_GROUP_MEMBERSHIP, add_to_group),
    (_USER, "/user/quota", sandboxes.SET_USER_QUOTA, set_quota),
    (_USER, "/user/quota/remove", sandboxes.REMOVE_USER_QUOTA, remove_quota),
    (_USER, "/user/groups/remove", accounts.DELETE_GROUP_MEMBERSHIP, remove_from_group),
    (_USERS, "/groups", accounts.CREATE_GROUP, create_group),
    (_USER, "/user/policies", accounts.ATTACH_POLICY_TO_USER, attach_to_user),
    (_USER, "/user/policies/detach", accounts.DETACH_POLICY_FROM_USER, detach_from_user),
    (_USER, "/user/pairs", accounts.CREATE_CREDENTIALS, create_pair),
    (_USER, "/user/pairs/delete", accounts.DELETE_CREDENTIALS, delete_pair),
    (_USER, "/user/sessions/end", accounts.DELETE_SESSION, end_session),
    (_USER, "/user/delete", accounts.DELETE_USER, delete_user),
)


async def show_health(visit: Visit) -> Response:
    status = await visit.call(operators.GET_SERVER_STATUS)
    lengths = bars([week.reclaimed_bytes for week in status.weeks])
    return visit.render("health", status=status, weeks=list(zip(status.weeks, lengths, strict=True)))


PAGES: Final = (
    Page(method="GET", path="/health", operations=(operators.GET_SERVER_STATUS,), handler=show_health),
    _USERS,
    _USER,
    _GROUP,
    _POLICIES,
    _POLICY,
    Page(method="GET", path="/audit", operations=(operators.LIST_AUDIT_RECORDS,), handler=show_audit),
    *(
        Page(method="POST", path=path, operations=(operation,), handler=handler, shown_by=page)
        for page, path, operation, handler in _FORMS
    ),
)
