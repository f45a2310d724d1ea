"""How what differs between two plans is told: what only the one takes, only the other, and both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakebed.base import human_size
from lakebed.cli.output import human_time, printable, table

from .text import TOP, amount, shortened

if TYPE_CHECKING:
    from lakebed.gc.protocol import OnlyIn, PlanDiff


def diff_text(found: PlanDiff) -> Iterator[str]:
    """Sums first, then by what an object's row says, then some of the objects."""
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
        lines = [(printable(name) or "(none)", amount(a), amount(b)) for name, a, b in changed[:TOP]]
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
                printable(it.path),
            )
            for it in found.objects
        ]
        yield from table(("only", "object", "size", "rule", "last seen", "path"), shown)


def _sums(side: OnlyIn, way: str) -> dict[str, tuple[int, int]]:
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
