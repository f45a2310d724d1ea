"""Groups, policies, and access levels of groups. Dates are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .common import LIST_MAX, Paged

__all__ = ["ACL", "Decision", "ErrorNoACL", "Group", "GroupCreation", "GroupList", "Policy", "PolicyList", "Statement"]


class GroupCreation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    description: str | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group. `name` repeats the id, for clients that show it."""

    id: str
    name: str = ""
    description: str = ""
    creation_date: int


class GroupList(Paged[Group], frozen=True, kw_only=True): ...


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A statement. `condition` maps operator and key to values: `{"StringLike": {"branch": ["sandbox-*"]}}`.

    All must hold.

    Unknown fields are refused: a field may narrow the rights that its author allows.
    """

    effect: Literal["allow", "deny"]
    resource: str
    action: Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)]
    condition: dict[str, dict[str, list[str]]] | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    creation_date: int | None = None
    statement: Annotated[list[Statement], msgspec.Meta(max_length=LIST_MAX)]


class PolicyList(Paged[Policy], frozen=True, kw_only=True): ...


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A verdict on an action of a user on a resource, and the statement that decides.

    The statement has `number` in `policy`, from 1. `group` is set if the user has the policy through a group. Without a
    statement for the action and the resource all four are absent, and the action is denied. `unsaid` has condition keys
    that the decision depends on and the question does not give. Such a condition denies in a deny statement, and does
    not allow in an allow statement.
    """

    user: str
    action: str
    resource: str
    allowed: bool
    policy: str = ""
    group: str = ""
    number: int = 0
    statement: Statement | None = None
    unsaid: list[str] = []


class ACL(msgspec.Struct, frozen=True, kw_only=True):
    """An access level. `permission` is Read, Write, Super or Admin."""

    permission: str


class ErrorNoACL(msgspec.Struct, frozen=True, kw_only=True):
    """The error for a group that exists and has no access level."""

    message: str
    no_acl: bool
