"""Writing the inputs of a run into its folder (parts first, manifest last), and reading what a collector put there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial

import msgspec
import pyarrow as pa

from lakebed.base import CommitId, RunId, Tasks
from lakebed.gc.live.errors import OutOfOrder
from lakebed.gc.messages import (
    EXPIRED,
    BadInput,
    Manifest,
    Part,
    PartWriter,
    RunKind,
    Table,
    arrow_schema,
    check_manifest,
    decode_manifest,
    encode_manifest,
    encode_part,
    input_folder,
    join_parts,
    manifest_of,
    manifest_path,
    page_manifest_path,
    part_name,
    part_of,
    read_part,
    run_folder,
)
from lakebed.objectstore import ObjectMissing, ObjectStore


class Inputs:
    """The inputs of one run. `name` is a table's name, or `<table>.<attempt>` where a run has several of one table."""

    def __init__(self, objectstore: ObjectStore, kind: RunKind, run_id: RunId) -> None:
        self._objectstore = objectstore
        self.kind = kind
        self.run_id = run_id

    def folder(self, name: str) -> str:
        return input_folder(self.kind, self.run_id, name)

    async def write_part(self, name: str, number: int, data: bytes, *, rows: int) -> Part:
        part = part_of(part_name(number), data, rows=rows)
        await self._objectstore.put(self.folder(name) + part.name, data, size_bytes=len(data))
        return part

    async def write_page(self, table: Table, name: str, page: int, writer: PartWriter) -> Manifest:
        """End a page: its part, if it has rows, then its manifest."""
        rows = writer.rows
        data = writer.close()
        parts = [await self.write_part(name, page, data, rows=rows)] if rows else []
        manifest = manifest_of(table, self.folder(name), parts)
        await self._objectstore.put(page_manifest_path(self.kind, self.run_id, name, page), encode_manifest(manifest))
        return manifest

    async def join_pages(self, table: Table, name: str, pages: int, digest: str) -> Manifest:
        """The manifest of the whole input from those of its pages 0 to before `pages`. It completes the input.

        Raises:
            BadInput: the manifest of a page is missing or unreadable, or is not the one that the reading went on from.
        """
        parts: list[Part] = []
        found = ""
        for page in range(pages):
            path = page_manifest_path(self.kind, self.run_id, name, page)
            try:
                data = await self._objectstore.get(path)
            except ObjectMissing as error:
                raise BadInput(f"{path} is missing", input=name) from error
            manifest = decode_manifest(data, name=path)
            found = digest_of_pages(found, manifest)
            parts += manifest.parts
        if found != digest:
            raise BadInput(f"a page of {name} was written again while the reading went on: begin again", input=name)
        return await self.complete(table, name, parts)

    async def check_complete(self, name: str) -> None:
        """
        Raises:
            OutOfOrder: this input is not whole yet.
        """
        if not await self._is_complete(name):
            raise OutOfOrder(f"run {self.run_id} must read {name} to its end first", run_id=self.run_id)

    async def check_not_complete(self, name: str) -> None:
        """
        Raises:
            OutOfOrder: this input is whole already.
        """
        if await self._is_complete(name):
            raise OutOfOrder(f"run {self.run_id} has read {name} already", run_id=self.run_id)

    async def _is_complete(self, name: str) -> bool:
        try:
            await self._objectstore.stat(manifest_path(self.kind, self.run_id, name))
        except ObjectMissing:
            return False
        return True

    async def write_table(self, table: Table, name: str, data: pa.Table) -> Manifest:
        """A whole input that fits into memory, as one part."""
        parts = []
        if data.num_rows:
            parts.append(await self.write_part(name, 0, encode_part(table, data), rows=data.num_rows))
        return await self.complete(table, name, parts)

    async def write_tables(self, table: Table, name: str, tables: Iterable[pa.Table], tasks: Tasks) -> Manifest:
        """A whole input, a part for each of these that has rows. Each is made and encoded while others go on."""
        parts: list[Part] = []
        remaining = iter(tables)
        while (data := await tasks.apart(lambda: next(remaining, None))) is not None:
            if data.num_rows:
                encoded = await tasks.apart(partial(encode_part, table, data))
                parts.append(await self.write_part(name, len(parts), encoded, rows=data.num_rows))
        return await self.complete(table, name, parts)

    async def complete(self, table: Table, name: str, parts: list[Part]) -> Manifest:
        """Write the manifest of an input whose parts are there."""
        manifest = manifest_of(table, self.folder(name), parts)
        await self._objectstore.put(manifest_path(self.kind, self.run_id, name), encode_manifest(manifest))
        return manifest

    async def write_swept(self, commits: Iterable[CommitId], *, attempt: str = "") -> None:
        """Keep the commits that were swept before a reading of staging, for the look after it."""
        name = _swept_name(attempt)
        ids = pa.array(sorted(commits), pa.string())
        await self.write_table(EXPIRED, name, pa.table([ids], schema=arrow_schema(EXPIRED)))

    async def read_swept(self, *, attempt: str = "") -> frozenset[CommitId]:
        """
        Raises:
            BadInput: missing or altered.
        """
        name = _swept_name(attempt)
        path = manifest_path(self.kind, self.run_id, name)
        try:
            manifest = decode_manifest(await self._objectstore.get(path), name=path)
        except ObjectMissing as error:
            raise BadInput(f"{path} is missing", input=name) from error
        return frozenset(map(CommitId, (await self.read_table(EXPIRED, manifest)).column("id").to_pylist()))

    async def write_closed(self, attempt: str, slices: tuple[str, ...]) -> None:
        """Names of slices, kept from the first page of a reading for its last."""
        await self._objectstore.put(self._closed_path(attempt), msgspec.json.encode(slices))

    async def read_closed(self, attempt: str) -> tuple[str, ...]:
        """
        Raises:
            BadInput: missing or unreadable.
        """
        path = self._closed_path(attempt)
        try:
            return msgspec.json.decode(await self._objectstore.get(path), type=tuple[str, ...])
        except (ObjectMissing, msgspec.MsgspecError) as error:
            raise BadInput(f"{path} is missing or unreadable: {error}", input="closed") from error

    def _closed_path(self, attempt: str) -> str:
        return f"{run_folder(self.kind, self.run_id)}closed.{attempt}.json"

    async def read_table(self, table: Table, manifest: Manifest) -> pa.Table:
        """
        Raises:
            BadInput: not an input of this run and table, or something of it is missing, short or altered.
        """
        if check_manifest(manifest, name=manifest.folder) is not table:
            raise BadInput(f"{manifest.folder} is no {table.name} table", input=manifest.table)
        if not manifest.folder.startswith(self.folder("")[:-1]):
            raise BadInput(f"{manifest.folder} is not in the folder of run {self.run_id}", input=manifest.table)
        parts: list[pa.Table] = []
        for part in manifest.parts:
            try:
                data = await self._objectstore.get(manifest.folder + part.name)
            except ObjectMissing as error:
                raise BadInput(f"{manifest.folder}{part.name} is missing", part=part.name) from error
            parts.append(read_part(manifest, table, part, data))
        return join_parts(manifest, table, parts)


def _swept_name(attempt: str) -> str:
    return f"swept.{attempt}" if attempt else "swept"


def digest_of_pages(before: str, manifest: Manifest) -> str:
    """Digest a page and all pages before it, from the digest of those (none: an empty string)."""
    return hashlib.sha256(f"{before} {manifest.digest()}".encode()).hexdigest()
