"""`lakebed local`: a folder of this machine that follows a folder of a branch: check out, look, pull, commit.

The folder holds CHECKOUT_FILE: the branch and folder that it follows, the commit that it has, and the size, date and
checksum of each file. A file with this size and date is unchanged; others are read. `pull` fetches the branch's
changes, `commit` sends the folder's. A path that changed on both sides stops either before it does anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Final

import msgspec

from lakebed.base import Conflict, Corrupt, NotFound, count_of
from lakebed.cli.kit.arguments import MessageOption, MetaOption, parse_meta
from lakebed.cli.kit.completion import complete_object
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import ObjectUri, parse_prefix
from lakebed.wire import ObjectStats

from .syncing import can_be_file, is_md5, md5_of, remote_objects
from .transfers import (
    OWN_PREFIX,
    LeftOut,
    delete_files,
    delete_objects,
    download_objects,
    file_below,
    folder_of,
    local_files,
    upload_files,
)

app = noun("Follow a folder of a branch in a folder of this machine.")

CHECKOUT_FILE: Final = f"{OWN_PREFIX}checkout"
INCOMING: Final = f"{OWN_PREFIX}incoming"
"""The folder that objects are fetched to, before any file is replaced."""
MINE: Final = ".mine"
"""Ends the name of a file that was set aside."""
NAME_BYTES_MAX: Final = 255
"""The longest name of a file that common disks take."""
ASIDE: Final = "set aside"
FORMAT: Final = 1
SHOWN: Final = 3

Folder = Annotated[Path, Argument(metavar="DIR", help="A folder that `lakebed local checkout` made.")]
ParallelOption = Annotated[int, Option("--parallel", "-j", min=1, max=64, help="Move this many files at a time.")]
State = tuple[int, int, str]
"""(size in bytes, date of change in ns, MD5) of a file as it was when it was the object's."""


class Checkout(msgspec.Struct, kw_only=True):
    """Hold the content of CHECKOUT_FILE. `files` are the objects of `commit`, by their paths from the folder.
    Pulls have `set_aside` these paths: they are not sent.
    """

    format: int = FORMAT
    endpoint: str
    uri: str
    commit: str
    files: dict[str, State]
    set_aside: list[str] = []  # msgspec copies it


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Name one path that differs from the commit of the checkout. `where`: here, or on the branch."""

    where: str
    change: str
    path: str


@app.command()
def checkout(
    session: Session,
    uri: Annotated[
        str,
        Argument(metavar="URI", help="lakefs://repository/branch/folder", complete=complete_object),
    ],
    folder: Annotated[Path, Argument(metavar="DIR", help="A new or empty folder.")] = Path(),
    parallel: ParallelOption = 8,
) -> None:
    """Download a folder of a branch into DIR, where `status`, `pull` and `commit` then work."""
    place = parse_prefix(uri)
    if folder.exists() and any(folder.iterdir()):
        raise Misuse(f"{folder} is not empty: check out into a new folder")
    commit = session.client.branches.get(place.repository, place.ref).commit_id
    at = ObjectUri(place.repository, commit, place.path)
    left = LeftOut()
    objects = remote_objects(session, at, left, with_bytes=True)
    if not objects and place.path:
        raise NotFound(f"{place}: there is no object below")
    download_objects(session, at, folder, [*objects.values()], parallel=parallel)
    endpoint = session.client.endpoint
    files = _states(folder, objects, fetched=objects.keys())
    _save(folder, Checkout(endpoint=endpoint, uri=str(place), commit=commit, files=files))
    session.done(
        f"checked out {count_of(len(objects), 'file')} of {place} at commit {commit[:12]}{left.text}",
        files=len(objects),
        commit=commit,
        **left.facts,
    )


@app.command()
def status(session: Session, folder: Folder = Path()) -> None:
    """Show changes here and on the branch since the checkout or the last pull."""
    checkout = _load(session, folder)
    mine = _changed_here(session, folder, checkout)
    mine |= dict.fromkeys(_set_aside_in(checkout, mine), ASIDE)
    theirs, _ = _changed_there(session, checkout)
    changes = [
        *(Change(where="here", change=change, path=path) for path, change in sorted(mine.items())),
        *(Change(where="branch", change=change, path=path) for path, change in sorted(theirs.items())),
    ]
    session.show_all(changes, lambda found: _status_lines(checkout, [*found]))


@app.command()
def pull(
    session: Session,
    folder: Folder = Path(),
    parallel: ParallelOption = 8,
    theirs: Annotated[
        bool,
        Option("--theirs", help=f"Where both sides changed, take the branch's; yours becomes NAME{MINE}."),
    ] = False,
) -> None:
    """Bring changes on the branch into the folder. Changes here stay."""
    moved = _pull(session, folder, parallel, aside=theirs)
    session.done(f"{folder}: {count_of(moved, 'file')} changed on the branch", files=moved)


@app.command()
def commit(
    session: Session,
    message: MessageOption,
    folder: Folder = Path(),
    meta: MetaOption = None,
    parallel: ParallelOption = 8,
) -> None:
    """Send changes here to the branch as one commit, all or nothing, then pull."""
    from lakebed.lake import Branch

    checkout = _load(session, folder)
    place = parse_prefix(checkout.uri)
    mine = _changed_here(session, folder, checkout)
    for path in _set_aside_in(checkout, mine):
        del mine[path]
    if not mine:
        raise Conflict(f"{folder}: nothing changed since commit {checkout.commit[:12]}")
    branch = Branch(session.client, place.repository, place.ref)
    with branch.transaction(message, metadata=parse_meta(meta)) as tx:
        # Compared with the commit that the transaction began from; its merge checks later commits.
        theirs, base = _changed_there(session, checkout, ref=tx.name)
        if both := mine.keys() & theirs.keys():
            at = ObjectUri(place.repository, base, place.path)
            _check_apart(_apart(folder, both, remote_objects(session, at, LeftOut(), with_bytes=True)))
        own = ObjectUri(place.repository, tx.name, place.path)
        upload_files(session, folder, own, [path for path in mine if mine[path] != "removed"], parallel=parallel)
        prefix = folder_of(place.path)
        delete_objects(session, own, [prefix + path for path in mine if mine[path] == "removed"])
    # To the commit that was made, not to a later one, in which others may have changed these paths again.
    _pull(session, folder, parallel, to=tx.result, sent=mine)
    made = f"commit {tx.result[:12]}" if tx.result else "it had them already"
    session.done(
        f"committed {count_of(len(mine), 'file')} to {place}: {made}", files=len(mine), commit=tx.result or None
    )


def _pull(
    session: Session, folder: Path, parallel: int, *, to: str = "", sent: Iterable[str] = (), aside: bool = False
) -> int:
    """Bring the folder to a commit, by default the branch's; returns how many files changed.

    `sent` are paths that this side committed just now as `to`: they are not fetched. `aside`: rename files that changed
    on both sides. A file stays where the branch has an object whose bytes are gone.

    Raises:
        Conflict: a path changed here too, perhaps while its object was fetched. No file was touched.
    """
    checkout = _load(session, folder)
    place = parse_prefix(checkout.uri)
    mine = _changed_here(session, folder, checkout)
    theirs, head = _changed_there(session, checkout, to=to)
    at = ObjectUri(place.repository, head, place.path)
    objects = remote_objects(session, at, LeftOut(), with_bytes=True) if theirs else {}
    set_aside = _set_aside_in(checkout, mine)
    both = (mine.keys() & theirs.keys()) - {*sent}
    apart = _apart(folder, both, objects)
    _check_apart([] if aside else apart)
    kept = {*sent} | both - {*apart}
    fetched = [path for path in theirs if path in objects and path not in kept]
    removed = [path for path, change in theirs.items() if change == "removed" and path not in kept]
    incoming = folder / INCOMING
    try:
        download_objects(session, at, incoming, [objects[path] for path in fetched], parallel=parallel)
        # The downloads may have taken hours: a file that changed meanwhile is looked for again, and wins.
        now = _changed_here(session, folder, checkout)
        _check_apart(_apart(folder, [path for path in (*fetched, *removed) if path in now and path not in apart], {}))
        # Before the first file is replaced: a folder on the way may have become a link.
        files_now = {path: file_below(folder, path) for path in fetched}
        for path in apart:
            if _set_aside(folder / path):
                set_aside.append(_aside_of(Path(path)).as_posix())
        for path in fetched:
            files_now[path].parent.mkdir(parents=True, exist_ok=True)
            (incoming / path).replace(files_now[path])
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    delete_files(folder, removed)
    files = {path: state for path, state in checkout.files.items() if theirs.get(path) != "removed"}
    files |= _states(folder, {path: objects[path] for path in theirs if path in objects}, fetched={*fetched})
    made = Checkout(endpoint=checkout.endpoint, uri=checkout.uri, commit=head, files=files, set_aside=set_aside)
    _save(folder, made)
    return len(fetched) + len(removed)


def _set_aside_in(checkout: Checkout, mine: Mapping[str, str]) -> list[str]:
    """Return the changes here that are files which pulls set aside, and that still exist."""
    return [path for path in checkout.set_aside if mine.get(path) == "added"]


def _set_aside(file: Path) -> bool:
    """Return whether there was a file."""
    aside = _aside_of(file)
    if aside.exists():
        raise Misuse(f"{aside} is there from an earlier pull: move it away first")
    if not file.exists():
        return False
    file.rename(aside)
    return True


def _aside_of(file: Path) -> Path:
    """Return NAME.mine beside a file. A name that would be too long for a disk loses bytes before the ending."""
    room, name = NAME_BYTES_MAX - len(MINE), os.fsencode(file.name)
    # A cut inside a character leaves no half of it.
    return file.with_name((file.name if len(name) <= room else name[:room].decode(errors="ignore")) + MINE)


def _apart(folder: Path, both: Iterable[str], objects: Mapping[str, ObjectStats]) -> list[str]:
    """Return the paths that changed on both sides to different bytes."""
    return sorted(path for path in both if not _is_same(folder / path, objects.get(path)))


def _check_apart(apart: Sequence[str]) -> None:
    if apart:
        more = f" and {len(apart) - SHOWN:,} more" if len(apart) > SHOWN else ""
        raise Conflict(
            f"{', '.join(printable(path) for path in apart[:SHOWN])}{more}: changed here and on the branch."
            f" `lakebed local pull --theirs` takes the branch's and keeps yours as NAME{MINE}",
            paths=apart,
        )


def _changed_here(session: Session, folder: Path, checkout: Checkout) -> dict[str, str]:
    files = local_files(session, folder, LeftOut(), whole=True)
    found = dict.fromkeys(checkout.files.keys() - files.keys(), "removed")
    for path, file in files.items():
        known = checkout.files.get(path)
        if known is None:
            found[path] = "added"
        elif _state_now(file) != known[:2] and (file.stat().st_size != known[0] or md5_of(file) != known[2]):
            found[path] = "changed"
    return found


def _changed_there(session: Session, checkout: Checkout, *, ref: str = "", to: str = "") -> tuple[dict[str, str], str]:
    """Return the changes since the checkout's commit, and the commit that it was compared with.

    That is `to`, or the head of the branch `ref`, by default of the one that is followed.
    """
    place = parse_prefix(checkout.uri)
    head = to or session.client.branches.get(place.repository, ref or place.ref).commit_id
    prefix = folder_of(place.path)
    diff = session.client.history.diff(place.repository, checkout.commit, head, two_dot=True, prefix=prefix)
    changed = {one.path.removeprefix(prefix): one.type for one in diff}
    return {name: change for name, change in changed.items() if can_be_file(session, name)}, head


def _states(folder: Path, objects: Mapping[str, ObjectStats], *, fetched: Set[str]) -> dict[str, State]:
    """Return the states of these files. A file that differs from its object, or is absent, counts as changed here."""
    found: dict[str, State] = {}
    for path, one in objects.items():
        file = folder / path
        if path in fetched:
            found[path] = (*_state_now(file), one.checksum if is_md5(one.checksum) else md5_of(file))
        else:
            found[path] = (*(_state_now(file) if _is_same(file, one) else (-1, 0)), one.checksum)
    return found


def _state_now(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _is_same(file: Path, one: ObjectStats | None) -> bool:
    if one is None or not file.is_file():
        return one is None and not file.exists()
    # A checksum of another kind proves nothing: two files of one size may differ.
    return file.stat().st_size == one.size_bytes and is_md5(one.checksum) and md5_of(file) == one.checksum


def _load(session: Session, folder: Path) -> Checkout:
    """
    Raises:
        NotFound: the folder is no checkout.
        Corrupt: its file is of another release, or damaged.
        Misuse: it follows a branch of another server.
    """
    file = folder / CHECKOUT_FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Checkout)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{folder} is not a checkout: `lakebed local checkout URI DIR` makes one") from None
    except msgspec.DecodeError as error:
        raise Corrupt(f"{file} is damaged ({error}): check out into a new folder") from error
    if found.format != FORMAT:
        raise Corrupt(f"{file} has format {found.format}, this release writes {FORMAT}: check out into a new folder")
    if found.endpoint != session.client.endpoint:
        raise Misuse(f"{folder} follows {found.uri} of {found.endpoint}, not of {session.client.endpoint}: --endpoint")
    return found


def _save(folder: Path, checkout: Checkout) -> None:
    draft = folder / f"{CHECKOUT_FILE}.part"
    draft.write_bytes(msgspec.json.encode(checkout))
    draft.replace(folder / CHECKOUT_FILE)


def _status_lines(checkout: Checkout, changes: Sequence[Change]) -> list[str]:
    letters = {"added": "A", "changed": "M", "removed": "D"}
    lines = [f"{checkout.uri} at commit {checkout.commit[:12]}"]
    aside = [one for one in changes if one.change == ASIDE]
    for title, found in (
        ("changed here:", [one for one in changes if one.where == "here" and one not in aside]),
        ("changed on the branch (lakebed local pull):", [one for one in changes if one.where == "branch"]),
        ("set aside by a pull, and not sent (delete them, or give them another name):", aside),
    ):
        if found:
            lines += [title, *(f"  {letters.get(one.change, '?')} {printable(one.path)}" for one in found)]
    return lines if changes else [*lines, "nothing changed"]
