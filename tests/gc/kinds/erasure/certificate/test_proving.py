"""Bytes without an entry: an erasure is certified as whole only once a collection took them. No Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from lakebed.gc.engines.engine import CLOSED
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.kinds.erasure.certificate import proving
from lakebed.gc.mark.holding import HeldBack
from lakebed.gc.messages import (
    PROOF,
    Certificate,
    Collected,
    Mode,
    Pieces,
    Plan,
    RunKind,
    Total,
    certificate_path,
    encode_certificate,
)
from lakebed.gc.rules import DAY_MS, Rules
from lakebed.gc.runs.context import write_piece, write_plan
from lakebed.objectstore import MemoryObjectStore
from lakebed.versions import PathExists, keys
from tests.gc.garbage import context_of
from tests.gc.kinds.erasure.certificate.test_certifying import signed
from tests.gc.kinds.erasure.test_plan import begin_in_parts, erase
from tests.gc.mark.test_holding import hold
from tests.spark.lakeside import Lakeside

LATER_MS = 8 * DAY_MS
"""By then every address that was handed out has expired."""


def stands(certificate: Certificate) -> dict[str, str]:
    return {one.what: one.why for one in certificate.stands}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def overwritten(lake: Lakeside) -> str:
    old = lake.upload("users/ann", b"one")
    lake.upload("users/ann", b"two")
    return old


def deleted(lake: Lakeside) -> str:
    old = lake.upload("users/ann", b"one")
    lake.delete("users/ann")
    return old


def reset(lake: Lakeside) -> str:
    old = lake.upload("users/ann", b"one")
    lake.wait(lake.versions.resets.reset("main"))
    return old


def on_a_deleted_branch(lake: Lakeside) -> str:
    lake.branch("side")
    old = lake.upload("users/ann", b"one", branch="side")
    lake.wait(lake.versions.refs.delete_branch("side"))
    return old


def refused(lake: Lakeside) -> str:
    lake.upload("users/ann", b"one")
    before = lake.addresses()

    async def put(address: str) -> None:
        await lake.objectstore.put(address, b"two")
        raise PathExists("the condition was checked too late")

    async def upload() -> None:
        with suppress(PathExists):
            await lake.versions.staging.upload("main", b"users/ann", put)  # type: ignore[arg-type]  # it never answers

    lake.wait(upload())
    (old,) = lake.addresses() - before
    return old


def handed_out(lake: Lakeside) -> str:
    old = lake.wait(lake.versions.uploads.issue("main"))
    lake.wait(lake.objectstore.put(old, b"one"))
    return old


def in_parts(lake: Lakeside) -> str:
    multipart_id, part = begin_in_parts(lake, "users/ann")
    lake.wait(lake.versions.parts.end(multipart_id))
    return part


def certify(lake: Lakeside, plan: Plan) -> Certificate:
    lake.collector.apply(None, plan.run_id)
    return lake.collector.on(None).certify(plan.run_id, by="ann")


def erased(lake: Lakeside, *paths: str) -> Certificate:
    return certify(lake, erase(lake, *(paths or ("users/ann",))))


def collect(lake: Lakeside, *, mode: Mode = Mode.CLEAN, window: str | None = None) -> str:
    plan = lake.collector.plan(None, RunKind.UNCOMMITTED, mode=mode)
    lake.collector.apply(None, plan.run_id, window=window)
    return plan.run_id


def again(lake: Lakeside, made: Certificate) -> Certificate:
    return lake.collector.on(None).verify(made, by="bob")


@pytest.mark.parametrize(
    "lose",
    [overwritten, deleted, reset, on_a_deleted_branch, refused, handed_out, in_parts],
    ids=lambda one: one.__name__,
)
def test_bytes_without_an_entry_stand_until_a_collection_took_them(
    lake: Lakeside, lose: Callable[[Lakeside], str]
) -> None:
    old = lose(lake)
    lake.upload("users/ann", b"last")
    lake.commit()
    made = erased(lake)
    assert old in lake.addresses()
    assert "no clean run of uncommitted data began after" in stands(made)["garbage"]

    lake.clock.ms += LATER_MS
    lake.wait(lake.versions.cleanup.clean())
    run = collect(lake)

    assert old not in lake.addresses()
    proven = again(lake, made)
    assert stands(proven) == {}
    assert proven.collected is not None
    assert proven.collected.run_id == run


def lost(lake: Lakeside) -> str:
    """Return an address that was at `users/ann`, which a commit has, too."""
    old = overwritten(lake)
    lake.commit()
    return old


def test_a_collection_that_was_planned_before_the_erasure_was_published_proves_nothing(lake: Lakeside) -> None:
    lost(lake)
    early = lake.collector.plan(None, RunKind.UNCOMMITTED, mode=Mode.CLEAN)
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, early.run_id)
    made = certify(lake, plan)

    assert "began after the erasure" in stands(made)["garbage"]
    collect(lake)
    assert stands(again(lake, made)) == {}


def test_what_is_lost_between_the_plan_of_a_collection_and_that_of_the_erasure_stands(lake: Lakeside) -> None:
    lake.upload("users/ann", b"committed")
    lake.commit()
    old = lake.upload("users/ann", b"one")
    early = lake.collector.plan(None, RunKind.UNCOMMITTED, mode=Mode.CLEAN)
    lake.delete("users/ann")  # no slice comes of it, so the collection listed all that there are
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, early.run_id)

    made = certify(lake, plan)

    assert old in lake.addresses()
    assert "garbage" in stands(made)


def test_a_collection_that_is_only_planned_proves_nothing(lake: Lakeside) -> None:
    lost(lake)
    made = erased(lake)
    plan = lake.collector.plan(None, RunKind.UNCOMMITTED, mode=Mode.CLEAN)

    assert f"run {plan.run_id} has not ended" in stands(again(lake, made))["garbage"]


def test_an_optimised_collection_proves_nothing(lake: Lakeside) -> None:
    collect(lake)
    old = lost(lake)
    made = erased(lake)
    collect(lake, mode=Mode.OPTIMISED)

    assert old not in lake.addresses()
    assert "was not a clean one" in stands(again(lake, made))["garbage"]


def test_what_a_collection_keeps_for_a_window_stands_until_it_is_purged(lake: Lakeside) -> None:
    old = lost(lake)
    made = erased(lake)
    run = collect(lake, window="7d")
    assert f"run {run} has not ended: it keeps its objects until 20" in stands(again(lake, made))["garbage"]

    lake.end_window(run)
    lake.collector.purge(None)

    assert old not in lake.addresses()
    assert stands(again(lake, made)) == {}


def test_what_an_earlier_collection_keeps_for_a_window_stands_until_it_is_purged(lake: Lakeside) -> None:
    old = lost(lake)
    early = collect(lake, window="7d")
    made = erased(lake)
    collect(lake)
    assert old in lake.addresses()
    assert f"took nothing that run {early} had, which has not ended" in stands(again(lake, made))["garbage"]

    lake.end_window(early)
    lake.collector.purge(None)

    assert old not in lake.addresses()
    assert stands(again(lake, made)) == {}


def deferred_commits(lake: Lakeside) -> Plan:
    """Let a run of committed data take an object, and keep it for a window. Returns its plan."""
    lake.upload("logs/old")
    lake.commit(age_days=20)
    lake.delete("logs/old")
    lake.commit(age_days=19)
    lake.upload("data/now")
    lake.commit(age_days=1)
    lake.rules(10)
    early = lake.collector.plan(None, RunKind.COMMITTED)
    assert lake.collector.apply(None, early.run_id, window="7d").deferred_until_ms is not None
    return early


def test_what_a_deferred_run_of_committed_data_keeps_is_no_garbage(lake: Lakeside) -> None:
    """Commits had it, so its table has its paths: the erasure looked into that."""
    deferred_commits(lake)
    lost(lake)
    made = erased(lake)
    collect(lake)

    assert stands(again(lake, made)) == {}


def test_a_collection_without_its_report_proves_nothing(lake: Lakeside) -> None:
    lost(lake)
    made = erased(lake)
    run = collect(lake)
    (lake.folder / f"_lakefs/retention/gc/uncommitted/{run}/report.json").unlink()

    assert "report.json is missing" in stands(again(lake, made))["garbage"]


@pytest.mark.parametrize("left", ["objects_kept", "objects_failed"])
def test_a_collection_that_left_an_object_proves_nothing(lake: Lakeside, left: str) -> None:
    lost(lake)
    made = erased(lake)
    run = collect(lake)
    report = lake.folder / f"_lakefs/retention/gc/uncommitted/{run}/report.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), left: 1}))

    assert "left 1 object" in stands(again(lake, made))["garbage"]


async def test_all_parts_of_the_slices_of_a_plan_are_read() -> None:
    store = MemoryObjectStore("mem://slices")
    parts = [
        (await write_piece(store, "f/", f"part-{number}.parquet", CLOSED, CLOSED.rows({"bucket": [number]}))).parts
        for number in (7, 9)
    ]

    assert await proving._slices(context_of(store), Pieces(folder="f/", parts=(*parts[0], *parts[1]))) == [7, 9]


def test_an_address_that_is_still_handed_out_stands(lake: Lakeside) -> None:
    lost(lake)
    old = handed_out(lake)
    made = erased(lake)
    collect(lake)

    assert old in lake.addresses()
    assert "kept 1 object of uploads or copies" in stands(again(lake, made))["garbage"]


def test_an_address_that_is_handed_out_later_and_what_is_staged_elsewhere_do_not_stand(lake: Lakeside) -> None:
    lost(lake)
    staged = lake.upload("users/bob", b"bob")
    made = erased(lake)
    later = handed_out(lake)
    collect(lake)

    assert {staged, later} <= lake.addresses()
    assert stands(again(lake, made)) == {}


def test_what_the_rules_keep_for_its_age_stands(lake: Lakeside) -> None:
    old = lost(lake)
    lake.wait(lake.service.rules.write(Rules(default="1d", uncommitted_min_age="7d")))
    made = erased(lake)
    collect(lake)

    assert old in lake.addresses()
    assert "kept 1 object of uploads or copies, or for their age" in stands(again(lake, made))["garbage"]


def test_what_lies_in_a_slice_that_another_server_writes_to_stands(lake: Lakeside) -> None:
    other = lake.server("other")
    lake.upload("users/ann", b"last")
    lake.commit()
    old = lake.upload("users/bob", b"one", by=other)
    lake.upload("users/bob", b"two")
    made = erased(lake, "users/ann", "users/bob")
    collect(lake)
    assert old in lake.addresses()
    standing = stands(again(lake, made))
    assert "left 1 slice out: still written to" in standing["garbage"]
    assert "unlisted" not in standing

    lake.wait(other.slices.end())
    collect(lake)

    assert old not in lake.addresses()
    assert stands(again(lake, made)) == {}


@pytest.mark.parametrize("folder", ["data/0123456789abc/", "data/gc1ab2/"])
def test_what_lies_in_a_folder_on_no_record_stands_until_it_is_removed(lake: Lakeside, folder: str) -> None:
    """As after a restore of a dump, for what was written between the dump and the copy of the namespace."""
    lake.wait(lake.objectstore.put(f"{folder}00000000", b"one"))
    lost(lake)
    made = erased(lake)
    collect(lake)
    standing = again(lake, made)
    assert set(stands(standing)) == {"unlisted"}
    assert [one.where for one in standing.stands] == [folder]
    assert "no slice record names 1 folder or file of data/" in stands(standing)["unlisted"]

    (lake.folder / folder / "00000000").unlink()

    assert stands(again(lake, made)) == {}


def test_a_file_of_data_beside_the_folders_stands(lake: Lakeside) -> None:
    lake.wait(lake.objectstore.put("data/stray", b"one"))
    lost(lake)
    made = erased(lake)
    collect(lake)

    assert [(one.what, one.where) for one in again(lake, made).stands] == [("unlisted", "data/stray")]


def test_a_slice_that_comes_on_record_after_the_collection_stands(lake: Lakeside) -> None:
    other = lake.server("other")
    lost(lake)
    old = lake.upload("users/bob", b"one", by=other)
    lake.wait(other.slices.end())
    store, place = lake.versions.store, (lake.versions.partition, keys.SLICE + old.split("/")[1].encode())
    held = lake.wait(store.get(*place))
    assert held is not None
    lake.wait(store.delete(*place))
    made = erased(lake)
    collect(lake)
    assert "unlisted" in stands(again(lake, made))
    lake.wait(store.set(*place, held.value))

    assert "left 1 slice out" in stands(again(lake, made))["garbage"]


def test_a_slice_that_is_adopted_after_the_certificate_was_written_stands_until_it_is_collected(lake: Lakeside) -> None:
    """As the guide says to: what the proof left out comes on record, and nothing else stands."""
    other = lake.server("other")
    lost(lake)
    old = lake.upload("users/ann", b"secret", by=other)
    lake.upload("users/ann", b"over it")
    lake.wait(other.slices.end())
    name = old.split("/")[1]
    lake.wait(lake.versions.store.delete(lake.versions.partition, keys.SLICE + name.encode()))
    made = erased(lake)
    collect(lake)
    written = lake.collector.on(None).certify(made.run_id, by="ann")
    assert set(stands(written)) == {"unlisted"}
    assert written.collected is not None

    lake.wait(lake.versions.slices.adopt(name))
    open_yet = lake.collector.on(None).certify(made.run_id, by="ann")

    assert old in lake.addresses()
    assert "left 1 slice out" in stands(open_yet)["garbage"]
    assert "left 1 slice out" in stands(again(lake, written))["garbage"]
    collect(lake)
    assert old in lake.addresses()
    assert "garbage" in stands(again(lake, open_yet))
    lake.clock.ms += 2 * DAY_MS
    collect(lake)
    assert old not in lake.addresses()
    assert stands(again(lake, open_yet)) == {}


def test_what_a_deferred_run_let_off_stands_until_a_collection_after_its_end(lake: Lakeside) -> None:
    """A cell named the object when the run looked. Then only a commit that an undo can bring back names it."""
    let_off = lake.upload("users/ann", b"secret")
    first = lake.commit(age_days=30).id
    lake.delete("users/ann")
    lake.commit(age_days=19)
    lake.wait(lake.versions.copies.copy(first, b"users/ann", "main", b"kept", shallow=True))
    lake.rules(10)
    early = lake.collector.plan(None, RunKind.COMMITTED)
    lake.collector.apply(None, early.run_id, window="7d")
    lake.delete("kept")
    lake.clock.ms += DAY_MS
    lake.wait(lake.versions.cleanup.clean())
    lake.upload("users/ann", b"later")
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)
    collect(lake)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")
    assert [one.where for one in made.stands] == [let_off]
    assert plan.outlook is not None
    assert [one.where for one in plan.outlook.stands] == [let_off]
    assert "only commits have it that `gc restore --undo` can bring back" in plan.outlook.stands[0].why

    lake.end_window(early.run_id)
    lake.collector.purge(None)
    assert "Collect again" in stands(lake.collector.on(None).verify(made, by="ann"))["garbage"]
    collect(lake)

    assert let_off not in lake.addresses()
    assert stands(lake.collector.on(None).verify(made, by="ann")) == {}


def test_what_a_deferred_run_kept_stands_once_its_record_is_lost_until_a_collection_ends(lake: Lakeside) -> None:
    early = deferred_commits(lake)
    lost(lake)
    made = erased(lake)
    collect(lake)
    proven = again(lake, made)
    assert stands(proven) == {}

    lake.wait(lake.versions.store.delete(lake.versions.partition, keys.RUN + early.run_id.encode()))

    assert f"took nothing that run {early.run_id} had" in stands(again(lake, proven))["garbage"]
    collect(lake)
    assert stands(again(lake, proven)) == {}


def test_what_came_to_the_path_after_the_plan_stands_when_it_is_overwritten_after_the_collection(
    lake: Lakeside,
) -> None:
    """The collection found it staged and kept it, and once it is overwritten no record has its path."""
    lost(lake)
    other = lake.server("other")
    lake.upload("elsewhere", by=other)
    plan = erase(lake, "users/ann")
    late = lake.upload("users/ann", b"late", by=other)
    lake.wait(other.slices.end())
    lake.collector.apply(None, plan.run_id)
    collect(lake)
    made = lake.collector.on(None).certify(plan.run_id, by="ann")
    assert made.collected is not None
    assert ("staged", "users/ann") in [(one.what, one.where) for one in made.stands]

    lake.upload("users/ann", b"later")
    lake.delete("users/ann")

    assert late in lake.addresses()
    assert ("object", late) in [(one.what, one.where) for one in again(lake, made).stands]
    lake.wait(lake.versions.cleanup.clean())
    collect(lake)
    assert stands(again(lake, made)) == {}


def test_a_second_certificate_of_an_erasure_forgets_nothing_that_the_first_saw_staged(lake: Lakeside) -> None:
    """`erase apply` may be repeated, and its certificate is the only record of such an object."""
    lake.upload("users/ann", b"secret")
    made = erased(lake)
    late = lake.upload("users/ann", b"late")
    lake.collector.on(None).certify(made.run_id, by="ann")
    lake.upload("users/ann", b"later")
    lake.delete("users/ann")

    lake.collector.on(None).certify(made.run_id, by="ann")

    assert late in lake.addresses()
    stored = lake.collector.certificate(made.run_id)
    assert stored is not None
    assert ("object", late) in [(one.what, one.where) for one in stored.stands]


def test_what_a_legal_hold_keeps_from_collections_stands(lake: Lakeside) -> None:
    lost(lake)
    hold(lake, "contracts/")
    made = erased(lake)
    plan = lake.collector.plan(None, RunKind.UNCOMMITTED, mode=Mode.CLEAN)
    with pytest.raises(HeldBack):
        lake.collector.apply(None, plan.run_id)

    why = "has not ended. A collection takes nothing while legal hold case-7 is in force"
    assert why in stands(again(lake, made))["garbage"]


def test_a_proof_stays_though_the_files_of_the_collection_go(lake: Lakeside) -> None:
    lost(lake)
    made = erased(lake)
    run = collect(lake)
    lake.collector.on(None).certify(made.run_id, by="ann")
    shutil.rmtree(lake.folder / "_lakefs/retention/gc/uncommitted" / run)

    proven = lake.collector.on(None).certify(made.run_id, by="ann")

    assert proven.collected is not None
    assert proven.collected.run_id == run
    assert "garbage" in stands(again(lake, made)), "it was made without the proof"


def test_a_proof_that_no_server_signed_is_none(lake: Lakeside) -> None:
    """Who may write to the store could let a certificate say that no garbage is left."""
    overwritten(lake)
    made = erased(lake)
    total = Total(objects=1, size_bytes=3)
    proof = Collected(run_id="r", began_ms=1, plan="0" * 64, total=total, proof=PROOF)
    forged = encode_certificate(replace(made, collected=proof))
    lake.wait(lake.objectstore.put(certificate_path(made.run_id), forged))

    found = lake.collector.on(None).certify(made.run_id, by="ann")

    assert found.collected is None
    assert stands(found).keys() == {"garbage"}


def test_a_proof_of_less_is_sought_again(lake: Lakeside) -> None:
    lost(lake)
    made = erased(lake)
    run = collect(lake)
    proven = again(lake, made)
    assert proven.collected is not None
    shutil.rmtree(lake.folder / "_lakefs/retention/gc/uncommitted" / run)

    assert stands(again(lake, proven)) == {}
    less = replace(proven, collected=replace(proven.collected, proof=0))
    assert "garbage" in stands(again(lake, signed(lake, less)))


def test_an_erasure_that_an_earlier_release_planned_says_to_plan_again(lake: Lakeside) -> None:
    lost(lake)
    plan = erase(lake, "users/ann")
    made = certify(lake, plan)
    with Files(Lake(uri=lake.uri, options=lake.options)) as files:
        files.act(lambda store: write_plan(store, replace(plan, slices=None)))
    collect(lake)

    assert "erase once more" in stands(again(lake, made))["garbage"]
