"""Groups, policies, memberships, attachments, access levels. A change applies at once in this process, and within
seconds in others (`lakebed.auth.Authorizer`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from starlette.responses import Response

from lakebed import wire
from lakebed.auth import (
    UNKNOWN_REF,
    Circumstances,
    GroupRecord,
    NoAcl,
    PolicyRecord,
    Ref,
    Statement,
    UserRecord,
    condition_map,
    conditions_of,
    is_address,
    time_of,
)
from lakebed.base import check_branch, check_tag, is_commit_id
from lakebed.operations import accounts
from lakebed.server.http.errors import InvalidBody, InvalidParameter
from lakebed.server.http.requests import RestRequest, answer, page_of
from lakebed.server.http.routing import Resource, Route
from lakebed.server.state import AppState
from lakebed.versions import name_in

from .users import user_record

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", UserRecord, GroupRecord, PolicyRecord)


class Groups(Resource):
    async def list(self, request: RestRequest) -> wire.GroupList:
        found, has_more = await self._state.groups.list(**request.page())
        return _groups(found, has_more)

    async def create(self, _: RestRequest, body: wire.GroupCreation) -> wire.Group:
        return _group(await self._state.groups.create(body.id, description=body.description or ""))

    async def get(self, request: RestRequest) -> wire.Group:
        return _group(await self._state.groups.get(request.args[0]))

    async def delete(self, request: RestRequest) -> None:
        await self._state.groups.delete(request.args[0])

    async def members(self, request: RestRequest) -> wire.UserList:
        found, has_more = await self._state.groups.list_members(request.args[0], **request.page())
        results = [user_record(user) for user in found]
        return wire.UserList(pagination=_pagination(found, has_more), results=results)

    async def add_member(self, request: RestRequest) -> None:
        await self._state.groups.add_member(*request.args)

    async def remove_member(self, request: RestRequest) -> None:
        await self._state.groups.remove_member(*request.args)

    async def of_user(self, request: RestRequest) -> wire.GroupList:
        found, has_more = await self._state.groups.list_of(request.args[0], **request.page())
        return _groups(found, has_more)

    async def set_acl(self, request: RestRequest, body: wire.ACL) -> None:
        await self._state.groups.set_acl(request.args[0], body.permission)

    async def get_acl(self, request: RestRequest) -> wire.ACL | Response:
        try:
            return wire.ACL(permission=await self._state.groups.get_acl(request.args[0]))
        except NoAcl as error:
            return answer(wire.ErrorNoACL(message=str(error), no_acl=True), 404)


class Policies(Resource):
    async def list(self, request: RestRequest) -> wire.PolicyList:
        found, has_more = await self._state.policies.list(**request.page())
        return _policies(found, has_more)

    async def create(self, _: RestRequest, body: wire.Policy) -> wire.Policy:
        return _policy(await self._state.policies.create(body.id, _statements(body)))

    async def get(self, request: RestRequest) -> wire.Policy:
        return _policy(await self._state.policies.get(request.args[0]))

    async def update(self, request: RestRequest, body: wire.Policy) -> wire.Policy:
        if body.id != request.args[0]:
            raise InvalidBody("can't update policy id")
        return _policy(await self._state.policies.update(request.args[0], _statements(body)))

    async def delete(self, request: RestRequest) -> None:
        await self._state.policies.delete(request.args[0])

    async def of_user(self, request: RestRequest) -> wire.PolicyList:
        found, has_more = await self._state.policies.list_of_user(
            request.args[0], is_effective=request.flag("effective"), **request.page()
        )
        return _policies(found, has_more)

    async def of_group(self, request: RestRequest) -> wire.PolicyList:
        found, has_more = await self._state.policies.list_of_group(request.args[0], **request.page())
        return _policies(found, has_more)

    async def decide(self, request: RestRequest) -> wire.Decision:
        user, action, resource = request.args[0], request.required("action"), request.query("resource", "*")
        time = request.query("time")
        now_ms = time_of(time) if time else self._state.ports.clock.now_ms()
        address = request.query("address")
        if address and not is_address(address):
            raise InvalidParameter(f"{address!r} is no address that a request comes from, such as 10.1.1.1")
        circumstances = Circumstances(address=address, now_ms=lambda: now_ms)
        decision = await self._state.policies.decide(user, action, resource, _ref(request), circumstances)
        return wire.Decision(
            user=user,
            action=action,
            resource=resource,
            allowed=decision.is_allowed,
            policy=decision.policy,
            group=decision.group,
            number=decision.number,
            statement=None if decision.statement is None else _statement(decision.statement),
            unsaid=list(decision.unsaid),
        )

    async def attach_to_user(self, request: RestRequest) -> None:
        await self._state.policies.attach_to_user(*request.args)

    async def detach_from_user(self, request: RestRequest) -> None:
        await self._state.policies.detach_from_user(*request.args)

    async def attach_to_group(self, request: RestRequest) -> None:
        await self._state.policies.attach_to_group(*request.args)

    async def detach_from_group(self, request: RestRequest) -> None:
        await self._state.policies.detach_from_group(*request.args)


def routes(state: AppState) -> list[Route]:
    groups, policies = Groups(state), Policies(state)

    def changing(handler: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Apply a change of permissions at once in this process. Other processes notice it within seconds."""

        async def handle(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return await handler(*args, **kwargs)
            finally:
                state.authorizer.forget_all()

        return handle

    return [
        Route(accounts.LIST_GROUPS, groups.list),
        Route(accounts.CREATE_GROUP, groups.create),
        Route(accounts.GET_GROUP, groups.get),
        Route(accounts.DELETE_GROUP, changing(groups.delete)),
        Route(accounts.LIST_GROUP_MEMBERS, groups.members),
        Route(accounts.ADD_GROUP_MEMBERSHIP, changing(groups.add_member)),
        Route(accounts.DELETE_GROUP_MEMBERSHIP, changing(groups.remove_member)),
        Route(accounts.SET_GROUP_ACL, changing(groups.set_acl)),
        Route(accounts.GET_GROUP_ACL, groups.get_acl),
        Route(accounts.LIST_USER_GROUPS, groups.of_user),
        Route(accounts.LIST_POLICIES, policies.list),
        Route(accounts.CREATE_POLICY, policies.create),
        Route(accounts.GET_POLICY, policies.get),
        Route(accounts.UPDATE_POLICY, changing(policies.update)),
        Route(accounts.DELETE_POLICY, changing(policies.delete)),
        Route(accounts.LIST_USER_POLICIES, policies.of_user),
        Route(accounts.DECIDE, policies.decide),
        Route(accounts.ATTACH_POLICY_TO_USER, changing(policies.attach_to_user)),
        Route(accounts.DETACH_POLICY_FROM_USER, changing(policies.detach_from_user)),
        Route(accounts.LIST_GROUP_POLICIES, policies.of_group),
        Route(accounts.ATTACH_POLICY_TO_GROUP, changing(policies.attach_to_group)),
        Route(accounts.DETACH_POLICY_FROM_GROUP, changing(policies.detach_from_group)),
    ]


def _pagination(found: Sequence[R], has_more: bool) -> wire.Pagination:
    return page_of(found, has_more=has_more, last=found[-1].id if found else "")


def _groups(found: Sequence[GroupRecord], has_more: bool) -> wire.GroupList:
    results = [_group(record) for record in found]
    return wire.GroupList(pagination=_pagination(found, has_more), results=results)


def _policies(found: Sequence[PolicyRecord], has_more: bool) -> wire.PolicyList:
    results = [_policy(record) for record in found]
    return wire.PolicyList(pagination=_pagination(found, has_more), results=results)


def _group(record: GroupRecord) -> wire.Group:
    return wire.Group(
        id=record.id, name=record.id, description=record.description, creation_date=record.created_ms // 1000
    )


def _policy(record: PolicyRecord) -> wire.Policy:
    statements = [_statement(one) for one in record.statements]
    return wire.Policy(id=record.id, creation_date=record.created_ms // 1000, statement=statements)


def _statement(statement: Statement) -> wire.Statement:
    return wire.Statement(
        effect=statement.effect,
        resource=statement.resource,
        action=list(statement.actions),
        condition=condition_map(statement.conditions) or None,
    )


def _statements(body: wire.Policy) -> list[Statement]:
    """Read the statements of a policy.

    Raises:
        InvalidCondition: a condition names no key.
    """
    return [
        Statement(
            effect=one.effect,
            actions=tuple(one.action),
            resource=one.resource,
            conditions=conditions_of(one.condition),
        )
        for one in body.statement
    ]


def _ref(request: RestRequest) -> Ref:
    """Return the ref of a question, or UNKNOWN_REF if the question names none.

    An expression is about the name in it, as in a request.

    Raises:
        InvalidParameter, InvalidName: no request has such a ref, so an answer would be about another one.
    """
    branch, tag, ref = request.query("branch"), request.query("tag"), request.query("ref")
    if sum(map(bool, (branch, tag, ref))) > 1:
        raise InvalidParameter("a question is about a branch, a tag or a ref, and not about two of them")
    if branch:
        return Ref.of_branch(check_branch(name_in(branch)))
    if tag:
        return Ref.of_tag(check_tag(name_in(tag)))
    if ref and not is_commit_id(ref):
        raise InvalidParameter(f"{ref!r} is not the whole id of a commit: say branch or tag for a name")
    return Ref(ref=ref) if ref else UNKNOWN_REF
