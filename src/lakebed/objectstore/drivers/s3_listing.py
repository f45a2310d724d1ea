"""List every key of a bucket of S3 as it is, also keys that no folder could hold: `a//b`, `a/../b`, `a/`.

obstore takes the slash off the end of a key, and gives up over the others. But it signs a URL for whatever its
endpoint is, with whatever credentials it found. So each page gets a client of its own, whose endpoint is the question:
obstore adds a slash behind it, which the parameter `x-id` takes up. Services know this name from AWS's own clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote, unquote_plus, urlsplit
from xml.etree import ElementTree as ET

import httpx
import obstore
from obstore.store import S3Store

from lakebed.objectstore.options import ObjectStoreOptions
from lakebed.objectstore.store import ObjectStat, ObjectStoreUnavailable

from .remote_answers import done, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import S3Config, S3Credential

PAGE_KEYS: Final = 1000
SIGNED_S: Final = 300
PAUSE_S: Final = 0.2
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_LAST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class EveryKey:
    """The listing of one bucket, by the client that reads it."""

    def __init__(
        self, client: S3Store, options: ObjectStoreOptions, credentials: Callable[[], S3Credential] | None
    ) -> None:
        self._client = client
        self._options = options
        self._credentials = credentials

    async def pages(self, prefix: str, after: str, *, delimiter: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        """Yield what lies behind `after` and begins with `prefix`: any strings. Keys are those of the bucket.

        With a delimiter, all keys that go on behind it are shown as one, which ends with it and has no size.

        Raises:
            ObjectStoreUnavailable: the service does not answer, or lists out of order.
        """
        base, region = await self._address()
        async with httpx.AsyncClient(timeout=self._options.timeout_s) as http:
            while True:
                query = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "start-after": after}
                query["delimiter"] = delimiter
                url = await self._sign(base, region, {name: text for name, text in query.items() if text})
                page, is_cut = _read(await self._fetch(http, url))
                for stat in page:
                    if stat.key <= after or not stat.key.startswith(prefix):
                        raise ObjectStoreUnavailable("this bucket lists out of order, or what was not asked for")
                    after = stat.key
                if delimiter and after.endswith(delimiter):
                    after += _LAST  # Behind all that lies in this folder.
                if page:
                    yield page
                # A service may forget to say that there is more. A page that is not full has all.
                if not page or not (is_cut or len(page) % PAGE_KEYS == 0):
                    return

    async def _address(self) -> tuple[str, str]:
        """Return the URL of the bucket and its region, as obstore knows them."""
        signed = await done("", obstore.sign_async(self._client, "GET", "x", timedelta(seconds=SIGNED_S)))
        parts = urlsplit(signed)
        region = parse_qs(parts.query)["X-Amz-Credential"][0].split("/")[-3]
        return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/x')}", region

    async def _sign(self, base: str, region: str, query: dict[str, str]) -> str:
        asked = "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items())
        config: S3Config = {
            "endpoint": f"{base}?{asked}&x-id=",
            "region": region,
            "virtual_hosted_style_request": True,  # The endpoint has the bucket's name already.
        }
        asking = S3Store(
            "bucket",
            config=config,
            client_options={"allow_http": base.startswith("http://")},
            credential_provider=self._credentials,
        )
        return await done("", obstore.sign_async(asking, "GET", "", timedelta(seconds=SIGNED_S)))

    async def _fetch(self, http: httpx.AsyncClient, url: str) -> bytes:
        for attempt in range(self._options.retries_max + 1):
            if attempt:
                await asyncio.sleep(PAUSE_S * 2**attempt)
            try:
                answer = await http.get(url)
            except httpx.HTTPError as error:
                reason: Exception = ObjectStoreUnavailable(f"no listing: {type(error).__name__}: {error}")
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
        # expat of this age refuses documents that grow by their entities.
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
                    modified_ms=(modified - _EPOCH) // _MILLISECOND,
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
