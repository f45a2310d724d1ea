"""What can refuse a collection, asked before anything that is slow, writes or deletes.

The server is asked first of all, for only there it is known who may. Plans and applies ask the same by themselves; who
asks here does so before a Spark session is started, and none of the answers grants anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.base import Conflict
from lakebed.gc.protocol import Apply, RunKind, RunState, RunView, check_run_id, window_end_ms
from lakebed.gc.rules import Rules

from .failures import told
from .files import Files, Lake
from .grace import grace_s_of
from .listed import ended_without_deleting
from .live_side import LiveSide
from .planning_committed import NO_RULES, NoRules
from .runs import Plan, read_plan
from .supposing import version_to_condemn_by


class RunNotReady(Conflict):
    """The run is not in a state in which its plan may be applied: never marked, abandoned, ended, of another plan."""


def check_planning(live_side: LiveSide, kinds: Sequence[RunKind], rules: Rules | None) -> None:
    """Whether these kinds may be planned, without kinds any, by the repository's rules or by those to suppose.

    Raises:
        Denied: the caller may not plan.
        NoRules: committed data is, and there are no rules.
    """
    has_rules = live_side.planning().has_rules or rules is not None
    if RunKind.COMMITTED in kinds and not has_rules:
        raise NoRules(NO_RULES)


def check_apply(live_side: LiveSide, lake: Lake, run_id: str, *, window: str | None, grace_s: int | None) -> None:
    """What `apply_run` asks before it does anything, for who would rather know it before a session is started. It asks
    again.

    Raises:
        As `apply_run` does.
    """
    check_run_id(run_id)
    check_how(lake, window=window, grace_s=grace_s)
    with told(), Files(lake) as files:
        plan = read_plan(files, run_id)
    state = state_to_apply(live_side.run(run_id), plan)
    if state is not RunState.ENDED:
        admitted(live_side, plan, state)


def check_how(lake: Lake, *, window: str | None, grace_s: int | None) -> int:
    """How long readers are given, in seconds.

    Raises:
        InvalidDuration, BadWindow, BadGrace: no window that a quarantine can have, no grace.
    """
    if window is not None:
        window_end_ms(window, 0)
    return grace_s_of(lake.uri, grace_s)


def admitted(live_side: LiveSide, plan: Plan, state: RunState) -> int:
    """Ask whatever can refuse this apply, before it overtakes another one, and before anything is written or deleted:
    the server first of all, for only there it is known who may. The version of the rules to condemn by.
    """
    condemns = plan.kind is RunKind.COMMITTED and state is not RunState.SWEEPING
    rules_version = version_to_condemn_by(live_side, plan) if condemns else plan.rules_version
    request = Apply(kind=plan.kind, plan=plan.doomed.digest(), rules_version=rules_version)
    live_side.applying(plan.run_id, request)
    return rules_version


def state_to_apply(view: RunView | None, plan: Plan) -> RunState:
    """Where the run stands, if that is a place from which it may go on with this plan."""
    if view is not None and ended_without_deleting(view):
        raise RunNotReady(f"run {plan.run_id} ended without deleting anything: plan again", run_id=plan.run_id)
    if plan.kind is not RunKind.UNCOMMITTED:
        state = RunState.PLANNING if view is None else view.state
        allowed = {RunState.PLANNING, RunState.CONDEMNING, RunState.SWEEPING, RunState.ENDED}
    else:
        state = RunState.ABANDONED if view is None else view.state
        allowed = {RunState.MARKED, RunState.ENDED}
        if view is not None and state in allowed and view.plan != plan.doomed.digest():
            raise RunNotReady(f"run {plan.run_id} was marked with another plan", run_id=plan.run_id)
    if state not in allowed:
        raise RunNotReady(f"run {plan.run_id} is {state.value}: it may not delete", run_id=plan.run_id, state=state)
    return state
