"""What stands in a certificate or an outlook where records, sizes or answers of the store lack. No Spark."""

from __future__ import annotations

import hashlib

import pytest
from msgspec.structs import replace

from lakebed.base import RunId
from lakebed.gc.kinds.erasure.certificate import certifying, contents, foreseeing, standing
from lakebed.gc.kinds.erasure.certificate.standing import NAMES
from lakebed.gc.kinds.erasure.erasing import DeferredRun
from lakebed.gc.messages import GARBAGE, RunState, StagedEntry, encode_part, manifest_of, part_of
from lakebed.gc.rules import Selection
from lakebed.objectstore import MemoryObjectStore, ObjectStat, ObjectStoreDenied
from tests.gc.garbage import context_of, forged
from tests.gc.kinds.erasure.certificate.test_certifying import (
    certified,
    erased_and_forgotten,
    erased_without_a_certificate,
    kept_for_a_window,
    stands,
)
from tests.gc.kinds.erasure.certificate.test_certifying import lake as lake_
from tests.gc.kinds.erasure.test_plan import erase, versions_of
from tests.spark.lakeside import Lakeside

lake = lake_
"""The fixture of the other certificates."""


def test_copies_are_sought_of_what_an_erasure_takes_that_still_deletes(lake: Lakeside) -> None:
    first = erased_without_a_certificate(lake)
    lake.upload("users/ann", b"another")
    lake.upload("backup/ann", b"secret")
    lake.commit()
    second = erase(lake, "users/ann")
    lake.collector.apply(None, second.run_id)
    run = RunId(first.run_id)
    record, held = lake.wait(lake.versions.retired.find_run(run)) or pytest.fail("the run is on record")
    lake.wait(lake.versions.retired.write_run(run, replace(record, state=RunState.SWEEPING), held))

    made = lake.collector.on(None).certify(second.run_id, by="ann")

    assert stands(made) == {"copy": "has an erased checksum, at backup/ann"}


def test_an_object_of_another_erasure_with_a_selected_digest_has_its_paths(lake: Lakeside) -> None:
    """They say which legal hold keeps it."""
    [earlier] = erased_and_forgotten(lake).objects

    made = certified(lake, digests=(hashlib.md5(b"secret", usedforsecurity=False).hexdigest(),))

    paths = {one.address: one.paths for one in made.objects}
    assert paths[earlier.address] == ("users/ann",)
    assert sorted(paths.values()) == [("backup/ann",), ("users/ann",)]


def test_staged_copies_of_all_contents_stand(lake: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are more than one question can name."""
    monkeypatch.setattr(standing, "digests_in", lambda texts: [Selection(digests=(text,)) for text in texts])
    contents_ = (b"secret", b"another")
    for content in contents_:
        lake.upload("users/ann", content)
        lake.commit()
    plan = erase(lake, "users/ann")
    lake.collector.apply(None, plan.run_id)
    copies = [lake.upload(f"backup/{number}", content) for number, content in enumerate(contents_)]

    made = lake.collector.on(None).certify(plan.run_id, by="ann")

    assert sorted(one.where for one in made.stands if one.what == "copy") == sorted(copies)


def test_a_certificate_says_where_the_bucket_cannot_be_asked(lake: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object) -> None:
        return None

    monkeypatch.setattr(standing, "keeps_versions", unknown)
    versions_of(lake)

    assert any(
        "keeps versions or locks objects could not be asked" in one for one in certified(lake, "users/ann").remains
    )


def test_an_outlook_names_a_bucket_that_keeps_versions_however_much_stands(
    lake: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keeps(*_: object) -> bool:
        return True

    monkeypatch.setattr(standing, "keeps_versions", keeps)
    monkeypatch.setattr(foreseeing, "STANDING_MAX", 1)
    for path in ("users/ann", "backup/1", "backup/2"):
        lake.upload(path, b"secret")
    lake.commit()

    outlook = erase(lake, "users/ann").outlook

    assert outlook is not None
    assert ([one.what for one in outlook.stands], outlook.stands_count) == (["bucket", "copy"], 3)


def test_an_object_keeps_the_paths_of_an_earlier_certificate(lake: Lakeside) -> None:
    """A hold on one of them keeps it, also where it is staged at another one by now."""
    versions_of(lake)
    made = certified(lake, "users/ann")
    first = made.objects[0]
    staged = StagedEntry(
        branch="main", path="users/eve", address=first.address, size_bytes=1, checksum="", modified_ms=0
    )

    found = certifying._with_named(made, [staged], NAMES.schema.empty_table())

    assert found[first.address].paths == ("users/ann", "users/eve")
    assert found[first.address].checksum == first.checksum


def test_a_deferred_object_whose_bytes_cannot_be_read_stands(lake: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have erased content, for it has the size."""
    _, [other, _] = kept_for_a_window(lake, ("hot", b"other1"), ("hot", b"another"))
    lake.upload("users/ann", b"secret")
    lake.commit()
    made = certified(lake, "users/ann")
    assert stands(made) == {}

    async def unreadable(*_: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(contents, "read_checksums", unreadable)
    again = lake.collector.on(None).verify(made, by="bob")

    assert [(one.what, one.where) for one in again.stands if one.what != "garbage"] == [("deferred", other)]
    assert "its bytes cannot be read" in stands(again)["deferred"]


async def test_an_object_of_unknown_size_may_have_any_content_and_any_object_that_of_one() -> None:
    store = MemoryObjectStore("mem://sizes")
    rows = forged(["data/a", "data/b", "data/c"], seen_ms=0)
    rows = rows.set_column(rows.schema.get_field_index("size_bytes"), rows.schema.field("size_bytes"), [[-1, 4, 9]])
    data = encode_part(GARBAGE, rows)
    await store.put("f/part", data)
    table = manifest_of(GARBAGE, "f/", [part_of("part", data, rows=3)])

    for sizes, addresses in (([4], ["data/a", "data/b"]), ([-1], ["data/a", "data/b", "data/c"]), ([5], ["data/a"])):
        run = DeferredRun("r", table, has_all_paths=True)
        found = await contents._of_sizes(context_of(store), run, sizes, ())
        assert found["address"].to_pylist() == addresses


async def test_an_object_that_the_store_does_not_show_is_not_absent() -> None:
    class Denying(MemoryObjectStore):
        async def stat(self, key: str) -> ObjectStat:
            raise ObjectStoreDenied(f"no right to see {key}")

    with pytest.raises(ObjectStoreDenied):
        await contents.addresses_there(context_of(Denying("mem://denying")), ["data/a"])
