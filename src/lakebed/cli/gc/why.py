"""`lakebed gc why` and `lakebed lifecycle why`: explain why an object stays and until when, or which run took it.

The server looks, a page at a time. Both show one answer: the first by retention, the second by the lifecycle policy.
`lakebed gc storage` sums up the bytes of the repository by the reason they stay.
"""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from msgspec.structs import replace

from lakebed import gc
from lakebed.base import LakebedError, NotFound, count_of, human_size
from lakebed.cli.kit.arguments import RepositoryArgument, UidOption
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import fields, human_time, printable, prose, table
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.progress import Line
from lakebed.cli.kit.session import Session, connect
from lakebed.cli.kit.uris import SCHEME, parse_object, parse_repository

from .options import collectors, gc_rules, messages
from .session import ONLY, service_of

if TYPE_CHECKING:
    from lakebed.wire import DeletedRef

SHOWN: Final = 10
FEW: Final = 3
"""Paths of an object, and branches of a path, that `lifecycle why` shows without --all."""
_STAGES: Final = {
    "commits": ("commits", "tree", "trees"),
    "staging": ("staged changes", "branch", "branches"),
    "deferred": ("deferred runs", "part", "parts"),
    "ledger": ("the ledger", "file", "files"),
    "elsewhere": ("other repositories", "file", "files"),
}

_ALL: Final = " (--all)"

WhyArgument = Annotated[
    str, Argument(metavar="PATH|REPOSITORY", help="lakefs://repository/ref/path, or a repository and an address")
]
AddressArgument = Annotated[
    str, Argument(metavar="ADDRESS", help="data/…, or a full URI; both spellings are one object.")
]


def why(session: Session, uri: WhyArgument, address: AddressArgument = "") -> None:
    """Explain why an object stays and until when; or which run took it, when and by which rule."""
    _ask(session, uri, address, why_text)


def lifecycle_why(
    session: Session,
    uri: WhyArgument,
    address: AddressArgument = "",
    every: Annotated[
        bool, Option("--all", help="Show more than the three paths and branches that keep it longest.")
    ] = False,
) -> None:
    """Explain when an object is due by the policy: its paths with rule, branches and date, and reasons to stay."""
    _ask(session, uri, address, partial(lifecycle_text, every=every))


def deleted_why(session: Session, uri: WhyArgument, address: AddressArgument = "", uid: UidOption = "") -> None:
    """Explain from when the collection takes an object of a deleted repository, or why it stays, or when it went."""
    _ask(session, uri, address, why_text, deleted=uid or ONLY)


def _ask(session: Session, uri: str, address: str, text: Callable[..., Iterator[str]], *, deleted: str = "") -> None:
    if address:
        repository, asked = parse_repository(uri), {"address": address}
    elif "/" not in uri.removeprefix("lakefs://"):
        raise Misuse(f"{uri}: add a path, or an address as a second argument")
    else:
        target = parse_object(uri)
        repository, asked = target.repository, {"ref": target.ref, "path": target.path}
    line = Line(visible=session.shows_progress)
    with contextlib.closing(connect(session.settings)) as client, contextlib.ExitStack() as ending:
        ending.callback(line.erase)
        answer = gc.finish(
            service_of(client, repository, deleted=deleted).why(
                messages.Question(**asked), lambda progress: line.update(lambda: progress_text(progress))
            )
        )
    if session.is_json or answer.objects:
        session.show(
            answer if session.is_json else _with_dates(session, repository, answer),
            partial(text, repository=repository),
        )
    if not answer.objects:
        raise NotFound(f"{printable(address or uri)}: no commit and no ledger names it")


def _with_dates(session: Session, repository: str, answer: messages.WhyAnswer) -> messages.WhyAnswer:
    """Name deleted branches and tags as people know them, and say until when they can come back.

    Transactions that ended and give the same reason are one line: a lake may have thousands.
    """
    deleted: dict[str, DeletedRef | None] = {}

    def deleted_ref(name: str) -> DeletedRef | None:
        if (plain := gc_rules.plain_name(name)) not in deleted:
            deleted[plain] = _find_deleted(session, repository, plain)
        return deleted[plain]

    def named(name: str) -> str:
        plain = gc_rules.plain_name(name)
        return name if plain == name else f"{plain} ({_dates(deleted_ref(name))})"

    def is_ended(stay: gc_rules.Stay) -> bool:
        return (
            gc_rules.plain_name(stay.name) != stay.name and (ref := deleted_ref(stay.name)) is not None and ref.hidden
        )

    def shown(found: messages.WhyObject) -> messages.WhyObject:
        stays = _together((replace(stay, name=named(stay.name)), is_ended(stay)) for stay in found.stays)
        return replace(
            found,
            stays=tuple(sorted(stays, key=_first)),
            due_names=tuple(
                replace(due, branch=named(due.branch), branches=tuple(map(named, due.branches)))
                for due in found.due_names
            ),
        )

    return replace(answer, objects=tuple(map(shown, answer.objects)))


def _together(stays: Iterable[tuple[gc_rules.Stay, bool]]) -> list[gc_rules.Stay]:
    """Put all transactions that ended into one reason, that of the one that is kept longest, for each kind."""
    ended: dict[str, list[gc_rules.Stay]] = {}
    others: list[gc_rules.Stay] = []
    for stay, is_ended in stays:
        (ended.setdefault(stay.kind.value, []) if is_ended else others).append(stay)
    for kind in ended.values():
        longest = max(kind, key=lambda stay: (stay.until_ms is None, stay.until_ms or 0))
        more = f" and {count_of(len(kind) - 1, 'other')} like it" if len(kind) > 1 else ""
        others.append(replace(longest, name=longest.name + more))
    return others


def _first(stay: gc_rules.Stay) -> tuple[bool, bool]:
    """Order reasons to stay: those without an end first; branches that are hidden or deleted last."""
    has_end = stay.kind.value not in _ENDLESS and stay.until_ms is not None
    return " (" in stay.name, has_end


_ENDLESS: Final = frozenset({"head", "keep_last", "tag"})


def _find_deleted(session: Session, repository: str, name: str) -> DeletedRef | None:
    with contextlib.suppress(LakebedError):  # Dates are an extra: any error only leaves them out.
        client = session.client
        for listed in (partial(client.branches.list_deleted, show_hidden=True), client.tags.list_deleted):
            for one in listed(repository, prefix=name, limit=1):
                if one.id == name:
                    return one
    return None


def _dates(one: DeletedRef | None) -> str:
    if one is None:
        return "deleted, and kept for some days"
    ended, until = human_time(one.deletion_date), human_time(one.kept_until)
    if one.hidden:
        return f"a transaction that ended {ended}, kept until {until}"
    return f"deleted {ended}, can come back until {until}"


def progress_text(progress: messages.WhyProgress) -> str:
    where, one, many = _STAGES[progress.stage]
    done = f"{progress.done:,} of " if progress.of else ""
    count = count_of(progress.of or progress.done, one, many)
    return f"looking through {where}: {done}{count}"


def why_text(answer: messages.WhyAnswer, *, repository: str) -> Iterator[str]:
    yield from _objects_text(answer, partial(_object_text, repository=repository), shown=len(answer.objects))


def lifecycle_text(answer: messages.WhyAnswer, *, repository: str, every: bool = False) -> Iterator[str]:
    if answer.policy_version is None:
        yield "no lifecycle policy is set, so nothing goes by one"
        yield ""
    yield from _objects_text(
        answer, partial(_due_text, repository=repository, every=every), shown=len(answer.objects) if every else FEW
    )


def _objects_text(
    answer: messages.WhyAnswer, text: Callable[[messages.WhyObject, messages.WhyAnswer], Iterator[str]], *, shown: int
) -> Iterator[str]:
    if answer.path and not answer.at_ref:
        yield from prose(f"{printable(answer.path)} is not at {printable(answer.ref)} now; it was:")
        yield ""
    for place, found in enumerate(answer.objects[:shown]):
        if place:
            yield ""
        yield from text(found, answer)
    if answer.objects_count > shown:
        more = count_of(answer.objects_count - shown, "object")
        yield f"… and {more} more{_ALL if shown < len(answer.objects) else ''}"


def _object_text(found: messages.WhyObject, answer: messages.WhyAnswer, *, repository: str) -> Iterator[str]:
    facts = [("object", printable(found.address)), ("why", _verdict(found, answer)), *_way_back(found, repository)]
    if found.size_bytes is not None and found.modified_ms is not None:
        facts.append(("size", f"{human_size(found.size_bytes)}, written {human_time(found.modified_ms // 1000)}"))
    facts += _uncommitted(found)
    if answer.policy_version is not None and found.due_names and found.fate.value != "taken":
        facts.append(("policy", f"{_due(found, answer)}; `lakebed lifecycle why` has more"))
    # Entries still name an object that an erasure or a lifecycle run took, but do not keep it.
    keeper = "kept by" if found.size_bytes is not None else "named by"
    facts += [
        (keeper if stay.keeps_at(answer.now_ms) else "let go by", _stay(stay, answer)) for stay in found.stays[:SHOWN]
    ]
    if found.stays_count > SHOWN:
        facts.append(("", f"… and {found.stays_count - SHOWN:,} more"))
    facts += [("named by", f"repository {name}") for name in found.elsewhere]
    facts += [("held by", f"legal hold {printable(name)}") for name in found.holds]
    facts += [("run", _deed(row)) for row in found.taken[:SHOWN]]
    if found.slice_closed is False and found.size_bytes is not None:
        facts.append(("slice", "not closed: no run looks at it before uploads into it have ended"))
    yield from fields(facts)
    yield from _commits_text(found)


def _commits_text(found: messages.WhyObject) -> Iterator[str]:
    if not found.commits:
        return
    yield ""
    rows = [
        (name.commit[:16], human_time(name.created_ms // 1000), printable(name.path), name.run)
        for name in found.commits[:SHOWN]
    ]
    yield from table(("commit", "made", "path", "expired by"), rows)
    if found.commits_count > len(rows):
        yield f"… and {count_of(found.commits_count - len(rows), 'commit')} more"


def _uncommitted(found: messages.WhyObject) -> list[tuple[str, str]]:
    facts = []
    for name in found.uncommitted[:SHOWN]:
        where = f" at {printable(name.path)}" if name.path else ""
        facts.append((name.source, f"branch {name.branch}{where}, since {human_time(name.since_ms // 1000)}"))
    return facts


def _way_back(found: messages.WhyObject, repository: str) -> list[tuple[str, str]]:
    """Give the commands that restore an object, and undo its run, while the run defers its end."""
    restore = f"lakebed gc restore {SCHEME}{repository}"
    if found.fate.value != "deferred":
        return [("undo", f"{restore} {stay.name} --undo") for stay in found.stays if stay.kind.value == "undo"]
    return [
        ("restore", f"{restore} {shlex.quote(found.address)} --run {found.run}"),
        ("undo", f"{restore} {found.run} --undo (gives back all that the run took)"),
    ]


def _due_text(found: messages.WhyObject, answer: messages.WhyAnswer, *, repository: str, every: bool) -> Iterator[str]:
    facts = [("object", printable(found.address)), ("why", _due(found, answer))]
    facts += _uncommitted(found)
    facts += [("held by", f"legal hold {printable(name)}") for name in found.holds]
    facts += [("run", _deed(row)) for row in found.taken[:SHOWN]]
    if found.fate.value == "deferred":
        facts += [("run", _verdict(found, answer)), *_way_back(found, repository)]
    if found.slice_closed is False and found.size_bytes is not None:
        facts.append(("slice", "not closed: no run looks at it before uploads into it have ended"))
    yield from fields(facts)
    if found.due_names:
        yield ""
        rows = [
            (
                printable(name.path),
                human_time(name.modified_ms // 1000),
                name.rule,
                _due_of_name(name),
                _branches(name, every=every),
                f"{name.commit[:12]}{f' and {name.commits_count - 1:,} more' if name.commits_count > 1 else ''}",
            )
            for name in found.due_names[: None if every else FEW]
        ]
        counts = Counter(rows)
        yield from table(
            ("path", "written", "rule", "due", "on branches", "in commit", ""),
            [(*row, f"{count:,} equal rows" if count > 1 else "") for row, count in counts.items()],
        )
        if found.due_names_count > len(rows):
            yield f"… and {found.due_names_count - len(rows):,} more{_ALL if len(rows) < len(found.due_names) else ''}"
    else:
        # Without a policy nothing has a date, and the commits that name it are all there is to say.
        yield from _commits_text(found)


def _due(found: messages.WhyObject, answer: messages.WhyAnswer) -> str:
    """Say when it goes by the lifecycle policy."""
    if found.fate.value == "taken":
        return _taker(found)
    if answer.policy_version is None:
        return "no lifecycle run takes it: no policy is set"
    if found.fate.value in _OTHERS:
        return f"no lifecycle run takes it: it {_OTHERS[found.fate.value]}"
    if not found.due_names:
        return "no lifecycle run takes it: no commit names it"
    if found.due_ms is None:
        return f"never due: {_KEEPS[found.due_names[0].keeps.value].format(found.due_names[0].branch or 'no branch')}"
    date = human_time(found.due_ms // 1000)
    when = "due since" if found.due_ms <= answer.now_ms else "due from"
    if found.holds or found.uncommitted:
        return f"{when} {date}, and stays while what is named below keeps it"
    return f"{when} {date}, if nothing changes; the next lifecycle run then takes it"


_OTHERS: Final = {"own": "is Lakebed's own", "outside": "lies outside of this repository's namespace"}
_KEEPS: Final = {
    "no_rule": "no rule covers one of its paths",
    "pin": "a pin keeps it",
    "versions": "it is one of the newest versions of its path",
    "branch": "{} keeps it for ever",
}


def _due_of_name(name: messages.DueName) -> str:
    if name.due_ms is None:
        return f"never: {_KEEPS[name.keeps.value].format(name.branch or 'no branch')}"
    by = f", by {name.branch}" if name.branch else ""
    return f"{human_time(name.due_ms // 1000)}{by}"


def _branches(name: messages.DueName, *, every: bool) -> str:
    branches = name.branches[: None if every else FEW]
    shown = ", ".join(branch or "(none)" for branch in branches)
    more = name.branches_count - len(branches)
    return f"{shown}{f' and {more:,} more' if more else ''}"


def _verdict(found: messages.WhyObject, answer: messages.WhyAnswer) -> str:
    date = "" if found.goes_ms is None else human_time(found.goes_ms // 1000)
    if found.holds and found.size_bytes is not None:
        return "stays until its legal hold is released"
    match found.fate.value:
        case "deleted" if found.goes_ms is not None and found.goes_ms > answer.now_ms:
            return f"goes with the collection of its deleted repository, which can be brought back until {date}"
        case "deleted":
            return "goes with the collection of its deleted repository (`lakebed gc deleted plan`)"
        case "unrecorded":
            return "stays: no record says that the deleted repository wrote it"
        case "own" if answer.deleted_uid:
            return "is Lakebed's own: the collection of its deleted repository takes files of trees and of runs"
        case "kept" if found.elsewhere:
            return "stays while another repository names it"
        case "kept" if found.uncommitted:
            return "stays for as long as it is staged, being uploaded or copied"
        case "kept" if not answer.has_rules:
            return "stays: no retention rules are set, so nothing that was committed goes"
        case "kept":
            return f"stays until {date}, if nothing changes" if date else _holder(found)
        case "expired":
            return "goes with the next run of committed data: only commits that expired name it"
        case "deferred":
            return f"run {found.run} deletes it after {date}; until then it can be restored"
        case "unreferenced":
            return "goes with the next run of uncommitted data: nothing names it"
        case "young":
            return f"nothing names it; it stays for its age {f'until {date}' if date else 'for ever'}"
        case "taken":
            return _taker(found)
        case "missing":
            return "is named, and is not in the object store: no known run took it"
        case "outside":
            return "lies outside of this repository's namespace: no run takes it"
        case "own" if found.commits:
            return "is Lakebed's own, and stays while commits name it whose data was not taken"
        case "own":
            return "is Lakebed's own, and no commit names it: only a run of metadata may take it"
        case _:
            return "is not in the object store, and nothing names it"


def _taker(found: messages.WhyObject) -> str:
    """Name an erasure: it is no run of a collection, and no policy explains it."""
    row = found.taker
    return f"an erasure took it, run {row.run_id}" if row is not None and row.is_erasure else "a run took it"


def _holder(found: messages.WhyObject) -> str:
    """Name a reason to stay that has no end."""
    for stay in found.stays:
        what = {
            "head": f"it is in the head of branch {stay.name}",
            "keep_last": f"it is in one of the commits of branch {stay.name} that rule {stay.rule} keeps",
            "tag": f"tag {stay.name} names a commit that has it",
            "undo": f"run {stay.name} took the commits that have it, and may be undone",
        }.get(stay.kind.value)
        if what is not None:
            return f"stays: {what}"
    return "stays while what keeps it is there"


def _stay(stay: gc_rules.Stay, answer: messages.WhyAnswer) -> str:
    # `_with_dates` says of a deleted one until when. No ref has a space in its name.
    lasts = "" if " (" in stay.name else ", while it is there"
    what = {
        "head": f"the head of branch {stay.name}{lasts}",
        "keep_last": f"branch {stay.name}, by rule {stay.rule}",
        "tag": f"tag {stay.name}{lasts}",
        "intent": f"{stay.name}, which is about to name its commit",
        "undo": f"run {stay.name}, which can be undone until its purge begins",
    }.get(stay.kind.value)
    if what is not None:
        return f"{what} (commit {stay.commit[:12]})"
    who = f"branch {stay.name}" if stay.name else "a commit on no branch"
    if not answer.has_rules or stay.counted_ms is None:
        return f"{who} (commit {stay.commit[:12]})"
    since = f"{human_time(stay.counted_ms // 1000)} (commit {stay.counted_by[:12]})"
    if not stay.keeps_at(answer.now_ms):
        return f"{who}, by rule {stay.rule} from {since}"
    until = "for ever" if stay.until_ms is None else f"until {human_time(stay.until_ms // 1000)}"
    return f"{who} {until}, by rule {stay.rule} from {since}"


def _deed(row: messages.LedgerRow) -> str:
    rule = f", by rule {row.rule}" if row.rule else ""
    path = f", at {printable(row.path)}" if row.path else ""
    failed = f": {printable(row.error)}" if row.error else ""
    done = f"{row.state.value} {human_time(row.deleted_ms // 1000)}"
    return f"{row.run_id}: {done}, {row.reason}{rule}{path}{failed}"


_KEEPERS: Final = {
    "head": "head of the default branch",
    "waiting": "waits for an apply",
    "deferred": "restorable",
    "branches": "heads of other branches, at most",
    "tags": "tags, at most",
    "history": "other commits, at most",
}


def storage(
    session: Session,
    uri: RepositoryArgument,
    committed: Annotated[
        bool, Option("--committed", help="Count also what other branches, tags and the history keep. Takes longer.")
    ] = False,
) -> None:
    """Show why bytes stay, by records of runs and lists of ranges. Lists no object."""
    query = {"committed": "true"} if committed else None
    found = session.client.do(collectors.GET_GC_STORAGE, parse_repository(uri), query=query)
    session.show(found, lambda found: "\n".join(_storage_lines(found)))
    if found.listed is None and not session.is_json:
        session.note("no run has listed the objects: `lakebed gc plan --uncommitted` counts them, and deletes nothing")


def _storage_lines(found: messages.Storage) -> Iterator[str]:
    counted = [(_kept_by(part), part.total, part.as_of_ms) for part in found.parts]
    if found.listed is not None and found.rest is not None:
        rest = f"the rest: {rest_of(found)}"
        counted += [(rest, found.rest, found.listed_ms), ("all", found.listed, found.listed_ms)]
    rows = [
        (words, f"{total.objects:,}", human_size(total.size_bytes), human_time(counted_ms // 1000))
        for words, total, counted_ms in counted
    ]
    yield from table(("kept by", "objects", "size", "counted"), rows)


def rest_of(found: messages.Storage) -> str:
    """Name the reasons that the parts leave out."""
    if not any(part.keeper.value == "history" for part in found.parts) and not found.uncounted:
        return "history, other branches, tags, holds, uncommitted, unknown"
    return ", ".join([*(keeper.value for keeper in found.uncounted), "uncommitted", "unknown"])


def _kept_by(part: messages.StoragePart) -> str:
    words = _KEEPERS[part.keeper.value]
    if part.until_ms is not None:
        return f"{words} until {human_time(part.until_ms // 1000)} ({part.run_id})"
    return f"{words} ({part.run_id})" if part.run_id else words
