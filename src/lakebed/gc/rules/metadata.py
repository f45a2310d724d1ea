"""Decide which of a repository's own files may go: files of trees that no commit names, folders of old runs, old dumps.

A commit whose data was swept names nothing, and so does one that can never be published; every other commit record,
published or not, keeps its metarange and the sublists and ranges in it. A young file stays, for its commit may be on
its way. That only saves a writer the trouble of writing it again under another name: the safety rests on
docs/design/protocols.md, "A collection of metadata".

A run's folder holds its inputs, its plan and its report. It may go when no process works on the run, it is old, and
there are enough newer ones of its kind. The saved state of the last runs of uncommitted data stays. The ledger
is in no run's folder.

Dumps of refs, and symlinks to the objects of a folder of a branch, are written on request, and no record names them:
the caller has the id. So each stays for as long as the folder of a run, and the newest whole one of a group for
good. A group is all dumps, or the symlinks of one folder, for as long as its branch is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakebed.base import MetarangeId

from .committed import Trees
from .durations import DAY_MS
from .history import History

LIVE_STATES = frozenset({"planning", "marking", "expiring", "sweeping"})
"""A process may be at work. A run of uncommitted data that is `marked` is a plan until its deletes begin; one without
record may be one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRule:
    """Files stay for `file_age_ms_min` after they were written. Of each kind the `runs_newest` newest runs stay, and
    every run and every dump for `run_age_ms_min` after its last file.
    """

    file_age_ms_min: int = DAY_MS
    runs_newest: int = 10
    run_age_ms_min: int = 30 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Describe a run. `state` is that of its record, empty where there is none; `touched_ms` the instant
    of the last file in its folder, or of its beginning. `has_begun` says that its deletes did. Ids of runs sort by
    time.
    """

    id: str
    kind: str
    state: str
    touched_ms: int
    has_begun: bool = False
    has_saved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFacts:
    """Describe the files that one request wrote. Ids sort by time. `is_wanted` of symlinks: the branch is."""

    group: str
    id: str
    touched_ms: int
    is_whole: bool
    is_wanted: bool = True


def named_files(history: History, trees: Trees) -> set[str]:
    """Ids of every metarange, sublist and range that a commit names which was not swept."""
    metaranges = {commit.metarange_id for commit in history.commits.values() if not commit.swept} - {MetarangeId("")}
    sublists = {id_ for metarange in metaranges for id_ in trees.sublists.get(metarange, ())}
    return {*metaranges, *sublists, *trees.ranges_of(metaranges)}


def unnamed_files(
    written_ms: Mapping[str, int], named: Collection[str], *, rule: MetadataRule, now_ms: int
) -> frozenset[str]:
    """Return those of the listed files (by id, with the instant of each) that go."""
    since_ms = now_ms - rule.file_age_ms_min
    return frozenset(id_ for id_, ms in written_ms.items() if ms < since_ms and id_ not in named)


def old_runs(runs: Iterable[RunFacts], *, rule: MetadataRule, now_ms: int) -> frozenset[str]:
    """Ids of the runs whose folders go."""
    by_kind: dict[str, list[RunFacts]] = {}
    for run in sorted(runs, key=lambda run: run.id, reverse=True):
        by_kind.setdefault(run.kind, []).append(run)
    since_ms = now_ms - rule.run_age_ms_min
    found: set[str] = set()
    for of_kind in by_kind.values():
        # The saved state for the next run may be older than many runs that saved nothing.
        saved = [run.id for run in of_kind if run.has_saved][: max(1, rule.runs_newest)]
        for run in of_kind[rule.runs_newest :]:
            # One that is marked once its deletes began was not applied to its end: some objects failed.
            is_at_work = run.state in LIVE_STATES or (run.state == "marked" and run.has_begun)
            if run.touched_ms < since_ms and not is_at_work and run.id not in saved:
                found.add(run.id)
    return frozenset(found)


def old_written(written: Iterable[WrittenFacts], *, rule: MetadataRule, now_ms: int) -> frozenset[tuple[str, str]]:
    """Return group and id of those that go."""
    facts = list(written)
    newest: dict[str, str] = {}
    for one in facts:
        if one.is_whole:
            newest[one.group] = max(one.id, newest.get(one.group, ""))
    since_ms = now_ms - rule.run_age_ms_min
    # The newest whole one may be all that its owner has. Of one that is not whole its owner has no id.
    return frozenset(
        (one.group, one.id)
        for one in facts
        if one.touched_ms < since_ms and (one.id < newest.get(one.group, "") or not one.is_whole or not one.is_wanted)
    )
