"""Objects: the answers of `stat` and listings, and the requests of stage, copy, delete and link.

Dates are Unix seconds.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from .common import Expired, Given, Metadata, Paged
from .refs import Commit

__all__ = [
    "PATHS_MAX",
    "AbortPresignMultipartUpload",
    "CompletePresignMultipartUpload",
    "CopyPartSource",
    "ObjectCopyCreation",
    "ObjectError",
    "ObjectErrorList",
    "ObjectMove",
    "ObjectStageCreation",
    "ObjectStats",
    "ObjectStatsList",
    "PathCommit",
    "PathCommitList",
    "PathList",
    "PresignMultipartUpload",
    "SizeBelow",
    "StagingLocation",
    "StagingMetadata",
    "UnderlyingObjectProperties",
    "UpdateObjectUserMetadata",
    "UploadPart",
    "UploadPartCopyFrom",
    "UploadPartFrom",
    "UploadTo",
]

PATHS_MAX: Final = 1_000
"""The paths of one request: each is checked against the caller's permissions."""
PARTS_MAX: Final = 10_000
"""S3 takes no more parts of one upload."""


class ObjectStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An object, or a common prefix (`path_type`), which has neither size nor type.

    `content_type`, `metadata` and `size_bytes` are omitted when None. `expired` means that the bytes were deleted.
    Listings make a thousand records at once, without cycles: so the cycle collector does not track them.
    """

    checksum: str
    content_type: str | None = None
    metadata: dict[str, str] | None = None
    mtime: int
    path: str
    path_type: str
    physical_address: str
    physical_address_expiry: int | None = None
    size_bytes: int | None = None
    expired: Expired | None = None


class ObjectStatsList(Paged[ObjectStats], frozen=True, kw_only=True): ...


class SizeBelow(msgspec.Struct, frozen=True, kw_only=True):
    """The number of objects on a page of paths, and their size.

    A page ends after 1,000 uncommitted paths. While `has_more`, read the page after `next_offset` and add it.
    """

    objects: int
    size_bytes: int
    has_more: bool
    next_offset: str


class PathCommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a listing, and the commit that wrote it; for a common prefix, the last commit below it.

    `commit` is absent if the search ended before it, or if the path was never committed.
    """

    path: str
    path_type: str
    commit: Commit | None = None
    uncommitted: bool = False


class PathCommitList(Paged[PathCommit], frozen=True, kw_only=True):
    """A page of rows. `is_complete` is false if the search ended without the commit of every row."""

    is_complete: bool


class PathList(msgspec.Struct, frozen=True, kw_only=True):
    paths: Annotated[list[str], msgspec.Meta(max_length=PATHS_MAX)]


class ObjectError(msgspec.Struct, frozen=True, kw_only=True):
    status_code: int
    message: str
    path: str


class ObjectErrorList(msgspec.Struct, frozen=True, kw_only=True):
    errors: list[ObjectError]


class ObjectCopyCreation(msgspec.Struct, frozen=True, kw_only=True):
    src_path: Given
    src_ref: str | None = None
    force: bool | None = False
    shallow: bool | None = False


class ObjectMove(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to move an object."""

    src_path: Given
    # Another branch of the repository.
    src_branch: str = ""
    # Fail if the target exists.
    if_absent: bool = False
    force: bool = False


class ObjectStageCreation(msgspec.Struct, frozen=True, kw_only=True):
    physical_address: Given
    checksum: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    mtime: int | None = None
    metadata: Metadata | None = None
    content_type: str | None = None
    force: bool | None = False


class UpdateObjectUserMetadata(msgspec.Struct, frozen=True, kw_only=True):
    set: Metadata


class UnderlyingObjectProperties(msgspec.Struct, frozen=True, kw_only=True):
    storage_class: str = ""


class StagingLocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    physical_address: str | None = None
    presigned_url: str | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(msgspec.Struct, frozen=True, kw_only=True):
    staging: StagingLocation
    checksum: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    user_metadata: Metadata | None = None
    content_type: str | None = None
    mtime: int | None = None
    force: bool | None = False


class PresignMultipartUpload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An open upload in parts. `physical_address` names it; the object gets an address at its completion."""

    upload_id: str
    physical_address: str
    presigned_urls: list[str] = []


class UploadPart(msgspec.Struct, frozen=True, kw_only=True):
    part_number: int
    etag: str


class CompletePresignMultipartUpload(msgspec.Struct, frozen=True, kw_only=True):
    physical_address: str
    parts: Annotated[list[UploadPart], msgspec.Meta(max_length=PARTS_MAX)]
    user_metadata: Metadata | None = None
    content_type: str | None = None


class AbortPresignMultipartUpload(msgspec.Struct, frozen=True, kw_only=True):
    physical_address: str = ""


class UploadPartFrom(msgspec.Struct, frozen=True, kw_only=True):
    physical_address: str = ""


class UploadTo(msgspec.Struct, frozen=True, kw_only=True):
    presigned_url: str


class CopyPartSource(msgspec.Struct, frozen=True, kw_only=True):
    repository: Given
    ref: Given
    path: Given
    range: str | None = None


class UploadPartCopyFrom(msgspec.Struct, frozen=True, kw_only=True):
    physical_address: str = ""
    copy_source: CopyPartSource
