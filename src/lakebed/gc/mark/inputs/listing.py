"""List the namespace by closed slice into files (`listed/`, docs/formats/gc-plan.md), and the files below `_lakefs/`.

A task lists several slices at once. The run lists before it reads any record that names objects
(docs/design/protocols.md, "A collection of uncommitted data"). The files below `_lakefs/`, recognised by name:

1. The driver lists from the start. With fewer than LISTED_HERE keys the listing is complete.
2. The driver reads a page in the middle of each remaining folder, and cuts the folder into stretches by its density.
3. The driver lists the keys outside of these folders. Tasks list the stretches, and write files of trees if wanted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import parse_slice_name, slice_name
from lakebed.gc.engines import Effort, Engine, Task, Work
from lakebed.gc.engines.engine import (
    CANDIDATES,
    CLOSED,
    PARTS,
    Table,
    decode,
    encode,
    parts_of,
    read_part,
    required,
    rows_of_parts,
    write_part,
)
from lakebed.gc.mark.sets.packing import Cause, pack_numbered
from lakebed.gc.messages import (
    CERTIFICATE_KEY,
    CLAIM_KEY,
    DATA_PREFIX,
    GC_PREFIX,
    HOLDS_KEY,
    INSTALLATION_MARK,
    LC_PREFIX,
    UNKNOWN_FILES_MAX,
    Found,
    Part,
    Pieces,
    RunKind,
)
from lakebed.objectstore import ObjectStat, ObjectStore, Page, is_object_key

UNREFERENCED: Final = Cause(reason="unreferenced")
OBJECTS_PER_PART: Final = 1 << 20


Integers: TypeAlias = npt.NDArray[np.int64]
Issued: TypeAlias = Mapping[int, tuple[Integers, Integers]]
"""By slice: sequences that were handed out, and when. An upload to one may end after the slice was listed."""

_PLACES: Final = 10 ** np.arange(7, -1, -1)

SIZE_UNKNOWN: Final = -1
"""The size of an object that was not listed, and may be missing."""


class Listed(NamedTuple):
    """Hold one slice: its objects as parallel arrays, and the other files in it."""

    sequences: Integers
    sizes: Integers
    seen_ms: Integers
    found: Found


async def list_slices(
    engine: Engine, slices: Sequence[int], *, folder: str, issued: Issued | None = None, cause: Cause = UNREFERENCED
) -> tuple[Pieces, Found]:
    """List these slices into `folder`, as parts of CANDIDATES. Each slice is in one part."""
    # A slice takes one or more pages of a thousand keys.
    effort = Effort(requests=16 * len(slices))
    rows = CLOSED.rows({"bucket": sorted(slices)})
    # Store the listing: the run counts objects before marking, and a plan must show its inputs.
    written = await engine.run(listing_into(folder, issued or {}, cause), rows, PARTS, effort=effort)
    found = Found()
    for note in written["note"].to_pylist():
        found = found.plus(msgspec.json.decode(note, type=Found))
    return Pieces(folder=folder, parts=tuple(parts_of(written.sort_by("name")))), found


def listing_into(folder: str, issued: Issued, cause: Cause = UNREFERENCED) -> Work:
    """Return the work of `list_slices`: from CLOSED to PARTS, each with a `Found` as its note."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def flush() -> pa.Table:
            table, found = _pack(held, cause)
            name = f"slices-{next(iter(held))}.parquet"
            return await write_part(
                task.store, folder, name, encode(CANDIDATES, table), rows=table.num_rows, note=found
            )

        names = [slice_name(number) for number in share["bucket"].to_pylist()]
        held: dict[str, Listed] = {}
        objects = 0
        async for name, listed in task.ahead(names, lambda name: list_slice(task.store, name)):
            held[name] = _with_issued(listed, issued.get(_number(name)))
            objects += len(listed.sequences)
            if objects >= OBJECTS_PER_PART:
                yield await flush()
                held, objects = {}, 0
        if held:
            yield await flush()

    return work


def _pack(held: Mapping[str, Listed], cause: Cause) -> tuple[pa.Table, Found]:
    """Return CANDIDATES of all these slices in one table."""
    # A table for each slice would cost as much as its contents.
    found = Found()
    for listed in held.values():
        found = found.plus(listed.found)
    numbers, counts = [_number(name) for name in held], [len(listed.sequences) for listed in held.values()]
    sequences = np.concatenate([listed.sequences for listed in held.values()])
    sizes = np.concatenate([listed.sizes for listed in held.values()])
    seen_ms = np.concatenate([listed.seen_ms for listed in held.values()])
    slices = np.repeat(np.array(numbers, np.int64), counts)
    return pack_numbered(slices, sequences, sizes, seen_ms, cause), found


async def list_slice(store: ObjectStore, name: str) -> Listed:
    prefix = f"{DATA_PREFIX}{name}/"
    begin = len(prefix)
    digits: list[str] = []
    listed_bytes: list[int] = []
    modified_ms: list[int] = []
    unknown_files: list[str] = []
    async for page in store.list(prefix):
        keys = page.keys if isinstance(page, Page) else [stat.key for stat in page]
        rests = [key[begin:] for key in keys]
        if not _are_sequences(rests):
            unknown_files += [key for rest, key in zip(rests, keys, strict=True) if not _are_sequences([rest])]
            page = [stat for rest, stat in zip(rests, page, strict=True) if _are_sequences([rest])]  # noqa: PLW2901 - less of it
            rests = [stat.key[begin:] for stat in page]
        digits += rests
        listed_bytes += page.sizes if isinstance(page, Page) else [stat.size_bytes for stat in page]
        modified_ms += page.modified_ms if isinstance(page, Page) else [stat.modified_ms for stat in page]
    values = np.frombuffer("".join(digits).encode(), np.uint8).reshape(len(digits), 8) - ord("0")
    sizes = np.array(listed_bytes, np.int64)
    found = Found(
        objects=len(digits),
        size_bytes=int(sizes.sum()),
        slices=1,
        unknown_files=tuple(unknown_files[:UNKNOWN_FILES_MAX]),
        unknown_files_count=len(unknown_files),
    )
    return Listed(values.astype(np.int64) @ _PLACES, sizes, np.array(modified_ms, np.int64), found)


def _are_sequences(names: Sequence[str]) -> bool:
    """Return whether each name is a sequence of an address."""
    # Check all names at once: nearly always all are sequences.
    together = "".join(names)
    return together.isascii() and together.isdigit() and set(map(len, names)) == {8}


def _with_issued(listed: Listed, issued: tuple[Integers, Integers] | None) -> Listed:
    """Add the addresses that were handed out in the slice and have no listed object."""
    if issued is None:
        return listed
    sequences, issued_ms = issued
    new = ~np.isin(sequences, listed.sequences)
    return Listed(
        np.concatenate((listed.sequences, sequences[new])),
        np.concatenate((listed.sizes, np.full(int(new.sum()), SIZE_UNKNOWN, np.int64))),
        # No object has a date yet, so take the date of the upload record.
        np.concatenate((listed.seen_ms, issued_ms[new])),
        listed.found,
    )


def _number(name: str) -> int:
    number = parse_slice_name(name)
    assert number is not None, name
    return number


# Files below `_lakefs/`. Any folder may have unknown files: a backup beside ranges, a lock file in a run's folder, a
# user's file at the root. Every plan reports them, and none deletes them. Nearly all other files are files of trees,
# perhaps millions, in TREE_FOLDERS.

SPECIAL_PREFIX: Final = "_lakefs/"
DUMPS: Final = "refs"
"""The group of all dumps of refs, and their folder."""
LAST_FILE: Final = "_symlinks.json"
"""The last file that a request for symlinks writes."""

_RUN: Final = rf"{GC_PREFIX}({'|'.join(RunKind)})/([0-9a-z][0-9a-z-]*)"
_RUN_FILE: Final = re.compile(
    rf"{_RUN}/(?:"
    r"(?:apply|deferred|plan|purge|report|rules|saved|sweep|closed\.[0-9a-z]+|recheck\.[0-9a-f]{16}|turn\.\d{6})\.json"
    r"|manifests/[0-9a-z._-]+\.json"
    r"|[0-9a-z._-]+/(?:(?:due|stays|versions)/)?[a-z]+-[0-9a-z-]+\.(?:parquet|arrow))",
    re.ASCII,
)
_TREE_FILE: Final = re.compile(r"_lakefs/(?:(?:meta)?ranges|sublists)/([0-9a-f]{64})\.parquet", re.ASCII)
_DUMP_FILE: Final = re.compile(r"_lakefs/(refs)/([0-9a-v]{20})/[0-9a-f]{64}\.parquet", re.ASCII)
_SYMLINKS_FILE: Final = re.compile(
    r"_lakefs/(symlinks/[0-9a-f]{16})/([0-9a-v]{20})/(?:(?:.*/)?symlink\.txt|_symlinks\.json)", re.ASCII | re.DOTALL
)
_OTHER: Final = re.compile(
    r"_lakefs/dummy"
    rf"|{CLAIM_KEY}"
    rf"|{HOLDS_KEY}"
    rf"|{CERTIFICATE_KEY}"
    rf"|{INSTALLATION_MARK}"
    rf"|{LC_PREFIX}(?:policy/[0-9a-z-]+\.parquet|stats/\d{{4}}-\d\d-\d\d\.csv)"  # former runs wrote stats there
    rf"|{LC_PREFIX}stats/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.csv"
    rf"|{LC_PREFIX}addresses/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.parquet"
    rf"|{GC_PREFIX}clock\.json"
    rf"|{GC_PREFIX}ledger/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+(?:\.\d{{6}})?\.parquet",
    re.ASCII | re.DOTALL,
)

TREE_FOLDERS: Final = tuple(f"{SPECIAL_PREFIX}{name}/" for name in ("metaranges", "ranges", "sublists"))

TREE_FILES: Final = Table(
    "a file below `_lakefs/` that is named by the id of a range, sublist or metarange",
    required(("id", pa.string()), ("key", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())),
)

LISTED_HERE: Final = 16_000
"""The driver lists this many keys before it deals the rest to tasks: 16 requests to S3."""

KEYS_A_STRETCH: Final = 32_000
"""Cut a folder with more keys by one digit, and a folder with over 32 times as many by two. Names are digests, so each
first digit has about as many files."""

FROM_THE_START: Final = ("local://", "az://")
"""Stores that read a folder from its start, wherever a listing begins: only the driver lists these."""

_PAGE_KEYS: Final = 1000
_REQUESTS_A_PAGE: Final = 16
"""A page takes as long as this number of small reads."""

_DIGITS: Final = "0123456789abcdef"

STRETCHES: Final = Table(
    "keys below `_lakefs/`, from behind one up to another", required(("behind", pa.string()), ("last", pa.string()))
)


class Stretch(NamedTuple):
    behind: str
    last: str


def tree_file(key: str) -> str | None:
    """Return the id of the range, sublist or metarange in this file, or None for any other key."""
    found = _TREE_FILE.fullmatch(key)
    return None if found is None else found[1]


def run_file(key: str) -> tuple[str, str] | None:
    """Return kind and id of the run whose folder has this file, or None if no run writes files of this name."""
    found = _RUN_FILE.fullmatch(key)
    return None if found is None or not is_object_key(key) else (found[1], found[2])


def written_file(key: str) -> tuple[str, str] | None:
    """Return group and request id of a file that was written on request, or None for any other key."""
    found = _DUMP_FILE.fullmatch(key) or _SYMLINKS_FILE.fullmatch(key)
    # Another program's file `a//symlink.txt` cannot be deleted, and must not stop the run.
    return None if found is None or not is_object_key(key) else (found[1], found[2])


def is_metadata(key: str) -> bool:
    """Return whether a plan of metadata may delete this key."""
    return bool(tree_file(key) or run_file(key) or written_file(key))


def is_special_file(key: str) -> bool:
    """Return whether Lakebed writes files of this name below SPECIAL_PREFIX."""
    # Only names decide. Readers follow manifests and ids, so a stranger's file is in no input.
    return is_metadata(key) or bool(_OTHER.fullmatch(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFiles:
    """`keys` are the first UNKNOWN_FILES_MAX of `count`, in order. A key that ends with a slash is a whole folder."""

    keys: tuple[str, ...] = ()
    count: int = 0

    def plus(self, more: UnknownFiles) -> UnknownFiles:
        return UnknownFiles(keys=(self.keys + more.keys)[:UNKNOWN_FILES_MAX], count=self.count + more.count)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a `Plan`."""
        return {"unknown_files": self.keys, "unknown_files_count": self.count}


def unknown_files_of(found: Found) -> UnknownFiles:
    """Return the unknown files in slices."""
    return UnknownFiles(keys=found.unknown_files, count=found.unknown_files_count)


def unknown_files_in_order(found: Sequence[UnknownFiles]) -> UnknownFiles:
    """Add up disjoint groups."""
    # Each group has its own first keys, so the first keys of all groups are among them.
    keys = sorted(key for one in found for key in one.keys)
    return UnknownFiles(keys=tuple(keys[:UNKNOWN_FILES_MAX]), count=sum(one.count for one in found))


def unknown_files_among(keys: Iterable[str]) -> UnknownFiles:
    """Return the keys below SPECIAL_PREFIX that Lakebed does not write."""
    return _unknown_files(sorted(key for key in keys if not is_special_file(key)))


async def find_unknown_files_around(store: ObjectStore) -> UnknownFiles:
    """Return the unknown files at the root of the namespace, and directly in `data/`."""
    root, data = await store.level(), await store.level(DATA_PREFIX)
    beside = [folder for folder in root.folders if folder not in (DATA_PREFIX, SPECIAL_PREFIX)]
    no_slices = [folder for folder in data.folders if parse_slice_name(folder[len(DATA_PREFIX) : -1]) is None]
    return _unknown_files(sorted([*root.keys, *beside, *data.keys, *no_slices]))


def _unknown_files(keys: Sequence[str]) -> UnknownFiles:
    return UnknownFiles(keys=tuple(keys[:UNKNOWN_FILES_MAX]), count=len(keys))


# The listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """Hold the files under `_lakefs/`. Files of trees (TREE_FILES), perhaps millions, are partly in parts. Files of
    runs are by kind and id, files written on request by group and id. The rest are unknown files.
    """

    files: pa.Table
    file_parts: Pieces
    runs: dict[tuple[str, str], list[ObjectStat]]
    written: dict[tuple[str, str], list[ObjectStat]]
    unknown_files: UnknownFiles

    @property
    def files_count(self) -> int:
        return sum((part.rows for part in self.file_parts.parts), start=len(self.files))

    async def tree_files(self, store: ObjectStore) -> AsyncIterator[pa.Table]:
        """Yield all TREE_FILES, in pieces."""
        yield self.files
        async for rows in read_tree_files(store, self.file_parts):
            yield rows


async def read_tree_files(store: ObjectStore, pieces: Pieces) -> AsyncIterator[pa.Table]:
    """Yield TREE_FILES, one part at a time, or raise BadInput."""
    for part in pieces.parts:
        yield decode(TREE_FILES, await read_part(store, pieces.folder, part), part)


async def list_special(engine: Engine, store: ObjectStore, *, folder: str) -> Special:
    """List everything below `_lakefs/`. Tasks write TREE_FILES into `folder`.

    A file whose name is not Lakebed's is an unknown file, in any folder.
    """
    listed = _Listed()
    pieces, unknown_files = await _list(engine, store, listed, into=folder)
    return Special(
        files=pa.concat_tables([TREE_FILES.schema.empty_table(), *listed.files]),
        file_parts=pieces,
        runs=listed.runs,
        written=listed.written,
        unknown_files=unknown_files,
    )


async def find_unknown_files(engine: Engine, store: ObjectStore) -> UnknownFiles:
    """Return unknown files below `_lakefs/` and around the slices. Lists `_lakefs/`, and one level of the root and of
    `data/`. The listing of a slice finds the files in the slice.
    """
    around = await find_unknown_files_around(store)
    _, below = await _list(engine, store, None, into="")
    return around.plus(below)


@dataclass(slots=True)
class _Listed:
    files: list[pa.Table] = field(default_factory=list)
    runs: dict[tuple[str, str], list[ObjectStat]] = field(default_factory=dict)
    written: dict[tuple[str, str], list[ObjectStat]] = field(default_factory=dict)

    def add(self, page: Sequence[ObjectStat]) -> None:
        self.files.append(_tree_files(page))
        for stat in page:
            if (run := run_file(stat.key)) is not None:
                self.runs.setdefault(run, []).append(stat)
            elif (one := written_file(stat.key)) is not None:
                self.written.setdefault(one, []).append(stat)


async def _list(
    engine: Engine, store: ObjectStore, listed: _Listed | None, *, into: str
) -> tuple[Pieces, UnknownFiles]:
    """Add the driver's listing to `listed`. Return the files that tasks wrote, and all unknown files."""
    first, behind, count = UnknownFiles(), "", 0
    async for page in store.list(SPECIAL_PREFIX):
        first = first.plus(_take(page, listed))
        behind, count = page[-1].key, count + len(page)
        if count >= LISTED_HERE and not store.uri.startswith(FROM_THE_START):
            break
    else:
        return Pieces(folder=into), first
    of_trees, beside, effort = await _stretches(store, behind)
    unknown_files = [first]
    # List these before tasks write: this run's folder is among them.
    for stretch in beside:
        unknown_files += [_take(page, listed) async for page in _pages(store, stretch)]
    rows = STRETCHES.rows({"behind": [one.behind for one in of_trees], "last": [one.last for one in of_trees]})
    parts = await engine.run(_listing(into, is_wanted=listed is not None), rows, PARTS, effort=effort)
    unknown_files += [msgspec.json.decode(note, type=UnknownFiles) for note in parts["note"].to_pylist()]
    written = {part.name: part for part in parts_of(parts) if part.rows}
    pieces = Pieces(folder=into, parts=tuple(written[name] for name in sorted(written)))
    return pieces, unknown_files_in_order(unknown_files)


def _take(page: Sequence[ObjectStat], listed: _Listed | None) -> UnknownFiles:
    if listed is not None:
        listed.add(page)
    return unknown_files_among(stat.key for stat in page)


async def _stretches(store: ObjectStore, behind: str) -> tuple[list[Stretch], list[Stretch], Effort]:
    """Cut the keys after `behind`: into stretches of tree folders, for tasks, and stretches between the folders."""
    # A stretch is everything after a key up to another key. So every key is in one stretch, whatever its name.
    of_trees: list[Stretch] = []
    beside: list[Stretch] = []
    keys, at = 0.0, SPECIAL_PREFIX
    for folder in TREE_FOLDERS:
        end = _end_of(folder)
        beside.append(Stretch(at, folder))
        if end > behind:
            count = await _count_about(store, folder)
            keys += count
            cuts = [folder + digits for digits in _first_digits(count)]
            of_trees += map(Stretch, [folder, *cuts], [*cuts, end])
        at = end
    beside.append(Stretch(at, _end_of(SPECIAL_PREFIX)))
    effort = Effort(requests=_REQUESTS_A_PAGE * keys / _PAGE_KEYS)
    return _behind(of_trees, behind), _behind(beside, behind), effort


def _behind(stretches: Iterable[Stretch], key: str) -> list[Stretch]:
    return [Stretch(max(one.behind, key), one.last) for one in stretches if one.last > key]


def _end_of(folder: str) -> str:
    """Return the name that sorts after each key of the folder, and before all others: a zero follows a slash."""
    return folder.removesuffix("/") + "0"


def _first_digits(keys: float) -> list[str]:
    """Return the digits at which to cut a folder of about this many keys: none, 15 of one digit, or 255 of two."""
    if keys <= KEYS_A_STRETCH:
        return []
    digits = [*_DIGITS]
    if keys > 2 * len(_DIGITS) * KEYS_A_STRETCH:
        digits = [first + second for first in _DIGITS for second in _DIGITS]
    # The first stretch begins at the folder itself.
    return digits[1:]


async def _count_about(store: ObjectStore, folder: str) -> float:
    """Estimate the number of files of trees in the folder, by the page in its middle."""
    # The estimate only cuts stretches. It decides about no file.
    middle = folder + "8"
    async for page in store.list(folder, start_after=middle):
        ids = [id_ for stat in page if (id_ := tree_file(stat.key)) is not None]
        if ids:
            # Digests are spread evenly. So the number of keys up to the last one gives the density of the folder.
            covered = int(ids[-1][:12], 16) / 16**12 - 0.5
            return len(ids) / max(covered, 16**-12)
    return 0.0


def _listing(into: str, *, is_wanted: bool) -> Work:
    """Return the work from STRETCHES to PARTS, each with UnknownFiles as its note. A part without rows is no file."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def read(stretch: Stretch) -> tuple[pa.Table, UnknownFiles]:
            files, unknown_files = [TREE_FILES.schema.empty_table()], UnknownFiles()
            async for page in _pages(task.store, stretch):
                unknown_files = unknown_files.plus(unknown_files_among(stat.key for stat in page))
                if is_wanted:
                    files.append(_tree_files(page))
            return pa.concat_tables(files), unknown_files

        stretches = [Stretch(**row) for row in share.to_pylist()]
        async for _, (files, unknown_files) in task.ahead(stretches, read):
            if not files.num_rows:
                nothing = Part(name="", rows=0, size_bytes=0, sha256="")
                yield rows_of_parts([nothing], notes=[msgspec.json.encode(unknown_files)])
                continue
            data = encode(TREE_FILES, files)
            # A repeated task may list other files. It then writes another part.
            name = f"trees-{hashlib.sha256(data).hexdigest()[:24]}.parquet"
            yield await write_part(task.store, into, name, data, rows=files.num_rows, note=unknown_files)

    return work


async def _pages(store: ObjectStore, stretch: Stretch) -> AsyncIterator[Sequence[ObjectStat]]:
    async for page in store.list(SPECIAL_PREFIX, start_after=stretch.behind):
        if page[-1].key > stretch.last:
            yield [stat for stat in page if stat.key <= stretch.last]
            return
        yield page


def _tree_files(page: Sequence[ObjectStat]) -> pa.Table:
    files = [(id_, stat) for stat in page if (id_ := tree_file(stat.key)) is not None]
    return TREE_FILES.rows(
        {
            "id": [id_ for id_, _ in files],
            "key": [stat.key for _, stat in files],
            "size_bytes": [stat.size_bytes for _, stat in files],
            "modified_ms": [stat.modified_ms for _, stat in files],
        }
    )
