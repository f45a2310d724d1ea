"""A lake as Python objects: repositories, refs, branches, files and transactions, with or without a server.

Every object calls the operations of a server through `lakebed.client`. `open_local` runs that server's application in
this process, so a lake in a folder behaves exactly like a lake behind a URL.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .asynchronous import AsyncBranch, AsyncLake, AsyncRef, AsyncRepository, AsyncTransaction
from .files import ObjectReader, ObjectWriter
from .lake import Lake, connect
from .refs import Branch, Ref, Transaction
from .repository import Repository

if TYPE_CHECKING:
    from .local import open_local

__all__ = [
    "AsyncBranch",
    "AsyncLake",
    "AsyncRef",
    "AsyncRepository",
    "AsyncTransaction",
    "Branch",
    "Lake",
    "ObjectReader",
    "ObjectWriter",
    "Ref",
    "Repository",
    "Transaction",
    "connect",
    "open_local",
]


def __getattr__(name: str) -> object:
    """Import `open_local` on first use: it needs a server's packages, which a plain install does not have."""
    if name != "open_local":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("lakebed.lake.local").open_local
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"open_local needs the package {error.name!r}: pip install 'lakebed[server]'", name=error.name
        ) from None
