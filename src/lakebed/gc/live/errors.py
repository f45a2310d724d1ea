"""Errors of collection runs, seen from the live side. Families: lakebed.base.errors."""

from __future__ import annotations

from lakebed.base import Conflict, Invalid, NotFound


class OtherInstallation(Conflict):
    """Another installation uses this namespace, too, and no administrator has chosen between them.
    Facts: `namespace`.
    """


class NotRestored(Conflict):
    """The repository was made bare and has no default branch yet: commits may lack the refs that keep them.
    Facts: `branch`.
    """


class OtherRepository(Conflict):
    """The run is of a repository that had this name before, and another one has it now. Facts: `uid` of the run's."""


class RunNotFound(NotFound):
    """There is no run of this id."""


class RunMoved(Conflict):
    """The run is in a state from which this step is not possible: it was abandoned, or ended, or went on without us.

    The collector throws its work away. Facts: `run_id`, `state`.
    """


class RulesChanged(Conflict):
    """The retention rules are not those the plan was made with. The run has ended; plan again."""


class StalePlan(Conflict):
    """The plan was not made from the latest recheck of what is expiring. Plan again from that, or expire again."""


class OutOfOrder(Conflict):
    """The steps of a run prove something only in their order, and one before this is missing."""


class BadContinuation(Invalid):
    """Not a continuation token that this repository gave for this run."""


class WrongKind(Invalid):
    """A run of the other kind has no such step."""


class RulesMoved(Conflict):
    """The retention rules were changed since they were read. Facts: `version` in force, and `expected`."""


class RulesVersionNotFound(NotFound):
    """There never were retention rules of this version."""


class RulesNotFound(NotFound):
    """No retention rules are set for this repository."""


class PolicyNotFound(NotFound):
    """No lifecycle policy is set for this repository."""
