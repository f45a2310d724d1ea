"""`lakebed serve` and `auth recover`: the commands that load the server's code, and only when they run."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import click

from lakebed.cli.kit.arguments import ExportOption
from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import DataOption, Session, setup_command
from lakebed.cli.kit.tree import noun
from lakebed.settings import BadSettings

from .kv import MetadataUri
from .opening import from_here, host_beyond

app = noun("Run a server.")


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.command()
def serve(
    session: Session,
    data: Annotated[
        Path | None,
        Option("--data", metavar="DIR", help="Its data folder, made if missing. Default: LAKEBED_DATA."),
    ] = None,
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    host: Annotated[str, Option("--host", help="The address to listen at.")] = "127.0.0.1",
    workers: Annotated[int, Option("--workers", "-w", min=1, max=256, help="Processes.")] = 1,
    kv: MetadataUri = None,
    s3_listen: Annotated[str, Option("--s3-listen", metavar="[HOST:]PORT", help="A port for S3 alone.")] = "",
    drain: Annotated[
        float, Option("--drain", metavar="SECONDS", min=0, help="How long requests may take to end at SIGTERM.")
    ] = 300,
    notice: Annotated[
        float,
        Option(
            "--notice",
            metavar="SECONDS",
            min=0,
            help="How long to go on taking connections at SIGTERM, while /_ready answers 503 and balancers leave.",
        ),
    ] = 0,
    log_level: Annotated[
        LogLevel, Option("--log-level", help="The least level of lines on standard error.")
    ] = LogLevel.WARNING,
    log_format: Annotated[
        LogFormat, Option("--log-format", help="Lines for people, or a JSON object a line.")
    ] = LogFormat.TEXT,
) -> None:
    """Run a server until Ctrl-C. Unless configured otherwise, metadata and objects lie in its folder.

    Environment variables hold all other settings: docs/guide/server.md.
    """
    folder = session.data_folder(data, new=True)  # before the server, which takes a second to load
    # An exception to the import map: the command line is a composition root of the server, too.
    from lakebed.server import LogOptions, addresses_of, inherited_sockets, options_of
    from lakebed.server import serve as serve_until_stopped

    options = options_of(folder, session.environment, kv)
    s3_address = _address(s3_listen, host) if s3_listen else None
    s3_urls: list[str] = []
    beside = [address.url for address in addresses_of(folder)]

    def ready(url: str) -> None:
        words = f"serving {data or folder}, the page and the API, at {url}"
        words += "".join(f", S3 at {s3_url}" for s3_url in s3_urls)
        session.done(words, endpoint=url, data=str(folder), **({"s3": s3_urls[0]} if s3_urls else {}))
        # The program that started us may wait for this line.
        sys.stdout.flush()
        if beside:
            session.note(
                f"also served at {' and '.join(beside)}: these servers share the folder, and each takes writes"
            )

    def new(url: str) -> None:
        endpoint, set_endpoint = from_here(url), ""
        with suppress(BadSettings):  # A server does without the settings of commands.
            set_endpoint = session.settings.endpoint
        command = setup_command(
            endpoint="" if endpoint == set_endpoint else endpoint,
            secret="SECRET" if options.setup_secret or host_beyond(url) else "",
        )
        session.note(f"it has no user yet. In another terminal: {command}")

    log = LogOptions(level=log_level.value, format=log_format.value)
    serve_until_stopped(
        options,
        host=host,
        port=port,
        workers=workers,
        drain_s=drain,
        notice_s=notice,
        log=log,
        on_ready=ready,
        on_new=new,
        s3_listen=s3_address,
        on_s3_ready=s3_urls.append,
        sockets=inherited_sockets(session.environment),
        ends=True,
    )


def _address(text: str, host: str) -> tuple[str, int]:
    """Read `[HOST:]PORT`. Without a host it is that of the server's own port."""
    given, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port[:6]) > 65535:
        raise click.BadParameter(f"{text!r} is no [HOST:]PORT", param_hint="--s3-listen")
    return given.strip("[]") or host, int(port)


def recover(
    session: Session,
    data: DataOption = None,
    user: Annotated[
        str, Option("--user", "-u", help="Name of the user; made if it does not exist.")
    ] = "recovered-admin",
    kv: MetadataUri = None,
    export: ExportOption = False,
) -> None:
    """Make a user an administrator with a new key pair, at the data folder.

    Use it when no administrator can log in any more. It asks for no permission but that to write
    to the folder. Servers may go on running; they know the new key pair at once.
    """
    from lakebed.server import options_of
    from lakebed.server import recover as recover_at

    made = asyncio.run(recover_at(options_of(session.data_folder(data), session.environment, kv), user))
    session.show_key(made, [("User", user)], export=export)
