"""`lakebed://repository/ref/path` for fsspec, and so for pandas, pyarrow, Polars, DuckDB and Dask.

    pandas.read_parquet("lakebed://flights/main/2024.parquet")
    fsspec.filesystem("lakebed", folder="./lake")       # a folder of this machine, with no server

Folders exist only through slashes in paths: no folder is empty, and `mkdir` makes none. Writing, moving and deleting
change a branch and commit nothing, except inside `with fs.transaction:`, which commits all or nothing.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from glob import has_magic
from pathlib import Path
from typing import Any, Final, TypeVar

from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction as FileTransaction

from lakebed import wire
from lakebed.base import CONTENT_TYPE_DEFAULT, NotFound

from .files import ObjectReader
from .lake import Lake, connect
from .open_files import Reading, Writing, check_caching, os_errors
from .refs import Branch, Ref

BLOCK_BYTES: Final = 4 << 20
GAP_BYTES: Final = 64 << 10
"""Read a gap between two ranges up to this size: it costs less than another request."""
RANGES_AT_ONCE: Final = 8
OPTIONS: Final = ("endpoint", "access_key_id", "secret_access_key", "folder", "lake", "commit_message")
FSSPEC_OPTIONS: Final = {
    "asynchronous",
    "batch_size",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
}
Info = dict[str, Any]
Span = tuple[int, int, int]
"""Start and end of a range, and its position in the answer."""
T = TypeVar("T")
R = TypeVar("R")


class LakebedFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of all refs of a lake: below the root repositories, below these refs, below these paths.

    `endpoint`, `access_key_id`, `secret_access_key`: as `lakebed.connect`. `folder`: as `lakebed.open_local`, instead
    of a server. `lake`: an open lake, which its owner closes. `commit_message`: the message of transactions.
    """

    protocol = "lakebed"
    root_marker = ""
    # A stale listing would hide another writer's files from readers.
    use_listings_cache = False

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        folder: str | None = None,
        lake: Lake | None = None,
        commit_message: str = "written through fsspec",
        **options: Any,
    ) -> None:
        # fsspec ignores unknown options: a misspelt `folder` would read the configured server.
        if unknown := sorted(set(options) - FSSPEC_OPTIONS):
            raise ValueError(f"lakebed:// has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
        super().__init__(**options)
        if lake is not None:
            self.lake = lake
        elif folder is not None:
            # Imported here only: a folder needs all packages of a server.
            from . import open_local

            self.lake = open_local(folder, create=False)
        else:
            self.lake = connect(endpoint, access_key_id=access_key_id, secret_access_key=secret_access_key)
        self.commit_message = commit_message
        self.written: dict[tuple[str, str], Branch] = {}
        """The hidden branch of each branch that the open transaction wrote to."""
        self._beginning = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(os.fspath(path))
        return text.removeprefix("lakebed://").removeprefix("lakebed::").strip("/")

    # Reading

    def info(self, path: str, **_: Any) -> Info:
        """Return name, size and type of a path; of a file also checksum, content_type, metadata and mtime.

        Raises:
            FileNotFoundError: the path is neither a file nor a folder.
        """
        name = self._strip_protocol(path)
        repository, ref, key = _split(name)
        with os_errors(name):
            if not repository:
                return _folder("")
            if not ref:
                self.lake.repository(repository)
                return _folder(name)
            at = self._ref(repository, ref)
            if not key:
                at.commit_record()
                return _folder(name)
            try:
                return _file(f"{repository}/{ref}/", at.stat(key))
            except NotFound:
                if next(at.list(f"{key}/", limit=1), None) is None:
                    raise
                return _folder(name)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Info] | list[str]:
        """List a folder, or the file itself.

        Raises:
            FileNotFoundError: the path is neither a file nor a folder.
        """
        found = self._listed(self._strip_protocol(path))
        return found if detail else [each["name"] for each in found]

    def _listed(self, name: str) -> list[Info]:
        repository, ref, key = _split(name)
        with os_errors(name):
            if not repository:
                return [_folder(found.name) for found in self.lake.repositories()]
            if not ref:
                known = self.lake.repository(repository)
                return [_folder(f"{repository}/{found}") for found in (*known.branches(), *known.tags())]
            at, above = self._ref(repository, ref), f"{repository}/{ref}/"
            folder = f"{key}/" if key else ""
            rows = [row for row in at.list(folder, delimiter="/") if row.path != folder]
        if rows:
            return [_file(above, row) for row in rows]
        found = self.info(name)
        return [] if found["type"] == "directory" else [found]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **options: Any,
    ) -> Any:
        """List every file below a path, whatever the depth, with one request for a thousand files."""
        name = self._strip_protocol(path)
        repository, ref, key = _split(name)
        if maxdepth is not None or withdirs or not ref:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        above = f"{repository}/{ref}/"
        prefix = (f"{key}/" if key else "") + options.get("prefix", "")
        with os_errors(name):
            found = {above + row.path: _file(above, row) for row in self._ref(repository, ref).list(prefix)}
        if not found and key and self.exists(name) and (own := self.info(name))["type"] == "file":
            found = {own["name"]: own}
        return found if detail else sorted(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        name = self._strip_protocol(path)
        repository, ref, key = _split(name)
        with os_errors(name):
            if (start or 0) < 0 or (end or 0) < 0:
                size = self._ref(repository, ref).stat(key).size_bytes or 0
                start = max(0, size + start) if start is not None and start < 0 else start
                end = max(0, size + end) if end is not None and end < 0 else end
            if end is not None and end <= (start or 0):
                return b""
            return self._ref(repository, ref).read(key, start=start or 0, end=end)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[bytes | Exception]:
        """Return a range of each path, in their order. A start or end is one number for all, or a list.

        Ranges of a file that are at most `max_gap` bytes apart (default GAP_BYTES) share a request, and RANGES_AT_ONCE
        requests run at once. All ranges of a file are of one object, as in `ObjectReader`. With `on_error="raise"` the
        first error is raised; else an error replaces the bytes of its range.
        """
        if not isinstance(paths, list):
            raise TypeError("cat_ranges takes a list of paths")
        firsts, lasts = ([*each] if isinstance(each, list | tuple) else [each] * len(paths) for each in (starts, ends))
        if not len(firsts) == len(lasts) == len(paths):
            raise ValueError("cat_ranges takes as many starts and ends as paths")
        names = [self._strip_protocol(path) for path in paths]
        found: list[bytes | Exception] = [b""] * len(paths)
        with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
            distinct = [*dict.fromkeys(names)]
            opened: dict[str, ObjectReader] = {}
            spans: dict[str, list[Span]] = {}
            readers = dict(zip(distinct, pool.map(_or_error(self._reader), distinct), strict=True))
            for place, name in enumerate(names):
                reader = readers[name]
                if isinstance(reader, Exception):
                    found[place] = reader
                    continue
                opened[name] = reader
                start, end, _step = slice(firsts[place], lasts[place]).indices(reader.size)
                if start < end:
                    spans.setdefault(name, []).append((start, end, place))
            gap = GAP_BYTES if max_gap is None else max_gap
            blocks = [(name, block) for name, each in spans.items() for block in _blocks(each, gap)]

            def fetch(block: tuple[str, list[Span]]) -> bytes:
                name, parts = block
                with os_errors(name):
                    return opened[name].read_range(parts[0][0], max(end for _, end, _ in parts))

            for (_name, parts), data in zip(blocks, pool.map(_or_error(fetch), blocks), strict=True):
                for start, end, place in parts:
                    at = start - parts[0][0]
                    found[place] = data if isinstance(data, Exception) else data[at : at + end - start]
        if on_error != "return" and (error := next((one for one in found if isinstance(one, Exception)), None)):
            raise error
        return found

    def _reader(self, name: str) -> ObjectReader:
        repository, ref, key = _split(name)
        with os_errors(name):
            return ObjectReader(self.lake.client, repository, self._ref(repository, ref).name, key)

    def get_file(
        self, rpath: str, lpath: Any, callback: Callback = DEFAULT_CALLBACK, outfile: Any = None, **_: Any
    ) -> None:
        name = self._strip_protocol(rpath)
        if outfile is None and self.isdir(name):
            Path(lpath).mkdir(parents=True, exist_ok=True)
            return
        repository, ref, key = _split(name)
        files = self.lake.client.files
        at = self._ref(repository, ref).name
        with os_errors(name):
            if outfile is not None:
                files.download_to(repository, at, key, outfile, progress=callback.relative_update)
                return
            target = Path(lpath)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.download(repository, at, key, target, progress=callback.relative_update)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> io.IOBase:
        repository, ref, key = _split(path)
        if not key:
            raise IsADirectoryError(path)
        kind = options.get("cache_type", "readahead")
        check_caching(block_size, kind)
        with os_errors(path):
            if mode == "rb":
                reader = self._reader(path)
                return Reading(self, path, reader, block_size or BLOCK_BYTES, kind, cache_options)
            if mode not in {"wb", "xb"}:
                raise NotImplementedError(f"{mode!r}: objects are read (rb) and written whole (wb, xb)")
            branch = self._branch(repository, ref)
            if mode == "xb" and branch.exists(key):
                raise FileExistsError(path)
            return Writing(
                self.lake.client,
                repository,
                branch.name,
                key,
                content_type=options.get("content_type", CONTENT_TYPE_DEFAULT),
                metadata=options.get("metadata"),
                if_absent=mode == "xb",
            )

    # Writing

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        name = self._strip_protocol(path)
        repository, ref, key = _split(name)
        with os_errors(name):
            self._branch(repository, ref).write(
                key,
                bytes(value),
                content_type=options.get("content_type", CONTENT_TYPE_DEFAULT),
                metadata=options.get("metadata"),
                if_absent=mode == "create",
            )

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Callback = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **options: Any,
    ) -> None:
        source, name = Path(lpath), self._strip_protocol(rpath)
        if source.is_dir():
            return
        repository, ref, key = _split(name)
        callback.set_size(source.stat().st_size)
        with os_errors(name):
            self.lake.client.files.upload(
                repository,
                self._branch(repository, ref).name,
                key,
                source,
                content_type=options.get("content_type", CONTENT_TYPE_DEFAULT),
                metadata=options.get("metadata"),
                if_absent=mode == "create",
                progress=callback.relative_update,
            )

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file: within a repository on the server, else through this process."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        repository, ref, key = _split(source)
        other, branch, path = _split(target)
        if not self.isfile(source):
            if self.isdir(source):
                return  # Files make their folders.
            raise FileNotFoundError(source)
        with os_errors(source):
            if repository == other:
                self._branch(other, branch).copy(key, path, source_ref=self._ref(repository, ref))
                return
        with self.open(source, "rb") as reader, self.open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer, BLOCK_BYTES)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move a file or, with `recursive`, a folder. Within a repository no bytes move; else copy, then delete.

        Raises:
            FileNotFoundError: the source does not exist.
            IsADirectoryError: the source is a folder, and `recursive` is not set.
            OSError: another writer replaced a source during the move: the source is kept, and its target is a copy.
        """
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        repository, ref, _ = _split(source)
        other, branch, _ = _split(target)
        if repository != other or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        if self.isfile(source):
            base = f"{target.rstrip('/')}/" if str(path2).endswith("/") or self.isdir(target) else ""
            pairs = [(source, f"{base}{source.rpartition('/')[2]}" if base else target)]
        elif not recursive and self.isdir(source):
            raise IsADirectoryError(f"{source} is a folder: move it with recursive=True")
        elif recursive and (found := self.find(source)):
            # As a copy does: into a folder that exists, else to the target's own path.
            inside = f"/{source.rpartition('/')[2]}" if self.isdir(target) else ""
            pairs = [(name, f"{target.rstrip('/')}{inside}{name.removeprefix(source.rstrip('/'))}") for name in found]
        else:
            raise FileNotFoundError(source)
        for name, to in pairs:
            with os_errors(name):
                to_branch = self._branch(other, branch)
                to_branch.move(_split(name)[2], _split(to)[2], source_branch=self._branch(repository, ref).name)

    def rm_file(self, path: str) -> None:
        """Delete a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        name = self._strip_protocol(path)
        repository, ref, key = _split(name)
        with os_errors(name):
            branch = self._branch(repository, ref)
            branch.stat(key)
            branch.delete(key)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, with one request for a thousand. Repositories and refs are not files: they are kept.

        Each path is looked up before the first delete.

        Raises:
            FileNotFoundError: a path does not exist.
            IsADirectoryError: a path is a folder, and `recursive` is not set.
            PermissionError: a path names a repository or the root.
        """
        by_branch: dict[tuple[str, str], list[str]] = {}
        paths = [path] if isinstance(path, str | os.PathLike) else [*path]
        for each in paths:
            if not _split(self._strip_protocol(each))[1]:
                raise PermissionError(f"{each}: a repository is not deleted through its files")
        names = self.expand_path(paths, recursive=recursive, maxdepth=maxdepth)
        # A pattern gives names that exist; any other path may not.
        asked = [name for name in map(self._strip_protocol, paths) if not has_magic(name)] if recursive else names
        with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
            found = [*pool.map(self.info, asked)]
        folder = next((each["name"] for each in found if each["type"] == "directory"), None)
        if folder is not None and not recursive:
            raise IsADirectoryError(f"{folder} is a folder: delete it with recursive=True")
        for name in names:
            repository, ref, key = _split(name)
            if key:
                by_branch.setdefault((repository, ref), []).append(key)
        for (repository, ref), keys in by_branch.items():
            with os_errors(f"{repository}/{ref}"):
                self._branch(repository, ref).delete(*keys)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: ARG002  # fsspec's signature
        """Make nothing: a folder exists while it has a file.

        Raises:
            FileNotFoundError: the path is a repository or ref that does not exist. Folders cannot make those.
        """
        if not _split(self._strip_protocol(path))[2]:
            self.info(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make nothing, as `mkdir`.

        Raises:
            FileExistsError: the path exists, and `exist_ok` is not set.
        """
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Check that the folder is empty, so that it does not exist: a folder ends with its last file.

        Raises:
            NotADirectoryError: the path is a file.
            OSError: the folder has files.
        """
        if self.isfile(path):
            raise NotADirectoryError(path)
        if self.isdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    # File details

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    created = modified

    def ukey(self, path: str) -> str:
        """Return the checksum of a file, which changes with its bytes."""
        return str(self.info(path).get("checksum", ""))

    # Transactions

    def _ref(self, repository: str, ref: str) -> Ref:
        """Return the ref to read: the transaction's own branch if it wrote to this ref."""
        return self.written.get((repository, ref)) or Ref(self.lake.client, repository, ref)

    def _branch(self, repository: str, name: str) -> Branch:
        """Return the branch to write: in a transaction, its hidden branch."""
        if not name:
            raise IsADirectoryError(repository)
        at = (repository, name)
        # A program may write files of one transaction in several threads. With a hidden branch for each thread, the
        # transaction would make several commits.
        with self._beginning:
            if self._intrans and at not in self.written:
                self.written[at] = self.transaction.begin(Branch(self.lake.client, repository, name))
        return self.written.get(at) or Branch(self.lake.client, repository, name)


class BranchTransaction(FileTransaction):  # type: ignore[misc]  # fsspec has no types
    """`with fs.transaction:` one commit on each branch that was written to, or none if the block raises.

    Each branch is committed by itself, in the order of the first writes. With two branches, the second may conflict
    after the first was committed.
    """

    def __init__(self, fs: LakebedFileSystem) -> None:
        super().__init__(fs)
        self._open_ones: list[AbstractContextManager[Branch]] = []

    def begin(self, branch: Branch) -> Branch:
        manager = branch.transaction(self.fs.commit_message)
        own = manager.__enter__()
        self._open_ones.append(manager)
        return own

    def complete(self, commit: bool = True) -> None:
        """Commit each branch of the transaction, or undo all.

        Raises:
            Conflict: another writer changed the same paths.
        """
        self.files.clear()  # the writers wrote to the hidden branches by themselves
        self.fs.written = {}
        self.fs._intrans = False  # noqa: SLF001 - fsspec's own transactions do the same
        managers, self._open_ones = self._open_ones, []
        failure: BaseException | None = None if commit else _Undone()
        for manager in managers:  # in the order in which they began; after a failure undo the others
            try:
                manager.__exit__(None if failure is None else type(failure), failure, None)
            except BaseException as error:  # noqa: BLE001  # raised below, when no branch is left behind
                failure = failure or error
        if failure is not None and not isinstance(failure, _Undone):
            raise failure


LakebedFileSystem.transaction_type = BranchTransaction


class _Undone(Exception):
    """Ends the hidden branches of a transaction without a commit."""


def _or_error(function: Callable[[T], R]) -> Callable[[T], R | Exception]:
    """Return a function that returns its error instead of raising it."""

    def call(argument: T) -> R | Exception:
        try:
            return function(argument)
        except Exception as error:  # noqa: BLE001  # its place in the answer is the caller's to choose
            return error

    return call


def _blocks(spans: list[Span], gap: int) -> list[list[Span]]:
    """Group spans that are at most `gap` bytes apart into blocks of about BLOCK_BYTES."""
    blocks: list[list[Span]] = []
    begin = end = 0
    for span in sorted(spans):
        if blocks and span[0] - end <= gap and span[1] - begin <= BLOCK_BYTES:
            blocks[-1].append(span)
            end = max(end, span[1])
        else:
            blocks.append([span])
            begin, end = span[:2]
    return blocks


def _split(name: str) -> tuple[str, str, str]:
    repository, _, rest = name.partition("/")
    ref, _, key = rest.partition("/")
    return repository, ref, key


def _folder(name: str) -> Info:
    return {"name": name, "size": 0, "type": "directory"}


def _file(above: str, stats: wire.ObjectStats) -> Info:
    if stats.path_type == "common_prefix":
        return _folder(above + stats.path.rstrip("/"))
    return {
        "name": above + stats.path,
        "size": stats.size_bytes or 0,
        "type": "file",
        "checksum": stats.checksum,
        "content_type": stats.content_type,
        "metadata": stats.metadata or {},
        "mtime": stats.mtime,
    }
