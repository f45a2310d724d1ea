"""Worlds of lifecycle runs: the shipped plan and apply, beside everyone who can come to name an object that they take.

The policy lets go what any commit has at the path `a`. A cell that names the object, or a commit that has it at another
path, keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lakebed.gc.protocol import RunKind, RunState
from lakebed.gc.service import PolicyBook
from lakebed.gc.service.runs import RunBook
from lakebed.versions import Versions

from .actors import Actor, Scene
from .deeds import copy, create_branch, reset_object
from .flows import OPTIONS, PRIVATE, collect
from .operations import Operation
from .ports import SimPorts
from .reachable import nothing_reachable_is_deleted, nothing_undue_is_deleted
from .scenes import Do, client, commit, scene, upload, versions

DUE: Final = b"a"


def set_policy(name: str, policy: bytes = b'{"due": {"prefix": "a", "days": 1}}') -> Do:
    async def act(repo: Versions) -> None:
        await PolicyBook(repo).write(policy)

    return Do(Operation(name, "policy"), act)


_PAST: Final = [upload("w1", "a", "1"), commit("p1"), set_policy("q0")]
"""A commit whose object is due ten days later."""


def lifecycle_scenes() -> Iterator[Scene]:
    """Committers beside a whole run are too many schedules to walk: tests/spark/test_lifecycle.py has some of these."""
    run = client("r", collect("r1", RunKind.LIFECYCLE))
    yield _scene("copier from a commit, lifecycle run", client("h", copy("w3", "a", "b", "3")), run)
    yield _scene("brancher, lifecycle run", client("h", create_branch("h1", "main")), run)
    back = client("h", reset_object("s1", "a"))
    yield _scene("object resetter, lifecycle run", back, run, staged=[upload("w2", "a", "2")])
    changed = client("s", set_policy("q1", b'{"due": {"prefix": "z", "days": 1}}'))
    yield _scene("setter of the policy, lifecycle run", changed, run)


def _scene(name: str, *actors: Actor, staged: Sequence[Do] = ()) -> Scene:
    made = scene(name, *actors, before=_PAST, staged=staged)
    checks = tuple(nothing_undue_is_deleted(DUE) if one is nothing_reachable_is_deleted else one for one in made.checks)

    async def tidy(ports: SimPorts) -> None:
        # The files of a run that died are its own here, so no other apply can take its sweep to the end.
        repo = versions(ports)
        for run_id, run in await repo.retired.runs():
            if run.kind is RunKind.LIFECYCLE and run.state is RunState.SWEEPING:
                await RunBook(repo, OPTIONS).move(run_id, RunState.ENDED)
        assert made.tidy is not None
        await made.tidy(ports)

    return replace(made, checks=checks, private=PRIVATE, tidy=tidy)
