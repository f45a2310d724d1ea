"""Read and verify signatures of versions 4 and 2, in headers and in queries. Pure: the caller has the secret.

From the AWS documents "Signature Version 4 for API requests", its pages for S3, and "Signing and authenticating REST
requests" (version 2). S3 signs the path as sent, encoded once, and never normalises it.

Version 4 must sign all parts that affect a request: the method, path, query, host and every `x-amz-` header. An added
header is refused. The body is signed by its digest or chunk by chunk (`bodies.py`), unless the client excludes it.
Version 2 leaves out the host, the body, and most of the query.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

import msgspec

from lakebed.base import aws_signing_key
from lakebed.server.http.fields import read_date
from lakebed.server.s3.errors import S3Error

ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
SKEW_S_MAX: Final = 15 * 60
EXPIRES_S_MAX: Final = 7 * 24 * 3600
_TIME: Final = re.compile(r"(\d{8})T\d{6}Z")
_DATE: Final = re.compile(r"\d{8}")
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_OPENING: Final = re.compile(r"AWS4-HMAC-SHA256 +Credential=([^,\s]+) *, *SignedHeaders=([^,\s]+) *, *")
"""The text before `Signature=`, with the fields in the order of nearly every client."""
_FIELD: Final = re.compile(r"\s*(Credential|SignedHeaders|Signature)=([^,\s]*)\s*")
_SPACES: Final = re.compile(rb" {2,}")
_PLAIN_PATH: Final = re.compile(rb"[A-Za-z0-9/\-_.~]+")
V4_QUERY: Final = frozenset(
    {
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
        "X-Amz-Content-Sha256",
    }
)
V2_QUERY: Final = frozenset({"AWSAccessKeyId", "Signature", "Expires"})
_V2_SUBRESOURCES: Final = re.compile(
    "accelerate|acl|analytics|cors|delete|inventory|lifecycle|location|logging|metrics|notification|partNumber|policy"
    "|replication|requestPayment|response-[a-z-]+|restore|tagging|torrent|uploadId|uploads|versionId|versioning"
    "|versions|website"
)

Query: TypeAlias = Sequence[tuple[str, str]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class Asked:
    """A request in the form that signatures need: the raw path, the ordered decoded query, lower-case header names."""

    __slots__ = ("first", "headers", "method", "query", "raw_path")

    def __init__(self, *, method: str, raw_path: bytes, query: Query, headers: Headers) -> None:
        self.method = method
        self.raw_path = raw_path
        self.query = query
        self.headers = headers
        self.first: Final = dict(reversed(headers))
        """The first header of each name."""

    def header(self, name: bytes) -> str | None:
        value = self.first.get(name)
        return None if value is None else value.decode("latin-1")

    def parameter(self, name: str) -> str | None:
        for key, value in self.query:
            if key == name:
                return value
        return None


class SigningKey:
    """Sign texts by HMAC. Both hashes are started once: the library's HMAC searches for its algorithm at each call,
    which costs more than the hash of such a short text.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes, algorithm: str = "sha256") -> None:
        inner = hashlib.new(algorithm, usedforsecurity=False)
        block = (key if len(key) <= inner.block_size else hashlib.new(algorithm, key).digest()).ljust(
            inner.block_size, b"\0"
        )
        outer = inner.copy()
        inner.update(bytes([byte ^ 0x36 for byte in block]))
        outer.update(bytes([byte ^ 0x5C for byte in block]))
        self._inner: Final = inner
        self._outer: Final = outer

    def digest(self, text: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.digest()

    def sign(self, text: str) -> str:
        """Return the signature of a text, in the format of version 4."""
        return self.digest(text.encode("latin-1", errors="replace")).hex()


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A signature of version 4. `scope` is date/region/s3/aws4_request: the scope of a key made from the secret.

    `payload` is its digest field for the body. `expires_s` None: the signature is in the headers.
    """

    # Use a struct, although it is never stored or sent: one is made for each request, at a third of a dataclass's
    # cost.

    access_key_id: str
    scope: str
    time: str
    signed_headers: tuple[bytes, ...]
    signature: str
    payload: str
    expires_s: int | None = None

    def check_time(self, now_s: int) -> None:
        """Check that the signature is valid now.

        Raises:
            S3Error: it was made too long ago, in the future, or expired.
        """
        made_s = _seconds(self.time)
        if self.expires_s is not None:
            if now_s > made_s + self.expires_s:
                limits = {"X-Amz-Expires": self.expires_s, "Expires": _iso(made_s + self.expires_s)}
                raise S3Error("AccessDenied", "Request has expired.", **limits, ServerTime=_iso(now_s))
            if made_s > now_s + SKEW_S_MAX:
                raise S3Error("AccessDenied", "Request is not valid yet", ServerTime=_iso(now_s))
        else:
            _check_skew(made_s, now_s, sent=self.time)

    def is_of(self, key: SigningKey, asked: Asked) -> bool:
        """Return whether this key signed this request."""
        query = asked.query
        canonical = canonical_request(
            asked.method,
            canonical_path(asked.raw_path),
            [pair for pair in query if pair[0] != "X-Amz-Signature"] if query else query,
            asked.headers,
            self.signed_headers,
            self.payload,
        )
        expected = key.sign(string_to_sign(self.time, self.scope, canonical))
        return hmac.compare_digest(expected, self.signature)

    def key(self, secret: str) -> SigningKey:
        return signing_key(secret, self.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedV2:
    """A signature of version 2. It covers neither the body nor most headers, as S3 defines it.

    `date` is the text that it signs as its time: in a query the second in which it ends, in a header the Date, or
    nothing if x-amz-date has it. `made_s` None: the signature is in the query.
    """

    access_key_id: str
    date: str
    signature: str
    canonical_resource: str
    made_s: int | None = None
    payload: str = UNSIGNED

    @property
    def scope(self) -> str:
        """Empty: the key is the secret itself."""
        return ""

    def check_time(self, now_s: int) -> None:
        if self.made_s is not None:
            _check_skew(self.made_s, now_s, sent=_iso(self.made_s))
            return
        if now_s > int(self.date):
            raise S3Error("AccessDenied", "Request has expired.", ServerTime=_iso(now_s))
        if int(self.date) > now_s + EXPIRES_S_MAX:
            raise S3Error("AccessDenied", "Expires must be less than a week ahead", ServerTime=_iso(now_s))

    def is_of(self, key: SigningKey, asked: Asked) -> bool:
        amz: dict[str, list[str]] = {}
        for name, value in asked.headers:
            if name.startswith(b"x-amz-"):
                amz.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1").strip())
        lines = [
            asked.method,
            asked.header(b"content-md5") or "",
            asked.header(b"content-type") or "",
            self.date,
            *(f"{name}:{','.join(values)}" for name, values in sorted(amz.items())),
            self.canonical_resource,
        ]
        made = base64.b64encode(key.digest("\n".join(lines).encode()))
        return hmac.compare_digest(made, self.signature.encode(errors="replace"))

    def key(self, secret: str) -> SigningKey:
        return SigningKey(secret.encode(), "sha1")


AnySigned: TypeAlias = Signed | SignedV2


def _check_skew(made_s: int, now_s: int, *, sent: str) -> None:
    """Raises RequestTimeTooSkewed if a request was signed by a clock too far from ours."""
    if abs(now_s - made_s) > SKEW_S_MAX:
        raise S3Error("RequestTimeTooSkewed", RequestTime=sent, ServerTime=_iso(now_s))


def read_signature(asked: Asked, bucket_of_host: str) -> AnySigned:
    """Read the signature of a request. `bucket_of_host`: the bucket that only the Host header names, or empty.

    Raises:
        S3Error: the signature is missing or malformed.
    """
    if b"x-amz-security-token" in asked.first or asked.parameter("X-Amz-Security-Token") is not None:
        raise S3Error(
            "InvalidToken",
            "The key pairs of this server have no session token, so the one that was sent belongs to other credentials."
            " Unset AWS_SESSION_TOKEN, or aws_session_token of the profile.",
        )
    authorization = asked.header(b"authorization")
    if authorization is not None:
        if asked.parameter("X-Amz-Algorithm") is not None:
            raise S3Error("InvalidArgument", "Only one auth mechanism allowed")
        if authorization.startswith("AWS "):
            return _from_header_v2(asked, authorization, bucket_of_host)
        return _from_header(asked, authorization)
    if asked.parameter("X-Amz-Algorithm") is not None or asked.parameter("X-Amz-Signature") is not None:
        return _from_query(asked)
    if asked.parameter("AWSAccessKeyId") is not None:
        return _from_query_v2(asked, bucket_of_host)
    raise S3Error("AccessDenied")


def _from_header(asked: Asked, authorization: str) -> Signed:
    start, _, signature = authorization.rpartition("Signature=")
    opening = _opening_of(start) if _HEX.fullmatch(signature) else None
    if opening is None:
        credential, signed_headers, signature = _read_header(authorization)
    payload = asked.header(b"x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    time = asked.header(b"x-amz-date") or _http_date(asked.header(b"date"))
    if time is None or not _is_time(time):
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header.")
    return _signed(
        asked,
        _malformed,
        opening or _opened(credential, signed_headers, _malformed),
        time=time,
        signature=signature,
        payload=payload,
        expires_s=None,
    )


def _read_header(authorization: str) -> tuple[str, str, str]:
    """Read the credential, the signed headers and the signature, in any order. Errors name the wrong field."""
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise S3Error(
            "InvalidArgument",
            "Unsupported Authorization Type",
            ArgumentName="Authorization",
            ArgumentValue=algorithm[:200],
        )
    fields: dict[str, str] = {}
    for part in rest.split(","):
        match = _FIELD.fullmatch(part)
        if match is None or match[1] in fields:
            raise _malformed(f'the authorization component "{part.strip()[:100]}" is malformed.')
        fields[match[1]] = match[2]
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not fields.get(name):
            raise _malformed(f"missing {name}.")
    return fields["Credential"], fields["SignedHeaders"], fields["Signature"]


def _malformed(words: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed; {words}")


def _from_query(asked: Asked) -> Signed:
    code = "AuthorizationQueryParametersError"
    found: dict[str, str] = {}
    for name, value in asked.query:
        if name in V4_QUERY and name in found:
            raise S3Error(code, f"{name} occurs more than once.")
        found[name] = value
    missing = [
        name for name in sorted(V4_QUERY - {"X-Amz-Security-Token", "X-Amz-Content-Sha256"}) if not found.get(name)
    ]
    if missing:
        raise S3Error(
            code,
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature,"
            " X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
        )
    if found["X-Amz-Algorithm"] != ALGORITHM:
        raise S3Error(code, f'X-Amz-Algorithm only supports "{ALGORITHM}"')
    expires = found["X-Amz-Expires"]
    if not re.fullmatch(r"-?\d{1,12}", expires):
        raise S3Error(code, "X-Amz-Expires should be a number")
    if int(expires) < 0:
        raise S3Error(code, "X-Amz-Expires must be non-negative")
    if int(expires) > EXPIRES_S_MAX:
        raise S3Error(code, "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires"
                      " must be less than 604800 seconds")  # fmt: skip
    if not _is_time(found["X-Amz-Date"]):
        raise S3Error(code, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")

    def malformed(words: str) -> S3Error:
        return S3Error(code, f"Error parsing the X-Amz-Credential parameter; {words}")

    return _signed(
        asked,
        malformed,
        _opened(found["X-Amz-Credential"], found["X-Amz-SignedHeaders"], malformed),
        time=found["X-Amz-Date"],
        signature=found["X-Amz-Signature"],
        payload=found.get("X-Amz-Content-Sha256") or asked.header(b"x-amz-content-sha256") or UNSIGNED,
        expires_s=int(expires),
    )


class _Opening(msgspec.Struct, frozen=True):
    """The constant part of a client's requests in one day: its key, the scope, the signed headers."""

    access_key_id: str
    scope: str
    names: tuple[bytes, ...]
    known: frozenset[bytes]


# Cache few of them: a stranger may send 64 KiB each.
@functools.lru_cache(maxsize=64)
def _opening_of(start: str) -> _Opening | None:
    """Read a header up to the signature. Return None if it is malformed or in another order."""
    match = _OPENING.fullmatch(start)
    try:
        return None if match is None else _Opening(*_scope_of(match[1]), *_names_of(match[2]))
    except ValueError:
        return None


def _opened(credential: str, signed_headers: str, malformed: Callable[[str], S3Error]) -> _Opening:
    try:
        return _Opening(*_scope_of(credential), *_names_of(signed_headers))
    except ValueError as error:
        raise malformed(str(error)) from error


def _signed(
    asked: Asked,
    malformed: Callable[[str], S3Error],
    opening: _Opening,
    *,
    time: str,
    signature: str,
    payload: str,
    expires_s: int | None,
) -> Signed:
    if opening.scope[:8] != time[:8]:
        raise malformed("Invalid credential date. Date is not the same as X-Amz-Date.")
    if not _HEX.fullmatch(signature):
        raise S3Error("SignatureDoesNotMatch")
    known, present = opening.known, asked.first.keys()
    unsigned = [name for name in present - known if name == b"host" or name.startswith(b"x-amz-")]
    if expires_s is not None:
        # In a presigned request, nothing compares the body's digest, so it need not be signed.
        unsigned = [name for name in unsigned if name != b"x-amz-content-sha256"]
    if unsigned:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            HeadersNotSigned=b", ".join(sorted(unsigned)).decode("latin-1"),
        )
    if b"host" not in known or not present >= known:
        raise malformed("SignedHeaders names a header that the request does not have, or leaves out the host.")
    return Signed(
        access_key_id=opening.access_key_id,
        scope=opening.scope,
        time=time,
        signed_headers=opening.names,
        signature=signature,
        payload=payload,
        expires_s=expires_s,
    )


def _scope_of(credential: str) -> tuple[str, str]:
    """Return the access key and the scope of a credential."""
    # A key id may contain slashes; the rest of the scope does not.
    access_key_id, *parts = credential.rsplit("/", 4)
    if len(parts) != 4 or not access_key_id:
        raise ValueError('the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".')
    date, _, service, terminal = parts
    if terminal != "aws4_request":
        raise ValueError(f'incorrect terminal "{terminal}". This endpoint uses "aws4_request".')
    if service != "s3":
        raise ValueError(f'incorrect service "{service}". This endpoint belongs to "s3".')
    if not _DATE.fullmatch(date):
        raise ValueError(
            f'incorrect date format "{date}". This date in the credential must be in the format "yyyyMMdd".'
        )
    return access_key_id, "/".join(parts)


def _names_of(signed_headers: str) -> tuple[tuple[bytes, ...], frozenset[bytes]]:
    names = tuple(signed_headers.lower().encode("latin-1", errors="replace").split(b";"))
    return names, frozenset(names)


def _from_query_v2(asked: Asked, bucket_of_host: str) -> SignedV2:
    key_id, expires, signature = (asked.parameter(name) for name in ("AWSAccessKeyId", "Expires", "Signature"))
    if not key_id or not signature or expires is None or not re.fullmatch(r"\d{1,12}", expires):
        raise S3Error("AccessDenied", "Query-string authentication requires the Signature, Expires and AWSAccessKeyId")
    for name, _ in asked.query:
        # Any holder of the URL could change these: a link to one object of a bucket would list all of it.
        if name not in V2_QUERY and not name.lower().startswith("x-") and not _V2_SUBRESOURCES.fullmatch(name):
            raise S3Error("AccessDenied", f"a signature of version 2 does not cover the parameter {name[:100]}")
    resource = _canonical_resource(asked, bucket_of_host)
    return SignedV2(access_key_id=key_id, date=expires, signature=signature, canonical_resource=resource)


def _from_header_v2(asked: Asked, authorization: str, bucket_of_host: str) -> SignedV2:
    key_id, _, signature = authorization.removeprefix("AWS ").strip().partition(":")
    if not key_id or not signature:
        raise S3Error("InvalidArgument", "AWS authorization header is invalid. Expected AwsAccessKeyId:signature")
    sent, date = asked.header(b"x-amz-date"), asked.header(b"date")
    time = _http_date(sent or date)
    if time is None or not _is_time(time):
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return SignedV2(
        access_key_id=key_id,
        date="" if sent else date or "",
        signature=signature,
        canonical_resource=_canonical_resource(asked, bucket_of_host),
        made_s=_seconds(time),
    )


def _canonical_resource(asked: Asked, bucket_of_host: str) -> str:
    """Return the path and those parameters that version 2 signs. Nothing else of the query is covered."""
    resource = (f"/{bucket_of_host}" if bucket_of_host else "") + asked.raw_path.decode("latin-1")
    chosen = sorted((name, value) for name, value in asked.query if _V2_SUBRESOURCES.fullmatch(name))
    if chosen:
        resource += "?" + "&".join(name + (f"={value}" if value else "") for name, value in chosen)
    return resource


# Version 4, step by step


def canonical_path(raw_path: bytes) -> bytes:
    """Encode the path again, once: clients encode differently, but sign the same encoding."""
    if _PLAIN_PATH.fullmatch(raw_path):
        return raw_path  # There is usually nothing to encode.
    return quote(unquote_to_bytes(raw_path), safe="/-_.~").encode() or b"/"


def canonical_query(query: Query) -> bytes:
    if not query:
        return b""
    pairs = sorted([(_encode(name), _encode(value)) for name, value in query])
    return "&".join([f"{name}={value}" for name, value in pairs]).encode()


def canonical_headers(headers: Headers, names: Sequence[bytes]) -> bytes:
    found = dict(headers)
    if len(found) < len(headers):  # A header appears more than once.
        found = {}
        for name, value in headers:
            found[name] = b"%s,%s" % (found[name], value.strip()) if name in found else value.strip()
    shown = b"".join([b"%s:%s\n" % (name, found.get(name, b"").strip()) for name in names])
    return _SPACES.sub(b" ", shown) if b"  " in shown else shown


def canonical_request(
    method: str, path: bytes, query: Query, headers: Headers, signed_headers: Sequence[bytes], payload: str
) -> bytes:
    return b"%s\n%s\n%s\n%s\n%s\n%s" % (
        method.encode("latin-1", errors="replace"),
        path,
        canonical_query(query),
        canonical_headers(headers, signed_headers),
        b";".join(signed_headers),
        payload.encode("latin-1", errors="replace"),
    )


def string_to_sign(time: str, scope: str, canonical: bytes) -> str:
    return f"{ALGORITHM}\n{time}\n{scope}\n{hashlib.sha256(canonical).hexdigest()}"


def signing_key(secret: str, scope: str) -> SigningKey:
    return SigningKey(aws_signing_key(secret, scope))


def _encode(text: str) -> str:
    return quote(text, safe="-_.~")


def _is_time(text: str) -> bool:
    try:
        _seconds(text)
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=64)
def _seconds(time: str) -> int:
    """Return a time of a signature in seconds."""
    if not _TIME.fullmatch(time):
        raise ValueError(time)
    return int(datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp())


def _http_date(text: str | None) -> str | None:
    """Return the Date header, which is signed if there is no x-amz-date."""
    if text is None or _TIME.fullmatch(text):
        return text
    seconds = read_date(text)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
