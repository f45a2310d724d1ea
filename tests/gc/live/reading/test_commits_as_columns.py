"""Commit records in columns: nothing is lost on the way, and what is no id is refused."""

from __future__ import annotations

import hashlib
import random

import pytest

from lakebed.base import CommitId, Corrupt, MetarangeId, RunId
from lakebed.gc.live.reading import commits as snapshots
from lakebed.gc.live.reading.inputs import CommitColumns, CommitFacts, Inputs, packed, text_lists, texts
from lakebed.gc.messages import COMMITS, PrepareCommits, RunKind, StartRun
from lakebed.versions import Commit, encode_record, keys
from tests.gc.conftest import Lake


def id_of(number: int) -> CommitId:
    return CommitId(hashlib.sha256(str(number).encode()).hexdigest())


def facts(number: int, random_: random.Random) -> CommitFacts:
    parents = [id_of(random_.randrange(number)) for _ in range(random_.randrange(3))] if number else []
    return CommitFacts(
        generation=random_.randrange(10),
        created_ms=random_.randrange(10**13),
        metarange_id=MetarangeId("" if random_.random() < 0.2 else id_of(-number)),
        parents=tuple(parents),
        made_for=random_.choice(["", "main", "straße"]),
        published=random_.random() < 0.5,
    )


def test_what_went_in_comes_out_by_generation() -> None:
    random_ = random.Random(1)
    pairs = [(id_of(number), facts(number, random_)) for number in range(3_000)]

    columns = CommitColumns.of(pairs)

    assert list(columns) == sorted(pairs, key=lambda pair: pair[1].generation)
    assert len(columns) == 3_000


def test_no_commits_are_columns_too() -> None:
    columns = CommitColumns.of([])

    assert (len(columns), list(columns)) == (0, [])
    assert text_lists(columns.column("parents")).to_pylist() == []


def test_texts_of_a_slice_are_those_of_its_rows() -> None:
    ids = [id_of(number) for number in range(10)]

    assert texts(packed([*ids, ""])).to_pylist() == [*ids, ""]
    assert texts(packed(ids).slice(3, 4)).to_pylist() == ids[3:7]
    assert texts(packed([])).to_pylist() == []


@pytest.mark.parametrize(
    "strange", ["main", "a" * 63, "a" * 65, "g" * 64, " " + "a" * 63, "a" * 62 + "\u00e9a", "A" * 64, "a" * 128]
)
def test_what_is_no_id_is_refused_and_named(strange: str) -> None:
    with pytest.raises(Corrupt, match="is not an id"):
        packed([id_of(1), strange])


async def test_a_record_that_names_no_tree_stops_the_reading(lake: Lake) -> None:
    commit = Commit(generation=2, message="m", committer="c", created_ms=1, metarange_id=MetarangeId("x"), parents=())
    await lake.versions.store.set(lake.versions.partition, keys.COMMIT + commit.id.encode(), encode_record(commit))

    with pytest.raises(Corrupt, match="is not an id"):
        await snapshots.read_snapshot(lake.versions)


async def test_a_table_of_several_parts_is_read_as_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PART_ROWS", 2)
    for number in range(4):
        await lake.put("main", "a", str(number))
        await lake.commit("main")
    run = await lake.service.start(StartRun(kind=RunKind.COMMITTED))

    prepared = await lake.service.prepare_commits(run.run_id, PrepareCommits(kind=RunKind.COMMITTED))

    table = await Inputs(lake.objectstore, RunKind.COMMITTED, RunId(run.run_id)).read_table(COMMITS, prepared.commits)
    assert [part.rows for part in prepared.commits.parts] == [2, 2, 1]
    assert table.column("generation").to_pylist() == [1, 2, 3, 4, 5]
    assert table.column("parents").to_pylist()[1:] == [[id_] for id_ in table.column("id").to_pylist()[:-1]]
