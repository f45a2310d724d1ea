"""How `lakebed gc plan` and `run` look for uncommitted data: from everything, from what changed, or outside slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .failures import Misuse

if TYPE_CHECKING:
    # At run time only in the commands that need it.
    from lakebed.gc import UncommittedOptions

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


def uncommitted_options(
    *,
    uncommitted: bool,
    clean: bool,
    optimised: bool,
    old_layout: bool,
    older_than: str | None,
    clean_every: int | None,
    clean_after: str | None,
    token_expiry: str | None,
) -> UncommittedOptions:
    """
    Raises:
        Misuse: options that do not go together.
        InvalidDuration: a period that is none.
    """
    from lakebed.gc import Mode, options_of

    asked = [mode for mode, is_asked in zip(_FLAGS, (clean, optimised, old_layout), strict=True) if is_asked]
    if len(asked) > 1:
        raise Misuse(f"--{asked[0]} and --{asked[1]} do not go together")
    if old_layout and not uncommitted:
        raise Misuse("--old-layout is for uncommitted data: say --uncommitted too")
    if older_than is not None and not old_layout:
        raise Misuse("--older-than is for --old-layout; rules say how long other data stays")
    return options_of(
        Mode(asked[0]) if asked else Mode.AUTOMATIC,
        clean_every=clean_every,
        clean_after=clean_after,
        token_expiry=token_expiry,
        older_than=older_than,
    )


_FLAGS = ("clean", "optimised", "old-layout")
