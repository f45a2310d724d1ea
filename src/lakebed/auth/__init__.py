"""Who is calling, and what they may do: users, their credentials and proofs of identity; groups, policies, permissions.

What is stored: docs/formats/auth.md. What comes built in: built_in.py.
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
from .actions import ACTIONS, InvalidAction
from .authenticator import SESSION_COOKIE, TOKEN_LIFETIME_S, Authenticator, Identity, NotAuthenticated
from .authorizer import Authorizer
from .built_in import ADMINS
from .keys import ServerKeys, load_server_keys
from .policies import InvalidPolicy, NotPermitted, Permissions, Statement
from .records import AuthFormat, CredentialsRecord, GroupRecord, PolicyRecord, UserRecord
from .roles import (
    BuiltIn,
    GroupExists,
    GroupNotFound,
    InvalidRole,
    LastAdministrator,
    NoAcl,
    NotGranted,
    PolicyExists,
    PolicyNotFound,
    Roles,
)

__all__ = [
    "ACTIONS",
    "ADMINS",
    "SESSION_COOKIE",
    "TOKEN_LIFETIME_S",
    "Accounts",
    "AlreadyInitialised",
    "AuthFormat",
    "Authenticator",
    "Authorizer",
    "BuiltIn",
    "CredentialsNotFound",
    "CredentialsRecord",
    "GroupExists",
    "GroupNotFound",
    "GroupRecord",
    "Identity",
    "InvalidAction",
    "InvalidPolicy",
    "InvalidRole",
    "InvalidUser",
    "IssuedCredentials",
    "LastAdministrator",
    "NoAcl",
    "NotAuthenticated",
    "NotGranted",
    "NotPermitted",
    "Permissions",
    "PolicyExists",
    "PolicyNotFound",
    "PolicyRecord",
    "Roles",
    "ServerKeys",
    "Statement",
    "UserExists",
    "UserNotFound",
    "UserRecord",
    "load_server_keys",
]
