"""Tell a client how it reaches the files of a table, and lend it a key pair for these files and no others."""

from __future__ import annotations

from lakebed.auth import Authenticator
from lakebed.catalog.tables import TABLES, TableName, Tables
from lakebed.operations import tables as operations
from lakebed.server.http.gate import may_always
from lakebed.server.http.requests import RestRequest
from lakebed.wire import StorageCredential

from .places import names_in

DELEGATION: str = "vended-credentials"


def files_settings(request: RestRequest) -> dict[str, str]:
    """Return the settings of the gateway, at the address that this client used."""
    scheme = "https" if request.is_secure else "http"
    url = str(request.base_url.replace(scheme=scheme)).rstrip("/")
    return {
        "s3.endpoint": url,
        "s3.path-style-access": "true",
        "s3.region": "us-east-1",
        "client.region": "us-east-1",
    }


def wants_keys(request: RestRequest) -> bool:
    return DELEGATION in (request.header(b"x-iceberg-access-delegation") or "")


async def lent_settings(
    authenticator: Authenticator, request: RestRequest, name: TableName, uuid: str, tables: Tables
) -> list[StorageCredential]:
    """Lend a key pair for the files of a table, for reading, and for writing if the caller may change the table.

    What is allowed only at some time, or from some address, does not count: the pair works at all times from anywhere.
    Nothing is lent to a caller without a key pair or login of their own.
    """
    names = names_in(request, name.namespace, name.name)
    if not await may_always(operations.LOAD_TABLE.permissions or (), request.permissions, names):
        return []
    lent = authenticator.lend(
        request.identity,
        repository=request.args[0],
        branch=TABLES,
        folder=uuid,
        ref=names["ref"],
        namespace=names["namespace"],
        table=names["table"],
        may_write=await may_always((operations.LENT,), request.permissions, names),
    )
    if lent is None:
        return []
    key, secret, expires_s = lent
    config = {
        **files_settings(request),
        "s3.access-key-id": key,
        "s3.secret-access-key": secret,
        "s3.session-token": "",
        "s3.session-token-expires-at-ms": str(expires_s * 1000),
    }
    return [StorageCredential(prefix=tables.location(uuid) + "/", config=config)]
