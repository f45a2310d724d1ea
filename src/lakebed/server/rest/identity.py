"""Login, users, credentials. What they may do is in roles.py."""

from __future__ import annotations

from starlette.responses import Response

from lakebed import wire
from lakebed.auth import SESSION_COOKIE, TOKEN_LIFETIME_S, UserRecord
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer, nothing, page_of
from lakebed.server.routing import Route
from lakebed.server.state import AppState


class Identities:
    def __init__(self, state: AppState) -> None:
        self._accounts = state.accounts
        self._authenticator = state.authenticator
        self._authorizer = state.authorizer
        self._groups = state.groups

    async def log_in(self, request: RestRequest) -> Response:
        body = await request.decoded(wire.LoginInformation)
        token, expires_s = await self._authenticator.log_in(body.access_key_id, body.secret_access_key)
        response = answer(wire.AuthenticationToken(token=token, token_expiration=expires_s))
        response.set_cookie(SESSION_COOKIE, token, max_age=TOKEN_LIFETIME_S, httponly=True, samesite="strict")
        return response

    async def capabilities(self, _: RestRequest) -> Response:
        return answer(wire.AuthCapabilities())

    async def current_user(self, request: RestRequest) -> Response:
        user = await self._accounts.get_user(request.identity.user_id)
        return answer(wire.CurrentUser(user=user_record(user)))

    async def list_users(self, request: RestRequest) -> Response:
        users, has_more = await self._accounts.list_users(
            prefix=request.query("prefix"), after=request.query("after"), limit=request.amount()
        )
        pagination = page_of(users, has_more=has_more, last=users[-1].id if users else "")
        return answer(wire.UserList(pagination=pagination, results=[user_record(user) for user in users]))

    async def create_user(self, request: RestRequest) -> Response:
        body = await request.decoded(wire.UserCreation)
        return answer(user_record(await self._accounts.create_user(body.id)), 201)

    async def get_user(self, request: RestRequest) -> Response:
        return answer(user_record(await self._accounts.get_user(request.args[0])))

    async def delete_user(self, request: RestRequest) -> Response:
        user = await self._accounts.get_user(request.args[0])
        await self._groups.leave_admins(user)
        await self._accounts.delete_user(user.id)
        self._authenticator.forget_all()
        self._authorizer.forget_all()
        return nothing()

    async def list_credentials(self, request: RestRequest) -> Response:
        found, has_more = await self._accounts.list_credentials(
            request.args[0], prefix=request.query("prefix"), after=request.query("after"), limit=request.amount()
        )
        pagination = page_of(found, has_more=has_more, last=found[-1].access_key_id if found else "")
        results = [
            wire.Credentials(access_key_id=record.access_key_id, creation_date=record.created_ms // 1000)
            for record in found
        ]
        return answer(wire.CredentialsList(pagination=pagination, results=results))

    async def create_credentials(self, request: RestRequest) -> Response:
        issued = await self._accounts.create_credentials(request.args[0])
        return answer(
            wire.CredentialsWithSecret(
                access_key_id=issued.access_key_id,
                secret_access_key=issued.secret_access_key,
                creation_date=issued.created_ms // 1000,
            ),
            201,
        )

    async def get_credentials(self, request: RestRequest) -> Response:
        user_id, access_key_id = request.args
        record = await self._accounts.get_credentials(user_id, access_key_id)
        return answer(wire.Credentials(access_key_id=record.access_key_id, creation_date=record.created_ms // 1000))

    async def delete_credentials(self, request: RestRequest) -> Response:
        user_id, access_key_id = request.args
        await self._accounts.delete_credentials(user_id, access_key_id)
        self._authenticator.forget_all()
        return nothing()


def routes(state: AppState) -> list[Route]:
    here = Identities(state)
    credentials = "/auth/users/{userId}/credentials"
    return [
        Route("POST", "/auth/login", here.log_in, is_public=True),
        Route("GET", "/auth/capabilities", here.capabilities, is_public=True),
        Route("GET", "/user", here.current_user),
        Route("GET", "/auth/users", here.list_users),
        Route("POST", "/auth/users", here.create_user),
        Route("GET", "/auth/users/{userId}", here.get_user),
        Route("DELETE", "/auth/users/{userId}", here.delete_user),
        Route("GET", credentials, here.list_credentials),
        Route("POST", credentials, here.create_credentials),
        Route("GET", credentials + "/{accessKeyId}", here.get_credentials),
        Route("DELETE", credentials + "/{accessKeyId}", here.delete_credentials),
    ]


def user_record(record: UserRecord) -> wire.User:
    return wire.User(
        id=record.id,
        creation_date=record.created_ms // 1000,
        email=record.email,
        friendly_name=record.friendly_name,
    )
