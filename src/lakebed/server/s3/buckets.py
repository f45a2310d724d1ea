"""Buckets: list them and their objects. A bucket is a repository, or one ref of a repository (`requests.py`)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from lakebed.base import InvalidName, Row, check_branch, common_prefix, decode_metadata
from lakebed.catalog import Repository, RepositoryNotFound
from lakebed.operations import history, objects, repositories
from lakebed.server.http.gate import ask, check_source, unreadable
from lakebed.server.state import AppState
from lakebed.versions import RefNotFound

from . import operations
from .documents import Element, document, escape_text
from .errors import NotImplementedByName, S3Error
from .operations import S3Operation
from .options import S3Options
from .requests.bodies import Payload
from .requests.checksums import COMPOSITE, FULL_OBJECT, part_count
from .requests.headers import check_acl
from .requests.requests import OWNER, Place, S3Request, admit, admit_list, may
from .stored import user_metadata

KEYS_MAX: Final = 1000
BUCKETS_MAX: Final = 10_000
REGION: Final = "us-east-1"
VERSION: Final = "null"
"""The version of every object, as in S3 without versioning."""
CONFIGURATION_BYTES_MAX: Final = 64 << 10
_CHECKSUM: Final = re.compile(rb"::s3::checksum-([a-z0-9]+)")
_ELEMENT: Final = re.compile(r"[0-9A-Za-z._-]+")
_WHOLE: Final = frozenset({b"crc64nvme"})
OWNER_ELEMENT: Final = Element("Owner").text("ID", OWNER).text("DisplayName", OWNER)


class Buckets:
    def __init__(self, state: AppState, options: S3Options) -> None:
        self._catalog = state.catalog
        self._options = options
        self.handlers: Mapping[S3Operation, Callable[[S3Request], Awaitable[Response]]] = {
            operations.LIST_BUCKETS: self.list_buckets,
            operations.CREATE_BUCKET: self.create,
            operations.HEAD_BUCKET: self.head,
            operations.DELETE_BUCKET: self.delete,
            operations.GET_BUCKET_LOCATION: self.location,
            operations.LIST_OBJECTS: self.list_objects,
            operations.LIST_OBJECTS_V2: self.list_objects_v2,
            operations.LIST_OBJECT_VERSIONS: self.list_versions,
        }

    # Buckets

    async def list_buckets(self, request: S3Request) -> Response:
        """List repositories. A prefix with a dot lists the branches of a repository: `lake.` lists those of `lake`."""
        await admit(request, repositories.LIST_REPOSITORIES)
        prefix, limit = (
            request.parameter("prefix"),
            request.number("max-buckets", default=BUCKETS_MAX, most=BUCKETS_MAX, least=1),
        )
        after = _open_token(request.parameter("continuation-token"))
        repository, dot, _ = prefix.partition(".")
        if self._options.repository:
            found, has_more = await self._branches(request, self._options.repository, "", prefix, after, limit)
        elif dot:
            found, has_more = await self._branches(request, repository, repository + ".", prefix, after, limit)
        else:
            rows, has_more = await self._catalog.list(prefix=prefix, after=after, limit=limit)
            found = [(str(name), record.created_ms) for name, record in rows]
        listed = Element("Buckets")
        for name, created_ms in found:
            listed.add(
                Element("Bucket").text("Name", name).text("CreationDate", iso(created_ms)).text("BucketRegion", REGION)
            )
        root = Element("ListAllMyBucketsResult").add(OWNER_ELEMENT).add(listed)
        if prefix:
            root.text("Prefix", prefix)
        if has_more:
            root.text("ContinuationToken", _seal_token(found[-1][0]))
        return xml(root)

    async def _branches(
        self, request: S3Request, repository_id: str, before: str, prefix: str, after: str, limit: int
    ) -> tuple[list[tuple[str, int]], bool]:
        await admit(request, history.LIST_BRANCHES, Place(bucket="", repository=repository_id))
        repository = await self._catalog.get(repository_id)
        # A page, whatever number of branches there are: with as many more as may be left out.
        hidden = await repository.settings.hidden_branches()
        branches, has_more = await repository.versions.refs.list_branches(
            prefix=prefix.removeprefix(before), after=after.removeprefix(before), limit=limit + len(hidden)
        )
        names = [branch.name for branch in branches if branch.name not in hidden]
        buckets = [(before + name, repository.record.created_ms) for name in names[:limit]]
        return buckets, has_more or len(names) > limit

    async def create(self, request: S3Request) -> Response:
        """Make a branch at the head of the repository's default branch."""
        place = request.place()
        check_acl(request)
        if (request.header(b"x-amz-bucket-object-lock-enabled") or "false").lower() != "false":
            raise NotImplementedByName("the header x-amz-bucket-object-lock-enabled")
        if request.header(b"x-amz-object-ownership") not in {None, "BucketOwnerEnforced"}:
            raise NotImplementedByName("the header x-amz-object-ownership with another value than BucketOwnerEnforced")
        await admit(request, history.CREATE_BRANCH if place.has_ref else repositories.GET_REPOSITORY, place)
        await _read_configuration(request)
        try:
            repository = await self._catalog.get(place.repository)
        except RepositoryNotFound as error:
            raise S3Error(
                "NoSuchBucket",
                f"There is no repository {place.repository}, and CreateBucket makes branches of one only. Make it by"
                " `lakebed repo create` or by POST /api/v1/repositories.",
            ) from error
        if not place.has_ref:
            raise S3Error("BucketAlreadyOwnedByYou")
        try:
            check_branch(place.ref)
        except InvalidName as error:
            raise S3Error("InvalidBucketName") from error
        source = repository.record.default_branch
        await check_source(request.permissions, repository, source)
        await repository.changes.create_branch(place.ref, source, by=request.identity.user_id)
        return Response(status_code=200, headers={"location": "/" + request.bucket})

    async def delete(self, request: S3Request) -> Response:
        """Refuse to delete a bucket: S3 promises to delete only an empty bucket.

        A write could come between a look at the branch and its deletion, and an acknowledged upload would be lost.
        """
        place = request.place()
        await admit(request, history.DELETE_BRANCH, place)
        repository = await self._catalog.get(place.repository)
        if not place.has_ref:
            raise NotImplementedByName("DeleteBucket of a repository")
        await repository.versions.refs.get_branch(place.ref)
        if (await repository.versions.staging.list(place.ref, limit=1)).items:
            raise S3Error("BucketNotEmpty")
        raise NotImplementedByName("DeleteBucket of a branch (delete it through the API or lakebed branch delete)")

    async def head(self, request: S3Request) -> Response:
        await self.check(request)
        return Response(status_code=200, headers={"x-amz-bucket-region": REGION})

    async def location(self, request: S3Request) -> Response:
        await self.check(request)
        return xml(Element("LocationConstraint"))

    async def check(self, request: S3Request) -> None:
        """Check that the bucket exists and that the caller may read its properties.

        Raises:
            LakebedError: the bucket does not exist, or the caller may not read it.
        """
        place = request.place()
        if place.has_ref:
            await ask(history.READ_REF, request.permissions, place.as_names())
        else:
            await admit(request, repositories.GET_REPOSITORY, place)
        repository = await self._catalog.get(place.repository)
        if place.has_ref:
            await repository.versions.refs.resolve(place.ref)

    # Listings

    async def list_objects(self, request: S3Request) -> Response:
        marker = request.parameter("marker")
        page = await self._list(request, marker)
        root = page.root.text("Marker", page.spelled(marker))
        if page.has_more:
            root.text("NextMarker", page.spelled(page.last))
        return page.answer(is_with_owner=True)

    async def list_objects_v2(self, request: S3Request) -> Response:
        if request.parameter("list-type") != "2":
            raise S3Error("InvalidArgument", "Invalid List Type specified in query")
        start_after, token = request.parameter("start-after"), request.parameter("continuation-token")
        if request.has("continuation-token") and not token:
            raise S3Error("InvalidArgument", "The continuation token provided is incorrect")
        page = await self._list(request, _open_token(token) if token else start_after)
        page.root.text("KeyCount", len(page.items))
        if token:
            page.root.text("ContinuationToken", token)
        if page.has_more:
            page.root.text("NextContinuationToken", _seal_token(page.last))
        if start_after:
            page.root.text("StartAfter", page.spelled(start_after))
        return page.answer(is_with_owner=request.parameter("fetch-owner") == "true")

    async def list_versions(self, request: S3Request) -> Response:
        """List each object with the version `null`, as S3 does without versioning."""
        marker, version = request.parameter("key-marker"), request.parameter("version-id-marker")
        if version and not marker:
            raise S3Error("InvalidArgument", "A version-id marker cannot be specified without a key marker.")
        page = await self._list(request, marker, _Versions)
        root = page.root.text("KeyMarker", page.spelled(marker)).text("VersionIdMarker", version)
        if page.has_more:
            root.text("NextKeyMarker", page.spelled(page.last))
            root.text("NextVersionIdMarker", None if page.items[-1][1] is None else VERSION)
        return page.answer(is_with_owner=True)

    async def _list(self, request: S3Request, after: str, kind: type[_Page] | None = None) -> _Page:
        place = request.place()
        await admit_list(request, place)
        prefix, delimiter = request.parameter("prefix"), request.parameter("delimiter")
        limit = request.number("max-keys", default=KEYS_MAX, most=KEYS_MAX)
        encoding = request.parameter("encoding-type")
        if encoding not in {"", "url"}:
            raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
        repository = await self._catalog.get(place.repository)
        page = (kind or _Page)(request.bucket, prefix, delimiter, limit, is_encoded=bool(encoding))
        page.is_with_metadata = request.parameter("metadata") == "true"
        if not place.has_ref:
            await self._list_refs(request, repository, page, after)
        elif limit:
            listing = await repository.versions.staging.list(
                place.ref, prefix=prefix.encode(), after=after.encode(), delimiter=delimiter.encode(), limit=limit
            )
            page.items, page.has_more = await _shown_items(request, place, "", listing.items), listing.has_more
        else:
            await repository.versions.refs.resolve(place.ref)
        return page

    async def _list_refs(self, request: S3Request, repository: Repository, page: _Page, after: str) -> None:
        """List a repository's bucket: the refs that a prefix names, or else all branches that are not hidden."""
        if "/" in page.prefix:
            refs = [page.prefix.partition("/")[0]]
        else:
            await admit(request, history.LIST_BRANCHES, Place(bucket="", repository=repository.id))
            refs = await _branch_names(repository, page.prefix)
        is_asked = "/" in page.prefix
        for ref in refs:
            left = page.limit - len(page.items)
            root = ref + "/"
            if after >= root and not after.startswith(root):
                continue
            if group := common_prefix(root, page.prefix, page.delimiter):
                if after.startswith(group) or (page.items and page.items[-1][0] == group):
                    continue
                if not left:
                    page.has_more = True
                    return
                page.items.append((group, None))
                continue
            place = Place(bucket="", repository=repository.id, ref=ref)
            if not is_asked and not await may(request, objects.LIST_OBJECTS, place):
                continue  # A list of all branches shows the names of the others, but not their content.
            await admit(request, objects.LIST_OBJECTS, place)
            try:
                listing = await repository.versions.staging.list(
                    ref,
                    prefix=page.prefix.removeprefix(root).encode() if page.prefix.startswith(root) else b"",
                    after=after.removeprefix(root).encode() if after.startswith(root) else b"",
                    delimiter=page.delimiter.encode(),
                    limit=max(left, 1),
                )
            except RefNotFound:
                continue
            if listing.items and not left:
                page.has_more = page.limit > 0
                return
            page.items += await _shown_items(request, place, root, listing.items)
            page.has_more = listing.has_more
            if page.has_more:
                return


async def _shown_items(
    request: S3Request, place: Place, root: str, items: Sequence[tuple[bytes, Row | None]]
) -> list[tuple[str, Row | None]]:
    """Return rows by their keys, which begin with `root`. A row that the caller is denied to read has an empty ETag."""
    hidden = await unreadable(request.permissions, place.repository, place.ref, (key for key, _ in items))
    shown: list[tuple[str, Row | None]] = []
    for key, row in items:
        without = row is not None and key in hidden and (*row[:5], "", row[6], "", b"")
        shown.append((root + key.decode(), without or row))
    return shown


class _Page:
    """One page of a listing, to be written as XML. `items` are keys with their rows, and common prefixes without
    rows.
    """

    document = "ListBucketResult"
    element = "Contents"
    version = ""
    """Elements that describe the version of each object."""

    def __init__(self, bucket: str, prefix: str, delimiter: str, limit: int, *, is_encoded: bool) -> None:
        self.prefix = prefix
        self.delimiter = delimiter
        self.limit = limit
        self.items: list[tuple[str, Row | None]] = []
        self.has_more = False
        self.is_with_metadata = False
        self._is_encoded = is_encoded
        self.root = Element(self.document).text("Name", bucket).text("Prefix", self.spelled(prefix))

    @property
    def last(self) -> str:
        return self.items[-1][0]

    def spelled(self, text: str) -> str:
        return quote(text, safe="/-_.~*") if self._is_encoded else text

    def answer(self, *, is_with_owner: bool) -> Response:
        root = self.root.text("MaxKeys", self.limit)
        if self.delimiter:
            root.text("Delimiter", self.spelled(self.delimiter))
        if self._is_encoded:
            root.text("EncodingType", "url")
        root.flag("IsTruncated", value=self.has_more)
        owner = OWNER_ELEMENT.render() if is_with_owner else ""
        root.markup([self._shown(key, row, owner) for key, row in self.items])
        return xml(root)

    def _shown(self, key: str, row: Row | None, owner: str) -> str:
        name = escape_text(self.spelled(key))
        if row is None:
            return f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
        return (
            f"<{self.element}><Key>{name}</Key>{self.version}<LastModified>{iso(row[6])}</LastModified>"
            f"<ETag>&quot;{escape_text(row[5])}&quot;</ETag><Size>{row[4]}</Size>{owner}"
            f"{_shown_checksum(row)}<StorageClass>STANDARD</StorageClass>"
            f"{_shown_metadata(row) if self.is_with_metadata else ''}</{self.element}>"
        )


class _Versions(_Page):
    document = "ListVersionsResult"
    element = "Version"
    version = f"<VersionId>{VERSION}</VersionId><IsLatest>true</IsLatest>"


def _shown_metadata(row: Row) -> str:
    """Return an object's type and metadata as MinIO's servers show them: names of headers are names of elements."""
    shown = Element("UserMetadata").text("content-type", row[7])
    for name, value in user_metadata(decode_metadata(row[8]))[0].items():
        if _ELEMENT.fullmatch(name):
            shown.text("X-Amz-Meta-" + "-".join([word.capitalize() for word in name.split("-")]), value)
    return shown.render()


def _shown_checksum(row: Row) -> str:
    """Return the element with the algorithm of an object's checksum, without decoding its metadata."""
    found = _CHECKSUM.search(row[8])
    if found is None:
        return ""
    kind = COMPOSITE if part_count(row[5]) is not None and found[1] not in _WHOLE else FULL_OBJECT
    algorithm = found[1].decode().upper()
    return f"<ChecksumAlgorithm>{algorithm}</ChecksumAlgorithm><ChecksumType>{kind}</ChecksumType>"


async def _branch_names(repository: Repository, prefix: str) -> list[str]:
    """Return the branches that are not hidden, in the order of their folders: `a-b/` before `a/`."""
    hidden = await repository.settings.hidden_branches()
    names = [each.name async for each in repository.versions.refs.every_branch(prefix) if each.name not in hidden]
    return sorted(names, key=lambda name: name + "/")


async def _read_configuration(request: S3Request) -> None:
    """Read the body of a CreateBucket. Ignore its region, because there is only one, and refuse other content."""
    payload = Payload(request)
    if payload.size_bytes == 0:
        return
    names = await payload.document(
        "CreateBucketConfiguration", CONFIGURATION_BYTES_MAX, lambda body: [child.name for child in body.children]
    )
    if any(name != "LocationConstraint" for name in names):
        raise NotImplementedByName(f"{names[0]} of CreateBucket")


def xml(root: Element) -> Response:
    return Response(document(root), media_type="application/xml")


def iso(unix_ms: int) -> str:
    """Write a time as S3's documents have it."""
    seconds, part = divmod(unix_ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{part:03d}Z"


def _seal_token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _open_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect") from error
