"""From a URI to a Store: `scheme://…` names a driver, which is imported when it is asked for.

A driver is a module with a function `open_uri(uri: StoreUri) -> Store`, and perhaps `partitions_uri(uri)`,
`snapshot_uri(uri, target)`, `size_uri(uri)` and `compact_uri(uri)`. One without the last two says in a text what else
tells the size (`NO_SIZE`) or gives free space back (`NO_COMPACTION`). A driver takes its options with `uri.choice` and
friends and then calls `uri.check_all_taken`, so that a misspelt option is an error instead of being without effect.
Messages never repeat a URI: it may hold a password.
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

T = TypeVar("T", bound=str)

_DRIVERS: dict[str, str] = {
    "az": "lakebed.kv.drivers.blobs",
    "bigtable": "lakebed.kv.drivers.bigtable",
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
    "spanner": "lakebed.kv.drivers.spanner",
    "sqlite": "lakebed.kv.drivers.sqlite",
}


PORT_MAX: Final = 65535
_NO_SNAPSHOT: Final = "this store makes no snapshots here"


class InvalidStoreUri(Invalid):
    """No driver has this scheme, or the driver cannot make sense of the rest."""


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
        """The option's value, which must be one of those listed; the first of them where the option is not given."""
        value = self._take(name, default)
        if value not in (default, *others):
            raise InvalidStoreUri(
                f"{self.scheme}: {name} is one of {', '.join((default, *others))}, not {value!r}", scheme=self.scheme
            )
        return value

    def text(self, name: str, default: str) -> str:
        """The option's value, whatever it is."""
        return self._take(name, default)

    def readable(self, name: str) -> str:
        """The option's value: the name of a file that can be read; or nothing."""
        value = self._take(name, "")
        try:
            if value:
                Path(value).open("rb").close()
        except (OSError, ValueError) as error:
            raise InvalidStoreUri(f"{self.scheme}: {name} cannot be read: {error}", scheme=self.scheme) from error
        return value

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        """The option's value: a whole number, not below `least`."""
        value = self._take(name, str(default))
        if not value.isascii() or not value.isdecimal() or not 0 < len(value) < 10 or int(value) < least:
            raise InvalidStoreUri(
                f"{self.scheme}: {name} is a whole number from {least} on, not {value!r}", scheme=self.scheme
            )
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """The option's value: a number of seconds, not negative."""
        value = self._take(name, str(default))
        if not value.replace(".", "", 1).isdecimal():
            raise InvalidStoreUri(f"{self.scheme}: {name} is a number of seconds, not {value!r}", scheme=self.scheme)
        return float(value)

    def file(self) -> Path:
        """The path, where it must be an absolute one of this machine; a fourth slash changes nothing."""
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
        """Look at the port of each host. Hosts stand behind the login, with commas between.

        Raises:
            InvalidStoreUri: one is no port.
        """
        for host in self.authority.rpartition("@")[2].split(","):
            # The colons of an address of IPv6 stand in brackets.
            _, colon, port = host.rpartition("]")[2].rpartition(":")
            if colon and not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) <= PORT_MAX):
                raise InvalidStoreUri(f"{self.scheme}: a port is a number from 1 to {PORT_MAX}", scheme=self.scheme)

    def check_all_taken(self) -> None:
        """
        Raises:
            InvalidStoreUri: the URI has an option that the driver did not take.
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
    """Open the store that this URI names. Blocks for as long as opening takes: a start-up call.

    `mem://[?predicates=version|value]`, `sqlite:///absolute/path[?synchronous=FULL|…]`, or one registered.

    Raises:
        InvalidStoreUri: unknown scheme, malformed URI, unknown or senseless option, client library not installed.
        StoreUnavailable: it cannot be reached, made, written or locked.
        StoreFormat: what is there is of a later release, or not ours.
    """
    parsed, driver = _driver_of(uri)
    open_uri = cast("Callable[[StoreUri], Store]", driver.open_uri)
    return open_uri(parsed)


def snapshot_store(uri: str, target: Path) -> None:
    """Copy the store of this URI, as it is at one moment, into a new SQLite file. Others may write to it. Blocks.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver makes no snapshots: its database has tools of its own.
        StoreUnavailable, StoreFormat: as `open_store`; also where the copy finds no room.
    """
    _offered(uri, "snapshot_uri", _NO_SNAPSHOT)(target)


def check_snapshot(uri: str) -> None:
    """Look whether there is a store at this URI that `snapshot_store` can copy. Blocks.

    Raises:
        InvalidStoreUri, StoreUnavailable, StoreFormat: as `snapshot_store`.
    """
    _offered(uri, "snapshot_uri", _NO_SNAPSHOT)
    store_size(uri)


def are_one_store(uri: str, other: str) -> bool:
    """Tell whether both URIs name the same store as far as they say. Two names of one host are two to this.

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
    """List the partitions that the store of this URI has, ascending. Blocks.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver cannot tell.
        StoreUnavailable, StoreFormat: as `open_store`.
    """
    found: list[bytes] = _offered(uri, "partitions_uri", "this store lists no partitions here")()
    return found


def store_size(uri: str) -> StoreSize:
    """Ask how large the store of this URI is on disk. Others may use it.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver cannot tell.
        StoreUnavailable, StoreFormat: as `open_store`.
    """
    size: StoreSize = _offered(uri, "size_uri", "this store does not tell its size", "NO_SIZE")()
    return size


def compact_store(uri: str) -> tuple[StoreSize, StoreSize]:
    """Give free space of the store of this URI back to the disk. Blocks, and so do all writers until it is done.

    Returns its size before and after.

    Raises:
        InvalidStoreUri: as `open_store`, and where the driver cannot.
        StoreUnavailable: as `open_store`; also where others keep it locked, or there is no room for a copy of it.
        StoreFormat: as `open_store`.
    """
    compact = _offered(uri, "compact_uri", "there is nothing to compact from here", "NO_COMPACTION")
    before = store_size(uri)
    compact()
    return before, store_size(uri)


def migrate_store(uri: str) -> None:
    """Make the schema of the store of this URI in a new database, or bring it to this release's format. Blocks.

    Opening does both, so servers need no more than this. It is for a user of the database who may make tables, where
    the servers' own may not. Format 1 is the only one so far.

    Raises:
        InvalidStoreUri, StoreUnavailable: as `open_store`.
        StoreFormat: what is there is of a later release, or not ours. Nothing was changed.
    """
    store = open_store(uri)
    asyncio.run(store.close())


def sqlite_uri(path: Path) -> str:
    """The URI of a store in this file, however odd the characters of its path."""
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
    """Name a text without a scheme, unless it may hold a password."""
    shown = repr(text) if text.replace("-", "").replace("_", "").isalnum() else "the text"
    return f"{shown} is no URI of a store: it begins with no scheme"


@contextmanager
def _missing_library_is_invalid(scheme: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidStoreUri(
            f"{scheme}: the Python package {error.name!r} is not installed; try: pip install 'lakebed[{scheme}]'",
            scheme=scheme,
        ) from error
