"""Who may import whom (docs/design/0005-layout.md), which names a part shows, and what the core must not touch."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "lakebed"

CORE = {"base", "kv", "blocks", "ranges", "versions"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "runtime": {"base"},
    "kv": {"base"},
    "blocks": {"base"},
    "ranges": {"base"},
    "retention": {"base"},
    "handoff": {"base", "retention"},
    "wire": {"base"},
    "versions": CORE - {"versions"},
    "auth": {"base", "kv"},
    "catalog": CORE,
    "upkeep": CORE | {"catalog", "retention", "handoff"},
    "server": CORE | {"runtime", "catalog", "auth", "upkeep", "retention", "handoff", "wire"},
    "client": {"base", "wire"},
    "gc": {"base", "blocks", "ranges", "retention", "handoff", "client", "wire", "runtime"},
    "cli": {"base", "client", "wire"},
    "testing": CORE | {"runtime", "catalog", "auth", "upkeep", "retention", "handoff"},
}
COMPOSITION_ROOTS = {
    # They put parts together, so they may name any; a reader of one finds what runs where.
    "__main__.py": {"cli"},
    "cli/serve.py": {"server"},
    "cli/gc.py": {"handoff"},
    "cli/gc_aside.py": {"gc", "handoff"},
    "cli/gc_diff.py": {"handoff"},
    "cli/gc_jobs.py": {"handoff", "retention"},
    "cli/gc_modes.py": {"gc", "handoff"},
    "cli/gc_progress.py": {"gc"},
    "cli/gc_report.py": {"handoff"},
    "cli/gc_session.py": {"gc", "blocks", "handoff", "retention", "runtime"},
    "cli/gc_show.py": {"gc", "handoff"},
    "cli/gc_text.py": {"gc", "handoff"},
    "cli/gc_why.py": {"gc", "handoff", "retention"},
    "cli/gc_rules.py": {"handoff", "retention"},
    "cli/gc_rules_plan.py": {"handoff", "retention"},
    "cli/gc_rules_text.py": {"handoff", "retention"},
    "cli/quickstart_collect.py": {"gc", "blocks", "handoff"},
}
SURGERY = "testing/sim/"
"""Takes guards out of the flows, and drives a collection step by step, so it names what the front doors hide."""
FORBIDDEN_IN_CORE = {"asyncio", "time", "random", "uuid", "os", "threading", "datetime", "secrets", "socket"}
PURE_OR_AWAITING_PORTS_ONLY = ("base", "ranges", "retention", "handoff", "versions", "catalog", "auth", "upkeep")
MAY_DELETE_BLOCKS = {"gc/sweep.py", "upkeep/hard_delete.py"}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(SRC.rglob("*.py")):
        yield file.relative_to(SRC), ast.parse(file.read_text())


def imported_parts(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"lakebed.{a.name}" for a in node.names} if node.module == "lakebed" else {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("lakebed.")}


def imported_modules(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


def test_every_part_imports_only_what_the_map_allows() -> None:
    violations = []
    for file, tree in sources():
        part = file.parts[0] if len(file.parts) > 1 else "cli"
        allowed = MAY_IMPORT[part] | {part} | COMPOSITION_ROOTS.get(file.as_posix(), set())
        violations += [f"{file}: {found}" for found in sorted(imported_parts(tree) - allowed)]

    assert violations == []


def test_the_map_has_no_cycle_and_no_part_is_missing_from_it() -> None:
    assert {folder.name for folder in SRC.iterdir() if (folder / "__init__.py").exists()} == set(MAY_IMPORT)
    settled: set[str] = set()
    while ready := {part for part, allowed in MAY_IMPORT.items() if part not in settled and allowed <= settled}:
        settled |= ready
    assert settled == set(MAY_IMPORT)


def test_only_gc_and_the_tests_know_spark() -> None:
    users = [str(file) for file, tree in sources() if "pyspark" in imported_modules(tree) and file.parts[0] != "gc"]

    assert users == []


def test_the_core_awaits_its_ports_and_nothing_else() -> None:
    violations = [
        f"{file}: {found}"
        for file, tree in sources()
        if file.parts[0] in PURE_OR_AWAITING_PORTS_ONLY
        for found in sorted(imported_modules(tree) & FORBIDDEN_IN_CORE)
        if (file.as_posix(), found) not in PLAIN_DATES
    ]

    assert violations == []


PLAIN_DATES: set[tuple[str, str]] = set()
"""Files that turn given milliseconds into dates for people, and read no clock."""


def test_users_bytes_can_vanish_from_two_files_only() -> None:
    """A call of `.delete` on something called blocks, namespace or block store is a deletion of bytes."""
    violations = []
    for file, tree in sources():
        if file.as_posix() in MAY_DELETE_BLOCKS or file.parts[0] in {"blocks", "testing"}:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "delete":
                owner = ast.unparse(node.func.value)
                if any(word in owner.lower() for word in ("block", "namespace")):
                    violations.append(f"{file}:{node.lineno}: {owner}.delete")

    assert violations == []


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_a_part_shows_its_names_sorted_and_each_exists(part: str) -> None:
    module = importlib.import_module(f"lakebed.{part}")
    shown = getattr(module, "__all__", [])

    assert list(shown) == sorted(set(shown), key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert [name for name in shown if not hasattr(module, name)] == []


def test_parts_are_used_through_their_front_door() -> None:
    """`from lakebed.kv import Store`, not `from lakebed.kv.store import Store`; drivers and sub-folders excepted."""
    violations = []
    for file, tree in sources():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.ImportFrom) and node.level == 0 and node.module):
                continue
            names = node.module.split(".")
            if names[0] == "lakebed" and len(names) > 2 and names[1] != file.parts[0]:
                if (SRC / names[1] / names[2]).is_dir() or file.as_posix() in COMPOSITION_ROOTS:
                    continue
                if file.as_posix().startswith(SURGERY):
                    continue
                violations.append(f"{file}: {node.module}")

    assert violations == []
