"""Choose the tests of the README's command, count what each part costs, and stop a run that takes too long.

`python3 run.py test` passes `--tier`: it takes the parts below. Of the rotating ones the commit chooses a share.
Dear tests rotate too. `--all` passes `--turn`: every test, and some cases of those with dear ones (`ROTATING`). Plain
pytest takes all. A run ends with a table of what was left out, and of CPU seconds.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from bench.http import family

ROOT: Final = Path(__file__).resolve().parents[1]
COSTS: Final = ROOT / "tests" / "costs.json"
"""CPU seconds, as `--costs` last wrote them: `parts`, of the tier, which tests/tidy holds to the budgets; `dear`, of
each test that took `DEAR_S` or more when all ran. Of these the tier takes one in `DEAR_ONE_IN`."""
DEAR_S: Final = 1.5
DEAR_ONE_IN: Final = 8
BUDGET_S: Final = 960
"""Eight minutes on two cores."""
GRACE_S: Final = 120
"""What a stopped run may take to end its servers and to say what is missing."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the tests, by patterns of their ids or by markers. The first part that fits counts.

    `one_in`: the tier takes one test in so many, others at each commit; 0: none.
    """

    name: str
    budget_s: int
    patterns: tuple[str, ...]
    one_in: int = 1
    why: str = ""


SERVERS: Final = (
    *("bigtable", "cassandra", "dynamodb", "etcd", "hbase", "mongodb", "mysql", "postgres", "redis", "spanner"),
)
"""Databases whose tests start a program that is not Python's. Doubles of ours stand in for the others."""

PARTS: Final = (
    Part("planted bugs", 60, ("*/test_mutants.py::test_every_planted*", "*/test_mutants.py::test_a_mutant_leaves*"), 8),
    Part("worlds", 70, ("*/test_promises.py::test_no_schedule*",), 6),
    Part("kills, storms, clusters", 0, ("@slow",), 0, "minutes each"),
    Part(
        "programs of others",
        0,
        (
            *(f"*/test_{name}.py::*" for name in ("browser", "clouds", "s3_spark", "s3_tables", "s3_tools")),
            *("*/test_vectors.py::*", "*/test_failing_disk.py::*", "tests/deploy/*", "*::TestAzure*", "*/test_azure*"),
        ),
        0,
        "browsers, S3 tools, emulators, container tools",
    ),
    Part(
        "database servers",
        0,
        (
            *(f"*/test_{name}.py::*" for name in SERVERS),
            *(f"*[[]{name}*" for name in SERVERS),
            *(f"*-{name}[]-]*" for name in SERVERS),
            "*on_postgresql*",
        ),
        0,
        "each needs a program that is not Python's",
    ),
    Part("benchmarks", 20, ("tests/bench/*",), 8),
    Part("Spark, the second engine", 30, ("@spark [[]spark",), 12),
    Part("Spark", 50, ("@spark",)),
    Part("simulator", 60, ("tests/sim/*", "tests/outside/*"), 3),
    Part("collections", 130, ("tests/gc/*",)),
    Part("collections on the local engine", 40, ("tests/spark/*",), 3),
    Part("databases", 40, ("tests/kv/*",), 2),
    Part("clients", 60, ("tests/compat/*", "tests/lake/*", "tests/client/*")),
    Part("server and commands", 120, ("tests/server/*", "tests/cli/*", "tests/operations/*", "tests/migration/*"), 2),
    Part("all else", 110, ("*",)),
)
ROTATING: Final = {
    "tests/bench/test_bench.py::test_a_benchmark_reports*": 4,
    "tests/cli/test_quickstart.py::test_an_interrupt_while_spark*": 2,
    "tests/compat/test_databases.py::*": 3,
    "tests/compat/test_s3_tools.py::*[[]*": 2,
    "tests/compat/test_same_bytes.py::test_any_other*": 3,
    "tests/deploy/test_distribution.py::test_*[[]*": 2,
    "tests/server/process/test_behind_a_balancer.py::test_a_rolling*": 2,
    "tests/server/web/test_browser.py::test_no_name_of*": 4,
    "tests/sim/test_merging.py::*[[]*": 2,
    "tests/outside/test_storm.py::test_a_storm_*": 3,
    "tests/spark/*.py::*[[]spark*": 2,
}
"""Of the cases of such a test, `--all` too takes one in so many, others at each commit: they try one promise with
several databases, programs or scenes. Tests without cases whose ids fit are cases of one."""
ROTATING_TOGETHER: Final = {
    (
        *(f"tests/kv/drivers/test_{name}.py" for name in ("cassandra", "dynamodb", "hbase")),
        *(f"tests/kv/drivers/google/test_{name}.py" for name in ("bigtable", "spanner")),
    ): 2,
    tuple(f"tests/kv/drivers/test_blobs.py::{name}" for name in ("TestAzure", "TestCloudStorage", "TestS3")): 2,
    ("tests/spark/test_clusters.py", "tests/spark/test_standalone.py"): 2,
    ("tests/server/web/test_barriers.py", "tests/server/web/test_conditions.py"): 2,
}
"""Files and classes that are the cases: what each starts costs more than its tests."""
BESIDE: Final = Part("types", 80, ())
COLLECTING: Final = Part("collecting", 90, ())
DEAR: Final = "dear tests of all parts"
RESTING: Final = "cases that rotate in --all too"


@cache
def recorded(name: str) -> dict[str, int]:
    """Return `parts` or `dear` of what `--costs` wrote."""
    costs: dict[str, dict[str, int]] = json.loads(COSTS.read_text())
    return costs[name]


def fits(pattern: str, nodeid: str, markers: set[str]) -> bool:
    """Match a pattern of an id, or `@marker`, or both with a space between."""
    marker, _, pattern = pattern.rpartition(" ") if pattern.startswith("@") and " " in pattern else ("", "", pattern)
    if pattern.startswith("@"):
        return pattern[1:] in markers
    return (not marker or marker[1:] in markers) and fnmatch.fnmatchcase(
        nodeid, pattern if not marker else f"*{pattern}*"
    )


def part_of(nodeid: str, markers: set[str]) -> Part:
    return next(part for part in PARTS if any(fits(pattern, nodeid, markers) for pattern in part.patterns))


def is_taken(part: Part, nodeid: str, turn: str, dear: Collection[str] = ()) -> bool:
    """Tell whether the tier takes this test, where `turn` is the commit. Of the `dear` ones it takes fewer."""
    one_in = max(part.one_in, DEAR_ONE_IN) if part.one_in and nodeid in dear else part.one_in
    return one_in > 0 and has_turn(nodeid, turn, one_in)


def has_turn(name: str, turn: str, one_in: int) -> bool:
    # Each share draws apart. By one number of the commit, two shares with a common divisor would never meet for most
    # names. CRC does not draw apart: of two texts that differ in the same way, its low bits differ in the same way.
    drawn = hashlib.blake2b(f"{one_in} {turn}".encode(), digest_size=8).digest()
    return zlib.crc32(name.encode()) % one_in == int.from_bytes(drawn) % one_in


def rotates(nodeid: str) -> bool:
    return _group_of(nodeid) is not None


def _group_of(nodeid: str) -> tuple[str, str, int] | None:
    """Return what this test rotates with, which case of it this is, and in how many that takes turns."""
    for together, one_in in ROTATING_TOGETHER.items():
        for case in together:
            if nodeid.startswith(f"{case}::"):
                return together[0], case, one_in
    for pattern, one_in in ROTATING.items():
        if fnmatch.fnmatchcase(nodeid, pattern):
            test, bracket, _ = nodeid.partition("[")
            return f"{pattern} {test if bracket else ''}", nodeid, one_in
    return None


def resting(nodeids: Sequence[str], turn: str) -> set[str]:
    """Return the cases of `ROTATING` tests that rest at this commit. Of each test at least one case is taken."""
    groups: defaultdict[tuple[str, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for nodeid in nodeids:
        if found := _group_of(nodeid):
            group, case, one_in = found
            groups[group, one_in][case].append(nodeid)
    number = zlib.crc32(turn.encode())
    return {
        nodeid
        for (_, one_in), cases in groups.items()
        for index, of_case in enumerate(cases.values())
        if (index + number) % min(one_in, len(cases))
        for nodeid in of_case
    }


def scope_of(nodeid: str) -> str:
    """Name what one of several processes runs as a whole: a file, or all tests that share the session of Spark.

    The local engine's tests of such a file run beside it. Each test of the simulator, and of servers from outside, is
    alone, for their files are long.
    """
    file, _, test = nodeid.partition("::")
    match file.split("/")[1]:
        case "spark" if "[local" not in test and not file.endswith(("test_standalone.py", "test_clusters.py")):
            return "spark"
        case "sim" | "outside":
            return nodeid
        case _:
            return file


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Begin with the scopes that cost most, so that no process has one of them left when the others are done."""
    costs: Counter[str] = Counter()
    for item in items:
        known = recorded("dear").get(item.nodeid, 0)
        # Slow tests wait more than they compute.
        costs[scope_of(item.nodeid)] += 10 * (known or 1) * (2 if item.get_closest_marker("slow") else 1)

    def rank(item: pytest.Item) -> tuple[bool, int]:
        scope = scope_of(item.nodeid)
        return scope != "spark", -costs[scope]

    return sorted(items, key=rank)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Give a whole file to one of several processes, so that what the file sets up starts once."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # `longest_first` did that
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", metavar="COMMIT", help="take the tests of the README's command; what rotates is COMMIT's")
    group.addoption("--turn", metavar="COMMIT", help="take every test, and of the cases that rotate those of COMMIT")
    group.addoption(
        "--stop-after", type=float, metavar="MINUTES", help="end the run then, and name the tests left over"
    )
    group.addoption("--types", action="store_true", help="check the types beside the tests")
    group.addoption("--costs", action="store_true", help="write tests/costs.json: of a tier its parts, else dear tests")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(Choosing(config) if is_worker else Controller(config), "lakebed-tiers")


class Choosing:
    """What runs where the tests run: choose, and measure."""

    def __init__(self, config: pytest.Config) -> None:
        self.turn: str | None = config.getoption("--tier")
        self.turn_of_cases: str | None = config.getoption("--turn")
        self.left_out: Counter[str] = Counter()
        self.collecting_s = 0.0
        self.before_s = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left = {item.nodeid: name for item in items if (name := self._why_left_out(item))}
        if self.turn_of_cases is not None:
            left |= dict.fromkeys(resting([item.nodeid for item in items], self.turn_of_cases), RESTING)
        if left:
            self.left_out.update(left.values())
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
            items[:] = [item for item in items if item.nodeid not in left]
        if hasattr(config, "workerinput"):
            items[:] = longest_first(items)
        self.collecting_s = cpu_s()

    def _why_left_out(self, item: pytest.Item) -> str:
        """Return the part or kind of this test where the tier does not take it, else nothing."""
        if self.turn is None:
            return ""
        part, dear = part_of(item.nodeid, {mark.name for mark in item.iter_markers()}), recorded("dear")
        if is_taken(part, item.nodeid, self.turn, dear):
            return ""
        return DEAR if part.one_in and item.nodeid in dear else part.name

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.before_s = cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if report.when == "teardown":
            part = part_of(item.nodeid, {mark.name for mark in item.iter_markers()})
            report.user_properties.append((f"cpu_s {part.name}", cpu_s() - self.before_s))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["tiers"] = {"left_out": dict(self.left_out), "collecting_s": self.collecting_s}


class Controller(Choosing):
    """What runs once: sum up, check the types, watch the clock, and say what is missing."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self.config = config
        self.cost_s: defaultdict[str, float] = defaultdict(float)
        self.dear: dict[str, int] = {}
        self.waiting: dict[str, None] = {}
        self.is_stopped = False
        self.is_ending = False
        self.types: subprocess.Popen[str] | None = None
        self.has_failed = False
        minutes: float | None = config.getoption("--stop-after")
        if minutes is not None:
            threading.Thread(target=self._stop_after, args=(minutes * 60,), daemon=True).start()
        if config.getoption("--types"):
            self.types = subprocess.Popen(
                [sys.executable, "-m", "mypy"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

    def _stop_after(self, seconds: float) -> None:
        time.sleep(seconds)
        if not self.is_ending:  # else each test ran, and an interrupt would only lose the summary
            self.is_stopped = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(GRACE_S)
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        for line in ["", *self._left_over(), f"The run did not end within {GRACE_S} s after it was stopped."]:
            reporter.write_line(line, flush=True)
        for pid in reversed(family(os.getpid())[1:]):
            os.kill(pid, 9)
        os._exit(1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: WorkerController, ids: list[str]) -> None:
        self.waiting = dict.fromkeys(ids) if not self.waiting else self.waiting

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object) -> None:
        told = getattr(node, "workeroutput", {}).get("tiers", {})
        self.left_out |= Counter(told.get("left_out", {}))  # each worker leaves out the same
        self.cost_s[COLLECTING.name] += told.get("collecting_s", 0)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.waiting = dict.fromkeys(item.nodeid for item in session.items)
            self.cost_s[COLLECTING.name] += self.collecting_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # at once, for the end of a run may be cut off
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash else ""
            reporter = self.config.pluginmanager.getplugin("terminalreporter")
            reporter.write_line(f"\n{report.when} failed: {report.nodeid}: {reason}", flush=True)
        if report.when == "teardown":
            self.waiting.pop(report.nodeid, None)
            for name, value in report.user_properties:
                if name.startswith("cpu_s "):
                    self.cost_s[name.removeprefix("cpu_s ")] += (cost := float(str(value)))
                    if cost >= DEAR_S:
                        self.dear[report.nodeid] = round(cost)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.is_ending = True
        if self.is_stopped or self._types_fail():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _types_fail(self) -> bool:
        if self.types is None:
            return False
        assert self.types.stdout is not None
        if self.is_stopped:
            self.types.kill()
        said = self.types.stdout.read()
        _, status, used = os.wait4(self.types.pid, 0)
        self.types.returncode = os.waitstatus_to_exitcode(status)
        self.cost_s[BESIDE.name] = used.ru_utime + used.ru_stime
        print(f"\ntypes: {'failed' if status else 'ok'}\n{said if status else ''}", end="", flush=True)
        return status != 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in [*self._costs(), *self._left_out(), *self._left_over()]:
            terminalreporter.write_line(line)
        if terminalreporter.config.getoption("--costs"):
            rest = {name: cost for name, cost in recorded("dear").items() if rotates(name)}
            kept = rest | self.dear if self.turn is None else {name: round(cost) for name, cost in self.cost_s.items()}
            costs = {name: recorded(name) for name in ("parts", "dear")}
            costs["dear" if self.turn is None else "parts"] = dict(sorted(kept.items()))
            COSTS.write_text(json.dumps(costs, indent=1, ensure_ascii=False) + "\n")

    def _costs(self) -> Iterator[str]:
        if self.turn is None and sum(self.cost_s.values()) < BUDGET_S:
            return  # some files only
        yield "CPU seconds of each part, and its budget in the tier:"
        for part in (COLLECTING, BESIDE, *PARTS):
            if cost := self.cost_s[part.name]:
                yield f"{cost:8.0f} {part.budget_s:6}  {part.name}"
        yield f"{sum(self.cost_s.values()):8.0f} {BUDGET_S:6}  in all"

    def _left_out(self) -> Iterator[str]:
        if count := self.left_out[RESTING]:
            yield f"{count} {RESTING} had no turn ({self.turn_of_cases}); plain pytest runs them."
            return
        if self.left_out:
            yield f"Left out; python3 run.py test --all runs these {self.left_out.total()} too:"
        if count := self.left_out[DEAR]:
            reason = f"of {DEAR_S} CPU s or more; 1 in {DEAR_ONE_IN} ran, others at each commit ({self.turn})"
            yield f"{count:8}  {DEAR}: {reason}"
        for part in PARTS:
            if count := self.left_out[part.name]:
                reason = f"1 in {part.one_in} ran, others at each commit ({self.turn})" if part.one_in else part.why
                yield f"{count:8}  {part.name}: {reason}"

    def _left_over(self) -> Iterator[str]:
        if self.is_stopped:
            yield f"STOPPED: the run reached its limit. These {len(self.waiting)} tests did not run or did not end:"
            for file, count in Counter(nodeid.partition("::")[0] for nodeid in self.waiting).items():
                example = next(nodeid for nodeid in self.waiting if nodeid.startswith(file))
                yield f"{count:8}  {file if count > 1 else example}"


def cpu_s() -> float:
    """Return the CPU time of this process, of its descendants, and of those that ended and were waited for."""
    ticks = 0
    for pid in family(os.getpid()):
        try:
            ticks += sum(
                int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            )
        except OSError:  # it has just ended
            continue
    return ticks / os.sysconf("SC_CLK_TCK")
