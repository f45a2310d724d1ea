"""Give processes small equal shares of a core, so that two of them beside a load generator are twice one.

A quota of the kernel (control groups, version 1) makes the figure that of a machine with cores for all. What is
measured goes before other work on the machine. Where no control group can be made, the processes run free, and a line
on stderr says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup/cpu")
PERIOD_US: Final = 20_000
WEIGHT: Final = 20_480
"""That of twenty processes."""


@contextmanager
def limited(pids: Sequence[int], share: float | None) -> Iterator[None]:
    """Give each of these processes, with what it starts from now on, this share of a core. None: all that it takes."""
    with ExitStack() as ending:
        try:
            for pid in pids:
                group = GROUPS / f"lakebed-bench-{os.getpid()}-{pid}"
                group.mkdir()
                ending.callback(_remove, group)
                (group / "cpu.shares").write_text(str(WEIGHT))
                if share is not None:
                    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
                (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            print(f"processes run free: {error}", file=sys.stderr)
        yield


def _remove(group: Path) -> None:
    """Only an empty group can be removed: what is left in it goes back first."""
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (GROUPS / "cgroup.procs").write_text(pid)
        group.rmdir()
