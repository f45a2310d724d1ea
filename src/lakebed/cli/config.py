"""`lakebed config`: which server, and who we are there."""

from __future__ import annotations

import stat
import sys
from typing import Annotated, Final

import msgspec
import typer

from .failures import Misuse
from .output import fields
from .session import Session, command
from .settings import ENDPOINT_DEFAULT, VARIABLES, Settings, read_settings, settings_path, write_settings
from .tree import noun

app = noun("Store and show the endpoint and the credentials.")

ASK: Final = "-"
"""In place of a secret: ask for it."""


@app.command("set")
@command
def set_config(
    session: Session,
    access_key_id: Annotated[str, typer.Option("--access-key-id", help="The key to store.")] = "",
    secret_access_key: Annotated[
        str,
        typer.Option("--secret-access-key", help="The secret to store; - asks for it, so that no history holds it."),
    ] = "",
) -> None:
    """Store the endpoint and credentials given, in a file that only you can read; asks for them when none is given."""
    path = settings_path(session.environment)
    old = read_settings(path)
    given = Settings(
        endpoint=session.endpoint_given,
        access_key_id=access_key_id,
        secret_access_key=_ask_secret() if secret_access_key == ASK else secret_access_key,
    )
    if given == Settings():
        given = _ask_all(old)
    kept = {name: value or getattr(old, name) for name, value in msgspec.to_builtins(given).items()}
    write_settings(path, Settings(**kept))
    session.done(f"stored in {path}", path=str(path))


def _ask_all(old: Settings) -> Settings:
    if not sys.stdin.isatty():
        raise Misuse("give --endpoint, --access-key-id or --secret-access-key: nobody is there to ask")
    return Settings(
        endpoint=typer.prompt("Endpoint", default=old.endpoint or ENDPOINT_DEFAULT, err=True),
        access_key_id=typer.prompt("Access key id", default=old.access_key_id or None, err=True),
        secret_access_key=_ask_secret(),
    )


def _ask_secret() -> str:
    return str(typer.prompt("Secret access key", hide_input=True, err=True))


@app.command("show")
@command
def show(session: Session) -> None:
    """Show what holds, and where it comes from. The secret is not shown."""
    path = settings_path(session.environment)
    masked = "(set)" if session.settings.secret_access_key else ""
    shown = msgspec.to_builtins(msgspec.structs.replace(session.settings, secret_access_key=masked))
    sources = [variable for variable in VARIABLES.values() if session.environment.get(variable)]
    record = {**shown, "file": str(path), "file_exists": path.exists(), "environment": sources}
    if path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        session.note(f"warning: others can read {path}: chmod 600 it")
    session.show(
        record,
        lambda _: fields(
            [
                ("Endpoint", session.settings.endpoint),
                ("Access key id", session.settings.access_key_id or "(not set)"),
                ("Secret access key", masked or "(not set)"),
                ("File", f"{path}{'' if path.exists() else ' (does not exist)'}"),
                ("From environment", ", ".join(sources) or "nothing"),
            ]
        ),
    )
