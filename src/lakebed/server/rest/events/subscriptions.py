"""Read events, and manage subscriptions to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lakebed.auth import NO_REF, UNKNOWN_REF, NotPermitted, Permissions
from lakebed.base import EVENT_OPERATIONS, EventKind, Invalid
from lakebed.catalog import Repository, Subscription, SubscriptionRecord, is_wanted
from lakebed.operations import events
from lakebed.server.events import shown
from lakebed.server.http.gate import refuse_denied_below, require
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository
from lakebed.versions import EventRecord, Look
from lakebed.wire import Event, EventList, EventSubscription, EventSubscriptionList, NewSubscription, Replay

SECRET_CHARACTERS: Final = range(16, 257)
LOOKED_AT: Final = 1_000
"""Events that one request looks at, to find those that are asked for."""
FILTERS_MAX: Final = 20
_WILDCARDS: Final = frozenset("*?[")
_NEEDS: Final = {
    EventKind.BRANCH: (events.READ_BRANCH,),
    EventKind.TAG: (events.READ_TAG,),
    EventKind.PULL: (events.READ_BRANCH, events.LIST_PULLS),
}


class Events(Resource):
    @in_repository(events.LIST_EVENTS)
    async def list(self, request: RestRequest, repository: Repository) -> EventList:
        if await repository.subscriptions.records():
            # What was moved just now is there, too. After the last subscription nothing is gathered.
            await repository.versions.outbox.gather(Look.RECORDS)
        refs, operations, kinds = (request.query_list(name) for name in ("ref", "operation", "kind"))
        if len(refs) + len(operations) + len(kinds) > FILTERS_MAX:
            raise Invalid(f"at most {FILTERS_MAX} filters")
        _check_operations(operations)
        if unknown := [kind for kind in kinds if kind not in EVENT_OPERATIONS]:
            raise Invalid(f"no event has the kind {unknown[0]!a}: there are {', '.join(EventKind)}")
        amount, seen = request.amount(), _Seen(repository.id, request.permissions)
        found, has_more = await repository.subscriptions.events(
            after=max(request.integer("after", 0), 0), limit=LOOKED_AT if refs or operations or kinds else amount
        )
        oldest, last = await repository.versions.outbox.bounds()
        results: list[Event] = []
        for position, event in found:
            if is_wanted(event, refs=refs, operations=operations, kinds=kinds) and seen.may_see(event):
                results.append(shown((position, event)))
        is_cut = len(results) > amount
        results = results[:amount]
        # A page ends behind what was looked at, which may be none that is shown.
        at = results[-1].position if is_cut else found[-1][0] if found else 0
        pagination = page_of(results, has_more=has_more or is_cut, last=str(at))
        return EventList(pagination=pagination, results=results, oldest=oldest, last=last)

    @in_repository(events.LIST_EVENT_SUBSCRIPTIONS)
    async def subscriptions(self, _: RestRequest, repository: Repository) -> EventSubscriptionList:
        return EventSubscriptionList(results=[_subscription(one) for one in await repository.subscriptions.list()])

    @in_repository(events.CREATE_EVENT_SUBSCRIPTION)
    async def create(self, request: RestRequest, repository: Repository, body: NewSubscription) -> EventSubscription:
        repository.guards.check_writable()
        _Seen(repository.id, request.permissions).check(body)
        _check_operations(body.operations)
        if not self._state.eventing.brokers.check(body.target):
            _check_target(body.target)
        secret = body.secret if body.secret is not None else f"{self._state.ports.ids.bits(256):064x}"
        if len(secret) not in SECRET_CHARACTERS:
            raise Invalid("a secret has 16 to 256 characters")
        subscription_id = self._state.ports.ids.fresh()
        record = SubscriptionRecord(
            target=body.target,
            refs=tuple(body.refs),
            operations=tuple(body.operations),
            kinds=tuple(body.kinds),
            secret=self._state.eventing.seal(subscription_id, secret),
            created_ms=self._state.ports.clock.now_ms(),
            created_by=request.identity.user_id,
        )
        made = await repository.subscriptions.create(subscription_id, record, after=body.after)
        await repository.guards.confirm()
        self._state.eventing.watch(repository.id)
        return msgspec.structs.replace(_subscription(made), secret=secret)

    @in_repository(events.GET_EVENT_SUBSCRIPTION)
    async def get(self, request: RestRequest, repository: Repository) -> EventSubscription:
        return _subscription(await repository.subscriptions.get(request.args[1]))

    @in_repository(events.DELETE_EVENT_SUBSCRIPTION)
    async def delete(self, request: RestRequest, repository: Repository) -> None:
        await repository.subscriptions.delete(request.args[1])

    @in_repository(events.REPLAY_EVENTS)
    async def replay(self, request: RestRequest, repository: Repository, body: Replay) -> EventSubscription:
        replayed = await repository.subscriptions.replay(request.args[1], body.after)
        self._state.eventing.watch(repository.id)
        return _subscription(replayed)


class _Seen:
    """Decide which events a caller may see: those of refs that it may read, and of pull requests that it may list."""

    def __init__(self, repository: str, permissions: Permissions) -> None:
        self._repository = repository
        self._permissions = permissions
        self._by_ref: dict[tuple[EventKind, str], bool] = {}

    def may_see(self, event: EventRecord) -> bool:
        ref = event.about if event.kind is EventKind.PULL else event.name if event.kind.is_ref else ""
        found = self._by_ref.get((event.kind, ref))
        if found is None:
            try:
                _require(event.kind, ref, self._repository, self._permissions)
                found = True
            except NotPermitted:
                found = False
            self._by_ref[event.kind, ref] = found
        return found

    def check(self, wanted: NewSubscription) -> None:
        """Check that the caller may see all events of a subscription, which goes on without it.

        Raises:
            NotPermitted: it may not. A pattern needs the right to read every ref, and no statement that denies some.
        """
        lasting = self._permissions.lasting()
        is_plain = bool(wanted.refs) and not any(set(ref) & _WILDCARDS for ref in wanted.refs)
        for kind in wanted.kinds or tuple(EventKind):
            if is_plain:
                for ref in wanted.refs:
                    _require(kind, ref, self._repository, lasting)
            else:
                for permission in _NEEDS.get(kind, ()):
                    # In doubt about the ref: an allow that holds for some refs alone, or for all but some, is none.
                    resource = permission.resources(lambda name: self._repository if name == "repository" else "*")[0]
                    lasting.require(permission.action, resource, UNKNOWN_REF if permission.at else NO_REF)
                    refuse_denied_below((permission,), lasting, {"repository": self._repository})


def _require(kind: EventKind, ref: str, repository: str, permissions: Permissions) -> None:
    require(_NEEDS.get(kind, ()), permissions, {"repository": repository, "branch": ref, "tag": ref})


def _check_operations(operations: Sequence[str]) -> None:
    """Refuse an operation that no event has: nothing would ever come."""
    known = frozenset().union(*EVENT_OPERATIONS.values())
    for operation in operations:
        if operation not in known:
            raise Invalid(f"no event has the operation {operation!a}: there are {', '.join(sorted(known))}")


def _check_target(target: str) -> None:
    try:
        parts = urlsplit(target)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not target.isascii() or not target.isprintable() or " " in target:
        raise Invalid("a target is an http or https URL, nats:SUBJECT or kafka:TOPIC")
    if "@" in parts.netloc:
        raise Invalid("a target has no user and password: the signature proves who sends")


def _without_secrets(target: str) -> str:
    """Return the target without its query, in which receivers have their tokens."""
    address, mark, _ = target.partition("?")
    return f"{address}?***" if mark else address.partition("#")[0]


def _subscription(one: Subscription) -> EventSubscription:
    return EventSubscription(
        id=one.id,
        target=_without_secrets(one.record.target),
        refs=[*one.record.refs],
        operations=[*one.record.operations],
        kinds=[*one.record.kinds],
        created_ms=one.record.created_ms,
        created_by=one.record.created_by,
        position=one.cursor.position,
        behind=one.behind,
        missed=one.missed,
        failures=one.cursor.failures,
        error=one.cursor.error,
        delivered_ms=one.cursor.delivered_ms,
    )
