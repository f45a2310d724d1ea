"""Logins of the unchanged `lakefs` package with identities of other providers."""

from __future__ import annotations

from pathlib import Path

import boto3
import httpx
import lakefs
import pytest
from lakefs.client import from_aws_role, from_web_identity

from tests import identity_providers

from .serving import serving

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


def test_a_role_of_aws_and_a_code_of_a_provider_log_in(tmp_path: Path) -> None:
    with identity_providers.serving(server_id="127.0.0.1") as provider:
        settings = {
            "LAKEBED_OIDC_ISSUER": provider.url,
            "LAKEBED_OIDC_AUDIENCE": "lake",
            "LAKEBED_AWS_SERVER_ID": "127.0.0.1",
            "LAKEBED_AWS_STS_ENDPOINT": provider.url,
        }
        with serving(tmp_path / "data", **settings) as server:
            pair = (server.access_key_id, server.secret_access_key)
            with httpx.Client(base_url=server.url + "/api/v1", auth=pair) as admin:
                lake = {"name": "lake", "storage_namespace": "local://lake"}
                admin.post("/repositories", json=lake).raise_for_status()
                for principal in ("aws:sts::123456789012:assumed-role/etl", f"{provider.url}#job"):
                    query = {"principalId": principal}
                    admin.post("/auth/users/esti/external/principals", params=query, json={}).raise_for_status()
            provider.id_token = provider.token()
            session = boto3.Session("ASIAEXAMPLE", "secret", "token", region_name="eu-west-1")

            by_role = from_aws_role(session, host=server.url)
            by_code = from_web_identity("right", "state", "https://app.example/back", host=server.url)

            assert [one.id for one in lakefs.repositories(client=by_role)] == ["lake"]
            assert [one.id for one in lakefs.repositories(client=by_code)] == ["lake"]
