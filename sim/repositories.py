"""A repository that is deleted and made again under its name, while other processes still use the one before.

Each actor is a process with a catalog of its own, whose handles stay: clocks do not move here. What is acknowledged
after the deletion was is in the repository that has the name then, and in the end nothing is left of the one before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from lakebed.base import EMPTY_METARANGE, Entry, RepositoryUid
from lakebed.catalog import Catalog, Repository
from lakebed.catalog.namespaces import overlap
from lakebed.catalog.records import DELETED_REPOSITORIES, BranchProtection, RepositoryRecord
from lakebed.objectstore import ObjectStat, ObjectStore
from lakebed.ranges import metarange_key
from lakebed.versions import BranchRecord, Commit, Options, Versions, decode_cell, decode_record, is_gone, keys

from .actors import Actor, Ending, Program, Scene, Violation
from .disk import Disk
from .exploring import NO_BUDGET, Budget
from .operations import Operation
from .ports import SimObjectStore, SimPorts
from .trees import SimTrees

NAME: Final = "lake"
OLD_MS: Final = 10_000_000
"""Every request has ended by then."""

Act = Callable[[Catalog, str], Coroutine[Any, Any, Any]]


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
        return await super().stat(self._folder + key)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        after = self._folder + start_after if start_after else ""
        async for page in super().list(self._folder + prefix, start_after=after):
            yield page


def _catalog(ports: SimPorts) -> Catalog:
    def open_namespace(uri: str) -> ObjectStore:
        return Namespace(ports, uri)

    def make_versions(uid: RepositoryUid, objectstore: ObjectStore) -> Versions:
        assert isinstance(objectstore, SimObjectStore)
        return Versions(
            uid=uid,
            store=ports.store,
            objectstore=objectstore,
            trees=SimTrees(objectstore),
            ports=ports.ports,
            options=Options(owner=ports.actor),
        )

    return Catalog(store=ports.store, ports=ports.ports, open_namespace=open_namespace, make_versions=make_versions)


def _doing(*deeds: tuple[str, Act], knows: bool = False) -> Program:
    """Do these, each named by its kind and a letter. `knows`: the process has used the repository before."""

    async def program(ports: SimPorts) -> None:
        catalog = _catalog(ports)
        if knows:
            await (await catalog.get(NAME)).versions.refs.get_branch("main")
        for number, (kind, act) in enumerate(deeds):
            name = f"{ports.actor}{ports.life}{number}"
            await ports.operations.run(Operation(name, kind, value=name), act(catalog, name))

    return program


async def _delete(catalog: Catalog, _: str) -> None:
    await catalog.delete(NAME)


def _create(namespace: str, *, name: str = NAME) -> Act:
    async def act(catalog: Catalog, _: str) -> None:
        await catalog.create(name, storage_namespace=namespace)

    return act


async def _write(catalog: Catalog, name: str) -> None:
    entry = Entry(address=f"s3://elsewhere/{name}", size_bytes=1, checksum=name, modified_ms=0)
    await (await _handle(catalog)).versions.staging.put("main", name.encode(), entry)


async def _commit(catalog: Catalog, name: str) -> str:
    return (await (await _handle(catalog)).versions.commits.commit("main", message=name, committer="sim")).id


async def _protect(catalog: Catalog, name: str) -> None:
    await (await _handle(catalog)).set_protection([name])


async def _handle(catalog: Catalog) -> Repository:
    return await catalog.get(NAME)


async def _prepare(ports: SimPorts) -> None:
    await _doing(("create", _create("sim://one")), ("write", _write))(ports)


async def _tidy(ports: SimPorts) -> None:
    """Once to finish deletions, and once more when every request has ended."""
    for _ in range(2):
        ports.clock.ms += OLD_MS
        await _catalog(ports).clean()


# Checks


def _repositories(disk: Disk) -> dict[str, RepositoryRecord]:
    cells = disk.cells.get(keys.REPOSITORIES, {})
    return {
        name.decode(): decode_record(RepositoryRecord, disk.value(keys.REPOSITORIES, name) or b"") for name in cells
    }


def what_followed_the_deletion_is_there(ending: Ending) -> None:
    """What began after a deletion was acknowledged, and was acknowledged itself, is in the repository of now."""
    deletions = {record.operation.name for record in ending.acknowledged("delete")}
    for kind, there in (("write", _written), ("commit", _commits), ("protect", _protected)):
        for record in ending.acknowledged(kind):
            if deletions & (record.before or frozenset()):
                now = _repositories(ending.disk).get(NAME)
                assert record.ended is not None
                wanted = record.ended.value if kind == "commit" else record.operation.value
                if now is None or wanted not in there(ending.disk, now):
                    raise Violation(f"{record.operation.name} was acknowledged, and its repository was gone")


def _written(disk: Disk, repository: RepositoryRecord) -> set[Any]:
    """What is staged, and what the head has."""
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
    known = {record.uid for record in _repositories(ending.disk).values()}
    for partition, cells in ending.disk.cells.items():
        uid = partition.decode().partition("/")[0]
        if cells and partition not in (keys.REPOSITORIES, DELETED_REPOSITORIES) and uid not in known:
            raise Violation(f"{len(cells)} records of a deleted repository stay in {partition.decode()}")


def namespaces_are_apart(ending: Ending) -> None:
    """Of repositories that were made, no namespace lies in another; and one id was given out once."""
    made = [record.namespace_uri for record in _repositories(ending.disk).values() if record.state.value == "active"]
    if any(overlap(one, other) for one, other in combinations(made, 2)):
        raise Violation(f"namespaces of repositories overlap: {made}")
    if len(ending.acknowledged("create")) > len(made):
        raise Violation("a repository was acknowledged that is not there")


# Scenes


def repository_worlds() -> Iterator[tuple[Scene, Budget, bool]]:
    """With its budget, and whether the tests walk it."""
    again = _doing(("delete", _delete), ("create", _create("sim://two")))
    resumed = _doing(("create", _create("sim://three")))
    deleter = Actor("d", again, resumed)
    actors = {
        "writer of a repository, deleter that makes it again": [Actor("w", _doing(("write", _write), knows=True))],
        "committer of a repository, deleter that makes it again": [Actor("c", _doing(("commit", _commit), knows=True))],
        "setter of protection, deleter that makes it again": [Actor("s", _doing(("protect", _protect), knows=True))],
        "writer that commits to a repository, deleter that makes it again": [
            Actor("w", _doing(("write", _write), ("commit", _commit), knows=True))
        ],
        "committer of a repository that writes, deleter that makes it again": [
            Actor("c", _doing(("commit", _commit), ("write", _write), knows=True))
        ],
        "writer, committer of a repository, deleter that makes it again": [
            Actor("w", _doing(("write", _write), knows=True)),
            Actor("c", _doing(("commit", _commit), knows=True)),
        ],
    }
    for name, others in actors.items():
        made = Scene(
            name=name,
            actors=(*others, deleter),
            prepare=_prepare,
            tidy=_tidy,
            checks=(what_followed_the_deletion_is_there,),
            tidy_checks=(nothing_is_left_of_the_one_before,),
        )
        for budget in (NO_BUDGET, Budget(crashes=1), Budget(losses=1), Budget(late=1)):
            yield made, budget, len(others) == 1
    creators = {
        "two creators of one repository": (_create("sim://one"), _create("sim://two")),
        "two creators, one inside the other": (_create("sim://one"), _create("sim://one/in", name="other")),
    }
    for name, (one, two) in creators.items():
        first, second = (Actor(letter, _doing(("create", act))) for letter, act in (("a", one), ("b", two)))
        made = Scene(name=name, actors=(first, second), checks=(namespaces_are_apart,))
        for budget in (NO_BUDGET, Budget(crashes=1), Budget(losses=1), Budget(late=1)):
            yield made, budget, True
