"""Records of the catalog of Iceberg tables, in its names (`metadata-location`). What the library reads stays raw."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from .common import LIST_MAX, Metadata

Levels: TypeAlias = Annotated[list[str], msgspec.Meta(max_length=64)]
"""A namespace: its levels, the outermost first."""
RawList: TypeAlias = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=LIST_MAX)]


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


class NamespaceCreation(msgspec.Struct, frozen=True, kw_only=True):
    namespace: Levels
    properties: Metadata = {}


class NamespaceProperties(msgspec.Struct, frozen=True, kw_only=True):
    namespace: Levels
    properties: dict[str, str]


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


class CatalogFault(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    code: int


class CatalogError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer of the catalog that is not a success."""

    error: CatalogFault
