"""Conditions of statements: on the branch, the tag or the ref of a request, on the caller's address, and on time.
Pure.

A statement applies if all its conditions hold. A condition needs one matching value. A negated condition
(`StringNotEquals`, `StringNotLike`, `NotIpAddress`) needs that no value matches. If a request has no value for a key
(a list of users has no branch), a condition does not hold, and a negated one does.

A third answer is doubt: the server cannot determine the request's value for a key. A statement in doubt does not
allow, but it denies. So a door that omits a value refuses too much, and never too little.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

import msgspec

from lakebed.base import Invalid

__all__ = [
    "NO_REF",
    "UNKNOWN_REF",
    "Circumstances",
    "Condition",
    "InvalidCondition",
    "Ref",
    "condition_map",
    "conditions_of",
    "is_address",
    "time_of",
]

Matcher: TypeAlias = Callable[[str], bool]
BRANCH: Final = "branch"
TAG: Final = "tag"
REF: Final = "ref"
ADDRESS: Final = "SourceIp"
TIME: Final = "CurrentTime"
REF_KEYS: Final = frozenset({BRANCH, TAG, REF})
USER: Final = "${user}"

_OPERATORS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("StringEquals", "StringNotEquals", "StringLike", "StringNotLike"), REF_KEYS),
    **dict.fromkeys(("IpAddress", "NotIpAddress"), frozenset({ADDRESS})),
    **dict.fromkeys(("DateLessThan", "DateGreaterThan"), frozenset({TIME})),
}
"""The operators, with the keys that each supports."""
_NEGATED: Final = frozenset({"StringNotEquals", "StringNotLike", "NotIpAddress"})
_NO_PART_OF_REF: Final = re.compile(r"[\x00-\x20\x7f~^:?\[\]{}\\/@$]")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d))?")
_MAPPED: Final = ip_network("::ffff:0:0/96")
ADDRESSES_CACHED_MAX: Final = 1_000
"""The addresses for which a server keeps permissions, and a condition its result: both for seconds."""

REFS_KEPT_MAX: Final = 1_000
"""The pairs of an action and a ref for which permissions keep the statements that apply, for seconds."""

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


class InvalidCondition(Invalid):
    """The operator or the key is unknown, or a value is invalid for the key."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One key of one operator, with the values that it is compared with."""

    operator: str
    key: str
    values: tuple[str, ...]


Conditions: TypeAlias = tuple[Condition, ...]


class Ref(msgspec.Struct, frozen=True, cache_hash=True):
    """The ref that a request reads or writes: a branch or a tag by name, or a commit by its id in `ref`.

    `ref` is also set to the name of a branch or tag. All are None for an operation without a ref.
    """

    branch: str | None = None
    tag: str | None = None
    ref: str | None = None
    is_known: bool = True

    @staticmethod
    @lru_cache(maxsize=REFS_KEPT_MAX)
    def of_branch(name: str) -> Ref:
        return Ref(branch=name, ref=name)

    @classmethod
    def of_tag(cls, name: str) -> Ref:
        return cls(tag=name, ref=name)

    def __str__(self) -> str:
        if not self.is_known:
            return "a ref that is not known"
        if self.branch is not None:
            return f"branch {self.branch}"
        return f"tag {self.tag}" if self.tag is not None else f"ref {self.ref}" if self.ref is not None else "no ref"


NO_REF: Final = Ref()
UNKNOWN_REF: Final = Ref(is_known=False)

Look: TypeAlias = Callable[[str, str], "Ref | Awaitable[Ref]"]
"""Return the ref that an expression names in a repository, or UNKNOWN_REF in doubt."""


def in_doubt(_repository: str, _expression: str) -> Ref:
    return UNKNOWN_REF


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The address of requests, and how to find their time and refs. An empty address, or no time, is unknown."""

    address: str = ""
    now_ms: Callable[[], int] | None = None
    look: Look = in_doubt

    def said(self, ref: Ref) -> frozenset[str]:
        """Return the keys for which a value is known in a request about this ref."""
        known = {ADDRESS: bool(self.address), TIME: self.now_ms is not None, **dict.fromkeys(REF_KEYS, ref.is_known)}
        return frozenset(key for key, is_known in known.items() if is_known)


NOWHERE: Final = Circumstances()
"""Circumstances of which all values are unknown."""

Check: TypeAlias = Callable[[Ref, Circumstances], "bool | None"]
"""Return whether conditions hold, or None in doubt."""


# Reading and writing them as the contract has them


def conditions_of(condition: Mapping[str, Mapping[str, Sequence[str]]] | None) -> Conditions:
    """Return the conditions of the contract's map: operator, key, values.

    Raises:
        InvalidCondition: an operator has no key.
    """
    for operator, by_key in (condition or {}).items():
        if not by_key:
            raise InvalidCondition(f"the condition {operator!r} names no key")
    return tuple(
        Condition(operator=operator, key=key, values=tuple(values))
        for operator, by_key in (condition or {}).items()
        for key, values in by_key.items()
    )


def condition_map(conditions: Iterable[Condition]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for one in conditions:
        found.setdefault(one.operator, {})[one.key] = list(one.values)
    return found


def check_conditions(conditions: Iterable[Condition]) -> None:
    """Refuse conditions that the server cannot enforce exactly. If ignored, a deny would stop less than its author
    expects.

    Raises:
        InvalidCondition: the message names the operator, key or value.
    """
    seen = set()
    for one in conditions:
        keys = _OPERATORS.get(one.operator)
        if keys is None:
            raise InvalidCondition(f"there is no operator {one.operator!r}; known are {', '.join(_OPERATORS)}")
        if one.key not in keys:
            raise InvalidCondition(f"{one.operator} has no key {one.key!r}; known are {', '.join(sorted(keys))}")
        if not one.values:
            raise InvalidCondition(f"{one.operator} {one.key} has no value")
        if (one.operator, one.key) in seen:
            raise InvalidCondition(f"{one.operator} {one.key} occurs twice; one with all values means either")
        seen.add((one.operator, one.key))
        for value in one.values:
            _check_value(one, value)


def _check_value(condition: Condition, value: str) -> None:
    if condition.key == ADDRESS:
        network_of(value)
    elif condition.key == TIME:
        time_of(value)
    else:
        _check_name(condition, value)


def _check_name(condition: Condition, value: str) -> None:
    name = value.replace(USER, "")
    if condition.operator.endswith("Equals") and "*" in name:
        raise InvalidCondition(f"{condition.operator} takes no wildcard, as {value!r} has: write StringLike instead")
    odd = _NO_PART_OF_REF.search(name)
    if condition.key == BRANCH:
        odd = odd or re.search(r"[^A-Za-z0-9_*-]", name)
    if odd or not value:
        why = f"{odd[0]!r}" if odd else "nothing"
        raise InvalidCondition(f"{value!r} is the name of no {condition.key}: it has {why}")


def network_of(text: str) -> Network:
    """Parse an address or a network, or raise InvalidCondition."""
    try:
        network = ip_network(text)
    except ValueError as error:
        raise InvalidCondition(f"{text!r} is neither an address nor a network: {error}") from error
    if network.version == 6 and network.subnet_of(_MAPPED):  # type: ignore[arg-type]  # both are of IPv6
        raise InvalidCondition(f"{text!r} is one of IPv4 in the form of IPv6: write it as IPv4")
    return network


def time_of(text: str) -> int:
    """Return the Unix milliseconds of a date, or of a date with a time and its zone. A date alone is its midnight, UTC.

    Raises:
        InvalidCondition: the text is neither.
    """
    if not _DATE.fullmatch(text):
        raise InvalidCondition(f"{text!r} is not a time such as 2027-01-31 or 2027-01-31T18:00:00Z")
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidCondition(f"{text!r} is not a time: {error}") from error


# Holding them


def compile_conditions(conditions: Iterable[Condition], user_id: str) -> Check | None:
    """Return a function that checks whether all conditions hold, or None without conditions."""
    checks = [_compiled(one, user_id) for one in conditions]
    if not checks:
        return None

    def check(ref: Ref, circumstances: Circumstances) -> bool | None:
        in_doubt = False
        for one in checks:
            holds = one(ref, circumstances)
            if holds is False:
                return False
            in_doubt |= holds is None
        return None if in_doubt else True

    return check


def _compiled(condition: Condition, user_id: str) -> Check:
    is_negated, values = condition.operator in _NEGATED, condition.values
    try:
        check_conditions([condition])
    except InvalidCondition:
        # A later release may have written it. In doubt it denies, and allows nothing.
        return lambda _ref, _circumstances: None
    if condition.key == ADDRESS:
        return _of_address([network_of(value) for value in values], is_negated)
    if condition.key == TIME:
        return _of_time([time_of(value) for value in values], is_before=condition.operator == "DateLessThan")
    return _of_ref(condition.key, values, user_id, is_negated)


def _matcher(value: str, user_id: str) -> Matcher:
    # Split at stars before inserting the user's id, so a user named `*` is one user.
    return compile_pieces([piece.replace(USER, user_id) for piece in value.split("*")])


def _of_ref(key: str, values: Sequence[str], user_id: str, is_negated: bool) -> Check:
    names = {value.replace(USER, user_id) for value in values if "*" not in value}
    patterns = [_matcher(value, user_id) for value in values if "*" in value]

    def check(ref: Ref, _: Circumstances) -> bool | None:
        if not ref.is_known:
            return None
        value: str | None = getattr(ref, key)
        matches = value in names or (value is not None and any(match(value) for match in patterns))
        return matches is not is_negated

    return check


def _of_address(networks: Sequence[Network], is_negated: bool) -> Check:
    @lru_cache(maxsize=ADDRESSES_CACHED_MAX)
    def check_address(text: str) -> bool | None:
        address = _address(text)
        # An address is in no network of the other protocol.
        return None if address is None else any(address in one for one in networks) is not is_negated

    return lambda _, circumstances: check_address(circumstances.address)


def is_address(text: str) -> bool:
    """Return whether a caller could have this address."""
    return _address(text) is not None


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A socket for both protocols shows IPv4 callers in this form.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _of_time(times_ms: Sequence[int], *, is_before: bool) -> Check:
    def check(_: Ref, circumstances: Circumstances) -> bool | None:
        if circumstances.now_ms is None:
            return None
        now_ms = circumstances.now_ms()
        return any(now_ms < at_ms if is_before else now_ms > at_ms for at_ms in times_ms)

    return check


def compile_glob(pattern: str) -> Matcher:
    """Return a matcher of a pattern over actions or resources: `*` is any characters, none and slashes too."""
    return compile_pieces(pattern.split("*"))


def compile_pieces(literals: Sequence[str]) -> Matcher:
    """Return a matcher for the pieces between stars: `a` and `b` for `a*b`, and `a` alone for `a`."""
    # Find the pieces from left to right, each at its first occurrence. So the time depends on the text alone, not on
    # the number of stars. Regular expressions could backtrack exponentially.
    first, *pieces = literals
    if not pieces:
        return first.__eq__
    if pieces == [""]:
        return lambda text: text.startswith(first)
    *middle, last = pieces

    def matches(text: str) -> bool:
        if not text.startswith(first) or not text.endswith(last):
            return False
        position, end = len(first), len(text) - len(last)
        for piece in middle:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return position <= end

    return matches
