"""Where the collectors delete: in one file. A plan so needs no permission to."""

from __future__ import annotations

import ast
from pathlib import Path

import lakebed.gc

FOLDER = Path(lakebed.gc.__file__).parent
MARK, SWEEP = str(Path("mark", "mark.py")), str(Path("machine", "sweep.py"))
DELETING = {"delete", "delete_many", "delete_if", "unlink", "rmtree", "rmdir", "remove"}


def deleting_calls(file: Path) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)} & DELETING


def imports(name: str | Path) -> set[str]:
    """Files of this part that a file of it imports, directly or not, besides the package itself."""
    found: set[str] = set()
    waiting = [Path(name)]
    while waiting:
        file = waiting.pop()
        froms = [node for node in ast.walk(ast.parse((FOLDER / file).read_text())) if isinstance(node, ast.ImportFrom)]
        for node in froms:
            above = file.parents[node.level - 1] if node.level else Path()
            module = above / (node.module or "").removeprefix("lakebed.gc.").replace(".", "/")
            for base in (module, *(module / alias.name for alias in node.names)):
                for found_file in (f"{base}.py", f"{base}/__init__.py"):
                    if (FOLDER / found_file).exists() and found_file not in found:
                        found.add(found_file)
                        waiting.append(Path(found_file))
    return found


def test_only_the_sweep_deletes() -> None:
    # The live side deletes records of its own in the key-value store.
    files = [file for file in FOLDER.rglob("*.py") if "live" not in file.relative_to(FOLDER).parts]
    deleting = {file.name for file in files if deleting_calls(file)}

    # The other one takes away what it wrote for JVMs on this machine, and knows no object store.
    assert deleting == {"sweep.py", "java.py"}
    assert not any("store" in name or "sweep" in name for name in imports(Path("engines") / "java.py"))


def test_planning_does_not_even_import_the_sweep() -> None:
    """A kind decides what goes, and cannot take it."""
    for file in ("uncommitted/plan", "uncommitted/old_layout", "committed/plan", "metadata/plan"):
        assert MARK in imports(f"kinds/{file}.py")
        assert SWEEP not in imports(f"kinds/{file}.py")
    assert SWEEP in imports(Path("machine") / "flow.py")
