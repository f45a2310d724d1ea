"""Work in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from sim.planted.apart import ticks_of

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


def test_who_waits_for_another_process_is_not_idle_while_that_works() -> None:
    before = ticks_of(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        worked = ticks_of(os.getpid()) - before
        other.communicate(b"\n")

    assert worked >= 25
