"""Statements of policies, and the permissions they add up to. Pure.

A statement allows or denies actions on resources. An action that no statement allows is forbidden, and one statement
that denies wins over all that allow. A resource is an ARN, `arn:lakefs:fs:::repository/lake/object/a/b`, or `*` for an
action on no single thing. A statement names resources by pattern; `${user}` in it stands for the id of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
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
_ODD: Final = re.compile(r"[?\[\]{}]|\$\{")
_AZURE: Final = re.compile(
    r"(?<=/)https://[^/]+\.blob\.core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)/", re.IGNORECASE
)
"""Match what `az://` stands for in a pattern: addresses of Azure have two spellings."""
_HALF_AZURE: Final = re.compile(r":(?:namespace/|[a-z]*\*/?)(?:http|\*?[^/]*\.blob\.core\.)", re.IGNORECASE)
"""Match the beginning of a pattern that may match such a URL."""


class InvalidPolicy(Invalid):
    """The statements are empty, or hold something that the server could not enforce exactly."""


class NotPermitted(Denied):
    """The caller is known, and may not do this."""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Allow or deny. `actions` and `resource` are patterns (globs.py)."""

    effect: Effect
    actions: tuple[str, ...]
    resource: str


def check_statements(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return statements that are valid.

    Raises:
        InvalidPolicy, InvalidAction: a statement is not valid.
    """
    if not statements:
        raise InvalidPolicy("a policy has at least one statement")
    for number, statement in enumerate(statements, 1):
        place = f"statement {number}"
        if not statement.actions:
            raise InvalidPolicy(f"{place} names no action", statement=number)
        for action in statement.actions:
            check_action_pattern(action, must_match=statement.effect == "deny")
        _check_resource(statement.resource, place)
        if statement.effect == "deny":
            _check_denied(statement.resource, place)
    return tuple(statements)


def check_resource(resource: str, before: str = "") -> None:
    """Refuse a text without the form of a resource. The message has `before` in front.

    Raises:
        InvalidPolicy: the text has not the form of a resource.
    """
    if not _RESOURCE.fullmatch(resource):
        raise InvalidPolicy(
            f"{before}{resource!r} is no resource: `*`, or arn:lakefs:fs:::… or arn:lakefs:auth:::…", resource=resource
        )


def _check_resource(resource: str, place: str) -> None:
    """Refuse a text that is no resource, or that other systems read as a wildcard or a variable.

    Taken literally, a deny with such a text would stop less than its author believes.

    Raises:
        InvalidPolicy: the text is one of these.
    """
    check_resource(resource, f"{place}: ")
    if odd := _ODD.search(resource.replace(_USER, "")):
        raise InvalidPolicy(
            f"{place}: {resource!r} has {odd[0]!r}; the only wildcard is *, the only variable {_USER}",
            resource=resource,
        )


def _check_denied(resource: str, place: str) -> None:
    """Refuse to deny only one of the two spellings of addresses of Azure.

    Raises:
        InvalidPolicy: the resource has a URL that cannot be spelled as `az://`.
    """
    if _HALF_AZURE.search(resource) and not _AZURE.search(resource):
        raise InvalidPolicy(
            f"{place}: {resource!r} would not deny all spellings of an address: write az://container/key",
            resource=resource,
        )


class Permissions:
    """Decide what one user may do, by all their statements, or by the part of them that was delegated.

    Each action is looked up once and then remembered. No statement denies an administrator (a member of Admins) the
    actions of `auth`, so an administrator can always manage users.
    """

    def __init__(
        self,
        user_id: str,
        statements: Iterable[Statement],
        *,
        is_administrator: bool = False,
        delegation: Delegation | None = None,
    ) -> None:
        self.user_id = user_id
        self._is_administrator = is_administrator
        self._statements = tuple(statements)
        self._delegation = delegation
        self._verdicts: dict[str, _Verdict] = {}

    @classmethod
    def everything(cls, user_id: str) -> Permissions:
        """Return the permission to do anything."""
        return cls(user_id, [Statement(effect="allow", actions=(EVERYTHING,), resource=EVERYTHING)])

    def within(self, delegation: Delegation) -> Permissions:
        """Return the part of these permissions that the delegation covers."""
        return Permissions(
            self.user_id, self._statements, is_administrator=self._is_administrator, delegation=delegation
        )

    def allows(self, action: str, resource: str) -> bool:
        if self._delegation is not None and not self._delegation.covers(action, resource):
            return False
        verdict = self._verdict(action)
        if verdict.is_everywhere:
            return True
        if any(match(resource) for _, match in verdict.denied):
            return False
        return any(match(resource) for _, match in verdict.allowed)

    def deciding(self, action: str, resource: str) -> Statement | None:
        """Return the first statement that denies this, else the first that allows it; None if no statement names it.

        The returned object is one of those that these permissions were made from. `allows` agrees with it, except
        for a delegation, which no statement decides.
        """
        about = self._about(action)
        for effect in ("deny", "allow"):
            for statement in about:
                if statement.effect == effect and any(match(resource) for _, match in self._matchers(statement)):
                    return statement
        return None

    def allows_everywhere(self, action: str) -> bool:
        """Return True where the action is allowed on every possible resource, so that the caller need not name one."""
        return self._delegation is None and self._verdict(action).is_everywhere

    def allows_below(self, action: str, beginning: str) -> bool:
        """Return False where no resource that begins so is allowed.

        True promises less: statements may still deny each of them, if no single one denies all.
        """
        if self._delegation is not None and not self._delegation.covers_below(action, beginning):
            return False
        verdict = self._verdict(action)
        if verdict.is_everywhere:
            return True
        if any(pattern.endswith("*") and match(beginning) for pattern, match in verdict.denied):
            return False
        return any(_may_begin(pattern, beginning) for pattern, _ in verdict.allowed)

    def denied_below(self, action: str, beginning: str) -> Callable[[str], bool]:
        """Return a function that says whether a statement denies the resource that `beginning` and its argument make.

        Costs as much as there are such statements, also in a policy of thousands about other resources.
        """
        denied = [match for pattern, match in self._verdict(action).denied if _may_begin(pattern, beginning)]
        if not denied:
            return lambda _: False
        return lambda rest: any(match(beginning + rest) for match in denied)

    def require(self, action: str, resource: str) -> None:
        """Refuse an action that is not allowed.

        Raises:
            NotPermitted: `allows` returns False.
        """
        if not self.allows(action, resource):
            raise self.not_permitted(action, resource)

    def refuse_denied(self, action: str, resource: str) -> None:
        """Refuse what a statement denies. What lies below an allowed resource need not be allowed by its own name.

        Raises:
            NotPermitted: a statement denies it.
        """
        if any(match(resource) for _, match in self._verdict(action).denied):
            raise self.not_permitted(action, resource)

    def not_permitted(self, action: str, resource: str) -> NotPermitted:
        return NotPermitted(
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
        about = self._about(action)
        allowed = [one for one in about if one.effect == "allow"]
        denied = [one for one in about if one.effect == "deny"]
        return _Verdict(
            is_everywhere=not denied and any(one.resource == EVERYTHING for one in allowed),
            allowed=[pair for one in allowed for pair in self._matchers(one)],
            denied=[pair for one in denied for pair in self._matchers(one)],
        )

    def _about(self, action: str) -> list[Statement]:
        """Return the statements that name the action, less those that no administrator heeds."""
        names = {action, ALSO.get(action, action)}
        # No user could take back a deny that shuts the last administrator out.
        is_undeniable = self._is_administrator and action.startswith("auth:")
        return [
            one
            for one in self._statements
            if any(_names_one(pattern, names) for pattern in one.actions)
            and not (is_undeniable and one.effect == "deny")
        ]

    def _matchers(self, statement: Statement) -> list[tuple[str, Matcher]]:
        spellings = {statement.resource: None}
        if statement.effect == "deny":
            # Of an allowed URL no other spelling follows: it would lose the account.
            spellings[_AZURE.sub("az://", statement.resource)] = None
        return [_matcher_of(pattern, self.user_id) for pattern in spellings]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """`allowed` and `denied` are patterns with their matchers."""

    is_everywhere: bool
    allowed: list[tuple[str, Matcher]]
    denied: list[tuple[str, Matcher]]


def _may_begin(pattern: str, beginning: str) -> bool:
    """Return False where nothing that the pattern matches begins so."""
    start, star, _ = pattern.partition("*")
    return start.startswith(beginning) or (bool(star) and beginning.startswith(start))


def _names_one(pattern: str, names: set[str]) -> bool:
    match = compile_glob(pattern)
    return any(match(name) for name in names)


def _matcher_of(pattern: str, user_id: str) -> tuple[str, Matcher]:
    """Compile a resource pattern. Stars are found before the user's id is put in, so a user called `*` is one user."""
    pieces = [piece.replace(_USER, user_id) for piece in pattern.split("*")]
    return "*".join(pieces), compile_pieces(pieces)
