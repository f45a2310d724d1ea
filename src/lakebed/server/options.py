"""The settings of a server, read from its environment and checked before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from lakebed.base import Invalid
from lakebed.catalog import DELETED_DAYS
from lakebed.catalog.tables import TABLES_DAYS
from lakebed.hooks import HookOptions, hook_options
from lakebed.kv import sqlite_uri
from lakebed.objectstore import (
    InvalidNamespace,
    ObjectStore,
    ObjectStoreOptions,
    normalise_namespace,
    open_objectstore,
    options_from_environment,
)

from .brokers import Brokers, brokers
from .identity.providers import ProviderOptions, provider_options
from .operate.audit import AuditMode
from .process.folder import OBJECTS_FOLDER, STORE_FILE
from .process.pairing import check_file
from .s3.options import S3Options, s3_options

TREE_CACHE_BYTES: Final = 256 << 20
TREE_CACHE_BYTES_MIN: Final = 16 << 20
"""The smallest tree cache. A quarter of it holds the largest decoded range and sublist."""
BLOCKSTORES: Final = ("local", "s3", "gs", "az")
"""The values of LAKEBED_BLOCKSTORE. The first is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """`blockstore` is the scheme of storage namespaces on this server: local, s3, gs, az or mem."""

    data_dir: Path
    blockstore: str = "local"
    # None means a SQLite file in the data folder.
    store_uri: str | None = None
    # None means a secret that the first start makes and stores.
    server_secret: bytes | None = field(default=None, repr=False)
    # None means that callers on this machine may set up without a secret.
    setup_secret: str | None = field(default=None, repr=False)
    # With this a running server proves that it is the one that the data folder names. See `noting_address`.
    proof_key: str = field(default="", repr=False)
    objectstore: ObjectStoreOptions = field(default_factory=ObjectStoreOptions)
    # Treat a namespace as unmarked when the object store denies reading its mark.
    trust_denials: bool = False
    # The requests that the audit log records; `audit_days`: days to keep records, 0 keeps all; `audit_printed`: write
    # records to standard output as well.
    audit: AuditMode = "changes"
    audit_days: int = 0
    audit_printed: bool = False
    deleted_days: int = DELETED_DAYS
    tables_days: int = TABLES_DAYS
    # The size of a process's cache of decoded committed data.
    cache_bytes: int = TREE_CACHE_BYTES
    # Return signed URLs if the object store supports them.
    presign: bool = True
    # Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto the server believes.
    trusted_proxies: tuple[str, ...] = ()
    # The options of the S3 gateway.
    s3: S3Options = field(default_factory=S3Options)
    hooks: HookOptions = field(default_factory=HookOptions)
    brokers: Brokers = field(default_factory=Brokers)
    providers: ProviderOptions = field(default_factory=ProviderOptions)
    # Do large work in a process of its own. None: as `serve` decides.
    aside: bool | None = None

    @property
    def metadata_uri(self) -> str:
        """Return the URI of the key-value store: the given one, or the SQLite file in the data folder.

        Raises:
            WrongMetadata: no URI is given, and the folder was last served with another store than its SQLite file.
        """
        if not self.store_uri:
            check_file(self.data_dir)
        return self.store_uri or sqlite_uri(self.data_dir / STORE_FILE)

    @property
    def holds_objects(self) -> bool:
        """Return whether objects of `local://` namespaces are stored in the data folder."""
        return self.blockstore == "local" and self.objectstore.local_root is None

    @property
    def objects_options(self) -> ObjectStoreOptions:
        """Return the options of object stores, with a folder for `local://` namespaces."""
        if self.objectstore.local_root is not None:
            return self.objectstore
        return replace(self.objectstore, local_root=self.data_dir / OBJECTS_FOLDER)


def options_of(data_dir: Path, environment: Mapping[str, str], store_uri: str | None = None) -> ServerOptions:
    """Read the settings of a server (docs/guide/server.md). `store_uri` overrides LAKEBED_STORE_URI.

    Raises:
        Invalid: no driver supports this kind of object store, the audit settings are invalid, or a number is wrong.
    """
    secret = environment.get("LAKEBED_SERVER_SECRET")
    blockstore = environment.get("LAKEBED_BLOCKSTORE") or BLOCKSTORES[0]
    if blockstore not in BLOCKSTORES:
        raise Invalid(f"LAKEBED_BLOCKSTORE is {blockstore!r}: known are {', '.join(BLOCKSTORES)}")
    return ServerOptions(
        data_dir=data_dir,
        blockstore=blockstore,
        store_uri=store_uri or environment.get("LAKEBED_STORE_URI") or None,
        server_secret=secret.encode() if secret else None,
        setup_secret=environment.get("LAKEBED_SETUP_SECRET") or None,
        objectstore=options_from_environment(environment),
        trust_denials=environment.get("LAKEBED_TRUST_DENIALS") == "1",
        audit=_audit_mode(environment.get("LAKEBED_AUDIT") or "changes"),
        audit_days=_days("LAKEBED_AUDIT_DAYS", environment.get("LAKEBED_AUDIT_DAYS") or "0"),
        audit_printed=environment.get("LAKEBED_AUDIT_STDOUT") == "1",
        deleted_days=_days("LAKEBED_DELETED_DAYS", environment.get("LAKEBED_DELETED_DAYS") or str(DELETED_DAYS)),
        tables_days=_days("LAKEBED_TABLES_DAYS", environment.get("LAKEBED_TABLES_DAYS") or str(TABLES_DAYS)),
        cache_bytes=_cache_bytes(environment.get("LAKEBED_CACHE_BYTES") or str(TREE_CACHE_BYTES)),
        presign=environment.get("LAKEBED_PRESIGN") != "0",
        trusted_proxies=_proxies(environment.get("LAKEBED_TRUSTED_PROXIES") or ""),
        s3=s3_options(environment),
        hooks=hook_options(environment),
        brokers=brokers(environment),
        providers=provider_options(environment),
        aside=_aside(environment.get("LAKEBED_ASIDE") or ""),
    )


def _aside(text: str) -> bool | None:
    match text:
        case "":
            return None
        case "0" | "1":
            return text == "1"
        case _:
            raise Invalid(f"LAKEBED_ASIDE is {text!r}: known are 0 and 1")


def _audit_mode(text: str) -> AuditMode:
    match text:
        case "changes" | "all" | "off":
            return text
        case _:
            raise Invalid(f"LAKEBED_AUDIT is {text!r}: known are changes, all and off")


def _proxies(text: str) -> tuple[str, ...]:
    proxies = tuple(part.strip() for part in text.split(",") if part.strip())
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            raise Invalid(f"LAKEBED_TRUSTED_PROXIES: {proxy!r} is neither an address nor a network: {error}") from error
    return proxies


def _cache_bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < TREE_CACHE_BYTES_MIN:
        raise Invalid(f"LAKEBED_CACHE_BYTES is {text!r}: it is a number of at least {TREE_CACHE_BYTES_MIN:,} bytes")
    return int(text)


def _days(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise Invalid(f"{name} is {text!r}: it is a number of days")
    return int(text)


def namespace_opener(options: ServerOptions) -> Callable[[str], ObjectStore]:
    """Return the function that opens storage namespaces of this server. It refuses other schemes."""
    objectstore = options.objects_options

    def open_namespace(uri: str) -> ObjectStore:
        if not normalise_namespace(uri).startswith(options.blockstore + "://"):
            raise InvalidNamespace(
                f"storage namespaces of this server begin with {options.blockstore}://. LAKEBED_BLOCKSTORE, when it"
                " starts, chooses another kind of store",
                uri=uri,
            )
        return open_objectstore(uri, objectstore)

    return open_namespace
