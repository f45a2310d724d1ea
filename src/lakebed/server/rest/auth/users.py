"""Login, users, credentials. Their permissions are in roles.py."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.auth import SESSION_COOKIE, TOKEN_LIFETIME_S, PrincipalRecord, UserRecord
from lakebed.operations import accounts
from lakebed.quotas import Books, of_user
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.requests import RestRequest, answer, check_origin, nothing, page_of
from lakebed.server.http.routing import Resource, serves
from lakebed.server.identity.setting_up import sender_of
from lakebed.server.state import AppState

PRINCIPAL_LIFETIME_S: Final = 3600
PRINCIPAL_LIFETIME_MAX_S: Final = 12 * 3600


class Identities(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._quotas = Books(state.catalog.meter)

    @serves(accounts.LOGIN)
    async def log_in(self, request: RestRequest, body: wire.LoginInformation) -> Response:
        # The answer sets a cookie: a page of another site must not log its visitor in as another user.
        check_origin(request)
        token, expires_s = await self._state.authenticator.log_in(body.access_key_id, body.secret_access_key)
        return _logged_in(request, token, expires_s, TOKEN_LIFETIME_S)

    @serves(accounts.CREATE_LOGIN_TICKET)
    async def create_ticket(self, request: RestRequest) -> wire.LoginTicket:
        made = await self._state.tickets.issue_for(request.identity, sender=sender_of(request))
        return wire.LoginTicket(username=made.user_id, ticket=made.secret, expiration_date=made.expires_ms // 1000)

    @serves(accounts.LOG_IN_BY_TICKET)
    async def log_in_by_ticket(self, request: RestRequest, body: wire.TicketLogin) -> Response:
        check_origin(request)
        token, expires_s, lifetime_s = await self._state.tickets.redeem(
            self._state.authenticator, body.username, body.ticket, sender=sender_of(request)
        )
        request.identity = await self._state.authenticator.authenticate(None, token.encode())
        return _logged_in(request, token, expires_s, lifetime_s)

    @serves(accounts.EXTERNAL_PRINCIPAL_LOGIN)
    async def log_in_as_principal(
        self, request: RestRequest, body: wire.ExternalLoginInformation
    ) -> wire.AuthenticationToken:
        lifetime_s = _lifetime_s(body.token_expiration_duration)
        return await self._token_of(request, await self._state.providers.identify(body.identity_request), lifetime_s)

    @serves(accounts.STS_LOGIN)
    async def log_in_with_code(self, request: RestRequest, body: wire.StsAuthRequest) -> wire.AuthenticationToken:
        lifetime_s = _lifetime_s(body.ttl_seconds)
        principal = await self._state.providers.exchange(body.code, body.redirect_uri)
        return await self._token_of(request, principal, lifetime_s)

    async def _token_of(self, request: RestRequest, principal: str, lifetime_s: int) -> wire.AuthenticationToken:
        """Log in as the user of a principal. Record both for the audit log, even for a principal without a user."""
        request.what = {"principal": principal}
        token, expires_s = await self._state.authenticator.log_in_as(principal, lifetime_s=lifetime_s)
        request.identity = await self._state.authenticator.authenticate(None, token.encode())
        return wire.AuthenticationToken(token=token, token_expiration=expires_s)

    @serves(accounts.LOGOUT)
    async def log_out(self, request: RestRequest) -> Response:
        await self._state.authenticator.log_out(request.identity)
        response = nothing()
        response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
        return response

    @serves(accounts.LIST_SESSIONS)
    async def list_sessions(self, request: RestRequest) -> wire.LoginSessionList:
        return wire.LoginSessionList(
            results=[
                wire.LoginSession(
                    id=session.id,
                    access_key_id=session.access_key_id,
                    principal=session.principal,
                    creation_date=session.created_ms // 1000,
                    expiration_date=session.expires_ms // 1000,
                )
                for session in await self._state.accounts.list_sessions(request.args[0])
            ]
        )

    @serves(accounts.DELETE_SESSION)
    async def end_session(self, request: RestRequest) -> None:
        await self._state.accounts.end_session(*request.args)
        self._state.authenticator.forget_all()

    @serves(accounts.GET_AUTH_CAPABILITIES)
    async def capabilities(self, _: RestRequest) -> wire.AuthCapabilities:
        return wire.AuthCapabilities()

    @serves(accounts.GET_CURRENT_USER)
    async def current_user(self, request: RestRequest) -> wire.CurrentUser:
        user = await self._state.accounts.get_user(request.identity.user_id)
        return wire.CurrentUser(user=user_record(user))

    @serves(accounts.LIST_USERS)
    async def list_users(self, request: RestRequest) -> wire.UserList:
        users, has_more = await self._state.accounts.list_users(**request.page())
        pagination = page_of(users, has_more=has_more, last=users[-1].id if users else "")
        return wire.UserList(pagination=pagination, results=[user_record(user) for user in users])

    @serves(accounts.CREATE_USER)
    async def create_user(self, _: RestRequest, body: wire.UserCreation) -> wire.User:
        return user_record(await self._state.accounts.create_user(body.id))

    @serves(accounts.GET_USER)
    async def get_user(self, request: RestRequest) -> wire.User:
        return user_record(await self._state.accounts.get_user(request.args[0]))

    @serves(accounts.LIST_USER_EXTERNAL_PRINCIPALS)
    async def list_principals(self, request: RestRequest) -> wire.ExternalPrincipalList:
        found, has_more = await self._state.principals.list(request.args[0], **request.page())
        pagination = page_of(found, has_more=has_more, last=found[-1].id if found else "")
        return wire.ExternalPrincipalList(pagination=pagination, results=[_principal(record) for record in found])

    @serves(accounts.GET_EXTERNAL_PRINCIPAL)
    async def get_principal(self, request: RestRequest) -> wire.ExternalPrincipal:
        return _principal(await self._state.principals.get(request.required("principalId")))

    @serves(accounts.CREATE_USER_EXTERNAL_PRINCIPAL)
    async def attach_principal(self, request: RestRequest, body: wire.ExternalPrincipalCreation) -> Response:
        await self._state.principals.attach(request.args[0], request.required("principalId"), body.settings or [])
        return Response(status_code=201)

    @serves(accounts.DELETE_USER_EXTERNAL_PRINCIPAL)
    async def detach_principal(self, request: RestRequest) -> None:
        await self._state.principals.detach(request.args[0], request.required("principalId"))
        self._state.authenticator.forget_all()

    @serves(accounts.DELETE_USER)
    async def delete_user(self, request: RestRequest) -> None:
        user = await self._state.accounts.get_user(request.args[0])
        await self._state.groups.leave_admins(user)
        await self._state.accounts.delete_user(user.id)
        await self._quotas.remove(of_user(user.id))
        self._state.authenticator.forget_all()
        self._state.authorizer.forget_all()

    @serves(accounts.LIST_USER_CREDENTIALS)
    async def list_credentials(self, request: RestRequest) -> wire.CredentialsList:
        found, has_more = await self._state.accounts.list_credentials(request.args[0], **request.page())
        pagination = page_of(found, has_more=has_more, last=found[-1].access_key_id if found else "")
        results = [
            wire.Credentials(access_key_id=record.access_key_id, creation_date=record.created_ms // 1000)
            for record in found
        ]
        return wire.CredentialsList(pagination=pagination, results=results)

    @serves(accounts.CREATE_CREDENTIALS)
    async def create_credentials(self, request: RestRequest) -> wire.CredentialsWithSecret:
        issued = await self._state.accounts.create_credentials(request.args[0])
        # Record the key in the audit log, so that later lines of its requests can be traced to this one.
        request.what = {"userId": request.args[0], "access_key_id": issued.access_key_id}
        return wire.CredentialsWithSecret(
            access_key_id=issued.access_key_id,
            secret_access_key=issued.secret_access_key,
            creation_date=issued.created_ms // 1000,
        )

    @serves(accounts.GET_CREDENTIALS)
    async def get_credentials(self, request: RestRequest) -> wire.Credentials:
        user_id, access_key_id = request.args
        record = await self._state.accounts.get_credentials(user_id, access_key_id)
        return wire.Credentials(access_key_id=record.access_key_id, creation_date=record.created_ms // 1000)

    @serves(accounts.DELETE_CREDENTIALS)
    async def delete_credentials(self, request: RestRequest) -> None:
        user_id, access_key_id = request.args
        await self._state.accounts.delete_credentials(user_id, access_key_id)
        self._state.authenticator.forget_all()


def _principal(record: PrincipalRecord) -> wire.ExternalPrincipal:
    return wire.ExternalPrincipal(id=record.id, user_id=record.user_id, settings=[*record.settings])


def _lifetime_s(asked: int | None) -> int:
    """Return the requested lifetime of a token in seconds, or the default."""
    lifetime_s = PRINCIPAL_LIFETIME_S if asked is None else asked
    if not 1 <= lifetime_s <= PRINCIPAL_LIFETIME_MAX_S:
        raise InvalidParameter(f"a token lasts between 1 and {PRINCIPAL_LIFETIME_MAX_S:,} seconds")
    return lifetime_s


def _logged_in(request: RestRequest, token: str, expires_s: int, lifetime_s: int) -> Response:
    response = answer(wire.AuthenticationToken(token=token, token_expiration=expires_s))
    keep_session(response, token, lifetime_s, secure=request.is_secure)
    return response


def keep_session(response: Response, token: str, lifetime_s: int, *, secure: bool) -> None:
    """Set the session cookie. The browser sends it with requests from our own pages only."""
    response.set_cookie(SESSION_COOKIE, token, max_age=lifetime_s, httponly=True, samesite="strict", secure=secure)


def user_record(record: UserRecord) -> wire.User:
    return wire.User(
        id=record.id,
        creation_date=record.created_ms // 1000,
        email=record.email,
        friendly_name=record.friendly_name,
    )
