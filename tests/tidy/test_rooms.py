"""A newcomer who follows a plan or an apply opens few files (docs/design/0009-one-flow.md, "Figures")."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_plan_and_an_apply_enter_at_most_38_files_of_the_collector() -> None:
    """In a process of its own: what is in a cache already enters no file."""
    run = subprocess.run([sys.executable, "-m", "bench.rooms"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.stdout.count("files of the collector") == 4, run.stderr
    assert run.returncode == 0, run.stdout
