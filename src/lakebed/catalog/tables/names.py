"""Names of tables, namespaces and their entries on a branch, and the errors of tables."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from lakebed.base import (
    LAKEBED_METADATA,
    TABLE_FILE,
    TABLE_METADATA,
    TABLE_RECORD,
    TABLE_SUFFIX,
    AlreadyExists,
    Conflict,
    Entry,
    Invalid,
    NotFound,
    path_to_key,
)

TABLES_DAYS: Final = 3
"""The age at which a file that nothing names is pruned, unless a setting gives another."""
SUFFIX: Final = TABLE_SUFFIX
RECORD: Final = TABLE_FILE
NAMESPACE: Final = "namespace.json"
FILE: Final = TABLE_METADATA
UUID: Final = LAKEBED_METADATA + "table-uuid"
_PART: Final = re.compile(r"[^/\x00-\x1f\x7f]{1,255}")

Namespace: TypeAlias = tuple[str, ...]


class NoSuchTable(NotFound):
    """The ref has no such table. Facts: `table`."""


class NoSuchNamespace(NotFound):
    """The ref has no such namespace. Facts: `namespace`."""


class TableExists(AlreadyExists):
    """The branch has such a table. Facts: `table`."""


class NamespaceExists(AlreadyExists):
    """The branch has such a namespace. Facts: `namespace`."""


class NamespaceNotEmpty(Conflict):
    """The namespace has tables or namespaces. Facts: `namespace`."""


class NamespaceConflict(Conflict):
    """Another commit changed the properties of the namespace. Facts: `namespace`."""


class TableConflict(Conflict):
    """Another commit changed the table. Facts: `table`, `expected` and `found`, metadata files."""


class MissingFile(Invalid):
    """A table names a file that is not there, that was pruned, or that is not its own. Facts: `file`."""


class OutsideTables(Invalid):
    """The URI is of no file of this repository's tables. Facts: `uri`."""


class TablesNameTaken(Conflict):
    """A branch or tag of a user has the name of the hidden branch. Facts: `branch`."""


class TableName(msgspec.Struct, frozen=True, order=True):
    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))

    @property
    def folder(self) -> bytes:
        """Return the prefix of the paths of its entries.

        Raises:
            Invalid: a part cannot be the name of a folder.
            NoSuchTable: the name has no namespace.
        """
        if not self.namespace:
            raise NoSuchTable(
                f"there is no table {self.name}: each is in a namespace, as in sales.{self.name}", table=self.name
            )
        _check(self.name)
        return folder_of(self.namespace) + f"{self.name}{SUFFIX}/".encode()


def check_namespace(namespace: Namespace) -> Namespace:
    """
    Raises:
        Invalid: it is empty, or a part cannot be the name of a folder.
    """
    if not namespace:
        raise Invalid("a namespace has at least one part")
    for part in namespace:
        _check(part)
    return namespace


def folder_of(namespace: Namespace) -> bytes:
    """Return the prefix of the paths in a namespace; of none, that of all paths."""
    return path_to_key("/".join(check_namespace(namespace)) + "/") if namespace else b""


def record_path(namespace: Namespace) -> bytes:
    """Return the path of the entry of a namespace."""
    return folder_of(check_namespace(namespace)) + NAMESPACE.encode()


def text_of(namespace: Namespace) -> str:
    return ".".join(namespace)


def _check(part: str) -> None:
    if not _PART.fullmatch(part) or part in {".", ".."} or part.endswith(SUFFIX):
        raise Invalid(
            f"{part!a} cannot name a table or namespace: 1 to 255 characters, no slashes, not ending in {SUFFIX}",
            name=part,
        )


def name_of_record(key: bytes) -> TableName:
    """Return the table whose entry RECORD has this path."""
    *namespace, name = key.removesuffix(TABLE_RECORD).decode().split("/")
    return TableName(tuple(namespace), name)


def record_of(metadata: Entry, file: str, uuid: str) -> Entry:
    """Return the entry RECORD of a table: it names the object of the metadata file."""
    return msgspec.structs.replace(metadata, metadata={FILE: file, UUID: uuid})


def file_in(entry: Entry | None) -> str | None:
    """Return the metadata file that an entry RECORD names. None: there is no table."""
    return None if entry is None else entry.metadata.get(FILE)
