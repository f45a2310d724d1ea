"""Append the rows of one branch's table to that of another, where both only appended since they parted.

The manifests that the source added are listed behind those of the destination, in one new snapshot. No manifest and no
data file is written or changed. Their rows get the sequence number of the new snapshot: they are newer than each delete
that the destination has, as rows that are appended now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakebed.base import Conflict
from lakebed.wire import TableCommit

from . import avro
from .exporting import list_of, listed
from .files import Read, list_in
from .metadata import Metadata, refusing, snapshot_set

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.snapshots import Snapshot

_FIXED: Final = (
    *("format_version", "current_schema_id", "schemas", "default_spec_id", "partition_specs"),
    *("default_sort_order_id", "sort_orders", "properties"),
)
"""Parts of the metadata that an append leaves as they are."""
MERGED: Final = "lakebed.merged-snapshot-id"
"""In the summary of a snapshot that appends: the source's snapshot. A later merge of the source begins there."""
_SUMS: Final = ("data-files", "records", "files-size")


_ADDED_SNAPSHOT: Final = 6
"""The place of the field in a record of the library."""


class NotAppended(Conflict):
    """A side did more than append to the table since both parted. The message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The commit of the destination, and the list of manifests to write first."""

    commit: TableCommit
    manifest_list: bytes


async def appended(
    base: Metadata, source: Metadata, destination: Metadata, read: Read, *, uri: str, snapshot_id: int, now_ms: int
) -> Appended:
    """Return the commit that appends to `destination` what `source` has beyond `base`. `uri`: of the list to write.

    Raises:
        NotAppended: one side did more than append, or its manifests cannot be listed again.
        InvalidTable, LakebedError: see `change_of`.
    """
    from pyiceberg.manifest import UNASSIGNED_SEQ

    fresh = _appends(base, source, "the source")
    head = source.value.current_snapshot_id
    _appends(base, destination, "the destination")
    newest = destination.value.current_snapshot()
    old, ours, theirs = [await _listed(one.value.current_snapshot(), read) for one in (base, source, destination)]
    if missing := old.keys() - ours.keys() | old.keys() - theirs.keys():
        raise NotAppended(f"a side rewrote manifests, such as {min(missing)}: repeat its appends by hand")
    added = [ours[path] for path in sorted(ours.keys() - old.keys())]
    for manifest in added:
        # A list of format 1 may leave the counts out. They are None then, and the manifest may do anything.
        if manifest.content != 0 or manifest.existing_files_count != 0 or manifest.deleted_files_count != 0:
            raise NotAppended(f"{manifest.manifest_path} does more than add files: repeat its appends by hand")
    number = (getattr(destination.value, "last_sequence_number", None) or 0) + 1
    for manifest in added:
        # The writer gives them the number of the new snapshot.
        manifest.sequence_number = manifest.min_sequence_number = UNASSIGNED_SEQ
        manifest[_ADDED_SNAPSHOT] = snapshot_id
    current = None if newest is None else newest.snapshot_id
    body = list_of(
        [*added, *theirs.values()],
        uri,
        format_version=2,
        snapshot_id=snapshot_id,
        sequence_number=number,
        parent_snapshot_id=current,
    )
    snapshot = {
        "snapshot-id": snapshot_id,
        **({} if current is None else {"parent-snapshot-id": current}),
        "sequence-number": number,
        "timestamp-ms": max(now_ms, destination.value.last_updated_ms),
        "manifest-list": uri,
        "summary": _summary(fresh, newest) | ({} if head is None else {MERGED: str(head)}),
        "schema-id": destination.value.current_schema_id,
    }
    commit = snapshot_set(destination.uuid, current, snapshot_id, {"action": "add-snapshot", "snapshot": snapshot})
    return Appended(commit=commit, manifest_list=body)


def _appends(base: Metadata, side: Metadata, label: str) -> list[Snapshot]:
    """Return the snapshots that a side appended since `base`, oldest first."""
    if side.uuid != base.uuid:
        raise NotAppended(f"{label} made the table anew")
    if side.value.format_version != 2:
        raise NotAppended(f"the table has format version {side.value.format_version}, and only 2 can be appended to")
    for name in _FIXED:
        if getattr(side.value, name) != getattr(base.value, name):
            raise NotAppended(f"{label} changed the table's {name.replace('_', ' ')}, too")
    known = {one.snapshot_id: one for one in side.value.snapshots}
    start, at = base.value.current_snapshot_id, side.value.current_snapshot_id
    appends: list[Snapshot] = []
    while at != start:
        snapshot = None if at is None else known.get(at)
        if appends and start is not None and _merged(appends[-1]) == start:
            break
        if snapshot is None:
            raise NotAppended(f"{label} went back to an older snapshot, or expired those since both parted")
        if snapshot.summary is None or snapshot.summary.operation.value != "append":
            raise NotAppended(f"{label} has snapshot {snapshot.snapshot_id}, which is no append")
        appends.append(snapshot)
        at = snapshot.parent_snapshot_id
    return appends[::-1]


async def _listed(snapshot: Snapshot | None, read: Read) -> dict[str, ManifestFile]:
    if snapshot is None:
        return {}
    uri = list_in(snapshot)
    data = (await read([uri]))[uri]
    with refusing(f"{uri} is no list of manifests", words=avro.words_of, uri=uri):
        found = await asyncio.to_thread(listed, uri, data)
    return {manifest.manifest_path: manifest for manifest in found}


def _summary(fresh: Sequence[Snapshot], newest: Snapshot | None) -> dict[str, str]:
    """Return the summary of the new snapshot: what the appends added, and the totals with it, where all are known."""
    summary = {"operation": "append"}
    for name in _SUMS:
        parts = [_number(one, f"added-{name}") for one in fresh]
        before = 0 if newest is None else _number(newest, f"total-{name}")
        if None not in parts:
            total = sum(part for part in parts if part is not None)
            summary[f"added-{name}"] = str(total)
            if before is not None:
                summary[f"total-{name}"] = str(before + total)
    if newest is not None:
        names = ("total-delete-files", "total-position-deletes", "total-equality-deletes")
        kept = {name: _number(newest, name) for name in names}
        summary |= {name: str(value) for name, value in kept.items() if value is not None}
    return summary


def _merged(snapshot: Snapshot) -> int | None:
    return _number(snapshot, MERGED)


def _number(snapshot: Snapshot, name: str) -> int | None:
    text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
    return int(text) if text is not None and text.isdecimal() else None
