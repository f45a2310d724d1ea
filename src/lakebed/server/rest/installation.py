"""Health, set-up, configuration, usage: what a client asks of the server rather than of a repository."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from lakebed.auth import SESSION_COOKIE
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer, nothing
from lakebed.server.routing import Route
from lakebed.server.state import AppState
from lakebed.wire import (
    Config,
    CredentialsWithSecret,
    LoginConfig,
    Setup,
    SetupState,
    UsageReportSummary,
    VersionConfig,
)


class StatsEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    class_: str
    name: str
    count: int


class StatsEventsList(msgspec.Struct, frozen=True, kw_only=True):
    events: list[StatsEvent]


class Installation:
    def __init__(self, state: AppState) -> None:
        self._state = state
        self._version = VersionConfig(version=state.version)
        self._config = Config(storage_config=state.storage, version_config=self._version)

    async def health(self, _: RestRequest) -> Response:
        return nothing()

    async def setup_state(self, _: RestRequest) -> Response:
        initialised = await self._state.accounts.installation() is not None
        return answer(
            SetupState(
                state="initialized" if initialised else "not_initialized",
                login_config=LoginConfig(login_cookie_names=[SESSION_COOKIE]),
            )
        )

    async def set_up(self, request: RestRequest) -> Response:
        body = await request.decoded(Setup)
        issued = await self._state.accounts.set_up(
            body.username,
            access_key_id=body.key.access_key_id if body.key else None,
            secret_access_key=body.key.secret_access_key if body.key else None,
        )
        return answer(
            CredentialsWithSecret(
                access_key_id=issued.access_key_id,
                secret_access_key=issued.secret_access_key,
                creation_date=issued.created_ms // 1000,
            )
        )

    async def communication_preferences(self, _: RestRequest) -> Response:
        """Taken and forgotten: nobody here sends mail."""
        return answer({})

    async def config(self, _: RestRequest) -> Response:
        return answer(self._config)

    async def version(self, _: RestRequest) -> Response:
        return answer(self._version)

    async def storage(self, _: RestRequest) -> Response:
        return answer(self._state.storage)

    async def statistics(self, request: RestRequest) -> Response:
        """Checked and forgotten: we keep no statistics of our users."""
        await request.decoded(StatsEventsList)
        return nothing()

    async def usage(self, _: RestRequest) -> Response:
        installation = await self._state.accounts.installation()
        return answer(UsageReportSummary(installation_id=installation.id if installation else "", reports=[]))


def routes(state: AppState) -> list[Route]:
    here = Installation(state)
    return [
        Route("GET", "/healthcheck", here.health, is_public=True),
        Route("GET", "/setup_lakefs", here.setup_state, is_public=True),
        Route("POST", "/setup_lakefs", here.set_up, is_public=True),
        Route("POST", "/setup_comm_prefs", here.communication_preferences, is_public=True),
        Route("GET", "/config", here.config),
        Route("GET", "/config/version", here.version),
        Route("GET", "/config/storage", here.storage),
        Route("POST", "/statistics", here.statistics),
        Route("GET", "/usage-report/summary", here.usage),
    ]
