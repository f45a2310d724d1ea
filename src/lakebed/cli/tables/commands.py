"""`lakebed table`: look at Iceberg tables on branches, set them back, and write one for readers without the catalog."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

import msgspec

from lakebed.base import Denied
from lakebed.cli.kit.arguments import (
    BranchArgument,
    LimitOption,
    MessageOption,
    RefArgument,
    YesOption,
    other_ref,
    ref_in,
)
from lakebed.cli.kit.completion import complete_ref
from lakebed.cli.kit.failures import Failed, Misuse, being_there
from lakebed.cli.kit.output import human_time
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import DataOption, Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, is_uri, parse_object, parse_ref
from lakebed.wire import TableEntry

from . import text

app = noun(
    "Look at Iceberg tables on branches, and set them back.",
    "lakebed table list lakefs://lake/main",
    "lakebed table diff lakefs://lake/main lakefs://lake/dev sales.orders",
    "lakebed table rollback lakefs://lake/main sales.orders --to main~1",
)

TableArgument = Annotated[
    str, Argument(metavar="TABLE", help="namespace.table; with slashes where a name has a dot: a.b/table.")
]
_AZURE: Final = ".blob.core.windows.net"


class TableChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A table that differs between two refs: added, removed or changed."""

    table: str
    type: str
    left_metadata: str = ""
    right_metadata: str = ""


class TableExported(msgspec.Struct, frozen=True, kw_only=True):
    metadata: str
    files: int


@app.command("list")
def list_tables(
    session: Session,
    uri: RefArgument,
    namespace: Annotated[str, Argument(metavar="NAMESPACE", help="Only tables in it, and in those in it.")] = "",
    limit: LimitOption = None,
) -> None:
    """List the tables of a ref."""
    ref = parse_ref(uri)
    columns: dict[str, Callable[[TableEntry], object]] = {
        "table": lambda one: text.shown_name(one.table),
        "changed": lambda one: human_time(one.modified),
    }
    found = session.client.tables.list(ref.repository, ref.ref, namespace=text.path_of(namespace), limit=limit)
    session.show_table(found, columns, otherwise=f"no table at {ref}")


@app.command("show")
def show(session: Session, uri: RefArgument, name: TableArgument) -> None:
    """Show a table: its schema, its current snapshot, and how much is stored for it."""
    ref = parse_ref(uri)
    session.show(session.client.tables.stat(ref.repository, ref.ref, text.path_of(name)), text.details)


@app.command("history")
def history(session: Session, uri: RefArgument, name: TableArgument, limit: LimitOption = None) -> None:
    """Show the commits that changed a table, newest first, with the snapshots that each brought to this ref."""
    ref = parse_ref(uri)
    found = session.client.tables.versions(ref.repository, ref.ref, text.path_of(name), limit=limit)
    session.show_all(found, text.history, otherwise=f"no commit of {ref} changed {name}")


@app.command("diff")
def diff(
    session: Session,
    uri: RefArgument,
    right: Annotated[str, Argument(metavar="REF", help="Compare with this ref.", complete=complete_ref)],
    name: Annotated[str, Argument(metavar="TABLE", help="Default: name the tables that differ.")] = "",
) -> None:
    """Show how tables differ between two refs: schema, snapshots, and what the current ones have in files and rows."""
    left = parse_ref(uri)
    other, repository = other_ref(left, right), left.repository
    if name:
        session.show(session.client.tables.diff(repository, left.ref, other.ref, text.path_of(name)), text.difference)
        return
    before, after = (
        {one.table: one.metadata_location for one in session.client.tables.list(repository, ref)}
        for ref in (left.ref, other.ref)
    )
    session.show_all(
        [_changed(one, before, after) for one in sorted({**before, **after}) if before.get(one) != after.get(one)],
        lambda changed: (text.marked(text.MARKS[one.type], text.shown_name(one.table)) for one in changed),
        otherwise="no table differs",
    )


@app.command("rollback")
def rollback(
    session: Session,
    uri: BranchArgument,
    name: TableArgument,
    to: Annotated[
        str, Option("--to", metavar="SNAPSHOT|REF", help="A number is a snapshot; others are a ref, as main~1.")
    ],
    message: MessageOption = "",
    yes: YesOption = False,
) -> None:
    """Set a table back, by a commit: to a snapshot that it has, or to all that it was at a ref.

    A ref also brings back older schemas, snapshots that expired since, and a table that was dropped. Rows that were
    written since stay in older commits.
    """
    branch = parse_ref(uri)
    snapshot, ref = (to, "") if to.isdecimal() else ("", ref_in(branch.repository, to))
    session.confirm(f"Set {name} on {branch} back to {f'snapshot {to}' if snapshot else ref}?", yes=yes)
    done = session.client.tables.roll_back(
        branch.repository, branch.ref, text.path_of(name), snapshot_id=snapshot, ref=ref, message=message
    )
    at = f"snapshot {done.snapshot_id}" if done.snapshot_id else "no snapshot"
    session.done(f"{name} on {branch} is at {at}: {done.commit.id[:12]}", done)


@app.command("register")
def register(
    session: Session,
    uri: BranchArgument,
    name: TableArgument,
    metadata: Annotated[
        str, Option("--metadata", metavar="PATH", help="A file of the branch tables: its path there, or its s3:// URI.")
    ],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a table of this name.")] = False,
    yes: YesOption = False,
) -> None:
    """Make a table of metadata that the repository has, as `table show` and `table history` name them."""
    branch = parse_ref(uri)
    if overwrite:
        session.confirm(f"Replace {name} on {branch}?", yes=yes)
    where = _metadata_uri(branch.repository, metadata)
    with contextlib.suppress(Denied):  # What is not found below is the file, then.
        session.client.branches.get(branch.repository, branch.ref)
    with being_there(f"the file of metadata {where}"):
        made = session.client.tables.register(
            branch.repository, branch.ref, text.path_of(name), where, overwrite=overwrite
        )
    session.done(f"registered {name} on {branch}", table=text.path_of(name), metadata_location=made)


@app.command("export")
def export(
    session: Session,
    uri: RefArgument,
    name: TableArgument,
    target: Annotated[Path, Argument(metavar="TARGET", help="A new folder.")],
    place: Annotated[
        str, Option("--as", metavar="URI", help="Where the folder will lie, if you move it: s3://bucket/folder.")
    ] = "",
    data: DataOption = None,
) -> None:
    """Write metadata of a table's current snapshot that name objects by their own addresses.

    Any reader of Iceberg that may read the object store opens TARGET/table.metadata.json. No data is copied: it can be
    read as long as a branch or tag keeps the commit.
    """
    ref, path = parse_ref(uri), text.path_of(name)
    if target.exists() and any(target.iterdir()):
        raise Misuse(f"{target} has files: name a new folder")
    from lakebed import iceberg

    if not iceberg.is_installed():
        raise Misuse("export needs the package of Iceberg: install lakebed[iceberg]")
    client, folder = session.client, f"{path}.iceberg/"
    details = client.tables.stat(ref.repository, ref.ref, path)
    commit = client.history.get(ref.repository, ref.ref).id
    addresses = {one.path: one.physical_address for one in client.objects.list(ref.repository, commit, prefix=folder)}

    def entry_of(file: str) -> str:
        return folder + file.removeprefix(details.location + "/")

    def address_of(file: str) -> str:
        if not (address := addresses.get(entry_of(file))):
            raise Failed(f"the address of {file} is unknown: it was deleted, or you may not read it")
        return _address(session, address, data)

    def read(file: str) -> bytes:
        return client.objects.read(ref.repository, commit, entry_of(file))

    files, where = iceberg.TableFiles(read, address_of), (place or target.absolute().as_uri()).rstrip("/")
    made = iceberg.exported(details.metadata_location, files, location=details.location, target=where)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for file, body in made:
        (target / file).write_bytes(body)
        count += 1
    metadata = target / "table.metadata.json"
    session.done(f"exported {name} of {ref} to {metadata}", TableExported(metadata=str(metadata), files=count))


# Names


def _metadata_uri(repository: str, metadata: str) -> str:
    if is_uri(metadata):
        place = parse_object(metadata)
        if (place.repository, place.ref) != (repository, "tables"):
            raise Misuse(f"{metadata} is no file of {SCHEME}{repository}/tables")
        metadata = place.path
    return metadata if "://" in metadata else f"s3://{repository}.tables/{metadata.lstrip('/')}"


def _address(session: Session, address: str, data: Path | None) -> str:
    """Return the address of an object as other programs write it."""
    parts = urlsplit(address)
    if parts.scheme == "local":
        folder = session.data_folder(data) / "objects"
        return folder.as_uri() + "/" + quote(address.removeprefix("local://"))
    if parts.scheme in {"http", "https"} and parts.netloc.endswith(_AZURE):
        container, _, path = parts.path.lstrip("/").partition("/")
        return f"abfss://{container}@{parts.netloc.removesuffix(_AZURE)}.dfs.core.windows.net/{path}"
    return address


def _changed(name: str, before: dict[str, str], after: dict[str, str]) -> TableChanged:
    kind = "added" if name not in before else "removed" if name not in after else "changed"
    return TableChanged(table=name, type=kind, left_metadata=before.get(name, ""), right_metadata=after.get(name, ""))
