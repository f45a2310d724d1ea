"""`lakebed events`: moves of refs, changes of pull requests and runs, and receivers that get them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final

from lakebed.base import EventKind
from lakebed.cli.kit.arguments import LimitOption, RepositoryArgument, YesOption
from lakebed.cli.kit.output import human_minute, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository
from lakebed.wire import Event, EventSubscription, NewSubscription

app = noun("See what happens to branches, tags, pull requests and runs, and have receivers get it.")

SubscriptionArgument = Annotated[str, Argument(metavar="SUBSCRIPTION", help="The id of a subscription.")]
RefsOption = Annotated[
    list[str] | None, Option("--ref", help="Only branches and tags of this pattern. May be repeated.")
]
OperationsOption = Annotated[
    list[str] | None, Option("--operation", help="Only this operation, as commit or merge. May be repeated.")
]
KindsOption = Annotated[list[EventKind] | None, Option("--kind", help="Only this kind of event.")]
FOLLOW_S: Final = 1.0

_COLUMNS: Final[dict[str, Callable[[Event], object]]] = {
    "pos": lambda event: event.position,
    "when": lambda event: human_minute(event.at_ms // 1000),
    "what": lambda event: event.operation,
    "name": lambda event: event.name if event.kind == EventKind.BRANCH else f"{event.kind} {event.name}",
    "about": lambda event: " ".join(filter(None, (event.about, event.after[:12]))) or "-",
    "by": lambda event: event.by,
}


@app.command("list")
def list_events(
    session: Session,
    uri: RepositoryArgument,
    after: Annotated[int, Option("--after", help="Leave out events up to this position.")] = 0,
    limit: LimitOption = None,
    refs: RefsOption = None,
    operations: OperationsOption = None,
    kinds: KindsOption = None,
) -> None:
    """List events that are kept, the oldest first. There are none before the first subscription."""
    found = session.client.events.list(
        parse_repository(uri), after=after, limit=limit, refs=refs or (), operations=operations or (), kinds=kinds or ()
    )
    session.show_table(found, _COLUMNS, otherwise="no event")


@app.command("follow")
def follow(
    session: Session,
    uri: RepositoryArgument,
    after: Annotated[int | None, Option("--after", help="Begin behind this position, not with the next event.")] = None,
    refs: RefsOption = None,
    operations: OperationsOption = None,
    kinds: KindsOption = None,
) -> None:
    """Print events as they come, until interrupted."""
    repository = parse_repository(uri)
    position = session.client.events.page(repository, amount=1).last if after is None else after
    if session.shows_progress:
        before = "" if position else " There are none before the first subscription: `lakebed events subscribe`"
        session.note(f"waiting for events behind position {position}, until Ctrl-C.{before}")
    while True:
        last = session.client.events.page(repository, amount=1).last
        events = list(
            session.client.events.list(
                repository, after=position, refs=refs or (), operations=operations or (), kinds=kinds or ()
            )
        )
        if events:
            session.show_table(iter(events), _COLUMNS)
        # Also past events that were left out.
        position = max([last, position, *(event.position for event in events)])
        time.sleep(FOLLOW_S)


@app.command("subscriptions")
def subscriptions(session: Session, uri: RepositoryArgument) -> None:
    """List subscriptions, how many events wait for each, and the last error.

    After "up to", its filter may leave out some of them, or all.
    """
    columns: dict[str, Callable[[EventSubscription], object]] = {
        "subscription": lambda one: one.id,
        "target": lambda one: one.target,
        "position": lambda one: one.position,
        "waiting": lambda one: one.waiting,
        "failures": lambda one: one.failures,
        "error": lambda one: one.error,
    }
    found = session.client.events.subscriptions(parse_repository(uri))
    session.show_table(iter(found), columns, otherwise="no subscription")


@app.command("subscribe")
def subscribe(
    session: Session,
    uri: RepositoryArgument,
    target: Annotated[str, Argument(metavar="URL", help="An http or https URL, nats:SUBJECT or kafka:TOPIC.")],
    refs: RefsOption = None,
    operations: OperationsOption = None,
    kinds: KindsOption = None,
    after: Annotated[int | None, Option("--after", help="Begin behind this position, not with the next event.")] = None,
) -> None:
    """Have events sent to a webhook. The secret of its signatures is printed once."""
    wanted = NewSubscription(
        target=target, refs=refs or [], operations=operations or [], kinds=kinds or [], after=after
    )
    made = session.client.events.subscribe(parse_repository(uri), wanted)
    session.show_fields(made, [("Subscription", made.id), ("Target", made.target), ("Secret", str(made.secret))])


@app.command("unsubscribe")
def unsubscribe(
    session: Session, uri: RepositoryArgument, subscription: SubscriptionArgument, yes: YesOption = False
) -> None:
    """End a subscription. Events that wait for it are not delivered."""
    repository = parse_repository(uri)
    found = session.client.events.get(repository, subscription)
    question = f"End {subscription}? Events that wait for {printable(found.target)}: {found.waiting}"
    session.confirm(question, yes=yes)
    session.client.events.unsubscribe(repository, subscription)
    session.done(f"ended {subscription}", found)


@app.command("replay")
def replay(
    session: Session,
    uri: RepositoryArgument,
    subscription: SubscriptionArgument,
    after: Annotated[int, Option("--after", help="Deliver the events behind this position again.")],
) -> None:
    """Deliver events again, from a position on."""
    replayed = session.client.events.replay(parse_repository(uri), subscription, after)
    session.done(f"{subscription}: events to deliver: {replayed.waiting}", replayed)
