"""Iceberg's format: what a table's metadata says, and which files it reaches. Only this part names `pyiceberg`.

    metadata.py   make, read, check and change metadata; import the package when the first table is asked for
    avro.py       files in Avro, decoded within their size
    files.py      the files that a change of metadata adds and removes
    shown.py      what people want to know of metadata, without the package
    appending.py  the appends of one branch behind those of another
    exporting.py  a snapshot with other addresses, for readers without this catalog

The package is an extra, `lakebed[iceberg]`. It takes a second to import, and as long for 10 MiB of metadata, so
callers do both in threads. Nothing here reads or writes storage: they hand in bytes, or a function that returns them.
"""

from .appending import Appended, NotAppended, appended
from .exporting import TableFiles, exported
from .files import MANIFEST_BYTES_MAX, Change, Counted, change_of, files_apart, reached_by
from .metadata import (
    METADATA_BYTES_MAX,
    InvalidTable,
    Metadata,
    RequirementFailed,
    check_size,
    committed,
    created,
    is_installed,
    is_loaded,
    is_result,
    load,
    metadata_name,
    parsed,
    snapshot_set,
)
from .shown import NO_TABLE, Shown, changed_fields, shown, snapshots_only_in
