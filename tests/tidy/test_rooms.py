"""A newcomer finds the room of a question, and opens few files (docs/design/0009-one-flow.md and 0005-layout.md).

The figures are those that were reached last. Lower them when a change allows it; raise none.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lakebed.base import RunKind

ROOT = Path(__file__).parents[2]
GC = ROOT / "src" / "lakebed" / "gc"

FLOORS = ("rules", "messages", "engines live", "runs", "mark", "kinds", "machine", "api")
"""The rooms of `gc`, bottom-up. Those of one floor do not import each other."""
FILES_MAX = 14
LINES_MAX = 60
FILE_LINES_MAX = 600
HEAD_LINES_MAX = 12
MENTIONS_MAX = 15
"""How often a file outside gc/kinds asks for a kind by name."""


TABLES_LINES_MAX = 4_000
"""Lines of code of the catalog of Iceberg tables (docs/design/0016-tables.md, "Size")."""
WITHOUT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
TABLES = (
    *("iceberg/*.py", "server/iceberg/*.py", "catalog/tables/*.py", "cli/tables/*.py", "gc/kinds/pruning/*.py"),
    *(f"{part}/tables.py" for part in ("operations", "wire", "client", "gc/mark", "gc/live/explain")),
)

TESTS = ROOT / "tests"
BESIDE = {"bench", "compat", "deploy", "formats", "outside", "sim", "spark", "tidy"}
"""Folders of tests that are no part of the source: they prove something of the whole."""
ELSEWHERE = {
    ".": "cli",
    "agents": "server/agents",
    "base": "auth ranges versions",
    "examples": "cli",
    "examples/quickstart": "cli",
    "gc": "cli/gc spark",
    "gc/kinds": "spark",
    "gc/kinds/committed": "gc/live/publish spark",
    "gc/kinds/deleted": "gc/live spark",
    "gc/kinds/metadata": "gc/live/publish spark",
    "iceberg": "catalog/tables server/iceberg",
    "operations/gc": "operations server/rest/gc",
    "quotas": "catalog server/rest/sandboxes",
    "sandboxes": "server/rest/sandboxes",
    "server/rest/events": "server",
    "spark": "compat spark",
    "testing": "kv objectstore",
    "testing/contracts": "kv/drivers objectstore/drivers",
    "wire": "operations server/rest",
}
"""Where the tests are of a folder of the source that has none of its own: it is reached through these."""


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def rooms_of(file: Path) -> Iterator[str]:
    """The rooms of `gc` that a file imports."""
    for node in ast.walk(parsed(file)):
        module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
        if module == "lakebed.gc" and isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif module and module.startswith("lakebed.gc."):
            yield module.split(".")[2]


def test_each_room_of_gc_stands_on_a_floor_and_imports_lower_ones() -> None:
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
    rooms = {folder.name for folder in GC.iterdir() if (folder / "__init__.py").exists()}
    upwards = [
        f"{file.relative_to(GC)}: {other}"
        for room in sorted(rooms)
        for file in sorted((GC / room).rglob("*.py"))
        for other in rooms_of(file)
        if other in floor_of and other != room and floor_of[other] >= floor_of[room]
    ]

    assert rooms == set(floor_of)
    assert upwards == []
    assert {file.name for file in GC.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_no_folder_has_more_files_than_fit_on_a_screen() -> None:
    files = [
        file
        for part in ("src", "explorer", "sim")
        for file in (ROOT / part).rglob("*.py")
        if file.name != "__init__.py"
    ]
    folders = Counter(file.parent.relative_to(ROOT).as_posix() for file in files)

    assert {name: count for name, count in folders.items() if count > FILES_MAX} == {}


def test_no_file_is_longer_than_one_idea() -> None:
    files = [file for part in ("src", "explorer", "sim", "bench") for file in (ROOT / part).rglob("*.py")]

    assert [str(file.relative_to(ROOT)) for file in files if file.read_text().count("\n") > FILE_LINES_MAX] == []


def test_no_head_of_a_file_is_longer_than_a_glance() -> None:
    """Formats are in docs/formats, and a reason lies at the line that needs it."""
    longer = []
    for file in (ROOT / "src").rglob("*.py"):
        first = next(iter(parsed(file).body), None)
        if isinstance(first, ast.Expr) and (first.end_lineno or 0) - first.lineno > HEAD_LINES_MAX:
            longer.append(str(file.relative_to(ROOT)))

    assert longer == []


def test_no_function_of_gc_is_longer_than_a_screen() -> None:
    longer = [
        f"{file.relative_to(GC)}: {node.name}"
        for file in GC.rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LINES_MAX
    ]

    assert longer == []


def test_few_files_outside_of_the_kinds_know_one_by_name() -> None:
    files = [file for file in (ROOT / "src").rglob("*.py") if not file.is_relative_to(GC / "kinds")]

    assert sum(len(re.findall(r"\bRunKind\.[A-Z]", file.read_text())) for file in files) <= MENTIONS_MAX


def test_the_catalog_of_tables_stays_small() -> None:
    files = [file for pattern in TABLES for file in sorted((ROOT / "src" / "lakebed").glob(pattern))]

    assert len(files) > len(TABLES)
    assert sum(map(code_lines, files)) <= TABLES_LINES_MAX


def code_lines(file: Path) -> int:
    """Count the lines that have a token: no blank line, no comment, no docstring."""
    texts = {
        line
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    spans = [range(one.start[0], one.end[0] + 1) for one in tokens if one.type not in WITHOUT_CODE]
    return len({line for span in spans for line in span} - texts)


def test_each_kind_has_a_folder_of_its_name_that_makes_it() -> None:
    folders = {folder.name for folder in (GC / "kinds").iterdir() if (folder / "__init__.py").exists()}

    assert folders == {kind.value for kind in RunKind}
    for name in folders:
        made = [node.name for node in parsed(GC / "kinds" / name / "plan.py").body if isinstance(node, ast.FunctionDef)]
        assert "make" in made


def test_a_plan_and_an_apply_enter_few_files_of_the_collector_and_of_the_live_side() -> None:
    """In a process of its own: what is in a cache already enters no file."""
    run = subprocess.run([sys.executable, "-m", "bench.rooms"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.stdout.count("files of the collector") == 4, run.stderr
    assert run.returncode == 0, run.stdout


def test_no_kind_imports_from_another() -> None:
    kinds = {folder.name for folder in (GC / "kinds").iterdir() if (folder / "__init__.py").exists()}
    across = [
        f"{file.relative_to(GC)}: {node.module}"
        for name in sorted(kinds)
        for file in sorted((GC / "kinds" / name).rglob("*.py"))
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ImportFrom)
        if (other := re.match(r"lakebed\.gc\.kinds\.(\w+)", node.module or "")) and other[1] in kinds - {name}
    ]

    assert across == []


def folders_of(root: Path, files: str) -> set[str]:
    return {file.parent.relative_to(root).as_posix() for file in root.rglob(files)}


def test_tests_are_in_the_folder_of_what_they_test() -> None:
    source = folders_of(ROOT / "src" / "lakebed", "*.py")
    tests = {folder for folder in folders_of(TESTS, "test_*.py") if folder.split("/")[0] not in BESIDE}

    assert sorted(tests - source) == []
    assert sorted(source - tests - set(ELSEWHERE)) == []
    assert sorted(set(ELSEWHERE) & tests) == []  # it has tests of its own by now
    assert {place for places in ELSEWHERE.values() for place in places.split()} <= tests | BESIDE
