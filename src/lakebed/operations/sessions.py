"""Logins that go on: ours, beside the contract's operations of accounts."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import LOGGED_IN, NOTHING, PUBLIC, Operation, delete, get
from .resources import USER, on

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
