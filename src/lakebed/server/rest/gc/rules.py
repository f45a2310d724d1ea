"""Retention rules in two forms: the contract's whole days, and our full form.

Both read and write the same rules. The contract's form rounds periods up to whole days and shows no pins. A write in
that form keeps the pins, and keeps each period whose rounded days did not change.
"""

from __future__ import annotations

from starlette.responses import Response

from lakebed import wire
from lakebed.base import check_branch
from lakebed.catalog import Repository
from lakebed.gc.live import RuleBook, RulesNotFound, RulesSet, Searches, rules_version, trial_steps
from lakebed.gc.messages import RulesHistory, RulesTrial, RulesVersion, RulesWritten
from lakebed.gc.rules import Explanation, Rules, check_rules, explain, in_days
from lakebed.operations.gc import collections, collectors
from lakebed.server.http.errors import Answer, InvalidBody
from lakebed.server.http.requests import RestRequest, nothing
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.server.state import AppState


class DayRules(Resource):
    """The contract's form of the rules."""

    @in_repository(collections.INTERNAL_GET_GARBAGE_COLLECTION_RULES)
    @in_repository(collections.GET_GC_RULES)
    async def get(self, _: RestRequest, repository: Repository) -> wire.GarbageCollectionRules:
        rules = (await RuleBook(repository.versions).read()).rules
        if rules is None:
            raise Answer(404, "not found")
        default_days, branch_days = in_days(rules)
        branches = [
            wire.GarbageCollectionRule(branch_id=branch, retention_days=days)
            for branch, days in sorted(branch_days.items())
        ]
        return wire.GarbageCollectionRules(default_retention_days=default_days, branches=branches)

    @in_repository(collections.INTERNAL_SET_GARBAGE_COLLECTION_RULES)
    @in_repository(collections.SET_GC_RULES)
    async def set(self, request: RestRequest, repository: Repository, body: wire.GarbageCollectionRules) -> Response:
        branch_days = {rule.branch_id: rule.retention_days for rule in body.branches}
        if len(branch_days) != len(body.branches):
            raise InvalidBody("request body has an error: two rules for one branch")
        repository.guards.check_writable()
        book = RuleBook(repository.versions)
        written = await book.write_days(body.default_retention_days, branch_days, by=request.identity.user_id)
        await repository.guards.confirm()
        return _done(written)

    @in_repository(collections.INTERNAL_DELETE_GARBAGE_COLLECTION_RULES)
    @in_repository(collections.DELETE_GC_RULES)
    async def delete(self, request: RestRequest, repository: Repository) -> Response:
        repository.guards.check_writable()
        written = await RuleBook(repository.versions).write(None, by=request.identity.user_id)
        await repository.guards.confirm()
        return _done(written)

    @in_repository(collections.SET_GARBAGE_COLLECTION_RULES_PREFLIGHT)
    async def may_set(self, _: RestRequest, repository: Repository) -> None:
        repository.guards.check_writable()


def _done(written: RulesSet) -> Response:
    response = nothing()
    if written.counts_after:
        # A run that expires or sweeps by the former rules continues. The contract's 204 has no body to report it.
        response.headers["x-lakebed-counts-after-run"] = ",".join(written.counts_after)
    return response


class FullRules(Resource):
    """Our full form of the rules (`lakebed.gc.messages`, settings.py)."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._searches = Searches(state.ports)

    @in_repository(collectors.GET_FULL_GC_RULES)
    async def get(self, request: RestRequest, repository: Repository) -> RulesVersion:
        book = RuleBook(repository.versions)
        version = request.integer("version", -1)
        return rules_version(await book.read() if version == -1 else await book.version(version))

    @in_repository(collectors.SET_FULL_GC_RULES)
    async def set(self, request: RestRequest, repository: Repository, body: Rules) -> RulesWritten:
        return await _write(repository, request, body)

    @in_repository(collectors.DELETE_FULL_GC_RULES)
    async def delete(self, request: RestRequest, repository: Repository) -> RulesWritten:
        return await _write(repository, request, None)

    @in_repository(collectors.LIST_GC_RULES_HISTORY)
    async def history(self, request: RestRequest, repository: Repository) -> RulesHistory:
        book = RuleBook(repository.versions)
        before = request.integer("before", 0)
        records, has_more = await book.history(before=before if before > 0 else None, limit=request.amount())
        return RulesHistory(versions=tuple(map(rules_version, records)), has_more=has_more)

    @in_repository(collectors.EXPLAIN_GC_RULES)
    async def explain(self, request: RestRequest, repository: Repository) -> Explanation:
        branch = request.query("branch")
        versions = repository.versions
        rules = (await RuleBook(versions).read()).rules
        if rules is None:
            raise RulesNotFound("no retention rules are set for this repository: committed data stays for ever")
        now_ms = versions.ports.clock.now_ms()
        return explain(rules, check_branch(branch) if branch else None, now_ms=now_ms)

    @serves(collectors.TRY_GC_RULES)
    async def try_(self, request: RestRequest, body: Rules) -> RulesTrial:
        rules = check_rules(body)
        versions = (await self._catalog.get(request.args[0])).versions
        if files := request.integer("files", 0):
            token = request.query("continuation_token") or None
            return await self._searches.tried(versions, rules, token, files=files)
        trial: RulesTrial | None = None
        async for step in trial_steps(versions, rules):
            trial = step if isinstance(step, RulesTrial) else None
        assert trial is not None, "the last step is the trial"
        return trial


async def _write(repository: Repository, request: RestRequest, rules: Rules | None) -> RulesWritten:
    repository.guards.check_writable()
    expected = request.integer("if_version", -1)
    book = RuleBook(repository.versions)
    written = await book.write(rules, by=request.identity.user_id, expected=None if expected == -1 else expected)
    await repository.guards.confirm()
    return RulesWritten(version=written.version, counts_after=written.counts_after)
