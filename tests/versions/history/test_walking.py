"""Ways through long histories, held equal to a walk of all commits; and how many reads they cost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from lakebed.base import EMPTY_METARANGE, CommitId, NotFound, RepositoryUid
from lakebed.kv import Held
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.runtime import live_ports
from lakebed.versions import BadRef, Commit, RefNotFound, TreeCache, Trees, Versions, keys, place_all
from lakebed.versions.history import history as history_module
from lakebed.versions.history.ancestors import jump_span

Commits = dict[CommitId, Commit]


class CountingStore(MemoryStore):
    """Counts requests for commit records, and the records in them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.records = 0

    def count(self, found: Sequence[bytes]) -> None:
        commits = [key for key in found if key.startswith(keys.COMMIT)]
        self.requests += bool(commits)
        self.records += len(commits)

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        self.count([key])
        return await super().get(partition, key)

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        self.count(keys)
        return await super().get_many(partition, keys)


class Lake:
    """A repository whose commits are written by hand, as several servers see it: each with caches of its own."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.commits: Commits = {}
        self.writer = self.server()

    def server(self) -> Versions:
        objectstore = MemoryObjectStore("mem://tests")
        ports = live_ports()
        trees = Trees(objectstore, TreeCache(1 << 20), ports)
        self.store.requests = self.store.records = 0
        return Versions(uid=RepositoryUid("r"), store=self.store, objectstore=objectstore, trees=trees, ports=ports)

    async def add(self, *parents: CommitId, created_ms: int = 0, is_old: bool = False) -> CommitId:
        commit = Commit(
            generation=1 + max([self.commits[parent].generation for parent in parents], default=0),
            message=str(len(self.commits)),
            committer="",
            created_ms=created_ms,
            metarange_id=EMPTY_METARANGE,
            parents=parents,
            published=True,
        )
        records = self.writer.context.commits
        if not is_old:
            commit = await records.ancestors.placed(commit)
        self.commits[commit.id] = commit
        return await records.write(commit)

    async def line(self, start: CommitId | None, count: int) -> CommitId:
        for _ in range(count):
            start = await self.add(*([] if start is None else [start]))
        assert start is not None
        return start

    def reachable(self, head: CommitId, *, first_parent: bool = False) -> list[CommitId]:
        """In the order of a log, by looking at all."""
        found: set[CommitId] = set()
        waiting = [head]
        while waiting:
            if (id_ := waiting.pop()) not in found:
                found.add(id_)
                parents = self.commits[id_].parents
                waiting += parents[:1] if first_parent else parents
        return sorted(found, key=self.order)

    def order(self, id_: CommitId) -> tuple[int, int, CommitId]:
        return -self.commits[id_].generation, -self.commits[id_].created_ms, id_


@pytest.fixture
async def lake() -> Lake:
    made = Lake()
    first = await made.writer.commits.initialise("main")
    made.commits[first.id] = first
    return made


def test_a_jump_passes_two_of_equal_length_where_they_follow_each_other() -> None:
    up_to = [0]
    for depth in range(1, 5_000):
        parent = depth - 1
        middle = up_to[parent]
        up_to.append(up_to[middle] if parent - middle == middle - up_to[middle] else parent)

    assert [depth - jump_span(depth) for depth in range(5_000)] == up_to


async def grown(lake: Lake, seed: int, count: int = 120) -> list[CommitId]:
    """Return a history of lines, forks and merges; some records are of an older release, without jumps."""
    random_ = random.Random(seed)
    ids = [next(iter(lake.commits))]
    for _ in range(count):
        near = ids[-random_.choice([1, 1, 1, 1, 4, len(ids)]) :]
        parents = [random_.choice([ids[-1], near[0]])]
        if random_.random() < 0.2:
            parents.append(random_.choice(near))
        distinct = [*dict.fromkeys(parents)]
        ids.append(await lake.add(*distinct, created_ms=random_.randrange(3), is_old=random_.random() < 0.02))
    return ids


@pytest.mark.parametrize("seed", range(8))
async def test_every_way_finds_what_a_walk_of_all_commits_finds(lake: Lake, seed: int) -> None:
    ids = await grown(lake, seed)
    random_ = random.Random(seed)
    ancestors = lake.server().context.commits.ancestors

    for _ in range(60):
        head, other = random_.choice(ids), random_.choice(ids)
        chain = lake.reachable(head, first_parent=True)
        count = random_.randrange(len(chain) + 2)
        assert await ancestors.nth(head, count) == (chain[count] if count < len(chain) else None)
        versions = lake.server()
        generation = lake.commits[other].generation
        assert await versions.context.commits.is_in_chain(other, generation, head) == (other in chain)
        common = {*lake.reachable(other)}
        expected = next(id_ for id_ in lake.reachable(head) if id_ in common)
        assert (await versions.history.common_ancestor(head, other)).id == expected
        walked = [commit.id async for commit in versions.history.ancestry([head, other])]
        assert walked == sorted({*lake.reachable(head), *common}, key=lake.order)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("first_parent", [False, True])
async def test_pages_of_a_log_follow_each_other_by_position_and_by_the_last_id(
    lake: Lake, seed: int, first_parent: bool
) -> None:
    ids = await grown(lake, seed)
    expected = lake.reachable(ids[-1], first_parent=first_parent)

    for by_id in (False, True):
        found: list[CommitId] = []
        after = ""
        while True:
            page, position = await lake.server().history.log(ids[-1], after=after, limit=7, first_parent=first_parent)
            found += [commit.id for commit in page]
            if not position:
                break
            assert len(page) == 7
            after = found[-1] if by_id else position
        assert found == expected


async def test_two_lines_without_a_common_commit_have_no_merge_base(lake: Lake) -> None:
    left, right = await lake.line(None, 40), await lake.line(None, 50)

    with pytest.raises(NotFound, match="no common ancestor"):
        await lake.server().history.common_ancestor(left, right)


async def test_a_far_ancestor_costs_a_few_reads(lake: Lake) -> None:
    head = await lake.line(next(iter(lake.commits)), 5_000)

    for steps in (1, 2, 999, 4_321, 5_000):
        versions = lake.server()
        found = await versions.refs.resolve_commit(f"{head}~{steps}")
        assert lake.commits[found].generation == 5_001 - steps
        assert lake.store.requests <= 50
    with pytest.raises(RefNotFound):
        await lake.server().refs.resolve_commit(f"{head}~5001")
    with pytest.raises(BadRef, match="no parent 2"):
        await lake.server().refs.resolve_commit(f"{head}~4321^2")


async def test_the_merge_base_of_two_long_branches_costs_a_few_hundred_reads(lake: Lake) -> None:
    base = await lake.line(next(iter(lake.commits)), 1_000)
    left, right = await lake.line(base, 3_000), await lake.line(base, 1_500)
    merged = await lake.add(left, base)
    left = await lake.line(merged, 500)

    versions = lake.server()

    assert (await versions.history.common_ancestor(left, right)).id == base
    assert lake.store.requests <= 600


async def test_a_page_of_the_log_is_read_in_few_batches_wherever_it_begins(lake: Lake) -> None:
    head = await lake.line(next(iter(lake.commits)), 5_000)
    chain = lake.reachable(head)

    for after in (0, 1, 2_500, 4_800):
        versions = lake.server()
        page, _ = await versions.history.log(head, after=chain[after - 1] if after else "", limit=100)
        assert [commit.id for commit in page] == chain[after : after + 100]
        assert lake.store.requests <= 75
        assert lake.store.records <= 250


async def test_a_page_that_a_filter_makes_thin_ends_early_and_the_next_one_goes_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "SEARCHED_MAX", 50)
    head = await lake.line(next(iter(lake.commits)), 180)
    versions = lake.server()

    pages = []
    after, is_first = "", True
    while is_first or after:
        page, after = await versions.history.log(head, after=after, prefixes=[b"a/"])
        pages.append(page)
        is_first = False

    assert pages == [[]] * 4


@pytest.mark.parametrize("after", ["x", "0" * 64, "-", "../" * 400, "a-b-c"])
async def test_a_log_behind_a_position_that_is_none_is_empty(lake: Lake, after: str) -> None:
    assert await lake.server().history.log("main", after=after) == ([], "")


async def test_jumps_of_a_restored_dump_are_made_anew(lake: Lake) -> None:
    """The id does not vouch for them: a dump that was altered could lead anywhere."""
    ids = await grown(lake, 3)
    whole = {id_: lake.commits[id_] for id_ in ids}

    forged = {id_: replace(commit, depth=7, jump="f" * 64, merges=9) for id_, commit in whole.items()}

    placed = place_all(forged)
    assert {commit.jump for commit in placed.values()} <= {*ids, ""}
    for id_, commit in placed.items():
        chain = lake.reachable(id_, first_parent=True)
        assert commit.depth == len(chain) - 1
        assert commit.merges == sum(len(whole[above].parents) > 1 for above in chain)
        if commit.depth:
            assert (commit.jump or commit.parents[0]) == chain[jump_span(commit.depth)]


@pytest.mark.parametrize("seed", range(6))
async def test_the_distance_of_two_refs_is_that_of_a_walk_of_all_commits(lake: Lake, seed: int) -> None:
    random_ = random.Random(seed)
    ids = list(lake.commits)
    for _ in range(60):
        parents = random_.sample(ids[-8:], k=min(len(ids), random_.choice([1, 1, 1, 2])))
        ids.append(await lake.add(*parents, created_ms=random_.randrange(5), is_old=random_.random() < 0.1))
    versions = lake.server()

    for _ in range(40):
        left, right = random_.choice(ids), random_.choice(ids)
        ours, theirs = set(lake.reachable(left)), set(lake.reachable(right))
        distance = await versions.history.distance(left, right)
        assert (distance.ahead, distance.behind) == (len(ours - theirs), len(theirs - ours))
        assert distance.is_complete


async def test_the_distance_of_long_lines_takes_few_reads(lake: Lake) -> None:
    start = await lake.line(next(iter(lake.commits)), 50)
    ahead, behind = await lake.line(start, 700), await lake.line(start, 3_000)
    versions = lake.server()

    distance = await versions.history.distance(ahead, behind)

    assert (distance.ahead, distance.behind, distance.is_complete) == (700, 3_000, True)
    assert lake.store.records < 150


async def test_a_distance_that_is_too_far_to_count_is_a_lower_bound(lake: Lake) -> None:
    start = next(iter(lake.commits))
    head = start
    for _ in range(20):
        head = await lake.add(head, await lake.line(head, 1))

    distance = await lake.server().history.distance(head, start, steps_max=10)

    assert not distance.is_complete
    assert 0 < distance.ahead < 40
    assert distance.behind == 0
