"""Worlds of lifecycle runs: the shipped plan and apply, beside everyone who can come to name an object that they take.

The policy lets go what any commit has at the path `a`. A cell that names the object, or a commit that has it at another
path, keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lakebed.gc.protocol import RunKind
from lakebed.gc.service import PolicyBook
from lakebed.versions import Versions

from .actors import Actor, Scene
from .deeds import collect, copy, create_branch, purge, read_bytes, reset_object, restore
from .flows import Quick
from .operations import Operation
from .reachable import nothing_reachable_is_deleted, nothing_undue_is_deleted
from .scenes import MAIN, Do, client, commit, scene, upload

_ALL: Final[Quick] = (True, True, True)
_NO_FAULT: Final[Quick] = (True, False, False)
DUE: Final = b"a"


def set_policy(name: str, policy: bytes = b'{"due": {"prefix": "a", "days": 1}}') -> Do:
    async def act(repo: Versions) -> None:
        await PolicyBook(repo).write(policy)

    return Do(Operation(name, "policy"), act)


_PAST: Final = [upload("w1", "a", "1"), commit("p1"), set_policy("q0")]
"""A commit whose object is due ten days later."""
_DEFERRED: Final = [*_PAST, collect("q1", RunKind.LIFECYCLE, window="7d")]
"""The object was taken, and waits for the end of a window."""


def lifecycle_scenes() -> Iterator[tuple[Scene, Quick]]:
    """Committers beside a whole run are too many schedules to walk: tests/spark/test_lifecycle.py has some of these."""
    run = client("r", collect("r1", RunKind.LIFECYCLE))
    yield _scene("copier from a commit, lifecycle run", client("h", copy("w3", "a", "b", "3")), run), _NO_FAULT
    graceful = client("r", collect("r1", RunKind.LIFECYCLE, has_grace=True))
    reader = client("b", read_bytes("b1", "a", ref=MAIN))
    yield _scene("reader of bytes, lifecycle run with grace", reader, graceful), _NO_FAULT
    yield _scene("brancher, lifecycle run", client("h", create_branch("h1", "main")), run), _NO_FAULT
    back = client("h", reset_object("s1", "a"))
    yield _scene("object resetter, lifecycle run", back, run, staged=[upload("w2", "a", "2")]), _NO_FAULT
    purging = client("p", purge("p9"))
    copier = client("h", copy("w3", "a", "b", "3"))
    yield _scene("copier from a commit, purger of a lifecycle run", copier, purging, before=_DEFERRED), _NO_FAULT
    restorer = client("x", restore("x1", content=b"1"))
    yield _scene("restorer, purger of a lifecycle run", restorer, purging, before=_DEFERRED), _ALL
    changed = client("s", set_policy("q1", b'{"due": {"prefix": "z", "days": 1}}'))
    yield _scene("setter of the policy, lifecycle run", changed, run), _NO_FAULT


def _scene(name: str, *actors: Actor, before: Sequence[Do] = _PAST, staged: Sequence[Do] = ()) -> Scene:
    made = scene(name, *actors, before=before, staged=staged)
    checks = tuple(nothing_undue_is_deleted(DUE) if one is nothing_reachable_is_deleted else one for one in made.checks)
    return replace(made, checks=checks)
