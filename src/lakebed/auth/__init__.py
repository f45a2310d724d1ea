"""Identity and permissions of callers: users, credentials, external identities, groups, policies, permissions.

Stored records: docs/formats/auth.md. Built-in groups and policies: built_in.py.
"""

from .accounts import (
    Accounts,
    AlreadyInitialised,
    CredentialsNotFound,
    InvalidUser,
    IssuedCredentials,
    SandboxUser,
    SessionNotFound,
    UserExists,
    UserNotFound,
)
from .actions import ACTIONS, InvalidAction
from .authenticator import SESSION_COOKIE, TOKEN_LIFETIME_S, Authenticator, Identity, NotAuthenticated, UnknownAccessKey
from .authorizer import Authorizer
from .built_in import ADMINS
from .conditions import (
    NO_REF,
    UNKNOWN_REF,
    Circumstances,
    Condition,
    InvalidCondition,
    Ref,
    condition_map,
    conditions_of,
    time_of,
)
from .grants import NotGranted
from .groups import GroupExists, GroupNotFound, Groups, LastAdministrator, NoAcl
from .keys import ServerKeys, load_server_keys
from .policies import Decision, Policies, PolicyExists, PolicyNotFound
from .principals import PrincipalNotFound, Principals
from .records import (
    PARTITION,
    SANDBOXES,
    AuthFormat,
    GroupRecord,
    PolicyRecord,
    PrincipalRecord,
    SandboxRecord,
    SandboxState,
    UserRecord,
    decode,
    encode,
)
from .register import BuiltIn, InvalidRole
from .statements import Delegation, InvalidPolicy, NotPermitted, Permissions, Statement, check_statements
from .tickets import NoTicket, Ticket, TicketRefused, Tickets

__all__ = [
    "ACTIONS",
    "ADMINS",
    "NO_REF",
    "PARTITION",
    "SANDBOXES",
    "SESSION_COOKIE",
    "TOKEN_LIFETIME_S",
    "UNKNOWN_REF",
    "Accounts",
    "AlreadyInitialised",
    "AuthFormat",
    "Authenticator",
    "Authorizer",
    "BuiltIn",
    "Circumstances",
    "Condition",
    "CredentialsNotFound",
    "Decision",
    "Delegation",
    "GroupExists",
    "GroupNotFound",
    "GroupRecord",
    "Groups",
    "Identity",
    "InvalidAction",
    "InvalidCondition",
    "InvalidPolicy",
    "InvalidRole",
    "InvalidUser",
    "IssuedCredentials",
    "LastAdministrator",
    "NoAcl",
    "NoTicket",
    "NotAuthenticated",
    "NotGranted",
    "NotPermitted",
    "Permissions",
    "Policies",
    "PolicyExists",
    "PolicyNotFound",
    "PolicyRecord",
    "PrincipalNotFound",
    "PrincipalRecord",
    "Principals",
    "Ref",
    "SandboxRecord",
    "SandboxState",
    "SandboxUser",
    "ServerKeys",
    "SessionNotFound",
    "Statement",
    "Ticket",
    "TicketRefused",
    "Tickets",
    "UnknownAccessKey",
    "UserExists",
    "UserNotFound",
    "UserRecord",
    "check_statements",
    "condition_map",
    "conditions_of",
    "decode",
    "encode",
    "load_server_keys",
    "time_of",
]
