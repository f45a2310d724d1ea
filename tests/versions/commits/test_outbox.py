"""A gatherer looks at what its own process wrote, and reads nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.base import EventKind, OutcomeUnknown, RunId, RunKind
from lakebed.kv import Page
from lakebed.versions import Look, Note, PlannedRecord, Versions
from tests.versions.conftest import HookedStore, body

NOTE = Note(message="m", committer="c")


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


@pytest.fixture
async def told(repo: Versions) -> Versions:
    """A repository with events, whose process has looked."""
    await repo.refs.create_branch("side", "main")
    await repo.outbox.start()
    await repo.outbox.gather(Look.OWN)
    return repo


async def _events(repo: Versions) -> list[tuple[EventKind, str, str]]:
    return [(event.kind, event.name, event.operation) for _, event in await repo.outbox.events(0, limit=99)]


async def _commit(repo: Versions, branch: str, path: bytes) -> None:
    await repo.staging.upload(branch, path, body(repo.objectstore))
    await repo.commits.commit(branch, NOTE)


async def test_whatever_this_process_moved_has_its_event_without_a_look_at_all_records(told: Versions) -> None:
    await _commit(told, "main", b"a")
    await _commit(told, "side", b"b")
    await told.merges.merge("side", "main", NOTE)
    await told.refs.create_tag("v1", "main")
    await told.refs.create_branch("gone", "main")
    await told.refs.delete_branch("gone")
    await told.refs.undelete_branch("gone")
    await told.refs.delete_tag("v1")
    await told.resets.hard_reset("main", "main~1")
    await told.retired.note_planned(
        RunId("run"), PlannedRecord(kind=RunKind.UNCOMMITTED, by="ann", plan="p", made_ms=1)
    )

    await told.outbox.gather(Look.OWN)

    own = await _events(told)
    await told.outbox.gather(Look.LOGS)
    assert await _events(told) == own
    assert sorted(own) == sorted(
        [
            *((EventKind.BRANCH, "main", operation) for operation in ("commit", "merge", "hard-reset")),
            (EventKind.BRANCH, "side", "commit"),
            *((EventKind.BRANCH, "gone", operation) for operation in ("create", "delete", "undelete")),
            *((EventKind.TAG, "v1", operation) for operation in ("create", "delete")),
            (EventKind.RUN, "run", "plan"),
        ]
    )


async def test_a_look_where_nothing_was_written_reads_two_keys(
    told: Versions, store: HookedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many refs there are."""
    asked: list[tuple[str, bytes]] = []
    scan, get = store.scan, store.get

    async def scanned(partition: bytes, start: bytes, limit: int) -> Page:
        asked.append(("scan", start))
        return await scan(partition, start, limit)

    async def read(partition: bytes, key: bytes) -> object:
        asked.append(("get", key))
        return await get(partition, key)

    monkeypatch.setattr(store, "scan", scanned)
    monkeypatch.setattr(store, "get", read)

    await told.outbox.gather(Look.OWN)

    assert asked == [("get", b"feed"), ("scan", b"event/000000000000001")]


async def test_a_process_that_begins_looks_in_the_place_of_one_that_died(
    told: Versions, another: Callable[[], Versions]
) -> None:
    await _commit(told, "main", b"a")

    await another().outbox.gather(Look.OWN)

    assert await _events(told) == [(EventKind.BRANCH, "main", "commit")]


async def test_a_move_whose_answer_is_lost_is_looked_at(told: Versions, store: HookedStore) -> None:
    async def unavailable() -> None:
        async def gone() -> None:
            raise OutcomeUnknown("no answer")

        store.before("get", b"branch/", gone)

    await _commit(told, "main", b"a")
    await told.outbox.gather(Look.OWN)
    store.lose_answer(b"branch/side", unavailable)
    with pytest.raises(OutcomeUnknown):
        await told.merges.merge("main", "side", NOTE)

    await told.outbox.gather(Look.OWN)

    assert await _events(told) == [(EventKind.BRANCH, "main", "commit"), (EventKind.BRANCH, "side", "merge")]


async def test_a_look_that_failed_forgets_nothing(told: Versions, store: HookedStore) -> None:
    async def broken() -> None:
        raise RuntimeError("the process is ending")

    await _commit(told, "main", b"a")
    store.before("set_if", b"event/", broken)
    with pytest.raises(RuntimeError):
        await told.outbox.gather(Look.OWN)

    await told.outbox.gather(Look.OWN)

    assert await _events(told) == [(EventKind.BRANCH, "main", "commit")]


async def test_after_many_writes_all_records_are_looked_at(told: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.versions.context._TOUCHED_MAX", 2)
    names = [f"b{number}" for number in range(5)]
    for name in names:
        await told.refs.create_branch(name, "main")
    assert told.context.touched is None

    await told.outbox.gather(Look.OWN)

    assert await _events(told) == [(EventKind.BRANCH, name, "create") for name in names]
