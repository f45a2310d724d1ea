"""Write a plan as one HTML file: its objects by age, reason, rule, branch, folder and slice; the rest; its inputs.

The file needs nothing else: no script, no font, no picture from anywhere, and its policy forbids them. Every chart is a
table whose cells hold bars, or has its numbers beside it, so that it can be read aloud; colors follow the reader's
choice of light or dark and are never the only thing that tells. Names are other people's: each goes through `text`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from lakebed import gc
from lakebed.base import WHOLE, Bar, bars, count_of, human_size, shares
from lakebed.cli.kit.output import human_time, printable

from .options import messages
from .text import broken_parts, collected_text, open_text, selection_text, state_text, swept_text

TOP: Final = 25
"""The number of names of a way that are drawn; the others are summed."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #5b646e; --paper: #fff; --line: #d9dee3; --bar: #2f6fb3;
  --stays: #3d8b5f; --back: #eef1f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --dim: #a3adb8; --paper: #15181c; --line: #343a41;
  --bar: #6ea8e0; --stays: #6fc295; --back: #23282e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); }
.supposed { border-left: .3rem solid var(--bar); padding-left: .7rem; }
.sums { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.sums li { background: var(--back); border-radius: .4rem; padding: .7rem 1rem; min-width: 9rem; }
.sums b { display: block; font-size: 1.35rem; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 1rem; font-size: .92rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th[scope=row] { font-weight: 400; max-width: 24rem; } .bars th[scope=row] { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.bar { padding: .55rem 0 0; } .bars thead td:last-child { width: 44%; }
.facts th { width: 34%; }
.bars { table-layout: fixed; } .bars .number { width: 7.5rem; }
code { overflow-wrap: anywhere; font-size: .85rem; } td code { padding-left: .6rem; display: inline-block; }
.key { display: inline-block; width: .7rem; height: .7rem; margin-right: .4rem; }
.key.goes { background: var(--bar); } .key.stays { background: var(--stays); }
svg { display: block; width: 100%; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.goes { fill: var(--bar); } .stays { fill: var(--stays); } svg .dim { fill: var(--dim); }
svg .axis { stroke: var(--line); }
@media (max-width: 40rem) { body { padding: 1rem; } .bars .number { width: 4.7rem; }
  .bars thead td:last-child { width: 14%; } }
@media print { body { max-width: none; } h2 { break-after: avoid; } }
"""

NOT_ABSENT: Final = '<td class="stands">no'


def plan_html(
    plan: messages.Plan, report: messages.RunReport | None = None, commits: Sequence[messages.ExpiringCommit] = ()
) -> str:
    """Return the whole file. `report` is that of the plan's run, if it was applied; `commits` are some that expire."""
    title = f"{plan.repository}: what run {plan.run_id} takes"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
        *_head(plan, title, report),
        "<h2>What goes</h2>",
        *_sums(plan),
        *_ages(plan),
        *_ways(plan),
        *_commits(plan, commits),
        "<h2>What stays</h2>",
        *_stays(plan),
        *_outcome(plan, report),
        "<h2>What it was made from</h2>",
        *_inputs(plan),
        *_broken_tables(plan),
        *_unknown_files(plan),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def certificate_html(made: messages.Certificate) -> str:
    """Return a certificate of an erasure as a page. Anything that stands comes first, in red."""
    title = f"{made.repository}: certificate of erasure {made.run_id}"
    absent = sum(one.is_absent for one in made.objects)
    facts = [
        ("erased", selection_text(made.selection) + (", with shared objects" if made.takes_shared else "")),
        ("reason", made.why),
        ("planned", human_time(made.planned_ms // 1000)),
        ("looked at", f"{human_time(made.made_ms // 1000)} by {made.made_by}"),
        ("absent", f"{absent:,} of {count_of(len(made.objects), 'object')}"),
        ("commits read", f"{made.commits_read:,}"),
        *([] if made.collected is None else [("garbage", collected_text(made.collected))]),
        ("plan", made.plan),
        *(("ledger", f"{key} {digest}") for key, digest in made.ledger.items()),
    ]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{text(title)}</title>\n<style>{_STYLE}\n.stands {{ color: #c0392b; }}",
        "td code { padding-left: 0; }</style>",
        "</head>\n<body>\n<main>",
        f"<h1>{text(title)}</h1>",
        f'<p class="dim">{text(made.namespace)}</p>',
        '<h2 class="stands">What still stands</h2>' if made.stands else "<h2>Nothing stands</h2>",
        *(f'<p class="stands">{text(f"{one.what} {one.where}: {one.why}")}</p>' for one in made.stands),
        *_facts(facts),
        '<h2>Objects</h2><table><thead><tr><th scope="col">path</th><th scope="col">address</th>',
        '<th scope="col">checksum</th><th scope="col">absent</th></tr></thead><tbody>',
        *(
            f"<tr><td>{text(', '.join(one.paths))}</td><td><code>{text(one.address)}</code></td>"
            f"<td><code>{text(one.checksum)}</code></td>{'<td>yes' if one.is_absent else NOT_ABSENT}</td></tr>"
            for one in made.objects
        ),
        "</tbody></table>",
        "<h2>What remains elsewhere, or was not looked at</h2><ul>",
        *(f"<li>{text(remains)}</li>" for remains in made.remains),
        "</ul>\n</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def text(name: str) -> str:
    """Escape other people's words: markup, and characters that reorder or hide text."""
    return html.escape(printable(name).encode(errors="replace").decode())


def _head(plan: messages.Plan, title: str, report: messages.RunReport | None) -> Iterator[str]:
    yield f"<h1>{text(title)}</h1>"
    kind = f"{plan.kind.data}, planned {human_time(plan.now_ms // 1000)}"
    yield f'<p class="dim">{text(kind)} · {text(plan.namespace)}</p>'
    if report is not None:
        applied = human_time(report.run_end_time_ms // 1000)
        yield f'<p class="dim">This plan was applied {text(applied)}: see <b>What came of it</b>.</p>'
    elif plan.what_if:
        yield (
            '<p class="supposed">Supposed: made by rules that were not saved. It shows what they would take, and '
            "can be applied only if they are the rules by then.</p>"
        )
    else:
        yield f'<p class="dim">A plan deletes nothing. <code>{gc.apply_command(plan.kind)}</code> carries it out.</p>'


def _sums(plan: messages.Plan) -> Iterator[str]:
    total = plan.totals.all
    facts = [(f"{total.objects:,}", "object" if total.objects == 1 else "objects")]
    facts.append((human_size(total.size_bytes), "to give back"))
    if plan.expired is not None:
        expired = plan.commit_counts.expired
        facts.append((f"{expired:,}", "commit expires" if expired == 1 else "commits expire"))
    yield '<ul class="sums">'
    yield from (f"<li><b>{text(value)}</b>{text(name)}</li>" for value, name in facts)
    yield "</ul>"


def _ages(plan: messages.Plan) -> Iterator[str]:
    """Draw columns of bytes by age; the table below them has the numbers."""
    if not plan.totals.by_age:
        return
    sums = [(name, plan.totals.by_age.get(name, messages.Total())) for name, _ in messages.AGES]
    columns = bars([total.size_bytes for _, total in sums])
    width, height, base = 640, 220, 180
    step = width / len(sums)
    yield f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="ages-title" style="max-width: 40rem">'
    yield '<title id="ages-title">Bytes that go, by how long ago they were last seen</title>'
    yield f'<line class="axis" x1="0" y1="{base}" x2="{width}" y2="{base}"/>'
    for place, ((name, total), column) in enumerate(zip(sums, columns, strict=True)):
        tall = round((base - 30) * column.length / WHOLE, 1)
        left, middle = place * step + step * 0.15, place * step + step / 2
        box = f'x="{left:.1f}" y="{base - tall:.1f}" width="{step * 0.7:.1f}" height="{tall}"'
        size = human_size(total.size_bytes) if total.objects else ""
        yield f'<rect class="goes" {box} rx="3"/>'
        yield f'<text x="{middle:.1f}" y="{base - tall - 8:.1f}" text-anchor="middle">{text(size)}</text>'
        yield f'<text class="dim" x="{middle:.1f}" y="{base + 20}" text-anchor="middle">{text(name)}</text>'
    yield "</svg>"


def _ways(plan: messages.Plan) -> Iterator[str]:
    totals = plan.totals
    for caption, title, sums in (
        ("By age: when it was last written, or a commit last had it", "age", totals.in_order_of_age()),
        ("By reason", "reason", totals.by_reason),
        ("By rule", "rule", totals.by_rule),
        ("By branch", "branch", totals.by_branch),
        ("By folder", "folder", totals.by_prefix),
        ("By slice of the namespace", "slice", totals.by_slice),
    ):
        if any(sums):
            yield from _bars(caption, title, sums)


def _bars(caption: str, title: str, sums: Mapping[str, messages.Total]) -> Iterator[str]:
    rows = [(name or "(none)", total.objects, total.size_bytes) for name, total in sums.items()]
    shown, rest = rows[:TOP], rows[TOP:]
    yield f'<table class="bars"><caption>{text(caption)}</caption><thead><tr>'
    yield f'<th scope="col">{text(title)}</th><th scope="col" class="number">objects</th>'
    yield '<th scope="col" class="number">size</th><td></td></tr></thead><tbody>'
    for (name, objects, size), bar in zip(shown, bars([size for _, _, size in shown]), strict=True):
        drawn = _drawn([("goes", bar)])
        yield (
            f'<tr><th scope="row">{text(name)}</th><td class="number">{objects:,}</td>'
            f'<td class="number">{text(human_size(size))}</td><td class="bar">{drawn}</td></tr>'
        )
    if rest:
        # Without a bar: beside the sum of all others the other bars would vanish.
        objects, size = sum(objects for _, objects, _ in rest), sum(size for _, _, size in rest)
        yield (
            f'<tr><th scope="row">({text(count_of(len(rest), "other"))})</th><td class="number">{objects:,}</td>'
            f'<td class="number">{text(human_size(size))}</td><td></td></tr>'
        )
    yield "</tbody></table>"


def _commits(plan: messages.Plan, commits: Sequence[messages.ExpiringCommit]) -> Iterator[str]:
    if not commits:
        return
    yield "<table><caption>Commits whose data goes, the newest first</caption><thead><tr>"
    yield from (f'<th scope="col">{name}</th>' for name in ("commit", "made", "author", "branch", "rule", "message"))
    yield "</tr></thead><tbody>"
    for one in commits:
        cells = (human_time(one.created_ms // 1000), one.author, one.branch or "(none)", one.rule, one.message)
        shown = "".join(f"<td>{text(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row"><code>{text(one.id[:16])}</code></th>{shown}</tr>'
    yield "</tbody></table>"
    more = plan.commit_counts.expired - len(commits)
    if more > 0:
        yield f'<p class="dim">… and {text(count_of(more, "commit"))} more: <code>lakebed gc show --commits</code></p>'


def _drawn(parts: Sequence[tuple[str, Bar]]) -> str:
    """Draw stretches of a line. Their numbers stand beside them, so they are not read aloud."""
    drawn = "".join(
        f'<rect class="{kind}" x="{bar.start:.2f}" width="{bar.length:.2f}" height="10"/>' for kind, bar in parts
    )
    return f'<svg viewBox="0 0 100 10" height="12" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def _number(count: int) -> str:
    return f"{count:,}"


def _stays(plan: messages.Plan) -> Iterator[str]:
    counts = plan.commit_counts
    rows: list[tuple[str, int, int, Callable[[int], str]]] = [("commits", counts.kept, counts.expired, _number)]
    if not plan.kind.takes_named:  # These kinds delete no ranges: they count ranges to read.
        rows.append(("ranges", plan.range_counts.live, plan.range_counts.expired, _number))
    if plan.listing is not None:
        listed, goes = plan.listing, plan.totals.all
        rows.append(("objects listed", listed.objects - goes.objects, goes.objects, _number))
        rows.append(("bytes listed", listed.size_bytes - goes.size_bytes, goes.size_bytes, human_size))
    yield '<table class="bars"><thead><tr><td></td>'
    for kind, name in (("stays", "stay"), ("goes", "go")):
        yield f'<th scope="col" class="number"><span class="key {kind}"></span>{name}</th>'
    yield "<td></td></tr></thead><tbody>"
    for name, stay, go, shown in rows:
        drawn = _drawn(list(zip(("stays", "goes"), shares([stay, go]), strict=True)))
        yield (
            f'<tr><th scope="row">{text(name)}</th><td class="number">{text(shown(stay))}</td>'
            f'<td class="number">{text(shown(go))}</td><td class="bar">{drawn}</td></tr>'
        )
    yield "</tbody></table>"
    if counts.swept:
        yield f"<p>Commits: {text(swept_text(plan))}.</p>"


def _outcome(plan: messages.Plan, report: messages.RunReport | None) -> Iterator[str]:
    if report is None:
        return
    facts = [
        ("state", state_text(report.state.value)),
        ("ended", human_time(report.run_end_time_ms // 1000)),
        ("deleted", f"{count_of(report.objects_deleted, 'object')}, {human_size(report.bytes_deleted)}"),
        ("failed", f"{report.objects_failed:,}"),
        ("let off when it was applied", f"{plan.totals.all.objects - report.garbage_objects:,}"),
    ]
    if report.deferred_until_ms is not None:
        amount = f"{count_of(report.garbage_objects, 'object')}, {human_size(report.garbage_bytes)}"
        facts.insert(2, ("deferred", f"{amount}, until {human_time(report.deferred_until_ms // 1000)}"))
    if report.objects_gone:
        facts.append(("gone before, by another run or hard delete", f"{report.objects_gone:,}"))
    if report.objects_kept:
        facts.append(("kept, for they changed since", f"{report.objects_kept:,}"))
    yield "<h2>What came of it</h2>"
    yield from _facts(facts)


def _inputs(plan: messages.Plan) -> Iterator[str]:
    facts = [("closed slices", f"{plan.closed_slices:,}")]
    if plan.open_slices:
        facts.append(("left to a later run", open_text(plan.open_slices)))
    if plan.listing is not None:
        listed = f"{count_of(plan.listing.objects, 'object')}, {human_size(plan.listing.size_bytes)}"
        facts.append(("listed", f"{listed} in {count_of(plan.listing.slices, 'slice')}"))
        facts.append(("looked at", f"{plan.mode.value}: {plan.mode_note}" if plan.mode_note else plan.mode.value))
    if plan.rules is not None:
        facts.append(("rules", _rules(plan)))
    yield from _facts(facts)
    named = {
        "commits": plan.commits,
        "refs": plan.refs,
        "uncommitted": plan.uncommitted,
        "expired": plan.expired,
        "leftovers": plan.leftovers,
        "garbage": plan.garbage,
    }
    yield '<table><caption>Files, each known by its digest</caption><thead><tr><th scope="col">input</th>'
    yield '<th scope="col" class="number">rows</th><th scope="col" class="number">parts</th>'
    yield '<th scope="col">folder, digest of the manifest</th></tr></thead><tbody>'
    yield from (_manifest(name, found) for name, found in named.items() if found is not None)
    yield "</tbody></table>"


def _manifest(name: str, found: messages.Manifest) -> str:
    return (
        f'<tr><th scope="row">{text(name)}</th><td class="number">{found.rows:,}</td><td class="number">'
        f"{len(found.parts):,}</td><td><code>{text(found.folder)}<br>{found.digest()}</code></td></tr>"
    )


def _rules(plan: messages.Plan) -> str:
    assert plan.rules is not None, "the caller asked"
    version = "not saved" if plan.what_if else f"version {plan.rules_version}"
    periods = [f"{rule.pattern} {rule.period}" for rule in plan.rules.branches]
    pins = [f"the last {count_of(pin.commits, 'commit')} of {pin.pattern} stay" for pin in plan.rules.keep_last]
    tags = "tags keep their commits" if plan.rules.tags_pin else "tags keep nothing"
    default = f"{'all others' if periods else 'all branches'} {plan.rules.default}"
    return f"{version}: {'; '.join([*periods, default, *pins, tags])}"


def _facts(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield '<table class="facts"><tbody>'
    yield from (f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in facts)
    yield "</tbody></table>"


def _broken_tables(plan: messages.Plan) -> Iterator[str]:
    if not plan.tables:
        return
    yield "<h2>Tables that cannot be read without these files</h2><ul>"
    for one in plan.tables:
        more = f" and {one.refs_count - len(one.refs):,} more" if one.refs_count > len(one.refs) else ""
        counted = count_of(one.files, "file")
        refs = text(", ".join(one.refs))
        yield f"<li><code>{text(one.table)}</code> on {refs}{more}: {broken_parts(one)}, {counted}</li>"
    yield "</ul>"


def _unknown_files(plan: messages.Plan) -> Iterator[str]:
    if not plan.unknown_files:
        return
    counted = count_of(plan.unknown_files_count, "file or folder", "files or folders")
    yield f"<h2>Unknown files</h2><p>{text(counted)} that Lakebed did not write. They are never deleted.</p>"
    yield "<ul>"
    yield from (f"<li><code>{text(key)}</code></li>" for key in plan.unknown_files[:TOP])
    yield "</ul>"
