"""The operations of S3: how a request selects one, its parameters, and its permissions.

Method, level and sub-resource (`?tagging`) select the operation. An operation that this gateway does not support is
refused by name. Unknown parameters are refused as well, because their client means another operation: a
PutObjectTagging must never become a PutObject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakebed.operations import AnyOperation, history, objects, repositories
from lakebed.server.http.fields import CONDITIONS

from .errors import NotImplementedByName, S3Error
from .requests.requests import LISTENS, Level, S3Request


@dataclass(frozen=True, slots=True, eq=False)
class S3Operation:
    """`operation` is the operation of the table that gives the permissions, and the target for the audit log.

    A handler checks permissions itself if they depend on more than the place.
    """

    name: str
    operation: AnyOperation
    parameters: frozenset[str] = frozenset()
    conditions: frozenset[bytes] = frozenset()
    """The condition headers that a write checks. Others are refused. A read ignores unsupported ones."""
    sends_body: bool = False


_OVERRIDES: Final = (
    "response-cache-control response-content-disposition response-content-encoding response-content-language"
    " response-content-type response-expires"
)


def _operation(
    name: str, operation: AnyOperation, parameters: str = "", *, conditions: bytes = b"", sends_body: bool = False
) -> S3Operation:
    return S3Operation(name, operation, frozenset(parameters.split()), frozenset(conditions.split()), sends_body)


LIST_BUCKETS: Final = _operation(
    "ListBuckets", repositories.LIST_REPOSITORIES, "max-buckets prefix continuation-token bucket-region"
)
CREATE_BUCKET: Final = _operation("CreateBucket", history.CREATE_BRANCH, sends_body=True)
HEAD_BUCKET: Final = _operation("HeadBucket", repositories.GET_REPOSITORY)
DELETE_BUCKET: Final = _operation("DeleteBucket", history.DELETE_BRANCH)
GET_BUCKET_LOCATION: Final = _operation("GetBucketLocation", repositories.GET_REPOSITORY, "location")
LIST_OBJECTS: Final = _operation("ListObjects", objects.LIST_OBJECTS, "prefix delimiter marker max-keys encoding-type")
LIST_OBJECTS_V2: Final = _operation(
    "ListObjectsV2",
    objects.LIST_OBJECTS,
    "list-type prefix delimiter continuation-token start-after max-keys encoding-type fetch-owner metadata",
)
LIST_OBJECT_VERSIONS: Final = _operation(
    "ListObjectVersions",
    objects.LIST_OBJECTS,
    "versions prefix delimiter key-marker version-id-marker max-keys encoding-type metadata",
)
DELETE_OBJECTS: Final = _operation("DeleteObjects", objects.DELETE_OBJECTS, "delete", sends_body=True)
GET_OBJECT: Final = _operation("GetObject", objects.GET_OBJECT, f"partNumber versionId {_OVERRIDES}")
HEAD_OBJECT: Final = _operation("HeadObject", objects.HEAD_OBJECT, f"partNumber versionId {_OVERRIDES}")
PUT_OBJECT: Final = _operation(
    "PutObject", objects.UPLOAD_OBJECT, conditions=b"if-match if-none-match", sends_body=True
)
COPY_OBJECT: Final = _operation("CopyObject", objects.COPY_OBJECT, conditions=b"if-match if-none-match")
DELETE_OBJECT: Final = _operation("DeleteObject", objects.DELETE_OBJECT, "versionId", conditions=b"if-match")
GET_OBJECT_ATTRIBUTES: Final = _operation("GetObjectAttributes", objects.STAT_OBJECT, "attributes versionId")
CREATE_MULTIPART_UPLOAD: Final = _operation("CreateMultipartUpload", objects.UPLOAD_OBJECT, "uploads")
UPLOAD_PART: Final = _operation("UploadPart", objects.UPLOAD_OBJECT, "uploadId partNumber")
UPLOAD_PART_COPY: Final = _operation("UploadPartCopy", objects.COPY_OBJECT, "uploadId partNumber")
COMPLETE_MULTIPART_UPLOAD: Final = _operation(
    "CompleteMultipartUpload", objects.UPLOAD_OBJECT, "uploadId", conditions=b"if-match if-none-match"
)
ABORT_MULTIPART_UPLOAD: Final = _operation("AbortMultipartUpload", objects.UPLOAD_OBJECT, "uploadId")
LIST_PARTS: Final = _operation("ListParts", objects.UPLOAD_OBJECT, "uploadId max-parts part-number-marker")
LIST_MULTIPART_UPLOADS: Final = _operation(
    "ListMultipartUploads",
    objects.LIST_OBJECTS,
    "uploads prefix delimiter key-marker upload-id-marker max-uploads encoding-type",
)

_NOUNS: Final[dict[Level, dict[str, str]]] = {
    "service": {},
    "bucket": {
        "accelerate": "BucketAccelerateConfiguration",
        "acl": "BucketAcl",
        "analytics": "BucketAnalyticsConfiguration",
        "cors": "BucketCors",
        "encryption": "BucketEncryption",
        "intelligent-tiering": "BucketIntelligentTieringConfiguration",
        "inventory": "BucketInventoryConfiguration",
        "lifecycle": "BucketLifecycleConfiguration",
        "logging": "BucketLogging",
        "metadataConfiguration": "BucketMetadataConfiguration",
        "metadataTable": "BucketMetadataTableConfiguration",
        "metrics": "BucketMetricsConfiguration",
        "notification": "BucketNotificationConfiguration",
        "object-lock": "ObjectLockConfiguration",
        "ownershipControls": "BucketOwnershipControls",
        "policy": "BucketPolicy",
        "policyStatus": "BucketPolicyStatus",
        "publicAccessBlock": "PublicAccessBlock",
        "replication": "BucketReplication",
        "requestPayment": "BucketRequestPayment",
        "tagging": "BucketTagging",
        "versioning": "BucketVersioning",
        "website": "BucketWebsite",
    },
    "object": {
        "acl": "ObjectAcl",
        "encryption": "ObjectEncryption",
        "legal-hold": "ObjectLegalHold",
        "retention": "ObjectRetention",
        "tagging": "ObjectTagging",
        "torrent": "ObjectTorrent",
    },
}
_NEVER_READ: Final = frozenset(
    {"analytics", "intelligent-tiering", "inventory", "metadataConfiguration", "metadataTable", "metrics"}
)
BUCKET_SETTINGS: Final = {
    # MinIO's client asks for the date of the rules, too, and there are none.
    name: _operation(f"Get{noun}", repositories.GET_REPOSITORY, name + " withUpdatedAt" * (name == "lifecycle"))
    for name, noun in _NOUNS["bucket"].items()
    if name not in _NEVER_READ
}
OBJECT_SETTINGS: Final = {
    name: _operation(f"Get{noun}", objects.STAT_OBJECT, f"{name} versionId")
    for name, noun in _NOUNS["object"].items()
    if name not in {"encryption", "torrent"}
}
"""Reads of settings that no bucket and no object has here, by sub-resource (`configurations.py`)."""

_PLAIN: Final[dict[tuple[Level, str], S3Operation]] = {
    ("service", "GET"): LIST_BUCKETS,
    ("bucket", "PUT"): CREATE_BUCKET,
    ("bucket", "HEAD"): HEAD_BUCKET,
    ("bucket", "DELETE"): DELETE_BUCKET,
    ("bucket", "GET"): LIST_OBJECTS,
    ("object", "GET"): GET_OBJECT,
    ("object", "HEAD"): HEAD_OBJECT,
    ("object", "PUT"): PUT_OBJECT,
    ("object", "DELETE"): DELETE_OBJECT,
}
_BY_SUBRESOURCE: Final[dict[tuple[Level, str, str], S3Operation]] = {
    ("bucket", "GET", "location"): GET_BUCKET_LOCATION,
    ("bucket", "GET", "versions"): LIST_OBJECT_VERSIONS,
    ("bucket", "GET", "list-type"): LIST_OBJECTS_V2,
    ("bucket", "POST", "delete"): DELETE_OBJECTS,
    ("object", "GET", "attributes"): GET_OBJECT_ATTRIBUTES,
    ("bucket", "GET", "uploads"): LIST_MULTIPART_UPLOADS,
    ("object", "POST", "uploads"): CREATE_MULTIPART_UPLOAD,
    ("object", "PUT", "uploadId"): UPLOAD_PART,
    ("object", "POST", "uploadId"): COMPLETE_MULTIPART_UPLOAD,
    ("object", "DELETE", "uploadId"): ABORT_MULTIPART_UPLOAD,
    ("object", "GET", "uploadId"): LIST_PARTS,
    **{("bucket", "GET", name): operation for name, operation in BUCKET_SETTINGS.items()},
    **{("object", "GET", name): operation for name, operation in OBJECT_SETTINGS.items()},
}
OPERATIONS: Final = tuple(dict.fromkeys([*_PLAIN.values(), *_BY_SUBRESOURCE.values(), COPY_OBJECT, UPLOAD_PART_COPY]))
"""Every operation that the gateway supports."""

_VERBS: Final = {"GET": "Get", "HEAD": "Head", "PUT": "Put", "POST": "Post", "DELETE": "Delete"}
_OTHERS: Final[dict[tuple[Level, str, str], str]] = {
    ("service", "GET", LISTENS): "ListenNotification",
    ("bucket", "GET", LISTENS): "ListenBucketNotification",
    ("bucket", "GET", "session"): "CreateSession",
    ("object", "POST", "restore"): "RestoreObject",
    ("object", "POST", "select"): "SelectObjectContent",
    ("object", "PUT", "renameObject"): "RenameObject",
}


def find(request: S3Request) -> S3Operation:
    """Return the operation of a request.

    Raises:
        NotImplementedByName: the gateway does not support the operation, a parameter or a condition.
        S3Error: no operation has this method.
    """
    method, level = request.scope["method"], request.level
    found = _by_subresource(request, level, method) or _PLAIN.get((level, method))
    if found is None:
        if (level, method) == ("bucket", "POST"):
            raise NotImplementedByName("PostObject")
        raise S3Error("MethodNotAllowed", Method=method, ResourceType=level.upper())
    if found is PUT_OBJECT and request.header(b"x-amz-copy-source") is not None:
        found = COPY_OBJECT
    if found is UPLOAD_PART and request.header(b"x-amz-copy-source") is not None:
        found = UPLOAD_PART_COPY
    for name in request.asked_for:
        if name not in found.parameters:
            raise NotImplementedByName(f"the parameter {name} of {found.name}")
    if method not in {"GET", "HEAD"} and request.has_any_header(CONDITIONS):
        for header in sorted(CONDITIONS - found.conditions):
            # Without its condition, a write could replace an object that its client wants to keep.
            if request.header(header):
                raise NotImplementedByName(f"the header {header.decode()} of {found.name}")
    return found


def _by_subresource(request: S3Request, level: Level, method: str) -> S3Operation | None:
    found = None
    for name in request.asked_for:
        ours = _BY_SUBRESOURCE.get((level, method, name))
        if ours is not None:
            found = ours
            continue
        other = _OTHERS.get((level, method, name))
        if other is None and name in _NOUNS[level]:
            other = _VERBS.get(method, method.title()) + _NOUNS[level][name]
        if other is not None:
            raise NotImplementedByName(other)
    return found
