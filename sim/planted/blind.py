"""Random mutations of the shipped source, each searched by the worlds, seeds and tests that fit its file.

A mutation drops a statement, swaps two awaits that follow each other, negates or shifts a comparison, puts `or` for
`and` or the reverse, or empties an `except`. It is planted in the live functions of a process of its own, forked from
this one with everything imported.
One that nothing notices is a survivor (docs/design/survivors.md): a missing test, or a change without an effect.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import json
import random
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from explorer.actors import Violation
from explorer.exploring import TooManyStates, explore
from explorer.scheduling import run_seed
from sim.scenes.swarms import SWARM_FAULTS, swarm
from sim.worlds.small import small_worlds

from .apart import apart
from .hunting import MUTANTS
from .planting import SOURCE, Mutant, module_of, replaced
from .trials import failing_test, ready_for_tests

TABLE: Final = Path(__file__).parent / "blind.toml"
FILES: Final = (
    "versions/**/*.py",
    *(f"gc/{folder}/**/*.py" for folder in ("kinds", "live", "mark")),
    *(f"gc/{folder}/*.py" for folder in ("rules", "runs")),
    *(f"gc/machine/{file}.py" for file in ("flow", "preflight", "sweep")),
    *(f"catalog/{folder}*.py" for folder in ("", "objects/", "refs/")),
    *(f"kv/drivers/{file}.py" for file in ("blobs", "memory", "postgres", "redis")),
    *(f"kv/remote/{file}.py" for file in ("gathered", "kept", "pace", "store")),
    "kv/drivers/sqlite/*.py",
)
LEFT_OUT: Final = frozenset({"__init__", "errors", "why", "jobs", "searches", "explaining", "records", "status"})
"""What explains or reports, and deletes nothing."""

CPU_S: Final = 240
STATES_MAX: Final = 60_000
SEEDS_FIRST: Final = 20
SEEDS: Final = 200


@dataclass(frozen=True, slots=True)
class Mutation:
    """The `index`-th site of a file, and what it does there."""

    file: str
    index: int
    line: int
    function: str
    kind: str
    before: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.kind}: {self.before}"


class NothingFits(ValueError):
    """There is nothing to look at, or nothing to go on with."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Say where a mutation was noticed; nowhere: `caught` is empty."""

    mutation: Mutation
    caught: str
    cpu_s: float


def blind(count: int, *, seed: int, only: str = "", notes: Path | None = None) -> dict[str, Any]:
    """Draw this many mutations by the seed, look at each, list the survivors.

    `notes`: a file with a line of JSON for each that was looked at. Those in it already are not looked at again, so a
    run that was ended goes on.

    Raises:
        NothingFits: no file has `only` in its path, or no note is of a mutation that was drawn.
    """
    drawn = draw(count, seed=seed, files=[file for file in mutated_files() if only in file])
    if not drawn:
        raise NothingFits(f"no file that is mutated has {only!r} in its path")
    before = {looked.mutation: looked for looked in _noted(notes)}
    if before and before.keys().isdisjoint(drawn):
        raise NothingFits(
            f"none of the {len(before)} notes in {notes} is of this draw: they are of another seed, --only or source;"
            " give the seed and --only of that run, or another file"
        )
    found = []
    for mutation in drawn:
        looked = before.get(mutation) or look_at(mutation)
        found.append(looked)
        if mutation not in before and notes is not None:
            with notes.open("a") as lines:
                lines.write(json.dumps(asdict(looked)) + "\n")
        print(f"{mutation}\n    {looked.caught or 'SURVIVES'} ({looked.cpu_s:.1f} s)", flush=True)
    survivors = [asdict(looked.mutation) for looked in found if not looked.caught]
    return {"mutations": len(found), "noticed": len(found) - len(survivors), "survivors": survivors, "violations": 0}


def _noted(notes: Path | None) -> Iterator[Looked]:
    """Read what was looked at before. A line that was cut off counts as not written."""
    for line in notes.read_text().splitlines() if notes is not None and notes.exists() else []:
        with contextlib.suppress(ValueError):
            looked = json.loads(line)
            yield Looked(Mutation(**looked["mutation"]), looked["caught"], looked["cpu_s"])


def draw(count: int, *, seed: int, files: Sequence[str]) -> list[Mutation]:
    """Draw mutations. Equal seeds draw equal mutations of equal source."""
    every = [mutation for file in files for mutation in mutations_of(file)]
    return random.Random(seed).sample(every, min(count, len(every)))


def mutated_files() -> list[str]:
    """Return the files that are mutated, below the package."""
    found = sorted({path for pattern in FILES for path in SOURCE.glob(pattern)})
    return [path.relative_to(SOURCE).as_posix() for path in found if path.stem not in LEFT_OUT]


# Sites


def mutations_of(file: str) -> Iterator[Mutation]:
    """Yield every mutation of the bodies of this file's functions."""
    source = (SOURCE / file).read_text()
    for index, (node, function, kind, _) in enumerate(_sites(ast.parse(source))):
        before = " ".join(ast.unparse(node).split())
        yield Mutation(file, index, node.lineno, function, kind, before if len(before) < 100 else before[:99] + "…")


def mutated(source: str, index: int) -> ast.Module:
    """Return the source with the `index`-th change."""
    tree = ast.parse(source)
    for number, (_, _, _, change) in enumerate(_sites(tree)):
        if number == index:
            change()
            return tree
    raise IndexError(index)


def _sites(tree: ast.Module) -> Iterator[tuple[Any, str, str, Callable[[], None]]]:
    """Yield where the change is, the function, the kind, and how to do it to this very tree."""
    for function, name in _functions(tree, ""):
        for node in ast.walk(function):
            for body in _bodies(node):
                yield from _statements(body, name)
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                yield from _comparisons(node, name)
            elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare):
                yield node.test, name, "negate", _setter(node, "test", ast.UnaryOp(ast.Not(), node.test))
            elif isinstance(node, ast.BoolOp):
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield (
                    node,
                    name,
                    "and for or" if isinstance(node.op, ast.Or) else "or for and",
                    _setter(node, "op", other),
                )
            elif isinstance(node, ast.ExceptHandler) and not (_is_nothing(node.body) or _is_dropped_whole(node.body)):
                yield node, name, "empty handler", _setter(node, "body", [ast.Pass()])


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            yield body


def _statements(body: list[ast.stmt], name: str) -> Iterator[tuple[Any, str, str, Callable[[], None]]]:
    for place, statement in enumerate(body):
        if _can_be_dropped(statement):
            yield statement, name, "drop", _putter(body, place, [ast.Pass()])
        following = body[place + 1 : place + 2]
        if following and _awaits(statement) and _awaits(following[0]):
            yield statement, name, "swap with the next", _putter(body, place, [following[0], statement])


def _comparisons(node: ast.Compare, name: str) -> Iterator[tuple[Any, str, str, Callable[[], None]]]:
    kind = type(node.ops[0])
    if kind in _NEGATED:
        yield node, name, "negate", _setter(node, "ops", [_NEGATED[kind]()])
    if kind in _SHIFTED:
        yield node, name, "shift", _setter(node, "ops", [_SHIFTED[kind]()])


_NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
_SHIFTED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def _can_be_dropped(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Continue) and not _is_text(node)


def _is_dropped_whole(body: list[ast.stmt]) -> bool:
    """Whether one change of `_statements` empties it already."""
    return len(body) == 1 and _can_be_dropped(body[0])


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_nothing(body: list[ast.stmt]) -> bool:
    return all(isinstance(node, ast.Pass | ast.Continue) for node in body)


def _awaits(node: ast.stmt) -> bool:
    simple = isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign)
    return simple and any(isinstance(inner, ast.Await) for inner in ast.walk(node))


def _setter(node: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _putter(body: list[ast.stmt], place: int, statements: list[ast.stmt]) -> Callable[[], None]:
    def put() -> None:
        body[place : place + len(statements)] = statements

    return put


# Looking


def look_at(mutation: Mutation) -> Looked:
    """Look in a process of its own, with a limit of CPU: one that hangs is noticed too."""
    done = apart(lambda: _look(mutation), ended="it hangs, or ends the process", cpu_s_max=CPU_S)
    return Looked(mutation, done.answer, done.cpu_s)


def _look(mutation: Mutation) -> str:
    module = module_of(mutation.file)
    source = (SOURCE / mutation.file).read_text()
    tree = ast.fix_missing_locations(mutated(source, mutation.index))
    with replaced(module, source, tree):
        tests, is_reached = fitting(mutation.file)
        if not is_reached:
            return failing_test(tests) or _in_worlds(mutation.file)
        # A few seeds or the tests notice nearly all that anything notices, and are the cheapest.
        return (
            _in_seeds(range(SEEDS_FIRST))
            or failing_test(tests)
            or _in_worlds(mutation.file)
            or _in_seeds(range(SEEDS_FIRST, SEEDS))
        )


def _in_worlds(file: str) -> str:
    near = {scene for one in MUTANTS if isinstance(one, Mutant) for scene in one.scenes if _patches(one, file)}
    for world in small_worlds():
        if world.scene.name in near and (world.is_quick or not world.budget.name):
            try:
                explored = explore(world.scene, world.budget, states_max=STATES_MAX)
            except TooManyStates:
                continue
            except Exception as error:  # noqa: BLE001  # preparing the scene failed: that is noticed
                return f"{world.scene.name!r}: {type(error).__name__}"
            if explored.violation is not None:
                return f"{world.scene.name!r}, {world.budget.name}"
    return ""


def _patches(mutant: Mutant, file: str) -> bool:
    return any(hunk.file == file for hunk in mutant.hunks)


def _in_seeds(seeds: Iterable[int]) -> str:
    for seed in seeds:
        try:
            run_seed(swarm(seed), seed, faults=SWARM_FAULTS)
        except Violation:
            return f"seed {seed}"
        except Exception as error:  # noqa: BLE001  # preparing the swarm failed: that is noticed
            return f"seed {seed}: {type(error).__name__}"
    return ""


def fitting(file: str) -> tuple[list[str], bool]:
    """Return the tests that fit a file, and whether seeds of swarms reach it."""
    found: dict[str, None] = {}
    for row in tomllib.loads(TABLE.read_text())["fitting"]:
        if any(fnmatch.fnmatch(file, files) for files in row["files"]):
            found |= dict.fromkeys(row["tests"])
            if row.get("alone", False):
                return [*found], False
    return [*found], True


def warm_up() -> None:
    """Import what every look needs, so that forks begin with it."""
    for file in mutated_files():
        module_of(file)
    ready_for_tests()
    sys.stdout.flush()
