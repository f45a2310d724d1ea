"""S3, or any compatible service: the client of a bucket, and the names of signed downloads.

obstore looks up a region, endpoint or credentials that `ObjectStoreOptions` do not set, as AWS's own tools do.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from lakebed.base import aws_signing_key
from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import InvalidNamespace

from .conditions import TriedConditions
from .remote import RemoteDeleter, RemoteObjectStore, prefix_of
from .remote_answers import brief
from .s3_listing import EveryKey, asking_signed

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential

_ENDPOINT: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:([0-9]{1,5}))?/?")
_CONDITIONS: Final = ("`If-None-Match: *` on PutObject", "`If-None-Match: *` on CompleteMultipartUpload")


def open_bucket(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> RemoteObjectStore:
    """Return the store of the keys in `bucket` below `path`, which may be empty."""
    prefix = prefix_of(path)
    secret = options.s3_secret_access_key
    # Only obstore has credentials that it finds by itself, such as those of a machine, so we cannot sign with them.
    name_download = None if secret is None else partial(signed_download, secret=secret)
    client, conditions = client_of(bucket, options), _conditions_of(bucket, options, prefix)
    every_key = EveryKey(asking_signed(client, partial(_store_at, options)), options).pages
    return RemoteObjectStore(uri, client, prefix, conditions, name_download, every_key=every_key)


def _store_at(options: ObjectStoreOptions, endpoint: str, signed: str) -> S3Store:
    """Return a client whose bucket is this endpoint, with the region that a signed query names."""
    region = parse_qs(signed)["X-Amz-Credential"][0].split("/")[-3]
    # The endpoint already has the bucket's name.
    config: S3Config = {"endpoint": endpoint, "region": region, "virtual_hosted_style_request": True}
    return S3Store(
        "bucket",
        config=config,
        client_options={"allow_http": endpoint.startswith("http://")},
        credential_provider=_credentials(options),
    )


def open_bucket_deleter(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> RemoteDeleter:
    return RemoteDeleter(uri, client_of(bucket, options), prefix_of(path))


@lru_cache(maxsize=64)
def client_of(bucket: str, options: ObjectStoreOptions) -> S3Store:
    """Return the client of a bucket: one connection pool for all namespaces in it. obstore's clients have no close.

    Raises:
        InvalidNamespace: the options cannot be used.
    """
    _check_options(options)
    config: S3Config = {
        "virtual_hosted_style_request": options.s3_virtual_hosted or options.s3_endpoint is None,
        "copy_if_not_exists": "multipart",
    }
    if options.s3_endpoint is not None:
        config |= {"endpoint": options.s3_endpoint, "region": "us-east-1"}
    if options.s3_region is not None:
        config["region"] = options.s3_region
    timeout = timedelta(seconds=options.timeout_s)
    try:
        return S3Store(
            bucket,
            config=config,
            client_options={"allow_http": (options.s3_endpoint or "").startswith("http://"), "timeout": timeout},
            retry_config={"max_retries": options.retries_max, "retry_timeout": timeout},
            credential_provider=_credentials(options),
        )
    except BaseError as error:
        raise InvalidNamespace(f"s3://{bucket} cannot be opened: {brief(error)}") from error


def _check_options(options: ObjectStoreOptions) -> None:
    """Refuse options at which obstore would panic in the first request."""
    if options.s3_endpoint is not None:
        found = _ENDPOINT.fullmatch(options.s3_endpoint)
        if not found or int(found[3] or 0) > 0xFFFF:
            raise InvalidNamespace(
                f"{options.s3_endpoint!r} is not an endpoint: http(s)://, a host, and perhaps a port"
            )
    if (options.s3_access_key_id is None) != (options.s3_secret_access_key is None):
        raise InvalidNamespace("an S3 access key id and its secret are given together or not at all")


def _credentials(options: ObjectStoreOptions) -> Callable[[], S3Credential] | None:
    """Return a provider of the options' credentials, or None.

    Not as part of the configuration: obstore would add a session token that the environment has for another key.
    """
    if options.s3_access_key_id is None or options.s3_secret_access_key is None:
        return None
    credential: S3Credential = {
        "access_key_id": options.s3_access_key_id,
        "secret_access_key": options.s3_secret_access_key,
        "token": options.s3_session_token,
        "expires_at": None,
    }
    return lambda: credential


@lru_cache(maxsize=1024)
def _conditions_of(bucket: str, options: ObjectStoreOptions, prefix: str) -> TriedConditions:
    return TriedConditions(client_of(bucket, options), prefix, _CONDITIONS)


# Signed downloads


def signed_download(url: str, file_name: str, *, secret: str) -> str:
    """Return the URL that a browser saves as `file_name`. Its query names the file, and is signed again with `secret`.

    obstore signs a URL for a key only. This is Signature Version 4 in the query, for S3, with the parameters that
    obstore chose: RFC 3986 escapes, names in order, `host` the only signed header, the body unsigned.
    """
    parts = urlsplit(url)
    parameters = {
        name: value for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "X-Amz-Signature"
    }
    parameters["response-content-disposition"] = disposition(file_name)
    query = "&".join(f"{_escape(name)}={_escape(value)}" for name, value in sorted(parameters.items()))
    canonical = f"GET\n{parts.path}\n{query}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    scope = "/".join(parameters["X-Amz-Credential"].rsplit("/", 4)[1:])
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{parameters['X-Amz-Date']}\n{scope}\n{digest}"
    signature = hmac.new(_signing_key(secret, scope), text.encode(), hashlib.sha256).hexdigest()
    return parts._replace(query=f"{query}&X-Amz-Signature={signature}").geturl()


def disposition(file_name: str) -> str:
    """Return the header that names a download: in ASCII for every client, and unchanged for clients that know RFC
    6266.
    """
    plain = re.sub(r'[^ -~]|["\\]', "_", file_name)
    header = f'attachment; filename="{plain}"'
    return header if plain == file_name else f"{header}; filename*=UTF-8''{_escape(file_name)}"


def _escape(text: str) -> str:
    return quote(text, safe="-_.~")


_signing_key: Final = lru_cache(maxsize=16)(aws_signing_key)
