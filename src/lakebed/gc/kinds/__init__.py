"""The kinds of collections, a folder each. The flow knows none of them by name."""

from __future__ import annotations

from lakebed.gc.messages import InvalidRequest, Mode, Plan, RunKind, RunMode, UncommittedOptions
from lakebed.gc.rules import MetadataRule

from .committed.plan import Committed
from .deleted.plan import Deleted
from .erasure.plan import Erasure
from .kind import Kind, Look, SweepRule
from .lifecycle.plan import Lifecycle
from .metadata.plan import Metadata
from .uncommitted.old_layout import OldLayout
from .uncommitted.plan import Uncommitted

__all__ = ["Kind", "Look", "SweepRule", "kind_of_plan", "kind_to_plan"]


def kind_to_plan(name: RunKind, options: UncommittedOptions, metadata: MetadataRule) -> Kind:
    match name:
        case RunKind.COMMITTED:
            return Committed()
        case RunKind.METADATA:
            return Metadata(metadata)
        case RunKind.LIFECYCLE:
            return Lifecycle(options.mode, active_only=options.active_only)
        case RunKind.DELETED:
            return Deleted()
        case RunKind.ERASURE:
            raise InvalidRequest("an erasure says what it erases: lakebed erase plan")
        case RunKind.UNCOMMITTED if options.mode is Mode.OLD_LAYOUT:
            return OldLayout(options.old_layout_age_ms)
        case RunKind.UNCOMMITTED:
            return Uncommitted(options)


def kind_of_plan(plan: Plan) -> Kind:
    """The kind that carries this plan out."""
    if plan.erasure is not None:
        return Erasure(plan.erasure)
    is_old_layout = plan.mode is RunMode.OLD_LAYOUT
    options = UncommittedOptions(mode=Mode.OLD_LAYOUT if is_old_layout else Mode.AUTOMATIC)
    return kind_to_plan(plan.kind, options, MetadataRule())
