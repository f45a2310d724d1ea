"""`sqlite://`: a Store in one file. `driver` has the Store, `commits` its writing thread, `file` the layout."""

from .driver import SqliteStore, compact_uri, open_uri, partitions_uri, size_uri, snapshot_uri

__all__ = ["SqliteStore", "compact_uri", "open_uri", "partitions_uri", "size_uri", "snapshot_uri"]
