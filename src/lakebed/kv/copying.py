"""Copy a whole store into another database, and check that both stores are equal.

1. Before the first write, read every pair of the target. The source must have each pair too. So the target may be
   empty, or an unfinished copy of this source. A store of another installation is refused unchanged.
2. Compare each partition of the source with the target's, by a digest over its pairs.
3. Copy the pages of each partition that differs. So an interrupted copy continues from its last partition.
4. Compare all partitions again. Then read the whole source and list all partitions once more. Where anything differs,
   a server wrote during the copy: refuse the copy.

A pair that both reads of step 4 return was in the source between them: the target equals the source at that moment.
Step 4 misses a value that was changed and put back between the reads, and a server that writes later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lakebed.base import Conflict

from .store import SCAN_PAGE, Store

__all__ = ["Copied", "CopyDiffers", "TargetTaken", "copy_store"]

DIFFERS: Final = "the copy differs from its source: stop every server, name an empty target, and copy again"


class TargetTaken(Conflict):
    """The target has a pair or a partition that the source lacks. Nothing was written."""


class CopyDiffers(Conflict):
    """The target does not equal the source: a server wrote to one of them during the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The size of both stores, and how many keys the target already had before the copy."""

    partitions: int
    keys: int
    keys_before: int


async def copy_store(
    source: Store,
    target: Store,
    list_both: Callable[[], tuple[Sequence[bytes], Sequence[bytes]]],
    say: Callable[[str], None] = lambda _: None,
) -> Copied:
    """Copy the source into the target. Nothing may write to either store during the copy.

    `list_both` lists the partitions of the source and of the target, in byte order.

    Raises:
        TargetTaken: the target has a pair or a partition that the source lacks. Nothing was written.
        CopyDiffers: the stores differ after the copy.
    """
    partitions, others = list_both()
    if more := set(others).difference(partitions):
        raise TargetTaken(
            f"the target has {len(more):,} partitions that the source lacks: name an empty one. Nothing was copied"
        )
    for partition in others:
        await _check_held(source, target, partition)
    keys_before = 0
    for number, partition in enumerate(partitions):
        digest, keys = await _digest(source, partition)
        if await _digest(target, partition) == (digest, keys):
            keys_before += keys
        else:
            await _copy(source, target, partition)
            say(f"copied {keys:,} keys: partition {number + 1:,} of {len(partitions):,}")
    compared: dict[bytes, tuple[bytes, int]] = {}
    for partition in partitions:
        compared[partition] = await _digest(source, partition)
        if compared[partition] != await _digest(target, partition):
            raise CopyDiffers(DIFFERS, partition=partition)
    for partition in partitions:  # every partition was compared before: an equal digest now shows that none changed
        if await _digest(source, partition) != compared[partition]:
            raise CopyDiffers(DIFFERS, partition=partition)
    # A partition that appeared after the first listing was never compared.
    if list_both() != (partitions, partitions):
        raise CopyDiffers(DIFFERS)
    keys_in_all = sum(keys for _, keys in compared.values())
    return Copied(partitions=len(partitions), keys=keys_in_all, keys_before=keys_before)


async def _check_held(source: Store, target: Store, partition: bytes) -> None:
    """Check that the source has every pair of the target's partition.

    Raises:
        TargetTaken: the source lacks a pair, or has another value for its key.
    """
    start: bytes | None = b""
    while start is not None:
        page = await target.scan(partition, start, SCAN_PAGE)
        found = await source.get_many(partition, page.keys) if page.keys else []
        for held, value in zip(found, page.values, strict=True):
            if held is None or held.value != value:
                raise TargetTaken(
                    "the target holds records that the source lacks or holds otherwise: it is another installation,"
                    " or the source was written since the copy began. Name an empty target. Nothing was copied",
                    partition=partition,
                )
        start = page.next_start


async def _copy(source: Store, target: Store, partition: bytes) -> None:
    start: bytes | None = b""
    while start is not None:
        page = await source.scan(partition, start, SCAN_PAGE)
        await target.set_many(partition, list(zip(page.keys, page.values, strict=True)))
        start = page.next_start


async def _digest(store: Store, partition: bytes) -> tuple[bytes, int]:
    """Digest all pairs in key order, each with its lengths. Return the digest and the number of pairs."""
    digest, keys, start = hashlib.sha256(), 0, b""
    while True:
        page = await store.scan(partition, start, SCAN_PAGE)
        for key, value in zip(page.keys, page.values, strict=True):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
        keys += len(page.keys)
        if page.next_start is None:
            return digest.digest(), keys
        start = page.next_start
