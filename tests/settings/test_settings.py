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
    profiles,
    read_settings,
    settings_path,
    source_of,
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


def test_a_profile_is_taken_whole_and_others_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write_settings(path, STORED)
    write_settings(path, Settings(endpoint="http://prod", data="/data"), "prod")
    write_settings(path, Settings(endpoint="http://odd"), 'a "b" c')
    environment = {"LAKEBED_CONFIG": str(path)}

    assert effective_settings(environment) == STORED
    assert effective_settings(environment, profile="prod") == Settings(endpoint="http://prod", data="/data")
    assert effective_settings(environment | {"LAKEBED_PROFILE": 'a "b" c'}).endpoint == "http://odd"
    write_settings(path, Settings(endpoint="http://other"))
    assert effective_settings(environment, profile="prod").endpoint == "http://prod"
    assert profiles(path) == ['a "b" c', "prod"]
    with pytest.raises(BadSettings, match="has no profile 'none'"):
        effective_settings(environment, profile="none")
    with pytest.raises(BadSettings, match=r"config set --profile nope --endpoint URL` makes one$"):
        effective_settings({"LAKEBED_CONFIG": str(tmp_path / "no.toml")}, profile="nope")


LAKECTL = """
credentials:
  access_key_id: AKIAQ
  secret_access_key: secret
server:
  endpoint_url: http://lakefs:8000/api/v1
experimental: {local: {posix_permissions: {enabled: true}}}
"""


def test_lakectl_counts_where_nothing_of_ours_is_set_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "lakectl.yaml").write_text(LAKECTL)
    environment = {
        "LAKEBED_CONFIG": str(tmp_path / "config.toml"),
        "LAKECTL_CONFIG_FILE": str(tmp_path / "lakectl.yaml"),
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "newer",
    }
    found = effective_settings(environment)

    assert found == Settings(endpoint="http://lakefs:8000/api/v1", access_key_id="AKIAQ", secret_access_key="newer")
    assert source_of("access_key_id", environment) == str(tmp_path / "lakectl.yaml")
    assert source_of("secret_access_key", environment) == "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"
    # A key pair of another server goes nowhere that was named for us.
    assert effective_settings(environment | {"LAKEBED_ENDPOINT": "http://ours"}) == Settings(endpoint="http://ours")
    assert effective_settings(environment, endpoint="http://ours") == Settings(endpoint="http://ours")
    write_settings(tmp_path / "config.toml", Settings(endpoint="http://ours"))
    assert effective_settings(environment) == Settings(endpoint="http://ours")


@pytest.mark.parametrize("content", ["a: [", "just text", "credentials: text"])
def test_a_file_of_lakectl_that_makes_no_sense_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lakectl.yaml"
    path.write_text(content)

    with pytest.raises(BadSettings, match=r"lakectl\.yaml is not a configuration of lakectl"):
        effective_settings({"LAKEBED_CONFIG": str(tmp_path / "none"), "LAKECTL_CONFIG_FILE": str(path)})


@pytest.mark.parametrize("variable", ["LAKEBED_ENDPOINT", "LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY"])
def test_a_variable_whose_bytes_are_not_utf8_is_named_and_not_shown(tmp_path: Path, variable: str) -> None:
    environment = {"LAKEBED_CONFIG": str(tmp_path / "none.toml"), variable: "hush\udcff"}

    with pytest.raises(BadSettings, match=f"^{variable}: its bytes are not UTF-8$"):
        effective_settings(environment)
