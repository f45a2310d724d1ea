"""Write plans, runs, reports and differences for people: tables with bars of plain characters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from lakebed import gc
from lakebed.base import count_of, human_size
from lakebed.cli.kit.output import (
    fields,
    hanging,
    human_minute,
    human_time,
    printable,
    prose,
    table,
    terminal_width,
)

from .options import gc_rules, messages

TOP: Final = 10
"""Name this many branches and folders, and sum up the others."""
STANDING_SHOWN: Final = 20
REFS_SHOWN: Final = 5
NAME_MAX: Final = 40
BAR_MIN: Final = 8
BAR_MAX: Final = 40
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def amount(total: messages.Total) -> str:
    return f"{count_of(total.objects, 'object')}, {human_size(total.size_bytes)}"


def plan_texts(
    plans: Iterable[messages.Plan], *, command: Callable[[Sequence[str], messages.RunKind], str] | None = None
) -> Iterator[str]:
    """Yield each plan, and the `command` that applies it, if any; of several plans also the one that applies all."""
    ready: dict[str, list[messages.Plan]] = {}
    for place, found in enumerate(plans):
        if place:
            yield ""
        yield from plan_text(found)
        if command is None:
            continue
        if found.totals.all.objects and not found.what_if:
            yield ""
            yield from prose(f"to carry it out: {command([found.run_id], found.kind)}{_everywhere(found)}")
            ready.setdefault(gc.apply_command(found.kind), []).append(found)
        elif found.erasure is not None:
            yield ""
            stands = found.outlook is not None and found.outlook.stands_count
            said = "none of the standing objects would be deleted" if stands else "everything is gone already"
            yield from prose(f"{said}; to certify that: {command([found.run_id], found.kind)}{_everywhere(found)}")
    for same in ready.values():
        if len(same) > 1 and command is not None:
            yield ""
            yield from prose(f"to carry out all: {command([found.run_id for found in same], same[0].kind)}")


def _everywhere(plan: messages.Plan) -> str:
    """Return the option that an erasure needs so that no bytes without a path on record are left."""
    remains = plan.outlook.remains if plan.outlook is not None else ()
    return " --everywhere" if any(text.startswith(gc.GARBAGE_STAYS) for text in remains) else ""


def swept_text(plan: messages.Plan) -> str:
    """Return what is said of the commits that a plan counts as swept. Plans that take named objects count those of the
    hidden branch of tables, too."""
    others = count_of(plan.commit_counts.swept, "other")
    if plan.kind.takes_named:
        return f"{others} left out: swept by earlier runs, or the server's own notes on tables"
    return f"{others} left out: swept by earlier runs"


def plan_text(plan: messages.Plan, *, width: int | None = None, state: str = "") -> Iterator[str]:
    """Yield the plan's objects by reason, then its inputs. `width` in characters, else that of the terminal. `state` is
    the outcome of the plan."""

    commits, ranges = plan.commit_counts, plan.range_counts
    swept = f"; {swept_text(plan)}" if commits.swept else ""
    facts: list[tuple[str, str]] = [
        ("plan", f"{plan.run_id} ({plan.kind})"),
        ("made", human_time(plan.now_ms // 1000)),
        ("goes", amount(plan.totals.all)),
    ]
    if plan.erasure is None:
        stay = commits.all - commits.swept - commits.expired
        goes = f"{count_of(ranges.live, 'stays', 'stay')}, {count_of(ranges.expired, 'goes', 'go')}"
        if plan.kind.takes_named:
            goes = f"{ranges.expired:,} may have entries that are due, {ranges.live:,} cannot"
        facts += [
            ("commits", f"{count_of(stay, 'stays', 'stay')}, {count_of(commits.expired, 'expires', 'expire')}{swept}"),
            ("ranges", goes),
        ]
    else:
        facts += [
            ("erases", selection_text(plan.erasure.selection)),
            ("reason", printable(plan.erasure.why)),
            ("commits", f"{commits.all - commits.swept:,} were looked at{swept}"),
            ("ranges", f"{ranges.expired:,} may have such entries, {ranges.live:,} cannot"),
        ]
    if state:
        facts.insert(1, ("state", state))
    if plan.what_if:
        facts.insert(1, ("supposed", "by rules that are not saved"))
    if plan.mode_note:
        facts.append(("mode", f"{plan.mode.value}: {plan.mode_note}"))
    if plan.listing:
        listed = f"{count_of(plan.listing.objects, 'object')}, {human_size(plan.listing.size_bytes)}"
        facts.append(("listed", f"{listed} in {count_of(plan.listing.slices, 'slice')}"))
    if plan.open_slices:
        facts.append(("left", f"{open_text(plan.open_slices)}: left to a later run"))
    if plan.unknown_files:
        facts.append(("unknown files", f"{plan.unknown_files_count:,}, reported and never deleted"))
    yield from fields(facts)
    totals = plan.totals
    for title, sums in (
        # Of an erasure both say only that it is one.
        ("reason", totals.by_reason if plan.erasure is None else {}),
        ("rule", totals.by_rule if plan.erasure is None else {}),
        ("age", totals.in_order_of_age()),
        ("branch", plan.by_branch()),
        ("folder", totals.by_prefix),
    ):
        if any(sums):
            yield ""
            yield from bars(title, sums, width=width)
        if title == "branch" and sum(row.objects for row in sums.values()) > totals.all.objects:
            yield "an object that several branches name counts in the row of each"
    yield from (f"unknown file: {printable(key)}" for key in plan.unknown_files[:TOP])
    yield from broken_texts(plan.tables)
    if plan.outlook is not None:
        yield from outlook_text(plan.outlook)


def broken_texts(tables: Sequence[messages.BrokenTable]) -> Iterator[str]:
    """Yield the Iceberg tables that a run makes unreadable, with their snapshots, in red."""
    if tables:
        yield ""
    for one in tables:
        more = one.refs_count - len(one.refs[:REFS_SHOWN])
        refs = ", ".join(map(printable, one.refs[:REFS_SHOWN])) + (f" and {more:,} more" if more else "")
        line = f"table {printable(one.table)} on {refs}: {broken_parts(one)}, {count_of(one.files, 'file')}"
        yield from hanging(click.style("breaks ", fg="red"), line, indent=len("breaks "))


def broken_parts(table: messages.BrokenTable) -> str:
    """Say which snapshots of a table cannot be read without the plan's files."""
    if not table.is_known:
        return "its snapshots are not known"
    counted = f"{count_of(table.snapshots_count, 'snapshot')}" if table.snapshots else "former metadata"
    names = ", ".join(map(str, table.snapshots[:REFS_SHOWN])) + (", …" if table.snapshots_count > REFS_SHOWN else "")
    shown = f"{counted} ({names})" if names else counted
    return f"{shown}, the current one too" if table.is_current else shown


def outlook_text(found: messages.Outlook) -> Iterator[str]:
    """Yield what an erasure would leave, in red, and names that were not found or not looked at."""
    yield ""
    shown = found.stands[:STANDING_SHOWN]
    for one in shown:
        yield from standing_text(one)
    if found.stands_count > len(shown):
        yield from prose(
            f"… and {found.stands_count - len(shown):,} more stand: -o json names up to {len(found.stands):,}"
        )
    if not found.stands:
        yield "nothing that is selected would stand"
    for name in found.unmatched[:STANDING_SHOWN]:
        yield from prose(f"not found: {printable(name)}")
    if len(found.unmatched) > STANDING_SHOWN:
        yield f"… and {len(found.unmatched) - STANDING_SHOWN:,} more were not found: -o json has them"
    yield from remaining_texts(found.remains)


def remaining_texts(remains: Sequence[str]) -> Iterator[str]:
    """List traces that this erasure leaves elsewhere; then, in one line, the limits of every erasure."""
    general = frozenset(gc.REMAINS)
    for text in remains:
        if text not in general:
            yield from remaining_text(text)
    if count := sum(text in general for text in remains):
        limits = count_of(count, "limit")
        yield from remaining_text(
            f"names of paths, backups, and other traces: {limits} of every erasure. `-o json` and docs/guide/erasure.md"
            " list them"
        )


def remaining_text(text: str) -> Iterator[str]:
    """Name one trace that an erasure leaves elsewhere."""
    return hanging("remains: ", text, indent=len("remains: "), in_pipes=True)


def standing_text(one: messages.Standing) -> Iterator[str]:
    """Name one thing that still stands, and why."""
    text = f"{one.what} {printable(one.where)}: {printable(one.why)}"
    return hanging(click.style("stands ", fg="red"), text, indent=len("stands "))


_LEFT: Final = {
    "object": ("object is there", "objects are there"),
    "copy": ("place has the same bytes, or may have them", "places have the same bytes, or may have them"),
    "staged": ("entry is staged", "entries are staged"),
    "queued": ("object waits in the queue of hard delete", "objects wait in the queue of hard delete"),
    "deferred": (
        "deferred run or object of one keeps the content",
        "deferred runs or objects of them keep the content",
    ),
}
_MAY_BE_LEFT: Final = {
    "garbage": "bytes that no entry names may be left",
    "unlisted": "no slice has some folders of data/",
    "bucket": "the bucket keeps versions",
}


def left_text(stands: Iterable[messages.Standing]) -> str:
    """Return why an erasure fails: how much of what still stands, and what to do about copies."""
    found = Counter(one.what for one in stands)
    kinds = [
        _MAY_BE_LEFT.get(what) or count_of(number, *_LEFT.get(what, (what, what))) for what, number in found.items()
    ]
    advice = ". Erase the paths of the copies, too" if found["copy"] else ""
    return f"not all is gone: {', '.join(kinds)}{advice}"


def collected_text(found: messages.Collected) -> str:
    """Say which run proves that no bytes without an entry are left from before an erasure."""
    return f"run {found.run_id} deleted objects that no entry named: {amount(found.total)}"


def selection_text(selection: gc_rules.Selection) -> str:
    """Return the selection in one line: at most `TOP` of each kind of name."""
    names: list[str] = []
    for noun, found in (("", selection.paths), ("", selection.globs), ("digest ", selection.digests)):
        names += [f"{noun}{printable(name)}" for name in found[:TOP]]
        names += [f"{len(found) - TOP:,} more"] if len(found) > TOP else []
    names += [f"metadata {printable(key)}={printable(value)}" for key, value in sorted(selection.metadata.items())]
    return ", ".join(names)


def open_text(slices: int) -> str:
    held = (
        "slice of another server, or with uploads under way, is",
        "slices of other servers, or with uploads under way, are",
    )
    return f"{count_of(slices, *held)} not closed yet"


def bars(title: str, sums: Mapping[str, messages.Total], *, width: int | None = None) -> Iterator[str]:
    """Yield a table of totals, each with a bar of its bytes. A narrow terminal gets no bars, nor does the sum of the
    names that are not shown: beside it the other bars would vanish."""
    rows = [(name, total.objects, total.size_bytes) for name, total in sums.items()]
    rest = rows[TOP:]
    largest = max(size for _, _, size in rows[:TOP]) or 1
    if rest:
        counted = sum(objects for _, objects, _ in rest), sum(size for _, _, size in rest)
        rows = [*rows[:TOP], (f"({len(rest):,} more)", *counted)]
    cells = [(shortened(name), f"{objects:,}", human_size(size)) for name, objects, size in rows]
    header = (title, "objects", "size")
    used = sum(max(len(row[column]) for row in [header, *cells]) + 2 for column in range(3))
    room = min(BAR_MAX, (width or terminal_width()) - used)
    if room < BAR_MIN:
        return (yield from table(header, cells))
    drawn = [bar(size / largest, room) if place < TOP else "" for place, (_, _, size) in enumerate(rows)]
    yield from table((*header, ""), [(*cell, line) for cell, line in zip(cells, drawn, strict=True)])
    return None


def bar(share: float, width: int) -> str:
    """Return `share` of `width` characters, to an eighth where the terminal can show that."""
    if not _shows_blocks():
        return "#" * round(share * width)
    whole, part = divmod(round(share * width * 8), 8)
    return "█" * whole + (_EIGHTHS[part] if part else "")


def _shows_blocks() -> bool:
    try:
        "█▏".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def shortened(name: str) -> str:
    text = printable(name) or "(none)"
    return text if len(text) <= NAME_MAX else f"{text[: NAME_MAX - 20]}…{text[-19:]}"


def report_text(report: messages.RunReport) -> str:
    gone = _gone(report)
    if not report.objects_failed:
        return f"{report.run_id} ({report.kind}): {gone}"
    return (
        f"{report.run_id} ({report.kind}): {gone}; {count_of(report.objects_failed, 'object')} could not be deleted: "
        f"apply the run again"
    )


def _gone(report: messages.RunReport) -> str:
    if report.deferred_until_ms is not None:
        size, until = human_size(report.garbage_bytes), human_time(report.deferred_until_ms // 1000)
        return f"deferred {count_of(report.garbage_objects, 'object')}, {size}, until {until}"
    gone = f"deleted {count_of(report.objects_deleted, 'object')}, {human_size(report.bytes_deleted)}"
    if report.objects_gone:
        gone += f"; {count_of(report.objects_gone, 'object')} something else had deleted before"
    if report.objects_kept:
        gone += f"; kept {count_of(report.objects_kept, 'object')} that changed since"
    return gone


def applied_text(report: messages.RunReport) -> str:
    """Say that a run was applied before: this was no second deletion."""
    return f"{report.run_id} was {_applied(report)}"


def _applied(report: messages.RunReport) -> str:
    return f"applied {human_time(report.run_end_time_ms // 1000)}: {_gone(report)}"


def outcome(found: gc.RunStatus, report: messages.RunReport | None) -> str:
    """Return the outcome of a plan."""
    if found.state in {"planned", "supposed"}:
        return f"{state_text(found.state)}; not applied"
    if report is not None and found.state == "ended":
        return _applied(report)
    if report is not None and report.objects_failed:
        return f"{_applied(report)}; {count_of(report.objects_failed, 'object')} could not be deleted: apply again"
    return run_state_text(found)


def run_state_text(found: gc.RunStatus) -> str:
    return state_text(found.state, nothing_deleted=found.nothing_deleted, has_begun=found.is_unfinished)


def state_text(state: str, *, nothing_deleted: bool = False, has_begun: bool = False) -> str:
    """Return the word for people; records and JSON have their own (docs/guide/retention.md)."""
    if has_begun:
        return "applying"
    return "ended: nothing deleted" if nothing_deleted else _STATES.get(state, state)


_STATES: Final = {
    "planning": "planning",
    "marking": "planning",
    "marked": "planned",
    "planned": "planned",
    "supposed": "planned, rules not saved",
    "expiring": "applying",
    "sweeping": "applying",
    "ended": "applied",
}


def run_status_text(found: gc.RunStatus, command: str) -> Iterator[str]:
    """Yield how far a run has come; `command`, if there is one, goes on with it. Commits are counted while they are
    expiring: the list is emptied when a run is over.
    """
    facts: list[tuple[str, Any]] = [
        ("run", f"{found.run_id} ({found.kind})"),
        ("state", run_state_text(found)),
        ("made", human_time(found.started_ms // 1000)),
    ]
    if found.objects is not None and not found.nothing_deleted:
        size = "" if found.size_bytes is None else f", {human_size(found.size_bytes)}"
        facts.append(("goes", f"{count_of(found.objects, 'object')}{size}"))
    if found.expiring:
        facts.append(("expires", count_of(found.expiring, "commit")))
    if found.window:
        facts.append(("window", found.window))
    if found.state == "deferred" and found.until_ms is not None:
        facts.append(("until", human_time(found.until_ms // 1000)))
    if found.began_ms is not None:
        facts.append(("began", human_time(found.began_ms // 1000)))
    if found.is_unfinished and found.objects is not None and found.objects_done is not None:
        facts.append(("done", f"{found.objects_done:,} of {count_of(found.objects, 'object')}"))
    if found.ended_ms is not None:
        facts.append(("ended", human_time(found.ended_ms // 1000)))
    yield from fields(facts)
    if found.is_unfinished and command:
        yield from prose(f"if it died, apply it again: {command}")


def view_text(view: messages.RunView) -> Iterator[str]:
    return run_status_text(gc.run_status_by_record(view), "")


def missing_text(missing: messages.MissingCommits) -> Iterator[str]:
    """Yield the commits that lack files, the refs that name them, and the next step."""
    if missing.run_id:
        yield f"marked as gone, by run {missing.run_id}: {count_of(missing.marked, 'commit')}"
    if not missing.count:
        yield "no other commit lacks files of its tree" if missing.run_id else "no commit lacks files of its tree"
        return
    yield from prose(
        f"{count_of(missing.count, 'commit')} without the files of the tree, {missing.named} named by a ref"
    )
    for commit in missing.commits:
        yield f"  {commit.id}  {', '.join(commit.refs)}".rstrip()
    if missing.named:
        yield from prose("reset or delete the refs named above: their commits cannot be read, and are never marked")


def unfinished_text(run: gc.UnfinishedRun, command: str) -> str:
    began = human_time(run.began_ms // 1000)
    words = f"of {began} may have begun to delete" if run.is_by_record else f"began to delete {began}"
    return (
        f"warning: run {run.run_id} ({run.kind}) {words} and has not ended; unless it is being applied now: {command}"
    )


def runs_text(runs: Iterable[gc.ListedRun]) -> Iterable[str]:
    """Return a row for each run. It names a planner whose plan an apply by this user makes again first."""
    rows: Sequence[tuple[str, ...]] = [
        (
            run.run_id,
            human_minute(run.started_ms // 1000),
            run.kind,
            state_text(run.state, nothing_deleted=run.nothing_deleted, has_begun=run.has_begun),
            "-" if run.objects is None else f"{run.objects:,}",
            "-" if run.size_bytes is None else human_size(run.size_bytes),
            "-" if run.is_own else run.planned_by or "-",
        )
        for run in runs
    ]
    return table(("run", "began", "kind", "state", "objects", "size", "planned by"), rows, spare="planned by")


def objects_text(objects: Iterable[messages.GarbageObject]) -> Iterator[str]:
    """Yield a row for each object: its path and its address, or its address where it is in no commit."""
    found = list(objects)
    if not found:
        yield "no object"
        return
    has_paths = any(one.path for one in found)
    rows = [
        (
            *([one.path or "-"] if has_paths else []),
            one.address,
            human_size(one.size_bytes),
            human_time(one.last_seen_ms // 1000),
            one.reason,
            one.rule or "-",
        )
        for one in found
    ]
    yield from table((*(["path"] if has_paths else []), "address", "size", "last seen", "reason", "rule"), rows)


def commits_text(commits: Iterable[messages.ExpiringCommit]) -> Iterator[str]:
    rows = [
        (
            one.id[:16],
            human_time(one.created_ms // 1000),
            one.branch or "(none)",
            one.rule,
            one.message,
        )
        for one in commits
    ]
    yield from table(("commit", "made", "branch", "rule", "message"), rows) if rows else ["no commit"]


def expiring_text(plan: messages.Plan, commits: Sequence[messages.ExpiringCommit]) -> Iterator[str]:
    """Yield the newest of the commits that expire, below a plan's sums."""
    if not commits:
        return
    yield ""
    yield "expiring commits, the newest first:"
    yield from commits_text(commits)
    if len(commits) < plan.commit_counts.expired:
        yield f"… and {count_of(plan.commit_counts.expired - len(commits), 'commit')} more: --commits"


def diff_text(found: messages.PlanDiff) -> Iterator[str]:
    """Yield sums, then sums by the columns of an object's row, then some of the objects."""
    only = (
        (f"only the first, {found.a}", found.only_a, found.commits.a),
        (f"only the second, {found.b}", found.only_b, found.commits.b),
    )
    rows = [
        (title, f"{it.all.objects:,}", human_size(it.all.size_bytes), f"{commits:,}") for title, it, commits in only
    ]
    both = found.both
    rows.append(("both", f"{both.objects:,}", human_size(both.size_bytes), f"{found.commits.both:,}"))
    yield from table(("plans", "objects", "size", "commits"), rows)
    for way in ("reason", "rule", "prefix"):
        yield from _by(way, *(_sums(it, way) for _, it, _ in only))
    changed = [(name, a, b) for name, (a, b) in found.by_branch.items() if a != b]
    if changed:
        yield ""
        lines = [(name or "(none)", amount(a), amount(b)) for name, a, b in changed[:TOP]]
        yield from table(("branch", "first", "second"), lines)
    if found.objects:
        yield ""
        shown = [
            (
                "first" if it.side.value == "a" else "second",
                it.address,
                human_size(it.size_bytes),
                it.rule or it.reason,
                human_time(it.last_seen_ms // 1000),
                it.path,
            )
            for it in found.objects
        ]
        yield from table(("only", "object", "size", "rule", "last seen", "path"), shown)


def _sums(side: messages.OnlyIn, way: str) -> dict[str, tuple[int, int]]:
    sums = {"reason": side.by_reason, "rule": side.by_rule, "prefix": side.by_prefix}[way]
    return {name: (total.objects, total.size_bytes) for name, total in sums.items()}


def _by(way: str, a: dict[str, tuple[int, int]], b: dict[str, tuple[int, int]]) -> Iterator[str]:
    names = [*dict.fromkeys([*a, *b])][:TOP]
    if not any(names):
        return
    yield ""
    lines = []
    for name in names:
        left, right = (side.get(name, (0, 0)) for side in (a, b))
        sizes = (f"{left[0]:,}", human_size(left[1]), f"{right[0]:,}", human_size(right[1]))
        lines.append((shortened(name), *sizes))
    title = "folder" if way == "prefix" else way
    yield from table((title, "only first", "size", "only second", "size"), lines)
