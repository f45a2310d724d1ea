"""S3 data of an entry: headers to return, checksums, and the parts of an upload.

All of it is stored in the entry's metadata under SYSTEM. Another door, another store or an older release may have
written it, so each value is checked when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from lakebed.base import HIDDEN_METADATA, S3_HEADERS, S3_METADATA, Entry
from lakebed.catalog import METADATA_BYTES_MAX
from lakebed.server.http.fields import read_digest
from lakebed.versions import PART_NUMBER_MAX

from .documents import Element
from .errors import S3Error
from .requests import checksums
from .requests.checksums import ALGORITHMS, COMPOSITE, FULL_OBJECT, SIZES, part_count
from .requests.requests import S3Request

SYSTEM: Final = S3_METADATA
HIDDEN: Final = HIDDEN_METADATA
LAYOUT_CHARACTERS_MAX: Final = 4096
VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
"""What a header can have."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RUN: Final = re.compile(r"(\d{1,19})(?:\*(\d{1,5}))?", re.ASCII)
_CHECKSUM: Final = re.compile(r"[0-9A-Za-z+/=]{1,100}(-\d{1,5})?", re.ASCII)


def metadata_of(request: S3Request) -> dict[str, str]:
    """Return the metadata that the request gives an object: the user's, and the headers that S3 returns."""
    metadata = request.user_metadata()
    for name in S3_HEADERS:
        value = request.text_header(name.encode())
        if value is not None and name == "content-encoding":
            # Strip `aws-chunked`: it describes the transfer, not the object.
            parts = [part for part in value.split(",") if part.strip().lower() != "aws-chunked"]
            value = ",".join(parts).strip()
        if value:
            metadata[SYSTEM + name] = value
    if any(name.startswith(HIDDEN) for name in request.user_metadata()):
        raise S3Error("InvalidArgument", f"the names of metadata cannot begin with {HIDDEN}")
    return metadata


def user_metadata(metadata: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the user's metadata that clients accept as headers, by lower-case names, and the number of others."""
    found: dict[str, str] = {}
    missing = size_bytes = 0
    for name, value in metadata.items():
        if name.startswith(HIDDEN):
            continue
        size_bytes += len(name) + len(value)
        # An import or a migration may store more metadata than clients accept.
        if size_bytes <= METADATA_BYTES_MAX and _NAME.fullmatch(name) and VALUE.fullmatch(value):
            found[name.lower()] = value
        else:
            missing += 1
    return found, missing


def keep_checksums(metadata: dict[str, str], found: Mapping[str, str]) -> None:
    for algorithm, value in found.items():
        metadata[f"{SYSTEM}checksum-{algorithm.lower()}"] = value


def stored_checksums(entry: Entry) -> dict[str, str]:
    found = {algorithm: entry.metadata.get(f"{SYSTEM}checksum-{algorithm.lower()}") for algorithm in ALGORITHMS}
    return {algorithm: value for algorithm, value in found.items() if value is not None and _CHECKSUM.fullmatch(value)}


def part_sizes(entry: Entry) -> list[int] | None:
    """Return the sizes of the parts in which an object was uploaded.

    None: there were too many to store, or the stored layout does not match this object.
    """
    layout = entry.metadata.get(SYSTEM + "parts")
    if layout is None:
        return [entry.size_bytes] if part_count(entry.checksum) is None else None
    sizes: list[int] = []
    for run in layout.split(","):
        match = _RUN.fullmatch(run)
        count = 0 if match is None else int(match[2] or 1)
        if match is None or not 1 <= count <= PART_NUMBER_MAX - len(sizes):
            return None
        sizes += [int(match[1])] * count
    return sizes if sum(sizes) == entry.size_bytes else None


def keep_parts(metadata: dict[str, str], sizes: Sequence[int], algorithm: str, sums: Sequence[str]) -> None:
    """Store the sizes and checksums of parts if they are few enough: each row of a commit stores them."""
    layout = spell_layout(sizes)
    if len(layout) <= LAYOUT_CHARACTERS_MAX:
        metadata[SYSTEM + "parts"] = layout
    digests = [read_digest(text, SIZES[algorithm]) for text in sums] if algorithm else []
    spelled = checksums.spell(b"".join([digest or b"" for digest in digests]))
    if digests and None not in digests and len(spelled) <= LAYOUT_CHARACTERS_MAX:
        metadata[f"{SYSTEM}parts-{algorithm.lower()}"] = spelled


def part_checksums(entry: Entry) -> tuple[str, list[str]] | None:
    """Return the algorithm and the checksum of each part, if they were stored with a layout of the same parts."""
    sizes = part_sizes(entry)
    for algorithm, size_bytes in SIZES.items():
        spelled = entry.metadata.get(f"{SYSTEM}parts-{algorithm.lower()}")
        if sizes is None or spelled is None:
            continue
        digests = read_digest(spelled, len(sizes) * size_bytes)
        if digests is not None:
            starts = range(0, len(digests), size_bytes)
            return algorithm, [checksums.spell(digests[start : start + size_bytes]) for start in starts]
    return None


def spell_layout(sizes: Sequence[int]) -> str:
    """Encode the sizes of parts, with runs of equal sizes: `5242880*3,17`."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return ",".join([f"{size}*{count}" if count > 1 else str(size) for size, count in runs])


def shown_checksums(request: S3Request, entry: Entry, *, is_whole: bool) -> Mapping[bytes, bytes]:
    """Return the checksum of the requested part, or of the whole object. A range has no checksum."""
    if is_whole:
        return typed_checksum_headers(stored_checksums(entry))
    of_parts = part_checksums(entry) if request.has("partNumber") else None
    if of_parts is None:
        return {}
    algorithm, sums = of_parts
    shown = checksum_headers({algorithm: sums[int(request.parameter("partNumber")) - 1]})
    return shown | {b"x-amz-checksum-type": checksum_type(stored_checksums(entry)).encode()}


def shown_parts(request: S3Request, entry: Entry) -> Element:
    """Return the number of parts, and a page of them if their checksums were stored, as in S3."""
    root = Element("ObjectParts").text("PartsCount", part_count(entry.checksum))
    sizes, of_parts = part_sizes(entry), part_checksums(entry)
    if sizes is None or of_parts is None:
        return root
    limit = request.number_of("x-amz-max-parts", request.header(b"x-amz-max-parts"), default=1000, most=1000)
    marker = request.header(b"x-amz-part-number-marker")
    after = request.number_of("x-amz-part-number-marker", marker, default=0, most=2**31 - 1)
    algorithm, sums = of_parts
    parts = [*enumerate(zip(sizes, sums, strict=True), 1)][after : after + limit]
    root.text("PartNumberMarker", after).text("NextPartNumberMarker", parts[-1][0] if parts else 0)
    root.text("MaxParts", limit).flag("IsTruncated", value=after + limit < len(sizes))
    for number, (size_bytes, text) in parts:
        shown = Element("Part").text("PartNumber", number).text("Size", size_bytes)
        root.add(shown.text(f"Checksum{algorithm}", text))
    return root


def checksum_type(found: Mapping[str, str]) -> str:
    return COMPOSITE if any("-" in value for value in found.values()) else FULL_OBJECT


def checksum_headers(found: Mapping[str, str]) -> dict[bytes, bytes]:
    """Encode checksums, by algorithm, as headers."""
    return {checksums.header_of(algorithm).encode(): value.encode() for algorithm, value in found.items()}


def typed_checksum_headers(found: Mapping[str, str]) -> dict[bytes, bytes]:
    headers = checksum_headers(found)
    return headers | ({b"x-amz-checksum-type": checksum_type(found).encode()} if headers else {})
