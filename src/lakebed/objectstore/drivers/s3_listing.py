"""List every key of a bucket unchanged, also keys that no folder could hold: `a//b`, `a/../b`, `a/`. For S3 and GCS.

obstore drops the slash at the end of a key, and fails at the other keys. But it signs a URL for any endpoint, with any
credentials that it found. So each page gets its own client, with the query in its endpoint: obstore adds a slash at the
end, which the parameter `x-id` absorbs. Services know this name from AWS's own clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree as ET

import obstore

from lakebed.base import LakebedError, Later, in_words
from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import ObjectStat, ObjectStoreUnavailable

from .remote_answers import ListingUnasked, done, ms_of, refusal

if TYPE_CHECKING:
    import httpx
    from obstore.store import GCSStore, S3Store

    Signer: TypeAlias = S3Store | GCSStore
else:
    httpx = Later("httpx")  # Spark's workers need not have it

Ask: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns the URL that sends this query to the bucket."""

PAGE_KEYS: Final = 1000
SIGNED_S: Final = 300
PAUSE_S: Final = 0.2
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_LAST: Final = "\U0010ffff"


def asking_signed(client: Signer, store_at: Callable[[str, str], Signer]) -> Ask:
    """Sign each query by a client that `store_at(endpoint, query of a signed URL)` makes.

    Raises:
        ListingUnasked: the credentials at hand cannot sign.
    """

    async def ask(query: str) -> str:
        try:
            signed = urlsplit(await _sign(client, "x"))
            bucket = f"{signed.scheme}://{signed.netloc}{signed.path.removesuffix('/x')}"
            return await _sign(store_at(f"{bucket}?{query}&x-id=", signed.query), "")
        except LakebedError as error:
            raise ListingUnasked(f"no listing can be signed: {error}") from error

    return ask


async def _sign(client: Signer, key: str) -> str:
    return await done("", obstore.sign_async(client, "GET", key, timedelta(seconds=SIGNED_S)))


class EveryKey:
    """The listing of one bucket, with URLs from `ask`."""

    def __init__(self, ask: Ask, options: ObjectStoreOptions) -> None:
        self._ask = ask
        self._options = options

    async def pages(self, prefix: str, after: str, *, delimiter: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """Yield the objects behind `after` that begin with `prefix`: any strings. Keys are those of the bucket.

        With a delimiter, all keys that are equal up to it become one folder, which ends with the delimiter and has no
        size.

        Raises:
            ListingUnasked: before the first page.
            ObjectStoreUnavailable: the service does not answer, or lists out of order.
        """
        async with open_http(self._options) as http:
            while True:
                query = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "start-after": after}
                query["delimiter"] = delimiter
                url = await self._ask(encoded(query))
                page, is_cut = _read(await fetch(http, url, {}, self._options))
                for stat in page:
                    if stat.key <= after or not stat.key.startswith(prefix):
                        raise ObjectStoreUnavailable("this bucket lists out of order, or what was not asked for")
                    after = stat.key
                if delimiter and after.endswith(delimiter):
                    after += _LAST  # behind every key in this folder
                if page:
                    yield page
                # A service may omit that more keys follow. A page that is not full is the last.
                if not page or not (is_cut or len(page) % PAGE_KEYS == 0):
                    return


def open_http(options: ObjectStoreOptions) -> httpx.AsyncClient:
    """
    Raises:
        ListingUnasked: this process has no package for it.
    """
    try:
        return httpx.AsyncClient(timeout=options.timeout_s)
    except ModuleNotFoundError as error:
        raise ListingUnasked(f"no listing can be sent: {error.name} is not installed here") from error


def encoded(query: Mapping[str, str]) -> str:
    """Encode a query without its empty values."""
    return "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items() if text)


async def fetch(http: httpx.AsyncClient, url: str, headers: Mapping[str, str], options: ObjectStoreOptions) -> bytes:
    """Return the answer's body. Repeat the request while the service is busy."""
    for attempt in range(options.retries_max + 1):
        if attempt:
            await asyncio.sleep(PAUSE_S * 2**attempt)
        try:
            answer = await http.get(url, headers=headers)
        except httpx.HTTPError as error:
            reason: Exception = ObjectStoreUnavailable(f"no listing: {in_words(error)}")
            continue
        if answer.status_code == 200:
            return answer.content
        reason = refusal(answer.status_code, answer.text)
        if answer.status_code not in _RETRIED:
            break
    raise reason


def _read(data: bytes) -> tuple[Sequence[ObjectStat], bool]:
    """Read the answer to a listing: its objects, and whether more follow."""
    try:
        # This expat version refuses documents that grow by their entities.
        root = ET.fromstring(data)  # noqa: S314  # the store's own answer, and see above
        namespace = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        is_escaped = root.findtext(f"{namespace}EncodingType") == "url"
        page = []
        for row in root.iterfind(f"{namespace}Contents"):
            fields = {each.tag.removeprefix(namespace): each.text or "" for each in row}
            modified = datetime.fromisoformat(fields["LastModified"])
            page.append(
                ObjectStat(
                    key=unquote_plus(fields["Key"]) if is_escaped else fields["Key"],
                    size_bytes=int(fields["Size"]),
                    modified_ms=ms_of(modified),
                    checksum=fields.get("ETag", "").strip('"'),
                )
            )
        folders = [
            ObjectStat(key=unquote_plus(text) if is_escaped else text, size_bytes=0, modified_ms=0)
            for text in (name.text or "" for name in root.iterfind(f"{namespace}CommonPrefixes/{namespace}Prefix"))
        ]
        if folders:
            page = sorted([*page, *folders], key=lambda stat: stat.key)
        return page, root.findtext(f"{namespace}IsTruncated") == "true"
    except (ET.ParseError, KeyError, ValueError, TypeError) as error:
        raise ObjectStoreUnavailable(f"the store answered no listing: {error}") from error
