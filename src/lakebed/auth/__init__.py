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
from .authenticator import SESSION_COOKIE, TOKEN_LIFETIME_S, Authenticator, Identity, NotAuthenticated, UnknownAccessKey
from .keys import ServerKeys, load_server_keys
from .lent import permissions_of_lent
from .permissions.actions import ACTIONS, InvalidAction
from .permissions.authorizer import Authorizer
from .permissions.built_in import ADMINS
from .permissions.conditions import (
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
from .permissions.grants import NotGranted
from .permissions.groups import GroupExists, GroupNotFound, Groups, LastAdministrator, NoAcl
from .permissions.policies import Decision, Policies, PolicyExists, PolicyNotFound
from .permissions.register import BuiltIn, InvalidRole
from .permissions.statements import Delegation, InvalidPolicy, NotPermitted, Permissions, Statement, check_statements
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
    "permissions_of_lent",
    "time_of",
]
