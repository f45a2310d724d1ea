"""Worlds of slices that lost their record, as where an older backup of the records is restored under a living server.

Who put them on record again collects at once, and takes every owner for dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from explorer.actors import Actor
from lakebed.gc.live import CollectionService
from lakebed.gc.live.installation.missing import ADOPTED_AGE_MS
from lakebed.versions import Versions, keys
from sim.ports.ports import LEVELS, SimPorts, set_ahead
from sim.ports.scene import Scene
from sim.scenes import deeds as do
from sim.scenes.collecting import FENCING, PRIVATE
from sim.scenes.doing import doing, versions
from sim.scenes.scenes import client, scene

_PRIVATE: Final = tuple(one for one in PRIVATE if one != LEVELS)
"""Who puts slices on record lists the folders of `data/`."""


@doing("lose")
async def lose_slices(repo: Versions) -> None:
    """Lose the record of each slice."""
    page = await repo.store.scan(repo.partition, keys.SLICE, 100)
    lost = [key for key in page.keys if key.startswith(keys.SLICE)]
    await repo.store.delete_many(repo.partition, lost)


@doing("adopt")
async def adopt_slices(repo: Versions) -> None:
    """Choose this installation, and put slices on record a day later."""
    service = CollectionService(repo, FENCING, user_id="sim")
    set_ahead(repo.ports, 1)
    await service.adopting()
    set_ahead(repo.ports, ADOPTED_AGE_MS)
    await service.adopt_slices()


async def _adopt_once_more(ports: SimPorts) -> None:
    """What was opened since the choice is left until the next."""
    await adopt_slices("tidy").act(versions(ports))


def _scene(name: str, *actors: Actor, **how: Any) -> Scene:
    return scene(name, *actors, private=_PRIVATE, **how).tidied_by(first=_adopt_once_more)


def unlisted_scenes() -> Iterator[Scene]:
    run = do.uncommitted_run("r1", options=FENCING)
    r = client("r", lose_slices("x1"), adopt_slices("a1"), run)
    u, staged = client("u", do.upload("w2", "a", "2")), [do.write("w1", "a", "1")]
    yield _scene("uploader, adopter of its slice that runs", u, r, staged=staged)
    closing = client("u", do.upload("w2", "a", "2"), do.close("x2"))
    yield _scene("uploader that closes, adopter of its slice that runs", closing, r, staged=staged)
    old = [do.upload("w0", "b", "0")]
    c = client("c", do.commit("c1"))
    yield _scene("committer, adopter of its slice that runs", c, r, before=old)
