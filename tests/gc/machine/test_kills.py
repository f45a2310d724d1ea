"""Processes that really die while they sweep, and one that may not delete (sweeper.py)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lakebed

ROOT = Path(__file__).parents[3]


def test_a_sweep_killed_at_any_step_loses_nothing_and_one_without_permission_says_so() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # the process without permission is another user's, who must get as far as this
    environment = {**os.environ, "PYTHONPATH": f"{Path(lakebed.__file__).parents[1]}:{ROOT}"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gc.sweeper", str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(folder)

    assert done.returncode == 0, done.stderr
    # The claim, and of each of two parts the delete and the ledger: before and after each.
    assert json.loads(done.stdout)["died"] >= 2 * 5
