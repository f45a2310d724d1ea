"""Who is calling: set-up, users, their credentials, and the proofs that requests carry.

Every authenticated user may do everything: there are no groups and policies yet. What is stored: docs/formats/auth.md.
"""

from .accounts import (
    Accounts,
    AlreadyInitialised,
    CredentialsNotFound,
    InvalidUser,
    IssuedCredentials,
    UserExists,
    UserNotFound,
)
from .authenticator import SESSION_COOKIE, TOKEN_LIFETIME_S, Authenticator, Identity, NotAuthenticated
from .keys import ServerKeys, load_server_keys
from .records import AuthFormat, CredentialsRecord, UserRecord

__all__ = [
    "SESSION_COOKIE",
    "TOKEN_LIFETIME_S",
    "Accounts",
    "AlreadyInitialised",
    "AuthFormat",
    "Authenticator",
    "CredentialsNotFound",
    "CredentialsRecord",
    "Identity",
    "InvalidUser",
    "IssuedCredentials",
    "NotAuthenticated",
    "ServerKeys",
    "UserExists",
    "UserNotFound",
    "UserRecord",
    "load_server_keys",
]
