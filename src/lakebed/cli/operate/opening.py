"""`lakebed open`: the page in a browser, logged in by a link that works once, within a minute."""

from __future__ import annotations

import asyncio
import html
import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlencode

from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun

from .kv import MetadataUri

app = noun("Open the page in a browser.", "lakebed open ./lake", "lakebed open --no-browser")

_REDIRECT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lakebed</title><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"></head>
<body><p><a href="{link}">Open Lakebed</a></p></body></html>
"""
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
READ_S: Final = 5.0
"""Without a server of its own, the command waits this long for the browser to read the file, and deletes it."""


@app.command("open")
def open_page(
    session: Session,
    data: Annotated[
        Path | None,
        Argument(metavar="DIR", help="Serve this data folder; made where there is none. Default: no server is run."),
    ] = None,
    user: Annotated[str, Option("--user", "-u", help="With DIR: whom to log in. Default: the first user.")] = "",
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="With DIR. Default: a free one.")] = 0,
    no_browser: Annotated[bool, Option("--no-browser", help="Print the link, and start no browser.")] = False,
    kv: MetadataUri = None,
) -> None:
    """Open the page in a browser, logged in by a link that works once, within a minute, on this machine.

    With DIR, a server runs on loopback until Ctrl-C. Without it, the link leads to the configured server, and logs in
    the user whose key pair is configured.
    """
    if data is None:
        if user or port or kv:
            raise Misuse("--user, --port and --kv are for a server that this command runs: `lakebed open DIR`")
        made = session.client.login_ticket()
        link = link_of(session.settings.endpoint, made.username, made.ticket)
        session.done(f"the page: {link}", link=link)
        if not no_browser:
            with _file_of(link) as file:
                if _start_browser(session, file):
                    time.sleep(READ_S)
        return
    folder = session.data_folder(data, new=True)  # before the server, which takes a second to load
    # An exception to the import map: the command line is a composition root of the server, too.
    from lakebed.server import LogOptions, options_of, serve, ticket_at

    options = options_of(folder, session.environment, kv)
    ticket = asyncio.run(ticket_at(options, user))

    with ExitStack() as files:

        def ready(url: str) -> None:
            link = f"{url}/" if ticket is None else link_of(url, ticket.user_id, ticket.secret)
            note = "it asks for the first user" if ticket is None else "the link works once, within a minute"
            words = f"serving {data} at {url} until Ctrl-C. The page, {note}: {link}"
            session.done(words, link=link, endpoint=url, data=str(folder))
            # A program that started this one may wait for the link.
            sys.stdout.flush()
            if not no_browser:
                file = files.enter_context(_file_of(link))
                # A thread: some browsers return when they end, and the server has to answer meanwhile.
                threading.Thread(target=_start_browser, args=(session, file), daemon=True).start()

        serve(options, port=port, log=LogOptions(), on_ready=ready)


def link_of(endpoint: str, user: str, ticket: str) -> str:
    return f"{endpoint.rstrip('/')}/login?{urlencode({'user': user, 'ticket': ticket})}"


@contextmanager
def _file_of(link: str) -> Iterator[Path]:
    """Keep the link in a file that only this user can read. Other users see the command lines of all programs."""
    descriptor, name = tempfile.mkstemp(prefix="lakebed-open-", suffix=".html")
    file = Path(name)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(_REDIRECT.format(link=html.escape(link)))
        yield file
    finally:
        file.unlink(missing_ok=True)


def _start_browser(session: Session, file: Path) -> bool:
    """Return whether a browser was started. Browsers of a terminal are not: they would take it over."""
    has_display = sys.platform != "linux" or any(session.environment.get(name) for name in _DISPLAYS)
    if has_display and webbrowser.open(file.as_uri()):
        return True
    session.note("no browser was started: open the link yourself")
    return False
