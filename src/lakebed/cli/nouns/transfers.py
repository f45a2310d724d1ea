"""Whole folders to and from a repository, several files at a time.

A file that cannot be moved does not stop the others: it is noted, and the command fails at the end. An error that the
next file would meet too stops everything: no server, no permission, Ctrl-C.

A path that no folder can hold (`a//b`, `../a`, one that ends in `/`, `a` beside `a/b`) is left out and counted
(`LeftOut`). Nothing is ever written outside the target folder on the word of a path.
"""

from __future__ import annotations

import mimetypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, TypeVar

from lakebed.base import (
    CONTENT_TYPE_DEFAULT,
    Denied,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    count_of,
    human_size,
)
from lakebed.cli.kit.failures import Failed, Misuse, describe
from lakebed.cli.kit.output import printable
from lakebed.cli.kit.progress import Bar
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.uris import ObjectUri
from lakebed.wire import ObjectStats

T = TypeVar("T")

DELETE_BATCH: Final = 1000
GOES_ON: Final = "run the same command again"
OWN_PREFIX: Final = ".lakebed-"
"""Files of `lakebed local` in a folder begin so. They are no data: nothing sends, fetches or deletes them."""
EXTRA_TYPES: Final = {
    ".parquet": "application/vnd.apache.parquet",
    ".jsonl": "application/jsonl",
    ".ndjson": "application/x-ndjson",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
"""Types that Python takes from the machine's own tables, or does not know: the same file has one type everywhere."""


NAME_BYTES_MAX: Final = 255
"""File systems allow no longer name of a file or folder."""


class NotAFile(Invalid):
    """The path cannot be a file below the target folder, or the file's name no path."""


class _Stopped(LakebedError):
    """Another file failed in a way that ends everything."""


@dataclass(slots=True, kw_only=True)
class LeftOut:
    """Count the objects of a ref, or the files of a folder, that the other side does not get."""

    noun: str = "object"
    markers: int = 0
    """Objects that only say that a folder exists: they have no bytes, and `/` ends their path. A bucket may have one
    for each folder, so none is named."""
    named: int = 0
    """All others. Each has a line on stderr."""
    covered: set[str] = field(default_factory=set)
    """Paths, from the folder, of objects that have others below them."""

    def add(self, session: Session, line: str) -> None:
        session.warn(line)
        self.named += 1

    @property
    def text(self) -> str:
        """Returns the end of the command's last line: empty if nothing was left out."""
        parts = [f"{count_of(self.named, self.noun)} named above"] if self.named else []
        if self.markers:
            parts.append(f"{count_of(self.markers, 'folder marker')} (0 bytes, path ends in /)")
        return f"; left out: {' and '.join(parts)}" if parts else ""

    @property
    def facts(self) -> dict[str, int]:
        return {"left_out": self.named, "folder_markers": self.markers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The sum of the files that were moved."""

    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One file to move; `move` takes a progress callback and returns the size in bytes."""

    name: str
    size_bytes: int
    move: Callable[[Callable[[int], None]], int]


def upload_files(
    session: Session,
    folder: Path,
    target: ObjectUri,
    names: Iterable[str],
    *,
    parallel: int,
    content_type: str = "",
    metadata: Mapping[str, str] | None = None,
    if_absent: bool = False,
    presigned: bool = False,
    goes_on: str = GOES_ON,
) -> Moved:
    """Upload files to the same places below the target. `names` are their paths from the folder.

    `goes_on` names, after Ctrl-C, the command that moves the rest.

    Raises:
        Failed: some files could not be read or written.
    """
    files, prefix = session.client.files, folder_of(target.path)

    def send(name: str, advance: Callable[[int], None]) -> int:
        check_encodable(name)
        stats = files.upload(
            target.repository,
            target.ref,
            prefix + name,
            folder / name,
            content_type=content_type or type_of(name),
            metadata=metadata,
            if_absent=if_absent,
            presigned=presigned,
            progress=advance,
        )
        return stats.size_bytes or 0

    # Listed to the end first, so that the bar knows how much there is.
    tasks = [
        _Task(name=str(folder / name), size_bytes=(folder / name).stat().st_size, move=partial(send, name))
        for name in names
    ]
    return _move_all(session, f"uploading {folder.name}", tasks, parallel, goes_on)


def download_objects(
    session: Session,
    source: ObjectUri,
    target: Path,
    objects: Iterable[ObjectStats],
    *,
    parallel: int,
    presigned: bool = False,
    goes_on: str = GOES_ON,
) -> Moved:
    """Download objects that lie below a folder to the same places below the target, which is made where missing.

    Raises:
        Failed: some objects could not be read, or cannot be files. `fitting` and `having_bytes` leave these out.
    """
    files, folder = session.client.files, folder_of(source.path)

    def fetch(path: str, advance: Callable[[int], None]) -> int:
        file = file_below(target, path.removeprefix(folder))
        file.parent.mkdir(parents=True, exist_ok=True)
        return files.download(source.repository, source.ref, path, file, presigned=presigned, progress=advance)

    target.mkdir(parents=True, exist_ok=True)
    tasks = (
        _Task(name=found.path, size_bytes=found.size_bytes or 0, move=partial(fetch, found.path)) for found in objects
    )
    return _move_all(
        session,
        f"downloading {folder or source.ref}",
        [*tasks] if isinstance(objects, Sequence) else tasks,
        parallel,
        goes_on,
    )


def objects_below(session: Session, place: ObjectUri) -> Iterator[ObjectStats]:
    """List the objects below a folder.

    Raises:
        NotFound: nothing lies there. A ref may be empty; a folder that is named is mistyped then.
    """
    folder = folder_of(place.path)
    found = session.client.objects.list(place.repository, place.ref, prefix=folder)
    return present(found, ObjectUri(place.repository, place.ref, folder))


def present(found: Iterable[T], place: ObjectUri) -> Iterator[T]:
    """Yield the objects at a place, asking for the first at once."""
    left = iter(found)
    first = list(islice(left, 1))
    if place.path and not first:
        raise NotFound(f"nothing lies {'below' if place.path.endswith('/') else 'at'} {place}")
    return chain(first, left)


def having_bytes(session: Session, objects: Iterable[ObjectStats], left: LeftOut) -> Iterator[ObjectStats]:
    """Yield the objects whose bytes neither a lifecycle run nor an erasure took, and note the others."""
    for one in objects:
        if one.expired is None:
            yield one
        else:
            left.add(session, gone_text(one))


def fitting(session: Session, objects: Iterable[ObjectStats], folder: str, left: LeftOut) -> Iterator[ObjectStats]:
    """Yield the objects below `folder` that one folder can hold as files. Count the others, and name them.

    An object stays out if others lie below it as a folder: `a` beside `a/b`.
    """
    waiting: list[tuple[str, ObjectStats]] = []  # Each path begins with the one before it.
    for one in objects:
        name = one.path.removeprefix(folder)
        if is_marker(one, name):
            left.markers += 1
            continue
        try:
            segments_of(name)
        except NotAFile as error:
            left.add(session, f"skipped {printable(one.path)}: {error}")
            continue
        while waiting and not name.startswith(waiting[-1][0]):
            yield waiting.pop()[1]
        for above in [above for above in waiting if name.startswith(above[0] + "/")]:
            path = printable(above[1].path)
            left.add(session, f"skipped {path}: objects lie below it, and a folder cannot hold both")
            left.covered.add(above[0])
            waiting.remove(above)
        waiting.append((name, one))
    for _, one in reversed(waiting):
        yield one


def is_marker(one: ObjectStats, name: str) -> bool:
    """Return whether the object at this path from a folder only says that a folder exists."""
    return one.size_bytes == 0 and (not name or name.endswith("/"))


def gone_text(one: ObjectStats) -> str:
    return f"skipped {printable(one.path)}: a lifecycle run or an erasure took its bytes"


def delete_objects(session: Session, place: ObjectUri, paths: Iterable[str]) -> int:
    """Delete objects of the branch, and return how many there were.

    Raises:
        Failed: one could not be deleted.
    """
    left, deleted = iter(paths), 0
    # The batch that was on its way may be deleted, too: the next call finds what is left.
    session.when_stopped = lambda: (
        f"stopped: {count_of(deleted, 'object')} or more deleted; {GOES_ON}: it deletes the rest"
    )
    while batch := [*islice(left, DELETE_BATCH)]:
        errors = session.client.objects.delete_many(place.repository, place.ref, batch)
        deleted += len(batch) - len(errors)
        if errors:
            raise Failed(f"{printable(errors[0].path)}: {errors[0].message}; {count_of(deleted, 'object')} deleted")
    return deleted


def delete_files(folder: Path, names: Iterable[str]) -> None:
    """Delete files by their paths from the folder, and the folders in it that this leaves empty."""
    for name in names:
        file = file_below(folder, name)
        file.unlink(missing_ok=True)
        for above in file.parents:
            if above == folder or not above.is_dir() or any(above.iterdir()):
                break
            above.rmdir()


def local_files(session: Session, folder: Path, left: LeftOut, *, whole: bool = False) -> dict[str, Path]:
    """Return the regular files below a folder by their paths from there. Count others, such as dead links; name them.

    `whole`: the caller deletes what the result lacks, so nothing may be left out. Files of our own are not data.

    Raises:
        Misuse: it is no folder; or, `whole`, something below it is neither a file nor a folder.
        OSError: a folder cannot be read.
    """
    if not folder.is_dir():
        raise Misuse(f"{folder} is not a folder: name one that exists")

    def skip(file: Path) -> None:
        if whole:
            raise Misuse(f"{file} is neither a file nor a folder: its content would count as deleted")
        left.add(session, f"skipped {file}: not a regular file")

    return {name: file for file, name in files_below(folder, skipped=skip) if not is_own(name)}


def is_own(name: str) -> bool:
    """Return whether this is a file that `lakebed local` keeps in a folder."""
    return name.startswith(OWN_PREFIX)


def type_of(name: str) -> str:
    """Return the content type that a file's name stands for."""
    return EXTRA_TYPES.get(Path(name).suffix.lower()) or mimetypes.guess_type(name)[0] or CONTENT_TYPE_DEFAULT


def folder_of(path: str) -> str:
    """Return the prefix of all below a path taken as a folder: `data` means `data/`, nothing means everything."""
    return path if not path or path.endswith("/") else path + "/"


def files_below(folder: Path, *, skipped: Callable[[Path], None]) -> Iterator[tuple[Path, str]]:
    """Yield the regular files below a folder, each with its path from there, in a stable order.

    `skipped` is called with anything else, such as a dead link, or a link to a folder, which is not followed.

    Raises:
        OSError: a folder cannot be read. It is not an empty one.
    """

    def fail(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in folders:
            if (linked := Path(here, name)).is_symlink():
                skipped(linked)
        for name in sorted(names):
            file = Path(here, name)
            if file.is_file():
                yield file, file.relative_to(folder).as_posix()
            else:
                skipped(file)


def check_encodable(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise NotAFile("the name is not valid Unicode, so it cannot be a path") from error


def file_below(target: Path, path: str) -> Path:
    """Return where below `target` the object at this path goes. A link there leads no write out of the target.

    Raises:
        NotAFile: see `segments_of`; or a folder on the way is a link.
    """
    *folders, name = segments_of(path)
    folder = target
    for segment in folders:
        folder /= segment
        if folder.is_symlink():
            raise NotAFile(f"{folder} is a link, and may lead out of {target}: remove it first")
    return folder / name


def segments_of(path: str) -> list[str]:
    """
    Raises:
        NotAFile: the path has an empty segment, `.` or `..`, a segment that is too long, or a zero byte.
    """
    segments = path.split("/")
    if any(len(segment.encode(errors="replace")) > NAME_BYTES_MAX for segment in segments):
        raise NotAFile(f"a file's name has at most {NAME_BYTES_MAX} bytes")
    if any(segment in {"", ".", ".."} for segment in segments) or "\0" in path:
        raise NotAFile("the path has an empty segment, `.`, `..` or a zero byte")
    return segments


def _move_all(session: Session, description: str, tasks: Iterable[_Task], parallel: int, goes_on: str) -> Moved:
    with session.bar(description) as shown:
        mover = _Mover(shown)
        all_files = f" of {len(tasks):,}" if isinstance(tasks, Sequence) else ""
        session.when_stopped = lambda: (
            f"stopped: {mover.files:,}{all_files} files, {human_size(mover.size_bytes)}, were moved; {goes_on}"
        )
        mover.run(tasks, parallel)
    for name, error in mover.failures:
        session.warn(f"error: {printable(name)}: {describe(error)}")
    done = f"{count_of(mover.files, 'file')}, {human_size(mover.size_bytes)}"
    if mover.failures:
        raise Failed(f"{count_of(len(mover.failures), 'file')} failed; {done} were moved")
    return Moved(files=mover.files, size_bytes=mover.size_bytes)


class _Mover:
    """Run tasks in threads, a bounded number ahead, and sum up their outcomes."""

    def __init__(self, shown: Bar) -> None:
        self._shown = shown
        self._stop = threading.Event()
        self.files = 0
        self.size_bytes = 0
        self.failures: list[tuple[str, LakebedError | OSError]] = []

    def run(self, tasks: Iterable[_Task], parallel: int) -> None:
        running: dict[Future[int], str] = {}
        if isinstance(tasks, Sequence):
            self._shown.expect(sum(task.size_bytes for task in tasks), files=len(tasks))
        with ThreadPoolExecutor(parallel) as pool:
            try:
                for task in tasks:
                    if not isinstance(tasks, Sequence):
                        self._shown.expect(task.size_bytes, files=1)
                    running[pool.submit(task.move, self._advance)] = task.name
                    if len(running) >= 2 * parallel:
                        self._collect(running)
                while running:
                    self._collect(running)
            except BaseException:
                # Files on their way notice at their next chunk; those that wait never begin.
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                for moved in running:
                    if not moved.cancelled() and moved.exception() is None:
                        self._count(moved)
                raise

    def _advance(self, amount: int) -> None:
        if self._stop.is_set():
            raise _Stopped("stopped")
        self._shown.advance(amount)

    def _count(self, moved: Future[int]) -> None:
        self.size_bytes += moved.result()
        self.files += 1

    def _collect(self, running: dict[Future[int], str]) -> None:
        """Wait for the next task to end, and count it."""
        for ended in wait(running, return_when=FIRST_COMPLETED).done:
            name = running.pop(ended)
            self._shown.end_file()
            try:
                self._count(ended)
            except (Unavailable, OutcomeUnknown, Denied):
                raise
            except (LakebedError, OSError) as error:
                self.failures.append((name, error))
