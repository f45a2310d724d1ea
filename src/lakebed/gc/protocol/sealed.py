"""Files that a run leaves for later steps and runs, as JSON that says itself whether it is whole.

    {"format": 1, "sha256": "<64 hex digits>", "<name>": {…}}

The digest is over the bytes of the value that is sealed. A reader believes all of it or nothing.

- `deferred.json` and `purge.json`: the objects whose deletes wait for the end of a window
  (docs/design/0010-deferred-delete.md). The end stands in the run's record alone, where one conditional write decides
  between a longer window and the deletes.
- `saved.json` (docs/formats/gc-saved.md): what a run of uncommitted data or by a policy leaves for the next one. It is
  written when every delete of the run was tried. A run that finds anything amiss makes a clean run instead.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final, Protocol, TypeVar

import msgspec

from lakebed.base import Invalid, RunId, RunKind
from lakebed.gc.rules import parse_duration

from .manifests import BadInput, Manifest, Part
from .paths import run_folder

T = TypeVar("T")


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    sha256: str


def seal(value: msgspec.Struct, *, name: str, format_number: int) -> bytes:
    body = msgspec.json.encode(value)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode({"format": format_number, "sha256": digest, name: msgspec.Raw(body)})


def unseal(data: bytes, kind: type[T], *, name: str, what: str, format_number: int) -> T:
    """
    Raises:
        BadInput: unreadable, of another format, or changed. Its message says `what`.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != format_number:
            raise BadInput(f"the {what} has the format {envelope.format}, not {format_number}", input=name)
        body = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get(name, msgspec.Raw())
        if hashlib.sha256(bytes(body)).hexdigest() != envelope.sha256:
            raise BadInput(f"the {what} contradicts its digest", input=name)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"the {what} is unreadable: {error}", input=name) from error


class _OfRun(Protocol):
    @property
    def run_id(self) -> str: ...


OfRun = TypeVar("OfRun", bound=_OfRun)


def _unseal_of_run(data: bytes, kind: type[OfRun], run_id: str, *, name: str, what: str, format_number: int) -> OfRun:
    """Unseal what this run left.

    Raises:
        BadInput: as `unseal`, or it is another run's.
    """
    found = unseal(data, kind, name=name, what=what, format_number=format_number)
    if found.run_id != run_id:
        raise BadInput(f"the {what} is that of run {found.run_id}", input=name)
    return found


DEFERRED_FORMAT: Final = 1


class BadWindow(Invalid):
    """The window has no end."""


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """`garbage` (table GARBAGE) names the objects that stay for the window."""

    run_id: str
    kind: RunKind
    garbage: Manifest


def purge_path(kind: RunKind, run_id: str) -> str:
    """Return where an apply lists what it deletes once the window is over: what nothing had come to name by then."""
    return f"{run_folder(kind, RunId(run_id))}purge.json"


def deferred_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}deferred.json"


def encode_deferred(deferred: Deferred) -> bytes:
    return seal(deferred, name="deferred", format_number=DEFERRED_FORMAT)


def decode_deferred(data: bytes, run_id: str) -> Deferred:
    """
    Raises:
        BadInput: unreadable, of another format, another run's, or changed.
    """
    what = f"list of what run {run_id} defers"
    return _unseal_of_run(data, Deferred, run_id, name="deferred", what=what, format_number=DEFERRED_FORMAT)


def window_end_ms(window: str, begin_ms: int) -> int:
    """Return the first instant after a window that begins at `begin_ms`.

    Raises:
        InvalidDuration, BadWindow: not a duration, or one without an end.
    """
    until_ms = parse_duration(window).over_ms(begin_ms, begin_ms)
    if until_ms is None:
        raise BadWindow("a window has an end: use 7d, 36h or 2w", window=window)
    return until_ms


SAVED_FORMAT: Final = 1


class RunMode(enum.StrEnum):
    """Say what a run of uncommitted data looks at: every closed slice; what changed since an earlier run; or what lies
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
    """Name what a plan found that a later run need not look for again, in the run's own folder.

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


class TreePart(msgspec.Struct, frozen=True, kw_only=True):
    """Some metaranges (`trees`) with the ranges that they have, in a folder of a run (docs/formats/gc-saved.md)."""

    folder: str
    trees: Part
    ranges: Part


class KnownDues(msgspec.Struct, frozen=True, kw_only=True):
    """Name what a lifecycle run found out about all that commits name, in its own folder.

    `ranges` were read, by `terms`: for each rule the periods of the branches that reach a range, None for never.
    `hours` say from when each object is due. What the runs in `taken` took is marked in them. `clean_run` is the run at
    the beginning of the chain, `runs_since_clean` counts those that went on from it.
    """

    trees: tuple[TreePart, ...]
    ranges: Pieces
    hours: Pieces
    terms: tuple[tuple[tuple[str, ...] | None, ...], ...]
    taken: tuple[str, ...] = ()
    clean_run: str
    runs_since_clean: int = 0


class SavedDues(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the digest of what the run was let to delete, which its record has too. The hours are by `policy`."""

    run_id: str
    repository: str
    namespace: str
    plan: str
    policy: str
    dues: KnownDues


def encode_saved_dues(saved: SavedDues) -> bytes:
    return seal(saved, name="saved", format_number=SAVED_FORMAT)


def decode_saved_dues(data: bytes, run_id: str) -> SavedDues:
    """
    Raises:
        BadInput: unreadable, of another format, another run's, or changed.
    """
    what = f"saved state of run {run_id}"
    return _unseal_of_run(data, SavedDues, run_id, name="saved", what=what, format_number=SAVED_FORMAT)


def saved_path(run_id: str, kind: RunKind = RunKind.UNCOMMITTED) -> str:
    return f"{run_folder(kind, RunId(run_id))}saved.json"


def encode_saved(saved: Saved) -> bytes:
    return seal(saved, name="saved", format_number=SAVED_FORMAT)


def decode_saved(data: bytes, run_id: str) -> Saved:
    """
    Raises:
        BadInput: unreadable, of another format, another run's, or changed.
    """
    what = f"saved state of run {run_id}"
    return _unseal_of_run(data, Saved, run_id, name="saved", what=what, format_number=SAVED_FORMAT)
