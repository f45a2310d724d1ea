"""Normalise the many spellings of an address to one *place*, which is compared. Pure.

`data/<slice>/<sequence>` and `local://lake/data/<slice>/<sequence>` can name one object. Compared as text they differ,
and a collector would delete the object of the second as unnamed. So normalise every address before comparing: to a
slice and a sequence, or to a key inside the namespace, or to None outside.
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
"""Slice and sequence; or a key inside the namespace; or None for an address outside, which is never collected."""

_NUMBERED_LENGTH: Final = len(format_address(0, 0))
_NUMBERED_END: Final = r"data/[0-9a-v]{13}/[0-9]{8}\z"
"""Every spelling of a slice and a sequence ends like this."""

_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az"}
"""Schemes that other tools use in addresses of the same store."""

_AZURE_URL: Final = re.compile(r"https?://[^/]+\.(?:blob|dfs)\.[^/]+/", re.IGNORECASE)
"""An Azure account in the URLs of its own tools, before the container."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Describe a storage namespace. `uri` may end with a slash."""

    uri: str

    def place_of(self, address: str) -> Place:
        key = key_inside(_canonical(address), _canonical(self.uri).rstrip("/"))
        return None if key is None else parse_address(key) or key

    def places_of(self, addresses: pa.Array) -> tuple[pa.Array, list[tuple[int, int]]]:
        """Return `place_of` for many addresses in one array: the keys, and the slices with sequences, in any order."""
        # Nearly all addresses are relative, below `uri` as spelled here, or elsewhere: filter them as columns at almost
        # no cost. Parse one by one only the possible slices and sequences, and other spellings.
        keys, places = addresses, []
        if _may_be_absolute(addresses):
            root, rest = f"{self.uri.rstrip('/')}/", self.uri.rstrip("/").partition("://")[2]
            is_absolute_, is_spelt_so = pc.match_substring(addresses, "://"), pc.starts_with(addresses, root)
            below = pc.utf8_slice_codeunits(addresses.filter(is_spelt_so), len(root))
            keys = pa.concat_arrays([addresses.filter(pc.invert(is_absolute_)), below])
            # Other spellings of Azure have the account between the container and the path, or before both.
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
        """Return only the slices and sequences of `places_of`. Takes 40 ns for any other address."""
        odd = addresses.filter(pc.match_substring_regex(addresses, _NUMBERED_END))
        return [place for place in map(self.place_of, odd.to_pylist()) if isinstance(place, tuple)]


def _may_be_absolute(addresses: pa.Array) -> bool:
    """Return whether any address may be absolute."""
    # Search the bytes of all addresses at once for one character, which is fastest.
    _, _, data = addresses.buffers()
    return data is not None and b":" in data.to_pybytes()


def _canonical(uri: str) -> str:
    """Normalise scheme and account of a URI. Return a key unchanged."""
    if not is_absolute(uri):
        return uri
    if match := _AZURE_URL.match(uri):
        return f"az://{uri[match.end() :]}"
    scheme, _, rest = uri.partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if scheme == "az" and "@" in rest.partition("/")[0]:
        # Ignore the account: in doubt the object is ours, and kept.
        container, _, path = rest.partition("/")
        rest = f"{container.partition('@')[0]}/{path}"
    return f"{scheme}://{rest}"


def may_be_deleted(key: str) -> bool:
    """Return whether a collector may ever delete this key: not special, and a path without tricks."""
    # `data/../_lakefs/x` begins with `data/` and means another file. A key in an inner namespace belongs to another
    # repository.
    return _is_plain(key) and not is_special(key) and inner_namespace(key) is None


def may_be_swept(key: str) -> bool:
    """Return whether a plan of users' files may delete this key."""
    return may_be_deleted(key) and is_object_key(key)


def is_elsewhere(key: str) -> bool:
    """Return whether this key is of an old layout: outside of slices, of Lakebed's own folders, and of namespaces
    inside this one. Only plans for such keys may delete them (gc/kinds/uncommitted/old_layout.py).
    """
    is_ours = slice_of(key) is not None or key.startswith("_lakefs") or inner_namespace(key) is not None
    return _is_plain(key) and is_object_key(key) and not is_ours


def _is_plain(key: str) -> bool:
    return all(segment not in {"", ".", ".."} for segment in key.split("/")) and "\0" not in key


PREFIXES_MAX: Final = 64
"""Sum a range with more first folders under no folder: totals by prefix help people, and must not fill memory."""


def first_folders(keys: pa.ChunkedArray) -> list[tuple[str, int, int]]:
    """Return (first folder with its slash, or ""; start; end) of each run of keys that share it."""
    first = _folder(keys[0].as_py())
    # Keys ascend: if the first and the last key share a folder, all keys share it.
    if first and first == _folder(keys[-1].as_py()):
        return [(first.decode(errors="replace"), 0, len(keys))]
    folders = [_folder(key) for key in keys.to_pylist()]
    starts = [0, *(at for at in range(1, len(folders)) if folders[at] != folders[at - 1])]
    if len(starts) > PREFIXES_MAX:
        return [("", 0, len(keys))]
    return [
        (folders[start].decode(errors="replace"), start, stop)
        for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True)
    ]


def _folder(key: bytes) -> bytes:
    return key[: key.find(b"/") + 1]
