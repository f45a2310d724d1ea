"""Tests that run in a process with a planted bug: all in this process, or each in a fork that has collected them."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self

from .apart import ROOT, Done, apart
from .planting import Mutant

CPU_S: Final = 60
PASSED: Final = 0
NONE_CHOSEN: Final = 5
_Request = tuple[Mutant, Sequence[str]]
_OPTIONS: Final = (
    *("-x", "-q", "-s", "-m", "not spark and not slow", "--hypothesis-profile", "first failure"),
    # Of what this process has imported already.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"),
    # The parent's watchdog thread is not in a forked process, and faulthandler would wait for it without end.
    *("-p", "no:faulthandler"),
)


class NoTestRan(Exception):
    """Pytest refuses its options, or knows no such test."""


@cache
def ready_for_tests() -> None:
    """Import what nearly every test needs, once: a process that is forked begins with it. Halves what a test costs."""
    for name in ("pytest", "hypothesis", "lakebed.server.app"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def failing_test(tests: Sequence[str]) -> str:
    """Run tests until one fails, and return its name; empty where all pass. Only those that need no JVM.

    Raises:
        NoTestRan: pytest refused the command line, so no test ran. That is no catch.
    """
    failed = _Failed()
    ended = _run(tests, failed)
    return failed.name or (f"the tests end with {ended}" if ended not in (PASSED, NONE_CHOSEN) else "")


def _run(tests: Iterable[str], plugin: object) -> int:
    """
    Raises:
        NoTestRan: pytest refused the command line.
    """
    import pytest

    _draw_alike()
    # Those are the options of a run around this one: with `--costs` each fork would write the file.
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.chdir(ROOT)
    # Two processes that tidy pytest's common folder at once fail at each other.
    with tempfile.TemporaryDirectory(prefix="lakebed-sim-", ignore_cleanup_errors=True) as folder:
        ended = pytest.main([*_OPTIONS, f"--basetemp={folder}/tests", *tests], [plugin])
    if ended == pytest.ExitCode.USAGE_ERROR:
        raise NoTestRan(f"pytest cannot run {', '.join(tests)}")
    return ended


def _draw_alike() -> None:
    """Let Hypothesis draw the same in every process: it draws constants of each module that happens to be imported."""
    with contextlib.suppress(ImportError):
        from hypothesis.internal.conjecture import providers
        from hypothesis.internal.constants_ast import Constants

        none = Constants()
        providers._get_local_constants = lambda: none  # noqa: SLF001  # no setting of Hypothesis does this
        providers.CONSTANTS_CACHE.cache.clear()


class _Failed:
    """A plugin that remembers the first test that failed."""

    name = ""

    def pytest_addoption(self, parser: Any) -> None:
        # Of faulthandler, which is left out. The project sets it, and pytest refuses a setting that no plugin knows.
        parser.addini("faulthandler_timeout", "unused")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


class Trials:
    """A process that collects test files once, and runs tests of them in forks, each with a bug planted.

    A test that runs in a fork needs no start of pytest, no imports and no collection: most take a tenth of the time.
    The process is forked here, before any bug is planted, and collects when it is first asked.
    """

    def __init__(self, mutants: Iterable[Mutant], killers: Mapping[str, str]) -> None:
        tests = [test for mutant in mutants for test in (killers.get(mutant.name, ""), *mutant.tests)]
        self._files = sorted({test.partition("::")[0] for test in tests if test.startswith("tests/")})

    def __enter__(self) -> Self:
        self._asking, asked = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._serve, args=(asked,))
        self._process.start()
        asked.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.close()
        self._process.join()

    def failing(self, mutant: Mutant, tests: Sequence[str]) -> Done:
        """Run tests with the bug planted until one fails. `answer` is its name; empty where all pass.

        Raises:
            NoTestRan: there is no such test.
        """
        self._asking.send((mutant, tests))
        done: Done | Exception = self._asking.recv()
        if isinstance(done, Exception):
            raise done
        return done

    def _serve(self, asked: Connection) -> None:
        self._asking.close()
        # The forks write nothing, for this process may be one of a run of tests itself.
        with Path(os.devnull).open("r+") as nowhere:
            for descriptor in (1, 2):
                os.dup2(nowhere.fileno(), descriptor)
            sys.stdout = sys.stderr = nowhere
            if (first := _next(asked)) is not None:
                ready_for_tests()
                _run(self._files, _Forking(asked, first))
        os._exit(0)


class _Forking(_Failed):
    """A plugin that runs, instead of all tests that were collected, those that it is asked for, each time in a fork."""

    def __init__(self, asked: Connection, first: _Request) -> None:
        self.asked = asked
        self.first = first

    def pytest_runtestloop(self, session: Any) -> bool:
        request: _Request | None = self.first
        while request is not None:
            self.asked.send(self._answered(session, *request))
            request = _next(self.asked)
        return True

    def _answered(self, session: Any, mutant: Mutant, tests: Sequence[str]) -> Done | Exception:
        items = [item for item in session.items if any(_is_of(item.nodeid, test) for test in tests)]
        if not items:
            return NoTestRan(f"pytest knows none of {', '.join(tests)}")
        try:
            return apart(lambda: self._first_failure(mutant, items), ended="the tests end the process", cpu_s_max=CPU_S)
        except Exception as error:  # noqa: BLE001  # raised again by who asked
            return error

    def _first_failure(self, mutant: Mutant, items: Sequence[Any]) -> str:
        with mutant.planted():
            for item, following in zip_longest(items, items[1:]):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.name:
                    break
            session = items[0].session
            session.ihook.pytest_sessionfinish(session=session, exitstatus=PASSED)  # ends what fixtures began
        return self.name


def _next(asked: Connection) -> _Request | None:
    """Wait for a request. None: who asks is done, or has ended."""
    try:
        return asked.recv()  # type: ignore[no-any-return]  # the other end sends nothing else
    except EOFError:
        return None


def _is_of(nodeid: str, test: str) -> bool:
    return nodeid == test or nodeid.startswith((f"{test}::", f"{test}["))
