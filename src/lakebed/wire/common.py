"""Records that every resource shares."""

from __future__ import annotations

from typing import Annotated, Final, Generic, TypeAlias, TypeVar

import msgspec

__all__ = ["Error", "Expired", "Paged", "Pagination", "StorageUri"]

T = TypeVar("T")

LIST_MAX: Final = 1_000
"""The longest list or map in a body. A field with another limit declares it itself."""
Metadata: TypeAlias = Annotated[dict[str, str], msgspec.Meta(max_length=LIST_MAX)]
Given: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
"""A text of a request that is never empty: an empty one is refused by the name of its field."""


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """The lifecycle run that deleted an object, the rule and policy version that applied, and the time (Unix seconds).

    An erasure has no policy: its version is 0, and its rule `erasure`.
    """

    policy_version: int
    rule: str
    run: str
    date: int

    @property
    def is_erased(self) -> bool:
        return self.policy_version == 0 and self.rule == "erasure"

    @property
    def word(self) -> str:
        """Return the word for people: erased or expired."""
        return "erased" if self.is_erased else "expired"


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is not a success. Clients print `message`, and scripts read it.

    `expired` is set if a lifecycle policy deleted the object.
    """

    message: str
    expired: Expired | None = None


class Pagination(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a page. `next_offset` is the value of `after` for the next page; empty on the last page."""

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int = 1000


class Paged(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a listing."""

    pagination: Pagination
    results: list[T]


class StorageUri(msgspec.Struct, frozen=True, kw_only=True):
    location: str
