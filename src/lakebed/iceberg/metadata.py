"""Make, read, check and change the metadata of one table. Pure: bytes and records in, bytes and values out.

A table lies at one location, which has its id as last segment, and all its files lie below. So metadata that names
another location, or the id of another table, is refused here, before anything is written.

The library raises errors of any kind, `StopIteration` too, which a thread cannot hand on: here, all are InvalidTable.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from lakebed.base import Conflict, Invalid, in_words
from lakebed.wire import TableCommit, TableCreation

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_MODULES: Final = ("pyiceberg.table.metadata", "pyiceberg.table.update", "pyiceberg.manifest", "pyiceberg.avro.file")


METADATA_BYTES_MAX: Final = 10 << 20
FORMAT_VERSION_MAX: Final = 2
"""The library reads version 3, and does not write it."""
_RESERVED: Final = {
    *("uuid", "snapshot-count", "current-schema", "current-snapshot-id", "current-snapshot-summary"),
    *("current-snapshot-timestamp-ms", "default-partition-spec", "default-sort-order"),
}
"""Names of properties that would seem to be a part of the metadata."""

UPDATES_MAX: Final = 1_000
"""Updates of a commit, beside removals of snapshots: the library goes through the table for each."""
_REMOVED_AT_ONCE: Final = 100
"""Of each removed snapshot the library asks whether the table has it, before it removes any."""
_PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class InvalidTable(Invalid):
    """Metadata, an update or a requirement that no table here can have. The message says which."""


class RequirementFailed(Conflict):
    """The table is not as the writer expects: read it again, then retry."""


@contextmanager
def refusing(
    what: str,
    *,
    but: type[Exception] = InvalidTable,
    words: Callable[[Exception], str] | None = None,
    **facts: object,
) -> Iterator[None]:
    """Turn an error of any kind into InvalidTable, whose message begins with `what`. `but`: errors that pass."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        raise InvalidTable(f"{what}: {(words or words_of)(error)}", **facts) from error


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a table, as the library's value, and the URI of the file that has it; empty for a fresh one."""

    value: TableMetadata
    uri: str = ""

    @property
    def uuid(self) -> str:
        return str(self.value.table_uuid)

    @property
    def location(self) -> str:
        return self.value.location.rstrip("/")

    def encoded(self) -> bytes:
        """Return the file's bytes.

        Raises:
            InvalidTable: they are more than METADATA_BYTES_MAX, or a value cannot be written.
        """
        with refusing("the metadata cannot be written"):
            data = self.value.model_dump_json().encode()
        check_size(len(data))
        return data


def parsed(data: bytes, uri: str, *, location: str) -> Metadata:
    """Read metadata that must be that of the table at `location`.

    Raises:
        InvalidTable: it is too large, no metadata, or that of another table.
    """
    from pyiceberg.table.metadata import TableMetadataUtil

    check_size(len(data))
    with refusing(f"{uri} has no metadata of a table", uri=uri):
        value = TableMetadataUtil.parse_raw(data.decode())
    return _checked(Metadata(value, uri), location)


def created(asked: TableCreation, *, location: str) -> Metadata:
    """Make the metadata of a table without snapshots.

    Raises:
        InvalidTable: one of them is malformed, or does not fit the others.
    """
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    properties = asked.properties or {}
    _check_properties(properties, location)
    spec, order = bytes(asked.partition_spec) or b"null", bytes(asked.write_order) or b"null"
    with refusing("no table can be made so"):
        value = new_table_metadata(
            schema=Schema.model_validate_json(bytes(asked.schema)),
            partition_spec=UNPARTITIONED_PARTITION_SPEC if spec == b"null" else PartitionSpec.model_validate_json(spec),
            sort_order=UNSORTED_SORT_ORDER if order == b"null" else SortOrder.model_validate_json(order),
            location=location,
            properties=dict(properties),
            table_uuid=UUID(location.rpartition("/")[2]),
        )
    return _checked(Metadata(value), location)


def committed(base: Metadata | None, asked: TableCommit, *, place: str) -> Metadata:
    """Check the requirements of a commit against `base`, None where there is no such table, and apply its updates.

    `place`: what the location of each table begins with, and its id follows. The result equals `base`, with its URI,
    where nothing changes.

    Raises:
        RequirementFailed: a requirement is not met.
        InvalidTable: a requirement or an update is unknown or malformed, or the result is no table of `place`.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadataV1
    from pyiceberg.table.update import update_table_metadata

    wanted = [_read("requirement", each) for each in asked.requirements]
    changes = tuple(_joined([_read("update", each) for each in asked.updates]))
    # The empty table is of version 1, and the updates of a creation raise it.
    start = base.value if base else TableMetadataV1.model_construct(last_column_id=-1, schema=Schema())
    try:
        with refusing("a requirement cannot be checked", but=CommitFailedException):
            for requirement in wanted:
                requirement.validate(base.value if base else None)
        for change in changes:
            _check_change(change, base)
        with refusing("the updates cannot be applied", but=CommitFailedException):
            value = update_table_metadata(
                start, changes, enforce_validation=base is None, metadata_location=base.uri if base else None
            )
    except CommitFailedException as error:
        raise RequirementFailed(str(error)) from error
    if base is not None and value == base.value:
        return base
    location = base.location if base else place + str(value.table_uuid)
    if base is None:
        _check_properties(value.properties, location)
    return _checked(Metadata(value), location)


def _joined(changes: Sequence[Any]) -> Iterator[Any]:
    """Yield the updates of a commit, with the removals of snapshots together.

    Clients in Java send one for each snapshot, and one for its statistics after it. To the library, these are gone by
    then.

    Raises:
        InvalidTable: there are too many others.
    """
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    gone = dict.fromkeys(id_ for one in changes if one.action == "remove-snapshots" for id_ in one.snapshot_ids)
    left, others = [*gone], 0
    for one in changes:
        if one.action == "remove-snapshots":
            for start in range(0, len(left), _REMOVED_AT_ONCE):
                yield RemoveSnapshotsUpdate.model_construct(snapshot_ids={*left[start : start + _REMOVED_AT_ONCE]})
            left = []
        elif one.action != "remove-statistics" or one.snapshot_id not in gone:
            others += 1
            yield one
    if others > UPDATES_MAX:
        raise InvalidTable(f"at most {UPDATES_MAX:,} updates beside removals of snapshots, and not {others:,}")


def is_result(current: Metadata, base: Metadata | None, asked: TableCommit, *, place: str) -> bool:
    """Return whether `current` is the result of this commit over `base`: the commit of a client that asks again.

    Times do not count: they are those of the moment at which updates are applied.
    """
    try:
        again = committed(base, asked, place=place)
    except (RequirementFailed, InvalidTable):
        return False
    times = {"last_updated_ms": 0, "metadata_log": [], "snapshot_log": []}
    return again is not base and again.value.model_copy(update=times) == current.value.model_copy(update=times)


def snapshot_set(uuid: str, current: int | None, snapshot_id: int, *updates: Mapping[str, Any]) -> TableCommit:
    """Return the commit that makes a snapshot the current one after these updates, if the present one still is."""
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    requirements = [
        {"type": "assert-table-uuid", "uuid": uuid},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": current},
    ]
    return TableCommit(
        requirements=[msgspec.Raw(msgspec.json.encode(each)) for each in requirements],
        updates=[msgspec.Raw(msgspec.json.encode(each)) for each in (*updates, ref)],
    )


def metadata_name(number: int, fresh: str) -> str:
    """Return the name of a metadata file, below the table's location."""
    return f"metadata/{number:05d}-{fresh}.metadata.json"


def _checked(metadata: Metadata, location: str) -> Metadata:
    if metadata.location != location:
        raise InvalidTable(
            f"the table's location is {location}, and cannot be {metadata.location}: the catalog says where tables lie",
            location=metadata.location,
        )
    if metadata.value.format_version > FORMAT_VERSION_MAX:
        raise InvalidTable(
            f"tables have format-version {FORMAT_VERSION_MAX} here, or 1, and not {metadata.value.format_version}",
            version=metadata.value.format_version,
        )
    if metadata.uuid != location.rpartition("/")[2]:
        raise InvalidTable(f"the table at {location} cannot have the id {metadata.uuid}", uuid=metadata.uuid)
    return metadata


def _check_change(change: Any, base: Metadata | None) -> None:
    match change.action:
        case "set-properties":
            # Of a table that is made, the id may come after: the result is checked.
            _check_properties(change.updates, base.location if base else "")
        case "assign-uuid" if base is not None and str(change.uuid) != base.uuid:
            raise InvalidTable("a table keeps its id: " + base.uuid)


def is_below(uri: str, location: str) -> bool:
    """Return whether a file or folder lies below a table's location, without a detour."""
    rest = uri.removeprefix(location + "/")
    return rest != uri and not {"", ".", ".."} & set(rest.split("/"))


def _check_properties(properties: Mapping[str, str], location: str) -> None:
    """`location`: of the table; empty where it is not known yet."""
    if taken := sorted(_RESERVED & properties.keys()):
        raise InvalidTable(f"the property {taken[0]} is reserved", property=taken[0])
    for name in _PATHS:
        path = properties.get(name)
        if location and path and not is_below(path.rstrip("/"), location):
            raise InvalidTable(f"{name}: the files of a table lie below its location, not at {path}")


def check_size(size_bytes: int) -> None:
    """
    Raises:
        InvalidTable: metadata cannot be so large.
    """
    if size_bytes > METADATA_BYTES_MAX:
        raise InvalidTable(
            f"the metadata has {size_bytes:,} bytes, and may have {METADATA_BYTES_MAX:,}: expire snapshots",
            size_bytes=size_bytes,
        )


_Noun: TypeAlias = Literal["requirement", "update"]


@cache
def _known(noun: _Noun) -> tuple[Any, str, frozenset[str]]:
    """Return the reader of the library's records, the field that tells them apart, and the values that it may have."""
    from pydantic import TypeAdapter
    from pyiceberg.table import update

    union: Any = update.TableRequirement if noun == "requirement" else update.TableUpdate
    field = "type" if noun == "requirement" else "action"
    kinds = union.__origin__.__args__ if hasattr(union, "__origin__") else union.__args__
    return TypeAdapter(union), field, frozenset(kind.model_fields[field].default for kind in kinds)


def _read(noun: _Noun, data: msgspec.Raw) -> Any:
    adapter, field, names = _known(noun)
    with refusing(f"malformed {noun}"):
        fields = msgspec.json.decode(data)
        name = fields.get(field) if isinstance(fields, dict) else None
        value = adapter.validate_json(bytes(data)) if name in names else None
    if value is None:
        raise InvalidTable(f"unknown {noun} {json.dumps(name)[:100]}: known are {', '.join(sorted(names))}")
    return value


def words_of(error: Exception) -> str:
    """Return the first line of the library's words: the others repeat the input."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        found = errors()
        if found:
            place = ".".join(str(each) for each in found[0].get("loc", ()))
            return f"{place}: {found[0].get('msg', '')}"[:300]
    return in_words(error).partition("\n")[0][:300]


# The library, an extra: no module of ours imports it at the top


def is_installed() -> bool:
    """Return whether the package is there: `lakebed[iceberg]` brings it."""
    return importlib.util.find_spec("pyiceberg") is not None


_loaded: list[str] = []


def load() -> None:
    """Import the package. It takes a second: a server does it in a thread."""
    for name in _MODULES:
        importlib.import_module(name)
    _loaded.append("pyiceberg")


def is_loaded() -> bool:
    return bool(_loaded)
