"""Iceberg's format: what a table's metadata says, and which files it reaches. Only this part names `pyiceberg`.

    library.py    whether the package is there, and its modules, imported when the first table is asked for
    metadata.py   make, read, check and change metadata
    files.py      the files that a change of metadata adds and removes

The package is an extra, `lakebed[iceberg]`. It takes a second to import, and as long for 10 MiB of metadata, so
callers do both in threads. Nothing here reads or writes storage: they hand in bytes, or a function that returns them.
"""

from .files import MANIFEST_BYTES_MAX, Change, Read, change_of
from .library import is_installed, load
from .metadata import (
    METADATA_BYTES_MAX,
    InvalidTable,
    Metadata,
    RequirementFailed,
    check_size,
    committed,
    created,
    is_result,
    metadata_name,
    parsed,
)

__all__ = [
    "MANIFEST_BYTES_MAX",
    "METADATA_BYTES_MAX",
    "Change",
    "InvalidTable",
    "Metadata",
    "Read",
    "RequirementFailed",
    "change_of",
    "check_size",
    "committed",
    "created",
    "is_installed",
    "is_result",
    "load",
    "metadata_name",
    "parsed",
]
