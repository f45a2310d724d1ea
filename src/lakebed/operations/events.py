"""Events by position, and subscriptions to them."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import BRANCH, ONE_REPOSITORY, REPOSITORY, TAG, Parameter, Permission, delete, get, on, post

_SUBSCRIPTIONS: Final = ONE_REPOSITORY + "/event_subscriptions"
_SUBSCRIPTION: Final = _SUBSCRIPTIONS + "/{subscription}"
_READ: Final = on(REPOSITORY, "events:ReadSubscriptions")
_WRITE: Final = on(REPOSITORY, "events:WriteSubscriptions")

READ_BRANCH: Final = Permission("fs:ReadBranch", BRANCH, when="of a branch, or of a pull request into it")
READ_TAG: Final = Permission("fs:ReadTag", TAG, when="of a tag")
LIST_PULLS: Final = Permission("pr:ListPullRequests", REPOSITORY, when="of a pull request")
SEEN: Final = (READ_BRANCH, READ_TAG, LIST_PULLS)
"""The permissions to see an event. Runs and erasures need no more than to read events."""

LIST_EVENTS: Final = get(
    "listEvents",
    ONE_REPOSITORY + "/events",
    wire.EventList,
    on(REPOSITORY, "events:ReadEvents"),
    "List events after a position, the oldest first: those that the caller may see. An empty page may not be the last.",
    Parameter("after", "integer", default=0),
    Parameter("amount", "integer", default=100),
    Parameter("ref", "list"),
    Parameter("operation", "list"),
    Parameter("kind", "list"),
    asked_later=SEEN,
)
LIST_EVENT_SUBSCRIPTIONS: Final = get(
    "listEventSubscriptions",
    _SUBSCRIPTIONS,
    wire.EventSubscriptionList,
    _READ,
    "List subscriptions to events, how many events wait for each, and its last error.",
)
CREATE_EVENT_SUBSCRIPTION: Final = post(
    "createEventSubscription",
    _SUBSCRIPTIONS,
    wire.NewSubscription,
    wire.EventSubscription,
    _WRITE,
    "Have events sent to a webhook, signed. The answer alone has the secret. The caller must be allowed to see each"
    " event that it selects.",
    asked_later=SEEN,
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
REPLAY_EVENTS: Final = post(
    "replayEvents",
    _SUBSCRIPTION + "/replay",
    wire.Replay,
    wire.EventSubscription,
    _WRITE,
    "Deliver the events behind a position again.",
    repeatable=True,
)
