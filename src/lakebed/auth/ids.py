"""Ids of groups and policies: check them, list pages of them, and refuse changes of the built-in ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from lakebed.base import Denied, Invalid

from .accounts import ID

ID_BYTES_MAX: Final = 256

R = TypeVar("R")


class BuiltIn(Denied):
    """The group or policy comes with the release, and cannot be changed."""


class InvalidRole(Invalid):
    """The id or access level breaks a rule that the message states."""


def page(found: Mapping[str, R], *, prefix: str, after: str, limit: int) -> tuple[list[R], bool]:
    """Return up to `limit` records of the prefix after `after`, ascending by id, and whether more follow."""
    names = [name for name in sorted(found) if name.startswith(prefix) and (not after or name > after)]
    return [found[name] for name in names[:limit]], len(names) > limit


def refuse_built_in(name: str, built_in: Mapping[str, object]) -> None:
    if name in built_in:
        raise BuiltIn(f"{name} is built in and cannot be changed: make one of your own", id=name)


def check_id(name: str) -> str:
    if not ID.fullmatch(name) or len(name.encode()) > ID_BYTES_MAX:
        raise InvalidRole(
            f"an id has 1 to 128 characters and at most {ID_BYTES_MAX} bytes, no control characters and no slash",
            id=name,
        )
    return name
