"""Format, lint, types and tests. `python3 run.py test` sets up and calls this, and so does `just check`.

    checks.py                    what a change needs: the tests of the tier, in some eight minutes of two quiet cores
    checks.py --all              every test, as CI runs them; of a few, some of the cases, others at each commit
    checks.py [pytest options]   these tests, in one process

The layers and other rules of the code are tests too (tests/tidy). tests/tiers.py says what the tier takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STEPS = [
    ("format", ["-m", "ruff", "format", "--check", "--quiet", "."]),
    ("lint", ["-m", "ruff", "check", "--quiet", "."]),
]
# Where a process of the tests crashes, the run ends, and names the test. pytest-xdist may else wait for its successor
# without end. Nothing hangs without end either: a test that waits for 15 minutes fails, and the whole run has a limit.
RUN = ["-q", "--maxprocesses=4", "--max-worker-restart=0", "--timeout=900", "--stop-after=84"]


def main(arguments: list[str]) -> int:
    # The tests start processes by the hundred. Without bytecode each would compile all modules: a second of CPU.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    failed = []
    for name, command in STEPS:
        began = time.monotonic()
        code = subprocess.call([sys.executable, *command], cwd=ROOT)
        print(f"{name}: {'failed' if code else 'ok'} ({time.monotonic() - began:.0f} s)", flush=True)
        failed += [name] * (code != 0)
    options = [argument for argument in arguments if argument != "--all"]
    chosen = RUN if not options else []
    if not options:
        # One process more than there are cores: a third of the time a test waits for a server that it started.
        processes = (os.cpu_count() or 1) + 1
        chosen = [*chosen, f"--numprocesses={processes}", f"--{'turn' if arguments else 'tier'}={commit()}"]
    # The runner checks the types beside the tests, and says so before its closing line, which comes last.
    tests = subprocess.call([sys.executable, "-m", "pytest", "--types", *chosen, *options], cwd=ROOT)
    if failed:
        print(f"failed before the tests: {', '.join(failed)}", file=sys.stderr)
    return tests or int(bool(failed))


def commit() -> str:
    """Return the commit, which says what of the rotating parts runs; without git always the same."""
    asked = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "0"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
