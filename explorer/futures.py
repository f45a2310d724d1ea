"""Learn what each actor may still write from where it stands: a read of what no other one will write needs no orders.

Where an actor is about to read, and no other one, from the node at which it stands, ever comes to write that, all
orders of this read with the steps of others lead to the same. The explorer then tries it alone: an ample set of one
actor. A read changes no disk, so each disk that a schedule passes through is passed through all the same.

What can still be written is known once the automata are: so the first walk believes that no one writes anything, and
notes what it believed of which node. Where the automata show, after a walk, that it was wrong, the search begins anew,
and knows better. The last walk believed nothing wrong. That is enough: had a schedule been left out in which another
actor writes what was read, take the first such write. What comes before it does not touch the read, so it leads there
after the read, too, and the walk had seen the actor come to that write. (All programs end, so no read is put off for
ever.)

Steps with which an operation begins or ends are tried in every order where checks look at that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .effects import WRITES, Effect, Fate, Riders
from .tables import Column, NumberMap, Numbers

Key: TypeAlias = tuple[bytes | None, bytes]
"""A partition of the key-value store, or None for the object store; and a key there."""
Words = npt.NDArray[np.uint64]

_UNSEEN: Final = frozenset({"pause", "sleep"})
_WORD_BITS: Final = 64
NO_READ: Final = 0
"""The number of what is no read, or not only."""


class Learnt(Protocol):
    """Know an automaton. Keys of `edges` have the node above `edge_bits`; those of `crashes` are nodes."""

    edges: NumberMap
    crashes: NumberMap
    reads: Column
    writes: Column
    ended_now: Column

    @property
    def nodes(self) -> Sequence[object]: ...


class Futures:
    """Number what nodes read and write, and say which reads need no orders."""

    def __init__(self, *, is_used: bool, keeps_order: bool, edge_bits: int) -> None:
        self.is_used = is_used
        self.keeps_order = keeps_order
        self._edge_bits = edge_bits
        self._reads: dict[frozenset[tuple[Key, bool]], int] = {frozenset({((None, b""), False)}): NO_READ}
        self._writes: dict[frozenset[Key], int] = {frozenset(): 0}
        self._ahead: list[Words] = []
        self._believed: list[Words] = []
        self._ends: list[tuple[Column, int]] = []
        self._words = 1

    def number_of_reads(self, moves: Sequence[tuple[str, Effect, Fate]], *, begins: bool) -> int:
        """Return the number of what these moves of a node read, or NO_READ where they are not all reads."""
        if not self.is_used or not moves or (begins and self.keeps_order):
            return NO_READ
        found: set[tuple[Key, bool]] = set()
        for _, effect, _ in moves:
            read = read_by(effect)
            if read is None:
                return NO_READ
            found |= read
        return self._reads.setdefault(frozenset(found), len(self._reads))

    def number_of_writes(self, moves: Sequence[tuple[str, Effect, Fate]]) -> int:
        if not self.is_used:
            return 0
        return self._writes.setdefault(
            frozenset(key for _, effect, _ in moves for key in written_by(effect)), len(self._writes)
        )

    def begin(self, automata: Sequence[Learnt]) -> None:
        """Begin a walk with what is known now."""
        self._words = -(-len(self._reads) // _WORD_BITS)
        met = self._meetings()
        self._ahead = [self._of(automaton, met) for automaton in automata]
        self._believed = [np.zeros_like(ahead) for ahead in self._ahead]

    def were_wrong(self, automata: Sequence[Learnt]) -> bool:
        """Return whether the walk believed that a node leads to no write of something, and it does; or tried a read
        alone that ended an operation.
        """
        if self._ends:
            for reads, node in self._ends:
                reads.set(node, NO_READ)
            self._ends = []
            return True
        self._words = -(-len(self._reads) // _WORD_BITS)
        met = self._meetings()
        for automaton, believed in zip(automata, self._believed, strict=True):
            ahead = self._of(automaton, met)
            if (_sized(believed, *ahead.shape) & ahead).any():
                return True
        return False

    def is_free(self, reads: Numbers, others: Sequence[tuple[int, Numbers]]) -> npt.NDArray[np.bool_]:
        """Return for each state whether none of the other actors, at these nodes, will write what is read."""
        free: npt.NDArray[np.bool_] = reads != NO_READ
        for index, nodes in others:
            ahead = self._ahead[index]
            is_known = (nodes < len(ahead)) & (reads < ahead.shape[1] * _WORD_BITS) & free
            places = np.flatnonzero(is_known)
            words = ahead[nodes[places], reads[places] // _WORD_BITS]
            free[places] &= words >> (reads[places] % _WORD_BITS).astype(np.uint64) & np.uint64(1) == 0
        return free

    def believe(self, reads: Numbers, others: Sequence[tuple[int, Numbers]]) -> None:
        """Note what was believed where a read was tried alone."""
        for index, nodes in others:
            pairs = np.unique(nodes << 32 | reads)
            nodes_, reads_ = pairs >> 32, pairs & (1 << 32) - 1
            held = self._believed[index]
            if nodes_.max() >= len(held) or reads_.max() >= held.shape[1] * _WORD_BITS:
                rows = max(len(held), 2 * int(nodes_.max()) + 1)
                held = self._believed[index] = _sized(held, rows, max(held.shape[1], int(reads_.max()) // 64 + 1))
            bits = np.uint64(1) << (reads_ % _WORD_BITS).astype(np.uint64)
            np.bitwise_or.at(held, (nodes_, reads_ // _WORD_BITS), bits)

    def note_ends(self, automaton: Learnt, nodes: Numbers, targets: Numbers, foreseen: npt.NDArray[np.bool_]) -> None:
        """Note reads that were tried alone, and ended an operation."""
        if self.keeps_order and foreseen.any():
            ends = foreseen & (automaton.ended_now.take(targets) != 0)
            self._ends += [(automaton.reads, node) for node in np.unique(nodes[ends]).tolist()]

    def _of(self, automaton: Learnt, met: Words) -> Words:
        """Return a row of bits for each node: which reads it meets in what it, or any node after it, writes."""
        count = len(automaton.nodes)
        ahead: Words = met[automaton.writes.take(np.arange(count))]
        edges, targets = automaton.edges.items()
        crashes, lives = automaton.crashes.items()
        sources = np.concatenate([edges >> self._edge_bits, crashes])
        targets = np.concatenate([targets, lives])
        if not len(sources):
            return ahead
        order = np.argsort(sources, kind="stable")
        sources, targets = sources[order], targets[order]
        firsts = np.flatnonzero(np.r_[True, sources[1:] != sources[:-1]])
        owners = sources[firsts]
        while True:
            found = ahead[owners] | np.bitwise_or.reduceat(ahead[targets], firsts, axis=0)
            if (found == ahead[owners]).all():
                return ahead
            ahead[owners] = found

    def _meetings(self) -> Words:
        """Return a row of bits for each number of writes: which reads it meets."""
        found = np.zeros((len(self._writes), self._words), np.uint64)
        keys = {key for written in self._writes for key in written}
        met: dict[Key, list[int]] = {
            key: [number for places, number in self._reads.items() if any(meets(place, key) for place in places)]
            for key in keys
        }
        for written, row in self._writes.items():
            for key in written:
                for number in met[key]:
                    found[row, number // _WORD_BITS] |= np.uint64(1) << np.uint64(number % _WORD_BITS)
        return found


def _sized(words: Words, rows: int, columns: int) -> Words:
    if words.shape[0] >= rows and words.shape[1] >= columns:
        return words[:rows, :columns]
    found = np.zeros((rows, columns), np.uint64)
    found[: min(rows, len(words)), : words.shape[1]] = words[:rows]
    return found


def meets(place: tuple[Key, bool], key: Key) -> bool:
    (partition, begins), is_prefix = place
    return partition == key[0] and (key[1].startswith(begins) if is_prefix else key[1] == begins)


def read_by(effect: Effect) -> set[tuple[Key, bool]] | None:
    """Return the keys that an effect reads, and whether all that begin so; None if it is more than a read."""
    if type(effect[-1]) is Riders:
        return None
    match effect[0]:
        case "get":
            return {((effect[1], effect[2]), False)}
        case "get_many":
            return {((effect[1], key), False) for key in effect[2]}
        case "scan":
            return {((effect[1], _kind(effect[1], effect[2])), True)}
        case "fetch" | "stat":
            return {((None, effect[1].encode()), False)}
        case "list":
            return {((None, effect[1].encode()), True)}
        case name if name in _UNSEEN:
            return set()
    return None


def _kind(partition: bytes, start: bytes) -> bytes:
    """Return how keys begin that a scan is about: pages hold what comes after these, and no code looks at that."""
    return b"" if b"/" in partition or b"/" not in start else start[: start.index(b"/") + 1]


def written_by(effect: Effect) -> Iterator[Key]:
    if type(effect[-1]) is Riders:
        for rider in effect[-1]:
            yield from written_by(rider)
        effect = effect[:-1]
    match effect[0]:
        case name if name not in WRITES:
            return
        case "put":
            yield None, effect[1].encode()
        case "copy":
            yield None, effect[2].encode()
        case "erase":
            for key in effect[1]:
                yield None, key.encode()
        case name if name.endswith("_many"):
            for key in effect[2]:
                yield effect[1], key if isinstance(key, bytes) else key[0]
        case _:
            yield effect[1], effect[2]
