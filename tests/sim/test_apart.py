"""Work in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sim.planted.apart import apart, ticks_of
from sim.planted.hunting import MUTANTS
from sim.planted.trials import NoTestRan, Trials, failing_test

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


def test_who_waits_for_another_process_is_not_idle_while_that_works() -> None:
    before = ticks_of(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        worked = ticks_of(os.getpid()) - before
        other.communicate(b"\n")

    assert worked >= 25


def test_only_a_test_that_ran_and_failed_is_a_catch() -> None:
    passes = ["tests/formats/test_ledger_files.py::test_the_golden_record_of_the_ledger_is_read"]
    unknown = ["tests/formats/test_ledger_files.py::test_of_no_such_name"]

    assert apart(lambda: failing_test(passes), ended="died", cpu_s_max=60).answer == ""
    with pytest.raises(NoTestRan):
        apart(lambda: failing_test(unknown), ended="died", cpu_s_max=60)


def test_a_test_fails_only_in_the_fork_that_has_the_bug() -> None:
    [mutant] = [one for one in MUTANTS if one.name == "place-trusted"]
    other = "tests/catalog/test_places.py::test_a_process_notes_the_places_that_an_earlier_release_did_not"

    with Trials([mutant], {}) as trials:
        assert trials.failing(mutant, mutant.tests).answer.startswith(mutant.tests[0])
        assert trials.failing(mutant, [other]).answer == ""
        assert trials.failing(mutant, mutant.tests).answer.startswith(mutant.tests[0])
        with pytest.raises(NoTestRan):
            trials.failing(mutant, ["tests/catalog/test_places.py::test_of_no_such_name"])
