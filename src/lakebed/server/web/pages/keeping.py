"""Retention rules, legal holds, and the reasons why an object is kept."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.auth import NotPermitted
from lakebed.base import Bar, Basis, Dot, RunKind, bars, curve, size_ticks, spans
from lakebed.gc.messages import (
    Fate,
    NewHold,
    PlanRequest,
    RulesTrial,
    StartJob,
    TriedDay,
    WhyObject,
    WhyPage,
)
from lakebed.gc.rules import BranchRule, KeepLast, Rules, Stay, StayKind, parse_duration, plain_name
from lakebed.operations.gc import collectors, holds
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import MALFORMED, SEARCHED_FILES, Visit, page_at

from .collections import ref_label

ROOT: Final = "/repositories/{repository}"
KIND: Final = next(kind for kind in RunKind if kind.spec.basis is Basis.RULES)
EMPTY_ROWS: Final = 2
_FIRST: Final = Rules(default="30d")
"""The initial values of the form when no rule is in force."""
ROWS_DRAWN: Final = 45
"""Draw at most this many rows of time lines on a page: each takes 0.6 KB."""
ROWS_MIN: Final = 5
ADDRESSED_CHARS: Final = 4_000
"""Longer rules are not put into an address."""
UNCONFIRMED: Final = "Nothing is saved yet: look at what these rules would do, and confirm below."
SEALED_S: Final = 600
"""For this long a person may look at a trial before its rules are saved."""


@page_at(ROOT + "/rules")
async def show_rules(visit: Visit, name: str) -> Response:
    return await _rules_page(visit, name)


@show_rules.form("/try")
async def try_rules(visit: Visit, name: str) -> Response:
    """Show which commits the rules of the form would expire. The rules remain in the form, and are not saved."""
    rules = _rules_of(visit)
    trial = await _try(visit, rules)
    if trial.continuation_token is None:
        return await _rules_page(visit, name, trial)
    return visit.go_to(visit.url("repositories", name, "rules", "try", **_address_of(visit, rules, trial)))


@page_at(ROOT + "/rules/try")
async def show_trial(visit: Visit, name: str) -> Response:
    """Try the rules that the address has. Until the trial is complete, the browser asks again."""
    text, token = visit.query("rules"), visit.query("continuation_token")
    if not text:
        return visit.go("repositories", name, "rules")
    rules = _decoded(text)
    trial = await _try(visit, rules, token)
    if trial.continuation_token is not None:
        visit.ask_again("repositories", name, "rules", "try", **_address_of(visit, rules, trial))
        return visit.render("trying", name=name, progress=trial.progress)
    if visit.query("saving"):
        visit.problem = UNCONFIRMED
    return await _rules_page(visit, name, trial, rules)


async def _try(visit: Visit, rules: Rules, token: str = "") -> RulesTrial:
    """Try for some milliseconds. An address has no room for long rules: these are tried in one request."""
    files = SEARCHED_FILES if len(_text_of(rules)) <= ADDRESSED_CHARS else 0
    return await visit.call(
        collectors.TRY_GC_RULES, visit.args[0], body=rules, files=files, continuation_token=token or None
    )


def _address_of(visit: Visit, rules: Rules, trial: RulesTrial, saving: str = "") -> dict[str, str | None]:
    """Return the query of the address where the trial goes on."""
    return {
        "by": visit.query("by", "fields"),
        "saving": visit.query("saving", saving) or None,
        "rules": _text_of(rules),
        "continuation_token": trial.continuation_token,
    }


async def _rules_page(visit: Visit, name: str, trial: RulesTrial | None = None, tried: Rules | None = None) -> Response:
    """Render the rules in force, a form with those that were entered or `tried`, and their trial."""
    version = await visit.call(collectors.GET_FULL_GC_RULES, name, version=visit.query("version"))
    history = await visit.look(collectors.LIST_GC_RULES_HISTORY, name, amount=20)
    branch = visit.query("branch")
    meaning = None
    if version.rules is not None:
        meaning = await visit.look(collectors.EXPLAIN_GC_RULES, name, branch=branch)
    shown = tried or _entered_rules(visit) or version.rules or _FIRST
    text = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
    return visit.render(
        "rules",
        name=name,
        version=version,
        history=history,
        branch=branch,
        meaning=meaning,
        shown=shown,
        rows=[*((rule.pattern, rule.period) for rule in shown.branches), *[("", "")] * EMPTY_ROWS],
        keep_rows=[*((rule.pattern, rule.commits) for rule in shown.keep_last), ("", "")],
        text=visit.entry("rules") or text,
        trial=trial,
        tried=None if trial is None else _tried(trial, is_change=version.rules != shown),
        sealed="" if trial is None or tried is None else _seal(visit, tried, _confirmed_by(trial, name)),
        confirmed_by=_confirmed_by(trial, name) if trial is not None else name if visit.problem else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial of retention rules, drawn: each day with its bar, and the bytes over the days (empty: not counted).

    `before`: the bytes by the rules in force.
    """

    days: list[tuple[TriedDay, Bar]]
    line: list[Dot]
    before: list[Dot]
    ticks: list[int]


def _tried(trial: RulesTrial, *, is_change: bool) -> Tried:
    rows = [TriedDay(days=0, expired=trial.expired, at_most=trial.at_most), *trial.days]
    sizes = _sizes(rows)
    earlier = _sizes(trial.in_force if is_change else ())
    ticks = size_ticks(max([*sizes, *earlier], default=0))
    days = [day.days for day in rows]
    return Tried(
        days=list(zip(rows, bars(sizes or [day.expired for day in rows]), strict=True)),
        line=curve(days, sizes, highest=ticks[-1]) if sizes else [],
        before=curve(days, earlier, highest=ticks[-1]) if earlier else [],
        ticks=ticks,
    )


def _sizes(days: Sequence[TriedDay]) -> list[int]:
    """Return the bytes of each day, or nothing if one was not counted."""
    sizes = [day.at_most.size_bytes for day in days if day.at_most is not None]
    return sizes if len(sizes) == len(days) else []


@show_rules.form()
async def save_rules(visit: Visit, name: str) -> Response:
    """Save the rules of either form, if the saved version did not change.

    First they are tried. The user confirms by the number of objects that become due, which the page then shows. A trial
    of several pages is not repeated for that: the form has its number, sealed.
    """
    rules = _rules_of(visit)
    if not _is_sealed(visit, rules):
        try:
            trial = await _try(visit, rules)
        except NotPermitted:  # One may write rules and not try them.
            visit.check_typed(name)
        else:
            if trial.continuation_token is not None:
                where = _address_of(visit, rules, trial, saving="1")
                return visit.go_to(visit.url("repositories", name, "rules", "try", **where))
            if visit.entry("typed").strip() != _confirmed_by(trial, name):
                visit.status, visit.problem = 400, UNCONFIRMED
                return await _rules_page(visit, name, trial)
    written = await visit.call(
        collectors.SET_FULL_GC_RULES, name, body=rules, if_version=visit.entry("if_version") or "0"
    )
    late = f" Too late for the runs {', '.join(written.counts_after)}." if written.counts_after else ""
    return visit.go("repositories", name, "rules", notice=f"Version {written.version} is in force.{late}")


def _confirmed_by(trial: RulesTrial, name: str) -> str:
    """Return what confirms the rules: the objects that become due, or the repository's name if there are none."""
    count = trial.expired if trial.at_most is None else trial.at_most.objects
    return str(count) if count else name


def _seal(visit: Visit, rules: Rules, number: str) -> str:
    """Return what proves to `_is_sealed` that this browser was shown the number of a trial of these rules, now."""
    return _sealed_at(visit, rules, number, visit.now())


def _is_sealed(visit: Visit, rules: Rules) -> bool:
    """Return whether the user typed the number that a trial of just these rules had some minutes ago."""
    sealed = visit.entry("sealed")
    at_s = sealed.partition(".")[0]
    if not (at_s.isascii() and at_s.isdigit() and len(at_s) < 12 and 0 <= visit.now() - int(at_s) <= SEALED_S):
        return False
    expected = _sealed_at(visit, rules, visit.entry("typed").strip(), int(at_s))
    return hmac.compare_digest(sealed.encode(errors="surrogatepass"), expected.encode())


def _sealed_at(visit: Visit, rules: Rules, number: str, at_s: int) -> str:
    facts = msgspec.json.encode((visit.args, visit.visitor, rules, number, at_s))
    return f"{at_s}.{hmac.digest(visit.state.login_key, b'tried ' + facts, 'sha256').hex()}"


@show_rules.form("/plan")
async def plan_rules(visit: Visit, name: str) -> Response:
    """Start a job that plans by the rules of the form, which stay unsaved. It counts exactly, and deletes nothing."""
    request = PlanRequest(kinds=(KIND,), rules=_rules_of(visit))
    job = await visit.call(collectors.START_GC_JOB, name, body=StartJob(request=request))
    notice = f"Job {job.id} plans by rules that are not saved. It deletes nothing."
    return visit.go("repositories", name, "collections", notice=notice)


def _rules_of(visit: Visit) -> Rules:
    """Read the rules of either form: its fields, or JSON."""
    if visit.query("by") == "fields":
        return _rules_of_fields(visit)
    return _decoded(visit.entry("rules"))


def _decoded(text: str) -> Rules:
    try:
        return msgspec.json.decode(text.encode(), type=Rules)
    except MALFORMED as error:
        raise Answer(400, f"These are no rules: {error}") from error


def _text_of(rules: Rules) -> str:
    return msgspec.json.encode(rules).decode()


def _rules_of_fields(visit: Visit) -> Rules:
    """Read one rule for each row of the form. Skip rows without a pattern."""
    return Rules(
        default=visit.entry("default").strip(),
        branches=tuple(
            BranchRule(pattern=pattern, period=period) for pattern, period in _rows(visit, "pattern", "period")
        ),
        keep_last=tuple(
            KeepLast(pattern=pattern, commits=_number(commits, f"the last commits of {pattern}"))
            for pattern, commits in _rows(visit, "keep_pattern", "keep_commits")
        ),
        tags_pin=visit.entry("tags_pin") == "1",
        uncommitted_min_age=visit.entry("min_age").strip() or None,
    )


def _rows(visit: Visit, first: str, second: str) -> Sequence[tuple[str, str]]:
    names = [text.strip() for text in visit.entered.get(first, ())]
    values = [text.strip() for text in visit.entered.get(second, ())]
    pairs = zip_longest(names, values, fillvalue="")
    return [(name, value) for name, value in pairs if name]


def _number(text: str, label: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Answer(400, f"Write a number for {label}, not {text or 'nothing'}.")
    return int(text)


def _entered_rules(visit: Visit) -> Rules | None:
    """Return the entered rules to show them again, or None if they are invalid."""
    if not visit.entered:
        return None
    try:
        return _rules_of(visit)
    except Answer:
        return None


@page_at(ROOT + "/holds")
async def show_holds(visit: Visit, name: str) -> Response:
    found = await visit.call(holds.GET_LEGAL_HOLDS, name)
    history = await visit.look(holds.LIST_LEGAL_HOLD_HISTORY, name, amount=20)
    return visit.render("holds", name=name, holds=found.holds, history=history)


@show_holds.form()
async def add_hold(visit: Visit, name: str) -> Response:
    hold = NewHold(
        name=visit.entry("name").strip(),
        globs=_lines(visit.entry("globs")),
        commits=_lines(visit.entry("commits")),
        tags=_lines(visit.entry("tags")),
        why=visit.entry("why").strip(),
    )
    await visit.call(holds.ADD_LEGAL_HOLD, name, body=hold)
    return visit.go("repositories", name, "holds", notice=f"{hold.name} is held.")


@show_holds.form("/release")
async def release_hold(visit: Visit, name: str) -> Response:
    hold = visit.query("hold")
    visit.check_typed(hold)
    await visit.call(holds.RELEASE_LEGAL_HOLD, name, hold, why=visit.entry("why"))
    return visit.go("repositories", name, "holds", notice=f"{hold} is released.")


@page_at(ROOT + "/why")
async def why(visit: Visit, name: str) -> Response:
    """Search for some milliseconds. Until the search is complete, the browser asks again."""
    asked = {part: visit.query(part) for part in ("address", "ref", "path")}
    page: WhyPage | None = None
    if asked["address"] or asked["path"]:
        token = visit.query("continuation_token")
        page = await visit.call(
            collectors.WHY_GC_OBJECT,
            name,
            address=asked["address"],
            ref=asked["ref"],
            path=asked["path"],
            continuation_token=token,
            files=SEARCHED_FILES,
        )
        if page.answer is None:
            visit.ask_again("repositories", name, "why", **asked, continuation_token=page.continuation_token)
    lines: list[TimeLine] = []
    if page is not None and (answer := page.answer) is not None:
        most = max(ROWS_MIN, ROWS_DRAWN // (len(answer.objects) or 1))
        lines = [time_line(each, answer.now_ms, most) for each in answer.objects]
    return visit.render("why", name=name, asked=asked, page=page, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A row of the time line: a name of the object, from when to when (None: with no end), and what would end it.

    `what`: the kind of name. `stretch` is its place in time; a moment has no length.
    """

    what: str
    name: str
    commit: str = ""
    path: str = ""
    run: str = ""
    rule: str = ""
    start_ms: int
    end_ms: int | None = None
    is_over: bool = False
    release: str = ""
    stretch: Bar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """The names of an object, and the ends of the drawn time. `now`: its place between them. `more`: rows left out."""

    rows: list[Named]
    more: int
    start_ms: int
    end_ms: int
    now: float


def time_line(found: WhyObject, now_ms: int, most: int) -> TimeLine:
    """Return up to `most` names of an object as stretches of time: first its keepers, then runs and commits."""
    made = {each.commit: each.created_ms for each in found.commits}
    first_ms = min([*made.values(), found.modified_ms or now_ms, now_ms])
    rows = [_named(stay, made.get(stay.commit, first_ms), now_ms) for stay in found.stays]
    rows += [
        Named(
            what=each.source,
            name=each.branch,
            path=each.path,
            start_ms=each.since_ms,
            release="commit or discard the change" if each.path else "it ends by itself",
        )
        for each in found.uncommitted
    ]
    rows += [Named(what="legal hold", name=each, start_ms=first_ms, release="release the hold") for each in found.holds]
    if found.fate is Fate.TAKEN and found.taker is not None:
        rows = [_ended(row, found.taker.deleted_ms) for row in rows]
    rows += [
        Named(
            what=row.state,
            name=" ".join(dict.fromkeys(filter(None, (row.reason, row.rule)))),
            run=row.run_id,
            start_ms=row.deleted_ms,
            end_ms=row.deleted_ms,
            is_over=True,
        )
        for row in found.taken
    ]
    rows += [
        Named(
            what="commit",
            name="",
            commit=one.commit,
            path=one.path,
            run=one.run,
            start_ms=one.created_ms,
            end_ms=one.created_ms,
        )
        for one in found.commits
    ]
    count = found.stays_count + found.uncommitted_count + len(found.holds) + len(found.taken) + found.commits_count
    rows = rows[:most]
    times = [now_ms, first_ms, *(row.start_ms for row in rows), *(row.end_ms or 0 for row in rows)]
    start, last = min(filter(None, times)), max(times)
    end = last + max((last - start) // 12, 60_000)
    drawn = spans([(row.start_ms, row.end_ms) for row in rows], start=start, end=end)
    [now] = spans([(now_ms, now_ms)], start=start, end=end)
    return TimeLine(
        rows=[replace(row, stretch=stretch) for row, stretch in zip(rows, drawn, strict=True)],
        more=max(0, count - len(rows)),
        start_ms=start,
        end_ms=end,
        now=now.start,
    )


def _ended(row: Named, taken_ms: int) -> Named:
    """Return a name of an object that a run took: it keeps nothing any more."""
    end_ms = taken_ms if row.end_ms is None else min(row.end_ms, taken_ms)
    return replace(row, end_ms=max(row.start_ms, end_ms), is_over=True, release="")


def _named(stay: Stay, made_ms: int, now_ms: int) -> Named:
    is_over, end_ms = not stay.keeps_at(now_ms), stay.until_ms
    if is_over and stay.counted_ms is not None:
        # The answer has its own time for a period that is over.
        end_ms = parse_duration(stay.period).over_ms(stay.counted_ms, stay.counted_ms)
    release = _RELEASES[stay.kind] if plain_name(stay.name) == stay.name else "the time to undelete it ends"
    return Named(
        what="undo of run" if stay.kind is StayKind.UNDO else stay.kind.value.replace("_", " "),
        name=ref_label(stay.name),
        commit=stay.commit,
        rule=stay.rule,
        start_ms=made_ms if stay.counted_ms is None else min(made_ms, stay.counted_ms),
        end_ms=end_ms,
        is_over=is_over,
        release="" if is_over else release,
    )


_RELEASES: Final = {
    StayKind.HEAD: "delete or replace it there, or delete the branch",
    StayKind.BRANCH: "the end of the period",
    StayKind.DANGLING: "the end of the period",
    StayKind.KEEP_LAST: "newer commits of the branch",
    StayKind.TAG: "delete the tag",
    StayKind.INTENT: "the hold or the operation ends",
    StayKind.UNDO: "the purge of the run, and a collection after it",
}


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())
