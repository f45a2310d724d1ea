"""`lakebed auth recover`: a new administrator, made at the data folder and not through the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lakebed.cli.output import fields
from lakebed.cli.session import Session, command


@command
def recover(
    session: Session,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The server's data folder.")],
    user: Annotated[
        str, typer.Option("--user", "-u", help="Name of the user; made if it does not exist.")
    ] = "recovered-admin",
) -> None:
    """Make a user an administrator with a new key pair, at the data folder.

    Use it when no administrator can log in any more. It asks for no permission but that to write
    to the folder. Servers may go on running; they know the new key pair at once.
    """
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.server import options_of
    from lakebed.server import recover as recover_at

    made = asyncio.run(recover_at(options_of(data.absolute(), session.environment), user))
    session.show(
        made,
        lambda _: fields(
            [
                ("User", user),
                ("Access key id", made.access_key_id),
                ("Secret access key", made.secret_access_key),
            ]
        ),
    )
