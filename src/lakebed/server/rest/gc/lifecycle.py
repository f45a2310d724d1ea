"""Lifecycle policies: set, read and check them; and sweeps of branches by a policy."""

from __future__ import annotations

import msgspec

from lakebed.catalog import Repository
from lakebed.gc import messages
from lakebed.gc.live import BranchSweep, PolicyBook, PolicyRecord, PotentialCommits
from lakebed.operations.gc import lifecycle
from lakebed.server.http.gate import require
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository, serves


class Policies(Resource):
    @serves(lifecycle.GET_LIFECYCLE_POLICY)
    async def get(self, request: RestRequest) -> messages.PolicyVersion:
        book = await self._book(request)
        version = request.integer("version", -1)
        return _shown(await book.read() if version == -1 else await book.version(version))

    @in_repository(lifecycle.SET_LIFECYCLE_POLICY)
    async def set(
        self, request: RestRequest, repository: Repository, body: messages.SetPolicy
    ) -> messages.PolicyWritten:
        return await _write(repository, request, bytes(body.policy))

    @in_repository(lifecycle.DELETE_LIFECYCLE_POLICY)
    async def delete(self, request: RestRequest, repository: Repository) -> messages.PolicyWritten:
        return await _write(repository, request, None)

    @serves(lifecycle.LIST_LIFECYCLE_POLICY_HISTORY)
    async def history(self, request: RestRequest) -> messages.PolicyHistory:
        book = await self._book(request)
        before = request.integer("before", 0)
        records, has_more = await book.history(before=before if before > 0 else None, limit=request.amount())
        return messages.PolicyHistory(versions=tuple(map(_shown, records)), has_more=has_more)

    @serves(lifecycle.VALIDATE_LIFECYCLE_POLICY)
    async def validate(self, request: RestRequest, body: messages.SetPolicy) -> messages.PolicyCheck:
        problems = await (await self._book(request)).check(bytes(body.policy))
        return messages.PolicyCheck(is_valid=all(one.is_warning for one in problems), problems=tuple(problems))

    @in_repository(lifecycle.FIND_POTENTIAL_COMMITS)
    async def find_potential(self, _: RestRequest, repository: Repository) -> messages.PotentialBegun:
        return await PotentialCommits(repository.versions).find()

    @in_repository(lifecycle.GET_POTENTIAL_COMMITS)
    async def potential(self, request: RestRequest, repository: Repository) -> messages.PotentialPage:
        found = PotentialCommits(repository.versions)
        return await found.page(request.args[1], request.integer("page", 0))

    @in_repository(lifecycle.PLAN_BRANCH_SWEEP)
    async def plan_branches(self, request: RestRequest, repository: Repository) -> messages.BranchesPlan:
        sweep = BranchSweep(repository)
        return await sweep.plan(**request.page())

    @serves(lifecycle.SWEEP_BRANCHES)
    async def sweep_branches(self, request: RestRequest, body: messages.SweepBranches) -> messages.BranchesSwept:
        for one in body.branches:
            names = {"repository": request.args[0], "branch": one.branch}
            require(lifecycle.SWEEP_BRANCHES.asked_later, request.permissions, names)
        sweep = BranchSweep(await self._catalog.get(request.args[0]))
        swept = await sweep.sweep(body.policy_version, body.branches, by=request.identity.user_id)
        self._state.metrics.swept_branches.update(
            "deleted" if one.is_deleted else "not known" if messages.is_open(one) else "kept" for one in swept
        )
        return messages.BranchesSwept(branches=tuple(swept))

    async def _book(self, request: RestRequest) -> PolicyBook:
        return PolicyBook((await self._catalog.get(request.args[0])).versions)


def _shown(record: PolicyRecord) -> messages.PolicyVersion:
    return messages.PolicyVersion(
        version=record.version,
        policy=msgspec.Raw(record.policy or b"null"),
        changed_ms=record.changed_ms,
        changed_by=record.changed_by,
    )


async def _write(repository: Repository, request: RestRequest, policy: bytes | None) -> messages.PolicyWritten:
    repository.guards.check_writable()
    expected = request.integer("if_version", -1)
    book = PolicyBook(repository.versions)
    written, warnings = await book.write(
        policy, by=request.identity.user_id, expected=None if expected == -1 else expected
    )
    await repository.guards.confirm()
    return messages.PolicyWritten(version=written.version, warnings=tuple(warnings))
