"""List every blob of an Azure container under its exact name, also names that no folder could hold: `a//b`, `a/`.

obstore fails at such a name, and signs no listings. So this module signs the request with the key of the account
(Azure's documents call this Shared Key), or adds the shared access signature of the options.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Final
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import ObjectStat, ObjectStoreDenied, ObjectStoreUnavailable

from .remote_answers import ms_of
from .s3_listing import encoded, fetch, open_http

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
