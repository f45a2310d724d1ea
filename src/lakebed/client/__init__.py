"""A typed, synchronous HTTP client, through which the command line and the collectors call a server.

    credentials = Credentials(access_key_id="AKIA…", secret_access_key="…")
    with Client("http://127.0.0.1:8000", credentials) as client:
        for branch in client.branches.list("lake"):
            print(branch.id, branch.commit_id)

errors.py lists the errors. connection.py says which calls are sent again.
"""

from .client import Client
from .connection import BadEndpoint, BadSegment, Credentials, Query, Retries, Token, checked_endpoint, path_to
from .errors import (
    AnswerLost,
    BadAnswer,
    BadRequest,
    Busy,
    Clash,
    Damaged,
    ErrorAnswer,
    Missing,
    MovedAsCopy,
    NotLoggedIn,
    ObjectExpired,
    Refused,
    ServerFault,
    Taken,
    Unreachable,
)
from .history import Strategy
from .refs import Branches, Tags
from .transfers import FileChanged, Progress

__all__ = [
    "AnswerLost",
    "BadAnswer",
    "BadEndpoint",
    "BadRequest",
    "BadSegment",
    "Branches",
    "Busy",
    "Clash",
    "Client",
    "Credentials",
    "Damaged",
    "ErrorAnswer",
    "FileChanged",
    "Missing",
    "MovedAsCopy",
    "NotLoggedIn",
    "ObjectExpired",
    "Progress",
    "Query",
    "Refused",
    "Retries",
    "ServerFault",
    "Strategy",
    "Tags",
    "Taken",
    "Token",
    "Unreachable",
    "checked_endpoint",
    "path_to",
]
