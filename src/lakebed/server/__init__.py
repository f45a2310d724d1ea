"""The HTTP server: the contract's REST operations over `lakebed.catalog`, in one ASGI application."""

from .app import App, create_app, opened
from .operate.backup import BackupDamaged, FolderTaken, NotABackup, create_backup, restore_backup, verify_backup
from .operate.backup_check import Checked
from .operate.logs import LogOptions
from .operate.recovery import NoDataFolder, recover, ticket_at
from .operate.store_check import check_metadata
from .options import ServerOptions, options_of
from .process.folder import (
    NONCE_HEADER,
    PROOF_HEADER,
    DataFolderFormat,
    NotADataFolder,
    addresses_of,
    prepare_folder,
    proof_of,
)
from .process.pairing import WrongMetadata
from .process.serving import BadAddress, inherited_sockets, serve
from .state import AppState
