"""All repositories of an installation: make, find, list, change and delete them.

Making one takes six steps. After a crash at any step, the next attempt takes its record over:
1 write the record as `creating`: it is unusable, but its namespace is in use; 2 note its place (places.py);
3 check that no other record's namespace overlaps; 4 put the marker object; 5 make first commit and default branch;
6 `set_if` creating → active. A `creating` record may be taken over if it is older than CREATING_AGE_MS, or if its
maker gave it up; the `set_if` decides. A deleted repository is kept for a while: deleted.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.base import (
    BranchName,
    Etags,
    Invalid,
    InvalidName,
    LakebedError,
    Ports,
    RepositoryId,
    RepositoryUid,
    Unavailable,
    check_branch,
    check_repository,
    each_item,
    is_inside,
)
from lakebed.kv import SCAN_PAGE, Held, PredicateFailed, Store, scan_pages, scan_prefix
from lakebed.objectstore import BucketMissing, ObjectStore
from lakebed.quotas import Meter
from lakebed.versions import Versions, decode_record, decode_records, encode_record, keys

from .deleted import DELETED_DAYS, DeletedRepositories, namespaces_of
from .errors import (
    DeleteProtected,
    NamespaceInUse,
    NamespaceNested,
    ReadOnly,
    RepositoryExists,
    RepositoryNotFound,
    SettingChanged,
)
from .namespaces import Namespaces, OpenNamespace, Places, first_overlap
from .records import NamespaceRecord, RepositoryRecord, RepositoryState
from .refs.queue import BranchQueue
from .repository import MakeHooks, Open, Repository
from .settings import Settings, check_patterns

CREATING_AGE_MS: Final = 60_000
_RECORD_BYTES_MAX: Final = 250_000

Distrust = Callable[[Versions], Awaitable[None]]

MakeVersions = Callable[[RepositoryUid, ObjectStore, str], Versions]
"""The last argument is the salt of the names of tree files. If it is empty, only the content determines the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """`record_cache_ms`: how long a repository's record is used without another read.

    A deleted repository can be restored for at least `deleted_days`. For `trust_denials` see `Namespaces`.
    """

    record_cache_ms: int = 1_000
    queue_wait_s_max: float = 60.0
    trust_denials: bool = False
    deleted_days: int = DELETED_DAYS


class Catalog:
    def __init__(
        self,
        *,
        store: Store,
        ports: Ports,
        open_namespace: OpenNamespace,
        make_versions: MakeVersions,
        options: CatalogOptions | None = None,
        make_hooks: MakeHooks | None = None,
    ) -> None:
        self.store = store
        self._make_hooks = make_hooks
        self._ports = ports
        self._make_versions = make_versions
        self._options = options or CatalogOptions()
        self.namespaces = Namespaces(
            open_namespace,
            known=self._known_namespaces,
            known_lately=self._known_lately,
            trust_denials=self._options.trust_denials,
        )
        self.meter = Meter(store, ports)
        self.places = Places(store, ports)
        self.deleted = DeletedRepositories(store, ports, self.places, kept_days=self._options.deleted_days)
        self._lately: tuple[Collection[str], int] | None = None
        self._handles: dict[str, tuple[Repository, int]] = {}
        self._opened: dict[RepositoryUid, Open] = {}

    # Finding

    def known(self, repository_id: str) -> Repository | None:
        """Return a handle if the record was read within `record_cache_ms`."""
        known = self._handles.get(repository_id)
        if known is None or not 0 <= self._ports.clock.now_ms() - known[1] < self._options.record_cache_ms:
            return None
        return known[0]

    async def get(self, repository_id: str) -> Repository:
        """Return a handle. Costs a dictionary look-up within `record_cache_ms` of the last read of its record.

        Raises:
            RepositoryNotFound: the repository does not exist, or is being made or deleted.
        """
        known = self.known(repository_id)
        if known is not None:
            return known
        now_ms = self._ports.clock.now_ms()
        found = await self._find(repository_id)
        if found is None or found[0].state is not RepositoryState.ACTIVE:
            self._handles.pop(repository_id, None)
            raise RepositoryNotFound("repository not found", repository=repository_id)
        return self._handle(RepositoryId(repository_id), found[0], now_ms)

    def _handle(self, name: RepositoryId, record: RepositoryRecord, read_ms: int) -> Repository:
        known = self._handles.get(name)
        if known is not None and known[0].record == record:
            handle = known[0]
        else:
            opened = self._open(record)
            handle = Repository(name, record, opened, self.namespaces, self._ports, self._make_hooks)
        self._handles[name] = (handle, read_ms)
        return handle

    async def list(
        self, *, prefix: str = "", search: str = "", after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[RepositoryId, RepositoryRecord]], bool]:
        """List usable repositories by id that begin with `prefix` and contain `search`, and whether more follow."""
        found: list[tuple[RepositoryId, RepositoryRecord]] = []
        start = after.encode() + b"\x00" if after else b""
        async for key, value in scan_prefix(self.store, keys.REPOSITORIES, prefix.encode(), start=start):
            record = decode_record(RepositoryRecord, value)
            if record.state is not RepositoryState.ACTIVE or search not in key.decode():
                continue
            if len(found) == limit:
                return found, True
            found.append((RepositoryId(key.decode()), record))
        return found, False

    async def each(self) -> AsyncIterator[Repository]:
        """Yield every usable repository, by id. Skip those that are deleted meanwhile."""
        async for name, _ in each_item(lambda after: self.list(after=after), itemgetter(0), ""):
            with suppress(RepositoryNotFound):
                yield await self.get(name)

    # Making

    async def create(
        self,
        repository_id: str,
        *,
        storage_namespace: str,
        default_branch: str = "main",
        read_only: bool = False,
        reuse: bool = False,
        bare: Distrust | None = None,
        old_server: str | None = None,
    ) -> Repository:
        """Create a repository with a first commit and a default branch.

        With `reuse`, also in the namespace of a deleted repository, after all of its data was deleted.
        A `bare` repository has no commit and no branch until refs are restored into it (dumps.py). Its namespace may
        have a marker that no repository of this installation made: a copy's or another installation's. The new
        repository is
        `salted`
        then. The call to `bare`, before the repository is usable, blocks all collections until refs are restored and a
        person has chosen, salted or not: objects may be copied into its namespace later.

        With `old_server`, an address, the namespace belongs to that server, and is claimed (`Namespaces.take_over`).

        Raises:
            InvalidName: of the repository or of its default branch.
            InvalidNamespace: the URI is malformed, or of a store that this server does not use.
            RepositoryExists: the id is taken.
            NamespaceInUse: another or a deleted repository uses it, or one around or inside it.
            Unavailable: the store denies the check for a marker.
            Invalid: the bucket of the namespace does not exist.
        """
        name = check_repository(repository_id)
        branch = check_branch(default_branch)
        objectstore = self.namespaces.open(storage_namespace)
        reuse = reuse or bare is not None
        marker = await self.deleted.free_marker(objectstore.uri) if reuse else None
        if bare is not None and marker is None:
            marker = await self.namespaces.read_marker(objectstore)
        record, held, is_takeover = await self._reserve(
            name, storage_namespace, objectstore.uri, branch, read_only=read_only, marker=marker, reuse=reuse
        )
        try:
            await self.places.note(objectstore.uri, record.uid)
            await self._check_no_overlap(name, objectstore.uri, record.uid, is_reused=record.salted)
            if old_server is not None:
                await self.namespaces.take_over(objectstore, record.marker, old_server)
            await self.namespaces.mark(objectstore, record.marker)
        except (NamespaceInUse, Unavailable) as error:
            # A marker that was free when this call began is still in the record of the deleted repository, or in that
            # of another call that was faster. Kept here too, it would open the namespace once more after that one.
            if not is_takeover or await self.deleted.free_marker(objectstore.uri) == record.marker:
                await self._withdraw(name, record, held)
            else:  # the marker of a dead attempt may exist
                await self._give_up(name, record, held)
            if isinstance(error, BucketMissing):
                raise Invalid(
                    f"failed to create repository: failed to access storage: the bucket of {storage_namespace} does"
                    " not exist",
                    namespace=storage_namespace,
                ) from error
            raise
        except LakebedError:
            await self._give_up(name, record, held)
            raise
        try:
            if bare is None:
                await self._open(record).versions.commits.initialise(branch)
            else:
                await bare(self._open(record).versions)
        except LakebedError:
            await self._give_up(name, record, held)
            raise
        if record.salted:
            # A process that makes one later sees our record. Set it before the repository is usable: from here on only
            # our own record shows whose marker is in the namespace, so it must show that the marker is ours.
            record = replace(record, owns_marker=True)
            held = await self._replace(name, record, held)
            await self.deleted.use_again(objectstore.uri)
        record = replace(record, state=RepositoryState.ACTIVE)
        written_ms = self._ports.clock.now_ms()
        await self._replace(name, record, held)
        # Replace the handle of an earlier repository with this id, which may have been deleted just now.
        return self._handle(name, record, written_ms)

    async def _replace(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> Held:
        """Replace the record by a conditional write.

        Raises:
            RepositoryExists: another attempt took it over.
        """
        value = encode_record(record)
        try:
            return Held(value, await self.store.set_if(keys.REPOSITORIES, name.encode(), value, held.predicate))
        except PredicateFailed as error:
            raise RepositoryExists("repository exists", repository=name) from error

    async def _reserve(
        self,
        name: RepositoryId,
        namespace: str,
        uri: str,
        branch: BranchName,
        *,
        read_only: bool,
        marker: str | None,
        reuse: bool,
    ) -> tuple[RepositoryRecord, Held, bool]:
        """Reserve the name. Also return the record, and whether its marker is from a dead attempt."""
        uid = RepositoryUid(self._ports.ids.fresh())
        record = RepositoryRecord(
            uid=uid,
            marker=marker or uid,
            salted=marker is not None,
            state=RepositoryState.CREATING,
            storage_namespace=namespace,
            namespace_uri=uri,
            default_branch=branch,
            created_ms=self._ports.clock.now_ms(),
            read_only=read_only,
        )
        is_takeover = False
        found = await self._find(name)
        if found is not None and found[0].state is RepositoryState.DELETING:
            await self._finish_deletion(name, *found)
            found = None
        if found is not None:
            dead, _ = found
            age_ms = record.created_ms - dead.created_ms
            if dead.state is not RepositoryState.CREATING or age_ms < CREATING_AGE_MS:
                raise RepositoryExists("repository exists", repository=name)
            if dead.namespace_uri == uri:
                # An earlier wish may name a marker that another repository took since, and that was forgotten with it.
                if dead.salted and not (reuse and (dead.owns_marker or dead.marker == marker)):
                    raise NamespaceInUse(f"namespace {uri} is in use", namespace=uri)
                record = replace(record, marker=dead.marker, salted=dead.salted, owns_marker=dead.owns_marker)
                is_takeover = True
        value = encode_record(record)
        try:
            predicate = await self.store.set_if(
                keys.REPOSITORIES, name.encode(), value, found[1].predicate if found else None
            )
        except PredicateFailed as error:
            raise RepositoryExists("repository exists", repository=name) from error
        if found is not None:
            await self.deleted.purge(found[0].uid)
            await self.places.forget(found[0].namespace_uri, found[0].uid)
        return record, Held(value, predicate), is_takeover

    async def _known_namespaces(self) -> Sequence[str]:
        there = [record.namespace_uri for _, record in await self._every_namespace()]
        # Read deleted repositories after the others: deleting writes there first, and then removes the repository's
        # record.
        return [*there, *namespaces_of(await self.deleted.every())]

    async def _every_namespace(self) -> Sequence[tuple[bytes, NamespaceRecord]]:
        """Return the namespace of every record, by name. Costs 2 µs a record."""
        found: list[tuple[bytes, NamespaceRecord]] = []
        async for names, values in scan_pages(self.store, keys.REPOSITORIES, b"", first=SCAN_PAGE):
            found += zip(names, decode_records(NamespaceRecord, values), strict=True)
        return found

    async def _known_lately(self) -> Collection[str]:
        now_ms = self._ports.clock.now_ms()
        if self._lately is None or not 0 <= now_ms - self._lately[1] < self._options.record_cache_ms:
            self._lately = (frozenset(await self._known_namespaces()), now_ms)
        return self._lately[0]

    async def _check_no_overlap(self, name: RepositoryId, uri: str, uid: RepositoryUid, *, is_reused: bool) -> None:
        """Check that no other namespace overlaps. Costs scans of a few keys. If a note is near, and once in
        `CHECKED_MS`, reads all records.

        Raises:
            NamespaceInUse, NamespaceNested: the namespace of another record, perhaps a deleted repository's, overlaps.
        """
        self._lately = None
        checked_ms = None if self.places.has_every else self._ports.clock.now_ms()
        # Our record and note are written before this check: of two that are made at once, at least one sees the other.
        notes = await self.places.near(uri, uid) if checked_ms is None else await self.places.every()
        if checked_ms is None and not notes:
            return
        others = await self._every_namespace()
        # Read deleted repositories after the others: deleting writes there first, and then removes the repository's
        # record.
        deleted = await self.deleted.every()
        kept = {one.uid: one.record.repository for one in deleted}
        known = {uid: None if one is None else one.namespace_uri for uid, one in kept.items()}
        known |= {other.uid: other.namespace_uri for _, other in others}
        await self.places.mend(notes, known, checked_ms=checked_ms)
        there = [other.namespace_uri for key, other in others if key != name.encode()]
        other = first_overlap(uri, [*there, *namespaces_of(deleted, reused=uri if is_reused else None)])
        if other == uri:
            raise NamespaceInUse(f"namespace {uri} is in use", namespace=other)
        if other is not None:
            side = "inside" if is_inside(uri, other) else "around"
            raise NamespaceNested(f"namespace {uri} lies {side} {other}", namespace=other)

    async def _withdraw(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> None:
        # Remove the note first: a note that a crash leaves behind would never be removed.
        await self.places.forget(record.namespace_uri, record.uid)
        try:
            await self.store.delete_if(keys.REPOSITORIES, name.encode(), held.predicate)
        except PredicateFailed:
            return  # Another attempt took it over.

    async def _give_up(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> None:
        """Let the next attempt take over at once. Keep the record: only it shows whose marker is in the namespace."""
        dead = replace(record, created_ms=0)
        try:
            await self.store.set_if(keys.REPOSITORIES, name.encode(), encode_record(dead), held.predicate)
        except PredicateFailed:
            return  # Another attempt took it over already.

    # Changing

    async def set_metadata(self, repository_id: str, metadata: Mapping[str, str]) -> None:
        """Add or replace these keys, and keep the others. Allowed in read-only repositories: it does not change
        their data.
        """
        await self._change(repository_id, lambda old: replace(old, metadata={**old.metadata, **metadata}))

    async def remove_metadata(self, repository_id: str, names: Sequence[str]) -> None:
        await self._change(
            repository_id,
            lambda old: replace(old, metadata={key: value for key, value in old.metadata.items() if key not in names}),
        )

    async def deletion_protection(self, repository_id: str) -> tuple[RepositoryRecord, str]:
        """Return the record as it is stored now, and the ETag of its protection against deletion."""
        record, _ = await self._find_active(repository_id)
        return record, _protection_etag(record)

    async def protect_deletion(
        self, repository_id: str, *, repository: bool, branches: Sequence[str], if_match: Etags | None = None
    ) -> None:
        """Set whether the repository can be deleted, and the patterns of branches that cannot.

        Raises:
            TooManyPatterns: see `check_patterns`.
            SettingChanged: the stored ETag is none of `if_match`.
        """
        check_patterns(branches)
        patterns = tuple(dict.fromkeys(branches))

        def protected(old: RepositoryRecord) -> RepositoryRecord:
            etag = _protection_etag(old)
            if if_match is not None and not if_match.match(etag):
                raise SettingChanged("the protection against deletion was changed", etag=etag)
            return replace(old, protected=repository, protected_branches=patterns)

        await self._change(repository_id, protected)

    async def _change(self, repository_id: str, change: Callable[[RepositoryRecord], RepositoryRecord]) -> None:
        while True:
            record, held = await self._find_active(repository_id)
            value = encode_record(change(record))
            if len(value) > _RECORD_BYTES_MAX:
                raise Invalid(f"a repository's record has at most {_RECORD_BYTES_MAX} bytes", size=len(value))
            try:
                await self.store.set_if(keys.REPOSITORIES, repository_id.encode(), value, held.predicate)
            except PredicateFailed:
                continue
            self._handles.pop(repository_id, None)
            return

    # Deleting

    async def delete(self, repository_id: str, *, force: bool = False, by: str = "") -> None:
        """Delete a repository. It is unusable from the first step on; the upkeep finishes after a crash.

        Raises:
            RepositoryNotFound, ReadOnly: see those classes.
            DeleteProtected: it is protected, or legal holds are in force.
        """
        while True:
            record, held = await self._find_active(repository_id)
            # A hold that is added after this check stops the forgetting, and an undelete restores the held data.
            await self.deleted.check_holds(repository_id, record.uid)
            if record.protected:
                raise DeleteProtected(
                    f"repository {repository_id} is protected against deletion", repository=repository_id
                )
            if record.read_only and not force:
                raise ReadOnly("read-only repository", repository=repository_id)
            deleting = self.deleted.began(record, by=by)
            value = encode_record(deleting)
            try:
                predicate = await self.store.set_if(keys.REPOSITORIES, repository_id.encode(), value, held.predicate)
            except PredicateFailed:
                continue
            self._handles.pop(repository_id, None)
            await self._finish_deletion(RepositoryId(repository_id), deleting, Held(value, predicate))
            return

    async def undelete(self, name: str, *, uid: str = "", new_name: str = "") -> Repository:
        """Restore a deleted repository with all of its data, including uncommitted changes.

        Raises:
            DeletedNotFound, Conflict, RepositoryExists: see `DeletedRepositories.undelete`.
        """
        wanted = check_repository(new_name or name)
        found = await self._find(wanted)
        if found is not None and found[0].state is RepositoryState.DELETING:
            await self._finish_deletion(wanted, *found)
        back = await self.deleted.undelete(name, uid=uid, new_name=new_name)
        self._handles.pop(back, None)
        return await self.get(back)

    async def open_deleted(self, name: str, uid: str = "") -> tuple[RepositoryUid, Versions]:
        """Return the uid and the versions of a deleted repository, for its collection.

        Raises:
            DeletedNotFound, Conflict: see `DeletedRepositories.find`.
        """
        found = await self.deleted.find(name, uid=uid)
        assert found.record.repository is not None
        return found.uid, self._make(found.record.repository)[1]

    async def others(self, uid: RepositoryUid) -> Sequence[tuple[str, Versions]]:
        """Return every other repository of the installation that is in use, or may be again, by name."""
        found: dict[RepositoryUid, tuple[str, RepositoryRecord]] = {}
        async for key, value in scan_prefix(self.store, keys.REPOSITORIES, b""):
            record = decode_record(RepositoryRecord, value)
            found[record.uid] = (key.decode(), record)
        # Read deleted repositories after the others: deleting writes there first, and then removes the repository's
        # record. A repository that was restored meanwhile keeps its record there.
        for one in await self.deleted.restorable():
            if one.record.repository is not None:
                found.setdefault(one.uid, (one.record.name, one.record.repository))
        found.pop(uid, None)
        return [(name, self._make(record)[1]) for name, record in found.values()]

    async def clean(self) -> None:
        """Finish steps that a crash interrupted, and purge once more after older requests. For the upkeep."""
        async for key, value in scan_prefix(self.store, keys.REPOSITORIES, b""):
            if decode_record(RepositoryRecord, value).state in (RepositoryState.DELETING, RepositoryState.RESTORING):
                name = RepositoryId(key.decode())
                found = await self._find(name)
                if found is not None and found[0].state is RepositoryState.DELETING:
                    await self._finish_deletion(name, *found)
                elif found is not None and found[0].state is RepositoryState.RESTORING:
                    await self.deleted.settle(name, *found)
        await self.deleted.clean()

    def opened(self) -> Sequence[Versions]:
        """Return the versions of every repository that this process has open, for its upkeep."""
        return [opened.versions for opened in self._opened.values()]

    def count_waiting(self) -> int:
        """Return the number of commits and merges that wait for their turn in this process, over all branches."""
        return sum(opened.queue.waiting for opened in self._opened.values())

    async def close(self) -> None:
        await self.namespaces.close()

    async def _finish_deletion(self, name: RepositoryId, record: RepositoryRecord, held: Held) -> None:
        await self.deleted.finish(name, record, held)
        self._opened.pop(record.uid, None)

    # Records and handles

    async def _find(self, repository_id: str) -> tuple[RepositoryRecord, Held] | None:
        try:
            check_repository(repository_id)
        except InvalidName:
            return None  # Do not look up an invalid id: it might not even be a possible key.
        held = await self.store.get(keys.REPOSITORIES, repository_id.encode())
        return (decode_record(RepositoryRecord, held.value), held) if held else None

    async def _find_active(self, repository_id: str) -> tuple[RepositoryRecord, Held]:
        found = await self._find(repository_id)
        if found is None or found[0].state is not RepositoryState.ACTIVE:
            raise RepositoryNotFound("repository not found", repository=repository_id)
        return found

    def _open(self, record: RepositoryRecord) -> Open:
        opened = self._opened.get(record.uid)
        if opened is None:
            objectstore, versions = self._make(record)
            opened = self._opened[record.uid] = Open(
                versions=versions,
                objectstore=objectstore,
                settings=Settings(record.uid, self.store, self._ports),
                queue=BranchQueue(self._ports, wait_s_max=self._options.queue_wait_s_max),
                store=self.store,
                meter=self.meter,
            )
        return opened

    def _make(self, record: RepositoryRecord) -> tuple[ObjectStore, Versions]:
        objectstore = self.namespaces.open(record.storage_namespace)
        return objectstore, self._make_versions(record.uid, objectstore, record.uid if record.salted else "")

    def versions_at(self, uid: RepositoryUid, namespace: str, salt: str) -> Versions:
        """Return the versions of a repository that another process opened with these arguments."""
        return self._make_versions(uid, self.namespaces.open(namespace), salt)


def _protection_etag(record: RepositoryRecord) -> str:
    protection = msgspec.msgpack.encode((record.protected, record.protected_branches))
    return hashlib.blake2b(protection, digest_size=16).hexdigest()
