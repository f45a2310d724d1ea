"""Find potential commits: commits that may name objects still to be deleted by the lifecycle policy.

They follow the dates of the design document and are only shown. No run uses them (see gc/rules/lifecycle/document.py
for the reason). There may be a million, so they are written once into a run's folder, and each page is one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import pyarrow as pa

from lakebed.base import NotFound, RunId, RunKind, RunState
from lakebed.gc import messages
from lakebed.gc.live.reading.commits import Snapshot, read_snapshot
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.records.settings import PolicyBook
from lakebed.gc.rules.lifecycle import (
    Potential,
    check_policy,
    current_rules,
    earliest_by_branch,
    policy_table,
    potential_rows,
)
from lakebed.objectstore import ObjectMissing
from lakebed.versions import Versions

__all__ = ["PotentialCommits"]

_KIND: Final = RunKind.LIFECYCLE

PAGE_COMMITS: Final = 10_000


class PotentialCommits:
    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._policies = PolicyBook(versions)

    async def find(self) -> messages.PotentialBegun:
        """Find and write potential commits, by the policy in force and all ended runs.

        Raises:
            PolicyNotFound: no policy is set.
            BrokenHistory: a ref or a commit names a commit without a record.
        """
        earliest = await self._earliest()
        snapshot = await read_snapshot(self._versions)
        tasks = self._versions.ports.tasks
        rows, found = await tasks.apart(partial(_find, snapshot, earliest))
        # This run has no record, so a collection of metadata deletes the folder once it is old.
        run_id = RunId(self._versions.ports.ids.fresh())
        inputs = Inputs(self._versions.objectstore, _KIND, run_id)
        numbers = sorted(set(found.set_of.tolist()))
        sets = pa.table(
            [numbers, [found.branches(number) for number in numbers]],
            schema=messages.arrow_schema(messages.POTENTIAL_SETS),
        )
        await inputs.write_table(messages.POTENTIAL_SETS, messages.POTENTIAL_SETS.name, sets)
        pages = [rows.slice(start, PAGE_COMMITS) for start in range(0, rows.num_rows, PAGE_COMMITS)]
        await inputs.write_tables(messages.POTENTIAL, messages.POTENTIAL.name, pages, tasks)
        return messages.PotentialBegun(run_id=run_id, commits=rows.num_rows, pages=len(pages))

    async def page(self, run_id: str, page: int) -> messages.PotentialPage:
        """Return one page of potential commits, and their sets of branches.

        Raises:
            NotFound: no such page exists.
            BadInput: a file is missing or altered.
        """
        id_ = messages.check_run_id(run_id)
        manifest = await self._manifest(id_, messages.POTENTIAL.name)
        if not 0 <= page < len(manifest.parts):
            raise NotFound(f"there is no page {page} of {run_id}", run_id=run_id, page=page)
        part = manifest.parts[page]
        data = await self._versions.objectstore.get(manifest.folder + part.name)
        rows = messages.read_part(manifest, messages.POTENTIAL, part, data)
        inputs = Inputs(self._versions.objectstore, _KIND, id_)
        sets = await inputs.read_table(messages.POTENTIAL_SETS, await self._manifest(id_, messages.POTENTIAL_SETS.name))
        # Send only the sets of this page: all sets may be large.
        here = set(rows["set"].to_pylist())
        return messages.PotentialPage(
            commits=tuple(zip(rows["id"].to_pylist(), rows["set"].to_pylist(), strict=True)),
            sets={row["set"]: tuple(row["branches"]) for row in sets.to_pylist() if row["set"] in here},
        )

    async def _manifest(self, run_id: RunId, name: str) -> messages.Manifest:
        path = messages.manifest_path(_KIND, run_id, name)
        try:
            return messages.decode_manifest(await self._versions.objectstore.get(path), name=path)
        except ObjectMissing as error:
            raise NotFound(f"no potential commits were found as {run_id}", run_id=run_id) from error

    async def _earliest(self) -> dict[str, int | None]:
        """Return for each branch the earliest `last_deleted` of its rules."""
        _, policy = await self._policies.in_force()
        now_ms = self._versions.ports.clock.now_ms()
        rows = policy_table(policy, run_id="", now_ms=now_ms)
        ended: list[str] = []
        for run_id, record in await self._versions.retired.runs():
            has_deleted = record.kind is _KIND and record.state is RunState.ENDED and record.swept
            # Ignore a run without the date of its plan. This only makes more commits potential.
            if has_deleted and record.planned_ms:
                former = await self._policies.version(int(record.rules_version))
                if former.policy is not None:
                    ended.append(run_id)
                    rows += policy_table(check_policy(former.policy), run_id=run_id, now_ms=record.planned_ms)
        return earliest_by_branch(current_rules(rows, run_id="", ended=ended))


def _find(snapshot: Snapshot, earliest: Mapping[str, int | None]) -> tuple[pa.Table, Potential]:
    """Return the rows of POTENTIAL by id, and the `Potential` with their sets of branches."""
    potential = potential_rows(
        commits := pa.concat_tables(snapshot.commits_tables()),
        branches={name: commit for kind, name, commit, _ in snapshot.refs if kind == "branch"},
        held=[commit for kind, _, commit, state in snapshot.refs if kind == "intent" or state != "active"],
        earliest=earliest,
    )
    ids = commits["id"].take(pa.array(potential.rows))
    return pa.table([ids, pa.array(potential.set_of)], schema=messages.arrow_schema(messages.POTENTIAL)).sort_by(
        "id"
    ), potential
