"""Records of events, and of subscriptions to them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .common import LIST_MAX, Pagination
from .repositories import Patterns


class RefEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a branch or tag (`kind`). `before` is empty if it was made, `after` if it was deleted.

    `position` numbers the events of the repository.
    """

    position: int
    kind: str
    name: str
    operation: str
    before: str
    after: str
    at_ms: int
    by: str


class RefEventList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events. `oldest` is the first position that is kept, `last` the last that was assigned."""

    pagination: Pagination
    results: list[RefEvent]
    oldest: int
    last: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a webhook: events in order of position."""

    repository: str
    subscription: str
    events: list[RefEvent]


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to send events to an http or https URL.

    `refs`: patterns of branches and tags; `operations`: those of moves; empty means all. Without `secret` the server
    makes one. `after`: begin behind this position; None means at the next event.
    """

    target: str
    refs: Patterns = []
    operations: Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)] = []
    secret: str | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class EventSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription and its progress. `behind`: the number of waiting events.

    `missed`: of events removed before delivery.

    `failures` in a row, with the last `error`. Only the answer to its creation contains `secret`.
    """

    id: str
    target: str
    refs: list[str]
    operations: list[str]
    created_ms: int
    created_by: str
    position: int
    behind: int
    missed: int
    failures: int
    error: str
    delivered_ms: int
    secret: str | msgspec.UnsetType = msgspec.UNSET


class EventSubscriptionList(msgspec.Struct, frozen=True, kw_only=True):
    results: list[EventSubscription]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A request to deliver the events behind this position again."""

    after: Annotated[int, msgspec.Meta(ge=0)]
