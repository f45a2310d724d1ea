"""Legal holds: keep data from every collection.

Kept out of the front door: the records are those of `lakebed.gc.messages`, which loads pyarrow.
"""

from __future__ import annotations

from typing import Final

from lakebed.gc import messages
from lakebed.gc.rules import Holds
from lakebed.operations.operation import NOTHING, ONE_REPOSITORY, PAGE, REPOSITORY, Operation, Parameter, get, on, post

_HOLDS: Final = ONE_REPOSITORY + "/holds"
_READ: Final = on(REPOSITORY, "gc:ReadRuns")

GET_LEGAL_HOLDS: Final = get(
    "getLegalHolds", _HOLDS, Holds, _READ, "Return the legal holds in force.", Parameter("deleted")
)
ADD_LEGAL_HOLD: Final = post(
    "addLegalHold",
    _HOLDS,
    messages.NewHold,
    messages.HoldsWritten,
    on(REPOSITORY, "gc:AddHold"),
    "Keep the objects of these paths, commits and tags from every collection.",
    status=201,
    repeatable=True,
)
RELEASE_LEGAL_HOLD: Final = Operation(
    "releaseLegalHold",
    "DELETE",
    _HOLDS + "/{hold}",
    NOTHING,
    messages.HoldsWritten,
    on(REPOSITORY, "gc:ReleaseHold"),
    "End a legal hold. The next collection may delete the objects that it kept.",
    (Parameter("why"),),
    # The second finds no hold.
    repeatable=False,
)
LIST_LEGAL_HOLD_HISTORY: Final = get(
    "listLegalHoldHistory",
    _HOLDS + "-history",
    messages.HoldsHistory,
    _READ,
    "List the changes of the legal holds, newest first.",
    Parameter("before", "integer"),
    PAGE[1],
)
