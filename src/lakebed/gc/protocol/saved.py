"""What a run of uncommitted data leaves for the next one (docs/formats/gc-saved.md).

`saved.json` is written when every delete of the run was tried, as one, and carries a digest of itself and of every part
it names. Nothing rests on its dates. Who reads it believes all of it or nothing: a run that finds anything amiss makes
a clean run instead, which needs no saved state.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from lakebed.base import RunId, RunKind

from .manifests import BadInput, Manifest, Part
from .paths import run_folder
from .sealing import seal, unseal

SAVED_FORMAT: Final = 1


class RunMode(enum.StrEnum):
    """What a run of uncommitted data looks at: every closed slice; what changed since an earlier run; or what lies
    outside slices.
    """

    CLEAN = "clean"
    OPTIMISED = "optimised"
    OLD_LAYOUT = "old-layout"


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a collector's own table. `folder` is relative to the namespace and ends with a slash."""

    folder: str
    parts: tuple[Part, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class Keeps(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan found that a later run need not look for again, in the run's own folder.

    `kept`: candidates that stay and that no commit names. `committed`: a bitmap for each slice of what the commits in
    `commits` name that were not swept, or more. `ranges`: the ids of the ranges that these bitmaps were made from.
    `slices`: those that this run or one before it listed. `clean_run` is the run at the beginning of the chain,
    `runs_since_clean` the number of optimised ones since.
    """

    kept: Pieces
    committed: Pieces
    ranges: Pieces
    slices: Pieces
    commits: Manifest
    clean_run: str
    clean_ms: int
    runs_since_clean: int = 0


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the digest of the plan's garbage, which the run's record has too. `failed` are those of them
    that could not be deleted.
    """

    run_id: str
    repository: str
    namespace: str
    plan: str
    run_start_time_ms: int
    last_read_slice: str
    keeps: Keeps
    failed: Pieces


def saved_path(run_id: str) -> str:
    return f"{run_folder(RunKind.UNCOMMITTED, RunId(run_id))}saved.json"


def encode_saved(saved: Saved) -> bytes:
    return seal(saved, name="saved", format_number=SAVED_FORMAT)


def decode_saved(data: bytes, run_id: str) -> Saved:
    """
    Raises:
        BadInput: unreadable, of another format, another run's, or changed.
    """
    what = f"saved state of run {run_id}"
    saved = unseal(data, Saved, name="saved", what=what, format_number=SAVED_FORMAT)
    if saved.run_id != run_id:
        raise BadInput(f"the {what} is that of run {saved.run_id}", input="saved")
    return saved
