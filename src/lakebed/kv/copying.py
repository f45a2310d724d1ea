"""Copy a whole store into another database, and prove that both hold the same.

1. Before the first write, read all that the target holds: the source must hold each pair as well. So only an empty
   store and an unfinished copy of this source pass, and another installation stays as it is.
2. Compare each partition of the source with the target's, by a digest over its pairs.
3. Copy the pages of those that differ. So a copy that was interrupted goes on where it was.
4. Compare all partitions again. Then read the whole source once more, and the names of all partitions. Where anything
   differs, a server wrote meanwhile, and the copy is refused.

What the source held at both looks of step 4, it held at the moment between them: the target is equal to it as it was
then. Only a value that changed and was put back between the looks goes unnoticed, and a server that writes later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lakebed.base import Conflict

from .store import SCAN_PAGE, Store

DIFFERS: Final = "the copy differs from its source: stop every server, name an empty target, and copy again"


class TargetTaken(Conflict):
    """The target holds what the source does not. Nothing was written."""


class CopyDiffers(Conflict):
    """The target does not hold what the source holds: something wrote to one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The contents of both stores, and how many of the keys were the target's before."""

    partitions: int
    keys: int
    keys_before: int


async def copy_store(
    source: Store,
    target: Store,
    list_both: Callable[[], tuple[Sequence[bytes], Sequence[bytes]]],
    say: Callable[[str], None] = lambda _: None,
) -> Copied:
    """Make the target hold what the source held at one moment. Nothing may write to either meanwhile.

    `list_both` lists the partitions of the source and of the target, in byte order.

    Raises:
        TargetTaken: the target holds what the source does not. Nothing was written.
        CopyDiffers: afterwards they differ.
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
    for partition in partitions:  # after the last of them was compared: none changed since
        if await _digest(source, partition) != compared[partition]:
            raise CopyDiffers(DIFFERS, partition=partition)
    if list_both() != (partitions, partitions):
        raise CopyDiffers(DIFFERS)
    keys_in_all = sum(keys for _, keys in compared.values())
    return Copied(partitions=len(partitions), keys=keys_in_all, keys_before=keys_before)


async def _check_held(source: Store, target: Store, partition: bytes) -> None:
    """Check that the source holds every pair of the target's partition.

    Raises:
        TargetTaken: it does not.
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
    """Digest all pairs in their order, each with its lengths. Returns the digest and how many there are."""
    digest, keys, start = hashlib.sha256(), 0, b""
    while True:
        page = await store.scan(partition, start, SCAN_PAGE)
        for key, value in zip(page.keys, page.values, strict=True):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
        keys += len(page.keys)
        if page.next_start is None:
            return digest.digest(), keys
        start = page.next_start
