"""Run every check that can refuse a plan or an apply before any slow, writing or deleting step.

The service answers first, because only it knows the caller's rights. Plans and applies repeat these checks themselves.
The API runs them before it starts a Spark session, and no answer grants anything.

A plan by rules that are not saved (`WhatIf`) changes nothing. It can be applied only if it is of committed data and
its rules are the repository's at that time. Metadata runs have no rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lakebed.base import Basis, Conflict
from lakebed.gc.mark.holding import check_planned_holds
from lakebed.gc.messages import (
    Apply,
    BadInput,
    Manifest,
    Plan,
    PreparedCommits,
    RunKind,
    RunMode,
    RunState,
    RunView,
    Service,
    check_run_id,
)
from lakebed.gc.rules import NO_RULES, NoRules, Rules, check_rules
from lakebed.gc.runs.context import read_plan_file
from lakebed.gc.runs.status import ended_without_deleting
from lakebed.objectstore import InvalidNamespace, ObjectMissing, ObjectStore, normalise_namespace, read_adoption


class RunNotReady(Conflict):
    """The run's state forbids applying its plan: never marked, abandoned, ended, or marked with another plan."""


class OtherStore(BadInput):
    """The server wrote a file that this process cannot find: it reads a copy of the server's store, or another one."""


def other_store(reason: str, store: ObjectStore) -> OtherStore:
    return OtherStore(
        f"{reason}: {store.uri} is a copy here, or another store. Name the server's own, by --data or the settings of"
        " the object store",
        input="namespace",
    )


def is_same_place(one: str, other: str) -> bool:
    """Compare two namespaces by their normal form: a server may write `S3://lake/` for `s3://lake`."""
    try:
        return one == other or normalise_namespace(one) == normalise_namespace(other)
    except InvalidNamespace:
        return one.rstrip("/") == other.rstrip("/")


async def check_same_store(service: Service, store: ObjectStore) -> None:
    """Check that this process sees the server's store: the server writes a mark, and this process must find it.

    Raises:
        Denied: the caller may not apply.
        OtherStore: the mark is missing, or the server deletes in another namespace.
    """
    # An apply in a copy deletes nothing in the server's store, and the server would record its objects as deleted.
    answer = await service.purging()
    if not is_same_place(answer.namespace, store.uri):
        raise other_store(f"the server deletes in {answer.namespace}", store)
    try:
        await store.stat(answer.mark)
    except ObjectMissing as error:
        raise other_store(f"{answer.mark} is missing, and the server has just written it", store) from error


async def check_planning(service: Service, kinds: Sequence[RunKind], rules: Rules | None) -> None:
    """Succeed if the caller may plan these kinds, by the repository's rules or by `rules`. No kinds: any plan.

    Raises:
        Denied: the caller may not plan.
        NoRules: a kind needs rules, and there are none.
    """
    has_rules = (await service.planning()).has_rules or rules is not None
    if not has_rules and any(kind.spec.basis is Basis.RULES for kind in kinds):
        raise NoRules(NO_RULES)


async def check_apply(service: Service, store: ObjectStore, run_id: str) -> None:
    """Run the checks that `flow.apply` makes before it acts. `flow.apply` repeats them.

    Raises:
        The errors of `flow.apply`.
    """
    plan, plan_file = await read_plan_file(store, check_run_id(run_id))
    state = state_to_apply(await service.run(run_id), plan)
    if state is not RunState.ENDED:
        if plan.garbage.rows and (plan.kind.publishes or plan.mode is RunMode.OLD_LAYOUT):
            await _check_adopted(store)
        await may_apply(service, plan, state, plan_file=plan_file)
        if plan.erasure is not None and state is not RunState.SWEEPING:
            check_planned_holds(await service.holds(), plan)
        await check_same_store(service, store)


async def _check_adopted(store: ObjectStore) -> None:
    """Check that no other server's adoption of the namespace is pending."""
    adoption = await read_adoption(store)
    if adoption is not None and not adoption.may_delete:
        raise Conflict(
            f"{store.uri} is {adoption.state} from another server, and nothing may be deleted yet:"
            " `lakebed migrate --adopt`, and then with --final, says that the old server is gone",
            state=adoption.state.value,
        )


class Allowed(NamedTuple):
    """The version of the rules that an apply publishes by, the plan's author, and whether the apply plans again."""

    rules_version: int
    planned_by: str
    looks_again: bool


async def may_apply(service: Service, plan: Plan, state: RunState, *, plan_file: str = "") -> Allowed:
    """Ask the service for every reason to refuse this apply, before it overtakes another, writes or deletes.

    `plan_file` is the SHA-256 of the plan's file.
    """
    # A run that sweeps has published already, so a change of the rules does not affect it.
    by_rules = plan.kind.publishes and plan.rules is not None and state is not RunState.SWEEPING
    rules_version = await version_to_expire_by(service, plan) if by_rules else plan.rules_version
    request = Apply(
        kind=plan.kind, plan=plan.garbage.digest(), rules_version=rules_version, uid=plan.uid, plan_file=plan_file
    )
    view = await service.applying(plan.run_id, request)
    return Allowed(rules_version, view.planned_by, view.looks_again)


def state_to_apply(view: RunView | None, plan: Plan) -> RunState:
    """Return the state from which the run may continue with this plan.

    Raises:
        RunNotReady: the run may not be applied, or was marked with another plan.
    """
    if view is not None and ended_without_deleting(view):
        raise RunNotReady(f"run {plan.run_id} ended without deleting anything: plan again", run_id=plan.run_id)
    if plan.kind.publishes:
        state = RunState.PLANNING if view is None else view.state
        # A run that publishes has a record only from its first apply on.
        allowed = {RunState.PLANNING, RunState.EXPIRING, RunState.SWEEPING, RunState.ENDED}
    else:
        state = RunState.ABANDONED if view is None else view.state
        # A run that publishes nothing is bound to its plan by the digest in its record.
        allowed = {RunState.MARKED, RunState.ENDED}
        if view is not None and state in allowed and view.plan != plan.garbage.digest():
            raise RunNotReady(f"run {plan.run_id} was marked with another plan", run_id=plan.run_id)
    if state not in allowed:
        raise RunNotReady(f"run {plan.run_id} is {state.value}: it may not delete", run_id=plan.run_id, state=state)
    return state


NO_VERSION: Final = -1


class NotTheRules(Conflict):
    """The plan shows the effect of rules that are not in force."""


class WhatIf(Service):
    """Serve a plan by other rules. The plan has no version that the service accepts."""

    def __init__(self, service: Service, rules: Rules) -> None:
        """
        Raises:
            InvalidRules: these rules could not be saved.
        """
        super().__init__(service.requests)
        self._rules = check_rules(rules)

    async def commits(self, run_id: str) -> PreparedCommits:
        prepared = await super().commits(run_id)
        return msgspec.structs.replace(prepared, rules=self._rules, rules_version=NO_VERSION)

    async def marked(self, run_id: str, plan: Manifest) -> RunView:  # noqa: ARG002 - bound to nothing
        # A run by other rules must never be applied: abandon it where another run is marked.
        return await self.abandoned(run_id)


async def version_to_expire_by(service: Service, plan: Plan) -> int:
    """Return the version of the rules to apply a plan by. The service compares it with the version in force.

    Raises:
        NotTheRules: the plan was made by other rules, which are not in force.
    """
    if not plan.what_if:
        return plan.rules_version
    # A what-if plan may be applied only when the repository's rules equal the plan's by now.
    current = await service.rules()
    if current.rules is None or current.rules != plan.rules:
        raise NotTheRules(
            f"run {plan.run_id} was planned by rules that are not the repository's: save them first, or plan again",
            run_id=plan.run_id,
        )
    return current.version
