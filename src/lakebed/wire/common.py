"""Records that every resource shares."""

from __future__ import annotations

import msgspec


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success. Clients print `message`, and scripts read it."""

    message: str


class Pagination(msgspec.Struct, frozen=True, kw_only=True):
    """`next_offset` is what to send as `after` for the next page; empty when there is none."""

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int = 1000


class StorageUri(msgspec.Struct, frozen=True, kw_only=True):
    location: str
