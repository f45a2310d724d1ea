"""Logins that go on: ours, beside the contract's operations of accounts."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import LOGGED_IN, NOTHING, PUBLIC, PUBLIC_BYTES_MAX, USER, Operation, delete, get, on

OIDC_LOGIN: Final = Operation(
    "oidcLogin",
    "GET",
    "/oidc/login",
    NOTHING,
    NOTHING,
    PUBLIC,
    "Begin a login in a browser: send it to the provider of OpenID Connect, which sends it back to `oauthCallback`.",
    status=302,
)
LOGOUT: Final = Operation(
    "logout",
    "POST",
    "/auth/logout",
    NOTHING,
    NOTHING,
    LOGGED_IN,
    "End the session of the token or cookie that was sent.",
    status=204,
    repeatable=True,
)
CREATE_LOGIN_TICKET: Final = Operation(
    "createLoginTicket",
    "POST",
    "/auth/tickets",
    NOTHING,
    wire.LoginTicket,
    LOGGED_IN,
    "Make the ticket of a link that logs a browser of this machine in as the caller, once, within a minute.",
    status=201,
)
LOG_IN_BY_TICKET: Final = Operation(
    "logInByTicket",
    "POST",
    "/auth/login/ticket",
    wire.TicketLogin,
    wire.AuthenticationToken,
    PUBLIC,
    "Use a ticket up, and exchange it for a token, which is also set as a cookie.",
    body_bytes_max=PUBLIC_BYTES_MAX,
)
LIST_SESSIONS: Final = get(
    "listSessions",
    "/auth/users/{userId}/sessions",
    wire.LoginSessionList,
    on(USER, "auth:ListCredentials"),
    "List the logins of a user that go on.",
)
DELETE_SESSION: Final = delete(
    "deleteSession",
    "/auth/users/{userId}/sessions/{sessionId}",
    on(USER, "auth:DeleteCredentials"),
    "End a login of a user.",
)
