"""One repository comes over from an old server that is a few lines of this file: what is left, refused or compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakebed.base import CONTENT_TYPE_DEFAULT, Invalid, NotFound, Unavailable
from lakebed.catalog import Catalog, Repository
from lakebed.client import Client, ErrorAnswer, Unreachable
from lakebed.migration import SourceRepository, answers, flow, migrate_repository
from lakebed.migration.flow import MigrationDiffers
from lakebed.objectstore import read_adoption
from lakebed.versions import Note
from lakebed.wire import Commit, ObjectStats, Ref
from lakebed.wire import Repository as TheirRepository

NOTE = Note(message="m", committer="ann")


class Old:
    """An old server's repository: commits in a row on `main`, each adding some paths."""

    def __init__(self, uri: str, *adds: Sequence[str]) -> None:
        self.uri = uri
        self.record = TheirRepository(
            creation_date=1, default_branch="main", id="lake", read_only=False, storage_namespace=uri
        )
        self.name, self.server = "lake", "http://old"
        self.adds = [*adds]
        self.tagged: dict[str, int] = {}
        self.listed: Sequence[str] | None = None

    def stats_of(self, path: str) -> ObjectStats:
        return ObjectStats(
            path=path,
            path_type="object",
            physical_address=f"{self.uri}/data/x",
            checksum=f"sum of {path}",
            mtime=1,
            size_bytes=3,
            metadata={},
        )

    def _id(self, number: int) -> str:
        return f"{number:064x}"

    def branches(self) -> list[Ref]:
        return [Ref(id="main", commit_id=self._id(len(self.adds)))]

    def tags(self) -> list[Ref]:
        return [Ref(id=name, commit_id=self._id(number)) for name, number in self.tagged.items()]

    def commits(self, _: Sequence[str], known: Any) -> list[Commit]:
        return [
            Commit(
                committer="ann",
                creation_date=number,
                generation=number,
                id=self._id(number),
                message=f"commit {number}",
                meta_range_id="",
                metadata={},
                parents=[self._id(number - 1)] if number > 1 else [],
            )
            for number in range(1, len(self.adds) + 1)
            if self._id(number) not in known
        ]

    def changes(self, commit: Commit) -> Iterator[list[Any]]:
        yield [(path, self.stats_of(path)) for path in sorted(self.adds[commit.generation - 1])]

    def listing(self, ref: str) -> Iterator[ObjectStats]:
        paths = {path for adds in self.adds[: int(ref, 16)] for path in adds}
        return iter([self.stats_of(path) for path in (sorted(paths) if self.listed is None else self.listed)])

    def protected(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, str]:
        return {}

    def is_dirty(self, _: str) -> bool:
        return False

    def retention_rules(self) -> None:
        return None

    def count_pulls(self) -> int:
        return 0

    def action_files(self, _: str) -> Iterator[ObjectStats]:
        return iter(())


@pytest.fixture
async def old(catalog: Catalog, namespace: str) -> Old:
    found = Old(f"{namespace}-old", ["a", "b"])
    await catalog.namespaces.open(found.uri).put("data/x", b"xyz")
    return found


@pytest.fixture
def place(namespace: str) -> str:
    return f"{namespace}-new"


async def move(catalog: Catalog, old: Old, place: str | None) -> tuple[Any, Repository]:
    found = await migrate_repository(catalog, cast("SourceRepository", old), place)
    return found, await catalog.get("lake")


async def paths_on(repository: Repository, ref: str = "main") -> list[str]:
    return [key.decode() for key, _ in (await repository.versions.staging.list(ref, limit=100)).items]


async def test_a_branch_with_commits_of_its_own_stays_and_is_named(catalog: Catalog, old: Old, place: str) -> None:
    _, here = await move(catalog, old, place)
    await here.objects.upload("main", "own", b"1", size_bytes=1)
    await here.changes.commit("main", NOTE)
    old.adds.append(["c"])

    found, _ = await move(catalog, old, place)

    assert (found.left, await paths_on(here)) == (["main"], ["a", "b", "own"])


async def test_a_migration_in_place_that_left_a_branch_is_none_with_equal_listings(catalog: Catalog, old: Old) -> None:
    """No entry here names what the old server wrote there since, so an adoption must ask for its time, too."""
    _, here = await move(catalog, old, None)
    before = await read_adoption(here.objectstore)
    assert before is not None
    assert before.compared_ms
    await here.objects.upload("main", "own", b"1", size_bytes=1)
    old.adds.append(["c"])

    found, _ = await move(catalog, old, None)

    assert (found.left, await read_adoption(here.objectstore)) == (["main"], before)


async def test_a_branch_with_changes_of_its_own_stays_and_is_named(catalog: Catalog, old: Old, place: str) -> None:
    _, here = await move(catalog, old, place)
    await here.objects.upload("main", "own", b"1", size_bytes=1)
    old.adds.append(["c"])

    found, _ = await move(catalog, old, place)

    assert (found.left, await paths_on(here)) == (["main"], ["a", "b", "own"])


async def test_a_tag_that_names_another_commit_here_stays_and_is_named(catalog: Catalog, old: Old, place: str) -> None:
    old.tagged["v1"] = 1
    _, here = await move(catalog, old, place)
    old.adds.append(["c"])
    old.tagged["v1"] = 2

    found, _ = await move(catalog, old, place)

    assert (found.left, await paths_on(here), await paths_on(here, "v1")) == (["v1"], ["a", "b", "c"], ["a", "b"])


@pytest.mark.parametrize("listed", [["a"], ["a", "b", "c"], []])
async def test_more_or_less_than_the_old_server_lists_is_no_migration(
    catalog: Catalog, old: Old, place: str, listed: list[str]
) -> None:
    old.listed = listed

    with pytest.raises(MigrationDiffers):
        await move(catalog, old, place)


async def test_a_commit_of_several_parts_comes_over_whole(
    catalog: Catalog, old: Old, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "PART_OBJECTS", 2)
    pages = [["a", "b"], ["c"], ["d", "e"], ["f"]]
    old.adds = [[path for page in pages for path in page]]
    monkeypatch.setattr(old, "changes", lambda _: ([(path, old.stats_of(path)) for path in page] for page in pages))

    _, here = await move(catalog, old, place)

    assert await paths_on(here) == ["a", "b", "c", "d", "e", "f"]
    assert (await here.versions.staging.get("main", b"a")).content_type == CONTENT_TYPE_DEFAULT


@pytest.mark.parametrize("stop", [*range(6), "comparing"])
async def test_a_migration_that_stops_anywhere_goes_on_from_the_last_whole_commit(
    catalog: Catalog, old: Old, place: str, monkeypatch: pytest.MonkeyPatch, stop: int | str
) -> None:
    """`stop` is the change at which the old server goes away, counted over all three commits."""
    monkeypatch.setattr(flow, "PART_OBJECTS", 2)
    old.adds, old.tagged = [["a", "b"], ["c", "d", "e"], ["f"]], {"v1": 2}
    given = 0

    def changes(commit: Commit) -> Iterator[list[Any]]:
        nonlocal given
        for path in old.adds[commit.generation - 1]:
            if given == stop:
                raise Unavailable("gone")
            given += 1
            yield [(path, old.stats_of(path))]

    with monkeypatch.context() as going:
        going.setattr(old, "changes", changes)
        if stop == "comparing":
            going.setattr(flow, "_compare", stopped)
        with pytest.raises(Unavailable):
            await move(catalog, old, place)

    found, here = await move(catalog, old, place)

    whole = {0: 0, 1: 0, 2: 1, 3: 1, 4: 1, 5: 2, "comparing": 3}[stop]
    assert (found.commits_before, found.commits, found.left) == (whole, 3 - whole, [])
    assert (await paths_on(here), await paths_on(here, "v1")) == ([*"abcdef"], [*"abcde"])
    assert [branch.name async for branch in here.versions.refs.every_branch()] == ["main"]


async def stopped(*_: object) -> int:
    raise Unavailable("gone")


async def test_a_second_call_names_the_namespace_of_the_first(catalog: Catalog, old: Old, place: str) -> None:
    await move(catalog, old, place)

    with pytest.raises(Invalid, match="call this as then"):
        await migrate_repository(catalog, cast("SourceRepository", old), None)


@pytest.mark.parametrize("content", [b"xy", b"xyz1"])
async def test_an_object_of_another_size_is_not_the_old_servers(
    catalog: Catalog, old: Old, place: str, content: bytes
) -> None:
    await catalog.namespaces.open(old.uri).put("data/x", content)

    with pytest.raises(NotFound, match="should have 3 bytes"):
        await move(catalog, old, place)


# The old server's API


def test_commits_of_all_parents_are_read_to_their_end() -> None:
    """The log of a head shows them by date, so those of a second parent may come last."""
    parents = {"head": ["a", "b"], "a": ["root"], "root": [], "b": ["b0"], "b0": []}
    log = [SimpleNamespace(id=name, parents=parents[name]) for name in ("head", "a", "root", "b", "b0")]
    client = SimpleNamespace(endpoint="", history=SimpleNamespace(log=lambda *_: iter(log)))
    source = SourceRepository(cast("Client", client), cast("TheirRepository", SimpleNamespace(id="lake")))

    found = [commit.id for commit in source.commits(["head"], {})]

    assert sorted(found) == sorted(parents)
    assert all(found.index(parent) < found.index(name) for name in parents for parent in parents[name])


@pytest.mark.parametrize(
    ("answer", "is_there"),
    [
        (None, True),
        (ErrorAnswer("no", status=500), True),
        (ErrorAnswer("no", status=401), True),
        (Unreachable("no"), False),
    ],
)
def test_a_server_that_answers_with_an_error_answers(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | None, is_there: bool
) -> None:
    def setup_state(_: Client) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(Client, "setup_state", setup_state)

    assert answers("http://127.0.0.1:9") is is_there
