"""The HTTP server: the contract's REST operations over `lakebed.catalog`, in one ASGI application."""

from .app import App, ServerOptions, UnknownObjectStore, create_app, opened, options_of
from .folder import DataFolderFormat, DataFolderUnavailable, NotADataFolder, prepare_folder
from .recovery import NoDataFolder, recover
from .serving import AddressTaken, BadAddress, WorkerFailed, serve
from .state import AppState

__all__ = [
    "AddressTaken",
    "App",
    "AppState",
    "BadAddress",
    "DataFolderFormat",
    "DataFolderUnavailable",
    "NoDataFolder",
    "NotADataFolder",
    "ServerOptions",
    "UnknownObjectStore",
    "WorkerFailed",
    "create_app",
    "opened",
    "options_of",
    "prepare_folder",
    "recover",
    "serve",
]
