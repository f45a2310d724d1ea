"""Operations on the server itself: health, set-up, configuration, usage."""

from __future__ import annotations

from lakebed import wire
from lakebed.auth import SESSION_COOKIE
from lakebed.operations import API_ROOT, accounts, installation
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, serves
from lakebed.server.identity.setting_up import check_set_up
from lakebed.server.state import AppState


class Installation(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._version = wire.VersionConfig(lakebed_version=state.version)
        self._config = wire.Config(storage_config=state.storage, version_config=self._version)

    @serves(installation.HEALTH_CHECK)
    async def health(self, _: RestRequest) -> None:
        pass

    @serves(installation.GET_SETUP_STATE)
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

    @serves(installation.SETUP)
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

    @serves(installation.SETUP_COMM_PREFS)
    async def communication_preferences(self, _: RestRequest) -> dict[str, str]:
        """Accept the address and discard it: this server sends no mail."""
        return {}

    @serves(installation.GET_CONFIG)
    async def config(self, _: RestRequest) -> wire.Config:
        return self._config

    @serves(installation.GET_LAKEFS_VERSION)
    async def version(self, _: RestRequest) -> wire.VersionConfig:
        return self._version

    @serves(installation.GET_STORAGE_CONFIG)
    async def storage(self, _: RestRequest) -> wire.StorageConfig:
        return self._state.storage

    @serves(installation.POST_STATS_EVENTS)
    async def statistics(self, _: RestRequest, __: wire.StatsEventsList) -> None:
        """Check the events and discard them: this server keeps no usage statistics."""

    @serves(installation.GET_USAGE_REPORT_SUMMARY)
    async def usage(self, _: RestRequest) -> wire.UsageReportSummary:
        installation = await self._state.accounts.installation()
        return wire.UsageReportSummary(installation_id=installation.id if installation else "", reports=[])
