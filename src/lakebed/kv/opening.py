"""Open the Store of a URI. The scheme names a driver, which is imported on first use.

A driver is a module with a function `open_uri(uri: StoreUri) -> Store`. It may also have `partitions_uri(uri)`,
`snapshot_uri(uri, target)`, `size_uri(uri)` and `compact_uri(uri)`. A driver without the last two names another tool
in the texts `NO_SIZE` and `NO_COMPACTION`. A driver reads its options with `uri.choice`, `uri.text` and so on, then
calls `uri.check_all_taken`, so that a misspelt option is an error. Messages never repeat a URI: it may have a password.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from lakebed.base import Invalid

from .store import Store, StoreSize

__all__ = [
    "InvalidStoreUri",
    "StoreUri",
    "are_one_store",
    "check_snapshot",
    "compact_store",
    "migrate_store",
    "open_store",
    "register_driver",
    "snapshot_store",
    "sqlite_uri",
    "store_partitions",
    "store_size",
]

T = TypeVar("T", bound=str)

_DRIVERS: dict[str, str] = {
    "az": "lakebed.kv.drivers.blobs",
    "bigtable": "lakebed.kv.drivers.google.bigtable",
    "cassandra": "lakebed.kv.drivers.cassandra",
    "consul": "lakebed.kv.drivers.consul",
    "cosmos": "lakebed.kv.drivers.cosmos",
    "dynamodb": "lakebed.kv.drivers.dynamodb",
    "etcd": "lakebed.kv.drivers.etcd",
    "etcds": "lakebed.kv.drivers.etcd",
    "foundationdb": "lakebed.kv.drivers.foundationdb",
    "gs": "lakebed.kv.drivers.blobs",
    "hbase": "lakebed.kv.drivers.hbase",
    "mem": "lakebed.kv.drivers.memory",
    "mongodb": "lakebed.kv.drivers.mongodb",
    "mysql": "lakebed.kv.drivers.mysql",
    "postgres": "lakebed.kv.drivers.postgres",
    "postgresql": "lakebed.kv.drivers.postgres",
    "redis": "lakebed.kv.drivers.redis",
    "rediss": "lakebed.kv.drivers.redis",
    "s3": "lakebed.kv.drivers.blobs",
    "spanner": "lakebed.kv.drivers.google.spanner",
    "sqlite": "lakebed.kv.drivers.sqlite",
}


PORT_MAX: Final = 65535
_NO_SNAPSHOT: Final = "this store makes no snapshots here"


class InvalidStoreUri(Invalid):
    """No driver has this scheme, or the driver cannot parse the rest of the URI."""


class StoreUri:
    """A parsed URI, for drivers."""

    def __init__(self, text: str) -> None:
        try:
            parts = urlsplit(text)
            options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise InvalidStoreUri(
                "the store's URI is malformed; an example: sqlite:///var/lib/lakebed/kv.db"
            ) from error
        self.scheme = parts.scheme
        self.authority = parts.netloc
        self.path = unquote(parts.path)
        self._options = dict(options)
        self._known: list[str] = []
        if len(self._options) < len(options):
            raise InvalidStoreUri(f"{self.scheme}: the URI gives an option twice", scheme=self.scheme)
        if parts.fragment:
            raise InvalidStoreUri(f"{self.scheme}: '#' in a URI begins a fragment; write %23", scheme=self.scheme)

    def choice(self, name: str, default: T, *others: T) -> T:
        """Return the value of an option, which must be one of those listed. Without the option, return `default`."""
        value = self._take(name, default)
        if value not in (default, *others):
            raise InvalidStoreUri(
                f"{self.scheme}: {name} is one of {', '.join((default, *others))}, not {value!r}", scheme=self.scheme
            )
        return value

    def text(self, name: str, default: str) -> str:
        """Return the value of an option, unchecked."""
        return self._take(name, default)

    def readable(self, name: str) -> str:
        """Return the value of an option that names a readable file, or an empty text without the option."""
        value = self._take(name, "")
        try:
            if value:
                Path(value).open("rb").close()
        except (OSError, ValueError) as error:
            raise InvalidStoreUri(f"{self.scheme}: {name} cannot be read: {error}", scheme=self.scheme) from error
        return value

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        """Return the value of an option: a whole number, at least `least`."""
        value = self._take(name, str(default))
        if not value.isascii() or not value.isdecimal() or not 0 < len(value) < 10 or int(value) < least:
            raise InvalidStoreUri(
                f"{self.scheme}: {name} is a whole number from {least} on, not {value!r}", scheme=self.scheme
            )
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Return the value of an option: a number of seconds, not negative."""
        value = self._take(name, str(default))
        if not value.replace(".", "", 1).isdecimal():
            raise InvalidStoreUri(f"{self.scheme}: {name} is a number of seconds, not {value!r}", scheme=self.scheme)
        return float(value)

    def file(self) -> Path:
        """Return the path, which must be an absolute path on this machine. A fourth slash changes nothing."""
        if self.authority or not self.path.startswith("/") or self.path.endswith("/") or "\0" in self.path:
            raise InvalidStoreUri(
                f"{self.scheme}: the URI names a file by its absolute path, after three slashes: "
                f"{self.scheme}:///var/lib/lakebed/kv.db",
                scheme=self.scheme,
            )
        return Path("/" + self.path.lstrip("/"))

    def refuse_path(self) -> None:
        if self.authority or self.path:
            raise InvalidStoreUri(f"{self.scheme}: nothing may follow {self.scheme}://", scheme=self.scheme)

    def check_ports(self) -> None:
        """Check the port of each host. The hosts follow the login, separated by commas.

        Raises:
            InvalidStoreUri: a port is not a number from 1 to 65535.
        """
        for host in self.authority.rpartition("@")[2].split(","):
            # An IPv6 address has its colons inside brackets.
            _, colon, port = host.rpartition("]")[2].rpartition(":")
            if colon and not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) <= PORT_MAX):
                raise InvalidStoreUri(f"{self.scheme}: a port is a number from 1 to {PORT_MAX}", scheme=self.scheme)

    def check_all_taken(self) -> None:
        """Check that the driver read every option of the URI.

        Raises:
            InvalidStoreUri: the URI has an option that the driver did not read.
        """
        if unknown := sorted(set(self._options) - set(self._known)):
            known = ", ".join(sorted(self._known)) or "none"
            raise InvalidStoreUri(
                f"{self.scheme}: unknown option {unknown[0]!r}; there are: {known}", scheme=self.scheme
            )

    def _take(self, name: str, default: str) -> str:
        self._known.append(name)
        return self._options.get(name, default)


def open_store(uri: str) -> Store:
    """Open the store that this URI names. Blocks until the store is open: call it at start-up.

    `mem://[?predicates=version|value]`, `sqlite:///absolute/path[?synchronous=FULL|…]`, or a registered scheme.

    Raises:
        InvalidStoreUri: unknown scheme, malformed URI, unknown or invalid option, client library not installed.
        StoreUnavailable: the store cannot be reached, made, written or locked.
        StoreFormat: the database is of a later release, or is not ours.
    """
    parsed, driver = _driver_of(uri)
    open_uri = cast("Callable[[StoreUri], Store]", driver.open_uri)
    return open_uri(parsed)


def snapshot_store(uri: str, target: Path) -> None:
    """Copy the store of this URI, as of one moment, into a new SQLite file. Other processes may write to it. Blocks.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver makes no snapshots: its database has its own tools.
        StoreUnavailable, StoreFormat: as `open_store`; also where there is no space for the copy.
    """
    _offered(uri, "snapshot_uri", _NO_SNAPSHOT)(target)


def check_snapshot(uri: str) -> None:
    """Check that `snapshot_store` can copy the store at this URI. Blocks.

    Raises:
        InvalidStoreUri, StoreUnavailable, StoreFormat: as `snapshot_store`.
    """
    _offered(uri, "snapshot_uri", _NO_SNAPSHOT)
    store_size(uri)


def are_one_store(uri: str, other: str) -> bool:
    """Return whether both URIs name the same store. Two names of one host count as different stores.

    Raises:
        InvalidStoreUri: as `open_store`.
    """
    (one, driver), (two, other_driver) = _driver_of(uri), _driver_of(other)
    if driver is not other_driver or one.authority != two.authority:
        return False
    if one.scheme == "sqlite":
        return one.file().resolve() == two.file().resolve()
    return uri.partition(":")[2] == other.partition(":")[2]


def store_partitions(uri: str) -> list[bytes]:
    """List the partitions of the store at this URI, ascending. Blocks.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver cannot list partitions.
        StoreUnavailable, StoreFormat: as `open_store`.
    """
    found: list[bytes] = _offered(uri, "partitions_uri", "this store lists no partitions here")()
    return found


def store_size(uri: str) -> StoreSize:
    """Return the size on disk of the store at this URI. Other processes may use the store.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver cannot return a size.
        StoreUnavailable, StoreFormat: as `open_store`.
    """
    size: StoreSize = _offered(uri, "size_uri", "this store does not tell its size", "NO_SIZE")()
    return size


def compact_store(uri: str) -> tuple[StoreSize, StoreSize]:
    """Give the free space of the store at this URI back to the disk. Blocks, and blocks all writers until it is done.

    Returns the size before and after.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver cannot compact.
        StoreUnavailable: as `open_store`; also where another process keeps the store locked, or its copy has no space.
        StoreFormat: as `open_store`.
    """
    compact = _offered(uri, "compact_uri", "there is nothing to compact from here", "NO_COMPACTION")
    before = store_size(uri)
    compact()
    return before, store_size(uri)


def migrate_store(uri: str) -> None:
    """Make the schema of the store at this URI in a new database, or bring it to this release's format. Blocks.

    Opening a store does both, so servers do not need this call. It is for a database user that may create tables, where
    the servers' user may not. Format 1 is the only format so far.

    Raises:
        InvalidStoreUri, StoreUnavailable: as `open_store`.
        StoreFormat: the database is of a later release, or is not ours. Nothing was changed.
    """
    store = open_store(uri)
    asyncio.run(store.close())


def sqlite_uri(path: Path) -> str:
    """Return the URI of a store in this file. The path may have any characters."""
    return "sqlite://" + quote(str(path.absolute()))


def register_driver(scheme: str, module: str) -> None:
    """Make `scheme://` open by the function `open_uri` of this module, which is imported on first use."""
    assert _DRIVERS.get(scheme, module) == module, f"{scheme} is taken"
    _DRIVERS[scheme] = module


def _offered(uri: str, function: str, lack: str, instead: str = "") -> Callable[..., Any]:
    parsed, driver = _driver_of(uri)
    found = getattr(driver, function, None)
    if found is None:
        words = getattr(driver, instead, "use the tools of its database")
        raise InvalidStoreUri(f"{parsed.scheme}: {lack}: {words}", scheme=parsed.scheme)
    return partial(found, parsed)


def _driver_of(uri: str) -> tuple[StoreUri, ModuleType]:
    parsed = StoreUri(uri)
    if parsed.scheme not in _DRIVERS:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_DRIVERS))
        what = f"no store driver for {parsed.scheme + '://'!r}" if parsed.scheme else _no_uri(uri)
        raise InvalidStoreUri(f"{what}; there are: {known}", scheme=parsed.scheme)
    with _missing_library_is_invalid(parsed.scheme):
        return parsed, importlib.import_module(_DRIVERS[parsed.scheme])


def _no_uri(text: str) -> str:
    """Quote a text without a scheme, unless it may contain a password."""
    shown = repr(text) if text.replace("-", "").replace("_", "").isalnum() else "the text"
    return f"{shown} is not a URI of a store: it begins with no scheme"


@contextmanager
def _missing_library_is_invalid(scheme: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidStoreUri(
            f"{scheme}: the Python package {error.name!r} is not installed; try: pip install 'lakebed[{scheme}]'",
            scheme=scheme,
        ) from error
