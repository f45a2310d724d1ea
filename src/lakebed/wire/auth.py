"""Set-up, users, credentials, login. Dates are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .common import LIST_MAX, Given, Metadata, Paged

__all__ = [
    "AuthCapabilities",
    "AuthenticationToken",
    "Credentials",
    "CredentialsList",
    "CredentialsWithSecret",
    "CurrentUser",
    "ExternalLoginInformation",
    "ExternalPrincipal",
    "ExternalPrincipalCreation",
    "ExternalPrincipalList",
    "LoginConfig",
    "LoginInformation",
    "LoginSession",
    "LoginSessionList",
    "LoginTicket",
    "Quota",
    "QuotaList",
    "QuotaSetting",
    "Sandbox",
    "SandboxCreation",
    "SandboxEnded",
    "SandboxExtension",
    "SandboxList",
    "SandboxWithSecret",
    "Setup",
    "SetupState",
    "StsAuthRequest",
    "TicketLogin",
    "User",
    "UserCreation",
    "UserList",
]


class LoginConfig(msgspec.Struct, frozen=True, kw_only=True, rename={"rbac": "RBAC"}):
    rbac: str = "internal"
    login_cookie_names: list[str]
    login_failed_message: str = "The credentials don't match."
    login_url: str = ""
    login_url_method: str = "none"
    logout_url: str = ""


class SetupState(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    comm_prefs_missing: bool
    login_config: LoginConfig


class SetupKey(msgspec.Struct, frozen=True, kw_only=True):
    access_key_id: str
    secret_access_key: str


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    username: str
    key: SetupKey | None = None


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    access_key_id: str
    creation_date: int


class CredentialsWithSecret(msgspec.Struct, frozen=True, kw_only=True):
    access_key_id: str
    creation_date: int
    secret_access_key: str


class CredentialsList(Paged[Credentials], frozen=True, kw_only=True): ...


class LoginSession(msgspec.Struct, frozen=True, kw_only=True):
    """An open login, and the key pair or the external principal that it was made with."""

    id: str
    access_key_id: str
    principal: str = ""
    creation_date: int
    expiration_date: int


class LoginSessionList(msgspec.Struct, frozen=True, kw_only=True):
    results: list[LoginSession]


class LoginTicket(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a link that logs in a browser once: `/login?user=…&ticket=…`."""

    username: str
    ticket: str
    expiration_date: int


class TicketLogin(msgspec.Struct, frozen=True, kw_only=True):
    username: str
    ticket: str


class User(msgspec.Struct, frozen=True, kw_only=True):
    creation_date: int
    email: str = ""
    friendly_name: str = ""
    id: str


class CurrentUser(msgspec.Struct, frozen=True, kw_only=True):
    user: User


class UserCreation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    invite_user: bool = False


class UserList(Paged[User], frozen=True, kw_only=True): ...


class LoginInformation(msgspec.Struct, frozen=True, kw_only=True):
    access_key_id: str
    secret_access_key: str


class AuthenticationToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    token_expiration: int


class AuthCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    forgot_password: bool = False
    invite_user: bool = False


class ExternalLoginInformation(
    msgspec.Struct, frozen=True, kw_only=True, rename={"identity_request": "identityRequest"}
):
    """The proof of another provider: `id_token` of OpenID Connect, or `identity_token` of AWS."""

    identity_request: Annotated[dict[str, Any], msgspec.Meta(max_length=LIST_MAX)]
    token_expiration_duration: int | None = None


class StsAuthRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A code that the OpenID Connect provider gave to the caller. The caller checks the state itself."""

    code: str
    state: str
    redirect_uri: str
    ttl_seconds: int | None = None


class ExternalPrincipalCreation(msgspec.Struct, frozen=True, kw_only=True):
    settings: Annotated[list[Metadata], msgspec.Meta(max_length=LIST_MAX)] | None = None


class ExternalPrincipal(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user_id: str
    settings: list[dict[str, str]] = []


class ExternalPrincipalList(Paged[ExternalPrincipal], frozen=True, kw_only=True): ...


# Sandboxes: a branch and the user of the same id


class SandboxCreation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a sandbox. `ttl` is a duration, such as 36h or 2d. `name` becomes a part of the id."""

    source: Given
    ttl: str
    name: str = ""
    # How many may be written to its branch, 0: any number.
    quota_bytes: int = 0


class SandboxExtension(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ttl: str


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox. `id` is also the name of its branch and of its user. `state` is creating, active or ending."""

    id: str
    state: str
    source: str
    commit_id: str
    created_by: str
    creation_date: int
    expiration_date: int
    access_key_id: str
    quota_bytes: int = 0


class SandboxWithSecret(Sandbox, frozen=True, kw_only=True):
    """A new sandbox. Only this answer contains the secret key."""

    secret_access_key: str


class SandboxList(Paged[Sandbox], frozen=True, kw_only=True): ...


class SandboxEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a sandbox: its key is invalid. `branch_kept` is the reason why the branch remains, or empty."""

    id: str
    branch_kept: str = ""


class QuotaSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit in bytes. `restart` sets what is used to zero; else the count goes on."""

    limit_bytes: int
    restart: bool = False


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota. `of` is repository, branch or user. `reserved_bytes` are in flight, or granted to a process."""

    of: str
    name: str
    limit_bytes: int
    used_bytes: int
    reserved_bytes: int
    set_by: str
    set_date: int
    # When `used_bytes` was last counted from the store; only that of a repository is. 0: never.
    counted_date: int = 0


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    results: list[Quota]
