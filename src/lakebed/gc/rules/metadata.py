"""Decide which of Lakebed's own files to delete: files of trees that no commit names, folders of old runs, old dumps.

Every commit record keeps its tree, published or not, except swept commits and those that can never be published. A
run's folder holds its inputs, its plan and its report, but not the ledger. A dump of refs or a folder of symlinks is
written on request. A group is all dumps, or the symlinks of one folder of a branch that exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakebed.base import MetarangeId

from .committed import Trees
from .history import History
from .rules import DAY_MS

__all__ = ["MetadataRule", "RunFacts", "WrittenFacts", "named_files", "old_runs", "old_written", "unnamed_files"]

LIVE_STATES = frozenset({"planning", "marking", "expiring", "sweeping"})
"""A process may work on a run in one of these states. A `marked` run of uncommitted data is a plan until its deletes
begin. A run without a record may be a plan, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRule:
    """Keep files for `file_age_ms_min` after their write. Keep the `runs_newest` newest runs of each kind, and every
    run and every dump for `run_age_ms_min` after its last file.
    """

    file_age_ms_min: int = DAY_MS
    runs_newest: int = 10
    run_age_ms_min: int = 30 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Describe a run. `state` is that of its record, empty without a record. `touched_ms` is the instant of the last
    file in its folder, or of its beginning. `has_begun`: its deletes have begun. Ids of runs sort by time.
    """

    id: str
    kind: str
    state: str
    touched_ms: int
    has_begun: bool = False
    has_saved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFacts:
    """Describe the files of one request. Ids sort by time. `is_wanted`, for symlinks: their branch exists."""

    group: str
    id: str
    touched_ms: int
    is_whole: bool
    is_wanted: bool = True


def named_files(history: History, trees: Trees) -> set[str]:
    """Return the ids of every metarange, sublist and range that a commit names, without swept commits."""
    metaranges = {commit.metarange_id for commit in history.commits.values() if not commit.swept} - {MetarangeId("")}
    sublists = {id_ for metarange in metaranges for id_ in trees.sublists.get(metarange, ())}
    return {*metaranges, *sublists, *trees.ranges_of(metaranges)}


def unnamed_files(
    written_ms: Mapping[str, int], named: Collection[str], *, rule: MetadataRule, now_ms: int
) -> frozenset[str]:
    """Return the listed files to delete. `written_ms` has the instant of each, by id."""
    # A young file may belong to a commit in flight. Keeping it only saves the writer a second write under another name.
    # Safety rests on docs/design/protocols.md, "A collection of metadata".
    since_ms = now_ms - rule.file_age_ms_min
    return frozenset(id_ for id_, ms in written_ms.items() if ms < since_ms and id_ not in named)


def old_runs(runs: Iterable[RunFacts], *, rule: MetadataRule, now_ms: int) -> frozenset[str]:
    """Return the ids of the runs whose folders are deleted."""
    by_kind: dict[str, list[RunFacts]] = {}
    for run in sorted(runs, key=lambda run: run.id, reverse=True):
        by_kind.setdefault(run.kind, []).append(run)
    since_ms = now_ms - rule.run_age_ms_min
    found: set[str] = set()
    for of_kind in by_kind.values():
        # The saved state for the next run may be older than many runs that saved nothing.
        # So keep the last states apart from the newest runs.
        saved = [run.id for run in of_kind if run.has_saved][: max(1, rule.runs_newest)]
        for run in of_kind[rule.runs_newest :]:
            # A run that is `marked` after its deletes began did not finish its apply: some objects failed.
            is_at_work = run.state in LIVE_STATES or (run.state == "marked" and run.has_begun)
            if run.touched_ms < since_ms and not is_at_work and run.id not in saved:
                found.add(run.id)
    return frozenset(found)


def old_written(written: Iterable[WrittenFacts], *, rule: MetadataRule, now_ms: int) -> frozenset[tuple[str, str]]:
    """Return group and id of the dumps and symlinks to delete."""
    # No record names these files: only the caller has the id.
    facts = list(written)
    newest: dict[str, str] = {}
    for one in facts:
        if one.is_whole:
            newest[one.group] = max(one.id, newest.get(one.group, ""))
    since_ms = now_ms - rule.run_age_ms_min
    # The newest complete dump may be the owner's only one. An incomplete dump has no id that its owner knows.
    return frozenset(
        (one.group, one.id)
        for one in facts
        if one.touched_ms < since_ms and (one.id < newest.get(one.group, "") or not one.is_whole or not one.is_wanted)
    )
