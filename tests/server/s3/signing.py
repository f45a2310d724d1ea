"""Clients of the gateway in this process: requests signed as botocore signs them, and users with a key pair."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lakebed.server import App


class Signer(httpx.Auth):
    """Sign each request as botocore signs it."""

    requires_request_body = True

    def __init__(self, access_key_id: str, secret_access_key: str) -> None:
        self._credentials = Credentials(access_key_id, secret_access_key)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        kept = {k: v for k, v in request.headers.items() if k == "host" or k.startswith(("x-amz-", "content-"))}
        signed = AWSRequest(request.method, str(request.url), headers=kept, data=request.content)
        S3SigV4Auth(self._credentials, "s3", "us-east-1").add_auth(signed)
        for name, value in signed.headers.items():
            request.headers[name] = value.decode() if isinstance(value, bytes) else value
        yield request


@contextmanager
def asked_as(app: App, pair: tuple[str, str]) -> Iterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    yield httpx.AsyncClient(transport=transport, base_url="http://localhost", auth=Signer(*pair))


async def keys_of(client: httpx.AsyncClient, user: str, *statements: dict[str, object]) -> tuple[str, str]:
    """A user who may do what the statements say, and her key pair."""
    (await client.post("/auth/users", json={"id": user})).raise_for_status()
    (await client.post("/auth/policies", json={"id": user, "statement": [*statements]})).raise_for_status()
    (await client.put(f"/auth/users/{user}/policies/{user}")).raise_for_status()
    pair = (await client.post(f"/auth/users/{user}/credentials")).json()
    return pair["access_key_id"], pair["secret_access_key"]


def allow(*actions: str, resource: str = "*") -> dict[str, object]:
    return {"effect": "allow", "action": [*actions], "resource": resource}
