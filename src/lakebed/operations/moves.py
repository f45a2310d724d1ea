"""Moving objects within a repository, without moving their bytes."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import AT_BRANCH, At, Operation, Parameter, Permission
from .resources import COPIED_OBJECT, ONE_BRANCH, SOURCE_OBJECT

_SOURCE: Final = At("src_branch", "branch", otherwise="branch")
MOVE_OBJECT: Final = Operation(
    "moveObject",
    "POST",
    ONE_BRANCH + "/objects/move",
    wire.ObjectMove,
    wire.ObjectStats,
    (
        Permission("fs:ReadObject", SOURCE_OBJECT, _SOURCE),
        Permission("fs:DeleteObject", SOURCE_OBJECT, _SOURCE),
        Permission("fs:WriteObject", COPIED_OBJECT, AT_BRANCH),
    ),
    "Move an object within its repository. 409: the source was replaced meanwhile and stays; the target is a copy.",
    (Parameter("dest_path", is_required=True),),
    status=201,
    # Done twice, the second finds no source.
    repeatable=False,
)
