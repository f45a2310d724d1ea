"""The first visit, login, logout, and the choice of colours."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.auth import NotAuthenticated
from lakebed.operations import API_ROOT, accounts, installation
from lakebed.server.http.errors import Answer
from lakebed.server.identity.login_attempts import FRESH
from lakebed.server.identity.setting_up import SECRET_HEADER, THIS_MACHINE, sender_of
from lakebed.server.web.visit import COLOURS, COLOURS_COOKIE, Visit, form_at, page_at

_YEAR_S: Final = 365 * 86_400
_OURS: Final = re.compile(r"/[!-.0-\[\]-~][!-\[\]-~]*|/")
"""A path of this server with its query: no second slash at the start, no backslash, no space."""


@page_at("/setup", is_public=True)
async def show_setup(visit: Visit) -> Response:
    state = await visit.call(installation.GET_SETUP_STATE)
    if state.state == "initialized":
        return visit.go("login")
    return visit.render("setup", needs_secret=visit.state.setup_secret is not None)


@show_setup.form()
async def set_up(visit: Visit) -> Response:
    """Make the first user, log the browser in as this user, and show the key pair once."""
    pair = await visit.call(
        installation.SETUP,
        body=wire.Setup(username=visit.entry("username").strip()),
        headers={SECRET_HEADER.decode(): visit.entry("secret").strip()},
    )
    login = wire.LoginInformation(access_key_id=pair.access_key_id, secret_access_key=pair.secret_access_key)
    visit.log_in(await visit.respond(accounts.LOGIN, body=login))
    visit.user = visit.entry("username").strip()
    return visit.render("key_pair", pair=pair, is_first=True)


@page_at("/login", is_public=True)
async def show_login(visit: Visit) -> Response:
    """Ask for a key pair. A browser that comes from another site sent no cookie, so it loads this page once more."""
    target = _own(visit.query("next"))
    if "ticket" in visit.address and not visit.problem:
        return await _open_link(visit)
    if visit.user:
        return visit.go_to(visit.url_of_path(target)) if target else visit.render("logged_in")
    if FRESH in visit.address:
        response = visit.render("go_on", target=visit.url("login", next=target))
        response.headers["refresh"] = f"0; url={visit.url('login', next=target)}"
        return response
    state = await visit.call(installation.GET_SETUP_STATE)
    if state.state != "initialized" and not visit.problem:
        return visit.go("setup")
    provider = visit.url(*(API_ROOT + accounts.OIDC_LOGIN.path)[1:].split("/")) if state.login_config.login_url else ""
    return visit.render("login", target=target, provider=provider)


async def _open_link(visit: Visit) -> Response:
    """Log in by a link: at once if the person at this machine opened it, otherwise after a question.

    A foreign link could log a browser in to another person's account, and a program may only fetch it (HEAD).
    """
    is_here = visit.is_near or sender_of(visit.request) == THIS_MACHINE
    if visit.request.method == "HEAD" or not is_here:
        return visit.render("ticket", username=visit.query("user"), ticket=visit.query("ticket"))
    try:
        return await _use_ticket(visit, visit.query("user"), visit.query("ticket"))
    except NotAuthenticated as error:
        visit.problem, visit.status = f"{str(error).capitalize()}.", 401
        return await show_login.answer(visit)


async def _use_ticket(visit: Visit, username: str, ticket: str) -> Response:
    body = wire.TicketLogin(username=username, ticket=ticket)
    visit.log_in(await visit.respond(accounts.LOG_IN_BY_TICKET, body=body))
    # Leave the address with the ticket at once. A browser from another site loads one more page of ours.
    return visit.go() if visit.is_near else visit.go("login", next="/", fresh=1)


@show_login.form()
async def log_in(visit: Visit) -> Response:
    if visit.entry("ticket"):
        return await _use_ticket(visit, visit.entry("user"), visit.entry("ticket"))
    body = wire.LoginInformation(
        access_key_id=visit.entry("access_key_id").strip(), secret_access_key=visit.entry("secret_access_key").strip()
    )
    try:
        visit.log_in(await visit.respond(accounts.LOGIN, body=body))
    except NotAuthenticated as error:
        raise Answer(401, "This key pair is not right. Look at both halves, and log in again.") from error
    return visit.go_to(visit.url_of_path(_own(visit.query("next"))))


@form_at("/logout")
async def log_out(visit: Visit) -> Response:
    visit.log_in(await visit.respond(accounts.LOGOUT))
    return visit.go("login")


@form_at("/colours", is_public=True)
async def choose_colours(visit: Visit) -> Response:
    colours = visit.entry("colours")
    visit.set_cookie(COLOURS_COOKIE, colours if colours in COLOURS else "", _YEAR_S)
    return visit.go_to(visit.url_of_path(_own(visit.entry("next"))))


def _own(target: str) -> str:
    """Return the path if it is one of this server, otherwise an empty text."""
    return target if _OURS.fullmatch(target) else ""
