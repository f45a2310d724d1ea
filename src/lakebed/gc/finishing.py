"""Finishing what is unfinished before anything new is planned, and saying where an apply left off.

A run whose apply died holds its objects, its list of commits and its folder until somebody goes on with it. So a
nightly `run` begins with those, each in the way it was begun. One that cannot be finished stops nobody but what may not
be planned beside it; it is told at the end, as an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from lakebed.base import Conflict, Corrupt, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.gc.protocol import RunKind, RunReport, RunState

from .failures import TaskStopped
from .fencing import Overtaken
from .runs import Progress
from .standing import Standing
from .unfinished import UnfinishedRun


class NotFinished(LakebedError):
    """A run whose deletes began could not be finished. The message says which and why; all else was done."""


def finish_each(
    runs: Iterable[UnfinishedRun],
    apply: Callable[[str, str | None], RunReport],
    progress: Progress,
    left: list[str],
    *,
    quarantine: str | None = None,
) -> Iterator[RunReport]:
    """Apply each again, by its id: in the way it was begun, or with the window of `quarantine`, if nobody asked for one
    before and the run can have one. What could not be finished is told, and added to `left`.

    Raises:
        Unavailable, Denied, Overtaken, …: what stops every run.
    """
    for run in runs:
        asked = None if run.window or run.kind is RunKind.METADATA else quarantine
        window = run.window or asked
        how = f", moving aside for {window}" if window else ""
        progress(f"finishing run {run.run_id} ({run.kind}), which began to delete and has not ended{how}")
        try:
            yield apply(run.run_id, asked)
        except (Overtaken, TaskStopped):
            raise
        except (Conflict, Corrupt, NotFound) as error:
            left.append(f"run {run.run_id} could not be finished: {error}")
            progress(left[-1])


def go_on_command(repository: str, run_id: str) -> str:
    return f"lakebed gc apply lakefs://{repository} {run_id}"


@contextlib.contextmanager
def telling_where(run_id: str, standing: Callable[[], Standing], command: str, progress: Progress) -> Iterator[None]:
    """Around an apply: if somebody stops it, or nobody answers, say how far it came and what goes on with it."""
    try:
        yield
    except (KeyboardInterrupt, Unavailable, OutcomeUnknown):
        try:
            progress(left_off(standing(), command))
        except LakebedError:
            progress(
                f"stopped; what was done of run {run_id} is recorded; if its deletes began, the next `gc run` goes on "
                f"with it; at once: {command}"
            )
        raise


def left_off(found: Standing, command: str) -> str:
    """One sentence for who stopped an apply, or saw it stop."""
    if found.state == RunState.ENDED:
        return f"stopped, and run {found.run_id} had ended"
    if not found.is_unfinished:
        return f"stopped before run {found.run_id} deleted anything; apply it again: {command}"
    done = f"what was done of run {found.run_id} is recorded"
    if found.objects is not None and found.objects_done is not None:
        done = f"{found.objects_done:,} of {found.objects:,} objects of run {found.run_id} are recorded as done"
    return f"stopped: {done}; the next `gc run` goes on with it, or at once: {command}"
