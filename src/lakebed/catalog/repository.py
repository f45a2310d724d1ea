"""One repository as requests use it: its record, its versions, its namespace, its settings, and what guards changes.

A handle may be `CatalogOptions.record_cache_ms` old; a repository deleted meanwhile still answers for that long here,
and writes through it fail at their second look at the branch.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.base import Ports, RepositoryId
from lakebed.objectstore import ObjectStore
from lakebed.versions import Versions

from .changes import Changes
from .errors import ProtectedBranch, ReadOnly
from .namespaces import Namespaces
from .objects import Objects
from .queue import BranchQueue
from .records import RepositoryRecord
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Open:
    """What lasts as long as a repository's uid: caches, slices and queues live here, once for each process."""

    versions: Versions
    objectstore: ObjectStore
    settings: Settings
    queue: BranchQueue


class Repository:
    def __init__(
        self, repository_id: RepositoryId, record: RepositoryRecord, opened: Open, namespaces: Namespaces, ports: Ports
    ) -> None:
        self.id = repository_id
        self.record = record
        self.versions = opened.versions
        self.objectstore = opened.objectstore
        self.settings = opened.settings
        self.objects = Objects(self, namespaces, ports)
        self.changes = Changes(self, opened.queue, ports)
        self.address_prefix = record.namespace_uri + "/"

    def check_writable(self, *, force: bool = False) -> None:
        """
        Raises:
            ReadOnly: the repository is, and the caller does not force it.
        """
        if self.record.read_only and not force:
            raise ReadOnly("read-only repository", repository=self.id)

    async def check_branch_writable(self, branch: str, *, force: bool = False, verb: str = "write") -> None:
        """Refuse a change that protection forbids. Merges, cherry-picks and deletions ask `check_writable` alone.

        Raises:
            ReadOnly: as above.
            ProtectedBranch: a rule protects it; that cannot be forced.
        """
        self.check_writable(force=force)
        if await self.settings.is_protected(branch):
            raise ProtectedBranch(f"cannot {verb} to protected branch", branch=branch)

    def full_address(self, address: str) -> str:
        """An entry's address as users see it: a full URI."""
        return address if "://" in address else self.address_prefix + address
