"""Certificates of erasures: what is absent, what stands and why, and asked again later. No Spark."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import json
from msgspec.structs import replace

from lakebed.base import Conflict, Entry, LakebedError
from lakebed.cli.gc.report import certificate_html
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds.erasure.certificate import certifying, contents
from lakebed.gc.kinds.erasure.certificate.contents import read_checksums
from lakebed.gc.messages import (
    RESTORED_FROM,
    BadInput,
    Certificate,
    CertificateHead,
    Plan,
    RestoredFrom,
    RunKind,
    certificate_path,
    decode_certificate,
    encode_certificate,
    head_of,
    is_signed,
    plan_path,
    signed_bytes,
)
from lakebed.gc.rules import Selection, digests_in
from lakebed.objectstore import MemoryObjectStore, ObjectStoreOptions, keeps_versions, open_objectstore
from lakebed.operations.gc import collectors
from lakebed.runtime import live_ports
from tests.gc.kinds.erasure.test_plan import deferred, erase, versions_of
from tests.gc.mark.test_holding import hold
from tests.objectstore.s3_servers import client_of, make_bucket, serve_moto
from tests.spark.lakeside import Lakeside


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def certified(lake: Lakeside, *paths: str, **how: Any) -> Certificate:
    plan = erase(lake, *paths, **how)
    lake.collector.apply(None, plan.run_id)
    return lake.collector.on(None).certify(plan.run_id, by="ann")


def signed(lake: Lakeside, changed: Certificate) -> Certificate:
    """Return it as if the server had signed just this."""
    head = lake.wait(lake.service.sign_certificate(changed.run_id, head_of(changed)))
    return replace(changed, **{name: getattr(head, name) for name in CertificateHead.__struct_fields__})


def stands(certificate: Certificate) -> dict[str, str]:
    """Return what stands, but for bytes without an entry: test_proving.py."""
    return {one.what: one.why for one in certificate.stands if one.what != "garbage"}


def test_a_certificate_names_each_object_and_that_it_is_absent(lake: Lakeside) -> None:
    found = versions_of(lake)

    made = certified(lake, "users/ann")

    assert {one.address: one.is_absent for one in made.objects} == dict.fromkeys(found, True)
    assert all(one.paths == ("users/ann",) and one.checksum for one in made.objects)
    assert (made.made_by, made.why) == ("ann", "request 12")
    assert len(made.ledger) == 1
    assert lake.collector.certificate(made.run_id) == made


def test_a_certificate_says_when_by_which_ledger_and_what_remains_as_a_name(lake: Lakeside) -> None:
    versions_of(lake)

    made = certified(lake, "users/ann")

    [(key, digest)] = made.ledger.items()
    assert digest == hashlib.sha256((lake.folder / key).read_bytes()).hexdigest()
    assert made.made_ms == lake.clock.now_ms()
    assert made.namespace == lake.uri
    assert any("names in commits, ranges" in one for one in made.remains)
    assert any("backups" in one for one in made.remains)


def test_a_certificate_that_was_changed_is_refused(lake: Lakeside) -> None:
    versions_of(lake)
    made = certified(lake, "users/ann")
    [first, *others] = made.objects

    for changed, reason in (
        (replace(made, made_by="bob"), "not as this server signed it"),
        (replace(made, objects=(replace(first, address="data/other"), *others)), "not as this server signed it"),
        (replace(made, stands=()), "not as this server signed it"),
        (replace(made, signature=""), "not as this server signed it"),
        (replace(made, why="no reason"), "disagrees with the records of run .*: why"),
        (replace(made, selection=Selection(paths=("users/bob",))), "disagrees with the records of run .*: selection"),
        (replace(made, run_id="0a"), "is not an erasure that was applied here"),
    ):
        again = decode_certificate(encode_certificate(changed))
        with pytest.raises(LakebedError, match=reason):
            lake.collector.on(None).verify(again, by="bob")
    assert lake.collector.on(None).verify(decode_certificate(encode_certificate(made)), by="bob").signature


def test_a_run_of_another_kind_or_that_was_not_applied_is_certified_by_no_server(lake: Lakeside) -> None:
    versions_of(lake)
    made = certified(lake, "users/ann")
    only_planned = erase(lake, "users/bob").run_id
    collected = lake.collector.plan(None, RunKind.UNCOMMITTED).run_id
    stopped = erase(lake, "users/bob")

    def die() -> None:
        raise Conflict("the collector dies before it deletes")

    lake.before["sweeping"] = die
    with pytest.raises(LakebedError):
        lake.collector.apply(None, stopped.run_id)
    of_stopped = replace(
        made, selection=Selection(paths=("users/bob",)), planned_ms=stopped.now_ms, plan=stopped.garbage.digest()
    )
    with pytest.raises(LakebedError, match="is not an erasure that was applied here"):
        lake.wait(lake.service.sign_certificate(stopped.run_id, replace(of_stopped, run_id=stopped.run_id)))
    for run_id in (only_planned, collected):
        with pytest.raises(LakebedError, match="is not an erasure that was applied here"):
            lake.wait(lake.service.sign_certificate(run_id, replace(made, run_id=run_id)))


def test_a_certificate_is_checked_by_the_stored_one_once_its_plan_is_gone(lake: Lakeside) -> None:
    versions_of(lake)
    made = certified(lake, "users/ann")
    (lake.folder / plan_path(RunKind.ERASURE, made.run_id)).unlink()

    assert lake.collector.on(None).verify(made, by="bob").signature
    file = lake.folder / certificate_path(made.run_id)
    file.write_bytes(encode_certificate(replace(made, why="forged")))
    with pytest.raises(LakebedError, match="is not an erasure that was applied here"):
        lake.collector.on(None).verify(replace(made, why="forged"), by="bob")


def test_a_public_key_is_enough_to_check_a_certificate(lake: Lakeside) -> None:
    versions_of(lake)
    made = certified(lake, "users/ann")
    pem = lake.wait(lake.service.certificate_key()).pem

    key = load_pem_public_key(pem.encode())

    assert isinstance(key, Ed25519PublicKey)
    key.verify(bytes.fromhex(made.signature), signed_bytes(made))
    assert is_signed(made, pem)
    assert not is_signed(replace(made, objects=()), pem)


def test_the_server_signs_and_checks_a_head_that_has_no_objects(lake: Lakeside) -> None:
    """A certificate may have 300,000 objects. To decode them takes a third of a second, on the event loop."""
    versions_of(lake)
    made = certified(lake, "users/ann")

    head = head_of(made)

    assert (type(head), head.contents) == (CertificateHead, made.contents)
    assert b"data/" not in json.encode(head)
    assert lake.wait(lake.service.check_certificate(made.run_id, head)) == head
    assert collectors.SIGN_GC_CERTIFICATE.body is collectors.CHECK_GC_CERTIFICATE.body is CertificateHead


def test_bytes_that_are_at_an_erased_address_again_are_not_absent(lake: Lakeside) -> None:
    """The store is asked each time: nothing is believed because a run deleted it."""
    address = lake.upload("users/ann", b"secret")
    lake.commit()
    made = certified(lake, "users/ann")
    assert [one.is_absent for one in made.objects] == [True]

    lake.wait(lake.objectstore.put(address, b"secret"))
    again = lake.collector.on(None).verify(made, by="bob")

    assert [one.is_absent for one in again.objects] == [False]
    assert [(one.what, one.where) for one in again.stands if one.what != "garbage"] == [("object", address)]


def test_a_copy_with_the_same_content_stands(lake: Lakeside) -> None:
    lake.upload("users/ann", b"secret")
    lake.upload("old/backup", b"secret")
    lake.upload("users/bob", b"other")
    lake.commit()

    made = certified(lake, "users/ann")

    assert stands(made) == {"copy": "has an erased checksum, at old/backup"}


def test_a_copy_that_is_staged_stands_in_the_plan_and_in_the_certificate(lake: Lakeside) -> None:
    lake.upload("users/ann", b"secret")
    lake.commit()
    copy = lake.upload("backup/ann", b"secret")
    lake.upload("users/bob", b"other")
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    why = "has an erased checksum, is staged on branch main at backup/ann"
    assert stands(made) == {"copy": why}
    assert plan.outlook is not None
    assert [(one.what, one.where, one.why) for one in plan.outlook.stands] == [("copy", copy, why)]


def test_an_object_that_another_entry_names_stands(lake: Lakeside) -> None:
    lake.upload("users/ann")
    lake.commit()
    lake.copy("main", "users/ann", "all/ann")
    lake.commit()
    lake.wait(lake.versions.cleanup.clean())

    made = certified(lake, "users/ann")

    assert stands(made) == {"object": "entries that are not selected name it: all/ann"}
    assert stands(certified(lake, "users/ann", shared=True)) == {}


def test_what_is_held_stands(lake: Lakeside) -> None:
    lake.upload("users/ann")
    lake.commit()
    hold(lake, "users/")

    assert stands(certified(lake, "users/ann")) == {"object": "legal hold case-7 keeps it"}


@pytest.mark.parametrize(
    "selected",
    [{"metadata": {"class": "pii"}}, {"globs": ("users/",), "metadata": {"class": "pii"}}, {"digests": ("0" * 32,)}],
)
def test_a_deferred_run_stands_where_digests_or_metadata_select(lake: Lakeside, selected: dict[str, Any]) -> None:
    """The tables of deferred runs know neither, so whether they keep erased content is unknown."""
    deferred(lake, **{"class": "pii"})

    made = certified(lake, **selected)

    assert stands(made)["deferred"].startswith("is deferred and may keep erased content: 1 object")


def test_a_deferred_run_with_nothing_at_the_paths_does_not_stand(lake: Lakeside) -> None:
    deferred(lake)
    lake.upload("elsewhere/a", b"pii", metadata={"class": "pii"})
    lake.commit()

    assert stands(certified(lake, globs=("elsewhere/",), metadata={"class": "pii"})) == {}
    assert stands(certified(lake, "users/ann")) == {}


@pytest.mark.parametrize("other", ["all/ann", "zz/ann"])
def test_a_deferred_object_that_stays_for_another_path_stands(lake: Lakeside, other: str) -> None:
    old = deferred(lake, other)

    made = certified(lake, "users/ann")

    assert old in lake.addresses()
    assert stands(made)["deferred"].endswith(f"entries that are not selected name it: {other}")
    assert stands(certified(lake, "users/ann", shared=True)) == {}


def kept_for_a_window(lake: Lakeside, *versions: tuple[str, bytes]) -> tuple[str, list[str]]:
    """Return a deferred run and the addresses of these versions of paths, which it keeps."""
    found = []
    for number, (path, data) in enumerate(versions):
        found.append(lake.upload(path, data))
        lake.commit(age_days=30 - number)
    for path in {path for path, _ in versions}:
        lake.delete(path)
    lake.commit(age_days=19)
    lake.upload("data/now", b"now")
    lake.commit(age_days=1)
    lake.rules(10)
    run = lake.collector.plan(None, RunKind.COMMITTED).run_id
    lake.collector.apply(None, run, window="7d")
    assert lake.addresses() >= set(found)
    return run, found


def kept_after_an_erasure(lake: Lakeside) -> tuple[Certificate, str, str]:
    """Return a certificate, a run that keeps a later version of its path for a window, and that version's address."""
    lake.upload("users/ann", b"secret")
    lake.commit(age_days=40)
    made = certified(lake, "users/ann")
    run, [late] = kept_for_a_window(lake, ("users/ann", b"later!"))
    return made, run, late


def restore_and_purge(lake: Lakeside, run: str) -> None:
    assert lake.collector.restore(path="users/", prefix="back/").restored == 1
    lake.end_window(run)
    lake.collector.purge(None)


@pytest.mark.parametrize("before", ["_deferred_now", "_find_copies", "deferred_copies", "_on_no_record"])
def test_what_is_restored_and_purged_while_a_certificate_is_asked_stands(
    lake: Lakeside, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """`before` is the step that comes next: the object goes from the deferred run to a branch before it."""
    made, run, late = kept_after_an_erasure(lake)
    real, rounds = getattr(certifying, before), 2 if before in ("_deferred_now", "deferred_copies") else 1
    calls: list[str] = []

    async def hooked(*args: Any, **how: Any) -> Any:
        calls.append(before)
        if len(calls) == rounds:
            await asyncio.to_thread(restore_and_purge, lake, run)
        return await real(*args, **how)

    monkeypatch.setattr(certifying, before, hooked)
    again = lake.collector.on(None).verify(made, by="bob")
    monkeypatch.undo()
    later = lake.collector.on(None).verify(again, by="bob")

    assert len(calls) >= rounds
    assert late not in lake.addresses()
    assert {"deferred", "copy"} & stands(again).keys()
    assert "copy" in stands(later), "a certificate that named the object asks for its restored copies"


def test_a_restored_copy_of_what_a_certificate_saw_in_a_deferred_run_stands_once_the_run_has_ended(
    lake: Lakeside,
) -> None:
    made, run, _ = kept_after_an_erasure(lake)
    made = lake.collector.on(None).verify(made, by="bob")
    assert stands(made).keys() == {"deferred"}

    restore_and_purge(lake, run)

    assert "copy" in stands(lake.collector.on(None).verify(made, by="bob"))


def test_what_a_deferred_run_keeps_with_the_same_bytes_stands_in_the_plan_and_in_the_certificate(
    lake: Lakeside,
) -> None:
    """Its table has no checksums, and the path is another one: only the bytes tell."""
    run, [copy, _] = kept_for_a_window(lake, ("hot", b"secret"), ("hot", b"other!"))
    lake.upload("users/ann", b"secret")
    lake.commit()
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    why = f"has an erased checksum; run {run} keeps it, it was at hot"
    assert [(one.what, one.where, one.why) for one in made.stands if one.what != "garbage"] == [("deferred", copy, why)]
    assert plan.outlook is not None
    assert [(one.what, one.where, one.why) for one in plan.outlook.stands] == [("deferred", copy, why)]
    (lake.folder / copy).unlink()
    assert stands(lake.collector.on(None).verify(made, by="bob")) == {}


def test_a_deferred_object_of_the_same_size_stands_where_the_checksum_is_not_of_bytes(lake: Lakeside) -> None:
    """As that of an upload in parts: which bytes these were is not on record."""
    _, [copy, _] = kept_for_a_window(lake, ("hot", b"secret"), ("users/ann", b"other!"))
    made = certified(lake, "users/ann")
    assert stands(made) == {}

    unnamed = [replace(one, address=f"{one.address[:-1]}9", checksum=f"{'0' * 32}-2") for one in made.objects]
    in_parts = replace(made, objects=tuple(unnamed))
    again = lake.collector.on(None).verify(signed(lake, in_parts), by="bob")

    assert [one.where for one in again.stands if one.what == "deferred"] == [copy]


def test_a_deferred_run_stands_where_too_many_objects_have_an_erased_size(
    lake: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = kept_for_a_window(lake, ("hot", b"other!"))
    lake.upload("users/ann", b"secret")
    lake.commit()
    made = certified(lake, "users/ann")
    monkeypatch.setattr(contents, "DEFERRED_READ_MAX", 0)

    again = lake.collector.on(None).verify(made, by="bob")

    assert [one.where for one in again.stands if one.what == "deferred"] == [f"run {run}"]


@pytest.mark.parametrize("commits", [True, False])
def test_a_restored_copy_of_what_only_a_deferred_run_keeps_stands(lake: Lakeside, commits: bool) -> None:
    """No entry names the erased object any more, so no record has its checksum: the plan reads its bytes."""
    old = deferred(lake)
    lake.collector.restore(path="users/", prefix="back/")
    if commits:
        lake.commit()
    [run] = [view.run_id for view in lake.collector.runs() if view.until_ms]
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)
    # Its commits, which an undo could bring back until then, had the checksum.
    lake.end_window(run)
    lake.collector.purge(None)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    assert old not in lake.addresses()
    why = "has an erased checksum, at" if commits else "has an erased checksum, is staged on branch main at"
    assert stands(made) == {"copy": f"{why} back/users/ann"}
    assert [one.checksum for one in made.objects] == [hashlib.md5(b"data").hexdigest()]
    assert plan.outlook is not None
    assert [(one.what, one.why) for one in plan.outlook.stands] == [("copy", f"{why} back/users/ann")]


def test_a_copy_of_another_checksum_stands_where_its_metadata_says_that_it_was_restored(lake: Lakeside) -> None:
    """The checksum of what was uploaded in parts is not that of the bytes, which a restored copy has."""
    old = lake.upload("users/ann", b"secret")
    source = RestoredFrom(path="back/ann", run="r1", address=old, seen_ms=1, restore="x")
    lake.upload("back/ann", b"in parts", metadata={RESTORED_FROM: json.encode(source).decode()})
    lake.upload("back/bob", b"other", metadata={RESTORED_FROM: "what a person wrote"})
    lake.commit()

    made = certified(lake, "users/ann")

    assert stands(made) == {"copy": f"was restored from {old}, at back/ann"}


@pytest.mark.parametrize("is_committed", [False, True])
def test_metadata_that_nests_without_end_keeps_no_one_from_a_certificate(lake: Lakeside, is_committed: bool) -> None:
    """S3 takes 2 KB of metadata."""
    lake.upload("users/ann", b"secret")
    lake.commit()
    lake.upload("mine/x", b"x", metadata={RESTORED_FROM: '{"x":' + "[" * 1_900})
    if is_committed:
        lake.commit()

    made = certified(lake, "users/ann")

    assert stands(made) == {}


def test_a_staged_copy_of_another_checksum_stands_where_its_metadata_says_that_it_was_restored(lake: Lakeside) -> None:
    old = lake.upload("users/ann", b"secret")
    lake.commit()
    source = RestoredFrom(path="back/ann", run="r1", address=old, seen_ms=1, restore="x")
    copy = lake.upload("back/ann", b"in parts", metadata={RESTORED_FROM: json.encode(source).decode()})
    other = RestoredFrom(path="back/bob", run="r1", address="data/elsewhere/1", seen_ms=1, restore="x")
    lake.upload("back/bob", b"other", metadata={RESTORED_FROM: json.encode(other).decode()})
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    why = f"was restored from {old}, is staged on branch main at back/ann"
    assert stands(made) == {"copy": why}
    assert plan.outlook is not None
    assert [(one.what, one.where, one.why) for one in plan.outlook.stands] == [("copy", copy, why)]


def from_source(path: str, address: str) -> dict[str, str]:
    """Return the metadata that a restore gives a copy."""
    source = RestoredFrom(path=path, run="r1", address=address, seen_ms=1, restore="x")
    return {RESTORED_FROM: json.encode(source).decode()}


def upload_in_parts(lake: Lakeside, path: str, data: bytes) -> str:
    """Stage an object with the checksum of an upload in parts: that of its bytes is another. Return its address."""

    async def store_body(address: str) -> Entry:
        stored = await lake.objectstore.put(address, data)
        return Entry(
            address=address, size_bytes=stored.size_bytes, checksum=f"{'0' * 32}-2", modified_ms=1, metadata={}
        )

    return lake.wait(lake.versions.staging.upload("main", path.encode(), store_body)).address


@pytest.mark.parametrize("commits", [True, False])
def test_restores_of_a_restored_copy_stand_in_the_plan_and_in_the_certificate(lake: Lakeside, commits: bool) -> None:
    """The last names the one before it alone, and retention took that."""
    old = lake.upload("users/ann", b"secret")
    back = lake.upload("back/ann", b"in parts", metadata=from_source("back/ann", old))
    lake.commit()
    (lake.folder / back).unlink()
    again = lake.upload("again/ann", b"in other parts", metadata=from_source("again/ann", back))
    lake.upload("again/bob", b"other", metadata=from_source("again/bob", "data/elsewhere/1"))
    if commits:
        lake.commit()
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    why = f"was restored from {back}, {'at' if commits else 'is staged on branch main at'} again/ann"
    assert [(one.where, one.why) for one in made.stands if one.what == "copy"] == [(again, why)]
    assert plan.outlook is not None
    assert [(one.what, one.where, one.why) for one in plan.outlook.stands] == [("copy", again, why)]


@pytest.mark.parametrize("commits", [True, False])
def test_what_has_the_checksum_of_a_restored_copy_stands(lake: Lakeside, commits: bool) -> None:
    """That of an upload in parts is another, so the erased object's own finds neither."""
    old = upload_in_parts(lake, "users/ann", b"secret")
    back = lake.upload("back/ann", b"secret", metadata=from_source("back/ann", old))
    lake.commit()
    other = lake.upload("other/ann", b"secret")
    lake.upload("other/bob", b"other")
    if commits:
        lake.commit()

    made = certified(lake, "users/ann")

    where = "at other/ann" if commits else "is staged on branch main at other/ann"
    assert {one.where: one.why for one in made.stands if one.what == "copy"} == {
        back: f"was restored from {old}, at back/ann",
        other: f"has the checksum of a restored copy, {where}",
    }


def test_that_copies_were_not_sought_stands_where_marks_lead_on_and_on(lake: Lakeside) -> None:
    """Anybody may write such marks, so a certificate follows them only so far, and says it."""
    address = upload_in_parts(lake, "users/ann", b"secret")
    for number in range(certifying._TURNS_MAX):
        data = b"%d" % number
        lake.upload(f"marked/{number}", data, metadata=from_source("x", address))
        address = lake.upload(f"same/{number}", data)
    lake.commit()

    made = certified(lake, "users/ann")

    why = "copies were not sought of 1 more checksum that restored copies have"
    assert [one.why for one in made.stands if one.where == lake.uri and one.what == "copy"] == [why]


def test_a_copy_that_is_committed_once_the_commits_were_read_stands(lake: Lakeside) -> None:
    """Only they have the checksum of what came since, and its bytes are gone. So they are read once more, after what is
    staged.
    """
    lake.upload("users/ann", b"secret")
    lake.commit()
    made = certified(lake, "users/ann")
    back = lake.upload("users/ann", b"back")
    lake.commit()
    (lake.folder / back).unlink()
    copy = lake.upload("backup/ann", b"back")

    def commit_next() -> None:
        lake.before["staged"] = lake.commit

    lake.before["commits"] = commit_next

    again = lake.collector.on(None).verify(made, by="bob")

    assert not lake.before
    assert [(one.where, one.why) for one in again.stands if one.what == "copy"] == [
        (copy, "has an erased checksum, at backup/ann")
    ]


def test_what_is_committed_while_a_certificate_is_made_is_in_it(lake: Lakeside) -> None:
    """What is staged is read before the commits. The other way round it would be in neither."""
    versions_of(lake)
    made = certified(lake, "users/ann")
    back = lake.upload("users/ann", b"back")
    copy = lake.upload("backup/ann", b"three")

    def commit_before(word: str) -> None:
        lake.before.clear()
        lake.before[word] = lake.commit

    lake.before |= {"staged": lambda: commit_before("commits"), "commits": lambda: commit_before("staged")}

    again = lake.collector.on(None).verify(made, by="bob")

    assert not lake.before
    assert {back, copy} <= {one.where for one in again.stands}


def test_that_copies_were_not_sought_stands_where_no_record_has_the_checksum(lake: Lakeside) -> None:
    """As of an erasure that an earlier release planned."""
    deferred(lake)
    made = certified(lake, "users/ann")
    assert stands(made) == {}

    unnamed = [replace(one, address=f"{one.address[:-1]}9", checksum="") for one in made.objects]
    bare = signed(lake, replace(made, objects=tuple(unnamed)))
    lake.wait(lake.objectstore.put(certificate_path(made.run_id), encode_certificate(bare)))
    again = lake.collector.on(None).verify(bare, by="bob")

    assert stands(again) == {"copy": "copies were not sought of 1 erased object: no record has the checksum"}


def test_what_waits_in_the_queue_of_hard_delete_stands_where_digests_or_metadata_select(lake: Lakeside) -> None:
    """The queue knows neither, so what it has at a selected path may be erased content."""
    lake.wait(lake.versions.hard_delete.change(by="ann", is_on=True, is_paused=True))
    old = lake.upload("users/ann", b"one")
    lake.upload("users/ann", b"two", metadata={"class": "pii"})
    lake.upload("users/bob", b"three")
    lake.upload("users/bob", b"four")
    lake.commit()
    assert old in lake.addresses()

    made = certified(lake, "users/ann", metadata={"class": "pii"})

    assert old in lake.addresses()
    assert [(one.what, one.where) for one in made.stands if one.what != "garbage"] == [("queued", old)]


def test_verifying_finds_what_came_back(lake: Lakeside) -> None:
    lake.upload("users/ann", b"secret")
    lake.commit()
    made = certified(lake, "users/ann")
    assert stands(made) == {}

    lake.upload("elsewhere", b"secret")
    lake.commit()
    lake.upload("users/ann", b"new")
    again = lake.collector.on(None).verify(made, by="bob")

    assert stands(again) == {
        "object": certifying._LATER,
        "copy": "has an erased checksum, at elsewhere",
        "staged": "is staged on branch main",
    }
    assert again.made_by == "bob"


def test_what_a_hold_on_a_commit_may_keep_is_said_with_its_name(lake: Lakeside) -> None:
    versions_of(lake)
    first = list(lake.wait(lake.versions.history.log("main", limit=9))[0])[1]
    hold(lake, commits=(first.id,))

    made = certified(lake, "users/ann")

    assert "legal hold case-7 may keep a commit that has it" in stands(made)["object"]


def test_a_certificate_that_was_changed_is_none(lake: Lakeside) -> None:
    versions_of(lake)
    data = encode_certificate(certified(lake, "users/ann"))

    with pytest.raises(BadInput, match="contradicts its digest"):
        decode_certificate(data.replace(b"request 12", b"request 13"))


def test_a_run_that_is_no_erasure_has_no_certificate(lake: Lakeside) -> None:
    lake.rules(1)
    (plan, *_) = lake.collector.plan_each(None)

    with pytest.raises(BadInput, match="not an erasure"):
        lake.collector.on(None).certify(plan.run_id, by="ann")


def erased_and_forgotten(lake: Lakeside) -> Certificate:
    """An erasure takes what was only staged at the path, so that no commit has the checksum of its content."""
    lake.upload("users/ann", b"secret")
    first = certified(lake, "users/ann")
    lake.upload("users/ann", b"another")
    lake.upload("backup/ann", b"secret")
    lake.commit()
    return first


def erased_without_a_certificate(lake: Lakeside) -> Plan:
    """An erasure takes what is staged at `users/ann`, and its command dies before it asks for a certificate."""
    lake.upload("users/ann", b"secret")
    first = erase(lake, "users/ann")
    lake.collector.apply(None, first.run_id)
    return first


def test_a_second_erasure_finds_copies_of_what_only_the_first_named(lake: Lakeside) -> None:
    first = erased_and_forgotten(lake)

    second = certified(lake, "users/ann")

    assert {one.address for one in first.objects} < {one.address for one in second.objects}
    assert stands(second) == {"copy": "has an erased checksum, at backup/ann"}


def test_an_earlier_certificate_of_other_paths_adds_nothing(lake: Lakeside) -> None:
    erased_and_forgotten(lake)
    lake.upload("users/bob", b"other")
    lake.commit()

    made = certified(lake, "users/bob")

    assert [one.paths for one in made.objects] == [("users/bob",)]
    assert stands(made) == {}


def test_an_earlier_certificate_that_cannot_be_read_stands(lake: Lakeside) -> None:
    first = erased_and_forgotten(lake)
    key = certificate_path(first.run_id)
    lake.wait(lake.objectstore.put(key, b"damaged"))

    made = certified(lake, "users/ann")

    assert [one.where for one in made.stands if one.what == "copy"] == [key]


def test_an_erasure_that_was_planned_first_and_applied_last_finds_copies_of_what_the_other_named(
    lake: Lakeside,
) -> None:
    lake.upload("users/ann", b"another")
    lake.commit()
    older = erase(lake, "users/ann")
    lake.upload("users/ann", b"secret")
    certified(lake, "users/ann")
    lake.upload("backup/ann", b"secret")
    lake.commit()

    lake.collector.apply(None, older.run_id)
    made = lake.collector.on(None).certify(older.run_id, by="ann")

    assert stands(made) == {"copy": "has an erased checksum, at backup/ann"}


def test_a_checksum_that_only_another_certificate_has_is_taken_over(lake: Lakeside) -> None:
    first = erased_and_forgotten(lake)
    [known] = first.objects
    bare = signed(lake, replace(certified(lake, "users/ann"), objects=(replace(known, checksum=""),)))

    made = lake.collector.on(None).verify(bare, by="bob")

    assert stands(made) == {"copy": "has an erased checksum, at backup/ann"}


def test_by_metadata_alone_what_other_erasures_named_is_not_among_the_objects(lake: Lakeside) -> None:
    erased_and_forgotten(lake)
    lake.upload("pictures/bob", b"bob", metadata={"person": "bob"})
    lake.commit()

    made = certified(lake, metadata={"person": "bob"})
    again = certified(lake, metadata={"person": "bob"})

    assert [one.paths for one in made.objects] == [("pictures/bob",)]
    assert stands(made) == {}
    assert [one for one in made.remains if ": 1 other erasure" in one]
    assert [one.paths for one in again.objects] == [("pictures/bob",)]


def test_copies_are_sought_of_what_an_erasure_took_whose_command_died_before_its_certificate(lake: Lakeside) -> None:
    erased_without_a_certificate(lake)
    lake.upload("users/ann", b"another")
    lake.upload("backup/ann", b"secret")
    lake.upload("users/bob", b"other")
    lake.commit()

    assert stands(certified(lake, "users/ann")) == {"copy": "has an erased checksum, at backup/ann"}
    assert stands(certified(lake, "users/bob")) == {}


def test_what_an_erasure_without_a_certificate_took_stands_where_its_plan_cannot_be_read(lake: Lakeside) -> None:
    first = erased_without_a_certificate(lake)
    lake.upload("users/bob", b"other")
    lake.commit()
    lake.wait(lake.objectstore.put(plan_path(first.kind, first.run_id), b"damaged"))

    made = certified(lake, "users/bob")

    assert [one.where for one in made.stands if one.what == "copy"] == [f"run {first.run_id}"]


def test_an_object_of_another_erasure_has_no_path_that_is_not_selected(lake: Lakeside) -> None:
    lake.upload("users/ann", b"secret")
    lake.copy("main", "users/ann", "users/bob")
    lake.commit()
    first = certified(lake, "users/ann", "users/bob")
    assert [one.paths for one in first.objects] == [("users/ann", "users/bob")]

    made = certified(lake, "users/ann")

    assert [one.paths for one in made.objects] == [("users/ann",)]


def test_the_page_escapes_names_and_says_what_stands(lake: Lakeside) -> None:
    lake.upload("users/<ann>", b"secret")
    lake.upload("old/backup", b"secret")
    lake.commit()

    page = certificate_html(certified(lake, "users/<ann>"))

    assert page.count("users/&lt;ann&gt;") == 2  # what was selected, and the object
    assert '<p class="stands">copy ' in page
    assert page.index("<h2>Objects") < page.index("<h2>What remains elsewhere, or was not looked at</h2>")
    assert "<script" not in page


def test_the_page_says_in_red_what_is_not_absent(lake: Lakeside) -> None:
    lake.upload("users/ann", b"secret")
    lake.commit()
    made = certified(lake, "users/ann")
    present = replace(made, objects=tuple(replace(one, is_absent=False) for one in made.objects))

    assert '<td class="stands">no</td>' in certificate_html(present)
    assert '<td class="stands">no' not in certificate_html(made)


def test_a_bucket_that_keeps_versions_stands_and_the_old_bytes_are_still_there(tmp_path: Path) -> None:
    """Against an S3 server: a delete leaves the version, and neither plan nor certificate says otherwise."""
    with serve_moto() as options:
        bucket, client = make_bucket(options), client_of(options)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        with Lakeside(tmp_path, uri=f"s3://{bucket}/repo", options=options) as lake:
            address = lake.upload("users/ann", b"secret")
            lake.commit()

            plan = erase(lake, "users/ann")
            lake.collector.apply(None, plan.run_id)
            made = lake.collector.on(None).certify(plan.run_id, by="ann")

        assert plan.outlook is not None
        assert [one.what for one in plan.outlook.stands] == ["bucket"]
        assert stands(made) == {"bucket": "keeps versions: a delete leaves the old"}
        assert all(one.is_absent for one in made.objects)
        left = client.list_object_versions(Bucket=bucket, Prefix=f"repo/{address}")["Versions"]
        assert (
            client.get_object(Bucket=bucket, Key=left[0]["Key"], VersionId=left[0]["VersionId"])["Body"].read()
            == b"secret"
        )


@pytest.mark.parametrize(("lock", "keeps"), [(False, False), (True, True)])
def test_a_bucket_with_object_locks_keeps_versions_and_a_plain_one_does_not(lock: bool, keeps: bool) -> None:
    with serve_moto() as options:
        bucket = f"lakebed-test-{uuid.uuid4().hex[:12]}"
        client_of(options).create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=lock)
        if lock:
            client_of(options).put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})

        assert asyncio.run(_asked(f"s3://{bucket}/repo", options)) is keeps


async def _asked(uri: str, options: ObjectStoreOptions) -> bool | None:
    store = open_objectstore(uri, options)
    try:
        return await keeps_versions(store, "clock")
    finally:
        await store.close()


class Numbered(MemoryObjectStore):
    """Numbers what is put, as services other than S3 do whether they keep old versions or not."""

    async def version_of(self, key: str) -> str | None:
        await self.stat(key)
        return "1"


async def test_of_other_services_it_cannot_be_asked() -> None:
    assert await keeps_versions(MemoryObjectStore("mem://m"), "clock") is False
    assert await keeps_versions(Numbered("gs://bucket"), "clock") is None


def test_what_is_no_digest_is_asked_for_in_no_staging_area() -> None:
    checksums = ["a" * 32, "x", "d41d8cd98f00b204e9800998ecf8427e", "two words"]

    assert [asked.digests for asked in digests_in(checksums)] == [("a" * 32, "d41d8cd98f00b204e9800998ecf8427e")]
    assert list(digests_in(["x"])) == []
    assert [len(asked.digests) for asked in digests_in(f"{n:032x}" for n in range(100_001))] == [100_000, 1]


async def test_the_bytes_of_objects_are_read_for_checksums_share_by_share() -> None:
    store = MemoryObjectStore("mem://lake")
    data = {f"data/a/{number}": bytes([number]) * (number + 1) for number in range(40)}
    for address, each in data.items():
        await store.put(address, each)
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: pytest.fail("a read deletes nothing"), shares=3)

    found = await read_checksums(engine, {address: len(each) for address, each in data.items()} | {"data/gone/1": 7})

    assert found == {address: hashlib.md5(each).hexdigest() for address, each in data.items()}
    assert await read_checksums(engine, {}) == {}
