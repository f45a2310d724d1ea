"""Errors of collection runs, seen from the live side. Families: lakebed.base.errors."""

from __future__ import annotations

from lakebed.base import Conflict, Invalid, NotFound

__all__ = [
    "BadContinuation",
    "OtherInstallation",
    "OutOfOrder",
    "PolicyNotFound",
    "RulesChanged",
    "RulesMoved",
    "RulesNotFound",
    "RunMoved",
    "RunNotFound",
    "StalePlan",
    "WrongKind",
]


class OtherInstallation(Conflict):
    """Another installation also uses this namespace, and no administrator chose between them. Facts: `namespace`."""


class RunNotFound(NotFound):
    """No run has this id."""


class RunMoved(Conflict):
    """The run's state does not allow this step: it was abandoned, ended, or another collector continued it.

    The collector discards its work. Facts: `run_id`, `state`.
    """


class RulesChanged(Conflict):
    """The retention rules changed after the plan. The run has ended; plan again."""


class StalePlan(Conflict):
    """The plan does not match the latest recheck of the expiring commits. Plan again from it, or expire again."""


class OutOfOrder(Conflict):
    """The safety proof needs the steps of a run in order, and an earlier step is missing."""


class BadContinuation(Invalid):
    """The continuation token is not one of this repository and run."""


class WrongKind(Invalid):
    """Runs of this kind do not have this step."""


class RulesMoved(Conflict):
    """The retention rules changed since the caller read them. Facts: `version` in force, and `expected`."""


class RulesNotFound(NotFound):
    """No retention rules are set for this repository."""


class PolicyNotFound(NotFound):
    """No lifecycle policy is set for this repository."""
