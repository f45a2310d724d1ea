"""Run every check that can refuse a plan or an apply before any slow, writing or deleting step.

The service is asked first of all, for only there it is known who may. Plans and applies ask the same by themselves; the
API asks here before a Spark session is started, and none of the answers grants anything.

A plan by rules that are not saved is marked so, and changes nothing for anyone. The service is asked as always, but its
rules are replaced (`WhatIf`). A plan of committed data may be applied when these rules are the repository's by then,
compared as a whole and asked of the service at that moment; before that it has no version that the service accepts. A
run of uncommitted data is bound to its plan while it marks, so one by other rules is abandoned where another would be
marked, and can never be applied. Metadata goes by no rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lakebed.base import Basis, Conflict
from lakebed.gc.kinds.committed.plan import NO_RULES, NoRules
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
from lakebed.gc.rules import Rules, check_rules
from lakebed.gc.runs.context import read_plan_file
from lakebed.gc.runs.status import ended_without_deleting
from lakebed.objectstore import InvalidNamespace, ObjectMissing, ObjectStore, normalise_namespace, read_adoption


class NotFinal(Conflict):
    """Objects of another server in this namespace stay until the adoption is final. The sweep checks this, too."""


class RunNotReady(Conflict):
    """The run is not in a state in which its plan may be applied: never marked, abandoned, ended, of another plan."""


class OtherStore(BadInput):
    """The server wrote a file, and this process finds it nowhere: it reads a copy of the server's store, or another."""


def other_store(reason: str, store: ObjectStore) -> OtherStore:
    return OtherStore(
        f"{reason}: {store.uri} is a copy here, or another store. Name the server's own, by --data or the settings of"
        " the object store",
        input="namespace",
    )


def is_same_place(one: str, other: str) -> bool:
    """Compare two namespaces however they are spelled: a server may write `S3://lake/` for `s3://lake`."""
    try:
        return normalise_namespace(one) == normalise_namespace(other)
    except InvalidNamespace:
        return one.rstrip("/") == other.rstrip("/")


async def check_same_store(service: Service, store: ObjectStore) -> None:
    """Find out whether this process sees the store that the server sees: the server puts a mark, and it must be here.

    An apply in a copy deletes nothing in the server's store, and the server would believe that it did.

    Raises:
        Denied: the caller may not apply.
        OtherStore: it does not see it.
    """
    answer = await service.purging()
    if not is_same_place(answer.namespace, store.uri):
        raise other_store(f"the server deletes in {answer.namespace}", store)
    try:
        await store.stat(answer.mark)
    except ObjectMissing as error:
        raise other_store(f"{answer.mark} is missing, and the server has just written it", store) from error


async def check_planning(service: Service, kinds: Sequence[RunKind], rules: Rules | None) -> None:
    """Succeed if these kinds may be planned, without kinds any, by the repository's rules or by others.

    Raises:
        Denied: the caller may not plan.
        NoRules: committed data is, and there are no rules.
    """
    has_rules = (await service.planning()).has_rules or rules is not None
    if not has_rules and any(kind.spec.basis is Basis.RULES for kind in kinds):
        raise NoRules(NO_RULES)


async def check_apply(service: Service, store: ObjectStore, run_id: str) -> None:
    """Run the checks that `flow.apply` makes before it acts. It makes them again.

    Raises:
        As `flow.apply` does.
    """
    plan, plan_file = await read_plan_file(store, check_run_id(run_id))
    state = state_to_apply(await service.run(run_id), plan)
    if state is not RunState.ENDED:
        if plan.garbage.rows and (plan.kind.publishes or plan.mode is RunMode.OLD_LAYOUT):
            await _check_adopted(store)
        await may_apply(service, plan, state, plan_file=plan_file)
        await check_same_store(service, store)


async def _check_adopted(store: ObjectStore) -> None:
    """
    Raises:
        NotFinal: the namespace was another server's, and its objects are not ours for good.
    """
    adoption = await read_adoption(store)
    if adoption is not None and not adoption.may_delete:
        raise NotFinal(
            f"{store.uri} is {adoption.state} from another server, and nothing may be deleted yet:"
            " `lakebed migrate --adopt`, and then with --final, says that the old server is gone",
            state=adoption.state.value,
        )


class Allowed(NamedTuple):
    """The version of the rules that an apply publishes by, who made its plan, and whether it looks again."""

    rules_version: int
    planned_by: str
    looks_again: bool


async def may_apply(service: Service, plan: Plan, state: RunState, *, plan_file: str = "") -> Allowed:
    """Ask whatever can refuse this apply, before it overtakes another one and before anything is written or deleted.

    `plan_file` is the SHA-256 of the plan's file.
    """
    by_rules = plan.kind.publishes and plan.rules is not None and state is not RunState.SWEEPING
    rules_version = await version_to_expire_by(service, plan) if by_rules else plan.rules_version
    request = Apply(
        kind=plan.kind, plan=plan.garbage.digest(), rules_version=rules_version, uid=plan.uid, plan_file=plan_file
    )
    view = await service.applying(plan.run_id, request)
    return Allowed(rules_version, view.planned_by, view.looks_again)


def state_to_apply(view: RunView | None, plan: Plan) -> RunState:
    """Return the state from which the run may go on with this plan.

    Raises:
        RunNotReady: it may not.
    """
    if view is not None and ended_without_deleting(view):
        raise RunNotReady(f"run {plan.run_id} ended without deleting anything: plan again", run_id=plan.run_id)
    if plan.kind.publishes:
        state = RunState.PLANNING if view is None else view.state
        allowed = {RunState.PLANNING, RunState.EXPIRING, RunState.SWEEPING, RunState.ENDED}
    else:
        state = RunState.ABANDONED if view is None else view.state
        allowed = {RunState.MARKED, RunState.ENDED}
        if view is not None and state in allowed and view.plan != plan.garbage.digest():
            raise RunNotReady(f"run {plan.run_id} was marked with another plan", run_id=plan.run_id)
    if state not in allowed:
        raise RunNotReady(f"run {plan.run_id} is {state.value}: it may not delete", run_id=plan.run_id, state=state)
    return state


NO_VERSION: Final = -1


class NotTheRules(Conflict):
    """The plan only shows the effect of other rules, which are not in force."""


class WhatIf(Service):
    """A service by other rules."""

    def __init__(self, service: Service, rules: Rules) -> None:
        """
        Raises:
            InvalidRules: these rules could not be saved either.
        """
        super().__init__(service.requests)
        self._rules = check_rules(rules)

    async def commits(self, run_id: str) -> PreparedCommits:
        prepared = await super().commits(run_id)
        return msgspec.structs.replace(prepared, rules=self._rules, rules_version=NO_VERSION)

    async def marked(self, run_id: str, plan: Manifest) -> RunView:  # noqa: ARG002 - bound to nothing
        return await self.abandoned(run_id)


async def version_to_expire_by(service: Service, plan: Plan) -> int:
    """The version of the rules that a plan may be applied by. The service compares it with the one in force.

    Raises:
        NotTheRules: the plan was made by other rules, and these are not in force now.
    """
    if not plan.what_if:
        return plan.rules_version
    current = await service.rules()
    if current.rules is None or current.rules != plan.rules:
        raise NotTheRules(
            f"run {plan.run_id} was planned by rules that are not the repository's: save them first, or plan again",
            run_id=plan.run_id,
        )
    return current.version
