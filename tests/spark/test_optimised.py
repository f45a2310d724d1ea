"""Runs that go on from what an earlier one saved: what they find, what they rest on, and when they are not made."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.base import Conflict, Entry, NotFound, RepositoryUid, to_row
from lakebed.gc import Mode
from lakebed.gc.engines.engine import CANDIDATES, LIVE, encode
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.kinds.saved import save
from lakebed.gc.kinds.uncommitted.plan import Choice, choose
from lakebed.gc.live import CollectionService
from lakebed.gc.mark.inputs.named import LiveSet
from lakebed.gc.mark.sets.packing import Cause, pack_foreign
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import (
    Pieces,
    Plan,
    PurgeRequest,
    RunKind,
    RunMode,
    RunReport,
    UncommittedOptions,
    decode_saved,
    encode_saved,
    part_of,
)
from lakebed.gc.rules import DAY_MS, NOTHING_SAVED, Saved
from lakebed.gc.runs.context import RunContext, sha256_of
from lakebed.gc.runs.recording import Ledger
from lakebed.versions import Options, RunRecord, Versions, decode_record, encode_record, keys
from tests.gc.specified import Specification
from tests.spark.lakeside import URI, Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = "_lakefs/retention/gc/uncommitted/"
SAVED = f"{RUNS}*/saved.json"
OLD = Cause(reason="unreferenced")


def collect(spark: SparkSession | None, lakeside: Lakeside, mode: Mode = Mode.AUTOMATIC) -> tuple[Plan, RunReport]:
    plan = lakeside.collector.plan(spark, RunKind.UNCOMMITTED, mode=mode)
    return plan, lakeside.collector.apply(spark, plan.run_id)


def put_on_record(lakeside: Lakeside, saved: Path) -> None:
    """Let the record of the run have the digest of this file, as if its apply had written it."""
    versions, key = lakeside.versions, keys.RUN + saved.parent.name.encode()
    held = lakeside.wait(versions.context.get(key))
    assert held is not None
    record = msgspec.structs.replace(decode_record(RunRecord, held.value), saved=sha256_of(saved.read_bytes()))
    lakeside.wait(versions.store.set(versions.partition, key, encode_record(record)))


def issue(lakeside: Lakeside) -> str:
    return lakeside.wait(lakeside.versions.uploads.issue("main"))


def link(lakeside: Lakeside, address: str, path: str) -> None:
    entry = Entry(address=address, size_bytes=4, checksum="x", modified_ms=1)
    lakeside.wait(lakeside.versions.uploads.link("main", path.encode(), entry))


def test_an_optimised_run_finds_what_became_garbage_since_and_lists_only_new_slices(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    kept = {lakeside.upload("a/1"), lakeside.upload("a/2")}
    lakeside.commit()
    lakeside.upload("a/3")
    first, _ = collect(spark, lakeside)
    lakeside.upload("a/3")
    kept |= {lakeside.upload("a/3"), lakeside.upload("a/4")}
    lakeside.delete("a/1")
    lakeside.commit()

    plan, report = collect(spark, lakeside)

    assert (first.mode, plan.mode, plan.based_on) == (RunMode.CLEAN, RunMode.OPTIMISED, first.run_id)
    assert lakeside.addresses() == kept
    assert plan.listing is not None
    assert (plan.listing.objects, report.objects_deleted) == (3, 2)
    assert (report.mode, report.based_on) == (RunMode.OPTIMISED, first.run_id)
    assert plan.totals.all.size_bytes == 8


def test_bytes_that_came_after_their_slice_was_listed_are_found(spark: SparkSession | None, lakeside: Lakeside) -> None:
    linked, expired, never = issue(lakeside), issue(lakeside), issue(lakeside)
    collect(spark, lakeside)
    for address in (linked, expired):
        lakeside.wait(lakeside.objectstore.put(address, b"late"))
    link(lakeside, linked, "a/1")
    for address in (expired, never):
        assert lakeside.wait(lakeside.versions.uploads.expire(address))

    plan, _ = collect(spark, lakeside, Mode.OPTIMISED)

    assert plan.totals.all.objects == 1
    assert plan.totals.all.size_bytes == 4
    assert lakeside.addresses() == {linked}
    lakeside.delete("a/1")
    lakeside.wait(lakeside.versions.cleanup.clean())
    collect(spark, lakeside, Mode.OPTIMISED)
    assert lakeside.addresses() == set()


def imported(lakeside: Lakeside, path: str, address: str) -> None:
    """An entry as it comes with another system's metadata."""
    entry = Entry(address=address, size_bytes=4, checksum="x", modified_ms=1)
    lakeside.wait(lakeside.versions.staging.write("main", path.encode(), 0, to_row(path.encode(), entry)))


@pytest.mark.parametrize("job_s", [-1, 60], ids=["jobs", "driver"])
def test_foreign_keys_are_nowhere_in_a_run_and_full_uris_of_slices_count(
    spark: SparkSession | None, lakeside: Lakeside, monkeypatch: pytest.MonkeyPatch, job_s: int
) -> None:
    monkeypatch.setattr("lakebed.gc.engines.spark.JOB_S", job_s)
    in_commit, staged, by_number = (lakeside.upload(path) for path in ("a/1", "a/2", "a/3"))
    kept = {in_commit, staged, by_number}
    for path in ("a/1", "a/2"):
        lakeside.delete(path)
    imported(lakeside, "b/1", f"LOCAL{URI[5:]}/{in_commit}")
    imported(lakeside, "c/1", "data/imported/1")
    imported(lakeside, "c/2", "s3://elsewhere/data/1")
    lakeside.commit()
    imported(lakeside, "b/2", f"LOCAL{URI[5:]}/{staged}")
    imported(lakeside, "c/3", "data/imported/3")
    for mode in (Mode.CLEAN, Mode.OPTIMISED):
        lakeside.upload("d")
        lakeside.delete("d")

        plan, _ = collect(spark, lakeside, mode)

        assert lakeside.addresses() == kept
        named = [*lakeside.files(f"{plan.folder}committed/*"), *lakeside.files(f"{plan.folder}uncommitted.live/*")]
        rows = [pq.read_table(file).to_pylist() for file in named]
        assert all(row["bucket"] >= 0 and row["addresses"] == [] for file in rows for row in file)
        assert not lakeside.files(f"{plan.folder}keys/*")


class Both:
    """The runs of Spark beside those of the plain collector, which is the specification and deletes nothing here."""

    def __init__(self, spark: SparkSession | None, lakeside: Lakeside) -> None:
        self._spark = spark
        self._lakeside = lakeside
        self._saved: Saved = NOTHING_SAVED

    def collect(self, mode: Mode) -> None:
        lakeside = self._lakeside
        plain = Specification(lakeside.versions, lakeside.service)
        specified = lakeside.wait(plain.collect_uncommitted(self._saved))
        there = lakeside.addresses()
        plan = lakeside.collector.plan(self._spark, RunKind.UNCOMMITTED, mode=mode)
        assert lakeside.collector.taken(plan.run_id) == specified.garbage & there
        lakeside.collector.apply(self._spark, plan.run_id)
        self._saved = specified.saved


def test_a_share_too_large_for_the_driver_is_a_job_s_and_found_alike(
    spark: SparkSession | None, lakeside: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.gc.engines.spark.JOB_S", -1)
    both, late = Both(spark, lakeside), issue(lakeside)
    lakeside.upload("a/1")
    lakeside.commit()
    for path in ("a/2", "a/2", "a/3"):
        lakeside.upload(path)
    both.collect(Mode.CLEAN)
    lakeside.wait(lakeside.objectstore.put(late, b"late"))
    link(lakeside, late, "a/4")
    lakeside.upload("a/3")
    lakeside.commit()
    lakeside.upload("a/5")
    lakeside.upload("a/5")

    both.collect(Mode.OPTIMISED)

    assert len(lakeside.addresses()) == 5


@pytest.mark.parametrize("seed", range(3))
def test_over_random_histories_runs_find_what_the_specification_does(
    spark: SparkSession | None, lakeside: Lakeside, seed: int
) -> None:
    rng, both, issued = random.Random(seed), Both(spark, lakeside), [issue(lakeside)]

    def paths() -> str:
        return rng.choice(("a/1", "a/2", "b"))

    def fill() -> None:
        lakeside.wait(lakeside.objectstore.put(rng.choice(issued), b"late"))

    def linked() -> None:
        address = rng.choice(issued)
        lakeside.wait(lakeside.objectstore.put(address, b"late"))
        issued.remove(address)
        link(lakeside, address, paths())

    def named_again() -> None:
        """By its full URI, as an import may name it."""
        try:
            address = lakeside.wait(lakeside.versions.staging.get("main", paths().encode())).address
        except NotFound:
            return
        imported(lakeside, rng.choice(("f/1", "f/2")), address if "://" in address else f"{URI}/{address}")

    acts: list[Callable[[], object]] = [
        named_again,
        lambda: imported(lakeside, paths(), rng.choice(("data/imported/1", "s3://elsewhere/data/1"))),
        lambda: lakeside.delete(rng.choice(("f/1", "f/2"))),
        *[lambda: lakeside.upload(paths())] * 4,
        lambda: lakeside.delete(paths()),
        lambda: lakeside.upload("c"),
        lambda: (lakeside.upload("d"), lakeside.commit()),
        lambda: issued.append(issue(lakeside)),
        lambda: fill() if issued else None,
        lambda: linked() if issued else None,
        lambda: lakeside.wait(lakeside.versions.uploads.expire(issued.pop())) if issued else None,
        lambda: lakeside.copy("main", "b", "e") if "b" in issued else lakeside.upload("b"),
    ]
    for mode in (Mode.CLEAN, Mode.OPTIMISED, Mode.OPTIMISED, Mode.OPTIMISED):
        for _ in range(rng.randint(2, 8)):
            rng.choice(acts)()
        both.collect(mode)


def choice(lakeside: Lakeside, options: UncommittedOptions | None = None) -> Choice:
    """How the next run would be made."""

    async def asked(context: RunContext) -> Choice:
        run = await context.service.start(RunKind.UNCOMMITTED)
        try:
            return await choose(context, run, options or UncommittedOptions())
        finally:
            await context.service.abandoned(run.run_id)

    return lakeside.collector.on(None)._act(PurgeRequest(), asked)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def rename_format(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"format":1', b'"format":0', 1))


def of_another_plan(file: Path) -> None:
    saved = decode_saved(file.read_bytes(), file.parent.name)
    file.write_bytes(encode_saved(msgspec.structs.replace(saved, plan="0" * 64)))


def of_another_namespace(file: Path) -> None:
    saved = decode_saved(file.read_bytes(), file.parent.name)
    file.write_bytes(encode_saved(msgspec.structs.replace(saved, namespace="local://lake/other")))


def of_another_run(file: Path) -> None:
    saved = decode_saved(file.read_bytes(), file.parent.name)
    file.write_bytes(encode_saved(msgspec.structs.replace(saved, run_id="other")))


def with_foreign(piece: str) -> Callable[[Path], None]:
    """Whoever made it named a foreign key there."""

    def damage(file: Path) -> None:
        saved = decode_saved(file.read_bytes(), file.parent.name)
        pieces = saved.failed if piece == "failed" else getattr(saved.keeps, piece)
        live = LiveSet()
        live.add_addresses(pa.array(["data/old"]), Namespace("mem://lake"))
        table, rows = (
            (LIVE, live.rows()) if piece == "committed" else (CANDIDATES, pack_foreign(["data/old"], [1], [1], OLD))
        )
        data = encode(table, rows)
        path = file.parent / piece / "foreign-1.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        folder = f"{RUNS}{file.parent.name}/{piece}/"
        pieces = Pieces(folder=folder, parts=(*pieces.parts, part_of(path.name, data, rows=rows.num_rows)))
        if piece == "failed":
            saved = msgspec.structs.replace(saved, failed=pieces)
        else:
            saved = msgspec.structs.replace(saved, keeps=msgspec.structs.replace(saved.keeps, **{piece: pieces}))
        file.write_bytes(encode_saved(saved))

    return damage


DAMAGES: list[tuple[str, Callable[[Path], None], str]] = [
    ("saved.json", Path.unlink, "no run has saved its state"),
    ("saved.json", cut, "unreadable"),
    ("saved.json", rename_format, "has the format 0"),
    ("saved.json", flip, "saved state of run"),
    ("saved.json", of_another_plan, "another plan than its record"),
    ("saved.json", of_another_namespace, "is of local://lake/other"),
    ("saved.json", of_another_run, "is that of run other"),
    ("kept/*", Path.unlink, "kept/.* is missing"),
    ("kept/*", flip, "kept/.* contradicts"),
    ("committed/*", cut, "committed/.* contradicts"),
    ("ranges/*", flip, "ranges/.* contradicts"),
    ("slices/*", Path.unlink, "slices/.* is missing"),
    ("commits/*", flip, "commits/.* contradicts"),
    ("saved.json", with_foreign("kept"), "kept/ holds objects that are in no slice"),
    ("saved.json", with_foreign("failed"), "failed/ holds objects that are in no slice"),
    ("saved.json", with_foreign("committed"), "committed/ holds objects that are in no slice"),
]


def test_a_saved_state_with_anything_amiss_is_not_used_and_the_next_run_says_why(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.commit()
    lakeside.upload("a/2")
    plan, _ = collect(spark, lakeside)
    folder = lakeside.folder / plan.folder
    assert choice(lakeside).mode is RunMode.OPTIMISED

    for pattern, damage, message in DAMAGES:
        (file,) = folder.glob(pattern)
        before = file.read_bytes()
        damage(file)
        if pattern == "saved.json" and file.exists():
            put_on_record(lakeside, file)
        found = choice(lakeside)
        assert (found.mode, found.base) == (RunMode.CLEAN, None), pattern
        with pytest.raises(Conflict, match=message):
            choice(lakeside, UncommittedOptions(mode=Mode.OPTIMISED))
        file.write_bytes(before)
        if pattern == "saved.json":
            put_on_record(lakeside, file)

    assert choice(lakeside).note == f"goes on from run {plan.run_id}"


def test_a_saved_state_that_its_apply_did_not_write_is_not_used(spark: SparkSession | None, lakeside: Lakeside) -> None:
    """Who may plan may write in the object store, and could have it say that no commit names an object."""
    lakeside.upload("a/1")
    collect(spark, lakeside)
    (file,) = lakeside.files(SAVED)
    with_foreign("kept")(file)

    with pytest.raises(Conflict, match="is not the one that its apply wrote"):
        choice(lakeside, UncommittedOptions(mode=Mode.OPTIMISED))


def test_no_file_that_a_run_writes_is_unknown_to_the_next(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    lakeside.commit()
    lakeside.upload("a/2")
    first, _ = collect(spark, lakeside)
    collect(spark, lakeside)

    assert list((lakeside.folder / first.folder).glob("committed.tasks/*"))
    assert collect(spark, lakeside, Mode.CLEAN)[0].unknown_files == ()


def test_a_clean_run_is_made_when_one_is_due_and_when_it_is_asked_for(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    collect(spark, lakeside)
    often = UncommittedOptions(clean_every=2)

    assert choice(lakeside, often).mode is RunMode.OPTIMISED
    plan, _ = collect(spark, lakeside)
    assert plan.keeps is not None
    assert plan.keeps.runs_since_clean == 1
    assert choice(lakeside, often).note.startswith("1 optimised runs since clean run")
    assert choice(lakeside, replace(often, mode=Mode.OPTIMISED)).mode is RunMode.OPTIMISED
    assert choice(lakeside, UncommittedOptions(mode=Mode.CLEAN)).mode is RunMode.CLEAN
    lakeside.clock.ms += 7 * DAY_MS
    assert choice(lakeside).note.endswith("is 7 days old")


def test_a_plan_that_was_not_carried_out_is_no_base(spark: SparkSession | None, lakeside: Lakeside) -> None:
    lakeside.upload("a/1")
    first, _ = collect(spark, lakeside)
    lakeside.delete("a/1")
    unapplied = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    again = lakeside.collector.plan(spark, RunKind.UNCOMMITTED)

    assert (unapplied.based_on, again.based_on) == (first.run_id, first.run_id)
    assert again.totals.all.objects == 1


def test_what_could_not_be_deleted_stays_a_candidate(spark: SparkSession | None, lakeside: Lakeside) -> None:
    garbage = lakeside.upload("a/1")
    lakeside.delete("a/1")
    plan, _ = collect(spark, lakeside)
    lakeside.wait(lakeside.objectstore.put(garbage, b"data"))
    lakeside.fail_in_ledger()
    (recorded,) = lakeside.files("_lakefs/retention/gc/ledger/date=*/*.parquet")
    with Files(Lake(uri=URI, options=lakeside.options)) as files:
        ledger = Ledger(run_id=plan.run_id, date=recorded.parent.name.removeprefix("date="))
        files.act(lambda store: save(store, plan, plan.garbage, ledger, objects_failed=1))
    put_on_record(lakeside, *lakeside.files(SAVED))

    next_plan, report = collect(spark, lakeside, Mode.OPTIMISED)

    assert (next_plan.based_on, next_plan.totals.all.size_bytes) == (plan.run_id, 4)
    assert (report.objects_deleted, lakeside.addresses()) == (1, set())


def test_a_repository_made_anew_in_the_same_namespace_does_not_go_on_from_the_old_one(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    collect(spark, lakeside)
    assert lakeside.files(SAVED)
    old = lakeside.versions
    lakeside.versions = Versions(
        uid=RepositoryUid("r2"),
        store=old.store,
        objectstore=old.objectstore,
        trees=old.trees,
        ports=old.ports,
        options=Options(owner="tests"),
    )
    lakeside.service = CollectionService(lakeside.versions)
    lakeside.wait(lakeside.versions.commits.initialise("main"))
    # Its records know nothing of the namespace: only a person lets it collect there.
    lakeside.wait(lakeside.service.adopting())

    assert choice(lakeside).note == "no run has saved its state yet"


def test_slices_within_the_token_s_lifetime_are_left_to_a_later_run(
    spark: SparkSession | None, lakeside: Lakeside
) -> None:
    lakeside.upload("a/1")
    lakeside.delete("a/1")
    careful = replace(lakeside.collector, how={"token_expiry": "1d"})

    plan = careful.plan(spark, RunKind.UNCOMMITTED)
    report = careful.apply(spark, plan.run_id)
    lakeside.clock.ms += 2 * DAY_MS
    later = careful.plan(spark, RunKind.UNCOMMITTED, mode=Mode.OPTIMISED)

    assert (plan.totals.all.objects, plan.slices_skipped, plan.last_read_slice) == (0, 1, "")
    assert (report.token_expiry_ms, report.slices_skipped) == (DAY_MS, 1)
    assert (later.totals.all.objects, later.slices_skipped) == (1, 0)
