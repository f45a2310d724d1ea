"""Spark's classes, kept ready for the next JVM: half of what a session's start and its first job cost.

A JVM reads, checks and links ten thousand classes before Spark does anything. It can write down what came of that when
it ends, and map it into memory when it starts again (Java's class data sharing; from Java 25 on its AOT cache, which
does not build on a file that small runtimes lack). Writing takes half a minute once and 180 MB, so it is done only
where a folder is given for it.

A JVM maps what the file holds as code. So the folder must be this user's, and writable by nobody else. A file is
named after all that it depends on, and a JVM that finds that it does not fit passes it over in silence.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakebed.base import Invalid

from .java import Java

_AOT_SINCE: Final = 25
_BASE: Final = "lib/server/classes.jsa"
"""What older runtimes build on; one made with jlink may lack it."""


class UnsafeFolder(Invalid):
    """Others than this user could write what a JVM would run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """`options` for the JVM; `written` is where it leaves a new archive at its end, None where it leaves none."""

    options: tuple[str, ...] = ()
    file: Path | None = None
    written: Path | None = None

    def keep(self) -> None:
        """After the JVM has ended: what it wrote is there for the next, as a whole or not at all. Archives of other
        runtimes go, and what sessions left that were killed."""
        if self.written is None or self.file is None:
            return
        if self.written.is_file() and self.written.stat().st_size:
            self.written.replace(self.file)
            for older in self.file.parent.glob("*spark-*.classes*"):
                if older != self.file:
                    older.unlink(missing_ok=True)
        self.written.unlink(missing_ok=True)


def class_archive(java: Java, folder: Path | None) -> ClassArchive:
    """How a JVM of this Java begins with the archive in the folder, or leaves one there.

    Raises:
        UnsafeFolder: others may write into it.
        OSError: it cannot be made or looked at.
    """
    is_aot = java.version >= _AOT_SINCE
    if folder is None or not (is_aot or (java.home / _BASE).is_file()):
        return ClassArchive()
    _check(folder)
    file = folder / f"spark-{_key(java)}.classes"
    if file.is_file():
        return ClassArchive(options=(f"-XX:{'AOTCache' if is_aot else 'SharedArchiveFile'}={file}", "-Xlog:disable"))
    # A process id comes again, and with it what a killed process had half written.
    written = folder / f".{file.name}.{secrets.token_hex(8)}"
    option = f"-XX:{'AOTCacheOutput' if is_aot else 'ArchiveClassesAtExit'}={written}"
    return ClassArchive(options=(option, "-Xlog:disable"), file=file, written=written)


def _check(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFolder(f"{folder} must belong to this user, and nobody else may write into it", path=str(folder))


def _key(java: Java) -> str:
    """Of everything that decides which classes there are: the runtime, and Spark."""
    import pyspark

    spark = Path(pyspark.__file__)
    facts = [str(java.home), (java.home / "release").read_text(), str(spark), pyspark.__version__]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
