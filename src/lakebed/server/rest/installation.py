"""Operations on the server itself: health, set-up, configuration, usage."""

from __future__ import annotations

from lakebed import wire
from lakebed.auth import SESSION_COOKIE
from lakebed.operations import API_ROOT, accounts, installation
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Route
from lakebed.server.identity.setting_up import check_set_up
from lakebed.server.state import AppState


class Installation:
    def __init__(self, state: AppState) -> None:
        self._state = state
        self._version = wire.VersionConfig(lakebed_version=state.version)
        self._config = wire.Config(storage_config=state.storage, version_config=self._version)

    async def health(self, _: RestRequest) -> None:
        pass

    async def setup_state(self, _: RestRequest) -> wire.SetupState:
        initialised = await self._state.accounts.installation() is not None
        login = wire.LoginConfig(login_cookie_names=[SESSION_COOKIE])
        if self._state.providers.redirect_uri:
            login = wire.LoginConfig(
                login_cookie_names=[SESSION_COOKIE],
                login_url=API_ROOT + accounts.OIDC_LOGIN.path,
                login_url_method="select",
            )
        return wire.SetupState(
            state="initialized" if initialised else "not_initialized",
            # The contract's page of set-up shows the fields of its form only where this is true.
            comm_prefs_missing=not initialised,
            login_config=login,
        )

    async def set_up(self, request: RestRequest, body: wire.Setup) -> wire.CredentialsWithSecret:
        check_set_up(request, self._state.setup_secret)
        issued = await self._state.accounts.set_up(
            body.username,
            access_key_id=body.key.access_key_id if body.key else None,
            secret_access_key=body.key.secret_access_key if body.key else None,
        )
        return wire.CredentialsWithSecret(
            access_key_id=issued.access_key_id,
            secret_access_key=issued.secret_access_key,
            creation_date=issued.created_ms // 1000,
        )

    async def communication_preferences(self, _: RestRequest) -> dict[str, str]:
        """Accept the address and discard it: this server sends no mail."""
        return {}

    async def config(self, _: RestRequest) -> wire.Config:
        return self._config

    async def version(self, _: RestRequest) -> wire.VersionConfig:
        return self._version

    async def storage(self, _: RestRequest) -> wire.StorageConfig:
        return self._state.storage

    async def statistics(self, _: RestRequest, __: wire.StatsEventsList) -> None:
        """Check the events and discard them: this server keeps no usage statistics."""

    async def usage(self, _: RestRequest) -> wire.UsageReportSummary:
        installation = await self._state.accounts.installation()
        return wire.UsageReportSummary(installation_id=installation.id if installation else "", reports=[])


def routes(state: AppState) -> list[Route]:
    here = Installation(state)
    return [
        Route(installation.HEALTH_CHECK, here.health),
        Route(installation.GET_SETUP_STATE, here.setup_state),
        Route(installation.SETUP, here.set_up),
        Route(installation.SETUP_COMM_PREFS, here.communication_preferences),
        Route(installation.GET_CONFIG, here.config),
        Route(installation.GET_LAKEFS_VERSION, here.version),
        Route(installation.GET_STORAGE_CONFIG, here.storage),
        Route(installation.POST_STATS_EVENTS, here.statistics),
        Route(installation.GET_USAGE_REPORT_SUMMARY, here.usage),
    ]
