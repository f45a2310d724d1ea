"""Recover access at the data folder when no administrator can log in."""

from __future__ import annotations

from lakebed.auth import Accounts, IssuedCredentials, load_server_keys
from lakebed.base import NotFound
from lakebed.kv import open_store
from lakebed.runtime import live_ports
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
    prepare_folder(folder)
    store = open_store(options.metadata_uri)
    try:
        ports = live_ports()
        keys = await load_server_keys(store, ports.ids, options.server_secret)
        issued = await Accounts(store, ports, keys).recover(user_id)
        log = AuditLog(folder)
        log.note_local("recover", id=user_id)
        log.close()
        return issued
    finally:
        await store.close()
