"""`lakebed sync`: make a folder like another, where one of the two is in a repository. Moves only files that differ.

A file is as its object where both have the same size and the same MD5. An object may have another kind of checksum:
then the side that is written must not be older than the side that is read.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

from lakebed.base import Denied, count_of, human_size
from lakebed.cli.kit.completion import complete_object
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import BadUri, ObjectUri, is_uri, parse_prefix
from lakebed.wire import ObjectStats

from . import transfers

app = noun("Make a folder like another: one of this machine and one of a repository.")

_OWN_TEXT: Final = "skipped {}: the name is kept for `lakebed local`"
_MD5: Final = re.compile(r"[0-9a-f]{32}")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do: `upload`, `download` or `delete`. `path` is below both folders."""

    action: str
    path: str
    size_bytes: int = 0


SIDE: Final = "A folder, or lakefs://repository/ref/folder."
Globs = list[str] | None


@app.command()
def sync(
    session: Session,
    source: Annotated[str, Argument(help=SIDE, example="./logs", complete=complete_object, names_file=True)],
    target: Annotated[
        str, Argument(help=SIDE, example="lakefs://lake/main/logs", complete=complete_object, names_file=True)
    ],
    *,
    delete: Annotated[bool, Option("--delete", help="Delete files of TARGET that SOURCE does not have.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the steps, and change nothing.")] = False,
    include: Annotated[
        Globs, Option("--include", metavar="GLOB", help="Only paths that match: * also matches slashes.")
    ] = None,
    exclude: Annotated[Globs, Option("--exclude", metavar="GLOB", help="Exclude matching paths.")] = None,
    parallel: Annotated[int, Option("--parallel", "-j", min=1, max=64, help="Move this many files at a time.")] = 8,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before --delete.")] = False,
) -> None:
    """Make TARGET like SOURCE, and move only files that differ. One of them is a folder, the other in a repository.

    Changes of a branch stay uncommitted. Paths that no glob selects are left alone on both sides.
    """
    if is_uri(source) == is_uri(target):
        mistyped = source if Path(target).exists() else target
        raise BadUri(
            "one of SOURCE and TARGET must be a folder, and the other lakefs://repository/ref/folder",
            uri=mistyped,
            form="" if is_uri(source) else "lakefs://repository/ref",
        )

    def is_selected(name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in include or ["*"]) and not any(
            fnmatchcase(name, glob) for glob in exclude or []
        )

    session.when_stopped = lambda: "stopped while comparing: nothing was changed; run the same command again"
    plan_of, folder, uri = (_plan_upload, source, target) if is_uri(target) else (_plan_download, target, source)
    plan = plan_of(session, Path(folder), parse_prefix(uri), is_selected, delete=delete, parallel=parallel)
    if delete and plan.is_source_empty:
        raise Misuse(f"{source} has nothing at all: with --delete that would empty {target}. `object rm -r` does so")
    if dry_run:
        session.show_all(
            [*plan.moves, *(Step(action="delete", path=name) for name in plan.deletes)],
            lambda found: [f"{step.action:8}  {printable(step.path)}" for step in found],
            otherwise="nothing to do: both sides are equal",
        )
        if plan.left.text:
            session.note(plan.left.text.removeprefix("; "))
        return
    moved, deleted = len(plan.moves), len(plan.deletes)
    if deleted:
        session.confirm(f"Delete {count_of(deleted, 'file')} of {target} that {source} does not have?", yes=yes)
    plan.move(
        parallel=parallel, goes_on=f"{transfers.GOES_ON}: it moves the rest" + (", and then deletes" if deleted else "")
    )
    plan.delete()
    size_bytes = sum(step.size_bytes for step in plan.moves)
    session.done(
        f"{target}: {count_of(moved, 'file')} moved ({human_size(size_bytes)}), {plan.unchanged:,} unchanged"
        + (f", {deleted:,} deleted" if deleted else "")
        + plan.left.text,
        moved=moved,
        unchanged=plan.unchanged,
        deleted=deleted,
        size_bytes=size_bytes,
        **plan.left.facts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Hold the steps in one direction. `move` moves the files, `delete` then deletes those that are too many."""

    moves: Sequence[Step]
    deletes: Sequence[str]
    unchanged: int
    is_source_empty: bool
    left: transfers.LeftOut
    move: Callable[..., object]
    delete: Callable[[], object]


def _plan_upload(
    session: Session, folder: Path, place: ObjectUri, is_selected: Callable[[str], bool], *, delete: bool, parallel: int
) -> _Plan:
    with suppress(Denied):  # A user may have the right to write and not the right to list.
        session.client.branches.get(place.repository, place.ref)
    left, beside = transfers.LeftOut(noun="file"), transfers.LeftOut()
    here = transfers.local_files(session, folder, left, whole=delete)
    there = remote_objects(session, place, beside, with_bytes=False)
    files = {name: file for name, file in here.items() if is_selected(name)}
    objects = {name: one for name, one in there.items() if is_selected(name)}
    differing = _differing(files, files, objects, is_current=operator.le, parallel=parallel)
    blocked = beside.covered & here.keys()
    extra = {name for name in objects.keys() - files.keys() if not _was_left_out(name, objects[name], blocked)}
    gone = sorted(extra) if delete else []
    return _Plan(
        moves=[Step(action="upload", path=name, size_bytes=files[name].stat().st_size) for name in differing],
        deletes=gone,
        unchanged=len(files) - len(differing),
        is_source_empty=not here,
        left=left,
        move=partial(transfers.upload_files, session, folder, place, differing),
        delete=partial(transfers.delete_objects, session, place, [objects[name].path for name in gone]),
    )


def _plan_download(
    session: Session, folder: Path, place: ObjectUri, is_selected: Callable[[str], bool], *, delete: bool, parallel: int
) -> _Plan:
    left = transfers.LeftOut()
    here = transfers.local_files(session, folder, transfers.LeftOut()) if folder.exists() else {}
    there = remote_objects(session, place, left, with_bytes=True)
    if not (there or delete):
        transfers.objects_below(session, place)  # Refuses a mistyped folder.
    files = {name: file for name, file in here.items() if is_selected(name)}
    objects = {name: one for name, one in there.items() if is_selected(name)}
    differing = _differing(objects, files, objects, is_current=operator.ge, parallel=parallel)
    gone = sorted(files.keys() - objects.keys()) if delete else []
    return _Plan(
        moves=[Step(action="download", path=name, size_bytes=objects[name].size_bytes or 0) for name in differing],
        deletes=gone,
        unchanged=len(objects) - len(differing),
        is_source_empty=not there,
        left=left,
        move=partial(transfers.download_objects, session, place, folder, [objects[name] for name in differing]),
        delete=partial(transfers.delete_files, folder, gone),
    )


def remote_objects(
    session: Session, place: ObjectUri, left: transfers.LeftOut, *, with_bytes: bool
) -> dict[str, ObjectStats]:
    """Return the objects below a folder by their path from there, without those that no folder can hold.

    `with_bytes`: also without those whose bytes a lifecycle run or an erasure took.
    """
    folder = transfers.folder_of(place.path)
    found: dict[str, ObjectStats] = {}
    listed = session.client.objects.list(place.repository, place.ref, prefix=folder)
    objects = transfers.fitting(session, listed, folder, left)
    for one in transfers.having_bytes(session, objects, left) if with_bytes else objects:
        if transfers.is_own(name := one.path.removeprefix(folder)):
            left.add(session, _OWN_TEXT.format(printable(name)))
            continue
        found[name] = one
    return found


def _was_left_out(name: str, one: ObjectStats, blocked: Set[str]) -> bool:
    """Return whether a download could not bring this object: the folder has a file in its way, or its bytes are gone.

    That the folder lacks it then says nothing, so no sync deletes it. `blocked`: files here that are objects there,
    too, and have others below them.
    """
    return one.expired is not None or any(name.startswith(file + "/") for file in blocked)


def can_be_file(session: Session, name: str) -> bool:
    """Return whether the object at this path below a folder can be a file; note why not."""
    try:
        transfers.segments_of(name)
    except transfers.NotAFile as error:
        session.warn(f"skipped {printable(name)}: {error}")
        return False
    if transfers.is_own(name):
        session.warn(_OWN_TEXT.format(printable(name)))
        return False
    return True


def md5_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def is_md5(checksum: str) -> bool:
    return _MD5.fullmatch(checksum) is not None


def _differing(
    names: Iterable[str],
    files: Mapping[str, Path],
    objects: Mapping[str, ObjectStats],
    *,
    is_current: Callable[[float, float], bool],
    parallel: int,
) -> list[str]:
    """Return the names of the source that the target lacks or has otherwise. Reads a file only where sizes agree.

    `is_current` compares the dates of a file and an object that has no MD5.
    """

    def is_same(name: str) -> bool:
        file, one = files.get(name), objects.get(name)
        if file is None or one is None or one.expired is not None or file.stat().st_size != one.size_bytes:
            return False
        if is_md5(one.checksum):
            return md5_of(file) == one.checksum
        return is_current(file.stat().st_mtime, one.mtime)

    ordered = sorted(names)
    with ThreadPoolExecutor(parallel) as pool:
        return [name for name, same in zip(ordered, pool.map(is_same, ordered), strict=True) if not same]
