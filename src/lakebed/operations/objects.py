"""Objects: reading, writing, copying and deleting them, and uploads that clients make themselves."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import (
    AT_BRANCH,
    AT_REF,
    BRANCH,
    COPIED_OBJECT,
    DELIMITER,
    FORCE,
    IMPORTED_OBJECT,
    LIST_BYTES_MAX,
    LONG_BYTES_MAX,
    NOTHING,
    OBJECT,
    OBJECTS,
    ONE_BRANCH,
    ONE_REF,
    ONE_REPOSITORY,
    PATH,
    PHYSICAL_ADDRESS,
    PREFIX,
    REF,
    REPOSITORY,
    SOURCE,
    SOURCE_OBJECT,
    At,
    Operation,
    Parameter,
    Permission,
    delete,
    flag,
    get,
    head,
    header,
    listing,
    on,
    post,
    preflight,
    put,
)

_READ: Final = on(OBJECT, "fs:ReadObject", at=(AT_REF,))
_LIST: Final = on(REPOSITORY, "fs:ListObjects", at=(AT_REF,))
_WRITE: Final = on(OBJECT, "fs:WriteObject", at=(AT_BRANCH,))
_PRESIGN: Final = flag("presign")
_USER_METADATA: Final = flag("user_metadata", default=True)
_OF_READS: Final = tuple(
    header(name)
    for name in ("Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
)
_OF_WRITES: Final = (header("If-None-Match"), header("If-Match"))
_OBJECTS: Final = ONE_BRANCH + "/objects"
_PARTS_BYTES_MAX: Final = 768 << 10
"""10,000 parts, with their MD5s in quotes."""
_BACKING: Final = ONE_BRANCH + "/staging/backing"

GET_OBJECT: Final = get(
    "getObject",
    ONE_REF + "/objects",
    bytes,
    _READ,
    "Return an object's bytes or one range of them, or redirect to a signed URL (presign).",
    PATH,
    _PRESIGN,
    *_OF_READS,
    other_statuses=(206, 302, 304),
)
HEAD_OBJECT: Final = head(
    "headObject",
    ONE_REF + "/objects",
    _READ,
    "Return the headers that a GET would have.",
    PATH,
    *_OF_READS,
    other_statuses=(206, 304),
)
STAT_OBJECT: Final = get(
    "statObject",
    ONE_REF + "/objects/stat",
    wire.ObjectStats,
    _READ,
    "Return an object's size, checksum, type, time, metadata and address.",
    PATH,
    _USER_METADATA,
    _PRESIGN,
)
LIST_OBJECTS: Final = listing(
    "listObjects",
    ONE_REF + "/objects/ls",
    wire.ObjectStatsList,
    _LIST,
    "List objects by path in byte order; a delimiter groups those that go on after it.",
    DELIMITER,
    _USER_METADATA,
    _PRESIGN,
    asked_later=(
        Permission(
            "fs:ReadObject",
            OBJECT,
            AT_REF,
            when="for each row that is to have a signed URL; one that is denied has no address",
        ),
    ),
)
LAST_COMMITS: Final = listing(
    "lastCommits",
    ONE_REF + "/objects/commits",
    wire.PathCommitList,
    (*_LIST, *on(REF, "fs:ReadBranch")),
    "List paths as listObjects does, at most 100, with the commit that wrote each. The search ends after 500 commits, "
    "or after as many as `commits` says.",
    DELIMITER,
    Parameter("commits", "integer", default=500),
)
MEASURE_OBJECTS: Final = get(
    "measureObjects",
    ONE_REF + "/objects/size",
    wire.SizeBelow,
    _LIST,
    "Count the objects below a prefix and their bytes, without reading each. Go on while `has_more`.",
    PREFIX,
    Parameter("after"),
)
GET_UNDERLYING_PROPERTIES: Final = get(
    "getUnderlyingProperties",
    ONE_REF + "/objects/underlyingProperties",
    wire.UnderlyingObjectProperties,
    _READ,
    "Return the storage class of an object, where it is known.",
    PATH,
)

UPLOAD_OBJECT_PREFLIGHT: Final = preflight(
    "uploadObjectPreflight", _OBJECTS + "/stage_allowed", _WRITE, "Succeed if the caller may write the path now.", PATH
)
UPLOAD_OBJECT: Final = post(
    "uploadObject",
    _OBJECTS,
    bytes,
    wire.ObjectStats,
    _WRITE,
    "Write an object: plain bytes of any type, or the field `content` of a form.",
    PATH,
    Parameter("storageClass"),
    FORCE,
    *_OF_WRITES,
    header("Content-MD5"),
    status=201,
    # The same bytes written twice end the same. With If-None-Match a second one would meet the first: see the client.
    repeatable=True,
)
STAGE_OBJECT: Final = put(
    "stageObject",
    _OBJECTS,
    wire.ObjectStageCreation,
    wire.ObjectStats,
    (*_WRITE, Permission("fs:ImportFromStorage", PHYSICAL_ADDRESS, AT_BRANCH)),
    "Give a path to bytes that lie elsewhere in the storage.",
    PATH,
    status=201,
)
COPY_OBJECT: Final = post(
    "copyObject",
    _OBJECTS + "/copy",
    wire.ObjectCopyCreation,
    wire.ObjectStats,
    (
        Permission("fs:ReadObject", SOURCE_OBJECT, At("src_ref", otherwise="branch")),
        Permission("fs:WriteObject", COPIED_OBJECT, AT_BRANCH),
    ),
    "Copy an object within its repository.",
    Parameter("dest_path", is_required=True),
    *_OF_WRITES,
    status=201,
    repeatable=True,
)
_MOVED: Final = At("src_branch", "branch", otherwise="branch")
MOVE_OBJECT: Final = post(
    "moveObject",
    ONE_BRANCH + "/objects/move",
    wire.ObjectMove,
    wire.ObjectStats,
    (
        Permission("fs:ReadObject", SOURCE_OBJECT, _MOVED),
        Permission("fs:DeleteObject", SOURCE_OBJECT, _MOVED),
        Permission("fs:WriteObject", COPIED_OBJECT, AT_BRANCH),
    ),
    "Move an object within its repository. 409: the source was replaced meanwhile and stays; the target is a copy.",
    Parameter("dest_path", is_required=True),
    header("If-None-Match"),
    status=201,
    # Done twice, the second finds no source.
    repeatable=False,
)
UPDATE_OBJECT_USER_METADATA: Final = put(
    "updateObjectUserMetadata",
    _OBJECTS + "/stat/user_metadata",
    wire.UpdateObjectUserMetadata,
    NOTHING,
    _WRITE,
    "Replace an object's metadata.",
    PATH,
    header("If-Match"),
    status=204,
)
DELETE_OBJECT: Final = delete(
    "deleteObject",
    _OBJECTS,
    on(OBJECT, "fs:DeleteObject", at=(AT_BRANCH,)),
    "Delete an object from a branch. Commits keep it.",
    PATH,
    FORCE,
    flag("no_tombstone"),
    header("If-Match"),
)
DELETE_OBJECTS: Final = post(
    "deleteObjects",
    _OBJECTS + "/delete",
    wire.PathList,
    wire.ObjectErrorList,
    on(OBJECTS, "fs:DeleteObject", at=(AT_BRANCH,)),
    "Delete up to 1,000 objects from a branch, and list those that could not be deleted.",
    FORCE,
    flag("no_tombstone"),
    repeatable=True,
    body_bytes_max=LIST_BYTES_MAX,
)

GET_PHYSICAL_ADDRESS: Final = get(
    "getPhysicalAddress",
    _BACKING,
    wire.StagingLocation,
    _WRITE,
    "Hand out an address to put an object's bytes at, with a signed URL (presign).",
    PATH,
    _PRESIGN,
)
LINK_PHYSICAL_ADDRESS: Final = put(
    "linkPhysicalAddress",
    _BACKING,
    wire.StagingMetadata,
    wire.ObjectStats,
    _WRITE,
    "Give a path to the bytes at an address that was handed out.",
    PATH,
    *_OF_WRITES,
)

_MULTIPART: Final = ONE_BRANCH + "/staging/pmpu"
_UPLOAD: Final = _MULTIPART + "/{uploadId}"
_PART: Final = _UPLOAD + "/parts/{partNumber}"
CREATE_PRESIGN_MULTIPART_UPLOAD: Final = post(
    "createPresignMultipartUpload",
    _MULTIPART,
    NOTHING,
    wire.PresignMultipartUpload,
    _WRITE,
    "Begin an upload in parts that the client puts into the storage itself, with signed URLs for the first `parts`.",
    PATH,
    Parameter("parts", "integer", default=0),
    status=201,
)
COMPLETE_PRESIGN_MULTIPART_UPLOAD: Final = put(
    "completePresignMultipartUpload",
    _UPLOAD,
    wire.CompletePresignMultipartUpload,
    wire.ObjectStats,
    _WRITE,
    "Make an object of the parts. Sent again, it makes it once.",
    PATH,
    body_bytes_max=_PARTS_BYTES_MAX,
)
ABORT_PRESIGN_MULTIPART_UPLOAD: Final = Operation(
    "abortPresignMultipartUpload",
    "DELETE",
    _UPLOAD,
    wire.AbortPresignMultipartUpload,
    NOTHING,
    _WRITE,
    "Give up an upload and its parts.",
    (PATH,),
    status=204,
    is_body_optional=True,
)
UPLOAD_PART: Final = put(
    "uploadPart",
    _PART,
    wire.UploadPartFrom,
    wire.UploadTo,
    _WRITE,
    "Return a signed URL for one part, in place of the one before.",
    PATH,
    is_body_optional=True,
)
UPLOAD_PART_COPY: Final = put(
    "uploadPartCopy",
    _PART + "/copy",
    wire.UploadPartCopyFrom,
    NOTHING,
    _WRITE,
    "Copy an object, or one range of it, as a part. The header ETag has the value that the completion must name.",
    PATH,
    asked_later=(Permission("fs:ReadObject", OBJECT, AT_REF, when="of the source"),),
    status=204,
)

_IMPORT: Final = ONE_BRANCH + "/import"
_IMPORT_ID: Final = Parameter("id", is_required=True)
IMPORT_START: Final = post(
    "importStart",
    _IMPORT,
    wire.ImportCreation,
    wire.ImportCreationResponse,
    on(BRANCH, "fs:CreateCommit"),
    "Begin to commit objects that lie elsewhere in the storage, without copying them. It goes on by itself.",
    asked_later=(
        Permission("fs:ImportFromStorage", SOURCE, AT_BRANCH, when="for each of the paths"),
        Permission("fs:WriteObject", IMPORTED_OBJECT, AT_BRANCH, when="for each object, at the path that it gets"),
        Permission("fs:DeleteObject", IMPORTED_OBJECT, AT_BRANCH, when="for each path that the source no longer has"),
    ),
    status=202,
    body_bytes_max=LONG_BYTES_MAX,
)
IMPORT_STATUS: Final = get(
    "importStatus",
    _IMPORT,
    wire.ImportStatus,
    on(BRANCH, "fs:ReadBranch"),
    "Return how far an import is, and the commit that it made.",
    _IMPORT_ID,
)
IMPORT_CANCEL: Final = delete(
    "importCancel",
    _IMPORT,
    on(BRANCH, "fs:ImportCancel"),
    "Ask an import to stop. It then changes nothing.",
    _IMPORT_ID,
)
CREATE_SYMLINK_FILE: Final = post(
    "createSymlinkFile",
    ONE_REPOSITORY + "/refs/{branch}/symlink",
    NOTHING,
    wire.StorageUri,
    on(BRANCH, "fs:WriteObject"),
    "Write files for Hive that list the addresses of committed objects below `location`, one for each folder.",
    Parameter("location"),
    asked_later=(Permission("fs:ReadObject", OBJECT, AT_BRANCH, when="for each path, that no statement denies it"),),
    status=201,
    repeatable=True,
)
