"""Declare the options of collections once, for every command that takes them, and make requests of them.

Which options go together is not decided here: `lakebed.gc.messages.request_of` checks the request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click

from lakebed.base import Later
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Option

# The parts that commands use, each imported on its first use: they load Arrow, for which `--help` need not wait.
if TYPE_CHECKING:
    from lakebed import objectstore
    from lakebed.gc import messages
    from lakebed.gc import rules as gc_rules
    from lakebed.gc.rules import lifecycle as policy_rules
    from lakebed.operations.gc import collections, collectors, hard_delete, holds, lifecycle
else:
    objectstore, messages = Later("lakebed.objectstore"), Later("lakebed.gc.messages")
    gc_rules, policy_rules = Later("lakebed.gc.rules"), Later("lakebed.gc.rules.lifecycle")
    collections, collectors = Later("lakebed.operations.gc.collections"), Later("lakebed.operations.gc.collectors")
    hard_delete, holds = Later("lakebed.operations.gc.hard_delete"), Later("lakebed.operations.gc.holds")
    lifecycle = Later("lakebed.operations.gc.lifecycle")

CommittedOption = Annotated[bool, Option("--committed", help="Only data of commits that expired by the rules.")]
UncommittedOption = Annotated[bool, Option("--uncommitted", help="Only data that is in no commit.")]
MetadataOption = Annotated[
    bool, Option("--metadata", help="Only Lakebed's own files: ranges that no commit names, folders of old runs.")
]
PruningOption = Annotated[bool, Option("--pruning", help="Only files of tables that nothing names any more.")]
CleanOption = Annotated[bool, Option("--clean", help="Uncommitted data: look at everything, not only at changes.")]
OptimisedOption = Annotated[
    bool, Option("--optimised", help="Uncommitted data: look only at changes since an earlier run, or fail.")
]
OldLayoutOption = Annotated[
    bool, Option("--old-layout", help="With --uncommitted: look only at objects outside data/SLICE/.")
]
OlderThanOption = Annotated[
    str | None,
    Option("--older-than", metavar="7d", help="With --old-layout: only objects written this long ago."),
]
CleanEveryOption = Annotated[
    int | None, Option("--clean-every", min=1, help="Look at everything in one of this many runs. Default: 10.")
]
CleanAfterOption = Annotated[
    str | None,
    Option("--clean-after", metavar="7d", help="Look at everything when the last such run is this old."),
]
TokenExpiryOption = Annotated[
    str | None,
    Option("--token-expiry", metavar="1h", help="Leave slices opened within this time to a later run."),
]
WindowOption = Annotated[
    str | None,
    Option("--window", metavar="7d", help="Delete nothing yet. Objects can be restored for this long."),
]
GraceOption = Annotated[
    str | None,
    Option(
        "--readers-grace",
        metavar="15m",
        help="Delete nothing that a read may have found within this time. A bare number is seconds. Default: 2s where "
        "all reads go through the server, else 15m.",
    ),
]
BranchesOption = Annotated[
    bool,
    Option(
        "--branches",
        help="First delete branches that are due by the lifecycle policy. They can be undeleted for a while.",
    ),
]
EngineOption = Annotated[
    str | None,
    Option(
        "--engine",
        metavar="spark|local|auto",
        help="The engine; auto starts no Spark for small work. Default: LAKEBED_GC_ENGINE, else spark if installed.",
    ),
]
TasksOption = Annotated[
    int | None,
    Option("--tasks", metavar="N", min=1, help="Split Spark's work into this many tasks. Default: four for each core."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """Options that select objects, and say how to look for them; in the order of the help."""

    committed: CommittedOption = False
    uncommitted: UncommittedOption = False
    metadata: MetadataOption = False
    pruning: PruningOption = False
    clean: CleanOption = False
    optimised: OptimisedOption = False
    old_layout: OldLayoutOption = False
    older_than: OlderThanOption = None
    clean_every: CleanEveryOption = None
    clean_after: CleanAfterOption = None
    token_expiry: TokenExpiryOption = None

    def words(self) -> dict[str, Any]:
        """Return the words of a request. Refuse two modes."""
        given = asdict(self)
        kinds = [kind for kind in ("committed", "uncommitted", "metadata", "pruning") if given.pop(kind)]
        modes = [mode for mode in ("clean", "optimised", "old-layout") if given.pop(mode.replace("-", "_"))]
        if len(modes) > 1:
            raise Misuse(f"--{modes[0]} and --{modes[1]} do not go together")
        return {**given, "kinds": kinds, "mode": modes[0] if modes else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleting:
    """Options of how to delete."""

    window: WindowOption = None
    readers_grace: GraceOption = None

    def words(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Options that choose the engine, and into how many tasks the work is split."""

    engine: EngineOption = None
    tasks: TasksOption = None

    def words(self) -> dict[str, Any]:
        return asdict(self)


def asked(action: str, *options: Looking | Deleting | Working, **more: object) -> messages.Request:
    """Make the request of these options.

    Raises:
        InvalidRequest, …: see `request_of`.
    """
    for option in options:
        more |= option.words()
    try:
        return messages.request_of(action, **more)
    except messages.UnknownChoice as error:
        raise Misuse(f"{error} ({click.get_current_context().command_path} -h)") from error
