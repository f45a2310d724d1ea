"""What `lakebed gc plan` and `run` look for, and how: which kinds of data, and uncommitted data from everything, from
what changed, or outside slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from lakebed.cli.failures import Misuse

if TYPE_CHECKING:
    # At run time only in the commands that need them.
    from lakebed.gc import UncommittedOptions
    from lakebed.gc.protocol import RunKind

CommittedOption = Annotated[bool, typer.Option("--committed", help="Only data of commits that expired by the rules.")]
UncommittedOption = Annotated[bool, typer.Option("--uncommitted", help="Only data that is in no commit.")]
MetadataOption = Annotated[
    bool, typer.Option("--metadata", help="Only files of our own: ranges that no commit names, folders of old runs.")
]
CleanOption = Annotated[
    bool, typer.Option("--clean", help="Uncommitted data: look at everything, not just at what changed.")
]
OptimisedOption = Annotated[
    bool, typer.Option("--optimised", help="Uncommitted data: look at what changed since an earlier run, or fail.")
]
OldLayoutOption = Annotated[
    bool, typer.Option("--old-layout", help="With --uncommitted: look only at objects outside data/SLICE/.")
]
OlderThanOption = Annotated[
    str | None, typer.Option("--older-than", metavar="7d", help="With --old-layout: written so long ago. Default: 7d.")
]
CleanEveryOption = Annotated[
    int | None, typer.Option("--clean-every", min=1, help="Of so many runs one looks at everything. Default: 10.")
]
CleanAfterOption = Annotated[
    str | None, typer.Option("--clean-after", metavar="7d", help="And at the latest after so long. Default: 7d.")
]
TokenExpiryOption = Annotated[
    str | None, typer.Option("--token-expiry", metavar="1h", help="Leave slices opened within so long to a later run.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """Options of both commands, in the order of their help."""

    committed: CommittedOption = False
    uncommitted: UncommittedOption = False
    metadata: MetadataOption = False
    clean: CleanOption = False
    optimised: OptimisedOption = False
    old_layout: OldLayoutOption = False
    older_than: OlderThanOption = None
    clean_every: CleanEveryOption = None
    clean_after: CleanAfterOption = None
    token_expiry: TokenExpiryOption = None

    def kinds(self) -> list[RunKind]:
        """Empty where none was asked for: then all, as far as there is something to do (`Collector.plan_each`)."""
        from lakebed.gc.protocol import RunKind

        asked = {
            RunKind.COMMITTED: self.committed,
            RunKind.UNCOMMITTED: self.uncommitted,
            RunKind.METADATA: self.metadata,
        }
        return [kind for kind in RunKind if asked[kind]]

    def options(self) -> UncommittedOptions:
        """
        Raises:
            Misuse: options that do not go together.
            InvalidDuration: a period that is none.
        """
        from lakebed.gc import Mode, options_of

        flags = {Mode.CLEAN: self.clean, Mode.OPTIMISED: self.optimised, Mode.OLD_LAYOUT: self.old_layout}
        asked = [mode for mode, is_asked in flags.items() if is_asked]
        if len(asked) > 1:
            raise Misuse(f"--{asked[0]} and --{asked[1]} do not go together")
        if (self.committed or self.metadata) and not self.uncommitted and (how := self._how()):
            raise Misuse(f"--{how[0]} is for uncommitted data: say --uncommitted too, or neither kind")
        if self.old_layout and not self.uncommitted:
            raise Misuse("--old-layout is for uncommitted data: say --uncommitted too")
        if self.older_than is not None and not self.old_layout:
            raise Misuse("--older-than is for --old-layout; rules say how long other data stays")
        return options_of(
            asked[0] if asked else Mode.AUTOMATIC,
            clean_every=self.clean_every,
            clean_after=self.clean_after,
            token_expiry=self.token_expiry,
            older_than=self.older_than,
        )

    def _how(self) -> list[str]:
        """The options given that say how uncommitted data is looked for."""
        names = ("clean", "optimised", "clean_every", "clean_after", "token_expiry")
        return [name.replace("_", "-") for name in names if getattr(self, name)]
