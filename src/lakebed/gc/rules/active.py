"""The same verdict as `history.kept_commits`, for histories of millions: columns in, a boolean column out.

Along first parents the history is a forest. What a commit needs to know is the longest retention of all branches whose
main ancestry it is in. So the heads are walked in that order, longest first. A walk ends where an earlier one passed:
all below has a period at least as long. Every commit is passed once, whatever the number of branches. Then the
default goes down from what dangles, for as long as it is the longer one.
So it is with the newest commits that a rule pins, counted from each head. A property test holds this equal to the
specification.

Ids come by the million, too (`find_ids`, `repeated`). An id is 64 hex digits, and a hash table of a million such texts
takes a third of a second. So each is taken for eight numbers, a number is made of two of them, and it is those that are
looked up; that the texts really are the same is then seen from all eight. Where a text is no such id, or two have one
number, the texts themselves are looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakebed.base import Later

from .history import BrokenHistory
from .rules import Rules

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.compute as pc

    Words = npt.NDArray[np.uint64]
else:  # only where they are used: a plain install has neither, and most of what is here needs none
    np = Later("numpy")
    pa = Later("pyarrow")
    pc = Later("pyarrow.compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Branches, the one that keeps longest first, each with the beginning of its period; and for each commit the first
    of them in whose main ancestry it is, -1 where it dangles."""

    branches: list[str]
    since_ms: npt.NDArray[np.int64]
    branch_of: npt.NDArray[np.int32]


def lines_of(*, first_parent: npt.NDArray[np.int64], heads: Mapping[str, int], rules: Rules, now_ms: int) -> Lines:
    """Less than 0.1 µs a commit. Arguments as of `kept_indices`."""
    walks = sorted((rules.since_ms(branch, now_ms), branch) for branch in heads)
    found = np.full(len(first_parent), -1, np.int32)
    # Views give numbers as fast as lists do, and four bytes for each stay in the processor's cache.
    parents, branch_of = first_parent.astype(np.int32).data, found.data
    for number, (_, branch) in enumerate(walks):
        commit = heads[branch]
        while commit >= 0 and branch_of[commit] < 0:
            branch_of[commit] = number
            commit = parents[commit]
    return Lines(
        branches=[branch for _, branch in walks],
        since_ms=np.array([since for since, _ in walks], np.int64),
        branch_of=found,
    )


def kept_indices(
    *,
    first_parent: npt.NDArray[np.int64],
    created_ms: npt.NDArray[np.int64],
    heads: Mapping[str, int],
    pinned: Sequence[int],
    rules: Rules,
    now_ms: int,
    lines: Lines | None = None,
) -> npt.NDArray[np.bool_]:
    """Return which commits keep their data. Commits are rows; `first_parent` is -1 where there is none.

    `pinned` are kept whatever the rules say: held commits, refs being made, and tags where `rules.tags_pin`. `lines`
    are those of these arguments, where the caller has them. Linear in commits; about 0.2 µs each.
    """
    lines = lines or lines_of(first_parent=first_parent, heads=heads, rules=rules, now_ms=now_ms)
    # Of a commit that dangles, -1 takes the last: the default's.
    default = rules.since_ms(None, now_ms)
    limits = np.append(lines.since_ms, default)[lines.branch_of]
    _lower(first_parent, limits, first_parent[lines.branch_of < 0], default)
    active = created_ms >= limits
    kept = active.copy()
    above = first_parent[active]
    kept[above[above >= 0]] = True
    kept[list(heads.values())] = True
    kept[list(pinned)] = True
    pins = [(rules.keep_last_of(branch), head) for branch, head in heads.items()]
    if any(count for count, _ in pins):
        kept[_last_of_branches(first_parent.tolist(), pins)] = True
    return kept


def _lower(
    first_parent: npt.NDArray[np.int64], limits: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], limit: int
) -> None:
    """Give these commits and their ancestors the limit where their own is higher. A limit never rises from a commit to
    its parent, so where it is not higher, nothing below is."""
    starts = starts[starts >= 0]
    parents, found = first_parent.data, limits.data
    for start in starts[limits[starts] > limit].tolist():
        commit = start
        while commit >= 0 and found[commit] > limit:
            found[commit] = limit
            commit = parents[commit]


def _last_of_branches(parents: list[int], walks: Iterable[tuple[int, int]]) -> list[int]:
    """The newest commits of each (how many, head). All walks go at once, those with more left to go first: so the one
    that is first at a commit has the most left there, and no commit is passed twice.
    """
    starts: dict[int, list[int]] = {}
    for count, head in walks:
        starts.setdefault(count, []).append(head)
    seen = bytearray(len(parents))
    found: list[int] = []
    reached: list[int] = []
    for left in range(max(starts, default=0), 0, -1):
        here: list[int] = []
        for commit in (*reached, *starts.get(left, ())):
            if not seen[commit]:
                seen[commit] = 1
                here.append(commit)
        found += here
        reached = [parents[commit] for commit in here if parents[commit] >= 0]
    return found


def first_parent_indices(ids: pa.Array, parents: pa.Array) -> npt.NDArray[np.int64]:
    """The row of each commit's first parent, -1 where it has none. `parents` is a list column, first parent first.

    Raises:
        BrokenHistory: a first parent is not among `ids`.
    """
    return places_of(ids, parents, [])[0]


def rows_of(ids: pa.Array, names: Sequence[str], *, who: str) -> list[int]:
    """The rows of these commits, in the order given.

    Raises:
        BrokenHistory: one is not among `ids`; `who` is what the error says names it.
    """
    nothing = pa.array([], pa.list_(pa.string()))
    return places_of(ids, nothing, [(who, name) for name in names])[1]


def places_of(
    ids: pa.Array, parents: pa.Array, refs: Sequence[tuple[str, str]]
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """`first_parent_indices`, and the rows of what `refs` name (who, commit), for one index of the ids: making it takes
    longer than all else.

    Raises:
        BrokenHistory: something named is not among `ids`.
    """
    offsets = parents.offsets.to_numpy()
    has_parent = np.flatnonzero(np.diff(offsets) > 0)
    above = parents.values.take(pa.array(offsets[has_parent]))
    names = pa.concat_arrays([above, pa.array([commit for _, commit in refs], pa.string())])
    rows = find_ids(ids, names)
    if rows.null_count:
        missing = int(np.flatnonzero(pc.is_null(rows).to_numpy(zero_copy_only=False))[0])
        who = "a commit" if missing < len(above) else refs[missing - len(above)][0]
        commit = names[missing].as_py()
        raise BrokenHistory(f"{who} names commit {commit}, which has no record", commit=commit)
    found = np.asarray(rows.to_numpy(), np.int64)
    first_parent = np.full(len(parents), -1, np.int64)
    first_parent[has_parent] = found[: len(above)]
    return first_parent, found[len(above) :].tolist()


def one_piece(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array; without a copy where it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


_ID_BYTES: Final = 64
_COMPARED_TOGETHER: Final = 65_536


def find_ids(ids: pa.Array, names: pa.Array | pa.ChunkedArray) -> pa.Array:
    """For each name its row among the ids, or null. About 0.15 µs each, and 50 bytes: no text is copied."""
    if not len(names):
        return pa.array([], pa.int32())
    pieces = [piece for piece in (names.chunks if isinstance(names, pa.ChunkedArray) else [names]) if len(piece)]
    id_words, words = _words(ids), [_words(piece) for piece in pieces]
    if id_words is not None and all(one is not None for one in words):
        sound = [one for one in words if one is not None]
        rows = pc.index_in(pa.chunked_array([_mixed(one) for one in sound]), value_set=_mixed(id_words))
        rows = rows.combine_chunks()
        if not rows.null_count and _are_at(id_words, rows.to_numpy(), sound):
            return rows
    found = pc.index_in(names, value_set=ids)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _are_at(id_words: Words, rows: npt.NDArray[np.int32], pieces: Sequence[Words]) -> bool:
    """Return whether the ids in these rows are the words of the pieces, one behind the other. Copies few at a time."""
    done = 0
    for words in pieces:
        for start in range(0, len(words), _COMPARED_TOGETHER):
            part = words[start : start + _COMPARED_TOGETHER]
            if (id_words[rows[done : done + len(part)]] != part).any():
                return False
            done += len(part)
    return True


def repeated(ids: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows of ids that may come more than once, ascending, and for each of them a number: equal where the ids are.
    About 0.05 µs an id, and 0.3 for each that is repeated."""
    words = _words(ids)
    rows = np.arange(len(ids))
    if words is not None:
        mixed = _mixed(words)
        ascending = np.sort(mixed.to_numpy())
        several = ascending[1:][ascending[1:] == ascending[:-1]]
        rows = np.flatnonzero(pc.is_in(mixed, value_set=pa.array(several)).to_numpy(zero_copy_only=False))
    codes = ids.take(pa.array(rows)).dictionary_encode().indices
    return rows, np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


def _words(texts: pa.Array) -> Words | None:
    """None where one is not 64 bytes long, or there is none at all."""
    if not len(texts):
        return None
    _, starts, data = texts.buffers()
    offsets = np.frombuffer(starts, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if (np.diff(offsets) != _ID_BYTES).any():
        return None
    octets = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return octets.view(np.uint64).reshape(len(texts), _ID_BYTES // 8)


def _mixed(words: Words) -> pa.Array:
    """Any sixteen of the digits are random enough."""
    return pa.array(words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ words[:, 1])
