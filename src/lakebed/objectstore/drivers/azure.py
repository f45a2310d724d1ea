"""Azure Blob Storage: the client of a container of one account.

obstore looks up credentials that `ObjectStoreOptions` do not set (a token, a service principal, a machine's identity)
in the variables of Azure's tools. A listing has no start position: one that starts late also reads the names before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from obstore.exceptions import BaseError
from obstore.store import AzureStore

from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import InvalidNamespace, ObjectStat, ObjectStoreDenied, ObjectStoreUnavailable

from .conditions import TriedConditions
from .remote import RemoteDeleter, RemoteObjectStore, Traits, prefix_of
from .remote_answers import brief, ms_of
from .s3_listing import encoded, fetch, open_http

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


# obstore fails at names such as `a//b` or `a/`, and signs no listings. So sign the request with the key of the account
# (Azure calls this Shared Key), or add the shared access signature of the options.

VERSION: Final = "2021-12-02"


class EveryBlob:
    """The listing of one container."""

    def __init__(self, container: str, options: ObjectStoreOptions) -> None:
        self._options = options
        endpoint = options.azure_endpoint or f"https://{options.azure_account}.blob.core.windows.net"
        self._url = f"{endpoint.rstrip('/')}/{container}"

    async def pages(self, prefix: str, after: str, *, delimiter: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """Yield the blobs behind `after` that begin with `prefix`: any strings. Keys are those of the container.

        Azure lists from the beginning of the prefix, so names before `after` are read too. With a delimiter, all names
        that are equal up to it become one folder, which ends with the delimiter and has no size.

        Raises:
            ObjectStoreUnavailable: the service does not answer, or lists out of order.
        """
        last, marker = "", ""
        async with open_http(self._options) as http:
            while True:
                query = {"comp": "list", "delimiter": delimiter, "marker": marker, "prefix": prefix}
                query = {name: text for name, text in query.items() if text} | {"restype": "container"}
                blobs, marker = _read(await fetch(http, self._asked(query), self._headers(query), self._options))
                for blob in blobs:
                    if blob.key <= last or not blob.key.startswith(prefix):
                        raise ObjectStoreUnavailable("this container lists out of order, or what was not asked for")
                    last = blob.key
                if page := [blob for blob in blobs if blob.key > after]:
                    yield page
                if not marker:
                    return

    def _asked(self, query: Mapping[str, str]) -> str:
        url = f"{self._url}?{encoded(query)}"
        if self._options.azure_key is None:
            url += "&" + (self._options.azure_sas_token or "").removeprefix("?")
        return url

    def _headers(self, query: Mapping[str, str]) -> dict[str, str]:
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": VERSION}
        if self._options.azure_key is None:
            return headers
        # Eleven headers of the protocol are empty here; Azure's own headers, the resource and the query follow them.
        named = "".join(f"{name}:{value}\n" for name, value in headers.items())
        asked = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        text = f"GET{chr(10) * 12}{named}/{self._options.azure_account}{urlsplit(self._url).path}{asked}"
        try:
            key = base64.b64decode(self._options.azure_key, validate=True)
        except binascii.Error as error:
            raise ObjectStoreDenied("the key of the account is not base64") from error
        signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
        return headers | {"Authorization": f"SharedKey {self._options.azure_account}:{signature}"}


def _read(data: bytes) -> tuple[Sequence[ObjectStat], str]:
    """Read the answer to a listing: its blobs and folders in order, and the marker of the next page."""
    try:
        # This expat version refuses documents that grow by their entities.
        root = ET.fromstring(data)  # noqa: S314  # the store's own answer, and see above
        blobs = [_stat(row) for row in root.iterfind("Blobs/Blob") if not _is_folder(row)]
        folders = [ObjectStat(key=_name(row), size_bytes=0, modified_ms=0) for row in root.iterfind("Blobs/BlobPrefix")]
        if folders:
            blobs = sorted([*blobs, *folders], key=lambda stat: stat.key)
        return blobs, root.findtext("NextMarker") or ""
    except (ET.ParseError, KeyError, ValueError, TypeError) as error:
        raise ObjectStoreUnavailable(f"the store answered no listing: {error}") from error


def _stat(row: ET.Element) -> ObjectStat:
    fields = {each.tag: each.text or "" for each in row.iterfind("Properties/*")}
    modified = parsedate_to_datetime(fields["Last-Modified"])
    return ObjectStat(
        key=_name(row),
        size_bytes=int(fields["Content-Length"]),
        modified_ms=ms_of(modified),
        checksum=fields.get("Etag", "").strip('"'),
    )


def _name(row: ET.Element) -> str:
    name = row.find("Name")
    if name is None or not name.text:
        raise ValueError("a blob has no name")
    # Azure escapes a name that XML cannot hold, and marks it.
    return unquote(name.text) if name.get("Encoded") == "true" else name.text


def _is_folder(row: ET.Element) -> bool:
    """Return whether a row is a folder of an account with a hierarchical namespace. It is no object."""
    return row.findtext("Properties/ResourceType") == "directory"
