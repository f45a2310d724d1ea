"""The parts that every route uses, opened once for each process. There are no globals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lakebed.auth import Accounts, Authenticator, Authorizer, Groups, Policies, Principals, Tickets
from lakebed.base import Ports
from lakebed.catalog import Catalog
from lakebed.kv import Store
from lakebed.sandboxes import Sandboxes
from lakebed.wire import StorageConfig

from .collectors import Collectors
from .events import Eventing
from .hard_delete import HardDeleting
from .identity.providers import Providers
from .operate.audit import AuditLog
from .operate.metrics import Metrics
from .process.aside import Aside
from .process.background import Background
from .process.draining import Drain
from .s3.options import S3Options


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """`presign_s` is the lifetime of signed URLs; None if the block store signs none. `continuation_key`,
    `login_key` and `certificate_key`: see `lakebed.auth.ServerKeys`. `setup_secret`: see `setting_up.check_set_up`.
    `proof_key`: see `noting_address`.
    """

    store: Store
    ports: Ports
    catalog: Catalog
    accounts: Accounts
    groups: Groups
    policies: Policies
    principals: Principals
    tickets: Tickets
    sandboxes: Sandboxes
    providers: Providers
    authenticator: Authenticator
    authorizer: Authorizer
    collectors: Collectors
    storage: StorageConfig
    version: str
    data_dir: Path
    audit: AuditLog
    hard_deleting: HardDeleting
    eventing: Eventing
    continuation_key: bytes = field(repr=False)
    login_key: bytes = field(repr=False)
    certificate_key: bytes = field(repr=False)
    presign_s: int | None = None
    database: str = ""
    s3: S3Options = field(default_factory=S3Options)
    aside: Aside | None = None
    drain: Drain = field(default_factory=Drain)
    background: Background = field(default_factory=Background)
    setup_secret: str | None = field(default=None, repr=False)
    proof_key: str = field(default="", repr=False)
    metrics: Metrics = field(default_factory=Metrics)
