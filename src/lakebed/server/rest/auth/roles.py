"""Groups, policies, memberships, attachments, access levels (`lakebed.auth.Authorizer`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

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
from lakebed.server.http.routing import Handler, Resource, Route, serves
from lakebed.versions import name_in

from .users import user_record

R = TypeVar("R", UserRecord, GroupRecord, PolicyRecord)


class Permitting(Resource):
    """Handlers of permissions. A change applies at once in this process. Other processes notice it within seconds."""

    def routes(self) -> list[Route]:
        return [
            route
            if route.operation.creates or route.operation.method == "GET"
            else Route(route.operation, self._changing(route.handler), route.catalog)
            for route in super().routes()
        ]

    def _changing(self, handler: Handler) -> Handler:
        async def handle(*args: Any) -> object:
            try:
                return await handler(*args)
            finally:
                self._state.authorizer.forget_all()

        return handle


class Groups(Permitting):
    @serves(accounts.LIST_GROUPS)
    async def list(self, request: RestRequest) -> wire.GroupList:
        found, has_more = await self._state.groups.list(**request.page())
        return _groups(found, has_more)

    @serves(accounts.CREATE_GROUP)
    async def create(self, _: RestRequest, body: wire.GroupCreation) -> wire.Group:
        return _group(await self._state.groups.create(body.id, description=body.description or ""))

    @serves(accounts.GET_GROUP)
    async def get(self, request: RestRequest) -> wire.Group:
        return _group(await self._state.groups.get(request.args[0]))

    @serves(accounts.DELETE_GROUP)
    async def delete(self, request: RestRequest) -> None:
        await self._state.groups.delete(request.args[0])

    @serves(accounts.LIST_GROUP_MEMBERS)
    async def members(self, request: RestRequest) -> wire.UserList:
        found, has_more = await self._state.groups.list_members(request.args[0], **request.page())
        results = [user_record(user) for user in found]
        return wire.UserList(pagination=_pagination(found, has_more), results=results)

    @serves(accounts.ADD_GROUP_MEMBERSHIP)
    async def add_member(self, request: RestRequest) -> None:
        await self._state.groups.add_member(*request.args)

    @serves(accounts.DELETE_GROUP_MEMBERSHIP)
    async def remove_member(self, request: RestRequest) -> None:
        await self._state.groups.remove_member(*request.args)

    @serves(accounts.LIST_USER_GROUPS)
    async def of_user(self, request: RestRequest) -> wire.GroupList:
        found, has_more = await self._state.groups.list_of(request.args[0], **request.page())
        return _groups(found, has_more)

    @serves(accounts.SET_GROUP_ACL)
    async def set_acl(self, request: RestRequest, body: wire.ACL) -> None:
        await self._state.groups.set_acl(request.args[0], body.permission)

    @serves(accounts.GET_GROUP_ACL)
    async def get_acl(self, request: RestRequest) -> wire.ACL | Response:
        try:
            return wire.ACL(permission=await self._state.groups.get_acl(request.args[0]))
        except NoAcl as error:
            return answer(wire.ErrorNoACL(message=str(error), no_acl=True), 404)


class Policies(Permitting):
    @serves(accounts.LIST_POLICIES)
    async def list(self, request: RestRequest) -> wire.PolicyList:
        found, has_more = await self._state.policies.list(**request.page())
        return _policies(found, has_more)

    @serves(accounts.CREATE_POLICY)
    async def create(self, _: RestRequest, body: wire.Policy) -> wire.Policy:
        return _policy(await self._state.policies.create(body.id, _statements(body)))

    @serves(accounts.GET_POLICY)
    async def get(self, request: RestRequest) -> wire.Policy:
        return _policy(await self._state.policies.get(request.args[0]))

    @serves(accounts.UPDATE_POLICY)
    async def update(self, request: RestRequest, body: wire.Policy) -> wire.Policy:
        if body.id != request.args[0]:
            raise InvalidBody("can't update policy id")
        return _policy(await self._state.policies.update(request.args[0], _statements(body)))

    @serves(accounts.DELETE_POLICY)
    async def delete(self, request: RestRequest) -> None:
        await self._state.policies.delete(request.args[0])

    @serves(accounts.LIST_USER_POLICIES)
    async def of_user(self, request: RestRequest) -> wire.PolicyList:
        found, has_more = await self._state.policies.list_of_user(
            request.args[0], is_effective=request.flag("effective"), **request.page()
        )
        return _policies(found, has_more)

    @serves(accounts.LIST_GROUP_POLICIES)
    async def of_group(self, request: RestRequest) -> wire.PolicyList:
        found, has_more = await self._state.policies.list_of_group(request.args[0], **request.page())
        return _policies(found, has_more)

    @serves(accounts.DECIDE)
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

    @serves(accounts.ATTACH_POLICY_TO_USER)
    async def attach_to_user(self, request: RestRequest) -> None:
        await self._state.policies.attach_to_user(*request.args)

    @serves(accounts.DETACH_POLICY_FROM_USER)
    async def detach_from_user(self, request: RestRequest) -> None:
        await self._state.policies.detach_from_user(*request.args)

    @serves(accounts.ATTACH_POLICY_TO_GROUP)
    async def attach_to_group(self, request: RestRequest) -> None:
        await self._state.policies.attach_to_group(*request.args)

    @serves(accounts.DETACH_POLICY_FROM_GROUP)
    async def detach_from_group(self, request: RestRequest) -> None:
        await self._state.policies.detach_from_group(*request.args)


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
    """Read the statements of a policy, or raise InvalidCondition."""
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
