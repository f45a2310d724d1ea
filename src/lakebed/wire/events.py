"""Records of events, of subscriptions to them, and of runs of hooks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lakebed.base import EventKind

from .common import LIST_MAX, Paged
from .repositories import Patterns

__all__ = [
    "ActionRun",
    "ActionRunList",
    "Delivery",
    "Event",
    "EventList",
    "EventSubscription",
    "EventSubscriptionList",
    "HookRun",
    "HookRunList",
    "NewSubscription",
    "Replay",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a branch or tag, or a change of a pull request, run or erasure (`kind`).

    `before` is empty if a ref was made, `after` if it was deleted; `after` is also the commit of a merged pull request.
    `name` is the name of a ref, or the id of the others. `about` is the branch into which a pull request asks, or the
    kind of a run. `position` numbers the events of the repository.
    """

    position: int
    kind: str
    name: str
    operation: str
    before: str
    after: str
    at_ms: int
    by: str
    about: str


class EventList(Paged[Event], frozen=True, kw_only=True):
    """A page of events. `oldest` is the first position that is kept, `last` the last that was assigned."""

    oldest: int
    last: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a webhook: events in order of position."""

    repository: str
    subscription: str
    events: list[Event]


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to send events to an http or https URL, `nats:SUBJECT` or `kafka:TOPIC`."""

    target: str
    # Patterns of branches and tags, and of the branches of pull requests; runs have none.
    refs: Patterns = []
    # Of events; `kinds`: branch, tag, pull, run, erasure. Empty means all. Without `secret` the server makes one.
    operations: Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)] = []
    kinds: Annotated[list[EventKind], msgspec.Meta(max_length=5)] = []
    secret: str | None = None
    # Begin behind this position; None means at the next event.
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class EventSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription and its progress. `behind`: events after its position, also those that its filters leave out.

    `failures` in a row, with the last `error`. Only the answer to its creation contains `secret`.
    """

    id: str
    target: str
    refs: list[str]
    operations: list[str]
    kinds: list[str]
    created_ms: int
    created_by: str
    position: int
    behind: int
    # Of those behind: events removed before delivery.
    missed: int
    failures: int
    error: str
    delivered_ms: int
    secret: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def waiting(self) -> str:
        """Return how many events are to be delivered, in words. To count with filters, all would be read."""
        kept = self.behind - self.missed
        return f"up to {kept:,}" if kept and (self.refs or self.operations or self.kinds) else f"{kept:,}"


class EventSubscriptionList(msgspec.Struct, frozen=True, kw_only=True):
    results: list[EventSubscription]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A request to deliver the events behind this position again."""

    after: Annotated[int, msgspec.Meta(ge=0)]


class ActionRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hooks of one event. `status` is completed or failed; times are in RFC 3339."""

    run_id: str
    branch: str
    start_time: str
    end_time: str = ""
    event_type: str
    status: str
    commit_id: str


class ActionRunList(Paged[ActionRun], frozen=True, kw_only=True): ...


class HookRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    hook_run_id: str
    action: str
    hook_id: str
    start_time: str
    end_time: str = ""
    status: str


class HookRunList(Paged[HookRun], frozen=True, kw_only=True): ...
