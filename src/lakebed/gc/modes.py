"""How a run of uncommitted data is to be made: from everything, or from what an earlier run saved.

An optimised run leaves a little behind: what a collection of committed data gave up meanwhile, what came to an address
after it had expired, what somebody restored. A clean run finds it; so one is made now and then. When, is counted in
runs and in days for people's sake; nothing that is safe or unsafe hangs on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.gc.protocol import BadInput, Mode, RunMode, StartedRun, UncommittedOptions
from lakebed.gc.rules import DAY_MS

from .files import Files
from .saving import Base, NoSavedState, read_base
from .workshop import Workshop


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
