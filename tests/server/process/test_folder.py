"""The data folder: ours, or nothing's; never mixed with something else."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.base import Unavailable
from lakebed.server import DataFolderFormat, NotADataFolder, prepare_folder
from lakebed.server.process.folder import RESERVE_BYTES, Address, addresses_of, keep_reserve, noting_address
from tests.conftest import fill_disk


def test_a_new_folder_and_an_empty_one_become_data_folders(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "deep", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        prepare_folder(folder)
        made = json.loads((folder / "lakebed.json").read_text())
        prepare_folder(folder)

        assert made["format"] == 5
        assert made["id"]
        assert json.loads((folder / "lakebed.json").read_text()) == made


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter one")

    with pytest.raises(NotADataFolder, match=r"thesis\.txt"):
        prepare_folder(tmp_path)

    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NotADataFolder):
        prepare_folder(tmp_path / "file")


@pytest.mark.parametrize("marker", ['{"format": 1}', "[]", "{", ""])
def test_a_folder_of_a_later_format_or_a_damaged_marker_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "lakebed.json").write_text(marker)

    with pytest.raises(DataFolderFormat):
        prepare_folder(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)

    with pytest.raises(Unavailable, match="No space left"):
        prepare_folder(tmp_path)


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        prepare_folder(tmp_path / "new")
        keep_reserve(tmp_path / "new")
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "new", *(tmp_path / "new").iterdir()]}
    assert modes == {"new": 0o700, "objects": 0o700, "lakebed.json": 0o600, "reserve": 0o600}


def test_the_reserve_is_released_on_a_full_disk_and_set_aside_again_later(
    mount_disk: Callable[[str], Path],
) -> None:
    folder = mount_disk("64m")
    prepare_folder(folder)
    assert not keep_reserve(folder)
    ballast = fill_disk(folder)

    assert keep_reserve(folder)
    (folder / "plan").write_bytes(bytes(RESERVE_BYTES))
    assert not keep_reserve(folder)

    ballast.unlink()
    assert not keep_reserve(folder)
    assert (folder / "reserve").stat().st_blocks * 512 == RESERVE_BYTES


def test_the_addresses_of_running_servers_are_known_and_those_of_killed_ones_forgotten(tmp_path: Path) -> None:
    (tmp_path / "served.0123456789abcdef").write_text("http://127.0.0.1:1")  # as a server leaves it that was killed

    with noting_address(tmp_path, "http://127.0.0.1:2", "k"), noting_address(tmp_path, "http://127.0.0.1:3", "l"):
        during = addresses_of(tmp_path)

    assert sorted(during) == [Address("http://127.0.0.1:2", "k"), Address("http://127.0.0.1:3", "l")]
    assert [*tmp_path.iterdir()] == []


def test_a_server_on_a_folder_without_room_is_served_without_a_note(tmp_path: Path) -> None:
    with noting_address(tmp_path / "gone", "http://127.0.0.1:2", "k"):
        during = addresses_of(tmp_path / "gone")

    assert during == []
