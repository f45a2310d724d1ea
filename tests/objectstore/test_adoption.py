"""The log of an adoption: one writer for each line, none behind the final one, and no line that is not ours to read."""

from __future__ import annotations

import msgspec
import pytest

from lakebed.objectstore import (
    ADOPTION_PREFIX,
    Adoption,
    AdoptionMoved,
    AdoptionState,
    AdoptionUnreadable,
    ObjectStore,
    open_objectstore,
    read_adoption,
    write_adoption,
)

KEPT = Adoption(marker="m", state=AdoptionState.KEPT, server="http://old")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return open_objectstore(f"mem://adoption/{request.node.name.replace('[', '-').strip(']')}")


def at(state: AdoptionState) -> Adoption:
    return msgspec.structs.replace(KEPT, state=state)


async def test_of_two_who_write_the_next_line_the_second_is_told(store: ObjectStore) -> None:
    first = await write_adoption(store, KEPT, after=None)
    adopted = await write_adoption(store, at(AdoptionState.ADOPTED), after=first)

    with pytest.raises(AdoptionMoved):
        await write_adoption(store, at(AdoptionState.KEPT), after=first)

    assert await read_adoption(store) == adopted


async def test_no_line_follows_the_final_one(store: ObjectStore) -> None:
    final = await write_adoption(store, at(AdoptionState.FINAL), after=None)

    with pytest.raises(AdoptionMoved):
        await write_adoption(store, at(AdoptionState.KEPT), after=final)

    assert await read_adoption(store) == final


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("00000001", {"format": 2}),
        ("00000002", {"number": 1}),
        ("00000001", {"state": "undone"}),
    ],
    ids=["another-release", "a-copy", "unknown"],
)
async def test_a_line_in_doubt_is_refused(store: ObjectStore, key: str, line: dict[str, object]) -> None:
    await store.put(f"{ADOPTION_PREFIX}{key}.json", msgspec.json.encode({**msgspec.to_builtins(KEPT), **line}))

    with pytest.raises(AdoptionUnreadable):
        await read_adoption(store)
