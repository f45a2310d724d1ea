"""A lake as Python objects: repositories, refs, branches, files and transactions, with or without a server.

Everything here speaks to the operations of a server through `lakebed.client`. `open_local` runs that server's
application in this process, so a lake in a folder behaves exactly like one behind a URL.
"""

from .files import ObjectReader, ObjectWriter
from .lake import Lake, connect
from .local import open_local
from .refs import Branch, Ref, Transaction
from .repository import Repository

__all__ = [
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
