"""Access for the person at the data folder, who needs no login: an administrator's key pair, or a browser's login.

A person who can write to the folder could change any record of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from lakebed.auth import Accounts, IssuedCredentials, Ticket, Tickets, load_server_keys
from lakebed.base import NotFound
from lakebed.kv import Store, open_store
from lakebed.runtime import live_ports
from lakebed.server.identity.setting_up import THIS_MACHINE
from lakebed.server.options import ServerOptions
from lakebed.server.process.folder import MARKER_FILE, prepare_folder

from .audit import AuditLog


class NoDataFolder(NotFound):
    """The path has no data folder. Recovery does not make one."""


async def recover(options: ServerOptions, user_id: str) -> IssuedCredentials:
    """Make this user an administrator with a fresh key pair. Servers on the folder may keep running.

    Raises:
        NoDataFolder, NotADataFolder, DataFolderFormat: this is not a data folder of this release.
        InvalidUser: the name is invalid.
    """
    folder = options.data_dir
    if not (folder / MARKER_FILE).exists():
        raise NoDataFolder(f"{folder} is not a data folder: it has no {MARKER_FILE}", folder=str(folder))
    async with _accounts_of(options) as (_, accounts):
        issued = await accounts.recover(user_id)
    with contextlib.closing(AuditLog(folder)) as log:
        log.note_local("recover", id=user_id)
    return issued


async def ticket_at(options: ServerOptions, user_id: str, *, host: str = "") -> Ticket | None:
    """Make a ticket for this user, or for the first user if the name is empty. Return None if the folder has no user.

    `host`: where the server listens, unless on loopback. A browser on this machine has the same address.

    Raises:
        NotADataFolder, DataFolderFormat: another program or another release made the folder.
        UserNotFound, NotFound: the user does not exist, or has no key pair to log in with.
    """
    if not (options.data_dir / MARKER_FILE).exists() and not options.store_uri:
        _check_unnamed(options, user_id)
        return None
    async with _accounts_of(options) as (store, accounts):
        installation = await accounts.installation()
        if installation is None:
            _check_unnamed(options, user_id)
            return None
        user = await accounts.get_user(user_id or installation.first_user)
        pairs, _ = await accounts.list_credentials(user.id, prefix="", after="", limit=1)
        if not pairs:
            raise NotFound(
                f"user {user.id} has no key pair: name another one by --user, or make a pair with"
                f" `lakebed auth recover --user {user.id}`",
                user=user.id,
            )
        tickets = Tickets(store, live_ports(), accounts)
        ticket = await tickets.issue(user, pairs[0].access_key_id, sender=host or THIS_MACHINE)
    with contextlib.closing(AuditLog(options.data_dir, options.audit)) as log:
        log.note_local("createLoginTicket", username=user.id)
    return ticket


def _check_unnamed(options: ServerOptions, user_id: str) -> None:
    if user_id:
        raise NotFound(
            f"{options.data_dir} has no user yet: leave out --user, and name the first one on the page",
            folder=str(options.data_dir),
        )


@contextlib.asynccontextmanager
async def _accounts_of(options: ServerOptions) -> AsyncIterator[tuple[Store, Accounts]]:
    prepare_folder(options.data_dir)
    store = open_store(options.metadata_uri)
    try:
        ports = live_ports()
        yield store, Accounts(store, ports, await load_server_keys(store, ports.ids, options.server_secret))
    finally:
        await store.close()
