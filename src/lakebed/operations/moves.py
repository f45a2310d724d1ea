"""Moving objects within a repository, without moving their bytes."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import Operation, Parameter, Permission
from .resources import COPIED_OBJECT, ONE_BRANCH, SOURCE_OBJECT

MOVE_OBJECT: Final = Operation(
    "moveObject",
    "POST",
    ONE_BRANCH + "/objects/move",
    wire.ObjectMove,
    wire.ObjectStats,
    (
        Permission("fs:ReadObject", SOURCE_OBJECT),
        Permission("fs:DeleteObject", SOURCE_OBJECT),
        Permission("fs:WriteObject", COPIED_OBJECT),
    ),
    "Move an object within its repository. 409: the source was replaced meanwhile and stays; the target is a copy.",
    (Parameter("dest_path", is_required=True),),
    status=201,
    # Done twice, the second finds no source.
    repeatable=False,
)
