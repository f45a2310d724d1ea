"""Events by position, and subscriptions to them."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import ONE_REPOSITORY, REPOSITORY, Operation, Parameter, delete, get, on

_SUBSCRIPTIONS: Final = ONE_REPOSITORY + "/event_subscriptions"
_SUBSCRIPTION: Final = _SUBSCRIPTIONS + "/{subscription}"
_READ: Final = on(REPOSITORY, "events:ReadSubscriptions")
_WRITE: Final = on(REPOSITORY, "events:WriteSubscriptions")

LIST_EVENTS: Final = get(
    "listEvents",
    ONE_REPOSITORY + "/events",
    wire.EventList,
    on(REPOSITORY, "events:ReadEvents"),
    "List the moves of branches and tags after a position, the oldest first.",
    Parameter("after", "integer", default=0),
    Parameter("amount", "integer", default=100),
)
LIST_EVENT_SUBSCRIPTIONS: Final = get(
    "listEventSubscriptions",
    _SUBSCRIPTIONS,
    wire.EventSubscriptionList,
    _READ,
    "List subscriptions to events, how many events wait for each, and its last error.",
)
CREATE_EVENT_SUBSCRIPTION: Final = Operation(
    "createEventSubscription",
    "POST",
    _SUBSCRIPTIONS,
    wire.NewSubscription,
    wire.EventSubscription,
    _WRITE,
    "Have events sent to a webhook, signed. The answer alone has the secret.",
    status=201,
)
GET_EVENT_SUBSCRIPTION: Final = get(
    "getEventSubscription",
    _SUBSCRIPTION,
    wire.EventSubscription,
    _READ,
    "Return a subscription, how many events wait for it, and its last error.",
)
DELETE_EVENT_SUBSCRIPTION: Final = delete(
    "deleteEventSubscription", _SUBSCRIPTION, _WRITE, "End a subscription. Events that wait for it are not delivered."
)
REPLAY_EVENTS: Final = Operation(
    "replayEvents",
    "POST",
    _SUBSCRIPTION + "/replay",
    wire.Replay,
    wire.EventSubscription,
    _WRITE,
    "Deliver the events behind a position again.",
    repeatable=True,
)
