"""Users with key pairs, groups with members and policies, policies as JSON; the audit log; health of the server."""

from __future__ import annotations

from itertools import dropwhile
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound, bars
from lakebed.operations import accounts, operators, sandboxes
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import MALFORMED, Visit, form_at, page_at

from .quotas import limit_of, used

ROWS: Final = 50
ALLOW_READ: Final = wire.Statement(effect="allow", action=["fs:Read*", "fs:List*"], resource="*")
"""The initial statement of a new policy, as an example."""


@page_at("/users")
async def show_users(visit: Visit) -> Response:
    users = await visit.call(accounts.LIST_USERS, prefix=visit.query("prefix"), after=visit.query("after"), amount=ROWS)
    groups = await visit.look(accounts.LIST_GROUPS, amount=ROWS)
    return visit.render("users", users=users, groups=groups)


@show_users.form()
async def create_user(visit: Visit) -> Response:
    user = visit.entry("user").strip()
    await visit.call(accounts.CREATE_USER, body=wire.UserCreation(id=user))
    return visit.go("user", user=user, notice=f"Created the user {user}, without rights yet: add the user to a group.")


@form_at("/groups", shown_by=show_users)
async def create_group(visit: Visit) -> Response:
    group = visit.entry("group").strip()
    await visit.call(accounts.CREATE_GROUP, body=wire.GroupCreation(id=group))
    return visit.go("group", group=group, notice=f"Created the group {group}, without members and policies yet.")


@page_at("/user", by="user")
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


@show_user.form("/quota")
async def set_quota(visit: Visit) -> Response:
    user = visit.query("user")
    await visit.call(sandboxes.SET_USER_QUOTA, user, body=limit_of(visit))
    return visit.go("user", user=user, notice="Set the quota. It holds after 5 seconds.")


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


@show_user.form("/pairs")
async def create_pair(visit: Visit) -> Response:
    pair = await visit.call(accounts.CREATE_CREDENTIALS, visit.query("user"))
    return visit.render("key_pair", pair=pair, is_first=False)


@page_at("/policies")
async def show_policies(visit: Visit) -> Response:
    prefix, after = visit.query("prefix"), visit.query("after")
    policies = await visit.call(accounts.LIST_POLICIES, prefix=prefix, after=after, amount=ROWS)
    return visit.render("policies", policies=policies, text=visit.entry("statement") or _text([ALLOW_READ]))


@show_policies.form()
async def create_policy(visit: Visit) -> Response:
    name = visit.entry("policy").strip()
    await visit.call(accounts.CREATE_POLICY, body=wire.Policy(id=name, statement=_statements(visit)))
    return visit.go("policy", policy=name, notice=f"Created the policy {name}. Attach it to a group or to a user.")


@page_at("/policy", by="policy")
async def show_policy(visit: Visit) -> Response:
    policy = await visit.call(accounts.GET_POLICY, visit.query("policy"))
    return visit.render("policy", policy=policy, text=visit.entry("statement") or _text(policy.statement))


@show_policy.form()
async def update_policy(visit: Visit) -> Response:
    name = visit.query("policy")
    await visit.call(accounts.UPDATE_POLICY, name, body=wire.Policy(id=name, statement=_statements(visit)))
    return visit.go("policy", policy=name, notice="Saved. It counts at once for every user and group that has it.")


@page_at("/group", by="group")
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


def _text(statements: list[wire.Statement]) -> str:
    return msgspec.json.format(msgspec.json.encode(statements), indent=2).decode()


def _statements(visit: Visit) -> list[wire.Statement]:
    """Read the statements of a policy."""
    try:
        return msgspec.json.decode(visit.entry("statement").encode(), type=list[wire.Statement])
    except MALFORMED as error:
        raise Answer(400, f"These are no statements: {error}") from error


@page_at("/audit")
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


remove_quota = show_user.carry_out(
    "/quota/remove", sandboxes.REMOVE_USER_QUOTA, "user", "Removed the quota.", typed="user"
)
add_to_group = show_user.carry_out(
    "/groups", accounts.ADD_GROUP_MEMBERSHIP, "group user", "{user} is in the group {group}."
)
remove_from_group = show_user.carry_out(
    "/groups/remove", accounts.DELETE_GROUP_MEMBERSHIP, "group user", "{user} is no longer in the group {group}."
)
attach_to_user = show_user.carry_out(
    "/policies", accounts.ATTACH_POLICY_TO_USER, "user policy", "Attached the policy {policy}."
)
detach_from_user = show_user.carry_out(
    "/policies/detach", accounts.DETACH_POLICY_FROM_USER, "user policy", "Detached the policy {policy}."
)
delete_pair = show_user.carry_out(
    "/pairs/delete", accounts.DELETE_CREDENTIALS, "user key", "Deleted the key pair {key}.", typed="key"
)
end_session = show_user.carry_out(
    "/sessions/end",
    accounts.DELETE_SESSION,
    "user session",
    "Ended the login: its browser or program is refused at once.",
)
delete_user = show_user.carry_out(
    "/delete", accounts.DELETE_USER, "user", "Deleted the user {user}.", typed="user", to=show_users
)
delete_policy = show_policy.carry_out(
    "/delete", accounts.DELETE_POLICY, "policy", "Deleted the policy {policy}.", typed="policy", to=show_policies
)
add_member = show_group.carry_out(
    "/members", accounts.ADD_GROUP_MEMBERSHIP, "group user", "{user} is in the group {group}."
)
remove_member = show_group.carry_out(
    "/members/remove", accounts.DELETE_GROUP_MEMBERSHIP, "group user", "{user} is no longer in the group {group}."
)
attach_to_group = show_group.carry_out(
    "/policies", accounts.ATTACH_POLICY_TO_GROUP, "group policy", "Attached the policy {policy}."
)
detach_from_group = show_group.carry_out(
    "/policies/detach", accounts.DETACH_POLICY_FROM_GROUP, "group policy", "Detached the policy {policy}."
)
delete_group = show_group.carry_out(
    "/delete", accounts.DELETE_GROUP, "group", "Deleted the group {group}.", typed="group", to=show_users
)


@page_at("/health")
async def show_health(visit: Visit) -> Response:
    status = await visit.call(operators.GET_SERVER_STATUS)
    # Oldest first: begin with the first week that gave something back.
    weeks = list(dropwhile(lambda week: not week.reclaimed_bytes, status.weeks))
    lengths = bars([week.reclaimed_bytes for week in weeks])
    return visit.render("health", status=status, weeks=list(zip(weeks, lengths, strict=True)))
