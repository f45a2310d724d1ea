"""`lakebed object`: upload, download, list, copy and delete objects. transfers.py moves whole folders."""

from __future__ import annotations

import itertools
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final

import msgspec

from lakebed.base import (
    AlreadyExists,
    Conflict,
    Denied,
    InvalidName,
    NotFound,
    Unavailable,
    check_branch,
    count_of,
    human_size,
    parse_size,
)
from lakebed.cli.kit.arguments import LimitOption, MetaOption, ObjectArgument, YesOption, other_object, parse_meta
from lakebed.cli.kit.completion import complete_object
from lakebed.cli.kit.failures import Failed, Misuse, being_there
from lakebed.cli.kit.output import columns_of, human_time, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, ObjectUri, parse_object, parse_prefix
from lakebed.wire import ObjectStats

from .transfers import (
    GOES_ON,
    LeftOut,
    Moved,
    delete_objects,
    download_objects,
    fitting,
    folder_of,
    having_bytes,
    local_files,
    objects_below,
    present,
    type_of,
    upload_files,
)

app = noun("Upload, download, list, show, copy and delete objects.")


class FolderSize(msgspec.Struct, kw_only=True):
    """Sum up a folder."""

    path: str
    objects: int
    size_bytes: int


STANDARD_STREAM: Final = "-"

SourceFile = Annotated[
    str, Argument(metavar="FILE", help="A file, - for standard input, or a folder with -r.", names_file=True)
]
TargetFile = Annotated[str, Argument(metavar="FILE", help="A file or folder; - for standard output.", names_file=True)]
PrefixArgument = Annotated[
    str, Argument(metavar="URI", help="lakefs://repository/ref/prefix", complete=complete_object)
]
# Of a command with two objects, the help names each.
FromArgument = Annotated[
    str,
    Argument(
        metavar="SOURCE",
        help="lakefs://repository/ref/path",
        example="lakefs://lake/main/logs/a.csv",
        complete=complete_object,
    ),
]
ToArgument = Annotated[
    str,
    Argument(
        metavar="TARGET",
        help="lakefs://repository/branch/path, or a path on the source's branch.",
        example="lakefs://lake/main/logs/b.csv",
        complete=complete_object,
    ),
]
RecursiveOption = Annotated[bool, Option("--recursive", "-r", help="Take everything below the path.")]
ParallelOption = Annotated[int, Option("--parallel", "-j", min=1, max=64, help="Move this many files at a time.")]
ContentTypeOption = Annotated[
    str,
    Option("--content-type", help="The content type of the upload; by default guessed from each file's name."),
]
PresignedOption = Annotated[
    bool, Option("--presigned", help="Move the bytes straight to or from the object store, by signed URLs.")
]


@app.command("upload")
def upload(
    session: Session,
    source: SourceFile,
    destination: PrefixArgument,
    recursive: RecursiveOption = False,
    parallel: ParallelOption = 8,
    content_type: ContentTypeOption = "",
    meta: MetaOption = None,
    if_absent: Annotated[bool, Option("--if-absent", help="Fail where the path exists.")] = False,
    presigned: PresignedOption = False,
) -> None:
    """Upload a file, standard input, or a folder. Without a path, or where it ends in /, the file's name is added."""
    target = parse_prefix(destination)
    metadata = parse_meta(meta)
    if recursive:
        if source == STANDARD_STREAM:
            raise Misuse("- is one stream: it cannot be uploaded with --recursive")
        left = LeftOut(noun="file")
        moved = upload_files(
            session,
            Path(source),
            target,
            local_files(session, Path(source), left),
            parallel=parallel,
            content_type=content_type,
            metadata=metadata,
            if_absent=if_absent,
            presigned=presigned,
            goes_on=_sync(source, target),
        )
        _report(session, f"uploaded {source} to {target}", moved, left)
        return
    try:
        made = _upload_one(session, source, target, content_type, metadata, if_absent, presigned)
    except (AlreadyExists, Conflict) as error:
        if not (if_absent and "exists" in str(error)):
            raise
        raise AlreadyExists(f"{target} exists already: leave out --if-absent to replace it", **error.facts) from error
    uri = f"{SCHEME}{target.repository}/{target.ref}/{made.path}"
    session.done(f"uploaded {uri} ({human_size(made.size_bytes or 0)})", made)


def _sync(source: object, target: object) -> str:
    """Say which command moves the rest of a folder, and not all of it again."""
    return f"`{shlex.join(['lakebed', 'sync', str(source), str(target)])}` moves the rest"


def _upload_one(
    session: Session,
    source: str,
    target: ObjectUri,
    content_type: str,
    metadata: dict[str, str],
    if_absent: bool,
    presigned: bool,
) -> ObjectStats:
    files = session.client.files
    if source == STANDARD_STREAM:
        if presigned:
            raise Misuse("- has no known length, which --presigned needs: write it to a file first")
        path = parse_object(str(target)).path
        return files.upload_stream(
            target.repository,
            target.ref,
            path,
            sys.stdin.buffer,
            content_type=content_type or type_of(path),
            metadata=metadata,
            if_absent=if_absent,
        )
    file = Path(source)
    if file.is_dir():
        raise Misuse(f"{source} is a folder: add --recursive")
    if not file.exists():
        raise Misuse(f"{source}: No such file or directory: name one that exists")
    path = target.path if target.path and not target.path.endswith("/") else target.path + file.name
    with session.bar(f"uploading {file.name}", file.stat().st_size) as shown:
        return files.upload(
            target.repository,
            target.ref,
            path,
            file,
            content_type=content_type or type_of(path),
            metadata=metadata,
            if_absent=if_absent,
            presigned=presigned,
            progress=shown.advance,
        )


@app.command("download")
def download(
    session: Session,
    uri: PrefixArgument,
    target: TargetFile = ".",
    recursive: RecursiveOption = False,
    parallel: ParallelOption = 8,
    presigned: PresignedOption = False,
) -> None:
    """Download an object to a file or folder, or with -r a whole folder. Existing files are replaced."""
    source = parse_prefix(uri)
    if recursive:
        if target == STANDARD_STREAM:
            raise Misuse("- is one stream: nothing can be downloaded to it with --recursive, so name a folder")
        left = LeftOut()
        found = fitting(session, objects_below(session, source), folder_of(source.path), left)
        moved = download_objects(
            session,
            source,
            Path(target),
            having_bytes(session, found, left),
            parallel=parallel,
            presigned=presigned,
            goes_on=_sync(source, target),
        )
        _report(session, f"downloaded {source} to {target}", moved, left)
        return
    source = parse_object(uri)
    if target == STANDARD_STREAM:
        _to_stdout(session, source, presigned=presigned)
        return
    file = Path(target)
    if file.is_dir() or target.endswith("/"):
        file = file / _base_name(source)
    if not file.parent.is_dir():
        raise Misuse(f"{file.parent}: no such folder to download to; make it first")
    total = _stat(session, source).size_bytes or 0
    with session.bar(f"downloading {file.name}", total) as shown:
        try:
            size = session.client.files.download(
                source.repository, source.ref, source.path, file, presigned=presigned, progress=shown.advance
            )
        except OSError as error:
            # A write, as to a full disk, names no file.
            raise OSError(error.errno, error.strerror, error.filename or str(file)) from error
    session.done(f"downloaded {source} to {file} ({human_size(size)})", file=str(file), size_bytes=size)


@app.command("cat")
def cat(session: Session, uri: ObjectArgument) -> None:
    """Write an object to standard output."""
    _to_stdout(session, parse_object(uri))


@app.command("ls")
def ls(
    session: Session,
    uri: PrefixArgument,
    recursive: RecursiveOption = False,
    delimiter: Annotated[str, Option("--delimiter", help="The separator of folders.")] = "/",
    limit: LimitOption = None,
) -> None:
    """List paths at a prefix, common prefixes as folders; with -r all paths."""
    place = parse_prefix(uri)
    found = session.client.objects.list(
        place.repository, place.ref, prefix=place.path, delimiter="" if recursive else delimiter, limit=limit
    )
    session.show_all(found, _ls_lines, otherwise=f"no object at {place}")


@app.command("stat")
def stat(session: Session, uri: ObjectArgument) -> None:
    """Show an object's size, checksum, address and metadata."""
    place = parse_object(uri)
    one = session.client.objects.stat(place.repository, place.ref, place.path)
    metadata = [(f"  {name}", value) for name, value in sorted((one.metadata or {}).items())]
    facts = [
        ("Path", one.path),
        ("Size", _size(one.size_bytes or 0)),
        ("Modified", human_time(one.mtime)),
        ("Checksum", one.checksum),
        ("Content type", one.content_type or ""),
        ("Address", one.physical_address),
    ]
    if one.expired is not None:
        gone = one.expired
        rule = "" if gone.is_erased else f"policy version {gone.policy_version}, {gone.rule}, "
        facts.append((gone.word.capitalize(), f"{human_time(gone.date)} by {rule}run {gone.run}"))
    session.show_fields(one, [*facts, *metadata])


@app.command("presign")
def presign(session: Session, uri: ObjectArgument) -> None:
    """Print a URL that reads an object without credentials, for a quarter of an hour."""
    place = parse_object(uri)
    one = session.client.objects.stat(place.repository, place.ref, place.path, presign=True)
    if one.physical_address_expiry is None:
        raise Unavailable(
            f"{place}: this server signs no URLs. Its objects lie in a folder, or LAKEBED_PRESIGN is 0. "
            f"`lakebed object download {place}` reads it, and an S3 client signs URLs of this server: "
            f'`eval "$(lakebed config show --export)"; aws s3 presign s3://{place.repository}/{place.ref}/{place.path}`'
        )
    session.show(one, lambda _: one.physical_address)


@app.command("du")
def du(
    session: Session,
    uri: PrefixArgument,
    depth: Annotated[int, Option("--depth", "-d", min=0, help="Show folders down to this level.")] = 1,
) -> None:
    """Show how many bytes and objects lie below a folder, and in each folder in it. The largest stands first.

    The path of an object shows that object.
    """
    place = parse_prefix(uri)
    prefix = folder_of(place.path)
    below: dict[str, FolderSize] = {}
    if not depth:
        # The server knows the sum of a folder without a list of its objects.
        objects, size_bytes = session.client.objects.measure(place.repository, place.ref, prefix=prefix)
        if objects:
            below[prefix] = FolderSize(path=prefix, objects=objects, size_bytes=size_bytes)
    for one in () if not depth else session.client.objects.list(place.repository, place.ref, prefix=prefix):
        folders = one.path[len(prefix) :].split("/")[:-1][:depth]
        for count in range(len(folders) + 1):
            name = prefix + "".join(f"{folder}/" for folder in folders[:count])
            found = below.setdefault(name, FolderSize(path=name, objects=0, size_bytes=0))
            found.objects += 1
            found.size_bytes += one.size_bytes or 0
    if not below and prefix:
        with suppress(NotFound):
            one = session.client.objects.stat(place.repository, place.ref, place.path)
            below[one.path] = FolderSize(path=one.path, objects=1, size_bytes=one.size_bytes or 0)
        if not below:
            raise NotFound(f"nothing lies at {place}")
    sizes = sorted(below.values(), key=lambda one: (-one.size_bytes, one.path))
    session.show_all(
        sizes or [FolderSize(path=prefix, objects=0, size_bytes=0)],
        lambda found: columns_of(
            found,
            {
                "FOLDER": lambda one: printable(one.path) or "(everything)",
                "SIZE": lambda one: human_size(one.size_bytes),
                "OBJECTS": lambda one: f"{one.objects:,}",
            },
        ),
    )


@app.command("find")
def find(
    session: Session,
    uri: PrefixArgument,
    name: Annotated[str, Option("--name", help="Only paths that match this glob: * also matches slashes.")] = "*",
    larger: Annotated[str, Option("--larger", metavar="SIZE", help="Only objects of more than this: 10MiB.")] = "",
    limit: LimitOption = None,
) -> None:
    """List every object below a prefix that matches."""
    place = parse_prefix(uri)
    least = parse_size(larger) if larger else -1
    found = session.client.objects.list(place.repository, place.ref, prefix=place.path)
    matching = (one for one in present(found, place) if fnmatchcase(one.path, name) and (one.size_bytes or 0) > least)
    session.show_all(itertools.islice(matching, limit), _ls_lines, otherwise=f"no such object at {place}")


@app.command("rm")
def rm(session: Session, uri: PrefixArgument, recursive: RecursiveOption = False, yes: YesOption = False) -> None:
    """Delete an object, or with -r a whole folder, after a question. Earlier commits keep their objects."""
    objects = session.client.objects
    if recursive:
        place = parse_prefix(uri)
        folder = folder_of(place.path)
        found = objects_below(session, place)
        session.confirm(f"Delete all objects below {ObjectUri(place.repository, place.ref, folder)}?", yes=yes)
        deleted = delete_objects(session, place, (one.path for one in found))
        session.done(f"deleted {count_of(deleted, 'object')} below {place}", deleted=deleted)
        return
    place = parse_object(uri)
    # Deleting a missing object succeeds; a mistyped path should not.
    _stat(session, place)
    objects.delete(place.repository, place.ref, place.path)
    session.done(f"deleted {place}", deleted=1)


@app.command("cp")
def cp(session: Session, source: FromArgument, destination: ToArgument) -> None:
    """Copy an object within a repository, on the server."""
    here = parse_object(source)
    there = parse_object(str(_target(session, here, destination)))
    if here.repository != there.repository:
        raise Misuse(f"{here} and {there} are not in one repository: `lakebed object mv` copies to another one")
    with being_there(source):
        made = session.client.objects.copy(
            here.repository, source_ref=here.ref, source=here.path, branch=there.ref, destination=there.path
        )
    session.done(f"copied {here} to {there}", made)


@app.command("mv")
def mv(
    session: Session,
    source: FromArgument,
    destination: ToArgument,
    recursive: RecursiveOption = False,
    if_absent: Annotated[bool, Option("--if-absent", help="Fail where the target exists.")] = False,
) -> None:
    """Move an object or, with --recursive, a folder; no bytes move. To another repository it is copied, and stays."""
    from lakebed.client import MovedAsCopy, Taken  # here, since loading it takes time that most commands save

    here = parse_prefix(source)
    there = _target(session, here, destination)
    if recursive:
        folder = folder_of(here.path)
        found = session.client.objects.list(here.repository, here.ref, prefix=folder)
        pairs = [(one.path, folder_of(there.path) + one.path.removeprefix(folder)) for one in found]
        if not pairs:
            raise NotFound(f"nothing lies below {here}")
    else:
        _stat(session, parse_object(source))
        is_folder = not there.path or there.path.endswith("/")
        pairs = [(here.path, there.path + _base_name(here) if is_folder else there.path)]
    copied, taken, done = [], [], 0
    if recursive:
        verb = "moved" if here.repository == there.repository else "copied"
        session.when_stopped = lambda: (
            f"stopped: {done:,} of {count_of(len(pairs), 'object')} {verb}; {GOES_ON}: it takes the rest"
        )
    for path, to in pairs:
        try:
            _move_one(session, here, path, there, to, if_absent)
            done += 1
        except MovedAsCopy:
            copied.append(path)
        except Taken:
            taken.append(to)
    moved = len(pairs) - len(copied) - len(taken)
    if taken:
        # Only with --if-absent. Of several sources the others have moved.
        raise AlreadyExists(
            f"{printable(taken[0])} exists already: its source stays; {count_of(moved, 'object')} moved"
        )
    if copied:
        first = printable(copied[0])
        raise Failed(
            f"{first} was replaced meanwhile: it stays, and its target is a copy; {count_of(moved, 'object')} moved"
        )
    count = count_of(moved, "object")
    if here.repository == there.repository:
        session.done(f"moved {here} to {there}: {count}", moved=moved)
    else:
        session.done(f"copied {here} to {there}: {count}; the source stays, in its repository", copied=moved)


def _target(session: Session, here: ObjectUri, destination: str) -> ObjectUri:
    def is_branch(name: str) -> bool:
        with suppress(InvalidName, NotFound, Denied):
            check_branch(name)
            session.client.branches.get(here.repository, name)
            return True
        return False

    return other_object(here, destination, is_branch)


def _move_one(session: Session, here: ObjectUri, path: str, there: ObjectUri, to: str, if_absent: bool) -> None:
    """
    Raises:
        MovedAsCopy: the source was replaced meanwhile.
        Taken: `if_absent`, and the target exists.
    """
    client = session.client
    if here.repository != there.repository:
        stat = client.objects.stat(here.repository, here.ref, path)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "object")
            client.files.download(here.repository, here.ref, path, file)
            client.files.upload(
                there.repository,
                there.ref,
                to,
                file,
                content_type=stat.content_type or type_of(path),
                metadata=stat.metadata,
                if_absent=if_absent,
            )
        return
    client.objects.move(
        here.repository,
        source_branch=here.ref,
        source=path,
        branch=there.ref,
        destination=to,
        if_absent=if_absent,
    )


def _stat(session: Session, place: ObjectUri) -> ObjectStats:
    objects = session.client.objects
    try:
        return objects.stat(place.repository, place.ref, place.path)
    except NotFound as error:
        if next(iter(objects.list(place.repository, place.ref, prefix=folder_of(place.path), limit=1)), None) is None:
            raise
        raise NotFound(f"{place} is a folder: add --recursive", **error.facts) from error


def _to_stdout(session: Session, place: ObjectUri, *, presigned: bool = False) -> None:
    session.client.files.download_to(place.repository, place.ref, place.path, sys.stdout.buffer, presigned=presigned)


def _base_name(place: ObjectUri) -> str:
    name = place.path.rpartition("/")[2]
    if name in {"", ".", ".."}:
        raise Misuse(f"{place}: its last segment is not a file name: name the file to write")
    return name


def _report(session: Session, what: str, moved: Moved, left: LeftOut) -> None:
    text = f"{what}: {count_of(moved.files, 'file')}, {human_size(moved.size_bytes)}{left.text}"
    session.done(text, files=moved.files, size_bytes=moved.size_bytes, **left.facts)


def _ls_lines(found: Iterable[ObjectStats]) -> Iterator[str]:
    for one in found:
        if one.path_type == "common_prefix":
            yield f"{'':20}  {'':>9}  {printable(one.path)}"
        else:
            mark = f"  ({one.expired.word})" if one.expired is not None else ""
            yield f"{human_time(one.mtime)}  {human_size(one.size_bytes or 0):>9}  {printable(one.path)}{mark}"


def _size(size_bytes: int) -> str:
    exactly = count_of(size_bytes, "byte")
    return exactly if size_bytes < 1024 else f"{human_size(size_bytes)} ({exactly})"
