"""Restored repositories and collections: all of it shipped code. The routes: tests/server/rest/test_dumps.py."""

from __future__ import annotations

import pytest

from lakebed.base import Conflict, RunId
from lakebed.catalog import DumpIds, Repository
from lakebed.gc.live import CollectionService, OtherInstallation, ServiceOptions
from lakebed.gc.messages import EXPIRED, Apply, Expire, Mode, RunKind, StartRun, manifest_of
from lakebed.gc.rules import MetadataRule, days_rules
from lakebed.kv import Predicate
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
from lakebed.versions import (
    BranchRecord,
    Commit,
    ContentsGone,
    Note,
    SliceRecord,
    SliceState,
    TagRecord,
    Versions,
    keys,
)
from tests.gc.live.test_deleted import Installation
from tests.gc.shipped import Collector, MetadataCollector

EVERYTHING = MetadataRule(file_age_ms_min=-(10**13), runs_newest=0, run_age_ms_min=-(10**13))


@pytest.fixture
def here() -> Installation:
    return Installation()


def service_of(made: Repository) -> CollectionService:
    return CollectionService(made.versions, options=ServiceOptions(readers_grace_ms=0))


def collector(made: Repository) -> Collector:
    store = made.objectstore
    assert isinstance(store, MemoryObjectStore)
    return Collector(made.versions, service_of(made), MemoryDeleter(store).delete)


async def closed(made: Repository) -> None:
    """No slice of it is open any more, as when its server stopped."""
    await made.versions.slices.end()


async def distrust(versions: Versions) -> None:
    await CollectionService(versions).installation.distrust(default_branch="main")


async def copy(here: Installation, to: str = "mem://copy") -> None:
    source, target = here.open("mem://lake"), here.open(to)
    async for page in source.list(""):
        for stat in page:
            await target.put(stat.key, await source.get(stat.key))


async def restored(here: Installation, made: Repository, ids: DumpIds) -> Repository:
    """Over a copy of all that the namespace has."""
    await copy(here)
    bare = await here.catalog.create("copy", storage_namespace="mem://copy", bare=distrust)
    await bare.dumps.restore(ids)
    return bare


async def test_collections_take_what_no_ref_of_the_restored_repository_names_and_nothing_else(
    here: Installation,
) -> None:
    made = await here.repository()  # `a` is committed, `b` is not
    await closed(made)
    bare = await restored(here, made, await made.dumps.dump())
    with pytest.raises(OtherInstallation):
        await collector(bare).collect_uncommitted()
    await service_of(bare).adopting()

    garbage = (await collector(bare).collect_uncommitted(Mode.CLEAN)).garbage

    assert len(garbage) == 1
    assert [key for key in await here.keys("mem://copy") if key in garbage] == []
    assert await bare.objects.read(await bare.objects.open("main", "a")) == b"1"
    assert await made.objects.read(await made.objects.open("main", "b")) == b"2"


async def test_metadata_of_a_restored_repository_stays(here: Installation) -> None:
    made = await here.repository()
    bare = await restored(here, made, await made.dumps.dump())
    await service_of(bare).adopting()
    trees = {key for key in await here.keys("mem://copy") if "anges/" in key}
    store = bare.objectstore
    assert isinstance(store, MemoryObjectStore)

    await MetadataCollector(bare.versions, service_of(bare), MemoryDeleter(store).delete, EVERYTHING).collect()

    assert {key for key in await here.keys("mem://copy") if "anges/" in key} == trees


async def test_a_commit_whose_data_went_is_restored_as_one(here: Installation) -> None:
    made = await here.repository()
    first = (await made.versions.refs.get_branch("main")).commit_id
    await made.changes.commit("main", Note(message="b", committer="ann"))
    await made.objects.upload("main", "a", b"3")
    await made.changes.commit("main", Note(message="a again", committer="ann"))
    await closed(made)
    service = service_of(made)
    await service.rules.write(days_rules(default_days=1, branch_days={}))
    here.days(30)
    await collector(made).collect_committed()
    store = made.objectstore
    assert isinstance(store, MemoryObjectStore)
    here.days(2)
    await MetadataCollector(made.versions, service, MemoryDeleter(store).delete, EVERYTHING).collect()

    bare = await restored(here, made, await made.dumps.dump())

    log, _ = await bare.versions.history.log("main")
    assert [one.id for one in log] == [one.id for one in (await made.versions.history.log("main"))[0]]
    assert first in [commit.id for commit in log]
    with pytest.raises(ContentsGone):
        await bare.versions.retired.check_contents([first])
    assert await bare.objects.read(await bare.objects.open("main", "a")) == b"3"


async def test_a_restore_that_died_goes_on(here: Installation) -> None:
    """It died before its last branch."""
    made = await here.repository()
    await made.changes.create_tag("v1", "main")
    await made.changes.create_branch("dev", "main")
    ids = await made.dumps.dump()
    bare = await restored(here, made, ids)
    await bare.versions.context.delete(keys.BRANCH + b"main")
    bare.versions.context.branches.forget("main")

    await bare.dumps.restore(ids)

    assert (await bare.versions.refs.list_branches()) == (await made.versions.refs.list_branches())
    assert (await bare.versions.refs.list_tags()) == (await made.versions.refs.list_tags())


async def test_a_restore_whose_trees_a_collection_takes_meanwhile_makes_no_ref(here: Installation) -> None:
    made = await here.repository()
    ids = await made.dumps.dump()
    bare = await here.catalog.create("copy", storage_namespace="mem://elsewhere", bare=distrust)
    await copy(here, "mem://elsewhere")
    head = await made.versions.history.get_commit((await made.versions.refs.get_branch("main")).commit_id)
    await bare.versions.retired.retire(RunId("r1"), ids=[head.metarange_id], runs=[])

    with pytest.raises(Conflict, match="a collection of metadata takes files of the dump's trees:"):
        await bare.dumps.restore(ids)

    assert (await bare.versions.refs.list_branches())[0] == []


@pytest.mark.parametrize("kind", [RunKind.UNCOMMITTED, RunKind.COMMITTED, RunKind.METADATA, RunKind.LIFECYCLE])
@pytest.mark.parametrize("is_copied_first", [True, False])
async def test_nothing_of_a_bare_repository_is_collected_before_its_restore_is_at_its_end(
    here: Installation, kind: RunKind, is_copied_first: bool
) -> None:
    made = await here.repository()
    await closed(made)
    ids = await made.dumps.dump()
    if is_copied_first:
        await copy(here)
    bare = await here.catalog.create("copy", storage_namespace="mem://copy", bare=distrust)
    with pytest.raises(OtherInstallation):
        await service_of(bare).start(StartRun(kind=kind))
    await service_of(bare).adopting()
    await copy(here)

    with pytest.raises(Conflict, match="yet: restore a dump into it first"):
        await service_of(bare).start(StartRun(kind=kind))
    await bare.dumps.restore(ids)

    await service_of(bare).adopting()
    assert (await service_of(bare).start(StartRun(kind=kind))).kind is kind


async def test_a_run_of_a_bare_repository_goes_nowhere(here: Installation) -> None:
    """A server of an earlier release may have begun it."""
    bare = await here.catalog.create("copy", storage_namespace="mem://copy", bare=distrust)
    service = service_of(bare)
    await service.adopting()
    nothing = manifest_of(EXPIRED, "f/", [])

    with pytest.raises(Conflict, match="yet: restore a dump into it first"):
        await service.apply("r1", Apply(kind=RunKind.COMMITTED, plan="", rules_version=1))
    with pytest.raises(Conflict, match="yet: restore a dump into it first"):
        await service.expire("r1", Expire(commits=nothing, rules_version=1, planned_ms=0))


async def test_a_deleted_repository_that_was_never_restored_is_collected(here: Installation) -> None:
    await here.repository()
    await copy(here)
    await here.catalog.create("copy", storage_namespace="mem://copy", bare=distrust)
    await here.catalog.delete("copy")
    service = await here.service("copy")
    await service.adopting()

    assert (await service.start(StartRun(kind=RunKind.DELETED))).kind is RunKind.DELETED


async def test_retention_counts_restored_commits_from_the_restore_on(here: Installation) -> None:
    """No ref names them until it is at its end, and none will if it died."""
    made = await here.repository()
    here.days(100)
    bare = await restored(here, made, await made.dumps.dump())

    dates = [(one.written_ms, one.counted_ms) async for _, one in bare.versions.inventory.every(Commit)]

    assert set(dates) == {(here.clock.ms, here.clock.ms)}


async def test_a_restore_that_is_repeated_leaves_the_records_of_a_repository_in_use(here: Installation) -> None:
    made = await here.repository()
    bare = await restored(here, made, ids := await made.dumps.dump())
    await bare.objects.upload("main", "c", b"3")
    await here.catalog.get("lake")
    before = [item async for item in bare.versions.context.scan(b"")]
    here.days(1)

    await bare.dumps.restore(ids)
    await made.dumps.restore(ids)

    assert [item async for item in bare.versions.context.scan(b"")] == before
    slices = [one.state async for _, one in made.versions.inventory.every(SliceRecord)]
    assert SliceState.OPEN in slices


class Died(Exception):
    """Of a process that is gone."""


class Dying(MemoryStore):
    """Its process dies once, after it made this record usable."""

    dies_after = b""

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        written = await super().set_if(partition, key, value, predicate)
        if key == self.dies_after and predicate is not None:
            self.dies_after = b""
            raise Died
        return written


async def test_a_hidden_branch_of_a_restore_that_died_stays_hidden(here: Installation) -> None:
    """Its next try takes no notice of a branch that is there."""
    store = here.store = Dying()
    here.catalog = here.server()
    made = await here.repository()
    await made.changes.create_branch("a", "main", hidden=True)
    ids = await made.dumps.dump()
    await copy(here)
    bare = await here.catalog.create("copy", storage_namespace="mem://copy", bare=distrust)
    store.dies_after = b"branch/a"
    with pytest.raises(Died):
        await bare.dumps.restore(ids)
    assert "a" in [branch.name for branch in (await bare.versions.refs.list_branches())[0]]

    await bare.dumps.restore(ids)

    assert await bare.settings.hidden_branches() == {"a"}


async def test_branches_of_flows_at_work_are_in_no_dump(here: Installation) -> None:
    made = await here.repository()
    await made.changes.create_branch("import-1", "main", work_of="import")

    bare = await restored(here, made, await made.dumps.dump())

    assert [branch.name for branch in (await bare.versions.refs.list_branches())[0]] == ["main"]
    assert await made.settings.hidden_branches() == {"import-1"}


async def test_the_logs_of_restored_refs_name_who_restored_them(here: Installation) -> None:
    made = await here.repository()
    await made.changes.create_tag("v1", "main")
    ids = await made.dumps.dump()
    await copy(here)
    bare = await here.catalog.create("copy", storage_namespace="mem://copy", bare=distrust)

    await bare.dumps.restore(ids, by="ann")

    tag = await bare.versions.inventory.find(TagRecord, "v1")
    branch = await bare.versions.inventory.find(BranchRecord, "main")
    assert [one.moved.by for one in (tag, branch) if one and one.moved] == ["ann", "ann"]
