"""Azure Blob Storage: the client of a container of one account.

obstore looks up credentials that `ObjectStoreOptions` do not set (a token, a service principal, a machine's identity)
in the variables of Azure's tools. A listing has no start position: one that starts late also reads the names before it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore

from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import InvalidNamespace

from .azure_listing import EveryBlob
from .conditions import TriedConditions
from .remote import RemoteDeleter, RemoteObjectStore, Traits, prefix_of
from .remote_answers import brief

if TYPE_CHECKING:
    from obstore.store import AzureConfig

_CONDITIONS: Final = ("`If-None-Match: *` on Put Blob", "`If-None-Match: *` on Copy Blob")

_FORBIDDEN: Final = re.compile(r"\\|\.(?=/|\Z)")
"""Azure treats a backslash as a slash, and may drop dots at a segment's end: two keys would be one blob."""


def open_bucket(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> RemoteObjectStore:
    """Return the store of the keys in the container `bucket` below `path`, which may be empty."""
    prefix = prefix_of(path)
    # Only obstore has the token of a service principal or a machine, so our own listing cannot be signed with it.
    signs = options.azure_account is not None and (options.azure_key or options.azure_sas_token) is not None
    return RemoteObjectStore(
        uri,
        client_of(bucket, options),
        prefix,
        _conditions_of(bucket, options, prefix),
        traits=_traits_of(options),
        every_key=EveryBlob(bucket, options).pages if signs else None,
    )


def open_bucket_deleter(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> RemoteDeleter:
    return RemoteDeleter(uri, client_of(bucket, options), prefix_of(path), _traits_of(options))


def _traits_of(options: ObjectStoreOptions) -> Traits:
    # With any other credential, Azure would first have to issue a key for signing.
    return Traits(forbidden=_FORBIDDEN, copies_later=True, signs=options.azure_key is not None)


@lru_cache(maxsize=64)
def client_of(bucket: str, options: ObjectStoreOptions) -> AzureStore:
    """Return the client of a container, one for all namespaces in it.

    Raises:
        InvalidNamespace: the options cannot be used.
    """
    config: AzureConfig = {}
    if options.azure_account is not None:
        config["account_name"] = options.azure_account
    if options.azure_key is not None:
        config["account_key"] = options.azure_key
    if options.azure_sas_token is not None:
        config["sas_key"] = options.azure_sas_token.removeprefix("?")
    if options.azure_endpoint is not None:
        config["endpoint"] = options.azure_endpoint
    timeout = timedelta(seconds=options.timeout_s)
    try:
        return AzureStore(
            bucket,
            config=config,
            client_options={"allow_http": (options.azure_endpoint or "").startswith("http://"), "timeout": timeout},
            retry_config={"max_retries": options.retries_max, "retry_timeout": timeout},
        )
    except BaseError as error:
        raise InvalidNamespace(
            f"az://{bucket} cannot be opened: {brief(error)}; name the account by LAKEBED_AZURE_ACCOUNT"
        ) from error


@lru_cache(maxsize=1024)
def _conditions_of(bucket: str, options: ObjectStoreOptions, prefix: str) -> TriedConditions:
    return TriedConditions(client_of(bucket, options), prefix, _CONDITIONS)
