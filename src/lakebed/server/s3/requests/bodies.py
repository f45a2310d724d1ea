"""Bodies of uploads: remove their frame, and check every digest that the client sent, while they stream.

A body may be plain or framed as `aws-chunked`. The frame's chunks may be signed, and a trailer may follow with a
checksum and a signature of its own. No bytes are held back: the last check runs at the end of the stream. Its error
fails the store's put, so nothing is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

from lakebed.server.http.fields import read_digest
from lakebed.server.s3.documents import MalformedXml, Node, read_document
from lakebed.server.s3.errors import NotImplementedByName, S3Error

from . import checksums
from .checksums import ALGORITHMS, HEADER, SIZES, Checksum
from .requests import S3Request
from .signatures import EMPTY_SHA256, UNSIGNED, AnySigned, Signed, SigningKey

CHUNK_BYTES_MIN: Final = 8192
"""Only the last chunk may be smaller."""
LINE_BYTES_MAX: Final = 1024
TRAILERS_MAX: Final = 8
SIZE_BYTES_MAX: Final = 5 << 30
"""The largest body of one request. Larger objects come in parts."""
SMALL_BYTES_MAX: Final = 1 << 20
_SIGNED_CHUNKS: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_SIGNED_CHUNKS_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
_UNSIGNED_CHUNKS_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_FRAMED: Final = frozenset({_SIGNED_CHUNKS, _SIGNED_CHUNKS_TRAILER, _UNSIGNED_CHUNKS_TRAILER})
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")


def check_word(word: str) -> None:
    """Check the digest field of a signature: a digest, UNSIGNED-PAYLOAD, or a frame.

    Raises:
        S3Error: the value is none of these.
    """
    if word in _FRAMED or word == UNSIGNED or _SHA256.fullmatch(word):
        return
    if word.startswith("STREAMING-AWS4-ECDSA-"):
        raise NotImplementedByName(f"x-amz-content-sha256: {word}")
    raise S3Error(
        "InvalidArgument",
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER,"
        " STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER,"
        " STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER or a valid"
        " sha256 value.",
        ArgumentName="x-amz-content-sha256",
        ArgumentValue=word[:200],
    )


class Payload:
    """A body with the size and the digests that its request declares.

    `size_bytes` is the size of the object. After the body was read, `checksums` has the client's checksum and the
    checksum of the algorithm `also`, by algorithm, in base64.
    `has_checksum` False: checksums in the headers are not of this body.
    """

    def __init__(self, request: S3Request, *, also: str = "", has_checksum: bool = True) -> None:
        self._request = request
        self._word = request.signed.payload
        self.size_bytes: Final = self._declared_size()
        self._md5 = _declared_md5(request)
        self.algorithm, self._expected = _declared_checksum(request) if has_checksum else (None, None)
        self._trailer = _declared_trailer(request, self._word) if self._is_framed else None
        if self._trailer is not None:
            if self._expected is not None:
                raise S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header")
            if self.algorithm not in (None, self._trailer):
                raise S3Error("InvalidRequest", "x-amz-trailer and x-amz-sdk-checksum-algorithm differ")
            self.algorithm = self._trailer
        elif self.algorithm is not None and self._expected is None:
            raise S3Error(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer"
                " headers were found.",
            )
        self._also = also if also != self.algorithm else ""
        self.checksums: dict[str, str] = {}

    @property
    def _is_framed(self) -> bool:
        return self._word in _FRAMED

    def _declared_size(self) -> int:
        name = b"x-amz-decoded-content-length" if self._is_framed else b"content-length"
        text = self._request.header(name)
        if text is None:
            raise S3Error("MissingContentLength")
        if not re.fullmatch(r"\d{1,18}", text):
            raise S3Error("InvalidArgument", f"{name.decode()} is not a number")
        if int(text) > SIZE_BYTES_MAX:
            raise S3Error("EntityTooLarge", ProposedSize=text, MaxSizeAllowed=SIZE_BYTES_MAX)
        return int(text)

    async def body(self) -> bytes | AsyncIterator[bytes]:
        """Return a small body whole and checked, and a large body as a stream that checks itself at its end."""
        if self.size_bytes <= SMALL_BYTES_MAX:
            return b"".join([chunk async for chunk in self.chunks()])
        return self.chunks()

    async def document(self, root: str, size_bytes_max: int, read: Callable[[Node], T]) -> T:
        """Read the whole body as XML, and return the result of `read`.

        Raises:
            S3Error: the body is larger than `size_bytes_max` or no XML, or `read` raises MalformedXml.
        """
        if self.size_bytes > size_bytes_max:
            raise S3Error("MaxMessageLengthExceeded", MaxMessageLengthBytes=size_bytes_max)
        data = b"".join([chunk async for chunk in self.chunks()])
        try:
            return await read_document(data, root, read)
        except MalformedXml as error:
            raise S3Error("MalformedXML") from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the body, checked.

        Raises:
            S3Error: a digest, a signature or the length does not match. Raised at the end of the body.
        """
        digests: list[tuple[Checksum, str, bytes | None]] = []
        if self._md5 is not None:
            digests.append((hashlib.md5(usedforsecurity=False), "", self._md5))
        if self.algorithm is not None:
            digests.append((checksums.new(self.algorithm), self.algorithm, self._expected))
        also = checksums.new(self._also) if self._also else None
        sha256 = hashlib.sha256() if not self._is_framed and self._word != UNSIGNED else None
        found = 0
        trailers: dict[str, str] = {}
        async for chunk in self._unframed(trailers) if self._is_framed else self._request.stream():
            found += len(chunk)
            if found > self.size_bytes:
                raise S3Error("IncompleteBody", "The request body is longer than it says")
            for digest, _, _ in digests:
                digest.update(chunk)
            if sha256 is not None:
                sha256.update(chunk)
            if also is not None:
                also.update(chunk)
            if chunk:
                yield chunk
        if found != self.size_bytes:
            raise S3Error("IncompleteBody")
        if sha256 is not None and sha256.hexdigest() != self._word:
            raise S3Error(
                "XAmzContentSHA256Mismatch",
                ClientComputedContentSHA256=self._word,
                S3ComputedContentSHA256=sha256.hexdigest(),
            )
        for digest, algorithm, declared in digests:
            self._check(algorithm, digest.digest(), declared, trailers)
        if also is not None:
            self.checksums[self._also] = checksums.spell(also.digest())

    def _check(self, algorithm: str, computed: bytes, declared: bytes | None, trailers: dict[str, str]) -> None:
        if declared is None:
            name = checksums.header_of(algorithm)
            if name not in trailers:
                raise S3Error("MalformedTrailerError")
            declared = read_digest(trailers[name], SIZES[algorithm])
            if declared is None:
                raise S3Error("InvalidRequest", f"Value for {name} trailing header is invalid.")
        if not hmac.compare_digest(computed, declared):
            words = f"The {algorithm} you specified did not match the calculated checksum." if algorithm else ""
            raise S3Error("BadDigest", words)
        if algorithm:
            self.checksums[algorithm] = checksums.spell(computed)

    # The frame

    async def _unframed(self, trailers: dict[str, str]) -> AsyncIterator[bytes]:
        source = _Source(self._request.stream())
        chain = _Chain(self._request.signed, self._request.key) if self._word != _UNSIGNED_CHUNKS_TRAILER else None
        is_last_small = False
        size = -1
        while size != 0:
            match = _CHUNK.fullmatch(await source.line())
            if match is None or (chain is not None) != (match[2] is not None):
                raise S3Error("IncompleteBody" if chain is None else "SignatureDoesNotMatch")
            size = int(match[1], 16)
            if size and is_last_small:
                raise S3Error("InvalidChunkSizeError")
            is_last_small = size < CHUNK_BYTES_MIN
            digest = hashlib.sha256()
            left = size
            while left:
                piece = await source.some(left)
                left -= len(piece)
                if chain is not None:
                    digest.update(piece)
                yield piece
            if size and await source.line():
                raise S3Error("IncompleteBody")
            if chain is not None:
                chain.check_chunk(digest.hexdigest(), match[2].decode())
        await self._read_trailers(source, chain, trailers)

    async def _read_trailers(self, source: _Source, chain: _Chain | None, trailers: dict[str, str]) -> None:
        signature = ""
        while (line := await source.line(may_end=True)) is not None:
            name, colon, value = line.decode("latin-1").strip().partition(":")
            name = name.strip().lower()
            if not name and not colon:
                continue
            if not colon or len(trailers) >= TRAILERS_MAX or name in trailers:
                raise S3Error("MalformedTrailerError")
            if name == "x-amz-trailer-signature":
                signature = value.strip()
            elif self._trailer is None or name != checksums.header_of(self._trailer):
                raise S3Error("MalformedTrailerError")
            else:
                trailers[name] = value.strip()
        if self._word == _SIGNED_CHUNKS_TRAILER:
            assert chain is not None
            chain.check_trailers(trailers, signature)
        elif signature:
            raise S3Error("MalformedTrailerError")


class _Chain:
    """The chain of chunk signatures: each covers the previous one. The first covers the request's signature."""

    def __init__(self, signed: AnySigned, key: SigningKey) -> None:
        if not isinstance(signed, Signed):
            raise S3Error("InvalidRequest", "signed chunks need a signature of version 4")
        self._start = f"{signed.time}\n{signed.scope}\n"
        self._key = key
        self._previous = signed.signature

    def check_chunk(self, sha256: str, signature: str) -> None:
        text = f"AWS4-HMAC-SHA256-PAYLOAD\n{self._start}{self._previous}\n{EMPTY_SHA256}\n{sha256}"
        self._check(text, signature)

    def check_trailers(self, trailers: dict[str, str], signature: str) -> None:
        shown = "".join([f"{name}:{value}\n" for name, value in sorted(trailers.items())])
        digest = hashlib.sha256(shown.encode("latin-1")).hexdigest()
        self._check(f"AWS4-HMAC-SHA256-TRAILER\n{self._start}{self._previous}\n{digest}", signature)

    def _check(self, text: str, signature: str) -> None:
        expected = self._key.sign(text)
        if not hmac.compare_digest(expected.encode(), signature.encode("latin-1")):
            raise S3Error("SignatureDoesNotMatch")
        self._previous = expected


class _Source:
    """Read the framed bytes, by line and by piece. Keeps one piece of the connection at a time."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream = stream
        self._piece = b""
        self._position = 0

    async def _fill(self) -> bool:
        """Make sure that a byte is available. Return False at the end."""
        while self._position >= len(self._piece):
            piece = await anext(self._stream, None)
            if piece is None:
                return False
            self._piece, self._position = piece, 0
        return True

    async def line(self, *, may_end: bool = False) -> bytes:
        """Return a line without its CR LF. With `may_end`, return None at the end of the body."""
        begun = b""
        while True:
            if not await self._fill():
                if may_end and not begun:
                    return None  # type: ignore[return-value]  # overloading one private method is not worth it
                raise S3Error("IncompleteBody")
            end = self._piece.find(b"\n", self._position)
            if end >= 0:
                line = begun + self._piece[self._position : end]
                self._position = end + 1
                return line.removesuffix(b"\r")
            begun += self._piece[self._position :]
            self._position = len(self._piece)
            if len(begun) > LINE_BYTES_MAX:
                raise S3Error("IncompleteBody")

    async def some(self, most: int) -> bytes:
        """Return at least one and at most `most` bytes."""
        if not await self._fill():
            raise S3Error("IncompleteBody")
        piece = self._piece[self._position : self._position + most]
        self._position += len(piece)
        return piece


def _declared_md5(request: S3Request) -> bytes | None:
    text = request.header(b"content-md5")
    if text is None:
        return None
    digest = read_digest(text, 16)
    if digest is None:
        raise S3Error("InvalidDigest")
    return digest


def declared_algorithm(request: S3Request, header: bytes) -> str | None:
    """Return the algorithm that a header names, in upper case."""
    text = request.header(header)
    if text is None:
        return None
    if text.upper() not in ALGORITHMS:
        raise S3Error(
            "InvalidRequest",
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C,"
            " CRC64NVME, MD5, SHA1, SHA256, SHA512, XXHASH128, XXHASH3, XXHASH64]",
        )
    return text.upper()


def _declared_checksum(request: S3Request) -> tuple[str | None, bytes | None]:
    """Return the algorithm, and the digest if a header has it already."""
    named = declared_algorithm(request, b"x-amz-sdk-checksum-algorithm")
    found = sent_checksums(request)
    if len(found) > 1:
        raise S3Error(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    if not found:
        return named, None
    algorithm, text = found[0]
    if named not in (None, algorithm):
        raise S3Error("InvalidRequest", f"Value for x-amz-sdk-checksum-algorithm header is invalid: {named}")
    digest = read_digest(text, SIZES[algorithm])
    if digest is None:
        raise S3Error("InvalidRequest", f"Value for {checksums.header_of(algorithm)} header is invalid.")
    return algorithm, digest


def sent_checksums(request: S3Request) -> Sequence[tuple[str, str]]:
    """Return the checksums in the headers, by algorithm."""
    found = []
    for name, value in request.scope["headers"]:
        if name.startswith(HEADER.encode()):
            algorithm = name[len(HEADER) :].decode("latin-1").upper()
            if algorithm in ALGORITHMS:
                found.append((algorithm, value.decode("latin-1")))
            elif algorithm not in {"ALGORITHM", "TYPE", "MODE"}:
                raise S3Error("InvalidRequest", f"The checksum header {name.decode('latin-1')} is not known")
    return found


def _declared_trailer(request: S3Request, word: str) -> str | None:
    text = request.header(b"x-amz-trailer")
    if text is None:
        return None
    name = text.strip().lower()
    if word == _SIGNED_CHUNKS:
        raise S3Error("InvalidRequest", f"x-amz-trailer does not go with {word}")
    algorithm = name.removeprefix(HEADER).upper()
    if not name.startswith(HEADER) or algorithm not in ALGORITHMS:
        raise S3Error("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
    return algorithm
