"""What policies say, and what that adds up to. Pure.

A statement allows or denies actions on resources. What no statement allows is forbidden, and one that denies wins over
any number that allow. A resource is an ARN, `arn:lakefs:fs:::repository/lake/object/a/b`, or `*` for what is no single
thing; a statement names resources by pattern, in which `${user}` stands for the id of whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from lakebed.base import Denied, Invalid

from .actions import ALSO, check_action_pattern
from .delegation import Delegation
from .globs import Matcher, compile_glob, compile_pieces

Effect: TypeAlias = Literal["allow", "deny"]

EVERYTHING: Final = "*"
_RESOURCE: Final = re.compile(r"\*|arn:lakefs:[a-z*]+:[^:]*:[^:]*:.+")
_USER: Final = "${user}"


class InvalidPolicy(Invalid):
    """Statements that say nothing, or that we could not carry out to the letter."""


class NotPermitted(Denied):
    """Who asks is known, and may not do this."""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """`actions` and `resource` are patterns (globs.py)."""

    effect: Effect
    actions: tuple[str, ...]
    resource: str


def check_statements(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """
    Raises:
        InvalidPolicy, InvalidAction: they cannot be taken.
    """
    if not statements:
        raise InvalidPolicy("a policy has at least one statement")
    for statement in statements:
        if not statement.actions:
            raise InvalidPolicy("a statement names at least one action")
        for action in statement.actions:
            check_action_pattern(action, must_match=statement.effect == "deny")
        if not _RESOURCE.fullmatch(statement.resource):
            raise InvalidPolicy(
                f"{statement.resource!r} is no resource: `*`, or arn:lakefs:fs:::… or arn:lakefs:auth:::…",
                resource=statement.resource,
            )
        if "?" in statement.resource:
            # Elsewhere it may be a wildcard: taken for a letter, it would deny less than whoever wrote it believes.
            raise InvalidPolicy("a resource has * as its only wildcard", resource=statement.resource)
    return tuple(statements)


class Permissions:
    """What one user may do, by all statements that hold for it, or what they delegated of that. Each action is looked
    up once and then remembered."""

    def __init__(self, user_id: str, statements: Iterable[Statement], *, delegation: Delegation | None = None) -> None:
        self.user_id = user_id
        self._statements = tuple(statements)
        self._delegation = delegation
        self._verdicts: dict[str, _Verdict] = {}

    def within(self, delegation: Delegation) -> Permissions:
        """Of these what the delegation covers."""
        return Permissions(self.user_id, self._statements, delegation=delegation)

    def allows(self, action: str, resource: str) -> bool:
        if self._delegation is not None and not self._delegation.covers(action, resource):
            return False
        verdict = self._verdict(action)
        if verdict.is_everywhere:
            return True
        if any(match(resource) for match in verdict.denied):
            return False
        return any(match(resource) for match in verdict.allowed)

    def allows_everywhere(self, action: str) -> bool:
        """Whether the action is allowed on every resource there can be: then nobody need find out on which it is."""
        return self._delegation is None and self._verdict(action).is_everywhere

    def require(self, action: str, resource: str) -> None:
        """
        Raises:
            NotPermitted: `allows` says no.
        """
        if not self.allows(action, resource):
            raise NotPermitted(
                f"insufficient permissions: {self.user_id} needs {action} on {resource}",
                user=self.user_id,
                action=action,
                resource=resource,
            )

    def _verdict(self, action: str) -> _Verdict:
        verdict = self._verdicts.get(action)
        if verdict is None:
            verdict = self._verdicts[action] = self._look_up(action)
        return verdict

    def _look_up(self, action: str) -> _Verdict:
        names = {action, ALSO.get(action, action)}
        about = [one for one in self._statements if any(_names_one(pattern, names) for pattern in one.actions)]
        allowed = [one.resource for one in about if one.effect == "allow"]
        denied = [one.resource for one in about if one.effect == "deny"]
        return _Verdict(
            is_everywhere=EVERYTHING in allowed and not denied,
            allowed=[_resource_matcher(pattern, self.user_id) for pattern in allowed],
            denied=[_resource_matcher(pattern, self.user_id) for pattern in denied],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    is_everywhere: bool
    allowed: list[Matcher]
    denied: list[Matcher]


def _names_one(pattern: str, names: set[str]) -> bool:
    match = compile_glob(pattern)
    return any(match(name) for name in names)


def _resource_matcher(pattern: str, user_id: str) -> Matcher:
    """The stars are found before the user's id is put in: to be called `*` is not to be everybody."""
    return compile_pieces([piece.replace(_USER, user_id) for piece in pattern.split("*")])
