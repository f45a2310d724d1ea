"""Where settings come from, and who may read the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lakebed.settings import (
    ENDPOINT_DEFAULT,
    BadSettings,
    Settings,
    effective_settings,
    read_settings,
    settings_path,
    write_settings,
)

STORED = Settings(endpoint="http://stored", access_key_id="key", secret_access_key='s"e\\c\nret')


def stored(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "folder" / "config.toml"
    write_settings(path, STORED)
    return {"LAKEBED_CONFIG": str(path)}


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    path = Path(stored(tmp_path)["LAKEBED_CONFIG"])

    assert read_settings(path) == STORED


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = Path(stored(tmp_path)["LAKEBED_CONFIG"])
    finally:
        os.umask(old)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["config.toml"]


def test_storing_again_replaces_a_file_that_others_could_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("endpoint = 'x'")
    path.chmod(0o644)

    write_settings(path, STORED)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_file_the_endpoint_is_this_machine(tmp_path: Path) -> None:
    found = effective_settings({"LAKEBED_CONFIG": str(tmp_path / "none")})

    assert found == Settings(endpoint=ENDPOINT_DEFAULT)


def test_the_environment_wins_over_the_file_each_value_by_itself(tmp_path: Path) -> None:
    environment = stored(tmp_path) | {"LAKEBED_SECRET_ACCESS_KEY": "other", "LAKEBED_ENDPOINT": ""}

    found = effective_settings(environment)

    assert found == Settings(endpoint="http://stored", access_key_id="key", secret_access_key="other")


def test_the_flag_wins_over_the_environment(tmp_path: Path) -> None:
    environment = stored(tmp_path) | {"LAKEBED_ENDPOINT": "http://environment"}

    assert effective_settings(environment).endpoint == "http://environment"
    assert effective_settings(environment, endpoint="http://flag").endpoint == "http://flag"


def test_the_file_lies_where_configuration_belongs() -> None:
    assert settings_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/lakebed/config.toml")
    assert settings_path({}) == Path.home() / ".config" / "lakebed" / "config.toml"
    assert settings_path({"LAKEBED_CONFIG": "/y", "XDG_CONFIG_HOME": "/x"}) == Path("/y")


@pytest.mark.parametrize(
    "content", [b"endpoint = ", b"endpoint = 3", b"password = 'x'", b"\xff", b"[endpoint]\nx = 'y'"]
)
def test_a_file_that_makes_no_sense_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)

    with pytest.raises(BadSettings, match=r"config\.toml"):
        read_settings(path)
