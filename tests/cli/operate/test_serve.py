"""What `lakebed serve` says when it serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.conftest import Shell
from tests.server.process.test_serving import set_up


@contextmanager
def serving(shell: Shell, folder: Path, *options: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder. Yields the URL and a list that has the lines of standard error once the block ended."""
    lines: list[str] = []
    process = shell.process("serve", "--data", str(folder), "--port", "0", *options)
    assert process.stdout is not None
    url = process.stdout.readline().decode().rpartition(" at ")[2].strip()
    try:
        yield url, lines
    finally:
        process.terminate()
        lines += process.communicate()[1].decode().splitlines()


def test_a_new_server_says_which_command_makes_its_first_user(shell: Shell, tmp_path: Path) -> None:
    with serving(shell, tmp_path / "lake", "--workers", "2") as (url, new):
        set_up(url).close()
    with serving(shell, tmp_path / "lake", "--workers", "2") as (_, old):
        pass

    assert (len(new), new[0].endswith(f"lakebed setup --endpoint {url}"), old) == (1, True, [])


def test_a_server_starts_although_the_settings_of_commands_make_no_sense(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("endpoint = [")

    with serving(Shell(environment={"LAKEBED_CONFIG": str(config)}), tmp_path / "lake") as (url, lines):
        set_up(url).close()

    assert (len(lines), lines[0].endswith(f"lakebed setup --endpoint {url}")) == (1, True)


def test_a_second_server_of_a_folder_names_the_first_and_beyond_this_machine_set_up_needs_a_secret(
    shell: Shell, tmp_path: Path
) -> None:
    with (
        serving(shell, tmp_path / "lake") as (first, _),
        serving(shell, tmp_path / "lake", "--host", "0.0.0.0") as (url, lines),
    ):
        pass

    assert lines[-2] == f"also served at {first}: these servers share the folder, and each takes writes"
    assert lines[-1].endswith(f"lakebed setup --endpoint {url.replace('0.0.0.0', '127.0.0.1')} --secret SECRET")
