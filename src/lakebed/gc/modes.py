"""How a run of uncommitted data is to be made: from everything, or from what an earlier run saved.

An optimised run leaves a little behind: what a collection of committed data gave up meanwhile, what came to an address
after it had expired, what somebody restored. A clean run finds it; so one is made now and then. When, is counted in
runs and in days for people's sake; nothing that is safe or unsafe hangs on it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from lakebed.gc.protocol import BadInput, RunMode, StartedRun
from lakebed.gc.rules import DAY_MS, parse_duration

from .files import Files
from .saving import Base, NoSavedState, read_base
from .workshop import Workshop

CLEAN_EVERY: Final = 10
CLEAN_AFTER_MS: Final = 7 * DAY_MS
OLD_LAYOUT_AGE_MS: Final = 7 * DAY_MS


class Mode(enum.StrEnum):
    """What is asked for. `automatic`: optimised if there is a saved state and a clean run is not due, else clean."""

    AUTOMATIC = "automatic"
    CLEAN = "clean"
    OPTIMISED = "optimised"
    OLD_LAYOUT = "old-layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class UncommittedOptions:
    """`clean_every`: of so many automatic runs one is clean, and none is optimised once the last clean one began
    `clean_after_ms` ago. `token_expiry_ms`: slices opened within so long are left to a later run (the cut-off of
    docs/design/0001-uncommitted-gc.md; only settled slices are looked at in any case). `old_layout_age_ms`: how long
    ago an object outside slices must have been written before it may go.
    """

    mode: Mode = Mode.AUTOMATIC
    clean_every: int = CLEAN_EVERY
    clean_after_ms: int = CLEAN_AFTER_MS
    token_expiry_ms: int = 0
    old_layout_age_ms: int = OLD_LAYOUT_AGE_MS


def options_of(
    mode: Mode,
    *,
    clean_every: int | None = None,
    clean_after: str | None = None,
    token_expiry: str | None = None,
    older_than: str | None = None,
) -> UncommittedOptions:
    """As people say them: durations as in rules (`36h`, `7d`), `older_than` being the age for old layouts.

    Raises:
        InvalidDuration: not one.
    """
    options = UncommittedOptions(mode=mode)
    if clean_every is not None:
        options = replace(options, clean_every=clean_every)
    if clean_after is not None:
        options = replace(options, clean_after_ms=_milliseconds(clean_after))
    if token_expiry is not None:
        options = replace(options, token_expiry_ms=_milliseconds(token_expiry))
    if older_than is not None:
        options = replace(options, old_layout_age_ms=_milliseconds(older_than))
    return options


def _milliseconds(duration: str) -> int:
    """A month is 31 days."""
    return -parse_duration(duration).before_ms(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`note` says, for people, why it is this mode. `base` where it is the optimised one."""

    mode: RunMode
    note: str
    base: Base | None = None


def choose(shop: Workshop, files: Files, run: StartedRun, options: UncommittedOptions) -> Choice:
    """Clean or optimised.

    Raises:
        NoSavedState: nothing but an optimised run was asked for, and it cannot be.
    """
    if options.mode is Mode.CLEAN:
        return Choice(mode=RunMode.CLEAN, note="asked for")
    try:
        base = read_base(shop, files, run)
    except BadInput as error:
        if options.mode is Mode.OPTIMISED:
            raise NoSavedState(f"no optimised run can be made: {error}") from error
        return Choice(mode=RunMode.CLEAN, note=str(error))
    due = _why_clean(base, run, options)
    if due and options.mode is Mode.AUTOMATIC:
        return Choice(mode=RunMode.CLEAN, note=due)
    return Choice(mode=RunMode.OPTIMISED, note=f"goes on from run {base.saved.run_id}", base=base)


def _why_clean(base: Base, run: StartedRun, options: UncommittedOptions) -> str:
    """Empty: no clean run is due."""
    keeps = base.saved.keeps
    if keeps.runs_since_clean + 1 >= options.clean_every:
        return f"{keeps.runs_since_clean} optimised runs since clean run {keeps.clean_run}"
    if run.now_ms - keeps.clean_ms >= options.clean_after_ms:
        return f"clean run {keeps.clean_run} is {(run.now_ms - keeps.clean_ms) // DAY_MS} days old"
    return ""
