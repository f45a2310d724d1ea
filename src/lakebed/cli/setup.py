"""`lakebed setup`: the first user of a new server."""

from __future__ import annotations

from typing import Annotated

import typer

from lakebed.base import AlreadyExists

from .output import fields
from .session import Session, command
from .settings import Settings, settings_path, write_settings
from .tree import noun


class HasUsers(AlreadyExists):
    """Only a new server takes its first user from anybody."""


app = noun("Make the first user of a new server.")


@app.command()
@command
def setup(
    session: Session,
    user: Annotated[str, typer.Option("--user", "-u", help="The name of the first user.")] = "admin",
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Keep the credentials as `config set` does.")
    ] = True,
    secret: Annotated[
        str,
        typer.Option(
            "--secret",
            envvar="LAKEBED_SETUP_SECRET",
            help="The secret that the server printed when it started; on loopback it needs none.",
        ),
    ] = "",
) -> None:
    """Make the first user of a new server.

    The credentials are stored and shown; the secret is told this once.
    """
    try:
        made = session.client.setup(user, secret=secret)
    except AlreadyExists as error:
        raise HasUsers("the server is already initialized: store a user's credentials with `config set`") from error
    path = settings_path(session.environment)
    if store:
        # Stored before it is shown: a closed pipe must not cost the only copy of the secret.
        write_settings(
            path,
            Settings(
                endpoint=session.settings.endpoint,
                access_key_id=made.access_key_id,
                secret_access_key=made.secret_access_key,
            ),
        )
        session.note(f"stored in {path}")
    session.show(
        made, lambda _: fields([("Access key id", made.access_key_id), ("Secret access key", made.secret_access_key)])
    )
