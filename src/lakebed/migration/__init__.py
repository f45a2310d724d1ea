"""Bring repositories over from a server of the same contract: their history and entries, and no bytes.

The source is read through its API alone, by `lakebed.client`. The target is written as a server of it would: by the
parts of `lakebed.catalog`, beside servers that may run (docs/guide/migrating.md).
"""

from .flow import (
    Migrated,
    Migration,
    MigrationDiffers,
    NamespaceOfSource,
    SourceUnreadable,
    migrate_repository,
    plan_repository,
)
from .source import NoSuchSource, SourceRepository, find_sources

__all__ = [
    "Migrated",
    "Migration",
    "MigrationDiffers",
    "NamespaceOfSource",
    "NoSuchSource",
    "SourceRepository",
    "SourceUnreadable",
    "find_sources",
    "migrate_repository",
    "plan_repository",
]
