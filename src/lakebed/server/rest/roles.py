"""Groups, policies, memberships, attachments, access levels. What is changed counts at once in this process, and within
seconds in others (`lakebed.auth.Authorizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, TypeVar

from starlette.responses import Response

from lakebed import wire
from lakebed.auth import GroupRecord, NoAcl, PolicyRecord, Statement, UserRecord
from lakebed.server.errors import InvalidBody
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer, nothing, page_of
from lakebed.server.routing import Handler, Route
from lakebed.server.state import AppState

from .identity import user_record

R = TypeVar("R", UserRecord, GroupRecord, PolicyRecord)


class Groups:
    def __init__(self, state: AppState) -> None:
        self._groups = state.groups

    async def list(self, request: RestRequest) -> Response:
        found, has_more = await self._groups.list(**_page(request))
        return _groups(found, has_more)

    async def create(self, request: RestRequest) -> Response:
        body = await request.decoded(wire.GroupCreation)
        return answer(_group(await self._groups.create(body.id, description=body.description or "")), 201)

    async def get(self, request: RestRequest) -> Response:
        return answer(_group(await self._groups.get(request.args[0])))

    async def delete(self, request: RestRequest) -> Response:
        await self._groups.delete(request.args[0])
        return nothing()

    async def members(self, request: RestRequest) -> Response:
        found, has_more = await self._groups.list_members(request.args[0], **_page(request))
        results = [user_record(user) for user in found]
        return answer(wire.UserList(pagination=_pagination(found, has_more), results=results))

    async def add_member(self, request: RestRequest) -> Response:
        await self._groups.add_member(*request.args)
        return nothing(201)

    async def remove_member(self, request: RestRequest) -> Response:
        await self._groups.remove_member(*request.args)
        return nothing()

    async def of_user(self, request: RestRequest) -> Response:
        found, has_more = await self._groups.list_of(request.args[0], **_page(request))
        return _groups(found, has_more)

    async def set_acl(self, request: RestRequest) -> Response:
        body = await request.decoded(wire.ACL)
        await self._groups.set_acl(request.args[0], body.permission)
        return nothing(201)

    async def get_acl(self, request: RestRequest) -> Response:
        try:
            return answer(wire.ACL(permission=await self._groups.get_acl(request.args[0])))
        except NoAcl as error:
            return answer(wire.ErrorNoACL(message=str(error), no_acl=True), 404)


class Policies:
    def __init__(self, state: AppState) -> None:
        self._policies = state.policies

    async def list(self, request: RestRequest) -> Response:
        found, has_more = await self._policies.list(**_page(request))
        return _policies(found, has_more)

    async def create(self, request: RestRequest) -> Response:
        body = await request.decoded(wire.Policy)
        return answer(_policy(await self._policies.create(body.id, _statements(body))), 201)

    async def get(self, request: RestRequest) -> Response:
        return answer(_policy(await self._policies.get(request.args[0])))

    async def update(self, request: RestRequest) -> Response:
        body = await request.decoded(wire.Policy)
        return answer(_policy(await self._policies.update(request.args[0], _statements(body))))

    async def delete(self, request: RestRequest) -> Response:
        await self._policies.delete(request.args[0])
        return nothing()

    async def of_user(self, request: RestRequest) -> Response:
        found, has_more = await self._policies.list_of_user(
            request.args[0], is_effective=request.flag("effective"), **_page(request)
        )
        return _policies(found, has_more)

    async def of_group(self, request: RestRequest) -> Response:
        found, has_more = await self._policies.list_of_group(request.args[0], **_page(request))
        return _policies(found, has_more)

    async def attach_to_user(self, request: RestRequest) -> Response:
        await self._policies.attach_to_user(*request.args)
        return nothing(201)

    async def detach_from_user(self, request: RestRequest) -> Response:
        await self._policies.detach_from_user(*request.args)
        return nothing()

    async def attach_to_group(self, request: RestRequest) -> Response:
        await self._policies.attach_to_group(*request.args)
        return nothing(201)

    async def detach_from_group(self, request: RestRequest) -> Response:
        await self._policies.detach_from_group(*request.args)
        return nothing()


def routes(state: AppState) -> list[Route]:
    groups, policies = Groups(state), Policies(state)
    group, user, policy = "/auth/groups/{groupId}", "/auth/users/{userId}", "/auth/policies/{policyId}"

    def changing(handler: Handler) -> Handler:
        """What any process remembers of permissions is for a few seconds; what this one does is not even for that."""

        async def handle(request: RestRequest) -> Response:
            try:
                return await handler(request)
            finally:
                state.authorizer.forget_all()

        return handle

    return [
        Route("GET", "/auth/groups", groups.list),
        Route("POST", "/auth/groups", groups.create),
        Route("GET", group, groups.get),
        Route("DELETE", group, changing(groups.delete)),
        Route("GET", group + "/members", groups.members),
        Route("PUT", group + "/members/{userId}", changing(groups.add_member)),
        Route("DELETE", group + "/members/{userId}", changing(groups.remove_member)),
        Route("POST", group + "/acl", changing(groups.set_acl)),
        Route("GET", group + "/acl", groups.get_acl),
        Route("GET", user + "/groups", groups.of_user),
        Route("GET", "/auth/policies", policies.list),
        Route("POST", "/auth/policies", policies.create),
        Route("GET", policy, policies.get),
        Route("PUT", policy, changing(policies.update)),
        Route("DELETE", policy, changing(policies.delete)),
        Route("GET", user + "/policies", policies.of_user),
        Route("PUT", user + "/policies/{policyId}", changing(policies.attach_to_user)),
        Route("DELETE", user + "/policies/{policyId}", changing(policies.detach_from_user)),
        Route("GET", group + "/policies", policies.of_group),
        Route("PUT", group + "/policies/{policyId}", changing(policies.attach_to_group)),
        Route("DELETE", group + "/policies/{policyId}", changing(policies.detach_from_group)),
    ]


class _Page(TypedDict):
    prefix: str
    after: str
    limit: int


def _page(request: RestRequest) -> _Page:
    return _Page(prefix=request.query("prefix"), after=request.query("after"), limit=request.amount())


def _pagination(found: Sequence[R], has_more: bool) -> wire.Pagination:
    return page_of(found, has_more=has_more, last=found[-1].id if found else "")


def _groups(found: Sequence[GroupRecord], has_more: bool) -> Response:
    results = [_group(record) for record in found]
    return answer(wire.GroupList(pagination=_pagination(found, has_more), results=results))


def _policies(found: Sequence[PolicyRecord], has_more: bool) -> Response:
    results = [_policy(record) for record in found]
    return answer(wire.PolicyList(pagination=_pagination(found, has_more), results=results))


def _group(record: GroupRecord) -> wire.Group:
    return wire.Group(
        id=record.id, name=record.id, description=record.description, creation_date=record.created_ms // 1000
    )


def _policy(record: PolicyRecord) -> wire.Policy:
    statements = [
        wire.Statement(effect=one.effect, resource=one.resource, action=list(one.actions)) for one in record.statements
    ]
    return wire.Policy(id=record.id, creation_date=record.created_ms // 1000, statement=statements)


def _statements(body: wire.Policy) -> list[Statement]:
    """
    Raises:
        InvalidBody: one has a condition. To leave it out would allow more than was meant, or deny more.
    """
    if any(one.condition for one in body.statement):
        raise InvalidBody("request body has an error: conditions of statements are not supported")
    return [Statement(effect=one.effect, actions=tuple(one.action), resource=one.resource) for one in body.statement]
