"""`lakebed kv`: how large the metadata of a data folder is, and giving its free space back (docs/guide/server.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import fields
from .session import Session, command
from .tree import noun

app = noun("The metadata of a data folder: its size, and its free space.")

MetadataUri = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="URI",
        help="The database of the metadata, instead of LAKEBED_STORE_URI. Without both: a file in the data folder.",
    ),
]
DataFolder = Annotated[Path, typer.Option("--data", metavar="DIR", help="The server's data folder.", exists=True)]


@app.command()
@command
def stats(session: Session, data: DataFolder, kv: MetadataUri = None) -> None:
    """Show how large the metadata is on disk, and how much of it is free."""
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.kv import store_size
    from lakebed.server import options_of

    size = store_size(options_of(data.absolute(), session.environment, kv).metadata_uri)
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
@command
def compact(session: Session, data: DataFolder, kv: MetadataUri = None) -> None:
    """Give free space of the metadata back to the disk.

    Servers may run and read, but their writes wait until it is done, and fail after 10 seconds. It
    needs as much room again as the metadata takes.
    """
    from lakebed.kv import compact_store, store_size
    from lakebed.server import options_of

    uri = options_of(data.absolute(), session.environment, kv).metadata_uri
    before = store_size(uri).size_bytes
    compact_store(uri)
    after = store_size(uri).size_bytes
    session.done(f"compacted: {before:,} bytes before, {after:,} after", bytes_before=before, bytes_after=after)
