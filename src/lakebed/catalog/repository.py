"""One repository as requests use it: record, versions, namespace, settings, and the guards of changes.

A handle may be `CatalogOptions.record_cache_ms` old. For that long, it still answers for a deleted repository. Writes
through it fail when they check the branch again, and changes of settings fail at `Guards.confirm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lakebed.base import Etags, Ports, RepositoryId
from lakebed.kv import Store
from lakebed.objectstore import ObjectStore
from lakebed.quotas import Charges, Meter
from lakebed.versions import Versions

from .dumps import Dumps
from .guards import Guards
from .namespaces import Namespaces
from .objects.imports import Imports
from .objects.multipart import Multipart
from .objects.objects import Objects
from .objects.symlinks import Symlinks
from .records import RepositoryRecord
from .refs.changes import Changes
from .refs.hooks import Hooks, NoHooks
from .refs.pulls import Pulls
from .refs.queue import BranchQueue
from .settings import Settings, check_patterns
from .subscriptions import Subscriptions
from .tables import Tables
from .tasks import Tasks

MakeHooks: TypeAlias = Callable[[RepositoryId, Versions, Objects], Hooks]


@dataclass(frozen=True, slots=True)
class Open:
    """The caches, slices and queues of a repository's uid, once for each process."""

    versions: Versions
    objectstore: ObjectStore
    settings: Settings
    queue: BranchQueue
    store: Store
    meter: Meter


class Repository:
    def __init__(
        self,
        repository_id: RepositoryId,
        record: RepositoryRecord,
        opened: Open,
        namespaces: Namespaces,
        ports: Ports,
        make_hooks: MakeHooks | None = None,
    ) -> None:
        self.id = repository_id
        self.record = record
        self.versions = opened.versions
        self.objectstore = opened.objectstore
        self.settings = opened.settings
        self.address_prefix = record.namespace_uri + "/"
        self.guards = guards = Guards(repository_id, record, opened.settings, opened.store, opened.versions)
        self.charges = charges = Charges(opened.meter, record.uid)
        self.objects = Objects(
            opened.versions, opened.objectstore, guards, charges, namespaces, ports, self.address_prefix
        )
        self.multipart = Multipart(opened.versions, opened.objectstore, guards, charges, self.objects, ports)
        hooks = NoHooks() if make_hooks is None else make_hooks(repository_id, opened.versions, self.objects)
        self.changes = Changes(opened.versions, record, opened.settings, guards, opened.queue, ports, hooks)
        self.tables = Tables(repository_id, opened.versions, opened.settings, self.objects, self.changes, ports)
        self.pulls = Pulls(opened.versions, self.changes)
        self.imports = Imports(opened.versions, self.changes, guards, charges, namespaces, ports)
        self.subscriptions = Subscriptions(opened.versions)
        self.tasks = Tasks(opened.versions, ports)
        self.symlinks = Symlinks(opened.versions, opened.objectstore, ports, self.address_prefix)
        self.dumps = Dumps(
            opened.versions,
            opened.objectstore,
            opened.settings,
            guards,
            ports,
            repository_id=repository_id,
            default_branch=record.default_branch,
            settle=self.tables.settle,
        )

    async def set_protection(
        self, patterns: Sequence[str], *, if_match: Etags | None = None, force: bool = False
    ) -> None:
        """Replace the patterns of protected branches.

        Raises:
            ReadOnly: the repository is read-only, and `force` is not set.
            SettingChanged: the stored ETag is none of `if_match`.
            TooManyPatterns: see `check_patterns`.
            RepositoryNotFound: the repository was deleted meanwhile.
        """
        self.guards.check_writable(force=force)
        check_patterns(patterns)
        await self.settings.set_protection_patterns(patterns, if_match=if_match)
        await self.guards.confirm()

    def full_address(self, address: str) -> str:
        """Return an entry's address as a full URI, as users see it."""
        return address if "://" in address else self.address_prefix + address
