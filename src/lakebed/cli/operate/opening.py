"""`lakebed open`: the page in a browser, logged in by a link that works once, within a minute."""

from __future__ import annotations

import asyncio
import hmac
import html
import os
import secrets
import shlex
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlencode, urlsplit

from lakebed.base import NotFound
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun

from .kv import MetadataUri

if TYPE_CHECKING:
    from lakebed.server import ServerOptions

app = noun("Open the page in a browser.", "lakebed open ./lake", "lakebed open --no-browser")

_REDIRECT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lakebed</title><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"></head>
<body><p><a href="{link}">Open Lakebed</a></p></body></html>
"""
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
ANSWER_S: Final = 2.0
READ_S: Final = 5.0
"""Without a server of its own, the command waits this long for the browser to read the file, and deletes it."""


@app.command("open")
def open_page(
    session: Session,
    data: Annotated[
        Path | None,
        Argument(metavar="DIR", help="A data folder, or an empty one for a new lake. Default: no server is run."),
    ] = None,
    user: Annotated[str, Option("--user", "-u", help="With DIR: whom to log in. Default: the first user.")] = "",
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="With DIR. Default: a free one.")] = 0,
    no_browser: Annotated[bool, Option("--no-browser", help="Print the link, and start no browser.")] = False,
    kv: MetadataUri = None,
) -> None:
    """Open the page in a browser, logged in by a link that works once, within a minute, on this machine.

    With DIR, the link leads to the server that serves the folder. If none does, one runs on loopback until Ctrl-C.
    Without DIR, it leads to the configured server, and logs in the user whose key pair is configured.
    """
    if data is None:
        if user or port or kv:
            raise Misuse("--user, --port and --kv are for a server that this command runs: `lakebed open DIR`")
        made = session.client.login_ticket()
        link = link_of(session.settings.endpoint, made.username, made.ticket)
        session.done(f"the page: {link}", link=link)
        _browse_once(session, link, browse=not no_browser)
        return
    if not data.exists():
        quoted = shlex.quote(str(data))
        raise NotFound(f"there is no folder {data}. For a new lake: `mkdir {quoted}`", path=str(data))
    folder = session.data_folder(data, new=True)  # before the server, which takes a second to load
    # An exception to the import map: the command line is a composition root of the server, too.
    from lakebed.server import options_of, ticket_at

    options = options_of(folder, session.environment, kv)
    running = _running_at(session, folder)
    if running and port not in {0, urlsplit(running).port}:
        raise Misuse(f"{data} is served at {running} already: leave out --port, or stop that server")
    ticket = asyncio.run(ticket_at(options, user, host=host_beyond(running)))
    login = (ticket.user_id, ticket.secret) if ticket else None
    if not running:
        _serve_and_open(session, options, data, login, port, browse=not no_browser)
        return
    link, note = _link_at(running, login)
    session.done(
        f"{data} is served at {running} already. {note}: {link}",
        link=link,
        endpoint=running,
        data=str(folder),
    )
    _browse_once(session, link, browse=not no_browser)


def _serve_and_open(
    session: Session, options: ServerOptions, data: Path, login: tuple[str, str] | None, port: int, *, browse: bool
) -> None:
    """Serve until Ctrl-C."""
    from lakebed.server import LogOptions, serve  # see open_page

    with ExitStack() as files:

        def ready(url: str) -> None:
            link, note = _link_at(url, login)
            words = f"serving {data} at {url} until Ctrl-C. {note}: {link}"
            session.done(words, link=link, endpoint=url, data=str(options.data_dir))
            # A program that started this one may wait for the link.
            sys.stdout.flush()
            if browse:
                file = files.enter_context(_file_of(link))
                # A thread: some browsers return when they end, and the server has to answer meanwhile.
                threading.Thread(target=_start_browser, args=(session, file), daemon=True).start()

        serve(options, port=port, log=LogOptions(), on_ready=ready)


def from_here(url: str) -> str:
    """Return an address of this machine for a server that listens at all of its addresses."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def host_beyond(url: str) -> str:
    """Return the host of an address, unless it is on loopback."""
    host = urlsplit(url).hostname or ""
    return "" if host == "::1" or host.startswith("127.") else host


def _running_at(session: Session, folder: Path) -> str:
    """Return the address of a server of the folder that answers and proves that it is one; empty if none does.

    One may be ending, or in a container with a network of its own. Then another server can listen at its address, which
    must get no ticket.
    """
    import httpx

    from lakebed.server import NONCE_HEADER, PROOF_HEADER, addresses_of, proof_of  # see open_page

    for url, key in addresses_of(folder):
        here, nonce = from_here(url), secrets.token_hex(16)
        with suppress(httpx.HTTPError, httpx.InvalidURL):
            answer = httpx.get(f"{here}/_health", headers={NONCE_HEADER: nonce}, timeout=ANSWER_S, trust_env=False)
            proof = answer.headers.get(PROOF_HEADER, "")
            if key and hmac.compare_digest(proof.encode(), proof_of(key, nonce).encode()):
                return here
            session.warn(f"another server listens at {here}: it is not the one that serves {folder}, and gets no login")
    return ""


def _link_at(url: str, login: tuple[str, str] | None) -> tuple[str, str]:
    """Return the link to a server of a folder, and words about it. `login` is a user and a ticket."""
    if login is None:
        return f"{url}/", "The page asks for the first user"
    return link_of(url, *login), "The link to the page works once, within a minute"


def _browse_once(session: Session, link: str, *, browse: bool) -> None:
    """Start a browser, and let it read the link."""
    if browse:
        with _file_of(link) as file:
            if _start_browser(session, file):
                time.sleep(READ_S)


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
