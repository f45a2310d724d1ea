"""A run whose deletes wait for the end of a window (docs/design/0010-deferred-delete.md): which objects those are.

`deferred.json` in the run's folder, and later `purge.json`, carry a digest of themselves. The end of the window stands
in the run's record alone, where one conditional write decides between a longer window and the deletes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import Invalid, RunId, RunKind
from lakebed.gc.rules import parse_duration

from .manifests import BadInput, Manifest
from .paths import run_folder
from .sealing import seal, unseal

DEFERRED_FORMAT: Final = 1


class BadWindow(Invalid):
    """The window has no end."""


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """`garbage` (table GARBAGE) names the objects that stay for the window."""

    run_id: str
    kind: RunKind
    garbage: Manifest


def purge_path(kind: RunKind, run_id: str) -> str:
    """Where an apply lists what it deletes once the window is over: what nothing had come to name by then."""
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
    found = unseal(data, Deferred, name="deferred", what=what, format_number=DEFERRED_FORMAT)
    if found.run_id != run_id:
        raise BadInput(f"the {what} is that of run {found.run_id}", input="deferred")
    return found


def window_end_ms(window: str, begin_ms: int) -> int:
    """Return the first instant after a window that begins at `begin_ms`.

    Raises:
        InvalidDuration, BadWindow: not a duration, or one without an end.
    """
    until_ms = parse_duration(window).over_ms(begin_ms, begin_ms)
    if until_ms is None:
        raise BadWindow("a window has an end: use 7d, 36h or 2w", window=window)
    return until_ms
