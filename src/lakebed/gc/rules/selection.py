"""Select entries by path, by digest of their bytes, or by metadata. Legal holds and erasures share this. Pure.

A path is exact or a pattern (lifecycle/paths.py). `logs/**/a.csv` is a glob. `logs/`, with its slash, selects all paths
below it. An entry is selected if its path or its digest is selected, or if neither kind is given. It must also have all
of the metadata.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import Invalid, InvalidName, MetarangeId, path_to_key

from .committed import Namespace
from .history import History
from .lifecycle.due import Entry
from .lifecycle.paths import PathPattern, wrong_in_glob

__all__ = [
    "InvalidSelection",
    "Matcher",
    "Selection",
    "Spans",
    "Stands",
    "check_globs",
    "check_selection",
    "digests_in",
    "judge_erasure",
]

PATHS_MAX: Final = 100_000
GLOBS_MAX: Final = 1_000
_MD5: Final = re.compile(r"[0-9a-fA-F]{32}(-[0-9]{1,5})?")
_DIGEST: Final = re.compile(r"[0-9A-Za-z+/=_.:-]{8,128}")
"""An imported object has the ETag of its store, which may be almost any text."""


class InvalidSelection(Invalid):
    """The selection is empty or too large for one request, or a glob is malformed."""


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`paths` are exact. In `globs` stars are wildcards, and a glob with a slash at its end selects all paths below.

    `digests` are checksums, spelled as in entries.
    """

    paths: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    metadata: dict[str, str] = {}

    def patterns(self) -> tuple[PathPattern, ...]:
        return tuple(PathPattern(text, text.endswith("/")) for text in self.globs)

    @property
    def is_by_path(self) -> bool:
        """Return whether paths alone select: a range without such a path then needs no look."""
        return not self.digests and bool(self.paths or self.globs)

    def selects_path(self, path: str) -> bool:
        """Return whether the path alone is selected."""
        return Matcher(self).selects_path(path)

    def matches(self, path: str, checksum: str = "", metadata: Mapping[str, str] | None = None) -> bool:
        return Matcher(self).matches(path, checksum, metadata)


class Matcher:
    """Match many entries against one selection."""

    def __init__(self, selection: Selection) -> None:
        # Sets and compiled patterns: the cost of an entry does not depend on the number of paths.
        self._paths, self._patterns = frozenset(selection.paths), selection.patterns()
        self._digests, self._metadata = frozenset(selection.digests), selection.metadata
        self._is_any = not (self._paths or self._patterns or self._digests)

    def selects_path(self, path: str) -> bool:
        """Return whether the path alone is selected."""
        return path in self._paths or any(pattern.matches(path) for pattern in self._patterns)

    def matches(self, path: str, checksum: str = "", metadata: Mapping[str, str] | None = None) -> bool:
        return (self._is_any or checksum in self._digests or self.selects_path(path)) and all(
            (metadata or {}).get(key) == value for key, value in self._metadata.items()
        )


class Spans:
    """Decide which spans of keys may have a selected entry."""

    def __init__(self, selection: Selection) -> None:
        self._is_all = not selection.is_by_path
        self._paths = sorted(path.encode() for path in selection.paths)
        self._starts = sorted({pattern.literal_beginning() for pattern in selection.patterns()})

    def meets(self, min_key: bytes, max_key: bytes) -> bool:
        """Return whether a key from `min_key` to `max_key`, both included, may be selected."""
        if self._is_all:
            return True
        at = bisect_left(self._paths, min_key)
        if at < len(self._paths) and self._paths[at] <= max_key:
            return True
        # A pattern matches only keys with its literal beginning, so compare that with the span's prefixes.
        return any(min_key[: len(start)] <= start <= max_key[: len(start)] for start in self._starts)


def digests_in(checksums: Iterable[str]) -> Iterator[Selection]:
    """Yield selections of all checksums that are digests."""
    # A checksum of another form is a client's own text, and no digest of bytes.
    digests = [text for text in checksums if _DIGEST.fullmatch(text)]
    for first in range(0, len(digests), PATHS_MAX):
        yield Selection(digests=tuple(digests[first : first + PATHS_MAX]))


def check_selection(selection: Selection) -> Selection:
    """Return the selection with each name once, sorted, or raise InvalidSelection."""
    made = msgspec.structs.replace(
        selection,
        paths=tuple(sorted(set(selection.paths))),
        globs=tuple(sorted(set(selection.globs))),
        digests=tuple(sorted({text.lower() if _MD5.fullmatch(text) else text for text in selection.digests})),
    )
    if not (made.paths or made.globs or made.digests or made.metadata):
        raise InvalidSelection("nothing is selected: name paths, globs, digests or metadata")
    if len(made.paths) + len(made.digests) > PATHS_MAX or len(made.globs) > GLOBS_MAX:
        raise InvalidSelection(f"at most {PATHS_MAX:,} paths and digests, and {GLOBS_MAX:,} globs")
    check_globs(made.globs)
    for text in made.paths:
        _check_path(text)
    for wrong in (text for text in made.digests if not _DIGEST.fullmatch(text)):
        raise InvalidSelection(
            f"{wrong[:80]!r} is not a checksum as `object stat` shows it: an MD5 sum, or a store's ETag"
        )
    return made


def _check_path(text: str) -> None:
    """Check that an entry can have this path."""
    try:
        path_to_key(text)
    except InvalidName as error:
        raise InvalidSelection(f"{text[:80]!r}: {error}") from error
    if text.startswith("lakefs://"):
        raise InvalidSelection(f"{text[:80]}: name the path alone, without repository and branch")


def check_globs(globs: Iterable[str]) -> None:
    """Check globs, or raise InvalidSelection."""
    for text in globs:
        _check_path(text)
        wrong = "a folder with stars has no slash at its end: write **" if text.endswith("/") and "*" in text else None
        if wrong := wrong or wrong_in_glob(text):
            raise InvalidSelection(f"{text}: {wrong}")


# The objects that an erasure deletes: the specification that the planner must agree with
#
#    Delete an object if a selected entry of a commit names it and no other entry of a commit does. An erasure of shared
#    objects ignores the other entries.
#
# Dates, branches, tags, rules and policies have no influence. The planner adds selected staged objects. Unselected
# records outside of commits, and legal holds (holds.py), keep their objects, too. A plan lists the selected objects
# that are kept, with reasons.


class Stands(StrEnum):
    """Name the reason why a selected object stays."""

    SHARED = "entries that are not selected name it"
    OUTSIDE = "it lies outside of the repository's storage namespace, or is not Lakebed's to delete"


class ErasureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`goes`: objects to delete, by key. `stands`: selected objects that stay, by key, or by address outside."""

    goes: frozenset[str]
    stands: dict[str, Stands]


def judge_erasure(
    history: History,
    contents: Mapping[MetarangeId, Sequence[Entry]],
    selection: Selection,
    *,
    namespace: Namespace,
    takes_shared: bool = False,
) -> ErasureVerdict:
    """Apply the law of the module. Entries have no checksums here, so no digest selects an entry."""
    chosen: set[str] = set()
    others: set[str] = set()
    for commit in history.commits.values():
        # A swept commit names nothing, and a commit without a metarange has no entries.
        if commit.swept or not commit.metarange_id:
            continue
        for entry in contents[commit.metarange_id]:
            is_chosen = selection.matches(entry.path, "", entry.metadata)
            (chosen if is_chosen else others).add(entry.address)
    shared = namespace.keys_of(others)
    goes: set[str] = set()
    stands: dict[str, Stands] = {}
    for address in chosen:
        key = namespace.key_of(address)
        # An object outside belongs to another program, and an open slice may get a new cell for its object.
        if key is None or not namespace.may_take(key):
            stands[key or address] = Stands.OUTSIDE
        elif key in shared and not takes_shared:
            stands[key] = Stands.SHARED
        else:
            goes.add(key)
    return ErasureVerdict(goes=frozenset(goes), stands=stands)
