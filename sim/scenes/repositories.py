"""A repository that is deleted, and made again under its name or brought back, while other processes still use it.

Each actor is a process with a catalog of its own, whose handles stay: clocks do not move here. What is acknowledged
after the deletion was is in the repository that has the name then. In the end a repository is in use, or kept as
deleted, or forgotten, and of a forgotten one nothing is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any, Final

from msgspec.structs import replace

from explorer.actors import Actor, Ending, Violation
from explorer.disk import Disk
from explorer.operations import Operation
from lakebed.base import EMPTY_METARANGE, RepositoryUid
from lakebed.catalog import Catalog, CatalogOptions
from lakebed.catalog.errors import NamespaceInUse
from lakebed.catalog.namespaces import NAMESPACES, OLD_MARKER, overlap
from lakebed.catalog.records import (
    DELETED_REPOSITORIES,
    MARKER_KEY,
    BranchProtection,
    DeletedRecord,
    DeletedState,
    RepositoryRecord,
)
from lakebed.catalog.repositories import CREATING_AGE_MS
from lakebed.objectstore import ObjectStat, ObjectStore
from lakebed.ranges import metarange_key
from lakebed.versions import (
    BranchRecord,
    Commit,
    Options,
    RefState,
    Versions,
    decode_cell,
    decode_record,
    is_gone,
    keys,
)
from sim.ports.ports import SimObjectStore, SimPorts, SimStore
from sim.ports.scene import Program, Quick, Scene
from sim.ports.trees import SimTrees

from .doing import entry_of, note

NAME: Final = "lake"
OLD_MS: Final = 10_000_000
"""Every request has ended by then."""

Act = Callable[[Catalog, str], Coroutine[Any, Any, Any]]
Deed = tuple[str, Act]
"""The kind of an operation, and what it does."""


class Namespace(SimObjectStore):
    """One of several namespaces on the disk: each key begins with its name."""

    __slots__ = ("_folder", "uri")

    def __init__(self, ports: SimPorts, uri: str) -> None:
        super().__init__(ports.clock, ports.objectstore.own)
        self.uri = uri
        self._folder = f"{uri}/"

    async def put_value(self, key: str, content: object, size_bytes: int, *, if_absent: bool = False) -> None:
        await super().put_value(self._folder + key, content, size_bytes, if_absent=if_absent)

    async def get_value(self, key: str) -> Any:
        return await super().get_value(self._folder + key)

    async def stat(self, key: str) -> ObjectStat:
        return self._inside(await super().stat(self._folder + key))

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        after = self._folder + start_after if start_after else ""
        async for page in super().list(self._folder + prefix, start_after=after):
            yield [self._inside(stat) for stat in page]

    def _inside(self, stat: ObjectStat) -> ObjectStat:
        return replace(stat, key=stat.key.removeprefix(self._folder))


def catalog_of(ports: SimPorts, store: SimStore | None = None, **options: Any) -> Catalog:
    """Make a process's catalog, over this key-value store if there are two."""
    store = ports.store if store is None else store

    def open_namespace(uri: str) -> ObjectStore:
        return Namespace(ports, uri)

    def make_versions(uid: RepositoryUid, objectstore: ObjectStore, salt: str) -> Versions:
        assert isinstance(objectstore, SimObjectStore)
        return Versions(
            uid=uid,
            store=store,
            objectstore=objectstore,
            trees=SimTrees(objectstore, salt=salt),
            ports=ports.ports,
            options=Options(owner=ports.actor),
        )

    return Catalog(
        store=store,
        ports=ports.ports,
        open_namespace=open_namespace,
        make_versions=make_versions,
        options=CatalogOptions(**options),
    )


def acting(kind: str, act: Program, *, end: str = "", branch: str = "", what: str = "") -> Program:
    """Make a program of one operation, named by its actor and life, and by `end` where a life has several."""

    async def program(ports: SimPorts) -> None:
        operation = Operation(f"{ports.actor}{ports.life}{end}", kind, branch, what=what)
        await ports.operations.run(operation, act(ports))

    return program


def _doing(*deeds: Deed, knows: bool = False, has_every: bool = False) -> Program:
    """Do these, each named by its kind and a letter. `knows`: the process has used the repository before. `has_every`:
    it made another lately, so it looks for notes of places, and not at all records.
    """

    async def program(ports: SimPorts) -> None:
        catalog = catalog_of(ports)
        catalog.places.checked_ms = ports.ports.clock.now_ms() if has_every else None
        if knows:
            await (await catalog.get(NAME)).versions.refs.get_branch("main")
        for number, (kind, act) in enumerate(deeds):
            name = f"{ports.actor}{ports.life}{number}"
            await ports.operations.run(Operation(name, kind, value=name), act(catalog, name))

    return program


def _actor(name: str, *deeds: Deed, **how: Any) -> Actor:
    return Actor(name, _doing(*deeds, **how))


def _create(namespace: str, *, name: str = NAME) -> Deed:
    return "create", lambda catalog, _: _nothing(catalog.create(name, storage_namespace=namespace))


async def _write(catalog: Catalog, name: str, branch: str = "main") -> None:
    await (await catalog.get(NAME)).versions.staging.put(branch, name.encode(), entry_of(name))


async def _commit(catalog: Catalog, name: str, branch: str = "main") -> str:
    return (await (await catalog.get(NAME)).versions.commits.commit(branch, note(name))).id


async def _make_branch(catalog: Catalog, _: str) -> None:
    await (await catalog.get(NAME)).versions.refs.create_branch("topic", "main")


async def _protect(catalog: Catalog, name: str) -> None:
    await (await catalog.get(NAME)).set_protection([name])


WRITE: Final[Deed] = ("write", _write)
COMMIT: Final[Deed] = ("commit", _commit)
PROTECT: Final[Deed] = ("protect", _protect)
CLEAN: Final[Deed] = ("clean", lambda catalog, _: catalog.clean())
DELETE: Final[Deed] = ("delete", lambda catalog, _: catalog.delete(NAME))
UNDELETE: Final[Deed] = ("undelete", lambda catalog, _: _nothing(catalog.undelete(NAME)))
FORGET: Final[Deed] = ("forget", lambda catalog, _: catalog.deleted.forget(NAME))


async def _nothing(doing: Coroutine[Any, Any, Any]) -> None:
    await doing


async def _prepare(ports: SimPorts) -> None:
    await _doing(_create("sim://one"), WRITE)(ports)


async def _tidy(ports: SimPorts) -> None:
    """Finish what was begun, forget what stays deleted, and clean once more when every request has ended."""
    catalog = catalog_of(ports)
    await catalog.clean()
    for one in await catalog.deleted.list():
        if one.record.state is DeletedState.KEPT:
            await catalog.deleted.forget(one.record.name, uid=one.uid)
    for _ in range(2):
        ports.clock.ms += OLD_MS
        await catalog_of(ports).clean()


async def _finish(ports: SimPorts) -> None:
    """Finish what was begun, twice, because the first may meet what the second is to go on with."""
    for _ in range(2):
        ports.clock.ms += OLD_MS
        await catalog_of(ports).clean()


# Checks


def repositories(disk: Disk) -> dict[str, RepositoryRecord]:
    cells = disk.cells.get(keys.REPOSITORIES, {})
    return {
        name.decode(): decode_record(RepositoryRecord, disk.value(keys.REPOSITORIES, name) or b"") for name in cells
    }


def what_followed_the_deletion_is_there(ending: Ending) -> None:
    """Check that the repository of now has what was acknowledged and began after an acknowledged deletion."""
    deletions = {record.operation.name for record in ending.acknowledged("delete")}
    for kind, there in (("write", _written), ("commit", _commits), ("protect", _protected)):
        for record in ending.acknowledged(kind):
            if deletions & (record.before or frozenset()):
                now = repositories(ending.disk).get(NAME)
                wanted = record.answer if kind == "commit" else record.operation.value
                if now is None or wanted not in there(ending.disk, now):
                    raise Violation(f"{record.operation.name} was acknowledged, and its repository was gone")


def _written(disk: Disk, repository: RepositoryRecord) -> set[Any]:
    """Return what is staged, and what the head has."""
    value = disk.value(keys.repository_partition(repository.uid), keys.BRANCH + b"main")
    if value is None:
        return set()
    branch = decode_record(BranchRecord, value)
    partitions = [keys.token_partition(repository.uid, token) for token in branch.tokens()]
    cells = [decode_cell(value) for one in partitions for value in _values(disk, one)]
    commit = decode_record(
        Commit, disk.value(keys.repository_partition(repository.uid), keys.COMMIT + branch.commit_id.encode()) or b""
    )
    head: Any = ()
    if commit.metarange_id != EMPTY_METARANGE:
        head = disk.objectstore[f"{repository.namespace_uri}/{metarange_key(commit.metarange_id)}"][0]
    return {row[5] for _, row in head} | {row[5] for flags, row in cells if not is_gone(flags)}


def _commits(disk: Disk, repository: RepositoryRecord) -> set[Any]:
    partition = keys.repository_partition(repository.uid)
    return {key[len(keys.COMMIT) :].decode() for key in disk.cells.get(partition, {}) if key.startswith(keys.COMMIT)}


def _protected(disk: Disk, repository: RepositoryRecord) -> set[Any]:
    value = disk.value(keys.repository_partition(repository.uid), keys.SETTING + b"branch_protection")
    return set() if value is None else set(decode_record(BranchProtection, value).patterns)


def _values(disk: Disk, partition: bytes) -> list[bytes]:
    return [disk.value(partition, key) or b"" for key in disk.cells.get(partition, {})]


def nothing_is_left_of_the_one_before(ending: Ending) -> None:
    known = {record.uid for record in repositories(ending.disk).values()}
    for partition, cells in ending.disk.cells.items():
        uid = partition.decode().partition("/")[0]
        if partition == NAMESPACES:
            if any(note.rpartition(b"\0")[2].decode() not in known for note in cells):
                raise Violation("the place of a deleted repository stays noted")
        elif cells and partition not in (keys.REPOSITORIES, DELETED_REPOSITORIES) and uid not in known:
            raise Violation(f"{len(cells)} records of a deleted repository stay in {partition.decode()}")


def deleted_records(disk: Disk) -> dict[str, DeletedRecord]:
    cells = disk.cells.get(DELETED_REPOSITORIES, {})
    return {uid.decode(): decode_record(DeletedRecord, disk.value(DELETED_REPOSITORIES, uid) or b"") for uid in cells}


def what_came_back_is_whole(ending: Ending) -> None:
    """Check that a repository is in use, kept or forgotten. In use it has every branch and acknowledged write."""
    in_use, deleted = repositories(ending.disk), deleted_records(ending.disk)
    if wrong := {name: record.state.value for name, record in in_use.items() if record.state.value != "active"}:
        raise Violation(f"unusable for ever: {wrong}")
    live = [record.uid for record in in_use.values()]
    if len(set(live)) < len(live):
        raise Violation("one repository has two names")
    for uid, record in deleted.items():
        if (record.state is DeletedState.RESTORED) != (uid in live) or record.state is DeletedState.RESTORING:
            raise Violation(f"a repository is {record.state}, and {'' if uid in live else 'not '}in use")
        wanted = RefState.ACTIVE if uid in live else RefState.SUSPENDED
        partition = uid.encode()
        for key in ending.disk.cells.get(partition, {}):
            if key.startswith(keys.BRANCH):
                found = decode_record(BranchRecord, ending.disk.value(partition, key) or b"").state
                if found is not wanted:
                    raise Violation(f"{key.decode()} is {found} while its repository is {record.state}")
    for repository in in_use.values():
        lost = {record.operation.value for record in ending.acknowledged("write")} - _written(ending.disk, repository)
        if lost:
            raise Violation(f"acknowledged, and not in the repository that came back: {lost}")


def what_was_acknowledged_last_counts(ending: Ending) -> None:
    """Check that a repository that was brought back after every deletion is there; one that was forgotten is not."""
    deletions = ending.of("delete")
    for undone in ending.acknowledged("undelete"):
        is_last = all(one.is_acknowledged and one.operation.name in (undone.before or ()) for one in deletions)
        if is_last and NAME not in repositories(ending.disk):
            raise Violation("a repository was acknowledged to be back, and it is not")
        if ending.acknowledged("forget"):
            raise Violation("a repository was brought back and forgotten")


def one_took_it_over(ending: Ending) -> None:
    """Check that of two installations one at most uses the old server's namespace, and that it holds the claim."""
    made = []
    for beneath in INSTALLATIONS:
        value = ending.disk.value(beneath + keys.REPOSITORIES, NAME.encode())
        if value is not None and (record := decode_record(RepositoryRecord, value)).state.value == "active":
            made.append(record.marker)
    if len(made) > 1:
        raise Violation("two installations took one namespace over, and each would collect what the other names")


def namespaces_are_apart(ending: Ending) -> None:
    """Check that no namespace of repositories that were made lies in another, and that one id was given out once."""
    made = [record.namespace_uri for record in repositories(ending.disk).values() if record.state.value == "active"]
    if any(overlap(one, other) for one, other in combinations(made, 2)):
        raise Violation(f"namespaces of repositories overlap: {made}")
    if len(ending.acknowledged("create")) > len(made) and not ending.of("delete"):
        raise Violation("a repository was acknowledged that is not there")


def what_is_in_use_or_kept_is_noted(ending: Ending) -> None:
    """Check that each namespace that others must stay out of has a note, for some look at notes alone."""
    noted = {note.rpartition(b"\0")[2].decode() for note in ending.disk.cells.get(NAMESPACES, {})}
    wanted = {record.uid for record in repositories(ending.disk).values() if record.state.value == "active"}
    for uid, record in deleted_records(ending.disk).items():
        if record.state in (DeletedState.KEPT, DeletedState.RESTORED):
            wanted.add(RepositoryUid(uid))
    if wanted - noted:
        raise Violation(f"the place of a repository that is in use or kept is not noted: {sorted(wanted - noted)}")


# Scenes


def _scene(name: str, *actors: Actor, **how: Any) -> Scene:
    return Scene(name=name, actors=actors, quick=Quick.ALL, **how)


def repository_scenes() -> Iterator[Scene]:
    forgotten: dict[str, Any] = {"prepare": _prepare, "tidy": _tidy}
    forgotten |= {"tidy_checks": (nothing_is_left_of_the_one_before,)}
    again = _doing(DELETE, _create("sim://two"))
    deleter = Actor("d", again, _doing(_create("sim://three")))
    writer, committer = _actor("w", WRITE, knows=True), _actor("c", COMMIT, knows=True)
    for name, others in (
        ("writer of a repository", [writer]),
        ("committer of a repository", [committer]),
        ("setter of protection", [_actor("s", PROTECT, knows=True)]),
        ("writer that commits to a repository", [_actor("w", WRITE, COMMIT, knows=True)]),
        ("committer of a repository that writes", [_actor("c", COMMIT, WRITE, knows=True)]),
        ("writer, committer of a repository", [writer, committer]),
    ):
        made = _scene(f"{name}, deleter that makes it again", *others, deleter, **forgotten)
        yield made.also(what_followed_the_deletion_is_there, quick=Quick.ALL if len(others) == 1 else Quick.NEVER)
    yield from _deletions()
    yield from take_over_scenes()
    # A branch that is made through an old handle is usable while its repository is forgotten.
    branches: Deed = ("branch", _make_branch)
    writes: Deed = ("write to a branch", partial(_write, branch="topic"))
    commits: Deed = ("commit of a branch", partial(_commit, branch="topic"))
    for who, deeds in (("writer", (branches, writes)), ("committer", (branches, commits, writes))):
        brancher, forgetter = _actor("b", *deeds, knows=True), _actor("d", DELETE, FORGET)
        name = f"brancher and {who} of a repository, deleter that forgets it"
        yield _scene(name, brancher, forgetter, **forgotten)
    yield from _places()


def _places() -> Iterator[Scene]:
    """Several want one namespace, or one inside another."""
    outer, inner = _create("sim://one"), _create("sim://one/in", name="other")
    checks = (namespaces_are_apart, what_is_in_use_or_kept_is_noted)
    for name, second in (
        ("two creators of one repository", _create("sim://two")),
        ("two creators, one inside the other", inner),
    ):
        for has_every in (False, True):
            actors = [_actor(letter, deed, has_every=has_every) for letter, deed in (("a", outer), ("b", second))]
            place = f"{name}, in processes that made others" if has_every else name
            yield _scene(place, *actors, checks=checks)

    async def later(ports: SimPorts) -> None:
        ports.clock.ms += CREATING_AGE_MS
        await _doing(outer, has_every=True)(ports)

    made_others, inside = _actor("a", outer, has_every=True), _actor("b", inner, has_every=True)
    nested = "two creators, one inside the other, of which the"
    for name, prepare, actors in (
        (f"{nested} outer made others", None, [made_others, _actor("b", inner)]),
        (f"{nested} inner made others", None, [_actor("a", outer), inside]),
        ("creator that is taken over, creator inside", None, [made_others, Actor("t", later), inside]),
        ("deleter that brings back, creator inside", _prepare, [_actor("d", DELETE, UNDELETE), inside]),
    ):
        yield _scene(name, *actors, prepare=prepare, checks=checks)


INSTALLATIONS: Final = (b"one/", b"two/")
"""What the partitions of two key-value stores begin with."""


def _taking_over(beneath: bytes) -> Program:
    async def program(ports: SimPorts) -> None:
        own = SimStore(whole_batches=True, own=ports.store.own, beneath=beneath)
        create = catalog_of(ports, own).create(NAME, storage_namespace="sim://old", old_server="http://old")
        name = f"{ports.actor}{ports.life}"
        with suppress(NamespaceInUse):
            await ports.operations.run(Operation(name, "create", value=name), create)

    return program


async def _old_server(ports: SimPorts) -> None:
    await Namespace(ports, "sim://old").put(MARKER_KEY, OLD_MARKER)


def take_over_scenes() -> Iterator[Scene]:
    """Two installations migrate one repository of an old server in place."""
    first, second = (Actor(letter, _taking_over(at)) for letter, at in zip("ab", INSTALLATIONS, strict=True))
    name = "two installations take over one namespace of an old server"
    yield _scene(name, first, second, prepare=_old_server, checks=(one_took_it_over,))


def _deletions() -> Iterator[Scene]:
    """Deleted and brought back. The repository holds a write that was acknowledged before."""

    async def deleted(ports: SimPorts) -> None:
        await _prepare(ports)
        await catalog_of(ports).delete(NAME)

    undeleter, upkeep, writer = _actor("u", UNDELETE), _actor("c", CLEAN), _actor("w", WRITE, knows=True)
    checks = (what_came_back_is_whole, what_was_acknowledged_last_counts, what_is_in_use_or_kept_is_noted)
    twice, thrice = _actor("d", DELETE, UNDELETE, DELETE), _actor("v", UNDELETE, DELETE, UNDELETE)
    worlds: tuple[tuple[str, Program, tuple[Actor, ...]], ...] = (
        ("two undeleters", deleted, (undeleter, _actor("v", UNDELETE))),
        ("undeleter, forgetter", deleted, (undeleter, _actor("f", FORGET))),
        ("undeleter that deletes again, cleaner", deleted, (_actor("u", UNDELETE, DELETE), upkeep)),
        ("two deleters, one of which brings back", _prepare, (_actor("d", DELETE), _actor("e", DELETE, UNDELETE))),
        ("writer of a repository, deleter that brings it back", _prepare, (writer, _actor("d", DELETE, UNDELETE))),
        ("cleaner, deleter that brings back and deletes again", _prepare, (upkeep, twice)),
        ("two undeleters, one of which deletes again and brings back", deleted, (undeleter, thrice)),
    )
    for name, prepare, actors in worlds:
        made = _scene(name, *actors, prepare=prepare, tidy=_finish, tidy_checks=checks)
        # A cleaner of repositories meets each of them once, and may fail at each.
        yield made.also(is_lock_free="cleaner" not in name)
