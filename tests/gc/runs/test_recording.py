"""Each deletion is counted once, also where two runs, or a run and hard delete, have one object in their plans."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from lakebed.base import RunId
from lakebed.gc.live import QueueWorker
from lakebed.gc.messages import (
    GARBAGE,
    ErasureOrder,
    LedgerState,
    Plan,
    RunKind,
    arrow_schema,
    decode_report,
    encode_ledger,
    encode_report,
    giving_way,
    ledger_folder,
    next_file,
    report_path,
)
from lakebed.gc.rules import DAY_MS, Selection
from lakebed.gc.runs.recording import Gone, Ledger, Outcomes, correct_report, ledger_rows
from lakebed.objectstore import MemoryObjectStore, open_deleter
from lakebed.versions import Note
from tests.cli.gc.test_kept import REPORT
from tests.gc.garbage import context_of, forged
from tests.spark.lakeside import URI, Lakeside


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def erase(lake: Lakeside, path: str) -> Plan:
    return lake.collector.on(None).plan_erasure(ErasureOrder(selection=Selection(paths=(path,)), why="request 12"))


def states(lake: Lakeside) -> Counter[tuple[str, str]]:
    return Counter((row["address"], row["state"]) for row in lake.ledger())


class Died(Exception):
    pass


def die(*_: object) -> None:
    raise Died


def test_a_committed_run_says_gone_of_what_an_erasure_deleted(lake: Lakeside) -> None:
    address = lake.upload("users/ann", b"secret")
    lake.commit(age_days=30)
    other = lake.upload("users/ann", b"another")
    lake.upload("data/b", b"b")
    lake.commit(age_days=20)
    lake.collector.apply(None, erase(lake, "users/ann").run_id)
    lake.delete("data/b")
    lake.commit(age_days=1)
    lake.rules(10)

    run = lake.collector.plan(None, RunKind.COMMITTED).run_id
    report = lake.collector.apply(None, run)

    counts = states(lake)
    assert [count for (_, state), count in counts.items() if state == "deleted"] == [1, 1]
    assert counts[address, "gone"] == 1
    assert (report.objects_deleted, report.objects_gone) == (0, 1)
    assert other not in lake.addresses()


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_committed_run_says_gone_of_what_an_erasure_deleted_long_before(
    lake: Lakeside, *, is_forgotten: bool
) -> None:
    """A collection of metadata removes the records of runs that are over, and the ledger stays."""
    address = lake.upload("users/ann", b"secret")
    lake.commit(age_days=30)
    lake.collector.apply(None, erase(lake, "users/ann").run_id)
    if is_forgotten:
        lake.forget_runs()
    for file in lake.files("_lakefs/retention/gc/ledger/date=*/*.parquet"):
        os.utime(file, (0, 0))
    lake.delete("users/ann")
    lake.commit(age_days=20)
    lake.upload("data/b", b"b")
    lake.commit(age_days=1)
    lake.rules(10)

    report = lake.collector.apply(None, lake.collector.plan(None, RunKind.COMMITTED).run_id)

    assert (report.objects_deleted, report.objects_gone) == (0, 1)
    assert states(lake) == {(address, "deleted"): 1, (address, "gone"): 1}


def test_two_erasures_of_one_path_that_are_both_finished_count_its_object_once(lake: Lakeside) -> None:
    """The first is stopped before it has ended, and its user begins anew. The nightly run finishes both."""
    address = lake.upload("users/ann", b"secret")
    lake.commit(age_days=1)
    first, second = erase(lake, "users/ann"), erase(lake, "users/ann")
    lake.before["ended"] = die
    with pytest.raises(Died):
        lake.collector.apply(None, first.run_id)

    for plan in (second, first):
        lake.collector.apply(None, plan.run_id)

    assert states(lake) == {(address, "deleted"): 1, (address, "gone"): 1}


def test_a_run_says_gone_of_what_hard_delete_deleted_after_its_plan(lake: Lakeside) -> None:
    hard_delete = lake.versions.hard_delete
    lake.wait(hard_delete.change(by="ann", is_on=True, grace_s=0))
    address = lake.upload("a", b"one")
    lake.upload("a", b"two")
    lake.wait(hard_delete.flush())
    run = lake.collector.plan(None, RunKind.UNCOMMITTED).run_id
    lake.wait(QueueWorker(lake.versions, open_deleter(URI, lake.options), linger_ms=0).work())
    assert states(lake) == {(address, "deleted"): 1}

    report = lake.collector.apply(None, run)

    assert states(lake) == {(address, "deleted"): 1, (address, "gone"): 1}
    assert (report.objects_deleted, report.objects_gone) == (0, 1)


def test_an_optimised_run_does_not_count_what_hard_delete_deleted_since_the_run_that_it_goes_on_from(
    lake: Lakeside,
) -> None:
    """That run listed the object and kept it, so the next one does not list it again."""
    lake.wait(lake.versions.hard_delete.change(by="ann", is_on=True, grace_s=0))
    address = lake.upload("a", b"one")
    first = lake.collector.plan(None, RunKind.UNCOMMITTED)
    lake.collector.apply(None, first.run_id)
    lake.upload("a", b"two")
    lake.wait(lake.versions.hard_delete.flush())
    lake.wait(QueueWorker(lake.versions, open_deleter(URI, lake.options), linger_ms=0).work())
    assert states(lake) == {(address, "deleted"): 1}
    pass_days(lake, 1)

    second = lake.collector.plan(None, RunKind.UNCOMMITTED)
    report = lake.collector.apply(None, second.run_id)

    assert second.based_on == first.run_id
    assert states(lake)[address, "deleted"] == 1
    assert report.objects_deleted == 0


def test_hard_delete_counts_nothing_that_a_run_deleted_before_it(lake: Lakeside) -> None:
    hard_delete = lake.versions.hard_delete
    lake.wait(hard_delete.change(by="ann", is_on=True, grace_s=0))
    address = lake.upload("a", b"one")
    lake.upload("a", b"two")
    lake.wait(hard_delete.flush())
    lake.collector.apply(None, lake.collector.plan(None, RunKind.UNCOMMITTED).run_id)

    lake.wait(QueueWorker(lake.versions, open_deleter(URI, lake.options), linger_ms=0).work())

    assert states(lake) == {(address, "deleted"): 1}
    assert lake.wait(hard_delete.page()).items == []


def commit_that_dies(lake: Lakeside, before: str) -> list[Callable[[], Coroutine[object, object, object]]]:
    """Let a committer die before it writes its claim, or its record. Return what it did not write."""
    dead = lake.server("dead")
    left: list[Callable[[], Coroutine[object, object, object]]] = []

    async def never(*args: object, **options: object) -> None:
        left.append(partial(write, *args, **options))
        raise Died

    part = dead.context if before == "claim" else dead.context.commits
    write = getattr(part, "claim" if before == "claim" else "write")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "claim" if before == "claim" else "write", never)
        with pytest.raises(Died):
            lake.wait(dead.commits.commit("main", Note(message="m", committer="tests")))
    return left


def pass_days(lake: Lakeside, days: int) -> None:
    """Let days pass, for the files of the ledger and for plans, too."""
    gc = "_lakefs/retention/gc"
    for file in [*lake.files(f"{gc}/ledger/date=*/*.parquet"), *lake.files(f"{gc}/uncommitted/*/plan.json")]:
        os.utime(file, (lake.clock.ms / 1000, lake.clock.ms / 1000))
    lake.clock.ms += days * DAY_MS


def test_a_committed_run_says_gone_of_what_hard_delete_deleted_beside_a_commit_that_was_never_published(
    lake: Lakeside,
) -> None:
    lake.wait(lake.versions.hard_delete.change(by="ann", is_on=True, grace_s=0))
    address = lake.upload("a", b"one")
    commit_that_dies(lake, "claim")
    lake.upload("a", b"two", by=lake.server("another"))
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())
    lake.wait(QueueWorker(lake.versions, open_deleter(URI, lake.options), linger_ms=0).work())
    assert states(lake) == {(address, "deleted"): 1}
    pass_days(lake, 30)
    lake.rules(10)

    report = lake.collector.apply(None, lake.collector.plan(None, RunKind.COMMITTED).run_id)

    assert states(lake) == {(address, "deleted"): 1, (address, "gone"): 1}
    assert (report.objects_deleted, report.objects_gone) == (0, 1)


def test_a_committed_run_says_gone_of_what_a_run_deleted_before_a_late_commit_record_named_it(lake: Lakeside) -> None:
    address = lake.upload("a", b"one")
    [late] = commit_that_dies(lake, "record")
    lake.upload("a", b"two", by=lake.server("another"))
    lake.commit()
    lake.collector.apply(None, lake.collector.plan(None, RunKind.UNCOMMITTED).run_id)
    assert states(lake) == {(address, "deleted"): 1}
    lake.wait(late())
    pass_days(lake, 30)
    lake.rules(10)

    report = lake.collector.apply(None, lake.collector.plan(None, RunKind.COMMITTED).run_id)

    assert states(lake) == {(address, "deleted"): 1, (address, "gone"): 1}
    assert (report.objects_deleted, report.objects_gone) == (0, 1)


async def test_a_sweep_sees_pages_that_hard_delete_recorded_since_it_began() -> None:
    store = MemoryObjectStore("mem://lake")
    folder = ledger_folder(1_790_000_000_000)
    for number, address in ((1, "data/0123456789abc/00000001"), (2, "data/0123456789abc/00000002")):
        rows = ledger_rows(objects_of(address), Outcomes(errors={}, states={}), run_id="hard-delete", now_ms=0)
        await store.put(f"{folder}hard-delete-{number:012d}.parquet", encode_ledger(rows))
    gone = Gone(last_page=f"{folder}hard-delete-{1:012d}.parquet")

    found = await gone.among(store, [f"data/0123456789abc/{number:08d}" for number in (1, 2, 3)])

    assert found == {"data/0123456789abc/00000002": LedgerState.GONE}


def objects_of(address: str) -> pa.Table:
    row = {"address": address, "size_bytes": 1, "reason": "overwritten", "path": "a", "rule": "", "last_seen_at": 0}
    return pa.Table.from_pylist([row], schema=arrow_schema(GARBAGE))


def test_what_a_run_deleted_and_did_not_record_before_it_died_counts_as_deleted(lake: Lakeside) -> None:
    address = lake.upload("a/1")
    lake.delete("a/1")
    plan = lake.collector.plan(None, RunKind.UNCOMMITTED)
    (lake.folder / address).unlink()

    report = lake.collector.apply(None, plan.run_id)

    assert (report.objects_deleted, report.objects_gone) == (1, 0)
    assert states(lake) == {(address, "deleted"): 1}


def add_to_ledger(lake: Lakeside, record: str, run_id: str, *addresses: str) -> None:
    """Put rows of a run that deleted these objects, as one more file of a record, or its first."""
    objects = pa.concat_tables([objects_of(address) for address in addresses])
    rows = ledger_rows(objects, Outcomes(errors={}, states={}), run_id=run_id, now_ms=lake.clock.ms)
    (lake.folder / record).parent.mkdir(parents=True, exist_ok=True)
    (lake.folder / record).write_bytes(encode_ledger(rows))


def stop_before_it_ends(lake: Lakeside, run_id: str) -> None:
    lake.before["ended"] = die
    with pytest.raises(Died):
        lake.collector.apply(None, run_id)


@pytest.mark.parametrize(("other", "own"), [("~later", "gone"), ("00earlier", "deleted")])
def test_a_run_that_goes_on_looks_at_what_was_there_before_it_went_on(lake: Lakeside, other: str, own: str) -> None:
    """Of two runs that both recorded a deletion the one with the later id counts it."""
    address = lake.upload("a/1")
    lake.delete("a/1")
    run_id = lake.plan_of(address).run_id
    stop_before_it_ends(lake, run_id)
    add_to_ledger(lake, f"{ledger_folder(lake.clock.ms)}{other}-part-00000.000000.parquet", other, address)

    report = lake.collector.apply(None, run_id)

    by_run = {row["run_id"]: row["state"] for row in lake.ledger()}
    assert by_run == {run_id: own, other: "deleted" if own == "gone" else "gone"}
    assert (report.objects_deleted, report.objects_gone) == ((0, 1) if own == "gone" else (1, 0))


def test_a_key_in_no_slice_that_was_written_again_counts_twice(lake: Lakeside) -> None:
    address = lake.upload("a/1")
    lake.delete("a/1")
    run_id = lake.plan_of(address).run_id
    stop_before_it_ends(lake, run_id)
    [file] = lake.files("_lakefs/retention/gc/ledger/date=*/*.parquet")
    add_to_ledger(lake, next_file([str(file)]), run_id, "old/key")
    add_to_ledger(lake, f"{ledger_folder(lake.clock.ms)}~later-part-00000.000000.parquet", "~later", "old/key")

    lake.collector.apply(None, run_id)

    assert states(lake)["old/key", "deleted"] == 2


async def test_a_report_is_corrected_by_all_records_of_its_run() -> None:
    store, ledger = MemoryObjectStore("mem://corrected"), Ledger(run_id="06h2al60tq3sjokfq4u2", date="2026-11-21")
    for part in ("part-00000.parquet", "part-00001.parquet"):
        objects = forged([f"data/{part}"], seen_ms=0)
        rows = ledger_rows(objects, Outcomes(errors={}, states={}), run_id=ledger.run_id, now_ms=0)
        await store.put(ledger.key(part), encode_ledger(rows))
        await store.put(ledger.key(part, 1), encode_ledger(giving_way(rows, [f"data/{part}"])))
    name = report_path(RunKind.COMMITTED, RunId(ledger.run_id))
    await store.put(name, encode_report(replace(REPORT, run_id=ledger.run_id, objects_deleted=3, bytes_deleted=12)))

    changed = await correct_report(context_of(store), RunKind.COMMITTED, ledger)

    assert changed is not None
    assert (changed.objects_deleted, changed.objects_gone, changed.bytes_deleted, changed.bytes_gone) == (1, 2, 4, 8)
    assert decode_report(await store.get(name), name=name) == changed
