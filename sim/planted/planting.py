"""Plant bugs in the shipped source: text patches, applied to the live functions while a `with` lasts.

A patch names a file of `lakebed`, the function or class that it is in, and the lines before and after. The patched
source is compiled, and each function whose code changed gets the new `__code__`: so every reference to it changes.
A constant of a module is replaced in every module that imported it, also of a test. A patch whose lines are not found
exactly once, or that changes anything else, raises `StalePatch`: a guard that moved must be found again by a person.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import lakebed

SOURCE: Final = Path(lakebed.__file__).parent
FOLDER: Final = Path(__file__).parents[1] / "mutants"


class StalePatch(Exception):
    """The shipped source is no longer what a patch was written for."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Replace `old` lines by `new` ones in one function or class (`scope`; empty: the whole file)."""

    file: str
    scope: str
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`guard` is what is missing. `scenes`, `tests`: where it is caught; with neither, in seeds of swarms."""

    name: str
    guard: str
    hunks: tuple[Hunk, ...]
    scenes: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        """
        Raises:
            StalePatch: a hunk does not fit the shipped source.
        """
        with ExitStack() as stack:
            for file in dict.fromkeys(hunk.file for hunk in self.hunks):
                source = (SOURCE / file).read_text()
                changed = source
                for hunk in self.hunks:
                    if hunk.file == file:
                        changed = patched(changed, hunk)
                stack.enter_context(replaced(module_of(file), source, ast.parse(changed)))
            yield


# Patches as text


_HEADER: Final = re.compile(r"\[([a-z0-9-]+)\] (.+)")


def read_mutants(folder: Path = FOLDER) -> tuple[Mutant, ...]:
    """Return all planted bugs, by file and place in it. docs/design/simulate.md has the format."""
    return tuple(mutant for file in sorted(folder.glob("*.txt")) for mutant in parse(file.read_text(), file.name))


def parse(text: str, name: str) -> Iterator[Mutant]:
    """
    Raises:
        StalePatch: a line is none of the format.
    """
    chunks = re.split(r"(?m)^(?=\[)", text)
    for chunk in chunks[1:]:
        head, *lines = [line for line in chunk.splitlines() if line.strip() and not line.startswith("#")]
        title = _HEADER.fullmatch(head)
        if title is None:
            raise StalePatch(f"{name}: {head!r} is no header")
        scenes: list[str] = []
        tests: list[str] = []
        hunks: list[tuple[str, str, list[str]]] = []
        for line in lines:
            match line[:2]:
                case "in":
                    scenes.append(line[3:])
                case "by":
                    tests.append(line[3:])
                case "@ ":
                    file, _, scope = line[2:].partition(" ")
                    hunks.append((file, scope, []))
                case "- " | "+ " | "  " if hunks:
                    hunks[-1][2].append(line)
                case _:
                    raise StalePatch(f"{name}: {title[1]}: {line!r} is neither a place nor a changed line")
        yield Mutant(title[1], title[2], tuple(_hunk(*hunk) for hunk in hunks), tuple(scenes), tuple(tests))


def _hunk(file: str, scope: str, lines: list[str]) -> Hunk:
    old = tuple(line[2:] for line in lines if line[0] in "- ")
    return Hunk(file, scope, old, tuple(line[2:] for line in lines if line[0] in "+ "))


def patched(source: str, hunk: Hunk) -> str:
    """Return the source with this hunk applied. Indentation counts relative to the first line only.

    Raises:
        StalePatch: its lines are not there exactly once.
    """
    lines = source.splitlines()
    place, size = place_of(source, hunk), len(hunk.old)
    indent = _indent(lines[place]) - _indent(hunk.old[0])
    new = [" " * (indent + _indent(line)) + line.lstrip() for line in hunk.new]
    return "\n".join([*lines[:place], *new, *lines[place + size :]]) + "\n"


def place_of(source: str, hunk: Hunk) -> int:
    """Return how many lines are before those of this hunk.

    Raises:
        StalePatch: its lines are not there exactly once.
    """
    lines = source.splitlines()
    first, last = _span(source, hunk)
    size = len(hunk.old)
    wanted = textwrap.dedent("\n".join(hunk.old))
    places = [
        place
        for place in range(first, last - size + 1)
        if lines[place].strip() == hunk.old[0].strip()
        and textwrap.dedent("\n".join(lines[place : place + size])) == wanted
    ]
    if len(places) != 1:
        raise StalePatch(f"{hunk.file} {hunk.scope}: found {len(places)} times, not once:\n{wanted}")
    return places[0]


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    """Parse a file once for the patches of it that follow each other."""
    return ast.parse(source)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _span(source: str, hunk: Hunk) -> tuple[int, int]:
    """Return first line, and behind the last, of the function or class that the hunk is in."""
    node: Any = _parsed(source)
    for name in hunk.scope.split(".") if hunk.scope else ():
        found = [one for one in ast.walk(node) if isinstance(one, _NAMED) and one.name == name]
        if len(found) != 1:
            raise StalePatch(f"{hunk.file}: {len(found)} things are named {hunk.scope}")
        node = found[0]
    return (node.lineno - 1, node.end_lineno) if hunk.scope else (0, len(source.splitlines()))


_NAMED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def module_of(file: str) -> ModuleType:
    return importlib.import_module("lakebed." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))


# Live code


@contextmanager
def replaced(module: ModuleType, source: str, changed: ast.Module) -> Iterator[None]:
    """Run `changed` instead of `source`, which the module was loaded from.

    Raises:
        StalePatch: something else than the bodies of functions and the values of constants changed.
    """
    functions, constants = _differences(_parsed(source), changed)
    if not functions and not constants:
        raise StalePatch(f"{module.__name__}: a patch that changes nothing")
    codes = _codes(compile(changed, str(module.__file__), "exec"))
    undo: list[Callable[[], None]] = []
    try:
        for name in constants:
            undo += _replace_constant(module, name, changed)
        for name in functions:
            live = live_function(module, name)
            if len(live.__code__.co_freevars) != len(codes[name].co_freevars):
                raise StalePatch(f"{module.__name__}.{name}: a patch cannot bring in other variables from outside")
            undo.append(_restorer(live, "__code__", live.__code__))
            live.__code__ = codes[name]
        yield
    finally:
        for back in reversed(undo):
            back()


def _restorer(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _differences(before: ast.Module, after: ast.Module) -> tuple[list[str], list[str]]:
    """Return qualified names of the functions, and names of the module's constants, that differ."""
    functions: list[str] = []
    constants: list[str] = []

    def compare(old: Sequence[ast.stmt], new: Sequence[ast.stmt], prefix: str) -> None:
        if len(old) != len(new):
            raise StalePatch("a patch adds or removes statements outside functions")
        for one, other in zip(old, new, strict=True):
            if _dumped(one) == ast.dump(other):
                continue
            if isinstance(one, _FUNCTIONS) and isinstance(other, _FUNCTIONS) and _head(one) == _head(other):
                functions.append(prefix + one.name)
            elif isinstance(one, ast.ClassDef) and isinstance(other, ast.ClassDef):
                compare(one.body, other.body, f"{prefix}{one.name}.")
            elif not prefix and (name := _assigned(one)) and name == _assigned(other):
                constants.append(name)
            else:
                raise StalePatch(f"a patch changes line {one.lineno}, which is in no function and no constant")

    compare(before.body, after.body, "")
    return functions, constants


@lru_cache(maxsize=4096)
def _dumped(node: ast.stmt) -> str:
    return ast.dump(node)


def _head(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    return type(node).__name__, node.name, ast.dump(node.args), *map(ast.dump, node.decorator_list)


def _assigned(node: ast.stmt) -> str:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _codes(code: CodeType) -> dict[str, CodeType]:
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname] = constant
            found |= _codes(constant)
    return found


def live_function(module: ModuleType, name: str) -> FunctionType:
    """Return the function of this qualified name, under whatever decorators."""
    owner: Any = module
    for part in name.split("."):
        owner = vars(owner)[part]
    for attribute in ("__func__", "fget", "func"):
        owner = getattr(owner, attribute, owner)
    while not isinstance(owner, FunctionType) or owner.__code__.co_qualname != name:
        if not hasattr(owner, "__wrapped__"):
            raise StalePatch(f"{module.__name__}.{name} is no plain function")
        owner = owner.__wrapped__
    return owner


def _replace_constant(module: ModuleType, name: str, changed: ast.Module) -> list[Callable[[], None]]:
    [statement] = [node for node in changed.body if _assigned(node) == name]
    scope = dict(vars(module))
    exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), scope)  # noqa: S102  # our own source
    before = vars(module)[name]
    undo = []
    for other in [one for key, one in sys.modules.items() if key.split(".")[0] in {"lakebed", "tests"}]:
        if vars(other).get(name) is before:
            undo.append(_restorer(other, name, before))
            setattr(other, name, scope[name])
    return undo
