"""Google Cloud Storage: the client of a bucket, over its XML API.

Credentials are those of a service account's file, or those that obstore finds: application default credentials, or the
identity of a machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError
from obstore.store import GCSStore

from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import InvalidNamespace

from .conditions import TriedConditions
from .remote import RemoteDeleter, RemoteObjectStore, Traits, prefix_of
from .remote_answers import brief
from .s3_listing import Ask, EveryKey, asking_signed

if TYPE_CHECKING:
    from obstore.store import GCSConfig

_CONDITIONS: Final = ("`x-goog-if-generation-match: 0` on a put", "`x-goog-if-generation-match: 0` on a copy")
_TRAITS: Final = Traits(signs=False)  # most credentials have no key for signing


def open_bucket(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> RemoteObjectStore:
    """Return the store of the keys in `bucket` below `path`, which may be empty."""
    prefix = prefix_of(path)
    every_key = EveryKey(ask_of(bucket, options), options).pages
    return RemoteObjectStore(
        uri,
        client_of(bucket, options),
        prefix,
        _conditions_of(bucket, options, prefix),
        traits=_TRAITS,
        every_key=every_key,
    )


def ask_of(bucket: str, options: ObjectStoreOptions) -> Ask:
    """Return the function that makes the URL of a listing with exact names."""
    if not _is_anonymous(options):
        return asking_signed(
            client_of(bucket, options), lambda endpoint, _: _client_of(bucket, replace(options, gs_endpoint=endpoint))
        )

    async def ask(query: str) -> str:
        return f"{options.gs_endpoint}/{bucket}?{query}"

    return ask


def open_bucket_deleter(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> RemoteDeleter:
    return RemoteDeleter(uri, client_of(bucket, options), prefix_of(path), _TRAITS)


@lru_cache(maxsize=64)
def client_of(bucket: str, options: ObjectStoreOptions) -> GCSStore:
    """Return the client of a bucket, one for all namespaces in it.

    Raises:
        InvalidNamespace: the options cannot be used.
    """
    return _client_of(bucket, options)


def _client_of(bucket: str, options: ObjectStoreOptions) -> GCSStore:
    config: GCSConfig = {}
    without_tls = (options.gs_endpoint or "").startswith("http://")
    if options.gs_service_account is not None:
        config["service_account"] = str(options.gs_service_account)
    elif _is_anonymous(options):
        # An emulator. Send it no credentials: they would travel unencrypted.
        anonymous = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        config["service_account_key"] = json.dumps(anonymous)
    if options.gs_endpoint is not None:
        config["base_url"] = options.gs_endpoint
    timeout = timedelta(seconds=options.timeout_s)
    try:
        return GCSStore(
            bucket,
            config=config,
            client_options={"allow_http": without_tls, "timeout": timeout},
            retry_config={"max_retries": options.retries_max, "retry_timeout": timeout},
        )
    except BaseError as error:
        raise InvalidNamespace(f"gs://{bucket} cannot be opened: {brief(error)}") from error


def _is_anonymous(options: ObjectStoreOptions) -> bool:
    return options.gs_service_account is None and (options.gs_endpoint or "").startswith("http://")


@lru_cache(maxsize=1024)
def _conditions_of(bucket: str, options: ObjectStoreOptions, prefix: str) -> TriedConditions:
    return TriedConditions(client_of(bucket, options), prefix, _CONDITIONS)
