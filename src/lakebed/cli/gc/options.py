"""Declare the options of collections once, for every command that takes them, and make requests of them.

Which options go together is not decided here: `lakebed.gc.messages.request_of` checks the request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import click

from lakebed.base import Later
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Details, Option
from lakebed.gc import OPTIONS

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


def option(name: str, **details: Unpack[Details]) -> Option:
    """Declare an option of requests."""
    metavar, details["help"] = OPTIONS[name]
    if metavar:
        details["metavar"] = metavar
    return Option(f"--{name}", **details)


GraceOption = Annotated[str | None, option("readers-grace")]
BranchesOption = Annotated[bool, option("branches")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """Options that select objects, and say how to look for them; in the order of the help."""

    committed: Annotated[bool, option("committed")] = False
    uncommitted: Annotated[bool, option("uncommitted")] = False
    metadata: Annotated[bool, option("metadata")] = False
    pruning: Annotated[bool, option("pruning")] = False
    clean: Annotated[bool, option("clean")] = False
    optimised: Annotated[bool, option("optimised")] = False
    old_layout: Annotated[bool, option("old-layout")] = False
    older_than: Annotated[str | None, option("older-than")] = None
    clean_every: Annotated[int | None, option("clean-every", min=1)] = None
    clean_after: Annotated[str | None, option("clean-after")] = None
    token_expiry: Annotated[str | None, option("token-expiry")] = None

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

    window: Annotated[str | None, option("window")] = None
    readers_grace: GraceOption = None

    def words(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Options that choose the engine, and into how many tasks the work is split."""

    engine: Annotated[str | None, option("engine")] = None
    tasks: Annotated[int | None, option("tasks", min=1)] = None

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
