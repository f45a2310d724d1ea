"""Select rows of ranges: by paths, digests and metadata, columns at a time.

`gc/rules/selection.py` is the specification; a property test holds both equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import RangeId
from lakebed.gc.rules import Selection
from lakebed.gc.rules.lifecycle import PathPattern
from lakebed.ranges import RangeCorrupt, decode_range

from .ranges import texts_of

Flags = npt.NDArray[np.bool_]


def read_rows(id_: RangeId, data: bytes, count: int, selection: Selection, *, also: Iterable[str] = ()) -> pa.Table:
    """Return the rows of a range with the columns that selecting needs, and those in `also`, or raise RangeCorrupt."""
    columns = ["key", "slice", "sequence", "address", *also]
    columns += [name for name, wanted in (("checksum", selection.digests), ("metadata", selection.metadata)) if wanted]
    rows = decode_range(id_, data, list(dict.fromkeys(columns)))
    if rows.num_rows != count:
        raise RangeCorrupt(id_, f"has {rows.num_rows} entries instead of {count}")
    return rows


def selected(rows: pa.Table, selection: Selection) -> Flags:
    """Return for each row whether it is selected."""
    paths = texts_of(rows["key"])
    is_any = not (selection.paths or selection.globs or selection.digests)
    found: Flags = np.full(rows.num_rows, is_any)
    if selection.paths:
        found |= _is_in(paths, selection.paths)
    if selection.digests:
        found |= _is_in(rows["checksum"], selection.digests)
    for pattern in selection.patterns():
        found |= matching(paths, pattern)
    if selection.metadata and found.any():
        found &= with_metadata(rows["metadata"], selection.metadata.items())
    return found


def selected_paths(paths: pa.Array | pa.ChunkedArray, selection: Selection) -> Flags:
    """Return for each path whether the path alone is selected."""
    found = np.zeros(len(paths), np.bool_)
    if selection.paths:
        found |= _is_in(paths, selection.paths)
    for pattern in selection.patterns():
        found |= matching(paths, pattern)
    return found


def selected_objects(objects: pa.Table, selection: Selection, *, wholly: bool = False) -> Flags:
    """Return for each object (GARBAGE) whether one of its paths is selected, or with `wholly` whether all are."""
    found, others = selected_paths(objects["path"], selection), objects["other_paths"].combine_chunks()
    if others.null_count < len(others):
        chosen = selected_paths(pc.list_flatten(others), selection)
        rows = pc.list_parent_indices(others).to_numpy()
        found[rows[~chosen if wholly else chosen]] = not wholly
    return found


def paths_of(objects: pa.Table) -> list[tuple[str, ...]]:
    """Return all paths of each object (GARBAGE)."""
    columns = zip(objects["path"].to_pylist(), objects["other_paths"].to_pylist(), strict=True)
    return [tuple(sorted({path, *(others or ())})) for path, others in columns]


def _is_in(texts: Any, wanted: Iterable[str]) -> Flags:
    return np.array(pc.is_in(texts, value_set=pa.array(sorted(wanted), pa.string())).to_numpy(zero_copy_only=False))


def matching(paths: pa.Array | pa.ChunkedArray, pattern: PathPattern) -> Flags:
    """Return for each path whether the pattern matches it."""
    if pattern.is_prefix:
        chosen = pc.starts_with(paths, pattern.text)
    else:
        chosen = pc.match_substring_regex(paths, pattern.regex())
    if isinstance(chosen, pa.ChunkedArray):
        return np.array(chosen.to_numpy(), np.bool_)
    return np.array(chosen.to_numpy(zero_copy_only=False), np.bool_)


def with_metadata(column: pa.ChunkedArray, wanted: Iterable[tuple[str, str]]) -> Flags:
    """Return for each row whether it has all of this metadata."""
    asked = list(wanted)
    # Most entries share their metadata, so decode each distinct text once.
    codes = column.combine_chunks().dictionary_encode()
    texts = [msgspec.msgpack.decode(one, type=dict[str, str]) if one else {} for one in codes.dictionary.to_pylist()]
    has = np.array([all(text.get(key) == value for key, value in asked) for text in texts], np.bool_)
    chosen: Flags = has[codes.indices.to_numpy()]
    return chosen
