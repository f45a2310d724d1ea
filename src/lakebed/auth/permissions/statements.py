"""Statements of policies, the permissions of a user, and the part of them that a job gets. Pure.

A statement allows or denies actions on resources. An action that no statement allows is forbidden, and one denying
statement overrides all that allow. A resource is an ARN, `arn:lakefs:fs:::repository/lake/object/a/b`, or `*` for an
action without a resource. A statement names resources by pattern; `${user}` in it is replaced by the caller's id.
Its conditions (conditions.py) select the requests to which it applies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from lakebed.base import ACTIONS_FOLDER, Denied, Invalid

from .actions import ALSO, REFS_OF, check_action_pattern
from .conditions import (
    NOWHERE,
    REF_KEYS,
    REFS_KEPT_MAX,
    TIME,
    UNKNOWN_REF,
    USER,
    Check,
    Circumstances,
    Conditions,
    InvalidCondition,
    Look,
    Matcher,
    Ref,
    check_conditions,
    compile_conditions,
    compile_glob,
    compile_pieces,
)

__all__ = [
    "Delegation",
    "InvalidPolicy",
    "NotPermitted",
    "Permissions",
    "Statement",
    "check_statements",
    "no_action_files",
]

Effect: TypeAlias = Literal["allow", "deny"]

EVERYTHING: Final = "*"
_RESOURCE: Final = re.compile(r"\*|arn:lakefs:[a-z*]+:[^:]*:[^:]*:.+")
_ODD: Final = re.compile(r"[?\[\]{}]|\$\{")
_AZURE: Final = re.compile(
    r"(?<=/)https://[^/]+\.blob\.core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)/", re.IGNORECASE
)
"""Match the URLs that `az://` replaces in a pattern: addresses of Azure have two spellings."""
_HALF_AZURE: Final = re.compile(r":(?:namespace/|[a-z]*\*/?)(?:http|\*?[^/]*\.blob\.core\.)", re.IGNORECASE)
"""Match the beginning of a pattern that may match such a URL."""


class InvalidPolicy(Invalid):
    """The statements are empty, or have a part that the server could not enforce exactly."""


class NotPermitted(Denied):
    """The caller is known, but may not do this."""


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Allow or deny. `actions` and `resource` are patterns (`compile_glob`). It applies if all `conditions` hold."""

    effect: Effect
    actions: tuple[str, ...]
    resource: str
    conditions: Conditions = ()


class Delegation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a user's permissions that one job gets.

    The server gives its collectors a token of the user who started them (`lakebed.server`, collectors.py). Each
    request also checks the user's current permissions, so the job can never do more than the user. The token is no
    login: operations that need one refuse it.

    Allow `actions`, by their full names, on `repository` itself but not on its content, while its job `job` runs.

    `on_branches` are allowed on each of its branches, and on nothing else.
    `deleted` is the uid of the repository if it is deleted.
    `address` is the user's address at the start. Conditions on the address use it, wherever the job runs.
    """

    job: str
    repository: str
    actions: tuple[str, ...]
    deleted: str = ""
    on_branches: tuple[str, ...] = ()
    address: str = ""

    def covers(self, action: str, resource: str) -> bool:
        repository = f"arn:lakefs:fs:::repository/{self.repository}"
        if action in self.actions and resource == repository:
            return True
        return action in self.on_branches and resource.startswith(f"{repository}/branch/")

    def covers_below(self, action: str, beginning: str) -> bool:
        """Return whether it covers a resource that begins so."""
        repository = f"arn:lakefs:fs:::repository/{self.repository}"
        branches = f"{repository}/branch/"
        if action in self.actions and repository.startswith(beginning):
            return True
        return action in self.on_branches and (branches.startswith(beginning) or beginning.startswith(branches))


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
        try:
            check_conditions(statement.conditions)
        except InvalidCondition as error:
            raise InvalidPolicy(f"{place}: {error}", statement=number) from error
        if statement.effect == "deny":
            _check_denied_refs(statement, place)
    return tuple(statements)


def no_action_files(repository: str) -> Statement:
    """Return the statement that denies to write action files of a repository."""
    resource = f"arn:lakefs:fs:::repository/{repository}/object/{ACTIONS_FOLDER}*"
    return Statement(effect="deny", actions=("fs:WriteObject", "fs:DeleteObject"), resource=resource)


def check_resource(resource: str, before: str = "") -> None:
    """Refuse a text without the form of a resource (InvalidPolicy). The message has `before` in front."""
    if not _RESOURCE.fullmatch(resource):
        raise InvalidPolicy(
            f"{before}{resource!r} is not a resource: `*`, or arn:lakefs:fs:::… or arn:lakefs:auth:::…",
            resource=resource,
        )


def _check_resource(resource: str, place: str) -> None:
    """Refuse a text that is no resource, or that other systems read as a wildcard or a variable.

    Taken literally, a deny with such a text would stop less than its author believes.
    """
    check_resource(resource, f"{place}: ")
    if odd := _ODD.search(resource.replace(USER, "")):
        raise InvalidPolicy(
            f"{place}: {resource!r} has {odd[0]!r}; the only wildcard is *, the only variable {USER}",
            resource=resource,
        )


def _check_denied(resource: str, place: str) -> None:
    """Refuse to deny only one of the two spellings of addresses of Azure."""
    if _HALF_AZURE.search(resource) and not _AZURE.search(resource):
        raise InvalidPolicy(
            f"{place}: {resource!r} would not deny all spellings of an address: write az://container/key",
            resource=resource,
        )


def _check_denied_refs(statement: Statement, place: str) -> None:
    """Refuse a deny with a condition on a key that no request for these actions has: it would stop nothing."""
    matches = [compile_glob(pattern) for pattern in statement.actions]
    has = {key for action, keys in REFS_OF.items() if any(match(action) for match in matches) for key in keys}
    for one in statement.conditions:
        if one.operator in {"StringEquals", "StringLike"} and one.key not in has:
            raise InvalidPolicy(f"{place} denies nothing: no request for its actions names a {one.key}")


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
    ) -> None:
        self.user_id = user_id
        self._is_administrator = is_administrator
        self._statements = tuple(statements)
        self._delegation: Delegation | None = None
        self._circumstances = NOWHERE
        self._verdicts = _Verdicts(self._look_up)
        self._at_refs: dict[tuple[str, Ref], _Verdict] = {}
        self.by_address: Final[dict[str, Permissions]] = {}
        self.has_conditions: Final = any(one.conditions for one in self._statements)

    @classmethod
    def everything(cls, user_id: str) -> Permissions:
        """Return the permission to do anything."""
        return cls(user_id, [Statement(effect="allow", actions=(EVERYTHING,), resource=EVERYTHING)])

    def within(self, delegation: Delegation) -> Permissions:
        """Return the part of these permissions that the delegation covers."""
        return self._altered(_delegation=delegation)

    def under(self, circumstances: Circumstances) -> Permissions:
        """Return these permissions for the requests from one address."""
        return self._altered(_circumstances=circumstances)

    def lasting(self) -> Permissions:
        """Return these permissions without those that hold only at some time, or only from some address.

        What denies something denies it here under the same conditions.
        """
        kept = [
            one
            for one in self._statements
            if one.effect == "deny" or all(condition.key in REF_KEYS for condition in one.conditions)
        ]
        lasting = Permissions(self.user_id, kept, is_administrator=self._is_administrator)
        return lasting._altered(_delegation=self._delegation, _circumstances=self._circumstances)

    def _altered(self, **changes: object) -> Permissions:
        # Share the verdicts: they depend on neither the circumstances nor the delegation. Those for one ref do.
        altered = object.__new__(Permissions)
        altered.__dict__ = self.__dict__ | {"_at_refs": {}, "by_address": {}} | changes
        return altered

    def denials(self) -> tuple[Statement, ...]:
        """Return the statements that deny, with the caller's id in the place of `${user}`."""
        return tuple(
            msgspec.structs.replace(
                one,
                resource=one.resource.replace(USER, self.user_id),
                conditions=tuple(
                    msgspec.structs.replace(each, values=tuple(v.replace(USER, self.user_id) for v in each.values))
                    for each in one.conditions
                ),
            )
            for one in self._statements
            if one.effect == "deny"
        )

    @property
    def look(self) -> Look:
        """The look-up of what an expression names now. Without circumstances it is in doubt."""
        return self._circumstances.look

    def heeds_refs(self, action: str) -> bool:
        """Return whether a statement about this action has a condition on a branch, a tag or a ref."""
        return self.has_conditions and self._verdicts[action].heeds_refs

    def allows(self, action: str, resource: str, ref: Ref = UNKNOWN_REF) -> bool:
        """Return whether the action is allowed on the resource, where the request reads or writes this ref."""
        if self._delegation is not None and not self._delegation.covers(action, resource):
            return False
        verdict = self._holding(action, ref)
        if verdict.is_everywhere:
            return True
        if any(match(resource) for _, match, _ in verdict.denied):
            return False
        return any(match(resource) for _, match, _ in verdict.allowed)

    def deciding(self, action: str, resource: str, ref: Ref = UNKNOWN_REF) -> Statement | None:
        """Return the first statement that denies this, else the first that allows it; None if no statement names it.

        The returned object is one of those that these permissions were made from. `allows` agrees with it, except
        for a delegation, which no statement decides.
        """
        about = self._about(action)
        for effect in ("deny", "allow"):
            for statement in about:
                if statement.effect != effect:
                    continue
                for _, match, check in self._matchers(statement):
                    holds = match(resource) and (check is None or check(ref, self._circumstances))
                    # In doubt a statement denies, and does not allow.
                    if holds or (holds is None and effect == "deny"):
                        return statement
        return None

    def keys_about(self, action: str, resource: str) -> frozenset[str]:
        """Return the keys of all conditions that the answer for this may depend on."""
        return frozenset(
            condition.key
            for statement in self._about(action)
            if any(match(resource) for _, match, _ in self._matchers(statement))
            for condition in statement.conditions
        )

    def allows_everywhere(self, action: str) -> bool:
        """Return True where the action is allowed on every possible resource, so that the caller need not name one."""
        return self._delegation is None and self._verdicts[action].is_everywhere

    def allows_below(self, action: str, beginning: str) -> bool:
        """Return False if no resource with this beginning is allowed, for any ref.

        True is weaker: statements may still deny each of them, if no single one denies all.
        """
        if self._delegation is not None and not self._delegation.covers_below(action, beginning):
            return False
        verdict = self._verdicts[action]
        if verdict.is_everywhere:
            return True
        seen = self._circumstances
        for pattern, match, check in verdict.denied:
            if pattern.endswith("*") and match(beginning) and (check is None or check(UNKNOWN_REF, seen) is True):
                return False
        return any(
            _may_begin(pattern, beginning) and (check is None or check(UNKNOWN_REF, seen) is not False)
            for pattern, _, check in verdict.allowed
        )

    def denied_below(self, action: str, beginning: str, ref: Ref = UNKNOWN_REF) -> Callable[[str], bool] | None:
        """Return a function that returns whether a statement denies the resource that `beginning` and its argument
        make. None: no statement denies any, so a page of rows needs no look at each.

        Costs as much as the number of these statements, even in a policy with thousands about other resources.
        """
        denied = self._denials_below(action, beginning, ref)
        if not denied:
            return None
        return lambda rest: any(match(beginning + rest) for match in denied)

    def denies_below(self, action: str, beginning: str) -> bool:
        """Return whether a statement may deny some resource with this beginning, for some ref."""
        return bool(self._denials_below(action, beginning, UNKNOWN_REF))

    def _denials_below(self, action: str, beginning: str, ref: Ref) -> Sequence[Callable[[str], bool]]:
        return [match for pattern, match, _ in self._holding(action, ref).denied if _may_begin(pattern, beginning)]

    def require(self, action: str, resource: str, ref: Ref = UNKNOWN_REF) -> None:
        """Refuse an action that is not allowed (NotPermitted)."""
        if not self.allows(action, resource, ref):
            raise self.not_permitted(action, resource, ref)

    def refuse_denied(self, action: str, resource: str, ref: Ref = UNKNOWN_REF) -> None:
        """Refuse a denied action. An entry below an allowed resource need not be allowed by its own name.

        Raises:
            NotPermitted: a statement denies it.
        """
        if any(match(resource) for _, match, _ in self._holding(action, ref).denied):
            raise self.not_permitted(action, resource, ref)

    def not_permitted(self, action: str, resource: str, ref: Ref = UNKNOWN_REF) -> NotPermitted:
        about_ref = f" for {ref}" if self.heeds_refs(action) else ""
        return NotPermitted(
            f"insufficient permissions: {self.user_id} needs {action} on {resource}{about_ref}",
            user=self.user_id,
            action=action,
            resource=resource,
        )

    def _holding(self, action: str, ref: Ref) -> _Verdict:
        """Return the statements about an action that apply to requests about this ref. In doubt a deny applies."""
        verdict = self._verdicts[action]
        if not verdict.has_conditions:
            return verdict
        here = self._at_refs.get((action, ref))
        if here is None:
            here = verdict.holding(ref, self._circumstances)
            if not verdict.heeds_time and len(self._at_refs) < REFS_KEPT_MAX:
                self._at_refs[action, ref] = here
        return here

    def _look_up(self, action: str) -> _Verdict:
        about = self._about(action)
        allowed = [one for one in about if one.effect == "allow"]
        denied = [one for one in about if one.effect == "deny"]
        keys = {condition.key for one in about for condition in one.conditions}
        return _Verdict(
            is_everywhere=not denied and any(one.resource == EVERYTHING and not one.conditions for one in allowed),
            allowed=[rule for one in allowed for rule in self._matchers(one)],
            denied=[rule for one in denied for rule in self._matchers(one)],
            has_conditions=bool(keys),
            heeds_refs=not keys.isdisjoint(REF_KEYS),
            heeds_time=TIME in keys,
        )

    def _about(self, action: str) -> list[Statement]:
        """Return the statements that name the action, without denials that do not apply to administrators."""
        names = {action, ALSO.get(action, action)}
        # No user could remove a deny that locks the last administrator out.
        is_undeniable = self._is_administrator and action.startswith("auth:")
        return [
            one
            for one in self._statements
            if any(_names_one(pattern, names) for pattern in one.actions)
            and not (is_undeniable and one.effect == "deny")
        ]

    def _matchers(self, statement: Statement) -> list[_Rule]:
        spellings = {statement.resource: None}
        if statement.effect == "deny":
            # An allowed URL gets no other spelling, which would lose the account.
            spellings[_AZURE.sub("az://", statement.resource)] = None
        check = compile_conditions(statement.conditions, self.user_id)
        return [(*_matcher_of(pattern, self.user_id), check) for pattern in spellings]


_Rule: TypeAlias = tuple[str, Matcher, "Check | None"]
"""A pattern of resources, its matcher, and the conditions of its statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """The statements about one action. For all requests it keeps the conditions, but not their results.

    `heeds_refs`: a condition is on a branch, a tag or a ref. `heeds_time`: one is on the time.
    """

    is_everywhere: bool
    allowed: list[_Rule]
    denied: list[_Rule]
    has_conditions: bool = False
    heeds_refs: bool = False
    heeds_time: bool = False

    def holding(self, ref: Ref, seen: Circumstances) -> _Verdict:
        """Return the statements that apply to a request about this ref. In doubt a deny applies, and no allow."""
        return _Verdict(
            is_everywhere=False,
            allowed=[rule for rule in self.allowed if (check := rule[2]) is None or check(ref, seen) is True],
            denied=[rule for rule in self.denied if (check := rule[2]) is None or check(ref, seen) is not False],
        )


class _Verdicts(dict[str, _Verdict]):
    """The verdict on each action, made at its first look-up. A method for that would be called four times a request."""

    def __init__(self, look_up: Callable[[str], _Verdict]) -> None:
        self._look_up = look_up

    def __missing__(self, action: str) -> _Verdict:
        verdict = self[action] = self._look_up(action)
        return verdict


def _may_begin(pattern: str, beginning: str) -> bool:
    """Return False if the pattern matches no text with this beginning."""
    start, star, _ = pattern.partition("*")
    return start.startswith(beginning) or (bool(star) and beginning.startswith(start))


def _names_one(pattern: str, names: set[str]) -> bool:
    match = compile_glob(pattern)
    return any(match(name) for name in names)


def _matcher_of(pattern: str, user_id: str) -> tuple[str, Matcher]:
    """Compile a resource pattern. Split at stars before inserting the user's id, so a user named `*` is one user."""
    pieces = [piece.replace(USER, user_id) for piece in pattern.split("*")]
    return "*".join(pieces), compile_pieces(pieces)
