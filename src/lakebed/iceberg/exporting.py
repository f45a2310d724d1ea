"""Write a snapshot anew with other addresses, so that readers without this catalog find its files.

Manifests name files by the URIs of the hidden branch, which only the gateway resolves. An export has the same rows of
manifests with the addresses of the objects, a list of these manifests, and metadata with this one snapshot. No data
file is copied or changed. So a table cannot be exported whose deletes name files inside their own bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from . import avro
from .metadata import InvalidTable, parsed

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import TableVersion

_POSITION_DELETES: Final = 1
_FILE_PATH: Final = 1
"""The place of the field in a record of the library."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table, by URI: `read` returns the bytes of one, and `address_of` where its object lies."""

    read: Callable[[str], bytes]
    address_of: Callable[[str], str]

    def new_input(self, uri: str) -> MemoryFile:
        """Open a file as the library asks for it."""
        return MemoryFile(uri, avro.checked(uri, self.read(uri)))


def exported(uri: str, files: TableFiles, *, location: str, target: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an export, each with its name below `target`; the metadata file last.

    `uri`: of the table's metadata.

    Raises:
        InvalidTable: the table is at no snapshot, has deletes by position, or makes no sense.
    """
    data = files.read(uri)
    metadata = parsed(data, uri, location=location).value
    snapshot = metadata.current_snapshot()
    if snapshot is None or not snapshot.manifest_list:
        raise InvalidTable("the table has no snapshot to export: it is empty")
    manifests: list[ManifestFile] = []
    for index, manifest in enumerate(listed(snapshot.manifest_list, files.read(snapshot.manifest_list))):
        body, made = _manifest(metadata, manifest, files, f"{target}/manifest-{index:05d}.avro")
        if made is not None:
            manifests.append(made)
            yield f"manifest-{index:05d}.avro", body
    id_, number, version = snapshot.snapshot_id, snapshot.sequence_number, metadata.format_version
    name = f"snap-{id_}.avro"
    place = f"{target}/{name}"
    yield name, list_of(manifests, place, format_version=version, snapshot_id=id_, sequence_number=number)
    yield "table.metadata.json", _metadata(data, snapshot, target, place)


def listed(uri: str, data: bytes) -> list[ManifestFile]:
    """Return the manifests of a list. The library raises its own errors for a file in Avro that is no list."""
    from pyiceberg.manifest import read_manifest_list

    return list(read_manifest_list(MemoryFile(uri, avro.checked(uri, data))))  # type: ignore[arg-type]  # it needs no more of a file


def _manifest(
    metadata: TableMetadata, manifest: ManifestFile, files: TableFiles, uri: str
) -> tuple[bytes, ManifestFile | None]:
    """Return a manifest with other addresses; None where it has no live file."""
    from pyiceberg.manifest import ManifestEntryStatus, write_manifest

    entries = manifest.fetch_manifest_entry(files)  # type: ignore[arg-type]  # it opens one file
    if not entries:
        return b"", None
    spec, out = metadata.specs()[manifest.partition_spec_id], MemoryFile(uri)
    sources = {field.source_id for field in spec.fields}
    # The spec of an old manifest may name a column that was dropped since.
    schemas = (metadata.schema(), *metadata.schemas)
    schema = next((one for one in schemas if sources <= one.field_ids), schemas[0])
    writer = write_manifest(
        format_version=metadata.format_version,
        spec=spec,
        schema=schema,
        output_file=out,  # type: ignore[arg-type]  # it needs no more of a file
        snapshot_id=manifest.added_snapshot_id or 0,
        avro_compression="deflate",
    )
    # The library writes manifests of data only. Those of deletes by equality differ in this one word.
    writer.content = lambda: manifest.content  # type: ignore[method-assign]  # see above
    # Before the writer opens: after an error it would raise one of its own, that its file is empty.
    for entry in entries:
        if entry.data_file.content == _POSITION_DELETES:
            raise InvalidTable(
                "the table has deletes by position, whose bytes name files by their old addresses: "
                "rewrite its data files first"
            )
        entry.data_file[_FILE_PATH] = files.address_of(entry.data_file.file_path)
        entry.status = ManifestEntryStatus.EXISTING
    with writer:
        for entry in entries:
            writer.add_entry(entry)
    made = writer.to_manifest_file()
    # Sequence numbers say which deletes are newer than which rows: they stay.
    made.sequence_number, made.min_sequence_number = manifest.sequence_number, manifest.min_sequence_number
    return out.getvalue(), made


def list_of(
    manifests: Sequence[ManifestFile],
    uri: str,
    *,
    format_version: TableVersion,
    snapshot_id: int,
    sequence_number: int | None,
    parent_snapshot_id: int | None = None,
) -> bytes:
    """Return the list of a snapshot's manifests, as the file at `uri`."""
    from pyiceberg.manifest import write_manifest_list

    out = MemoryFile(uri)
    with write_manifest_list(
        format_version=format_version,
        output_file=out,  # type: ignore[arg-type]  # it needs no more of a file
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_snapshot_id,
        sequence_number=sequence_number,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests([*manifests])
    return out.getvalue()


def _metadata(data: bytes, snapshot: Snapshot, target: str, manifest_list: str) -> bytes:
    """Return the metadata with this snapshot alone, and without places that are the catalog's."""
    value: dict[str, Any] = json.loads(data)
    one = next(each for each in value["snapshots"] if each["snapshot-id"] == snapshot.snapshot_id)
    one = {name: field for name, field in one.items() if name != "parent-snapshot-id"}
    properties: Mapping[str, str] = value.get("properties") or {}
    changed = {
        "location": target,
        "snapshots": [one | {"manifest-list": manifest_list}],
        "snapshot-log": [{"snapshot-id": snapshot.snapshot_id, "timestamp-ms": snapshot.timestamp_ms}],
        "metadata-log": [],
        "refs": {"main": {"snapshot-id": snapshot.snapshot_id, "type": "branch"}},
        "statistics": [],
        "partition-statistics": [],
        "properties": {name: text for name, text in properties.items() if not name.endswith(".path")},
    }
    return json.dumps(value | changed).encode()


class MemoryFile(io.BytesIO):
    """A file in memory, as the library's readers and writers want it."""

    def __init__(self, location: str, data: bytes = b"") -> None:
        super().__init__(data)
        self.location = location

    def __len__(self) -> int:
        return len(self.getbuffer())

    def open(self, seekable: bool = True) -> MemoryFile:  # noqa: ARG002 - the library's signature
        return self

    def create(self, overwrite: bool = False) -> MemoryFile:  # noqa: ARG002 - the library's signature
        return self

    def close(self) -> None:
        """Keep the bytes: the library closes what it has written, and asks for the size then."""
