"""Groups, policies, and access levels of groups. Dates are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .common import LIST_MAX, Pagination


class GroupCreation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    description: str | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`name` is the id again, for clients that show it."""

    id: str
    name: str = ""
    description: str = ""
    creation_date: int


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[Group]


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`condition` is by operator and key: `{"StringLike": {"branch": ["sandbox-*"]}}`. All of them must hold.

    A field that we do not know may narrow what its author allows, so it is refused.
    """

    effect: Literal["allow", "deny"]
    resource: str
    action: Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)]
    condition: dict[str, dict[str, list[str]]] | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    creation_date: int | None = None
    statement: Annotated[list[Statement], msgspec.Meta(max_length=LIST_MAX)]


class PolicyList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[Policy]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a user may do an action on a resource, and the statement that decides.

    It is the `number`th of `policy`, from 1. `group` is set where the user has the policy through a group. All four
    are absent where no statement names the action and the resource: then the action is not allowed. `unsaid`: keys of
    conditions on which it depends, and of which the question says nothing. In doubt a statement denies, and allows
    nothing.
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
    """`permission` is Read, Write, Super or Admin."""

    permission: str


class ErrorNoACL(msgspec.Struct, frozen=True, kw_only=True):
    """The group exists, and has no access level."""

    message: str
    no_acl: bool
