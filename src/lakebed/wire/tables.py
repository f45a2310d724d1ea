"""Records of Iceberg tables: those of the catalog, in its names (`metadata-location`), and ours.

What the library reads stays raw. In ours, `table` is the path of a table, `sales/orders`, and ids of snapshots are
texts: a number of 64 bits does not pass through JavaScript and many readers of JSON.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from .common import LIST_MAX, Metadata, Paged

__all__ = [
    "CatalogError",
    "CatalogFault",
    "CatalogSettings",
    "CatalogToken",
    "CommittedTable",
    "FileRequest",
    "LoadedTable",
    "NamespaceChange",
    "NamespaceChanged",
    "NamespaceList",
    "NamespaceProperties",
    "SignedFileRequest",
    "StorageCredential",
    "TableCommit",
    "TableCommitted",
    "TableCount",
    "TableCreation",
    "TableCredentials",
    "TableDetails",
    "TableDifference",
    "TableEntry",
    "TableEntryList",
    "TableField",
    "TableFieldChange",
    "TableIdentifier",
    "TableList",
    "TableRef",
    "TableRegistration",
    "TableRename",
    "TableRollback",
    "TableRolledBack",
    "TableSnapshot",
    "TableVersion",
    "TableVersionList",
    "TablesCommit",
]

Levels: TypeAlias = Annotated[list[str], msgspec.Meta(max_length=64)]
"""A namespace: its levels, the outermost first."""
RawList: TypeAlias = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=100 * LIST_MAX)]
"""Some clients send an update for each snapshot that they remove."""


class CatalogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for a client, and the routes of this catalog."""

    defaults: dict[str, str]
    overrides: dict[str, str]
    endpoints: list[str]


class CatalogToken(msgspec.Struct, frozen=True, kw_only=True):
    access_token: str
    expires_in: int
    token_type: str = "bearer"  # noqa: S105 - no password: a word of OAuth
    issued_token_type: str = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - as above


class NamespaceProperties(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace that is there, or is to be made."""

    namespace: Levels
    properties: Metadata = {}


class NamespaceList(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    namespaces: list[Levels]
    next_page_token: str | None = None


class NamespaceChange(msgspec.Struct, frozen=True, kw_only=True):
    removals: Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)] | None = None
    updates: Metadata | None = None


class NamespaceChanged(msgspec.Struct, frozen=True, kw_only=True):
    updated: list[str]
    removed: list[str]
    missing: list[str]


class TableIdentifier(msgspec.Struct, frozen=True, kw_only=True):
    namespace: Levels
    name: str


class TableList(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    identifiers: list[TableIdentifier]
    next_page_token: str | None = None


class TableCreation(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """`stage_create`: only answer what the table will be. A commit makes it."""

    name: str
    schema: msgspec.Raw
    location: str | None = None
    partition_spec: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    write_order: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    stage_create: bool = False
    properties: Metadata | None = None


class TableRegistration(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str
    metadata_location: str
    overwrite: bool = False


class TableCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements that must hold, and updates that are applied then. All of them, or none."""

    requirements: RawList
    updates: RawList
    identifier: TableIdentifier | None = None


class TablesCommit(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Commits of several tables, each with its identifier, as one commit of the branch."""

    table_changes: Annotated[list[TableCommit], msgspec.Meta(min_length=1, max_length=LIST_MAX)]


class TableRename(msgspec.Struct, frozen=True, kw_only=True):
    source: TableIdentifier
    destination: TableIdentifier


class StorageCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for files whose URI begins with the prefix."""

    prefix: str
    config: dict[str, str]


class LoadedTable(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """A table's metadata, where they lie, and how to reach the table's files. One that is staged lies nowhere."""

    metadata: msgspec.Raw
    metadata_location: str | None = None
    config: dict[str, str] = {}
    storage_credentials: list[StorageCredential] = []


class CommittedTable(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    metadata_location: str
    metadata: msgspec.Raw


class TableCredentials(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    storage_credentials: list[StorageCredential]


class FileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the gateway that a client is about to send. Fields that the standard has besides do not count."""

    region: str
    uri: str
    method: str
    headers: Annotated[
        dict[str, Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)]], msgspec.Meta(max_length=LIST_MAX)
    ] = {}


class SignedFileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The headers that a client adds to its request."""

    uri: str
    headers: dict[str, list[str]]


class CatalogFault(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    code: int


class CatalogError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer of the catalog that is not a success."""

    error: CatalogFault


# Ours


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a ref. `modified`: when its current metadata were written, in seconds."""

    table: str
    uuid: str
    metadata_location: str
    modified: int


class TableEntryList(Paged[TableEntry], frozen=True, kw_only=True): ...


class TableField(msgspec.Struct, frozen=True, kw_only=True):
    """A column, or a field in one: `address.street`, `tags.element`, `prices.key`, `prices.value`."""

    id: int
    name: str
    type: str
    required: bool = False
    doc: str = ""


class TableSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `created` is in milliseconds; `summary` has the writer's counts, such as `added-records`."""

    id: str
    created: int
    parent_id: str = ""
    operation: str = ""
    summary: dict[str, str] = {}


class TableRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag of Iceberg, which is a name in the table's own metadata."""

    name: str
    type: str
    snapshot_id: str


class TableCount(msgspec.Struct, frozen=True, kw_only=True):
    """Files, the rows in them, and their bytes."""

    files: int
    rows: int
    size_bytes: int


class TableCommitted(msgspec.Struct, frozen=True, kw_only=True):
    """A commit of the ref, as far as a table's history shows it."""

    id: str
    committer: str
    creation_date: int
    message: str


class TableDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A table at a ref."""

    table: str
    uuid: str
    location: str
    metadata_location: str
    format_version: int
    modified: int
    fields: list[TableField]
    partitions: list[str]
    sort_order: list[str]
    properties: dict[str, str]
    snapshots: int
    refs: list[TableRef]
    stored_files: int
    stored_bytes: int
    snapshot: TableSnapshot | None = None
    # What the current snapshot has, by its summary; None where the writer did not count. `stored_files` and
    # `stored_bytes`: all that the ref keeps for the table, older snapshots and metadata too. `commit` is the last that
    # changed it; None where it is further back than a log is searched.
    data: TableCount | None = None
    commit: TableCommitted | None = None


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that changed a table. `added` and `removed` are snapshots, against the version before."""

    commit: TableCommitted
    metadata_location: str = ""
    snapshot_id: str = ""
    added: list[TableSnapshot] = []
    removed: list[str] = []
    fields_changed: bool = False
    is_dropped: bool = False
    # The metadata file was deleted, so nothing more is known of this version.
    is_gone: bool = False


class TableVersionList(Paged[TableVersion], frozen=True, kw_only=True): ...


class TableFieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """A field that one side lacks, or that differs. Fields are compared by their ids."""

    before: TableField | None = None
    after: TableField | None = None


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a table at the right ref from that at the left. A side without the table has no metadata.

    `snapshots_*` are those that one side lacks. `added` and `removed` count the files that only one current snapshot
    has; None: more than the server counts. A file with deletes adds rows to `deletes_*`, not to these.
    """

    table: str
    left_metadata: str
    right_metadata: str
    fields: list[TableFieldChange]
    partitions_before: list[str]
    partitions_after: list[str]
    sort_order_before: list[str]
    sort_order_after: list[str]
    properties_set: dict[str, str]
    properties_removed: list[str]
    snapshots_added: list[TableSnapshot]
    snapshots_removed: list[TableSnapshot]
    left_snapshot: str = ""
    right_snapshot: str = ""
    added: TableCount | None = None
    removed: TableCount | None = None
    deletes_added: TableCount | None = None
    deletes_removed: TableCount | None = None


class TableRollback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The target of a table that goes back: a snapshot of its current metadata, or the whole table as a ref has it."""

    snapshot_id: str = ""
    ref: str = ""
    message: str = ""


class TableRolledBack(msgspec.Struct, frozen=True, kw_only=True):
    commit: TableCommitted
    metadata_location: str
    snapshot_id: str = ""
