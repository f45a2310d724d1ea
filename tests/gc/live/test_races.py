"""Both collections raced against everything that can name an address or a commit, on simulated ports.

Two promises (docs/design/protocols.md, "Invariants"). Nothing reachable is deleted: whatever a branch, a tag or staging
shows at the end is there. Garbage goes: when all is quiet, one full run later nothing else is left.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from lakebed.base import Entry, LakebedError, RepositoryUid
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.messages import Mode
from lakebed.gc.rules import DAY_MS, MetadataRule, days_rules
from lakebed.versions import CommitExpired, ContentsGone, NoChanges, Note, Options, TreeCache, Trees, Versions
from sim import DAWN_MS, Actor, Faults, Program, Scene, SimPorts, Violation, run_seed
from sim.ports.ports import SimDeleter
from tests.gc.shipped import Collector, MetadataCollector

SEEDS = 12
FAULTS = Faults(lose_answer=0.01, lose_request=0.01, crash=0.004, delay=0.02, refuse=0.004)
TINY_PAGES = ServiceOptions(scan_page=2, page_rows=2, dead_owner_age_ms=30 * DAY_MS)


class Server:
    """One server process of an actor: an instance of its own over the shared disk."""

    def __init__(self, ports: SimPorts, options: ServiceOptions = TINY_PAGES) -> None:
        self.ports = ports
        self.versions = Versions(
            uid=RepositoryUid("r"),
            store=ports.store,
            objectstore=ports.objectstore,
            trees=Trees(ports.objectstore, TreeCache(1 << 22), ports.ports),
            ports=ports.ports,
            options=Options(owner=ports.actor, branch_cache_ms=0),
        )
        self.service = CollectionService(self.versions, options)

    async def put(self, branch: str, path: str) -> None:
        async def store_body(address: str) -> Entry:
            stored = await self.ports.objectstore.put(address, address.encode())
            return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=DAWN_MS)

        await self.versions.staging.upload(branch, path.encode(), store_body)

    async def commit(self, branch: str, *, days_ago: float = 0) -> None:
        created_ms = DAWN_MS - int(days_ago * DAY_MS)
        await self.versions.commits.commit(branch, Note(message="m", committer="me", created_ms=created_ms))

    def collector(self) -> Collector:
        return Collector(self.versions, self.service, SimDeleter().delete)


def acting(*steps: Callable[[Server], Awaitable[object]]) -> Program:
    """A program of these steps, one after the other; a step that fails is left at that.

    Before a step it may let others go on for a while, as the seed says: a collection takes many more steps than what
    it races with, and each part of it must be met.
    """

    async def program(ports: SimPorts) -> None:
        server = Server(ports)
        patience = random.Random(f"{ports.seed}/{ports.actor}/{ports.life}")
        for step in steps:
            for _ in range(patience.choice((0, 0, 15, 40, 80))):
                await ports.pause()
            try:
                await step(server)
            except LakebedError:
                continue

    return program


def put(path: str, branch: str = "main") -> Callable[[Server], Awaitable[object]]:
    return lambda server: server.put(branch, path)


def commit(branch: str = "main") -> Callable[[Server], Awaitable[object]]:
    return lambda server: server.commit(branch)


def rename(source: str, target: str) -> Callable[[Server], Awaitable[object]]:
    async def step(server: Server) -> None:
        await server.versions.copies.copy("main", source.encode(), "main", target.encode())
        await server.versions.staging.delete("main", source.encode())

    return step


async def link(server: Server) -> None:
    address = await server.versions.uploads.issue("main")
    stored = await server.ports.objectstore.put(address, b"linked")
    entry = Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=DAWN_MS)
    await server.versions.uploads.link("main", b"l", entry)


async def collect_uncommitted(server: Server) -> None:
    await server.collector().collect_uncommitted()


async def collect_committed(server: Server) -> None:
    await server.collector().collect_committed()


async def collect_metadata(server: Server) -> frozenset[str]:
    """Everything is old enough, and nobody is given time to read."""
    rule = MetadataRule(file_age_ms_min=-DAY_MS, runs_newest=0, run_age_ms_min=-DAY_MS)
    service = CollectionService(server.versions, ServiceOptions(scan_page=2, page_rows=2, readers_grace_ms=0))
    return await MetadataCollector(server.versions, service, SimDeleter().delete, rule).collect()


def put_again(path: str) -> Callable[[Server], Awaitable[object]]:
    """The very same entry each time: content that returns makes files of the same name."""
    entry = Entry(address=f"s3://elsewhere/{path}", size_bytes=1, checksum=path, modified_ms=DAWN_MS)
    return lambda server: server.versions.staging.put("main", path.encode(), entry)


def delete(path: str) -> Callable[[Server], Awaitable[object]]:
    return lambda server: server.versions.staging.delete("main", path.encode())


async def close(server: Server) -> None:
    await server.versions.slices.end()


async def clean(server: Server) -> None:
    await server.versions.cleanup.clean()


async def past(server: Server) -> list[str]:
    """Ids of main's commits, oldest first, but the empty one it began with."""
    commits, _ = await server.versions.history.log("main", after="", limit=100, first_parent=True)
    return [found.id for found in reversed(commits) if found.metarange_id]


async def prepare(ports: SimPorts) -> None:
    """Three commits, 30, 20 and 10 days old, each with `a` of its own; `s` staged over an older `s`; slices closed."""
    server = Server(ports)
    await server.versions.commits.initialise("main")
    for days_ago in (30, 20, 10):
        await server.put("main", "a")
        await server.put("main", f"b{days_ago}")
        await server.commit("main", days_ago=days_ago)
    await server.put("main", "s")
    await server.put("main", "s")
    await server.service.rules.write(days_rules(1))
    await server.versions.slices.end()


async def live_addresses(server: Server) -> set[str]:
    """What every branch shows, what lies under that in its head, and what every tag shows."""
    branches, _ = await server.versions.refs.list_branches()
    tags, _ = await server.versions.refs.list_tags()
    shown: set[str] = set()
    names = [branch.name for branch in branches]
    for ref in [*names, *(f"{name}@" for name in names), *(tag.name for tag in tags)]:
        listing = await server.versions.staging.list(ref, limit=1000)
        entries = await server.versions.staging.get_many(ref, [key for key, _ in listing.items])
        shown |= {entry.address for entry in entries if entry is not None and entry.address.startswith("data/")}
    return shown


async def objects(ports: SimPorts) -> set[str]:
    return {stat.key async for page in ports.objectstore.list("data/") for stat in page}


async def tidy(ports: SimPorts) -> None:
    """Nothing shown is missing; then, a month later with all quiet, full runs leave nothing that is not needed."""
    server = Server(ports, ServiceOptions())
    missing = await live_addresses(server) - await objects(ports)
    if missing:
        raise Violation(f"deleted although reachable: {sorted(missing)}")
    ports.clock.ms += 60 * DAY_MS
    await server.service.abandon_dead_runs()
    # What a dead committer sealed stays staged, under whatever replaced it since, until somebody commits.
    for branch in (await server.versions.refs.list_branches())[0]:
        with suppress(NoChanges):
            await server.commit(branch.name)
    ports.clock.ms += 60 * DAY_MS
    for _ in range(3):
        await server.versions.cleanup.clean()
    await server.collector().finish()
    await server.collector().collect_committed()
    await server.collector().collect_uncommitted()
    shown, left = await live_addresses(server), await objects(ports)
    if shown - left:
        raise Violation(f"deleted although reachable, at last: {sorted(shown - left)}")
    if left - shown:
        raise Violation(f"garbage stayed: {sorted(left - shown)}")


def race(seed: int, **programs: Program) -> None:
    actors = [
        Actor(name, program, restart=program if name.startswith("collector") else None)
        for name, program in programs.items()
    ]
    run_seed(Scene(name="collection", prepare=prepare, actors=actors, tidy=tidy), seed, faults=FAULTS)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_clean_run_beside_writers_renames_links_commits_and_cleaning(seed: int) -> None:
    race(
        seed,
        collector=acting(collect_uncommitted, clean),
        writer=acting(put("s"), put("n"), rename("s", "t"), put("t")),
        committer=acting(commit(), link, commit(), clean),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_runs_that_go_on_from_one_another_beside_writers_renames_links_and_commits(seed: int) -> None:
    async def collect_optimised(server: Server) -> None:
        await server.collector().collect_uncommitted(Mode.AUTOMATIC)

    race(
        seed,
        collector=acting(collect_optimised, close, collect_optimised, clean, collect_optimised),
        writer=acting(put("s"), put("n"), close, rename("s", "t"), put("t")),
        committer=acting(commit(), link, close, commit(), clean),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_clean_run_beside_resets_freezes_and_a_collector_that_takes_the_owners_for_dead(seed: int) -> None:
    async def impatient(server: Server) -> None:
        server.ports.clock.ms += 40 * DAY_MS
        await server.collector().collect_uncommitted()

    race(
        seed,
        collector=acting(impatient),
        writer=acting(put("s"), put("n"), rename("n", "s")),
        committer=acting(
            commit(), lambda server: server.versions.resets.reset_object("main", b"s"), put("z"), commit()
        ),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_committed_run_beside_branches_tags_reverts_resets_and_copies_from_old_commits(seed: int) -> None:
    async def branch(server: Server) -> None:
        await server.versions.refs.create_branch("late", (await past(server))[0])

    async def tag(server: Server) -> None:
        await server.versions.refs.create_tag("v1", (await past(server))[1])

    async def revert(server: Server) -> None:
        await server.versions.merges.revert("main", (await past(server))[-1], Note(committer="me"), parent_number=1)

    async def copy(server: Server) -> None:
        await server.versions.copies.copy((await past(server))[0], b"a", "main", b"c", shallow=True)

    async def hard_reset(server: Server) -> None:
        await server.versions.resets.hard_reset("main", (await past(server))[0], force=True)

    race(
        seed,
        collector=acting(collect_committed),
        brancher=acting(branch, tag) if seed % 2 else acting(hard_reset, put("h"), commit()),
        writer=acting(copy, put("n"), commit(), revert),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_collections_at_once_and_a_change_of_the_rules(seed: int) -> None:
    async def loosen(server: Server) -> None:
        await server.service.rules.write(days_rules(25))

    race(
        seed,
        collector_a=acting(collect_committed, collect_uncommitted),
        collector_b=acting(collect_uncommitted, collect_committed),
        writer=acting(put("s"), commit(), loosen, rename("s", "t")),
    )


async def tidy_metadata(ports: SimPorts) -> None:
    """Besides: the contents of every branch can be read, and files that no commit needs go."""
    await tidy(ports)
    server = Server(ports, ServiceOptions(readers_grace_ms=0))
    for _ in range(2):
        await collect_metadata(server)
    reader = Server(ports).versions
    for branch in (await reader.refs.list_branches())[0]:
        await reader.staging.list(f"{branch.name}@")
    if gone := [key for key in await collect_metadata(Server(ports)) if "/gc/" not in key]:
        raise Violation(f"files of no tree stayed: {gone}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_collections_of_metadata_beside_the_others_and_commits_of_what_was_there_before(seed: int) -> None:
    async def revert(server: Server) -> None:
        await server.versions.merges.revert("main", "main", Note(committer="me"))

    async def merge(server: Server) -> None:
        await server.versions.refs.create_branch("side", (await past(server))[-1])
        await server.put("side", "m")
        await server.commit("side")
        await server.versions.merges.merge("side", "main", Note(committer="me"))

    collectors = {
        "collector_a": acting(collect_committed, collect_metadata),
        "collector_b": acting(collect_metadata, collect_uncommitted, collect_metadata),
    }
    writers = {
        "writer": acting(put_again("x"), commit(), delete("x"), commit(), put_again("x"), commit()),
        "brancher": acting(merge, revert) if seed % 2 else acting(put_again("y"), commit(), revert, revert),
    }
    programs = {**collectors, **writers}
    actors = [Actor(name, program, restart=program if "_" in name else None) for name, program in programs.items()]
    run_seed(Scene(name="metadata", prepare=prepare, actors=actors, tidy=tidy_metadata), seed, faults=FAULTS)


async def prepare_parted(ports: SimPorts) -> None:
    """main and dev parted 40 days ago at a commit that goes, as all but the heads do."""
    server = Server(ports)
    await server.versions.commits.initialise("main")
    await server.put("main", "shared")
    await server.commit("main", days_ago=40)
    await server.versions.refs.create_branch("dev", "main")
    for days_ago in (30, 20):
        for branch in ("main", "dev"):
            await server.put(branch, f"{branch}/{days_ago}")
            await server.commit(branch, days_ago=days_ago)
    await server.service.rules.write(days_rules(1))
    await server.versions.slices.end()


@pytest.mark.parametrize("seed", [*range(12), 12, 43, 48])  # the last three show the bug `bases-dropped`
def test_two_live_branches_merge_whatever_collections_take_meanwhile(seed: int) -> None:
    """Squashed, so that they compare with the commit where they parted each time."""

    def merge(source: str, branch: str) -> Callable[[Server], Awaitable[object]]:
        async def step(server: Server) -> None:
            try:
                await server.versions.merges.merge(source, branch, Note(committer="me"), squash=True)
            except (CommitExpired, ContentsGone) as error:
                raise Violation(f"{source} cannot be merged into {branch}: {error}") from error

        return step

    programs = {
        "collector_a": acting(collect_committed, collect_metadata),
        "collector_b": acting(collect_metadata, collect_committed, collect_metadata),
        "merger": acting(
            *(step for n in range(5) for step in (put(f"m{n}", "dev"), commit("dev"), merge("dev", "main")))
        ),
        "writer": acting(*(step for n in range(5) for step in (put(f"w{n}"), commit(), merge("main", "dev")))),
    }
    actors = [Actor(name, program, restart=program if "_" in name else None) for name, program in programs.items()]
    run_seed(Scene(name="merging", prepare=prepare_parted, actors=actors, tidy=tidy_metadata), seed, faults=FAULTS)
