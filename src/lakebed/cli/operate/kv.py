"""`lakebed kv`: the state of the metadata, its size, and a copy in another database (docs/guide/databases.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.cli.kit.failures import Failed, Misuse
from lakebed.cli.kit.output import fields
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import DataOption, Session
from lakebed.cli.kit.tree import noun

from .doctor import Check, check_lines

if TYPE_CHECKING:
    from lakebed.kv import Copied

app = noun("Check, measure, compact and copy the metadata.")

MetadataUri = Annotated[
    str | None,
    Option(
        "--kv",
        metavar="URI",
        help="The database of the metadata, instead of LAKEBED_STORE_URI. Without both: a file in the data folder.",
    ),
]


@app.command()
def stats(session: Session, data: DataOption = None, kv: MetadataUri = None) -> None:
    """Show how large the metadata is on disk, and how much of it is free."""
    from lakebed.kv import store_size

    size = store_size(_metadata_uri(session, data, kv))
    session.show(
        size,
        lambda _: fields(
            [
                ("Size", f"{size.size_bytes:,} bytes"),
                ("Free in it", f"{size.free_bytes:,} bytes"),
                ("Log", f"{size.log_bytes:,} bytes"),
            ]
        ),
    )


@app.command()
def check(
    session: Session,
    data: DataOption = None,
    kv: MetadataUri = None,
    quick: Annotated[bool, Option("--quick", help="Leave out the look for every object that is named.")] = False,
) -> None:
    """Look for damage in the metadata, and name the command that mends it.

    It changes nothing, and servers may run. Without --quick it reads every tree and lists every
    namespace, as `lakebed backup verify` does.
    """
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.server import check_metadata, options_of

    options = options_of(session.data_folder(data), session.environment, kv)
    session.when_stopped = lambda: "stopped: not all was looked at, and nothing was changed; run the same command again"

    async def found() -> list[Check]:
        return [
            Check(name=each.name, passed=each.passed, found=each.found, advice=each.advice)
            async for each in check_metadata(options, objects=not quick)
        ]

    checks = asyncio.run(found())
    session.show_all(iter(checks), check_lines)
    if advice := [each.advice for each in checks if not each.passed]:
        raise Failed("; ".join(advice))


@app.command()
def migrate(session: Session, data: DataOption = None, kv: MetadataUri = None) -> None:
    """Make the schema in a new database, or bring an older one to this release.

    With --kv it needs no data folder, so it can come before any server. Without, the database is a
    file in the data folder (--data).

    Servers do this when they start. Use it where their own user of the database may make no tables.
    A store of a later release is refused and stays as it is.
    """
    from lakebed.kv import migrate_store

    uri = _metadata_uri(session, data, kv)
    session.when_stopped = lambda: "stopped: the schema may be there in part; run the same command again for the rest"
    migrate_store(uri)
    session.done("the metadata is in this release's format")


@app.command()
def compact(session: Session, data: DataOption = None, kv: MetadataUri = None) -> None:
    """Give free space of the metadata back to the disk.

    It needs as much room again as the metadata takes. On SQLite servers may run and read, but their
    writes wait until it is done, and fail after 10 seconds. On PostgreSQL reads wait as well, and so
    does all on a member of etcd. On MySQL and Redis servers go on. Other databases free their room by
    themselves, or with tools that the refusal names.
    """
    from lakebed.kv import compact_store

    uri = _metadata_uri(session, data, kv)
    session.when_stopped = lambda: "stopped: the metadata is whole, and may be as large as before; run it again"
    sizes = compact_store(uri)
    before, after = (size.size_bytes for size in sizes)
    session.done(f"compacted: {before:,} bytes before, {after:,} after", bytes_before=before, bytes_after=after)


@app.command()
def copy(
    session: Session,
    source: Annotated[str, Argument(metavar="FROM", help="The URI of the store to read.")],
    target: Annotated[str, Argument(metavar="TO", help="The URI of an empty store, or of an unfinished copy.")],
) -> None:
    """Copy all metadata into another database, and compare both.

    Stop every server first. A target that holds anything but an unfinished copy of this source is
    refused and stays as it is. An interrupted copy goes on when it is started again. The source stays
    as it is: do not start a server on it again, or the two would go apart.
    """
    from lakebed.kv import are_one_store, copy_store, open_store, store_partitions

    if are_one_store(source, target):
        raise Misuse("FROM and TO are the same store: name an empty one to copy into")
    say = session.note if session.shows_progress else lambda _: None
    session.when_stopped = lambda: (
        "stopped: TO is no whole copy, and FROM is as it was; run the same command again, and it goes on"
    )

    async def run() -> Copied:
        store_partitions(source)  # opening a file that is absent would make it
        reader, writer = open_store(source), open_store(target)
        try:
            return await copy_store(reader, writer, lambda: (store_partitions(source), store_partitions(target)), say)
        finally:
            await reader.close()
            await writer.close()

    copied = asyncio.run(run())
    session.show(
        copied,
        lambda _: [f"copied and compared: {copied.keys:,} keys in {copied.partitions:,} partitions"],
    )


def _metadata_uri(session: Session, data: Path | None, kv: str | None) -> str:
    """Return where the metadata lies. The data folder is asked for only where it holds them."""
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.server import options_of

    if named := options_of(Path(), session.environment, kv).store_uri:
        return named
    return options_of(session.data_folder(data), session.environment).metadata_uri
