"""A part may be a copy of another object's bytes, made in the object store itself."""

from __future__ import annotations

import base64
import hashlib
import itertools
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from lakebed.base import Entry
from lakebed.catalog import Repository
from lakebed.objectstore import (
    CopiesRanges,
    ObjectCorrupt,
    ObjectMissing,
    ObjectStore,
    ObjectStoreOptions,
    open_deleter,
    open_objectstore,
)
from lakebed.versions import PartRecord, UploadRecord, UploadState
from tests.objectstore.s3_servers import make_bucket, serve_s3

DATA = b"0123456789" * 10_000
CRC32 = base64.b64encode(zlib.crc32(DATA).to_bytes(4)).decode()
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
_names = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture(params=["mem", "local", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> ObjectStoreOptions:
    found: ObjectStoreOptions = (
        request.getfixturevalue("s3") if kind == "s3" else ObjectStoreOptions(local_root=tmp_path)
    )
    return found


@pytest.fixture
def open_namespace(options: ObjectStoreOptions) -> Callable[[str], ObjectStore]:
    return partial(open_objectstore, options=options)


@pytest.fixture
def namespace(kind: str, options: ObjectStoreOptions) -> str:
    root = make_bucket(options) if kind == "s3" else f"copied-parts-{next(_names)}"
    return f"{kind}://{root}/lake"


@pytest.fixture
def copies_ranges(namespace: str, open_namespace: Callable[[str], ObjectStore]) -> bool:
    return isinstance(open_namespace(namespace), CopiesRanges)


async def source(repository: Repository) -> Entry:
    return await repository.objects.upload("main", "source", DATA)


async def begun(repository: Repository, algorithm: str = "") -> str:
    return await repository.multipart.begin("main", "a", content_type="", metadata={}, algorithm=algorithm)


async def copied(
    repository: Repository, name: str, entry: Entry, number: int = 1, span: tuple[int, int] = (0, len(DATA))
) -> PartRecord | None:
    start, end = span
    return await repository.multipart.copy_part(name, number, entry, start=start, end=end, checksums={})


async def test_a_whole_object_is_copied_to_an_address_of_the_parts_own(
    repository: Repository, copies_ranges: bool
) -> None:
    name, entry = await begun(repository), await source(repository)

    part = await copied(repository, name, entry)

    if not copies_ranges:
        assert part is None
        return
    assert part is not None
    assert (part.md5, part.size_bytes) == (MD5, len(DATA))
    assert part.address != entry.address
    made = await repository.multipart.link_only_part(name, part, md5=part.md5, checksum=f"{MD5}-1", metadata={})
    await repository.objects.delete("main", "source")
    assert await repository.objects.read(made) == DATA


async def test_a_range_is_copied_where_the_store_makes_such_copies(repository: Repository, copies_ranges: bool) -> None:
    name, entry = await begun(repository), await source(repository)

    parts = [
        await copied(repository, name, entry, number, span)
        for number, span in ((1, (10, 60_000)), (2, (60_000, len(DATA))))
    ]

    if not copies_ranges:
        assert parts == [None, None]
        return
    made = [part for part in parts if part is not None]
    assert [part.md5 for part in made] == [
        hashlib.md5(data, usedforsecurity=False).hexdigest() for data in (DATA[10:60_000], DATA[60_000:])
    ]
    whole = await repository.multipart.complete(
        name, repository.multipart.stream(made), size_bytes=len(DATA) - 10, checksum="x", metadata={}
    )
    assert await repository.objects.read(whole) == DATA[10:]


async def test_a_parts_md5_is_that_of_its_bytes_whatever_its_source_has_as_checksum(
    repository: Repository, copies_ranges: bool
) -> None:
    name, entry = await begun(repository), await source(repository)

    part = await copied(repository, name, replace(entry, checksum="0123456789abcdef0123456789abcdef"))

    assert (part and part.md5) == (MD5 if copies_ranges else None)


async def test_a_part_whose_checksum_nothing_knows_is_not_copied(repository: Repository, copies_ranges: bool) -> None:
    name, entry = await begun(repository, "CRC32"), await source(repository)

    assert await copied(repository, name, entry) is None

    known = await repository.multipart.copy_part(
        name, 1, entry, start=0, end=len(DATA), checksums={"CRC32": CRC32, "SHA1": "x"}
    )
    assert (known and known.checksum) == (CRC32 if copies_ranges else None)


async def test_an_object_outside_the_namespace_is_not_copied_by_the_store(repository: Repository) -> None:
    name, entry = await begun(repository), await source(repository)

    assert await copied(repository, name, replace(entry, address="s3://elsewhere/x")) is None


async def test_a_copy_that_fails_leaves_no_part_and_gives_its_address_up(
    repository: Repository, namespace: str, options: ObjectStoreOptions, copies_ranges: bool
) -> None:
    name, entry = await begun(repository), await source(repository)
    if not copies_ranges:
        pytest.skip("this store makes no such copies")

    with pytest.raises(ObjectCorrupt):
        await copied(repository, name, replace(entry, size_bytes=len(DATA) + 1), span=(0, len(DATA) + 1))
    deleter = open_deleter(namespace, options)
    assert not await deleter.delete([entry.address])
    await deleter.close()
    with pytest.raises(ObjectMissing):
        await copied(repository, name, entry)

    assert await repository.versions.parts.every(name) == []
    issued = [record async for _, record in repository.versions.inventory.every(UploadRecord)]
    assert [record.state for record in issued] == [UploadState.EXPIRED] * 2
