"""ETags that a condition names (RFC 9110, 8.8.3 and 13.1). All doors and all conditions of writes compare them here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Etags"]

# No quantifier is inside another, so no header can cause backtracking.
_TAG: Final = re.compile(r'(W/)?"([^"]*)"|([^\s,"]+)')


@dataclass(frozen=True, slots=True)
class Etags:
    """A list of ETags, or every object (`is_any`). An object without a checksum has no ETag."""

    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    is_any: bool = False

    @classmethod
    def of(cls, checksum: str) -> Etags:
        return cls(frozenset({checksum}))

    @classmethod
    def read(cls, header: str) -> Etags:
        """Read an If-Match or If-None-Match: `*`, or ETags. The contract's clients send ETags without quotes, too."""
        if header.strip() == "*":
            return cls(is_any=True)
        tags = [(weak, quoted or bare) for weak, quoted, bare in _TAG.findall(header) if quoted or bare]
        return cls(frozenset(tag for weak, tag in tags if not weak), frozenset(tag for weak, tag in tags if weak))

    def match(self, checksum: str) -> bool:
        """Compare strongly, for If-Match: a weak ETag names no object."""
        return self.is_any or checksum in self.strong

    def match_weakly(self, checksum: str) -> bool:
        """Compare weakly, for If-None-Match of a read: proxies that compress make ETags weak."""
        return self.match(checksum) or checksum in self.weak
