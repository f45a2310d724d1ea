"""An object of the source as an entry here: addresses of every store, and names of metadata."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lakebed.base import Conflict, Entry, Invalid
from lakebed.catalog import AddressInNamespace, Catalog
from lakebed.catalog.namespaces import OLD_MARKER
from lakebed.catalog.records import MARKER_KEY
from lakebed.migration.adopting import check_named_nowhere_else
from lakebed.migration.entries import Entries, metadata_of
from lakebed.objectstore import ObjectStore
from lakebed.versions import Note
from lakebed.wire import ObjectStats


def stats_at(address: str) -> ObjectStats:
    return ObjectStats(
        path="a", path_type="object", physical_address=address, checksum="00", mtime=1, size_bytes=1, metadata={}
    )


@pytest.mark.parametrize(
    ("theirs", "here"),
    [
        ("s3://b/old/data/ft32/dc4d", "s3://b/old/data/ft32/dc4d"),
        ("gs://bkt/old/data/ft32/dc4d", "gs://bkt/old/data/ft32/dc4d"),
        ("local:///srv/old/repo/data/ft32/dc4d", "local://repo/data/ft32/dc4d"),
    ],
)
def test_addresses_stay_but_for_those_in_folders_of_the_old_machine(catalog: Catalog, theirs: str, here: str) -> None:
    entries = Entries(catalog, "s3://b/old", old_root="/srv/old/")

    assert entries.of(stats_at(theirs)).address == here


def test_an_address_of_an_account_of_azure_that_is_not_this_servers_is_refused(catalog: Catalog) -> None:
    with pytest.raises(Invalid, match="LAKEBED_AZURE_ACCOUNT"):
        Entries(catalog, "s3://b/old").of(stats_at("https://acct.blob.core.windows.net/lake/old/data/x"))


@pytest.mark.parametrize("root", ["", "/srv/other", "/srv/ol"])
def test_an_address_in_another_folder_of_the_old_machine_is_refused(catalog: Catalog, root: str) -> None:
    asked = f", and {root}/ is not it" if root else ""
    with pytest.raises(Invalid, match=f"lies in a folder of the old server's machine: --objects .* store{asked}$"):
        Entries(catalog, "mem://old", old_root=root).of(stats_at("local:///srv/old/repo/data/x"))


async def test_an_address_in_a_namespace_is_refused_also_after_one_beside_it(catalog: Catalog, namespace: str) -> None:
    await catalog.create("other", storage_namespace=namespace)
    entries = Entries(catalog, "mem://entries-old")

    await entries.checked(stats_at("mem://entries-beside/x"))
    with pytest.raises(AddressInNamespace):
        await entries.checked(stats_at(f"{namespace}/data/x"))


@pytest.mark.parametrize(
    ("theirs", "here"),
    [
        ({"X-Amz-Meta-Foo": "1"}, {"foo": "1"}),
        ({"x-amz-meta-foo": "1", "bar": "2"}, {"foo": "1", "bar": "2"}),
        ({"X-Amz-Meta-foo": "1", "foo": "2"}, {"X-Amz-Meta-foo": "1", "foo": "2"}),
        ({"X-Amz-Meta-": "1"}, {"X-Amz-Meta-": "1"}),
    ],
)
def test_no_value_of_metadata_is_lost(theirs: dict[str, str], here: dict[str, str]) -> None:
    assert metadata_of(theirs) == here


@pytest.mark.parametrize("is_folder", [False, True])
async def test_the_old_servers_marker_is_told_by_its_content(catalog: Catalog, is_folder: bool) -> None:
    """Imports look the same way: `import s3://old/data/` reads a folder of a namespace that is none of ours."""
    outer: ObjectStore = catalog.namespaces.open("mem://bucket-of-old")
    address = "mem://bucket-of-old/old/data/" + ("" if is_folder else "x")
    await outer.put(f"old/{MARKER_KEY}", OLD_MARKER)
    await catalog.namespaces.check_outside(address, is_folder=is_folder)

    await outer.put(f"new/{MARKER_KEY}", OLD_MARKER[:-1] + b"!")
    with pytest.raises(AddressInNamespace):
        await catalog.namespaces.check_outside(address.replace("/old/", "/new/"), is_folder=is_folder)


async def test_of_a_namespace_that_is_a_whole_bucket_every_object_counts(catalog: Catalog, namespace: str) -> None:
    other = await catalog.create("other", storage_namespace=namespace)
    entry = Entry(address=f"{namespace}-bucket/x/y", size_bytes=1, checksum="0", modified_ms=0)
    await other.versions.staging.put("main", b"a", entry)

    with pytest.raises(Conflict, match="by other"):
        await check_named_nowhere_else(catalog, "", f"{namespace}-bucket")


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_namespace_of_which_another_repository_names_an_object_is_not_adopted(
    catalog: Catalog, namespace: str, is_committed: bool
) -> None:
    """In a commit or staged, alive or deleted: the object must stay. Names beside the namespace do not count."""
    other = await catalog.create("other", storage_namespace=namespace)
    stage = other.versions.staging.put
    entry = Entry(address=f"{namespace}-old/lake/data/x/y", size_bytes=1, checksum="0", modified_ms=0)
    await stage("main", b"beside", replace(entry, address=f"{namespace}-old/lakes/data/x/y"))
    await check_named_nowhere_else(catalog, "", f"{namespace}-old/lake")

    await stage("main", b"a", entry)
    if is_committed:
        await other.versions.commits.commit("main", Note(message="m", committer="ann"))
        await other.versions.staging.delete("main", b"a")
        await catalog.delete("other")
    with pytest.raises(Conflict, match="by other"):
        await check_named_nowhere_else(catalog, "", f"{namespace}-old/lake")
