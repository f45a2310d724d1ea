"""Files that list addresses, for Hive and other engines that read tables from them (SymlinkTextInputFormat).

Each folder below a location gets one `symlink.txt` with the full addresses of the folder's objects, one a line. A set
is a snapshot of a commit in its own folder, so a reader of an older set is not disturbed. The last file of a set,
which Hive ignores because of its name, describes the set. Collectors recognise sets by their form, and delete old ones
(gc/rules/metadata.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from lakebed.base import Invalid, Ports, Row, from_row
from lakebed.objectstore import ObjectStore, is_object_key
from lakebed.versions import PathNotFound, Versions

SYMLINKS: Final = "_lakefs/symlinks/"
LAST_FILE: Final = "_symlinks.json"
_PAGE: Final = 10_000
_LINES_BYTES_MAX: Final = 256 << 20


class SymlinksFile(msgspec.Struct, frozen=True, kw_only=True):
    """The last file of a set. From `branch`, collectors also see whether a set is still needed."""

    branch: str
    location: str
    commit_id: str
    made_ms: int


class Symlinks:
    def __init__(self, versions: Versions, objectstore: ObjectStore, ports: Ports, address_prefix: str) -> None:
        self._versions = versions
        self._objectstore = objectstore
        self._ports = ports
        self._address_prefix = address_prefix

    async def create(self, branch: str, location: str = "", *, check: Callable[[str], None] = lambda _: None) -> str:
        """Write the files for the committed objects of a branch below a folder. Return the key of the set's folder.

        Objects that a lifecycle run took are skipped. `check` gets each path, and may refuse it: if a path were
        skipped, a reader of the table would miss its rows. Keeps the addresses of unfinished folders in memory.

        Raises:
            BranchNotFound: the branch does not exist.
            PathNotFound: no object is below the location.
            Invalid: a folder cannot be a key, or there are too many addresses.
        """
        location = location.strip("/")
        prefix = f"{location}/" if location else ""
        commit_id = (await self._versions.refs.get_branch(branch)).commit_id
        group = hashlib.sha256(f"{branch}/{location}".encode()).hexdigest()[:16]
        root = f"{SYMLINKS}{group}/{self._ports.ids.fresh()}/"
        lines: dict[str, list[str]] = {}
        held_bytes, is_empty = 0, True
        async for path, address in self._addresses(commit_id, prefix.encode()):
            check(path)
            folder = path[len(prefix) : path.rindex("/") + 1] if "/" in path[len(prefix) :] else ""
            # Paths are in order, so a folder is finished when a path is not below it.
            for done in [one for one in lines if not folder.startswith(one)]:
                held_bytes -= await self._write(root, done, lines.pop(done))
            lines.setdefault(folder, []).append(address)
            held_bytes += len(address)
            is_empty = False
            if held_bytes > _LINES_BYTES_MAX:
                raise Invalid(f"{branch}/{location} has too many objects for files of symlinks")
        if is_empty:
            raise PathNotFound("not found", path=location)
        for folder, addresses in lines.items():
            await self._write(root, folder, addresses)
        facts = SymlinksFile(branch=branch, location=location, commit_id=commit_id, made_ms=self._ports.clock.now_ms())
        await self._objectstore.put(root + LAST_FILE, msgspec.json.encode(facts))
        return root

    async def _write(self, root: str, folder: str, addresses: list[str]) -> int:
        key = f"{root}{folder}symlink.txt"
        if not is_object_key(key):
            raise Invalid(f"the folder {folder!r} has a name that the object store does not take", path=folder)
        await self._objectstore.put(key, "".join([f"{address}\n" for address in addresses]).encode())
        return sum(map(len, addresses))

    async def _addresses(self, commit_id: str, prefix: bytes) -> AsyncIterator[tuple[str, str]]:
        """Yield path and full address of each entry, in order of path."""
        versions = self._versions
        commit = await versions.history.get_commit(await versions.refs.resolve_commit(commit_id))
        start = prefix
        while page := await versions.trees.scan(commit.metarange_id, start, _PAGE):
            here = [(key, row) for key, row in page if key.startswith(prefix)]
            taken = await versions.taken.find_rows([row for _, row in here])
            await versions.retired.check_contents([commit.id])
            for (key, row), by in zip(here, taken, strict=True):
                if by is None:
                    yield key.decode(), self._full(row)
            if len(here) < len(page) or len(page) < _PAGE:
                return
            start = page[-1][0] + b"\0"

    def _full(self, row: Row) -> str:
        address = from_row(row).address
        return address if "://" in address else self._address_prefix + address
