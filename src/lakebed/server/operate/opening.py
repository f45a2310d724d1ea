"""Log in the person at the data folder. A person who can write to it could recover any user, so no login is needed."""

from __future__ import annotations

from lakebed.auth import Accounts, Ticket, Tickets, load_server_keys
from lakebed.base import NotFound
from lakebed.kv import open_store
from lakebed.runtime import live_ports
from lakebed.server.identity.setting_up import THIS_MACHINE
from lakebed.server.options import ServerOptions
from lakebed.server.process.folder import MARKER_FILE, prepare_folder

from .audit import AuditLog


async def ticket_at(options: ServerOptions, user_id: str) -> Ticket | None:
    """Make a ticket for this user, or for the first user if the name is empty. Return None if the folder has no user.

    Raises:
        NotADataFolder, DataFolderFormat: another program or another release made the folder.
        UserNotFound, NotFound: the user does not exist, or has no key pair to log in with.
    """
    if not (options.data_dir / MARKER_FILE).exists() and not options.store_uri:
        return None
    prepare_folder(options.data_dir)
    store = open_store(options.metadata_uri)
    try:
        ports = live_ports()
        accounts = Accounts(store, ports, await load_server_keys(store, ports.ids, options.server_secret))
        installation = await accounts.installation()
        if installation is None:
            return None
        user = await accounts.get_user(user_id or installation.first_user)
        pairs, _ = await accounts.list_credentials(user.id, prefix="", after="", limit=1)
        if not pairs:
            raise NotFound(
                f"user {user.id} has no key pair: name another one by --user, or make a pair with"
                f" `lakebed auth recover --user {user.id}`",
                user=user.id,
            )
        ticket = await Tickets(store, ports, accounts).issue(user, pairs[0].access_key_id, sender=THIS_MACHINE)
        log = AuditLog(options.data_dir, options.audit)
        log.note_local("createLoginTicket", username=user.id)
        log.close()
        return ticket
    finally:
        await store.close()
