"""Records that every resource shares."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

LIST_MAX: Final = 1_000
"""The most that a list or a map of a body may have. A field that may have more, or less, says so itself."""
Metadata: TypeAlias = Annotated[dict[str, str], msgspec.Meta(max_length=LIST_MAX)]


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """Say which lifecycle run took an object, by which rule of which policy, and when (Unix seconds).

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
        """Return how people call what happened to the object."""
        return "erased" if self.is_erased else "expired"


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is not a success. Clients print `message`, and scripts read it.

    `expired` is there where an object is gone by a lifecycle policy.
    """

    message: str
    expired: Expired | None = None


class Pagination(msgspec.Struct, frozen=True, kw_only=True):
    """`next_offset` is what to send as `after` for the next page; empty when there is none."""

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int = 1000


class StorageUri(msgspec.Struct, frozen=True, kw_only=True):
    location: str
