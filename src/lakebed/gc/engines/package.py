"""Write this package as one file, for Spark workers that do not have it installed.

Spark copies a zip of `--py-files` (`spark.submit.pyFiles`) to every worker and imports from it. Spark can import only
Python files from it. So the compiled packages that tasks use (NEEDED) must be installed on the workers.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol

NEEDED: Final = ("msgspec", "numpy", "obstore", "pyarrow")
"""Packages that a worker must have installed besides pyspark."""

_NAME: Final = "lakebed"
_OLDEST: Final = (1980, 1, 1, 0, 0, 0)
"""The first date that a zip can hold. Real dates would differ between installations."""
_FILE: Final = 0o100644 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Describe a written zip."""

    file: str
    version: str
    files: int
    size_bytes: int


def write_package(file: Path | None = None) -> Package:
    """Write this package as a zip, by default to `lakebed-VERSION.zip` in the current folder.

    The same version gives the same bytes on every machine. An existing file is replaced.

    Raises:
        OSError: the file cannot be written.
    """
    release = version(_NAME)
    file = file or Path(f"{_NAME}-{release}.zip")
    names, data = _zip()
    file.write_bytes(data)
    return Package(file=str(file), version=release, files=names, size_bytes=len(data))


def _zip() -> tuple[int, bytes]:
    """Return the number of files, and the zip."""
    # Do not compress: the output of a compressor depends on its version.
    sources = sorted(_sources(resources.files(_NAME), _NAME))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sources:
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.create_system = 3  # Unix, on every system
            entry.external_attr = _FILE
            archive.writestr(entry, data)
    return len(sources), written.getvalue()


class _Node(Protocol):
    """A file or folder of an installed package, which may itself be in a zip."""

    @property
    def name(self) -> str: ...

    def is_dir(self) -> bool: ...

    def iterdir(self) -> Iterator[_Node]: ...

    def read_bytes(self) -> bytes: ...


def _sources(folder: _Node, place: str) -> Iterator[tuple[str, bytes]]:
    for node in folder.iterdir():
        name = f"{place}/{node.name}"
        if node.is_dir():
            yield from _sources(node, name)
        elif node.name.endswith(".py") or node.name == "py.typed":
            yield name, node.read_bytes()
