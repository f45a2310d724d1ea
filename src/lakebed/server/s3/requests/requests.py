"""An S3 request: map its path, host and query to a place in the catalog.

Clients can address an object in two ways:

    bucket `lake`,      key `main/logs/1.parquet`    a repository, and a ref before the path
    bucket `lake.main`, key `logs/1.parquet`         a bucket for each ref

In a gateway for one repository, every bucket is a branch of it.
"""

from __future__ import annotations

import base64
import binascii
import quopri
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope

from lakebed.auth import NotPermitted
from lakebed.operations import AnyOperation, objects
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.fields import query_pairs
from lakebed.server.http.gate import ask, require_below
from lakebed.server.http.requests import RestRequest
from lakebed.server.s3.errors import NotImplementedByName, S3Error
from lakebed.server.s3.options import S3Options
from lakebed.versions import name_in

from .signatures import V2_QUERY, V4_QUERY, AnySigned, Asked, SigningKey

_WORD: Final = re.compile(r"=\?(utf-8|us-ascii|iso-8859-1)(?:\*[a-z-]{0,8})?\?([bq])\?([^?\s]*)\?=", re.IGNORECASE)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")
Level: TypeAlias = Literal["service", "bucket", "object"]

OWNER: Final = "lakebed"
"""The owner of all objects is the installation. Policies define permissions."""
METADATA: Final = b"x-amz-meta-"
METADATA_BYTES_MAX: Final = 2048
PAIRS_MAX: Final = 1_000
LISTENS: Final = "events"
"""A parameter that clients of MinIO repeat, as no other one is. No operation has it, so it is refused by name."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket or a key in terms of the catalog. `has_ref`: the bucket itself names the ref.

    `ref` is empty for the bucket of a whole repository with an empty key.
    """

    # A struct for speed, as `Signed` is.

    bucket: str
    repository: str
    ref: str = ""
    path: str = ""
    has_ref: bool = False
    key: str = ""

    def names(self) -> dict[str, str]:
        """Return the names of the place, for the audit log."""
        names = {"repository": self.repository, "ref": self.ref, "path": self.path}
        return names if self.path and self.ref else {name: value for name, value in names.items() if value}

    def as_names(self) -> dict[str, str]:
        """Return the values for the permissions of the table, always with a ref."""
        return {
            "repository": self.repository,
            "ref": self.ref,
            "branch": self.ref,
            "name": self.ref,
            "path": self.path,
        }

    @property
    def is_root(self) -> bool:
        """Return whether a key names a ref without a path: `main` or `main/`."""
        return not self.path

    @property
    def is_folder(self) -> bool:
        return self.key.endswith("/")


class S3Request(RestRequest):
    """`signed` and `key` (which signs its chunks) are set when the caller is known."""

    signed: AnySigned
    key: SigningKey

    def __init__(self, scope: Scope, receive: Receive, options: S3Options) -> None:
        super().__init__(scope, receive)
        self.options = options
        self._place: Place | None = None
        self.raw_path: bytes = scope["raw_path"]
        self.bucket_of_host = (options.domains and bucket_of_host(self.header(b"host") or "", options.domains)) or ""
        self.bucket, self.key_name, self.level = "", "", "service"
        self.pairs: Sequence[tuple[str, str]] = ()
        self.asked_for: Mapping[str, str] = {}

    level: Level

    @property
    def quota_branch(self) -> str:
        """Return the branch that files of tables are written for, with a lent key; empty: the one of the request."""
        return name_in(self.identity.lent.ref) if self.identity.lent is not None else ""

    def parse(self) -> None:
        """Read the path and the query.

        Raises:
            S3Error: they are not UTF-8, or name a parameter twice.
        """
        path = self.raw_path.removeprefix(b"/")
        if self.bucket_of_host:
            path = self.bucket_of_host.encode() + (b"/" + path if path else b"")
        raw_bucket, _, raw_key = path.partition(b"/")
        try:
            self.bucket = _decoded(raw_bucket)
            self.key_name = _decoded(raw_key)
        except UnicodeDecodeError as error:
            raise S3Error("InvalidURI") from error
        if "\0" in self.key_name:
            raise S3Error("InvalidArgument", "a key cannot have a NUL character")
        self.level = "object" if self.key_name else "bucket" if self.bucket else "service"
        if not self.scope["query_string"]:
            return
        try:
            # A stranger can send 30,000, which take 30 ms of the event loop. No request of S3 has 50.
            self.pairs = query_pairs(self.scope["query_string"], most=PAIRS_MAX)
        except InvalidParameter as error:
            raise S3Error("InvalidURI", str(error)) from error
        asked_for: dict[str, str] = {}
        for name, value in self.pairs:
            if name in asked_for and name != LISTENS:
                raise S3Error("InvalidArgument", f"the parameter {name} occurs more than once")
            asked_for[name] = value
        is_v2 = "AWSAccessKeyId" in asked_for
        self.asked_for = {
            name: value
            for name, value in asked_for.items()
            if name not in V4_QUERY and not (is_v2 and name in V2_QUERY) and not name.lower().startswith("x-")
        }

    def as_signed(self) -> Asked:
        return Asked(
            method=self.scope["method"], raw_path=self.raw_path, query=self.pairs, headers=self.scope["headers"]
        )

    @property
    def resource(self) -> str:
        """The path, for error documents."""
        return "/" + self.bucket + ("/" + self.key_name if self.key_name else "")

    def place(self) -> Place:
        """Return the place of this request's bucket and key."""
        if self._place is None:
            self._place = place_of(self.bucket, self.key_name, self.options)
        return self._place

    # Parameters and headers

    def has(self, name: str) -> bool:
        return name in self.asked_for

    def parameter(self, name: str) -> str:
        return self.asked_for.get(name, "")

    def number(self, name: str, *, default: int, most: int, least: int = 0) -> int:
        """Return a numeric parameter, cut to `most`.

        Raises:
            S3Error: it is no number, or below `least`.
        """
        return self.number_of(name, self.asked_for.get(name), default=default, most=most, least=least)

    def number_of(self, name: str, text: str | None, *, default: int, most: int, least: int = 0) -> int:
        """Return the number in a parameter or header, as `number` does."""
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > 2**31 - 1:
            raise S3Error(
                "InvalidArgument",
                f"Argument {name} must be an integer between {least} and 2147483647",
                ArgumentName=name,
                ArgumentValue=text,
            )
        if int(text) < least:
            raise S3Error(
                "InvalidArgument", f"Argument {name} must be at least {least}", ArgumentName=name, ArgumentValue=text
            )
        return min(int(text), most)

    def text_header(self, name: bytes) -> str | None:
        """Return a header as text: decoded as UTF-8, or else as Latin-1."""
        for key, value in self.scope["headers"]:
            if key == name:
                return header_text(value)
        return None

    def user_metadata(self) -> dict[str, str]:
        """Return the `x-amz-meta-` headers without their prefix."""
        found: dict[str, str] = {}
        for name, value in self.scope["headers"]:
            if name.startswith(METADATA):
                key = name[len(METADATA) :].decode("latin-1")
                text = decode_words(header_text(value))
                found[key] = f"{found[key]},{text}" if key in found else text
        size_bytes = sum(len(key) + len(value.encode()) for key, value in found.items())
        if size_bytes > METADATA_BYTES_MAX:
            raise S3Error("MetadataTooLarge", Size=size_bytes, MaxSizeAllowed=METADATA_BYTES_MAX)
        return found

    def all_of_header(self, name: bytes) -> str:
        """Return every header of this name, joined by commas."""
        return ",".join([value.decode("latin-1") for key, value in self.scope["headers"] if key == name])

    def check_owner(self) -> None:
        """Check the owner that the client expects."""
        for name in (b"x-amz-expected-bucket-owner", b"x-amz-source-expected-bucket-owner"):
            if self.raw_header(name) not in {None, OWNER.encode()}:
                raise S3Error("AccessDenied")

    def refuse_headers(self, names: Sequence[bytes]) -> None:
        """Refuse headers with these beginnings."""
        beginnings = tuple(names)
        for name, _ in self.scope["headers"]:
            if name.startswith(beginnings):
                raise NotImplementedByName(f"the header {name.decode('latin-1')}")


async def admit(request: S3Request, operation: AnyOperation, place: Place | None = None) -> None:
    """Check the permissions of an operation of the table on a place. None: the operation has no place.

    Raises:
        NotPermitted: a permission is missing.
    """
    await ask(operation.permissions or (), request.permissions, {} if place is None else place.as_names())


async def admit_list(request: S3Request, place: Place) -> None:
    """Check the permissions for a listing. In the bucket of a whole repository, conditions are checked later for each
    ref.

    Raises:
        NotPermitted: the caller may not list.
    """
    if place.has_ref or not request.permissions.heeds_refs("fs:ListObjects"):
        await admit(request, objects.LIST_OBJECTS, place)
    else:
        admit_below(request, objects.LIST_OBJECTS, place.repository)


async def may(request: S3Request, operation: AnyOperation, place: Place) -> bool:
    """Return whether `admit` would let the request through."""
    try:
        await admit(request, operation, place)
    except NotPermitted:
        return False
    return True


def admit_below(request: S3Request, operation: AnyOperation, repository: str) -> None:
    """Check permissions of an operation for which the body or a listing gives the remaining names.

    Raises:
        NotPermitted: the caller may not do this to any resource of the repository.
    """
    for permission in operation.permissions or ():
        require_below(permission, request.permissions, {"repository": repository})


def place_of(bucket: str, key: str, options: S3Options) -> Place:
    if options.repository:
        return Place(bucket=bucket, repository=options.repository, ref=bucket, path=key, has_ref=True, key=key)
    repository, dot, ref = bucket.partition(".")
    if dot:
        return Place(bucket=bucket, repository=repository, ref=ref, path=key, has_ref=True, key=key)
    ref, _, path = key.partition("/")
    return Place(bucket=bucket, repository=repository, ref=ref, path=path, key=key)


def _decoded(raw: bytes) -> str:
    return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()


def header_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def bucket_of_host(host: str, domains: Sequence[str]) -> str | None:
    """Return the bucket that a Host header names: "" for one of the domains itself, None for any other host."""
    name = host.lower().rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host.lower()
    for domain in domains:
        if name == domain:
            return ""
        if name.endswith("." + domain):
            # A branch may have capitals, which host names ignore. Keep the client's spelling.
            return host[: len(name) - len(domain) - 1]
    return None


# Metadata beyond ASCII: decoded by RFC 2047 when it arrives, encoded when it is sent, as S3 does


def encode_words(text: str) -> str:
    """Encode a text so that any header can contain it. ASCII is not changed."""
    return text if text.isascii() else f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def decode_words(text: str) -> str:
    """Decode the text of a header. A text that no header could contain again stays encoded."""
    if "=?" not in text:
        return text
    shown = ""
    end = 0
    for match in _WORD.finditer(text):
        between = text[end : match.start()]
        if not end or not between.isspace():
            shown += between  # White space between two encoded words is not part of the text.
        try:
            shown += _decoded_word(match[2], match[3]).decode(match[1])
        except (binascii.Error, UnicodeError):
            return text
        end = match.end()
    shown += text[end:]
    return text if _CONTROLS.search(shown) else shown


def _decoded_word(encoding: str, text: str) -> bytes:
    if encoding in "bB":
        return base64.b64decode(text.encode(), validate=True)
    return quopri.decodestring(text.encode(), header=True)
