"""Merging sorted layers, newest first, page by page: staged cells over older ones over the commit.

A *horizon* is the last key up to which every layer has been read; rows at or before it can be merged without seeing
more. So a page costs one read a layer, and layers that are empty (sealed tokens nearly always are) cost one
empty read and drop out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from lakebed.base import CommitId, MetarangeId, Row, StagingToken, common_prefix
from lakebed.kv import prefix_end
from lakebed.versions.cells import TOMBSTONE_ROW, Cell, decode_cell, decode_cells, hides_one, is_gone, shown_over
from lakebed.versions.context import Context
from lakebed.versions.records import BranchRecord

LISTING_PAGE = 1001
"""One more than the longest page that a client asks for, which tells whether there is another."""
FOLDER_PAGE = 8
SEEK_PAGE = 64
"""Behind a folder in which a page of at most this length ended, seek the next folder by key, and read no rows."""
ROWS_A_SEEK = 32
"""Seeking past a folder costs about as much as reading this many of its rows."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Items in key order. A row of None stands for a common prefix, whose key ends with the delimiter."""

    items: list[tuple[bytes, Row | None]]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The number of objects in a stretch of paths, and their bytes. `after`: the last path counted; None: all were."""

    objects: int
    size_bytes: int
    after: bytes | None


@dataclass(frozen=True, slots=True)
class View:
    """Name the layers of a reader: tokens, newest first, then a commit. A commit alone is a view without tokens."""

    tokens: tuple[StagingToken, ...]
    commit_id: CommitId

    @staticmethod
    def of(record: BranchRecord) -> View:
        return View(record.tokens(), record.commit_id)


@dataclass(frozen=True, slots=True)
class Span:
    """Cells or rows at or after a start, complete up to where `next_start` is; None: complete to the end."""

    keys: list[bytes]
    cells: list[Cell]
    next_start: bytes | None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing lies at or after the start."""
        return not self.keys and self.next_start is None


class Layers:
    """Read the entries of a view. No second look here: callers go through `BranchRecords.consistent`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def look_up(self, view: View, key: bytes) -> Row | None:
        """The row at this path. See `find`."""
        found = await self.find(view, key)
        return None if found is None else found[1]

    async def find(self, view: View, key: bytes) -> Cell | None:
        """The row at this path with the flags of its cell, none where a commit has it.

        Costs one `get` a token until one knows the path, then a look-up in the tree.
        """
        staged = await self.look_up_staged(view.tokens, key)
        if staged is not None and not hides_one(staged):
            return None if is_gone(staged[0]) else staged
        row = await self._committed(view, key) if staged is None else await self._look_beneath(view, key)
        return None if row is None else (0, row)

    async def _committed(self, view: View, key: bytes) -> Row | None:
        return await self._context.trees.lookup(await self._context.commits.metarange(view.commit_id), key)

    async def _look_beneath(self, view: View, key: bytes) -> Row | None:
        """Look up a path over which a move is under way, or died. Show the entry that a commit would leave there."""
        # The tombstone of the move hides one version, and a merge may have brought another.
        staged, committed = await self.look_up_all_staged(view.tokens, key), await self._committed(view, key)
        beneath = None if committed is None else (0, committed)
        shown = beneath if staged is None else shown_over(staged, beneath)
        return None if shown is None or is_gone(shown[0]) else shown[1]

    async def look_up_staged(self, tokens: Sequence[StagingToken], key: bytes) -> Cell | None:
        for token in tokens:
            held = await self._context.store.get(self._context.token_partition(token), key)
            if held is not None:
                return decode_cell(held.value)
        return None

    async def look_up_all_staged(self, tokens: Sequence[StagingToken], key: bytes) -> Cell | None:
        """Look the path up in all tokens together, where a tombstone may hide one version alone. Reads each token."""
        shown: Cell | None = None
        for token in reversed(tokens):
            held = await self._context.store.get(self._context.token_partition(token), key)
            if held is not None:
                shown = shown_over(decode_cell(held.value), shown)
        return shown

    async def staged_span(self, tokens: Sequence[StagingToken], start: bytes, limit: int) -> Span:
        """The overlay of the tokens (newest first) at or after `start`, tombstones included, up to the horizon."""
        spans: list[Span] = []
        for token in tokens:
            page = await self._context.store.scan(self._context.token_partition(token), start, limit)
            if page.keys or page.next_start is not None:
                spans.append(Span(page.keys, decode_cells(page.values), page.next_start))
        return merge_spans(spans)

    async def _page(
        self, view: View, staged: Span, start: bytes, limit: int, *, prefix: bytes, folded_by: bytes
    ) -> Span:
        """Staging over the commit, up to the horizon, without deleted paths. The commit is read up to the prefix's end.

        Where the next key of the commit lies in a folder by the delimiter `folded_by`, that key may be all of it.
        """
        metarange = await self._context.commits.metarange(view.commit_id)
        committed = await self._folder_span(metarange, start, prefix, folded_by) if folded_by else None
        if committed is None:
            committed = await self._committed_span(metarange, start, prefix_end(prefix), limit)
        if staged.is_empty:
            return committed
        span = staged if committed.is_empty else merge_spans([staged, committed])
        if not any(is_gone(flags) for flags in {flags for flags, _ in span.cells}):
            return span
        kept: list[tuple[bytes, Cell]] = []
        for key, cell in zip(span.keys, span.cells, strict=True):
            if not is_gone(cell[0]):
                kept.append((key, cell))
            elif hides_one(cell) and (row := await self._look_beneath(view, key)) is not None:
                kept.append((key, (0, row)))
        return Span([key for key, _ in kept], [cell for _, cell in kept], span.next_start)

    async def _committed_span(self, metarange: MetarangeId, start: bytes, end: bytes | None, limit: int) -> Span:
        rows = await self._context.trees.scan(metarange, start, limit, end=end)
        next_start = rows[-1][0] + b"\0" if len(rows) >= limit else None
        return Span([key for key, _ in rows], [(0, row) for _, row in rows], next_start)

    async def _folder_span(self, metarange: MetarangeId, start: bytes, prefix: bytes, delimiter: bytes) -> Span | None:
        """Return the commit's next key alone, where it lies in a folder.

        None where the key is an entry of the listing, or where reading rows costs no more.
        """

        def folder_of(key: bytes) -> bytes:
            return common_prefix(key, prefix, delimiter)

        # A listing shows a folder by its name alone, so the row need not be read.
        key = await self._context.trees.first_key(metarange, start, folder_of)
        if key is None:
            return None
        if not key.startswith(prefix):
            return Span([], [], None)
        return Span([key], [(0, TOMBSTONE_ROW)], key + b"\0") if folder_of(key) else None

    async def list(self, view: View, *, prefix: bytes, after: bytes, delimiter: bytes, limit: int) -> Listing:
        """One page of a listing. A common prefix is skipped by seeking past it, however many entries it has."""
        items: list[tuple[bytes, Row | None]] = []
        start: bytes | None = resume(prefix, after, delimiter)
        page, tokens = min(limit + 1, LISTING_PAGE), view.tokens
        is_seeking = after.endswith(delimiter) and page <= SEEK_PAGE
        while start is not None:
            staged = await self.staged_span(tokens, start, page)
            if staged.is_empty:
                tokens = ()  # No layer has a cell from here on: the seeks that follow ask only the commit.
            folded_by = delimiter if is_seeking else b""
            span = await self._page(view, staged, start, page, prefix=prefix, folded_by=folded_by)
            before = len(items)
            start = _take(span, items, prefix=prefix, delimiter=delimiter, limit=limit)
            is_seeking = start != span.next_start and page <= SEEK_PAGE
            if before < len(items) < before + len(span.keys) / ROWS_A_SEEK:
                page = max(page // 4, FOLDER_PAGE)  # Nearly all of it lay in folders that are skipped.
            elif len(span.keys) != 1:  # One key tells nothing of how long folders are.
                page = min(2 * page, LISTING_PAGE)  # A short page must not go through many tombstones two by two.
            if len(items) > limit:
                return Listing(items[:limit], has_more=True)
        return Listing(items, has_more=False)

    async def measure(self, view: View, *, prefix: bytes, after: bytes, limit: int) -> Size:
        """Count the paths of a prefix behind `after`, up to `limit` staged ones. Committed paths cost nothing each.

        Each page reads a page of each token, looks up its paths in the tree, and reads two ranges of it.
        """
        start, end = resume(prefix, after, b""), prefix_end(prefix)
        span = await self.staged_span(view.tokens, start, limit)
        stop = len(span.keys) if end is None else bisect_left(span.keys, end)
        last = span.keys[stop - 1] if span.next_start is not None and 0 < stop == len(span.keys) else None
        metarange = await self._context.commits.metarange(view.commit_id)
        objects, size_bytes = await self._context.trees.total(metarange, start, end if last is None else last + b"\0")
        keys = span.keys[:stop]
        for key, cell, below in zip(
            keys, span.cells, await self._context.trees.lookup_many(metarange, keys), strict=False
        ):
            row = await self._look_beneath(view, key) if hides_one(cell) else None if is_gone(cell[0]) else cell[1]
            objects += (row is not None) - (below is not None)
            size_bytes += (0 if row is None else row[4]) - (0 if below is None else below[4])
        return Size(objects=objects, size_bytes=size_bytes, after=last)


def resume(prefix: bytes, after: bytes, delimiter: bytes) -> bytes:
    """Return where a page begins: behind `after`, and where that is a common prefix, behind all that it stands for."""
    # A delimiter that begins inside the prefix folds nothing: `after` is an entry then, and others may begin with it.
    if delimiter and after.endswith(delimiter) and len(after) >= len(prefix) + len(delimiter):
        return max(prefix, prefix_end(after) or after + b"\xff" * 1024)
    return max(prefix, after + b"\0" if after else b"")


def _take(
    span: Span, items: list[tuple[bytes, Row | None]], *, prefix: bytes, delimiter: bytes, limit: int
) -> bytes | None:
    """Move a span's entries into `items`, at most one more than `limit`; return where to go on, None at the end."""
    skipped: bytes | None = None
    keys, at = span.keys, 0
    end = None if not keys or keys[-1].startswith(prefix) else prefix_end(prefix)
    stop = len(keys) if end is None else bisect_left(keys, end)
    if not delimiter:
        at = min(stop, limit + 1 - len(items))
        items += [(key, row) for key, (_, row) in zip(keys[:at], span.cells, strict=False)]
        return None if len(items) > limit or stop < len(keys) else _behind(span, prefix)
    while at < stop:
        if folder := common_prefix(keys[at], prefix, delimiter):
            skipped = folder
            items.append((folder, None))
            at += 1
            if at < stop and keys[at].startswith(folder):
                behind = prefix_end(folder)
                at = stop if behind is None else bisect_left(keys, behind, at, stop)
        else:
            items.append((keys[at], span.cells[at][1]))
            at += 1
        if len(items) > limit:
            return None
    if len(items) > limit or stop < len(keys):
        return None
    behind = _behind(span, prefix)
    return prefix_end(skipped) if skipped is not None and behind is not None and behind.startswith(skipped) else behind


def _behind(span: Span, prefix: bytes) -> bytes | None:
    """Return where to go on behind a span, None where nothing with this prefix can come."""
    start = span.next_start
    return None if start is not None and not start.startswith(prefix) and start > prefix else start


def merge_spans(spans: Sequence[Span]) -> Span:
    """Overlay spans, the first wins; complete up to the smallest `next_start`, which is the horizon."""
    if not spans:
        return Span([], [], None)
    if len(spans) == 1:
        return spans[0]
    horizon = min((span.next_start for span in spans if span.next_start is not None), default=None)
    merged: dict[bytes, Cell] = {}
    for span in reversed(spans):
        merged.update(zip(span.keys, span.cells, strict=True))
    found = sorted(merged)
    if horizon is not None:
        del found[bisect_left(found, horizon) :]
    return Span(found, [merged[key] for key in found], horizon)
