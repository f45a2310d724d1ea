"""Tell a client how it reaches the files of a table: lend a key pair for these files alone, or sign requests."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Final
from urllib.parse import urlsplit

from lakebed.auth import Authenticator, NotPermitted
from lakebed.catalog.tables import TABLES, TableName, Tables
from lakebed.operations import tables as operations
from lakebed.server.http.errors import InvalidBody
from lakebed.server.http.fields import query_pairs
from lakebed.server.http.gate import may_always
from lakebed.server.http.requests import PAIRS_MAX, RestRequest
from lakebed.server.s3.requests.signatures import (
    ALGORITHM,
    canonical_path,
    canonical_request,
    signing_key,
    string_to_sign,
)
from lakebed.wire import FileRequest, SignedFileRequest, StorageCredential

from .places import names_in, path_of

DELEGATION: Final = "vended-credentials"
SIGNING: Final = "remote-signing"


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


def wants_signatures(request: RestRequest) -> bool:
    return SIGNING in (request.header(b"x-iceberg-access-delegation") or "") and not wants_keys(request)


def signer_settings(request: RestRequest, name: TableName) -> dict[str, str]:
    """Return where a client has its requests for files of a table signed."""
    return {
        "s3.signer.uri": f"{str(request.base_url).rstrip('/')}/iceberg",
        "s3.signer.endpoint": f"v1/{path_of(request, name)}/sign",
        "s3.remote-signing-enabled": "true",
        # PyIceberg signs only so, and takes another reader of files by itself.
        "s3.signer": "S3V4RestSigner",
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }


async def lent_settings(
    authenticator: Authenticator, request: RestRequest, name: TableName, uuid: str, tables: Tables
) -> list[StorageCredential]:
    """Return the settings of a key pair that is lent for the files of a table. No pair: none."""
    lent = await _lent(authenticator, request, name, uuid)
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
    return [StorageCredential(prefix=tables.uri_of(uuid) + "/", config=config)]


async def signed(
    authenticator: Authenticator, request: RestRequest, name: TableName, uuid: str, asked: FileRequest, now_ms: int
) -> SignedFileRequest:
    """Sign a request with the key pair that the caller could have: the gateway admits what it would admit of them.

    So it does not matter which file the request is about.

    Raises:
        NotPermitted: nothing is lent to this caller.
        InvalidBody: the URI is none.
    """
    lent = await _lent(authenticator, request, name, uuid)
    if lent is None:
        raise NotPermitted("requests are signed for callers who may always read the table, with a key pair or login")
    try:
        url = urlsplit(asked.uri)
        host, raw_path, raw_query = url.netloc.rpartition("@")[2], url.path.encode("ascii"), url.query.encode()
    except ValueError as error:
        raise InvalidBody(f"{asked.uri[:200]!a} is no URI of a request") from error
    query = query_pairs(raw_query, most=PAIRS_MAX)
    time = strftime("%Y%m%dT%H%M%SZ", gmtime(now_ms / 1000))
    sent = {key.lower(): ",".join(values) for key, values in asked.headers.items()}
    payload = sent.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    covered = {key: value for key, value in sent.items() if key.startswith("x-amz-") or key == "content-md5"}
    covered |= {"host": host, "x-amz-date": time, "x-amz-content-sha256": payload}
    headers = [(key.encode(), value.encode("latin-1", "replace")) for key, value in sorted(covered.items())]
    names = [key for key, _ in headers]
    scope = f"{time[:8]}/{asked.region}/s3/aws4_request"
    canonical = canonical_request(asked.method, canonical_path(raw_path), query, headers, names, payload)
    signature = signing_key(lent[1], scope).sign(string_to_sign(time, scope, canonical))
    listed = b";".join(names).decode()
    proof = f"{ALGORITHM} Credential={lent[0]}/{scope}, SignedHeaders={listed}, Signature={signature}"
    added = {"Authorization": [proof], "x-amz-date": [time]}
    if "x-amz-content-sha256" not in sent:
        added["x-amz-content-sha256"] = [payload]
    return SignedFileRequest(uri=asked.uri, headers=added)


async def _lent(
    authenticator: Authenticator, request: RestRequest, name: TableName, uuid: str
) -> tuple[str, str, int] | None:
    """Lend a key pair for the files of a table, for reading, and for writing if the caller may change the table.

    What is allowed only at some time, or from some address, does not count: the pair works at all times from anywhere.
    Nothing is lent to a caller without a key pair or login of their own.
    """
    names = names_in(request, name.namespace, name.name)
    if not await may_always(operations.LOAD_TABLE.permissions or (), request.permissions, names):
        return None
    return authenticator.lend(
        request.identity,
        repository=request.args[0],
        branch=TABLES,
        folder=uuid,
        ref=names["ref"],
        namespace=names["namespace"],
        table=names["table"],
        may_write=await may_always((operations.LENT,), request.permissions, names),
    )
