"""Who may import whom (docs/design/0005-layout.md), which names a part shows, and what the core must not touch."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "lakebed"

CORE = {"base", "kv", "objectstore", "ranges", "versions"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "runtime": {"base"},
    "kv": {"base"},
    "objectstore": {"base"},
    "ranges": {"base"},
    "gc/rules": {"base"},
    "gc/messages": {"base", "gc/rules"},
    "wire": {"base"},
    # The format of tables, and the only part that names its library.
    "iceberg": {"base", "wire"},
    "operations": {"base", "wire", "gc/messages", "gc/rules"},
    "versions": CORE - {"versions"},
    "auth": {"base", "kv"},
    "quotas": CORE,
    "catalog": CORE | {"quotas"},
    "sandboxes": CORE | {"auth", "catalog", "quotas"},
    "hooks": CORE | {"catalog"},
    "gc/live": CORE | {"catalog", "gc/rules", "gc/messages"},
    "server": CORE
    | {
        "runtime",
        "catalog",
        "hooks",
        "auth",
        "sandboxes",
        "quotas",
        "gc/live",
        "gc/rules",
        "gc/messages",
        "wire",
        "operations",
    }
    | {"agents", "iceberg"},
    "client": {"base", "wire", "operations"},
    # `client`: for its type alone. The command line hands one over.
    "agents": {"base", "wire", "operations", "client", "gc/messages"},
    "settings": {"base"},
    "lake": {"base", "wire", "client", "settings"},
    "gc": {"base", "objectstore", "ranges", "gc/rules", "gc/messages", "operations", "client", "wire", "runtime"},
    # Sessions of users: not below `gc`, since a cluster's job that reads a branch runs no collection.
    "spark": {"base", "settings", "gc"},
    "migration": CORE | {"auth", "catalog", "client", "gc/live", "hooks", "wire"},
    "cli": {"agents", "base", "client", "gc/rules", "iceberg", "lake", "settings", "wire"},
    "cli/gc": {
        "base",
        "client",
        "wire",
        "operations",
        "cli",
        "gc",
        "gc/messages",
        "gc/rules",
        "objectstore",
        "runtime",
    },
    "examples": {"base", "client", "wire", "cli", "cli/gc", "gc", "gc/messages", "objectstore"},
    "testing": CORE | {"runtime"},
}
STEPS_OF_GC = {"base", "objectstore", "ranges", "gc/rules", "gc/messages"}
INSIDE_GC: dict[str, tuple[set[str], set[str]]] = {
    # Bottom-up: each layer's files, and the other parts that they may import. A file imports its own layer or a lower
    # one.
    "engines": ({"engines"}, {"base", "objectstore", "runtime", "gc/messages"}),
    "runs": ({"runs"}, STEPS_OF_GC),
    "mark": ({"mark"}, STEPS_OF_GC),
    "kinds": ({"kinds"}, STEPS_OF_GC),
    "machine": ({"machine"}, STEPS_OF_GC),
    "doors": ({"__init__", "__main__", "api"}, MAY_IMPORT["gc"]),
}
COMPOSITION_ROOTS = {
    # They put parts together, so they may name any; a reader of one finds what runs where.
    "__init__.py": {"lake"},
    "__main__.py": {"cli"},
    "cli/operate/backup.py": {"server"},
    "cli/operate/kv.py": {"kv", "server"},
    "cli/operate/migrate.py": {"migration", "server"},
    "cli/operate/opening.py": {"server"},
    "cli/operate/serve.py": {"server"},
    "cli/operate/spark.py": {"spark"},
    "lake/local.py": {"server"},
}
FORBIDDEN_IN_CORE = {"asyncio", "time", "random", "uuid", "os", "threading", "datetime", "secrets", "socket"}
PURE_OR_AWAITING_PORTS_ONLY = {
    "base",
    "ranges",
    "gc/rules",
    "gc/messages",
    "versions",
    "quotas",
    "catalog",
    "auth",
    "sandboxes",
    "gc/live",
}
# An engine opens it where a share of the sweep runs, and hands it to work of the sweep alone.
MAY_DELETE_OBJECTS = {"gc/machine/sweep.py", *(f"gc/engines/{name}.py" for name in ("engine", "spark"))}
# The queue of objects that are deleted at once: the server opens it for its worker.
MAY_DELETE_OBJECTS |= {"gc/live/publish/hard_delete.py", "server/hard_delete.py"}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(SRC.rglob("*.py")):
        yield file.relative_to(SRC), ast.parse(file.read_text())


@cache
def imports() -> list[tuple[Path, ast.Module]]:
    """Each file with what it imports, and nothing else of it: parsed once for all tests here."""
    return [(file, ast.Module(list(imports_in(tree)), [])) for file, tree in sources()]


def imports_in(tree: ast.Module) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def part_of(*names: str) -> str:
    """The innermost part that these folder names lead to; of a file at the root that is the command line."""
    for length in range(len(names), 0, -1):
        if "/".join(names[:length]) in MAY_IMPORT:
            return "/".join(names[:length])
    return "cli"


def imported_parts(tree: ast.Module) -> set[str]:
    return {part_of(*name.split(".")[1:]) for name in imported_names(tree)}


def imported_names(tree: ast.Module, *folders: str) -> set[str]:
    """The dotted names of ours that a module imports; with the folders that it lies in, relative ones too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from lakebed.gc import protocol` names the part lakebed.gc.messages.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and folders:
            base = ["lakebed", *folders[: len(folders) - node.level + 1], *filter(None, [node.module])]
            names |= {".".join([*base, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("lakebed.")}


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
    for file, tree in imports():
        part = part_of(*file.parts[:-1])
        allowed = MAY_IMPORT[part] | {part} | COMPOSITION_ROOTS.get(file.as_posix(), set())
        violations += [f"{file}: {found}" for found in sorted(imported_parts(tree) - allowed)]

    assert violations == []


def test_inside_gc_each_file_imports_its_own_layer_or_a_lower_one() -> None:
    order = list(INSIDE_GC)
    violations = []
    for file, tree in imports():
        if part_of(*file.parts[:-1]) != "gc":
            continue
        layer = layer_of_gc(file.parts[1].removesuffix(".py"))
        names = {name for name in imported_names(tree, *file.parts[:-1]) if part_of(*name.split(".")[1:]) == "gc"}
        above = {name for name in names if order.index(layer_of_gc(file_of_gc(name))) > order.index(layer)}
        others = imported_parts(tree) - INSIDE_GC[layer][1] - {"gc"}
        violations += [f"{file}, of {layer}: {found}" for found in sorted(above | others)]

    assert violations == []


def test_the_explorer_knows_the_errors_of_lakebed_and_neither_its_parts_nor_the_simulator() -> None:
    trees = [ast.parse(file.read_text()) for file in sorted((SRC.parents[1] / "explorer").glob("*.py"))]

    assert len(trees) > 10
    assert {name.rpartition(".")[0] for tree in trees for name in imported_names(tree)} == {"lakebed.base"}
    assert {"bench", "sim", "tests"} & {module for tree in trees for module in imported_modules(tree)} == set()


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports in functions and for types count, too. A folder's door imports its files, and they never the door."""
    imported = {file: files_imported(file, tree) for file, tree in imports()}
    ordered: set[Path] = set()
    while ready := {file for file, others in imported.items() if file not in ordered and others <= ordered}:
        ordered |= ready

    assert sorted(map(str, set(imported) - ordered)) == []


def files_imported(file: Path, tree: ast.Module) -> set[Path]:
    """The files that a file imports: for `lakebed.kv.Store` the front door of `kv`, for `lakebed.cli.gc` that one."""
    found: set[Path] = set()
    for name in imported_names(tree, *file.parts[:-1]):
        path = Path(*name.split(".")[1:])
        # What a name stands for is the longest part of it that is a file or a folder.
        choices = (f"{path}.py", f"{path}/__init__.py", f"{path.parent}.py", f"{path.parent}/__init__.py")
        found |= set([Path(one) for one in choices if (SRC / one).is_file()][:1])
    return found - {file}


def file_of_gc(name: str) -> str:
    """The file or folder below `gc` that `lakebed.gc.machine.flow.plan` names; of `lakebed.gc` its front door."""
    first = name.removeprefix("lakebed.gc").removeprefix(".").partition(".")[0]
    return first if (SRC / "gc" / f"{first}.py").exists() or (SRC / "gc" / first).is_dir() else "__init__"


def layer_of_gc(file: str) -> str:
    return next(layer for layer, (files, _) in INSIDE_GC.items() if file in files)


def test_the_map_has_no_cycle_and_no_part_is_missing_from_it() -> None:
    folders = {folder.name for folder in SRC.iterdir() if (folder / "__init__.py").exists()}
    assert folders == {part for part in MAY_IMPORT if "/" not in part}
    assert [part for part in MAY_IMPORT if not (SRC / part / "__init__.py").exists()] == []
    ordered: set[str] = set()
    while ready := {part for part, allowed in MAY_IMPORT.items() if part not in ordered and allowed <= ordered}:
        ordered |= ready
    assert ordered == set(MAY_IMPORT)


def test_only_gc_sessions_of_users_and_the_tests_know_spark() -> None:
    may = {"gc", "spark"}
    users = [str(file) for file, tree in imports() if "pyspark" in imported_modules(tree) and file.parts[0] not in may]

    assert users == []


def test_the_core_awaits_its_ports_and_nothing_else() -> None:
    violations = [
        f"{file}: {found}"
        for file, tree in imports()
        if part_of(*file.parts[:-1]) in PURE_OR_AWAITING_PORTS_ONLY
        for found in sorted(imported_modules(tree) & FORBIDDEN_IN_CORE)
        if (file.as_posix(), found) not in PLAIN_USES
    ]

    assert violations == []


PLAIN_USES = {
    (name, "datetime")
    for name in ("auth/permissions/conditions.py", "catalog/deleted.py", "versions/refs/reflog.py", "versions/taken.py")
} | {("base/errors.py", "os")}
"""Files that turn given milliseconds into dates for people, or dates of people into them, and read no clock; and one
that takes the system's words for the number of an error.
"""


def test_only_the_sweep_and_composition_roots_name_the_right_to_delete() -> None:
    """The type checker proves the rest: an ObjectStore has no `delete`."""
    holders = {
        file.as_posix()
        for file, tree in sources()
        if file.parts[0] not in {"objectstore", "testing"} and any(map(is_right_to_delete, ast.walk(tree)))
    }

    assert holders == MAY_DELETE_OBJECTS


def test_only_the_drivers_know_the_client_of_remote_stores() -> None:
    """Its functions delete without a Deleter. The metadata's driver deletes the objects of its own names alone."""
    users = [
        file.as_posix()
        for file, tree in imports()
        if "obstore" in imported_modules(tree) and file.parts[:2] != ("objectstore", "drivers")
    ]

    assert users == ["kv/drivers/blobs.py"]


def is_right_to_delete(node: ast.AST) -> bool:
    """Find the port, its opener, its drivers, and what hands one to a step, however the code reaches the name."""
    names = [node.name] if isinstance(node, ast.alias) else []
    names += [node.id] if isinstance(node, ast.Name) else []
    names += [node.attr] if isinstance(node, ast.Attribute) else []
    hands_one_out = {"open_deleter", "run_deleting", "DeletingWork"}
    return any(name in hands_one_out or name.endswith("Deleter") for name in names)


def test_modules_and_doors_show_their_names_sorted_and_each_exists() -> None:
    for file, tree in sources():
        if any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in tree.body):
            module = importlib.import_module(
                ".".join(("lakebed", *file.with_suffix("").parts)).removesuffix(".__init__")
            )
            shown = module.__all__

            assert list(shown) == sorted(set(shown), key=lambda name: (not name.isupper(), not name[0].isupper(), name))
            assert [name for name in shown if not hasattr(module, name)] == []


def test_a_door_takes_all_names_only_from_modules_that_say_which() -> None:
    missing = [
        f"{file}: {node.module}"
        for file, tree in imports()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        if "__all__" not in (SRC / file.parent / f"{(node.module or '').replace('.', '/')}.py").read_text()
    ]

    assert missing == []


def test_parts_are_used_through_their_front_door() -> None:
    """`from lakebed.kv import Store`, not `from lakebed.kv.store import Store`; drivers and sub-folders excepted."""
    violations = []
    for file, tree in imports():
        here = part_of(*file.parts[:-1])
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("lakebed.")
            ):
                continue
            names = (node.module or "").split(".")[1:]
            part = part_of(*names)
            if here.startswith(part) or "/".join(names) == part or (SRC / "/".join(names)).is_dir():
                continue
            if file.as_posix() not in COMPOSITION_ROOTS:
                violations.append(f"{file}: {node.module}")

    assert violations == []
