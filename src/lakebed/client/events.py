"""Events of a repository, subscriptions to them, and runs of hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakebed.operations import events, repositories
from lakebed.wire import ActionRun, Event, EventList, EventSubscription, HookRun, NewSubscription, Replay

from .connection import Noun
from .paging import listing


class Events(Noun):
    """Read events, and manage subscriptions. Got from `Client.events`."""

    def list(
        self,
        repository: str,
        *,
        after: int = 0,
        limit: int | None = None,
        refs: Sequence[str] = (),
        operations: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> Iterator[Event]:
        """List kept events after a position, the oldest first: those of one of each, or all that the caller may see."""
        query: dict[str, str | int | bool | list[str] | None] = {"after": str(after)}
        query |= {"ref": [*refs], "operation": [*operations], "kind": [*kinds]}
        return listing(self._connection, events.LIST_EVENTS, repository, query=query, limit=limit)

    def page(self, repository: str, *, after: int = 0, amount: int = 100) -> EventList:
        """Return some kept events after a position, and which positions there are."""
        query = {"after": str(after), "amount": str(amount)}
        return self._connection.do(events.LIST_EVENTS, repository, query=query)

    def subscriptions(self, repository: str) -> Sequence[EventSubscription]:
        return self._connection.do(events.LIST_EVENT_SUBSCRIPTIONS, repository).results

    def subscribe(self, repository: str, wanted: NewSubscription) -> EventSubscription:
        """Have events sent to a webhook. The answer alone has the secret."""
        return self._connection.do(events.CREATE_EVENT_SUBSCRIPTION, repository, body=wanted)

    def get(self, repository: str, subscription: str) -> EventSubscription:
        return self._connection.do(events.GET_EVENT_SUBSCRIPTION, repository, subscription)

    def unsubscribe(self, repository: str, subscription: str) -> None:
        self._connection.do(events.DELETE_EVENT_SUBSCRIPTION, repository, subscription)

    def replay(self, repository: str, subscription: str, after: int) -> EventSubscription:
        """Deliver the events behind this position again."""
        return self._connection.do(events.REPLAY_EVENTS, repository, subscription, body=Replay(after=after))


class Actions(Noun):
    """List runs of hooks, and read their output. Got from `Client.actions`."""

    def list(
        self, repository: str, *, branch: str = "", commit: str = "", limit: int | None = None
    ) -> Iterator[ActionRun]:
        """List runs, the newest first."""
        query = {"branch": branch or None, "commit": commit or None}
        return listing(self._connection, repositories.LIST_REPOSITORY_RUNS, repository, query=query, limit=limit)

    def get(self, repository: str, run: str) -> ActionRun:
        return self._connection.do(repositories.GET_RUN, repository, run)

    def hooks(self, repository: str, run: str) -> Iterator[HookRun]:
        return listing(self._connection, repositories.LIST_RUN_HOOKS, repository, run)

    def output(self, repository: str, run: str, hook_run: str) -> str:
        """Return the output of a hook."""
        return self._connection.do(repositories.GET_RUN_HOOK_OUTPUT, repository, run, hook_run)
