"""What groups and policies can be called, how they are listed, and that what is built in stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from lakebed.base import Denied, Invalid

from .accounts import ID

ID_BYTES_MAX: Final = 256

R = TypeVar("R")


class BuiltIn(Denied):
    """It comes with the release, and stays as it is."""


class InvalidRole(Invalid):
    """An id or an access level that cannot be taken."""


def page(found: Mapping[str, R], *, prefix: str, after: str, limit: int) -> tuple[list[R], bool]:
    """Ascending by id, those of the prefix after `after`; and whether there are more than `limit`."""
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
