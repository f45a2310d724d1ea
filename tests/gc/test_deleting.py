"""Where the collectors delete: in one file. A plan so needs no permission to."""

from __future__ import annotations

import ast
from pathlib import Path

import lakebed.gc

FOLDER = Path(lakebed.gc.__file__).parent
DELETING = {"delete", "delete_many", "delete_if", "unlink", "rmtree", "rmdir", "remove"}


def deleting_calls(file: Path) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)} & DELETING


def imports(name: str) -> set[str]:
    """Files of this part that a file of it imports, directly or not, besides the package itself."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        tree = ast.parse((FOLDER / waiting.pop()).read_text())
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        for node in froms:
            relative = node.module if node.level == 1 else (node.module or "").removeprefix("lakebed.gc.")
            for file in (
                f"{(relative or '').replace('.', '/')}.py",
                f"{(relative or '').replace('.', '/')}/__init__.py",
            ):
                if (FOLDER / file).exists() and file not in found:
                    found.add(file)
                    waiting.append(file)
    return found


def test_only_the_sweep_deletes() -> None:
    deleting = {file.name for file in FOLDER.rglob("*.py") if deleting_calls(file)}

    # The other one takes away what it wrote for JVMs on this machine, and knows no object store.
    assert deleting == {"sweep.py", "class_archive.py"}
    assert not any("store" in name or "sweep" in name for name in imports("class_archive.py"))


def test_planning_does_not_even_import_the_sweep() -> None:
    assert "verdicts.py" in imports("planning.py")
    assert "sweep.py" not in imports("planning.py")
    assert "sweep.py" in imports("applying.py")
