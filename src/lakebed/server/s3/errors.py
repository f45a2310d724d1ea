"""The one table from errors to S3's codes, and the XML in which S3 answers them.

Clients act on the code, so it is S3's. The message is that of its documentation, if it has one. An error of the core
gets the code of its nearest base class. If the code depends on the request, the handler raises `S3Error`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from lakebed import auth, base, catalog, objectstore, quotas, versions
from lakebed.server.http.errors import InvalidParameter, log_failure

from .documents import Element, document

logger = logging.getLogger(__name__)

CODES: Final[dict[str, tuple[int, str]]] = {
    "AccessControlListNotSupported": (400, "The bucket does not allow ACLs"),
    "AccessDenied": (403, "Access Denied."),
    "AuthorizationHeaderMalformed": (400, "The authorization header that you provided is not valid."),
    "AuthorizationQueryParametersError": (400, "Query-string authentication parameters are not valid."),
    "BadDigest": (400, "The Content-MD5 you specified did not match what we received."),
    "BadRequest": (400, "The request is not valid."),
    "BucketAlreadyExists": (409, "The requested bucket name is not available: another ref has it."),
    "BucketAlreadyOwnedByYou": (
        409,
        "Your previous request to create the named bucket succeeded and you already own it.",
    ),
    "BucketNotEmpty": (409, "The bucket you tried to delete is not empty."),
    "ConditionalRequestConflict": (409, "The conditional request cannot succeed due to a conflicting operation."),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed object size."),
    "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed size"),
    "IncompleteBody": (400, "The request body terminated unexpectedly"),
    "InternalError": (500, "We encountered an internal error, please try again."),
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist in our records."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidBucketState": (409, "The request is not valid with the current state of the bucket."),
    "InvalidChunkSizeError": (403, "Only the last chunk is allowed to have a size less than 8192 bytes"),
    "InvalidDigest": (400, "The Content-Md5 you specified is not valid."),
    "InvalidObjectState": (403, "The data of this object is gone: a collection took the commit that named it."),
    "InvalidPart": (
        400,
        (
            "One or more of the specified parts could not be found.  The part may not have been uploaded, or the"
            " specified entity tag may not match the part's entity tag."
        ),
    ),
    "InvalidPartNumber": (416, "The requested partnumber is not satisfiable."),
    "InvalidPartOrder": (
        400,
        "The list of parts was not in ascending order. Parts must be ordered by part number.",
    ),
    "InvalidRange": (416, "The requested range is not satisfiable"),
    "InvalidRequest": (400, "Invalid Request"),
    "InvalidStorageClass": (400, "The storage class you specified is not valid"),
    "InvalidURI": (400, "The specified URI couldn't be parsed."),
    "InvalidToken": (400, "The provided token is malformed or otherwise invalid."),
    "KeyTooLongError": (400, "Your key is too long."),
    "MalformedTrailerError": (400, "The request contained trailing data that was not well-formed."),
    "MalformedXML": (
        400,
        "The XML you provided was not well-formed or did not validate against our published schema.",
    ),
    "MaxMessageLengthExceeded": (400, "Your request was too big."),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size"),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchBucketPolicy": (404, "The bucket policy does not exist"),
    "NoSuchCORSConfiguration": (404, "The CORS configuration does not exist"),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchLifecycleConfiguration": (404, "The lifecycle configuration does not exist"),
    "NoSuchObjectLockConfiguration": (404, "The specified object does not have a ObjectLock configuration"),
    "NoSuchTagSet": (404, "The TagSet does not exist"),
    "NoSuchUpload": (
        404,
        (
            "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been"
            " aborted or completed."
        ),
    ),
    "NoSuchWebsiteConfiguration": (404, "The specified bucket does not have a website configuration"),
    "NotImplemented": (501, "A header you provided implies functionality that is not implemented."),
    "NotModified": (304, "Not Modified"),
    "ObjectExpired": (410, "A lifecycle policy let this object go."),
    "ObjectLockConfigurationNotFoundError": (404, "Object Lock configuration does not exist for this bucket"),
    "OperationAborted": (
        409,
        "A conflicting conditional operation is currently in progress against this resource. Try again.",
    ),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold."),
    "ReplicationConfigurationNotFoundError": (404, "The replication configuration was not found"),
    "RequestTimeTooSkewed": (
        403,
        "The difference between the request time and the server's time is too large.",
    ),
    "QuotaExceeded": (403, "A quota has no room for these bytes."),
    "ServerSideEncryptionConfigurationNotFoundError": (404, "The server side encryption configuration was not found"),
    "ServiceUnavailable": (503, "Please reduce your request rate."),
    "SignatureDoesNotMatch": (
        403,
        (
            "The request signature we calculated does not match the signature you provided. Check your key and signing"
            " method."
        ),
    ),
    "TooManyBuckets": (400, "You have attempted to create more buckets than allowed."),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}
"""S3's codes that the gateway uses: the status, and the message if the raiser gives none."""

BY_ERROR: Final[dict[type[base.LakebedError], str]] = {
    # Families
    base.NotFound: "NoSuchKey",
    base.AlreadyExists: "OperationAborted",
    base.Invalid: "InvalidArgument",
    base.Denied: "AccessDenied",
    base.Conflict: "OperationAborted",
    base.Unavailable: "ServiceUnavailable",
    base.OutcomeUnknown: "InternalError",
    base.Corrupt: "InternalError",
    base.LakebedError: "InternalError",
    # Errors with their own codes
    auth.UnknownAccessKey: "InvalidAccessKeyId",
    auth.NotAuthenticated: "SignatureDoesNotMatch",
    catalog.RepositoryNotFound: "NoSuchBucket",
    catalog.NotHeaderText: "InvalidArgument",
    catalog.HookRefused: "AccessDenied",
    versions.BranchNotFound: "NoSuchBucket",
    versions.RefNotFound: "NoSuchBucket",
    versions.BadRef: "NoSuchBucket",
    versions.CommitNotFound: "NoSuchBucket",
    versions.PathNotFound: "NoSuchKey",
    versions.NameTaken: "BucketAlreadyExists",
    versions.BranchExists: "BucketAlreadyOwnedByYou",
    versions.TagExists: "BucketAlreadyOwnedByYou",
    versions.PathExists: "PreconditionFailed",
    versions.PreconditionFailed: "PreconditionFailed",
    versions.UploadRefused: "NoSuchUpload",
    versions.CopyGivenUp: "OperationAborted",
    versions.MultipartNotFound: "NoSuchUpload",
    catalog.PartMissing: "InvalidPart",
    versions.ContentsGone: "InvalidObjectState",
    versions.PathExpired: "ObjectExpired",
    objectstore.ObjectMissing: "InvalidObjectState",
    objectstore.ShortBody: "IncompleteBody",
    quotas.QuotaExceeded: "QuotaExceeded",
    InvalidParameter: "InvalidURI",
    base.InvalidEntry: "MetadataTooLarge",
    base.InvalidName: "KeyTooLongError",
}
_OWN_WORDS: Final = frozenset(
    {"InvalidArgument", "AccessDenied", "ObjectExpired", "QuotaExceeded", "ServiceUnavailable"}
)
"""Codes for which an error of the core keeps its own message."""


class S3Error(base.LakebedError):
    """An answer with one of S3's codes. Facts become elements of the XML."""

    def __init__(self, code: str, message: str = "", **facts: object) -> None:
        super().__init__(message or CODES[code][1], **facts)
        self.code = code

    @property
    def status(self) -> int:
        return CODES[self.code][0]


class NotImplementedByName(S3Error):
    """The gateway does not support an S3 operation, parameter or header. The message names it."""

    def __init__(self, what: str) -> None:
        super().__init__("NotImplemented", f"{what} is not implemented")


def as_s3(error: base.LakebedError) -> S3Error:
    """Return the S3 error for any error of the core."""
    if isinstance(error, S3Error):
        return error
    for kind in type(error).__mro__:
        code = BY_ERROR.get(kind)
        if code is not None:
            return S3Error(code, str(error) if code in _OWN_WORDS else _words(code, error))
    raise AssertionError("LakebedError itself is in the table")


def _words(code: str, error: base.LakebedError) -> str:
    """Return S3's words. Of a bucket that is not there, add which of its two parts is missing."""
    missing = [
        f"there is no {part} {error.facts[part]}" for part in ("repository", "branch", "ref") if part in error.facts
    ]
    return f"{CODES[code][1].rstrip('.')}: {missing[-1]}." if code == "NoSuchBucket" and missing else ""


def error_response(error: base.LakebedError, *, request_id: str, resource: str, shown: Callable[[], str]) -> Response:
    """Answer an error in S3's XML. `shown` describes the request for the log."""
    answer = as_s3(error)
    status = answer.status
    log_failure(logger, status, shown, error)
    return error_document(answer, request_id=request_id, resource=resource)


def error_document(answer: S3Error, *, request_id: str, resource: str) -> Response:
    status = answer.status
    if status == 304:
        return Response(status_code=304)
    root = Element("Error").text("Code", answer.code).text("Message", str(answer))
    for name, value in answer.facts.items():
        root.text(name, str(value))
    root.text("Resource", resource).text("RequestId", request_id)
    response = Response(document(root), status, media_type="application/xml")
    if status == 503:
        response.headers["retry-after"] = "1"
    return response
