"""Make the data folder of this version that tests keep for ever: `python -m tests.formats.make_lake FILE.zip`.

Once a version is released its file is never made again: each later version must read it as it is.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import lakebed


def make(folder: Path) -> None:
    """Make every kind of change that a lake in a folder takes: later versions must read each."""
    with lakebed.open_local(folder, environment={}) as lake:
        repository = lake.create_repository("flights")
        main = repository.branch("main")
        with main.transaction("two files", metadata={"source": "golden"}) as changes:
            changes.write("2024/a.csv", b"AA,1\n")
            changes.write("2024/b.csv", b"UA,2\n")
        repository.create_tag("v1", "main")
        dev = repository.create_branch("dev", source="main")
        with dev.transaction("another file") as changes:
            changes.write("2024/c.csv", b"DL,3\n")
        with main.transaction("correct AA") as changes:
            changes.write("2024/a.csv", b"AA,4\n")
        main.merge("dev", message="merge dev")
        with main.transaction("no more UA") as changes:
            changes.delete("2024/b.csv")
        repository.create_branch("gone", source="main")
        repository.branch("gone").drop()
        main.write("staged.csv", b"before\n")
        main.write("staged.csv", b"not committed\n")


def main(file: str) -> None:
    with tempfile.TemporaryDirectory() as text, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as kept:
        folder = Path(text) / "lake"
        make(folder)
        for each in sorted(folder.rglob("*")):
            if each.is_file() and "audit" not in each.relative_to(folder).parts:  # it names who made it
                kept.write(each, each.relative_to(folder))


if __name__ == "__main__":
    main(sys.argv[1])
