"""Lakebed: version control for a data lake.

    import lakebed

    with lakebed.open_local("./lake") as lake:          # a folder of this machine, no server
        main = lake.create_repository("flights").branch("main")
        with main.transaction("load January") as tx:    # all of it, or nothing
            tx.write("2024/01.csv", b"...")

    lake = lakebed.connect("http://lake.example:8000")  # a server; by default the configured one

Names are loaded when they are first used: a command that speaks to no server does not load an HTTP client.
"""

# This file imports nothing: until `lakebed.interrupts` is there, Ctrl-C shows a traceback. Type checkers take this name
# for true without `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import (
        AlreadyExists,
        Conflict,
        Corrupt,
        Denied,
        Invalid,
        LakebedError,
        NotFound,
        OutcomeUnknown,
        Unavailable,
    )
    from .lake import AsyncLake, Branch, Lake, Ref, Repository, Transaction, connect, open_local

__all__ = [
    "AlreadyExists",
    "AsyncLake",
    "Branch",
    "Conflict",
    "Corrupt",
    "Denied",
    "Invalid",
    "Lake",
    "LakebedError",
    "NotFound",
    "OutcomeUnknown",
    "Ref",
    "Repository",
    "Transaction",
    "Unavailable",
    "connect",
    "open_local",
]

_FROM_LAKE = {"AsyncLake", "Branch", "Lake", "Ref", "Repository", "Transaction", "connect", "open_local"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'lakebed' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("lakebed.lake" if name in _FROM_LAKE else "lakebed.base"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
