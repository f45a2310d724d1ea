"""`lakebed backup`: back a data folder up, check a backup, and bring it back (docs/guide/backups.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.base import count_of, human_size
from lakebed.cli.kit.output import called, fields
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import DataOption, Session
from lakebed.cli.kit.tree import noun

from .kv import MetadataUri

if TYPE_CHECKING:
    from lakebed.server import Checked

app = noun("Back a data folder up, check a backup, bring it back.")

BackupFolder = Annotated[Path, Argument(metavar="BACKUP", help="Folder of the backup.")]


@app.command()
def create(
    session: Session,
    to: Annotated[Path, Option("--to", metavar="DIR", help="A new folder for the backup.")],
    data: DataOption = None,
    like: Annotated[
        Path | None,
        Option("--like", metavar="BACKUP", help="An older backup on the same disk: share its equal files."),
    ] = None,
    kv: MetadataUri = None,
) -> None:
    """Back a data folder up while servers write to it.

    The backup holds the metadata of one moment and all objects of local:// namespaces. It also
    holds key pairs and the server's secret: keep it as safe as the data folder.
    """
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.server import create_backup, options_of

    session.when_stopped = lambda: (
        f"stopped: {to} is not a whole backup, and nothing can be restored from it; "
        f"delete it, or name another folder, and run the command again"
    )
    made = create_backup(
        options_of(session.data_folder(data), session.environment, kv),
        to.absolute(),
        like=None if like is None else like.absolute(),
        say=session.note if session.shows_progress else None,
    )
    facts = [("Backup", str(to)), ("Objects", f"{count_of(made.files, 'file')}, {human_size(made.size_bytes)}")]
    if like is not None:
        shared = f"{count_of(made.files_shared, 'file')}, {human_size(made.bytes_shared)}, with {like}"
        facts.append(("Shared", shared))
    session.show_fields(made, facts)


@app.command()
def verify(session: Session, backup: BackupFolder) -> None:
    """Check that a backup is whole.

    Reads the metadata and every tree, and looks for every object that they name.
    """
    from lakebed.server import options_of, verify_backup

    folder = backup.absolute()
    session.when_stopped = lambda: f"stopped: {backup} was not verified to its end; run the same command again"
    session.show(verify_backup(options_of(folder, session.environment), folder), _lines)


@app.command()
def restore(
    session: Session,
    backup: BackupFolder,
    data: Annotated[Path, Option("--data", metavar="DIR", help="A new folder, for a server to start on.")],
) -> None:
    """Verify a backup and make a new data folder of it."""
    from lakebed.server import options_of, restore_backup

    session.when_stopped = lambda: (
        f"stopped: {data} is not whole, and no server starts on it, and the backup is as it was; "
        f"delete {data}, and run the same command again"
    )
    found = restore_backup(options_of(data.absolute(), session.environment), backup.absolute())
    session.show(found, lambda found: [*_lines(found), f"restored: {called()} serve --data {data}"])


def _lines(checked: Checked) -> list[str]:
    counts = [
        ("Repositories", checked.repositories),
        ("Commits", checked.commits),
        ("Ranges", checked.ranges),
        ("Entries", checked.entries),
        ("Entries elsewhere", checked.foreign),
    ]
    return [*fields((name, f"{count:,}") for name, count in counts)]
