"""Worlds of events: who moves, makes and deletes refs, beside gatherers, deliverers, subscribers and cleaners.

A step check writes down each move of a ref as it takes place, for the checkers alone. In the end the outbox must have
the same moves of each ref, in the same order, and the receiver all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from msgspec.structs import replace as replace_fields

from explorer.actors import Actor, Ending, Violation
from explorer.disk import Disk
from explorer.operations import Operation
from lakebed.base import Conflict, EventKind, NotFound, RunId, RunKind, RunState
from lakebed.catalog import DeliveryFailed, PositionedEvent, PullRecord, Pulls, SubscriptionRecord, Subscriptions
from lakebed.catalog.subscriptions import BUSY_MS
from lakebed.gc.live import ServiceOptions
from lakebed.gc.live.records.runs import RunBook
from lakebed.kv import scan_prefix
from lakebed.versions import (
    BranchRecord,
    Change,
    EventRecord,
    FeedRecord,
    Look,
    Record,
    RefState,
    RunRecord,
    TagRecord,
    Versions,
    decode_record,
    encode_record,
    keys,
)
from lakebed.versions.commits.marks import mark_key
from lakebed.versions.commits.outbox import EVENT
from lakebed.versions.refs.reflog import Reflog
from sim.checkers.views import PARTITION, UID
from sim.ports.ports import SimPorts, set_ahead
from sim.ports.scene import Quick, Scene

from . import deeds as do
from .doing import MAIN, SIDE, Do, doing, versions
from .scenes import client, scene

_MOVED: Final = b"sim/moved"
"""Ref → its moves since the actors came, as `before>after`, one a line. Step checks write it, and no actor reads it."""
_WRITTEN: Final = b"sim/written"
"""Position → its event, which readers can come to, or could before it was removed."""
_RECEIVED: Final = b"sim/received"
"""Position → nothing. The receiver's own notes."""
_EVENTS: Final = keys.events_partition(UID)
HOOK: Final = "hook"
_PREFIXES: Final = {
    EventKind.BRANCH: keys.BRANCH,
    EventKind.TAG: keys.TAG,
    EventKind.PULL: keys.PULL,
    EventKind.RUN: keys.RUN,
}
_AGE_MS: Final = 8 * 86_400_000
"""Older than the age of events that are kept."""


def moves_are_noted(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Write down the move of a ref: a record that became active, that has another move, or that is gone."""
    if partition == PARTITION and key.startswith((keys.PULL, keys.RUN)) and new is not None:
        known = 0 if old is None else len(decode_record(_Held, old).changes)
        changes = decode_record(_Held, new).changes[known:]
        lines = "".join(f">{change.operation}/{change.by}\n" for change in changes).encode()
        disk.set(_MOVED, key, (disk.value(_MOVED, key) or b"") + lines)
    if partition != PARTITION or not key.startswith((keys.BRANCH, keys.TAG)):
        return
    before, after = _ref(key, old), _ref(key, new)
    was = before if before is not None and before.state is RefState.ACTIVE else None
    now = after if after is not None and after.state is RefState.ACTIVE else None
    if was is now or (was is not None and now is not None and was.moved == now.moved):
        return
    line = f"{was.commit_id if was else ''}>{now.commit_id if now else ''}\n".encode()
    disk.set(_MOVED, key, (disk.value(_MOVED, key) or b"") + line)


def receives_in_order(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Check that the receiver gets what was written, and no event before those ahead of it that are kept."""
    if partition == _RECEIVED and old is None and new is not None:
        received = disk.cells.get(_RECEIVED, {})
        if missing := sorted(name for name in _kept(disk) if name < key and name not in received):
            raise Violation(f"event {key!r} is delivered before {missing}")
        if disk.value(_WRITTEN, key) is None:
            raise Violation(f"{key!r} is delivered, and no event was written there")


def _ref(key: bytes, value: bytes | None) -> BranchRecord | TagRecord | None:
    if value is None:
        return None
    return decode_record(BranchRecord, value) if key.startswith(keys.BRANCH) else decode_record(TagRecord, value)


def events_are_noted(disk: Disk, partition: bytes, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Write down each event that readers can come to: none before the oldest position that is kept.

    Raises:
        Violation: two of them have one position.
    """
    if partition == _EVENTS and key.startswith(EVENT) and old is None and new is not None and key >= _oldest(disk):
        for position, value in _events({key: new}):
            if disk.value(_WRITTEN, position) is not None:
                raise Violation(f"another event is written at {position!r}")
            disk.set(_WRITTEN, position, value)


def _kept(disk: Disk) -> dict[bytes, bytes]:
    """Return the events that readers can come to, by position."""
    oldest = _oldest(disk)
    written = disk.cells.get(_EVENTS, {}).items()
    return dict(_events({key: value for key, value in written if key.startswith(EVENT) and key >= oldest}))


def _events(written: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each position and its event, of those that were written together one by one."""
    for key, value in written.items():
        first = decode_record(EventRecord, value)
        for position, event in enumerate((replace_fields(first, more=()), *first.more), int(key[len(EVENT) :])):
            yield b"%015d" % position, encode_record(event)


def _oldest(disk: Disk) -> bytes:
    feed = disk.value(_EVENTS, b"feed")
    return EVENT + f"{decode_record(FeedRecord, feed).oldest if feed else 0:015d}".encode()


def outbox_has_all(ending: Ending) -> None:
    """Check that each move has one event, in the order of its ref, and none came of anything else."""
    _check_outbox(ending.disk, is_suffix=False)


def outbox_has_later(ending: Ending) -> None:
    """The same where the subscriber comes meanwhile: moves of before need no event.

    Those of operations that began after it was acknowledged do.
    """
    _check_outbox(ending.disk, is_suffix=True)
    written = {line for lines in _written(ending.disk).values() for line in lines}
    for one in ending.acknowledged("commit"):
        if HOOK in (one.before or ()) and not any(line.endswith(f">{one.answer}") for line in written):
            raise Violation(f"{one.operation.name} began after the subscription, and has no event")


def _check_outbox(disk: Disk, *, is_suffix: bool) -> None:
    written, moved = _written(disk), disk.cells.get(_MOVED, {})
    for key in sorted({*written, *moved}):
        lines, moves = written.get(key, []), moved.get(key, b"").decode().split()
        if lines != (moves[len(moves) - len(lines) :] if is_suffix else moves):
            raise Violation(f"{key!r} moved {moves}, and its events are {lines}")


def _written(disk: Disk) -> dict[bytes, list[str]]:
    """Return the moves of each ref that have an event, removed or not, in the order of the events."""
    written: dict[bytes, list[str]] = {}
    for _, value in sorted({**disk.cells.get(_WRITTEN, {}), **_kept(disk)}.items()):
        event = decode_record(EventRecord, value)
        prefix, is_ref = _PREFIXES[event.kind], event.kind.is_ref
        line = f"{event.before}>{event.after}" if is_ref else f">{event.operation}/{event.by}"
        written.setdefault(prefix + event.name.encode(), []).append(line)
    return written


def receiver_has_all(ending: Ending) -> None:
    """Check that each event that is kept was delivered."""
    received = ending.disk.cells.get(_RECEIVED, {})
    if missing := [position for position in sorted(_kept(ending.disk)) if position not in received]:
        raise Violation(f"the events {missing} were never delivered")


def subscribe(name: str = HOOK) -> Do:
    record = SubscriptionRecord(target="sim", created_ms=0)
    return Do(Operation(name, "clean"), lambda repo: Subscriptions(repo).create(name, record))


gather = doing("clean")(lambda repo: repo.outbox.gather())
"""Write the events that are due."""
look = doing("clean")(lambda repo: repo.outbox.gather(Look.OWN))
"""Write the events of what this process wrote."""


@doing("clean")
async def deliver(repo: Versions, *, late_ms: int = 0) -> None:
    """Deliver what waits, once, by a clock that is `late_ms` ahead: it takes who is at it for dead."""
    set_ahead(repo.ports, late_ms)
    await _deliver(repo)


async def _deliver(repo: Versions, *, in_vain: bool = False) -> None:
    async def send(_: str, __: SubscriptionRecord, events: Sequence[PositionedEvent], /) -> None:
        if in_vain:
            raise DeliveryFailed("the receiver wants none")
        items = [(f"{position:015d}".encode(), b"") for position, _ in events]
        await repo.store.set_many(_RECEIVED, items)

    subscriptions = Subscriptions(repo)
    for subscription_id, record in await subscriptions.records():
        await subscriptions.deliver(subscription_id, record, send)


@doing("clean")
async def replay(repo: Versions) -> None:
    with suppress(NotFound):
        await Subscriptions(repo).replay(HOOK, 0)


@doing("clean")
async def replay_all(repo: Versions) -> None:
    """Forget what the receiver has, then replay: each event is to come once more."""
    received = [key async for key, _ in scan_prefix(repo.store, _RECEIVED, b"")]
    await repo.store.delete_many(_RECEIVED, received)
    await Subscriptions(repo).replay(HOOK, 0)


deliver_in_vain = doing("clean")(lambda repo: _deliver(repo, in_vain=True))


@doing("clean")
async def clean_events(repo: Versions) -> None:
    """Remove every event that is delivered or old, by a clock that is far ahead."""
    set_ahead(repo.ports, _AGE_MS)
    await repo.outbox.clean()


async def _tidy(ports: SimPorts) -> None:
    """Gather and deliver all that is left."""
    ports.clock.ms += 2 * BUSY_MS
    repo = versions(ports)
    await repo.outbox.gather()
    await _deliver(repo)


drop = doing("clean")(lambda repo: repo.outbox.drop_marks(least=1))
"""Drop the marks that no event will need."""


def forget_log(name: str) -> Do:
    """Remove the log of moves, by a clock that is far ahead."""
    return _much_later(Do(Operation(name, "clean"), lambda repo: Reflog(repo.context).clean()))


def _much_later(deed: Do) -> Do:
    """Do it by a clock at which no log has the moves of before."""

    async def act(repo: Versions) -> Any:
        set_ahead(repo.ports, repo.context.options.reflog_age_ms_max + _AGE_MS)
        return await deed.act(repo)

    return Do(deed.operation, act)


@doing("clean")
async def forget_changes(repo: Versions) -> None:
    """Leave the outbox as an older release does, which knew events of refs only."""
    partition = repo.outbox.partition
    held = await repo.store.get(partition, b"feed")
    assert held is not None
    feed = replace_fields(decode_record(FeedRecord, held.value), has_changes=False)
    await repo.store.set(partition, b"feed", encode_record(feed))
    await repo.store.delete(partition, mark_key(feed.generation, EventKind.PULL, "p"))


def event_scenes() -> Iterator[Scene]:
    c, g, h = client("c", do.commit("c1")), client("g", gather("g1")), client("h", gather("h1"))
    yield _scene("committer, two gatherers", c, g, h, before=_STAGED, quick=Quick.NO_FAULT)
    twice = client("c", do.commit("c1"), do.write("w8", "x", "8"), do.commit("c2"))
    yield _scene("committer of two, gatherer", twice, g, before=_STAGED)
    yield _scene("committer of two, two gatherers", twice, g, h, before=_STAGED, quick=Quick.NEVER)
    resets = client("c", do.commit("c1"), do.hard_reset("r1", MAIN), do.hard_reset("r2", MAIN))
    yield _scene("committer that resets twice, gatherer", resets, g, before=_STAGED, quick=Quick.NO_FAULT)
    x = client("c", do.create_branch("x1"), do.commit("c1"))
    yield _scene("brancher that commits, two gatherers", x, g, h, before=_STAGED, quick=Quick.NEVER)
    d = client("d", do.write("w8", "x", "8"), do.commit("d1"))
    yield _scene("two committers, gatherer", c, d, g, before=_STAGED, quick=Quick.NEVER)
    merging = client("m", do.merge("m1", SIDE)), client("c", do.commit("c1"))
    yield _scene("merger, committer, gatherer", *merging, g, before=_FORK, quick=Quick.NEVER)
    reset = client("s", do.hard_reset("s1", "main~1")), client("c", do.commit("c1"))
    yield _scene("resetter, committer, gatherer", *reset, g, before=(*_PAST, *_STAGED), quick=Quick.NEVER)
    own = client("c", look("l0"), do.commit("c1"), look("l1"), do.write("w8", "x", "8"), do.commit("c2"), look("l2"))
    yield _scene("committer that looks at its own, gatherer", own, g, before=_STAGED, quick=Quick.NO_FAULT)
    yield from _delivering()
    yield from _coming_and_going()
    yield from _beginning()
    yield from _changing()
    yield from _dropping()


_STAGED: Final = (do.write("w0", "z", "0"),)
_FORK: Final = (do.create_branch("b0"), do.write("w2", "b", "2", branch=SIDE), do.commit("p2", branch=SIDE), *_STAGED)
_LONG_GONE: Final = (do.create_branch("b0"), do.delete_branch("b1"), subscribe(), forget_log("f1"), *_STAGED)
_PAST: Final = (do.write("w1", "a", "1"), do.commit("p1"), do.write("w2", "a", "2"), do.commit("p2"))


def _delivering() -> Iterator[Scene]:
    """Deliverers of the same events, one that begins anew, and a cleaner whose clock is ahead."""
    late = client("h", gather("h1"), deliver("v2", late_ms=BUSY_MS))
    both = client("g", do.commit("c1"), gather("g1"), deliver("v1")), late
    yield _scene("committer that delivers, deliverer", *both, before=_STAGED)
    again = client("h", gather("h1"), replay("q1"), deliver("v2", late_ms=BUSY_MS))
    yield _scene("committer that delivers, replayer", both[0], again, before=_STAGED, quick=Quick.NO_FAULT)
    in_vain = client("h", replay_all("q1"), deliver_in_vain("v2"))
    yield _scene("committer that delivers, replayer that fails", both[0], in_vain, before=_STAGED, quick=Quick.NO_FAULT)
    removing = (do.commit("c1"), gather("g1"), clean_events("k1"), do.write("w8", "x", "8"), do.commit("c2"))
    removes = client("c", *removing)
    early = client("c", do.commit("c1"), clean_events("k1"))
    yield _scene("committer that removes events early, gatherer", early, client("g", gather("g2")), before=_STAGED)
    g = client("g", gather("g2"))
    yield _scene("committer that removes events, gatherer", removes, g, before=_STAGED, quick=Quick.NO_LOSS)
    late_removal = client(
        "c", do.commit("c1"), gather("g1"), do.write("w8", "x", "8"), do.commit("c2"), clean_events("k1")
    )
    reader = client("v", deliver("v1"))
    yield _scene(
        "committer that removes events, gatherer, deliverer",
        late_removal,
        g,
        reader,
        before=_STAGED,
        quick=Quick.NO_FAULT,
    )
    goes_on = client("c", *removing, do.write("w9", "x", "9"), do.commit("c3"), gather("g3"))
    yield _scene("committer of three that removes events, gatherer", goes_on, g, before=_STAGED, quick=Quick.NO_FAULT)


def _coming_and_going() -> Iterator[Scene]:
    """Refs that are made, deleted and made again."""
    g, h = client("g", gather("g1")), client("h", gather("h1"))
    again = client("x", do.delete_branch("x1"), do.create_branch("x2"))
    side = (do.create_branch("b0"),)
    yield _scene("branch made again, gatherer", again, g, before=side)
    yield _scene("branch made again, two gatherers", again, g, h, before=side, quick=Quick.NEVER)
    x = client("x", do.delete_branch("x1"))
    y = client("y", do.create_branch("y1"), do.hard_reset("y2", MAIN, branch=SIDE))
    yield _scene("deleter, maker that resets, gatherer", x, y, g, before=side, quick=Quick.NO_FAULT)
    passing, maker = client("x", do.create_branch("x1"), do.delete_branch("x2")), client("y", do.create_branch("y1"))
    yield _scene("branch that comes and goes, maker of it, gatherer", passing, maker, g, quick=Quick.NO_FAULT)
    own = client(
        "x", look("l0"), do.create_branch("x1"), do.delete_branch("x2"), look("l1"), do.create_branch("x3"), look("l2")
    )
    yield _scene("branch made again by a process that looks at its own, gatherer", own, g, quick=Quick.NO_FAULT)
    tags = client("x", do.create_tag("x1", MAIN), do.delete_tag("x2"), do.create_tag("x3", MAIN))
    yield _scene("tag made again, gatherer", tags, g)


def _beginning() -> Iterator[Scene]:
    """Subscribers that come meanwhile, one slower than another."""
    c = client("c", do.commit("c1"))
    s = client("s", subscribe(), do.write("w9", "x", "9"), do.commit("c9"))
    yield _later("committer, subscriber that commits", c, s, quick=Quick.NO_FAULT)
    slow, branches = client("t", subscribe("also")), client("x", do.create_branch("x1"), do.delete_branch("x2"))
    yield _later("branch made, two subscribers", branches, client("s", subscribe()), slow, quick=Quick.NEVER)
    then = client("s", subscribe(), do.commit("c9"))
    yield _later("slow subscriber, subscriber that commits", slow, then)


def _later(name: str, *actors: Actor, before: Sequence[Do] = _STAGED, quick: Quick = Quick.ALL) -> Scene:
    made = _scene(name, *actors, before=before, is_subscribed=False, quick=quick)
    return replace(made, tidy_checks=(outbox_has_later,))


def _changing() -> Iterator[Scene]:
    """Pull requests and runs that change, beside gatherers; and runs whose records go."""
    g, h = client("g", gather("g1")), client("h", gather("h1"))
    x = client("x", *(change_pull(f"x{number}", f"title {number}") for number in range(2)))
    yield _scene("changer of a pull request, two gatherers", x, g, h, before=(open_pull("o0"),), quick=Quick.NO_FAULT)
    y = client("y", change_pull("y1", "another title"))
    yield _scene("two changers of a pull request, gatherer", x, y, g, before=(open_pull("o0"),), quick=Quick.NO_FAULT)
    goes = client("r", move_run("r1", RunState.ABANDONED), forget_run("r2"))
    yield _scene("run that ends and goes, gatherer", goes, g, before=(start_run("s0"),))
    certified = client("c", certify_run("c1"))
    yield _scene("run that goes, certifier", goes, certified, before=(start_run("s0"),))


def _dropping() -> Iterator[Scene]:
    """Marks of refs that are long gone are dropped, beside gatherers; the branch of one of them may come again."""
    d, g = client("d", drop("d1")), client("g", gather("g1"))
    twice, e = client("d", drop("d1"), drop("d2")), client("e", drop("e1"))
    moves = client("c", do.commit("c1"), gather("g0"))
    again = client("x", _much_later(do.create_branch("x1")), do.delete_branch("x2"), gather("g0"))
    for name, actors, quick in (
        ("committer, dropper, gatherer", (client("c", do.commit("c1")), d, g), Quick.NO_FAULT),
        ("committer that gathers, dropper of two, gatherer", (moves, twice, g), Quick.NEVER),
        ("dropper of two, dropper", (twice, e), Quick.NO_FAULT),
        ("branch that is long gone comes again, dropper", (again, d), Quick.NO_FAULT),
    ):
        yield _scene(name, *actors, before=_LONG_GONE, is_subscribed=False, quick=quick)
    older = (open_pull("o0"), change_pull("y0", "a title"), subscribe(), forget_changes("f1"))
    x, h = client("x", change_pull("x1", "title")), client("h", gather("h1"))
    yield _later("outbox of before, changer, gatherer", x, g, before=older, quick=Quick.NO_FAULT)
    yield _later("outbox of before, changer, two gatherers", x, g, h, before=older, quick=Quick.NEVER)


PULL: Final = keys.PULL + b"p"
RUN: Final = RunId("run")


class _Held(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A pull request, as events show it."""

    changes: tuple[Change, ...] = ()
    title: str = ""


def open_pull(name: str) -> Do:
    pull = PullRecord(title=name, author="", source=SIDE, destination=MAIN, created_ms=0)
    return Do(Operation(name, "clean"), lambda repo: repo.context.set(PULL, pull))


def change_pull(name: str, title: str) -> Do:
    for_merges: Any = None
    return Do(Operation(name, "clean"), lambda repo: Pulls(repo, for_merges).change("p", title=title, by=name))


def _book(repo: Versions) -> RunBook:
    return RunBook(repo, ServiceOptions())


@doing("clean")
async def start_run(repo: Versions) -> None:
    record = RunRecord(kind=RunKind.UNCOMMITTED, state=RunState.MARKING, started_ms=0)
    await _book(repo).write(RUN, record, None)


@doing("clean")
async def move_run(repo: Versions, state: RunState) -> None:
    with suppress(Conflict, NotFound):
        await _book(repo).move(RUN, state)


certify_run = doing("clean")(lambda repo: _book(repo).note_certified(RUN))


@doing("clean")
async def forget_run(repo: Versions) -> None:
    """Remove the record of the run, as a collection of metadata does once its folder is empty."""
    found = await repo.retired.find_run(RUN)
    told = await repo.outbox.told()
    if found is not None and found[0].state.is_over:
        await repo.retired.forget_run(RUN, changes=None if told is None else told(RUN)[1])


def _scene(
    name: str, *actors: Actor, before: Sequence[Do] = (), is_subscribed: bool = True, quick: Quick = Quick.ALL
) -> Scene:
    made = scene(name, *actors, before=(*before, *([subscribe()] if is_subscribed else [])), quick=quick)
    made = made.also(steps=(moves_are_noted, events_are_noted, receives_in_order))
    return replace(made, tidy=_tidy, tidy_checks=(outbox_has_all, receiver_has_all))
