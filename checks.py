"""The full check, as CI runs it: format, lint, types, then every test. The layers and other rules of the code are tests
too (tests/tidy). Options go to pytest, which runs in one process then; without any, in one for each core.
`python3 run.py test` sets up and calls this, and so does `just check`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STEPS = [
    ("format", ["-m", "ruff", "format", "--check", "--quiet", "."]),
    ("lint", ["-m", "ruff", "check", "--quiet", "."]),
    ("types", ["-m", "mypy"]),
]
# Where a process of the tests crashes, the run ends, and names the test. pytest-xdist may else wait for its successor
# without end.
ALL_TESTS = ["-q", "--numprocesses=auto", "--maxprocesses=4", "--max-worker-restart=0"]


def main(pytest_options: list[str]) -> int:
    failed = []
    for name, command in STEPS:
        began = time.monotonic()
        code = subprocess.call([sys.executable, *command], cwd=ROOT)
        print(f"{name}: {'failed' if code else 'ok'} ({time.monotonic() - began:.0f} s)", flush=True)
        failed += [name] * (code != 0)
    # Last, so that the output ends with the test runner's closing line.
    tests = subprocess.call([sys.executable, "-m", "pytest", *(pytest_options or ALL_TESTS)], cwd=ROOT)
    if failed:
        print(f"failed before the tests: {', '.join(failed)}", file=sys.stderr)
    return tests or int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
