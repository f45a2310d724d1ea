"""Where a JVM finds Spark's classes ready, or leaves them; without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.base import Invalid
from lakebed.gc.engines.java import Java, class_archive


def java(home: Path, version: int, *, base: bool = True) -> Java:
    (home / "lib" / "server").mkdir(parents=True)
    (home / "release").write_text(f'JAVA_VERSION="{version}"')
    if base:
        (home / "lib" / "server" / "classes.jsa").touch()
    return Java(home=home, version=version, modules=frozenset(), is_bundled=False)


@pytest.mark.parametrize(
    ("version", "writes", "reads"),
    [(17, "ArchiveClassesAtExit", "SharedArchiveFile"), (25, "AOTCacheOutput", "AOTCache")],
)
def test_one_session_leaves_what_the_next_begins_with(tmp_path: Path, version: int, writes: str, reads: str) -> None:
    found, folder = java(tmp_path / "java", version), tmp_path / "classes"

    first = class_archive(found, folder)
    assert first.written is not None
    assert first.options[0] == f"-XX:{writes}={first.written}"
    first.written.write_bytes(b"classes")
    first.keep()
    second = class_archive(found, folder)

    assert second.options[0] == f"-XX:{reads}={first.file}"
    assert second.written is None
    second.keep()
    assert [file.read_bytes() for file in folder.iterdir()] == [b"classes"]


def test_a_jvm_that_left_nothing_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    archive = class_archive(java(tmp_path / "java", 17), folder)
    assert archive.written is not None
    archive.written.touch()

    archive.keep()

    assert list(folder.iterdir()) == []


def test_another_java_begins_anew_and_takes_the_older_file_away(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    for name, version in (("a", 17), ("b", 21)):
        archive = class_archive(java(tmp_path / name, version), folder)
        assert archive.written is not None
        archive.written.write_bytes(name.encode())
        archive.keep()

    assert [file.read_bytes() for file in folder.iterdir()] == [b"b"]


def test_what_a_killed_session_left_is_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    killed, archive = (class_archive(java(tmp_path / name, 17), folder) for name in ("a", "b"))
    assert killed.written is not None
    assert archive.written is not None
    assert killed.written != class_archive(java(tmp_path / "c", 17), folder).written
    killed.written.write_bytes(b"half")
    archive.written.write_bytes(b"whole")

    archive.keep()

    assert [file.read_bytes() for file in folder.iterdir()] == [b"whole"]


def test_without_a_folder_or_anything_to_build_on_java_is_left_alone(tmp_path: Path) -> None:
    assert class_archive(java(tmp_path / "a", 17), None).options == ()
    assert class_archive(java(tmp_path / "b", 21, base=False), tmp_path).options == ()
    assert class_archive(java(tmp_path / "c", 25, base=False), tmp_path / "classes").options != ()


def test_a_folder_that_others_may_write_into_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(Invalid, match="no other user"):
        class_archive(java(tmp_path / "java", 17), folder)
