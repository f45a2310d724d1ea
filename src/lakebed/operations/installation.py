"""Operations on the server rather than on a repository: health, set-up, configuration, usage."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import LOGGED_IN, NOTHING, PUBLIC, PUBLIC_BYTES_MAX, Parameter, get, post

HEALTH_CHECK: Final = get("healthCheck", "/healthcheck", NOTHING, PUBLIC, "Answer while the server runs.", status=204)
GET_SETUP_STATE: Final = get(
    "getSetupState", "/setup_lakefs", wire.SetupState, PUBLIC, "Return whether the server is set up."
)
SETUP: Final = post(
    "setup",
    "/setup_lakefs",
    wire.Setup,
    wire.CredentialsWithSecret,
    PUBLIC,
    "Make the first user, an administrator, and return its key pair. Works once.",
    creates=True,
    body_bytes_max=PUBLIC_BYTES_MAX,
)
SETUP_COMM_PREFS: Final = post(
    "setupCommPrefs",
    "/setup_comm_prefs",
    NOTHING,
    dict[str, str],
    PUBLIC,
    "Accept an address for news, and forget it: this server sends no mail.",
)
GET_CONFIG: Final = get(
    "getConfig", "/config", wire.Config, LOGGED_IN, "Return versions and the abilities of the storage."
)
GET_LAKEFS_VERSION: Final = get(
    "getLakeFSVersion", "/config/version", wire.VersionConfig, LOGGED_IN, "Return versions."
)
GET_STORAGE_CONFIG: Final = get(
    "getStorageConfig", "/config/storage", wire.StorageConfig, LOGGED_IN, "Return the abilities of the storage."
)
POST_STATS_EVENTS: Final = post(
    "postStatsEvents",
    "/statistics",
    wire.StatsEventsList,
    NOTHING,
    LOGGED_IN,
    "Check usage events, and forget them: this server keeps no statistics of its users.",
    status=204,
)
GET_USAGE_REPORT_SUMMARY: Final = get(
    "getUsageReportSummary",
    "/usage-report/summary",
    wire.UsageReportSummary,
    LOGGED_IN,
    "Return the installation's id, and an empty report.",
)
OAUTH_CALLBACK: Final = get(
    "oauthCallback",
    "/oidc/callback",
    NOTHING,
    PUBLIC,
    "Finish a login that `oidcLogin` began: set the session cookie, and send the browser to `/login`.",
    Parameter("state"),
    Parameter("code"),
    Parameter("error"),
    Parameter("iss"),
    status=302,
    repeatable=False,
)
