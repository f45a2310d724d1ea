"""What counts for every test: no time limit, also not Hypothesis' own, for a machine may be busy; and Ctrl-C works.

Beside it, a disk that is small enough to fill.
"""

from __future__ import annotations

import inspect
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings

from lakebed.objectstore import opening

pytest_plugins = ["tests.tiers"]

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A run of the suite is about its commit: all runs of one commit draw the same examples.
settings.register_profile("lakebed", settings.get_profile("random"), derandomize=True)
# The simulator asks only whether a planted bug is noticed: the first example that fails is enough.
settings.register_profile(
    "first failure",
    settings.get_profile("lakebed"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.load_profile("lakebed")

timeouts: httpx.Timeout = inspect.signature(httpx.Client).parameters["timeout"].default
timeouts.connect = timeouts.read = timeouts.write = timeouts.pool = 600
"""httpx gives up after 5 s, where a test or the program names no other time."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and every program that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _own_memory() -> None:
    """Begin each file with empty stores of `mem://`, whichever files its process ran before."""
    opening._memory.cache_clear()


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount an empty file system of this size (such as `4m`) until the test ends."""
    disk = tmp_path / "disk"

    def mount(size: str) -> Path:
        disk.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=False, capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"only a privileged process can mount a small file system: {done.stderr.strip()}")
        return disk

    yield mount
    if disk.is_mount():
        subprocess.run(["umount", "-l", disk], check=True)


def fill_disk(folder: Path) -> Path:
    """Leave no byte free on the disk of this folder; deleting the returned file frees it again."""
    file = folder / "ballast"
    with file.open("ab", buffering=0) as ballast:
        for size_bytes in (1 << 20, 1 << 12, 1):
            try:
                while ballast.write(bytes(size_bytes)) == size_bytes:
                    pass
            except OSError:
                continue
    return file
