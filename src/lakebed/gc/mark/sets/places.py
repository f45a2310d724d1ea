"""One object, one place: the many ways to write an address, brought to the one that is compared. Pure.

The same object can be named `data/<slice>/<sequence>` and `local://lake/data/<slice>/<sequence>`; compared as text the
two differ, and a collector that took the first for garbage would delete the object of the second. So every address is
brought to a *place* before anything is compared: a slice and a sequence, or a key inside the namespace, or outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import format_address, inner_namespace, is_absolute, key_inside, parse_address
from lakebed.gc.messages import is_special
from lakebed.gc.rules import slice_of
from lakebed.objectstore import is_object_key

Place: TypeAlias = tuple[int, int] | str | None
"""Slice and sequence; or a key inside the namespace; or None: outside, and so none of our business."""

_NUMBERED_LENGTH: Final = len(format_address(0, 0))
_NUMBERED_END: Final = r"data/[0-9a-v]{13}/[0-9]{8}\z"
"""How every spelling of a slice and a sequence ends."""

_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az"}
"""Schemes under which other tools write addresses of the same store."""

_AZURE_URL: Final = re.compile(r"https?://[^/]+\.(?:blob|dfs)\.[^/]+/", re.IGNORECASE)
"""An account of Azure as its own tools name it, before the container."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace. `uri` may end with a slash or not."""

    uri: str

    def place_of(self, address: str) -> Place:
        key = key_inside(_canonical(address), _canonical(self.uri).rstrip("/"))
        return None if key is None else parse_address(key) or key

    def places_of(self, addresses: pa.Array) -> tuple[pa.Array, list[tuple[int, int]]]:
        """`place_of` for many (in one array): the keys, and the slices with their sequences, in any order.

        Spelt as nearly all are, relative or below `uri` as it stands here, an address costs next to nothing, and so
        does one that lies elsewhere. What may be a slice and a sequence, or is spelt otherwise, is looked at alone.
        """
        keys, places = addresses, []
        if _may_be_absolute(addresses):
            root, rest = f"{self.uri.rstrip('/')}/", self.uri.rstrip("/").partition("://")[2]
            is_absolute_, is_spelt_so = pc.match_substring(addresses, "://"), pc.starts_with(addresses, root)
            below = pc.utf8_slice_codeunits(addresses.filter(is_spelt_so), len(root))
            keys = pa.concat_arrays([addresses.filter(pc.invert(is_absolute_)), below])
            # Azure's other spellings have the account between the container and the path, or before both.
            container, _, path = rest.partition("/")
            may_be_odd = pc.or_(
                pc.match_substring(addresses, f"/{rest}/"),
                pc.and_(pc.match_substring(addresses, f"://{container}@"), pc.match_substring(addresses, f"/{path}")),
            )
            is_odd = pc.and_not(pc.and_(is_absolute_, may_be_odd), is_spelt_so)
            places = [self.place_of(address) for address in addresses.filter(is_odd).to_pylist()]
        may_be_numbered = pc.equal(pc.binary_length(keys), _NUMBERED_LENGTH)
        if pc.any(may_be_numbered).as_py():
            places += [parse_address(key) or key for key in keys.filter(may_be_numbered).to_pylist()]
            keys = keys.filter(pc.invert(may_be_numbered))
        odd = [place for place in places if isinstance(place, str)]
        numbers = [place for place in places if isinstance(place, tuple)]
        return pa.concat_arrays([keys, pa.array(odd, pa.string())]) if odd else keys, numbers

    def numbers_of(self, addresses: pa.Array) -> list[tuple[int, int]]:
        """Return the slices and sequences of `places_of` alone: 40 ns for any other address."""
        odd = addresses.filter(pc.match_substring_regex(addresses, _NUMBERED_END))
        return [place for place in map(self.place_of, odd.to_pylist()) if isinstance(place, tuple)]


def _may_be_absolute(addresses: pa.Array) -> bool:
    """False: none of them is. Looks at all their bytes at once, and for one alone, which is fastest."""
    _, _, data = addresses.buffers()
    return data is not None and b":" in data.to_pybytes()


def _canonical(uri: str) -> str:
    """A key is left as it is."""
    if not is_absolute(uri):
        return uri
    if found := _AZURE_URL.match(uri):
        return f"az://{uri[found.end() :]}"
    scheme, _, rest = uri.partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if scheme == "az" and "@" in rest.partition("/")[0]:
        # In doubt about the account an object is ours, and kept.
        container, _, path = rest.partition("/")
        rest = f"{container.partition('@')[0]}/{path}"
    return f"{scheme}://{rest}"


def may_be_deleted(key: str) -> bool:
    """Return whether a collector may ever delete this key: users' bytes, and a path without tricks.

    `data/../_lakefs/x` begins with `data/` and means something else; such a key is kept. One of a
    namespace inside this one belongs to another repository.
    """
    return _is_plain(key) and not is_special(key) and inner_namespace(key) is None


def may_be_swept(key: str) -> bool:
    """Return whether a plan of users' bytes may delete this key."""
    return may_be_deleted(key) and is_object_key(key)


def is_elsewhere(key: str) -> bool:
    """Return whether this key is one of an old layout: in no slice, in none of our own folders, and in no namespace
    inside this one. Only plans that were made for such keys may delete them (gc/kinds/uncommitted/old_layout.py).
    """
    is_ours = slice_of(key) is not None or key.startswith("_lakefs") or inner_namespace(key) is not None
    return _is_plain(key) and is_object_key(key) and not is_ours


def _is_plain(key: str) -> bool:
    return all(segment not in {"", ".", ".."} for segment in key.split("/")) and "\0" not in key
