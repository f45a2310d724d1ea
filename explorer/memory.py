"""Digest what an actor remembers: lives with equal digests do the same from here on.

The memory of a suspended coroutine is its code, the place it stopped at, its local variables, what lies on its stack
(iterators, half-built lists, the coroutine it awaits), and everything that can be reached from there. All of it is
walked, in an order that does not depend on hashes. Mutable objects get numbers, so that two names for one object differ
from two equal objects; immutable values count by value, for no code here asks which of two equal ones it holds. What a
variable holds that is never read again makes two lives differ which need not: fewer are merged then, none wrongly.
An object of a kind that is not known here makes a life like no other. Tracebacks are left out: no actor reads them.
"""

from __future__ import annotations

import dataclasses
import gc
import re
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from .actors import Life, Strand


class _Unknown(Exception):
    """An object whose state cannot be seen."""


def digest_of(life: Life) -> bytes | None:
    """Return equal digests for lives of one actor that remember and wait for the same. None: unknown."""
    walk = _Walk()
    try:
        for strand in life.pending.values():
            walk.strand(strand)
        walk.value(life.ports)
    except _Unknown:
        return None
    return blake2b("\0".join(walk.parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Walk:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        """What was numbered stays alive until the walk is over, so that no address is used twice."""

    def strand(self, strand: Strand) -> None:
        if self._is_seen(strand):
            return
        self.parts.append(f"{strand.name} {strand.index} {strand.missing} {strand.effect!r}")
        self.value(strand.outcomes)
        self.value(strand.coroutine)
        if strand.parent is not None:
            self.strand(strand.parent)

    def value(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self.parts.append(repr(value))
            return
        walk = _WALKED.get(kind)
        if walk is None:
            walk = _WALKED[kind] = _way_of(kind)
        walk(self, value)

    def by_name(self, value: Any) -> None:
        self.parts.append(f"#{id(value)}")

    def enum(self, value: Any) -> None:
        self.parts.append(f"{id(type(value))} {value.name}")

    def error(self, value: BaseException) -> None:
        self.parts.append(f"{id(type(value))}")
        self.value(value.args)

    def named_tuple(self, value: Any) -> None:
        self.parts.append(f"{id(type(value))}")
        self.items((*value, *sorted(getattr(value, "__dict__", {}).items())))

    def remembered(self, value: Any) -> None:
        """Digest what an object says that it remembers."""
        if not self._is_seen(value):
            self.value(value.remembered())

    def ours(self, value: Any) -> None:
        """Digest an object of a class of ours, by its slots and other attributes."""
        if self._is_seen(value):
            return
        self.parts.append(f"{id(type(value))}")
        kind: type = type(value)
        held = [name for name in _slots(kind) if hasattr(value, name)]
        for name in sorted([*held, *getattr(value, "__dict__", ())]):
            self.parts.append(name)
            self.value(getattr(value, name))

    def fields(self, value: Any, names: Sequence[str]) -> None:
        self.parts.append(f"{id(type(value))}")
        for name in names:
            self.value(getattr(value, name))

    def _is_seen(self, value: Any) -> bool:
        number = self._numbers.get(id(value))
        if number is not None:
            self.parts.append(f"@{number}")
            return True
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        return False

    def items(self, values: Iterable[Any]) -> None:
        self.parts.append("(")
        for value in values:
            self.value(value)
        self.parts.append(")")

    def changing(self, values: Any) -> None:
        if not self._is_seen(values):
            self.items(values)

    def pairs(self, values: dict[Any, Any]) -> None:
        if not self._is_seen(values):
            self.items(values.items())

    def unordered(self, values: Any) -> None:
        if any(type(value) not in _PLAIN and not isinstance(value, str) for value in values):
            raise _Unknown("a set of more than plain values")
        self.parts.append(repr(sorted(values, key=repr)))

    def function(self, function: types.FunctionType) -> None:
        self.parts.append(f"#{id(function.__code__)}")
        self.items((function.__defaults__, tuple((function.__kwdefaults__ or {}).items())))
        self.items(function.__closure__ or ())

    def cell(self, cell: types.CellType) -> None:
        if not self._is_seen(cell):
            self.items(gc.get_referents(cell))

    def method(self, method: types.MethodType) -> None:
        self.value(method.__func__)
        self.value(method.__self__)

    def builtin(self, method: types.BuiltinMethodType) -> None:
        self.parts.append(method.__name__)
        self.value(method.__self__)

    def suspended(self, coroutine: Any) -> None:
        if self._is_seen(coroutine):
            return
        frame = next(getattr(coroutine, name) for name in _FRAMES if hasattr(coroutine, name))
        if frame is None:
            self.parts.append("over")
            return
        names = frame.f_locals
        self.parts.append(f"{id(frame.f_code)} {frame.f_lasti} {','.join(names)}")
        for referent in gc.get_referents(coroutine):
            if referent is not names and type(referent) not in _ABOUT_CODE:
                self.value(referent)

    def wrapper(self, wrapper: Any) -> None:
        if not self._is_seen(wrapper):
            self.items(gc.get_referents(wrapper))

    def iterator(self, iterator: Any) -> None:
        """Digest what is left of it: copying an iterator does not move it."""
        if not self._is_seen(iterator):
            self.parts.append(f"#{id(type(iterator))}")
            self.items(iterator.__reduce__()[1:])

    def match(self, match: re.Match[Any]) -> None:
        self.parts.append(repr((match.re.pattern, match.string, match.span())))

    def table(self, table: pa.Table) -> None:
        self.parts.append(repr((table.schema.names, table.to_pylist())))

    def column(self, column: Any) -> None:
        self.parts.append(repr(column.to_pylist()))

    def array(self, array: np.ndarray[Any, Any]) -> None:
        self.parts.append(repr((array.dtype.str, array.tolist())))


def know(kind: type, state: Callable[[Any], object], *, by_value: bool = False) -> None:
    """Digest objects of this kind by their state alone; `by_value`: no code asks which of two equal ones it holds."""

    def walk(self: _Walk, value: Any) -> None:
        if by_value or not self._is_seen(value):  # a part of the walk
            self.value(state(value))

    _WALKED[kind] = walk


def _way_of(kind: type) -> Callable[[_Walk, Any], None]:
    """Return how an object of this kind is walked, which is found once."""
    if issubclass(kind, type) or kind in _BY_NAME:
        return _Walk.by_name
    if issubclass(kind, Enum):
        return _Walk.enum
    if issubclass(kind, msgspec.Struct):
        return _record(kind.__struct_fields__, by_value=kind.__struct_config__.frozen)
    if dataclasses.is_dataclass(kind):
        frozen: bool = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # of every dataclass
        return _record([field.name for field in dataclasses.fields(kind)], by_value=frozen)
    for base, walk in ((BaseException, _Walk.error), (tuple, _Walk.named_tuple)):
        if issubclass(kind, base):
            return walk
    if hasattr(kind, "remembered"):
        return _Walk.remembered
    if issubclass(kind, pa.Array):
        return _Walk.column
    if kind.__module__.startswith(_OURS):
        return _Walk.ours
    raise _Unknown(kind)


def _record(names: Sequence[str], *, by_value: bool) -> Callable[[_Walk, Any], None]:
    def walk(self: _Walk, value: Any) -> None:
        if by_value or not self._is_seen(value):  # a part of the walk
            self.fields(value, names)

    return walk


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()) if name != "__dict__")


_OURS: Final = ("lakebed.", "explorer.", "sim.", "contextlib", "tests.", "conftest", "test_")
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, range})
_BY_NAME: Final = frozenset({types.ModuleType, types.CodeType, type(Ellipsis), type(NotImplemented)})
_ABOUT_CODE: Final = frozenset({types.FrameType, types.CodeType, types.TracebackType})
_FRAMES: Final = ("cr_frame", "gi_frame", "ag_frame")


def _kinds(*values: Any) -> Iterable[type]:
    return [type(value) for value in values]


async def _a_generator() -> Any:
    yield


def _a_coroutine_wrapper() -> Any:
    async def nothing() -> None: ...

    coroutine = nothing()
    wrapper = coroutine.__await__()
    coroutine.close()
    return wrapper


_WALKED: Final[dict[type, Callable[[_Walk, Any], None]]] = {
    tuple: _Walk.items,
    list: _Walk.changing,
    deque: _Walk.changing,
    dict: _Walk.pairs,
    type({}.keys()): _Walk.changing,
    OrderedDict: _Walk.pairs,
    set: _Walk.unordered,
    frozenset: _Walk.unordered,
    pa.Table: _Walk.table,
    pa.ChunkedArray: _Walk.column,
    np.ndarray: _Walk.array,
    re.Match: _Walk.match,
    types.FunctionType: _Walk.function,
    types.CellType: _Walk.cell,
    types.MethodType: _Walk.method,
    types.BuiltinMethodType: _Walk.builtin,
    **dict.fromkeys((types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType), _Walk.suspended),
    **dict.fromkeys(_kinds(_a_coroutine_wrapper(), _a_generator().__anext__()), _Walk.wrapper),
    **dict.fromkeys(
        _kinds(
            *(iter(()), iter([]), iter({}), iter({}.values()), iter({}.items()), iter(set()), iter(range(0))),
            *(iter(""), iter(b""), reversed([]), zip(), enumerate(()), map(str, ())),
        ),
        _Walk.iterator,
    ),
}
