"""The whole table, in the order of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Final

from . import accounts, collections, collectors, history, installation, objects, repositories, sessions
from .operation import AnyOperation, Operation


def _operations(*files: ModuleType) -> Iterator[AnyOperation]:
    return (value for file in files for value in vars(file).values() if isinstance(value, Operation))


CONTRACT: Final = tuple(_operations(installation, accounts, repositories, history, objects, collections))
OURS: Final = tuple(_operations(collectors, sessions))
OPERATIONS: Final = (*CONTRACT, *OURS)
BY_ID: Final[Mapping[str, AnyOperation]] = {operation.id: operation for operation in OPERATIONS}
