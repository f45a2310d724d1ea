"""Deleting replaced objects at once: the setting, the queue, and why an object was deleted."""

from __future__ import annotations

from typing import Final

from lakebed import wire
from lakebed.operations.operation import ONE_REPOSITORY, REPOSITORY, Parameter, get, on, put

_PATH: Final = ONE_REPOSITORY + "/hard_delete"
_READ: Final = on(REPOSITORY, "gc:ReadHardDelete")

GET_HARD_DELETE: Final = get(
    "getHardDelete",
    _PATH,
    wire.HardDeleteStatus,
    _READ,
    "Return whether replaced objects are deleted at once, and how many wait.",
)
SET_HARD_DELETE: Final = put(
    "setHardDelete",
    _PATH,
    wire.SetHardDelete,
    wire.HardDeleteStatus,
    on(REPOSITORY, "gc:WriteHardDelete"),
    "Turn it on or off, pause it, or set how long readers have. Objects that wait when it goes off are still deleted.",
)
WHY_HARD_DELETED: Final = get(
    "whyHardDeleted",
    _PATH + "/why",
    wire.HardDeletedList,
    _READ,
    "Return objects of an address or a path that wait in the queue or were deleted at once.",
    Parameter("address"),
    Parameter("path"),
)
