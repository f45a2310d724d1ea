"""`lakebed setup` and `lakebed config`: the first user of a server, and which server and credentials we use."""

from __future__ import annotations

import itertools
import re
import stat
import sys
from pathlib import Path
from typing import Annotated, Final

import click
import msgspec

from lakebed.base import AlreadyExists
from lakebed.cli.kit.arguments import ExportOption
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import Session, connect
from lakebed.cli.kit.tree import noun
from lakebed.settings import (
    ENDPOINT_DEFAULT,
    LAKECTL_VARIABLES,
    PROFILE_VARIABLE,
    VARIABLES,
    Settings,
    is_of,
    profiles,
    read_settings,
    settings_path,
    source_of,
    write_settings,
)

app = noun("Store and show the endpoint and the credentials.")
setup_app = noun("Make the first user of a new server.")

_KEY: Final = re.compile("AKIA[A-Z0-9]{16}")
ASK: Final = "-"
"""In place of a secret: ask for it."""


@app.command("set")
def set_config(
    session: Session,
    access_key_id: Annotated[str, Option("--access-key-id", help="The key to store.")] = "",
    secret_access_key: Annotated[
        str,
        Option(
            "--secret-access-key",
            help="The secret to store. - asks for it, or reads a line of standard input, so that no history holds it.",
        ),
    ] = "",
    data: Annotated[
        str, Option("--data", metavar="DIR", help="The server's data folder, for `gc` on this machine.")
    ] = "",
) -> None:
    """Store the given endpoint and credentials in a file that only you can read; ask for them when none is given.

    With --profile NAME in that profile, which --profile NAME then takes in any command. A key pair that was there is
    not lost: it moves to a profile.
    """
    path = settings_path(session.environment)
    profile = session.environment.get(PROFILE_VARIABLE, "")
    old = read_settings(path, profile)
    given = Settings(
        endpoint=_checked(session.endpoint_given),
        access_key_id=_checked_key(access_key_id),
        secret_access_key=_ask_secret() if secret_access_key == ASK else secret_access_key,
        data=str(Path(data).absolute()) if data else "",
    )
    if given == Settings():
        given = _ask_all(old)
    kept = Settings(**{name: value or getattr(old, name) for name, value in msgspec.to_builtins(given).items()})
    if given.access_key_id not in {"", old.access_key_id} and old.secret_access_key and not given.secret_access_key:
        raise Misuse(f"add --secret-access-key -: the secret that is stored is that of {old.access_key_id}")
    if kept.secret_access_key != old.secret_access_key:
        _keep_aside(session, path, old, profile)
    write_settings(path, kept, profile)
    session.done(f"stored in {path}{f', profile {profile}' if profile else ''}", path=str(path))


def _keep_aside(session: Session, path: Path, old: Settings, profile: str) -> None:
    """Store the key pair of `profile`, which is about to be replaced, as a profile named by its endpoint: no server
    shows it again."""
    if not old.secret_access_key:
        return
    known = profiles(path)
    if any(read_settings(path, name).secret_access_key == old.secret_access_key for name in known if name != profile):
        return
    host = (old.endpoint or ENDPOINT_DEFAULT).partition("://")[2].partition("/")[0]
    names = (f"{host}{f'-{number}' if number > 1 else ''}" for number in itertools.count(1))
    name = next(name for name in names if name not in known)
    write_settings(path, old, name)
    session.note(f"key {old.access_key_id}, which was there, is now in profile {name}: --profile {name} takes it")


def _ask_all(old: Settings) -> Settings:
    if not sys.stdin.isatty():
        raise Misuse("give --endpoint, --access-key-id or --secret-access-key: there is no terminal to ask at")
    return Settings(
        endpoint=_checked(click.prompt("Endpoint", default=old.endpoint or ENDPOINT_DEFAULT, err=True)),
        access_key_id=_checked_key(click.prompt("Access key id", default=old.access_key_id or None, err=True)),
        secret_access_key=_ask_secret(),
    )


def _checked(endpoint: str) -> str:
    """
    Raises:
        BadEndpoint: it is not of the form http://host:port.
    """
    if endpoint:
        from lakebed.client import checked_endpoint  # here, since loading it takes time that most commands save

        checked_endpoint(endpoint)
    return endpoint


def _checked_key(access_key_id: str) -> str:
    """
    Raises:
        Misuse: no server makes such a key: it may be a secret, a user's name or a half of the key.
    """
    if access_key_id and not _KEY.fullmatch(access_key_id):
        raise Misuse(
            f"{access_key_id!r} is no access key id: one is AKIA and 16 capitals and digits. "
            "`lakebed auth users create-key USER` makes one"
        )
    return access_key_id


def _ask_secret() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    return str(click.prompt("Secret access key", hide_input=True, err=True))


@app.command("show")
def show(session: Session, export: ExportOption = False) -> None:
    """Show the settings in force, and where they come from. The secret is shown only with --export."""
    if export:
        if not (session.settings.access_key_id and session.settings.secret_access_key):
            raise Misuse("no key pair is set: `lakebed setup` or `lakebed config set` stores one")
        session.show_key(session.settings, export=True)
        return
    path = settings_path(session.environment)
    masked = "(set)" if session.settings.secret_access_key else ""
    shown = msgspec.to_builtins(msgspec.structs.replace(session.settings, secret_access_key=masked))
    variables = [*VARIABLES.values(), PROFILE_VARIABLE, *LAKECTL_VARIABLES.values()]
    sources = [variable for variable in variables if session.environment.get(variable)]
    # Of lakectl's settings people may not know that they count.
    key_from = source_of("access_key_id", session.environment)
    record = {**shown, "file": str(path), "file_exists": path.exists(), "environment": sources, "key_from": key_from}
    if path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        session.warn(f"warning: others can read {path}: chmod 600 it")
    session.show_fields(
        record,
        [
            ("Endpoint", session.settings.endpoint),
            ("Access key id", session.settings.access_key_id or "(not set)"),
            ("Secret access key", masked or "(not set)"),
            ("Key from", key_from or "(not set)"),
            ("Data folder", session.settings.data or "(not set)"),
            ("File", f"{path}{'' if path.exists() else ' (does not exist)'}"),
            ("Profiles", ", ".join(profiles(path)) or "none"),
            ("From environment", ", ".join(sources) or "nothing"),
        ],
    )


@setup_app.command()
def setup(
    session: Session,
    user: Annotated[str, Option("--user", "-u", help="The name of the first user.")] = "admin",
    store: Annotated[bool, Option("--store/--no-store", help="Keep the credentials as `config set` does.")] = True,
    secret: Annotated[
        str,
        Option(
            "--secret",
            envvar="LAKEBED_SETUP_SECRET",
            help="The secret that the server printed when it started; on loopback it needs none.",
        ),
    ] = "",
    export: ExportOption = False,
) -> None:
    """Make the first user of a new server.

    The credentials are stored and shown; the server shows the secret only once. Where those of another endpoint are
    stored, add --profile NAME or --no-store.
    """
    path, profile = settings_path(session.environment), session.environment.get(PROFILE_VARIABLE, "")
    is_new = profile and profile not in profiles(path)
    endpoint = (session.endpoint_given or ENDPOINT_DEFAULT) if is_new else session.settings.endpoint
    old = read_settings(path, profile)
    if store and old.secret_access_key and not is_of(old, endpoint):
        raise Misuse(
            f"{path}{f', profile {profile},' if profile else ''} holds the key of {old.endpoint or ENDPOINT_DEFAULT}: "
            "add --profile NAME to store that of this server beside it, or --no-store"
        )
    try:
        with connect(Settings(endpoint=endpoint)) as client:
            made = client.setup(user, secret=secret)
    except AlreadyExists as error:
        message = "the server is already initialized: store a user's credentials with `lakebed config set`"
        raise AlreadyExists(message) from error
    if store:
        _keep_aside(session, path, old, profile)
        # Stored before it is shown: a closed pipe must not cost the only copy of the secret.
        write_settings(
            path,
            Settings(
                endpoint=endpoint,
                access_key_id=made.access_key_id,
                secret_access_key=made.secret_access_key,
                data=old.data,
            ),
            profile,
        )
        session.note(f"stored in {path}")
    session.show_key(made, [("Endpoint", endpoint)], export=export)
