"""The zip of this package that Spark's workers import from, and how many tasks a cluster gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import lakebed
from lakebed.cli import app
from lakebed.gc import NEEDED, write_package
from lakebed.gc.engines.spark import tasks_for
from tests.spark.standalone import python_without_our_package

IMPORTING = """
import lakebed.gc.engines.spark, lakebed.gc.machine.flow, lakebed.gc.mark.mark, lakebed.gc.machine.sweep
print(lakebed.gc.mark.mark.__file__)
"""
OPENING = """
import asyncio
import lakebed.gc.engines.spark, lakebed.gc.machine.flow, lakebed.gc.mark.mark, lakebed.gc.machine.sweep
from pathlib import Path
from lakebed.objectstore import ObjectStoreOptions, ObjectStoreUnavailable, open_deleter, open_objectstore
options = ObjectStoreOptions(
    s3_endpoint="http://127.0.0.1:9", s3_access_key_id="k", s3_secret_access_key="s", local_root=Path("."),
    azure_endpoint="http://127.0.0.1:9", azure_account="a", azure_key="aw==", gs_endpoint="http://127.0.0.1:9",
    retries_max=0,
)
async def names(store):
    try:
        return [page async for page in store.list_all("data/")]
    except ObjectStoreUnavailable as error:
        return error
for uri in ("s3://lake/x", "az://lake/x", "gs://lake/x", "local://lake/x"):
    open_deleter(uri, options)
    print(uri, asyncio.run(names(open_objectstore(uri, options))))
"""
WRITING = """
import pathlib, sys
from lakebed.gc import write_package
write_package(pathlib.Path(sys.argv[1]))
"""


def test_the_same_package_gives_the_same_bytes_whenever_it_is_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"

    made = write_package(first)
    write_package(second)

    assert first.read_bytes() == second.read_bytes()
    assert made.size_bytes == first.stat().st_size


def test_the_zip_has_every_python_file_of_the_package_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "lakebed.zip"
    write_package(file)
    source = Path(lakebed.__file__).parents[1]

    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())

    assert {name for name in names if name.endswith(".py")} == {
        python.relative_to(source).as_posix() for python in (source / "lakebed").rglob("*.py")
    }
    assert {name for name in names if not name.endswith(".py")} == {"lakebed/py.typed"}


def test_what_tasks_run_is_imported_from_the_zip(tmp_path: Path) -> None:
    file = tmp_path / "lakebed.zip"
    write_package(file)

    done = subprocess.run(
        [sys.executable, "-c", IMPORTING],
        env={**os.environ, "PYTHONPATH": str(file)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith(str(file))


def test_a_worker_that_has_only_what_the_command_names_opens_every_object_store(tmp_path: Path) -> None:
    file = tmp_path / "lakebed.zip"
    write_package(file)

    done = subprocess.run(
        [python_without_our_package(tmp_path / "python"), "-c", OPENING],
        env={"PYTHONPATH": str(file)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_a_package_is_written_again_from_the_zip_itself(tmp_path: Path) -> None:
    """A driver that has nothing but the zip can hand it on."""
    file, again = tmp_path / "lakebed.zip", tmp_path / "again.zip"
    write_package(file)

    subprocess.run(
        [sys.executable, "-c", WRITING, str(again)],
        env={**os.environ, "PYTHONPATH": str(file)},
        cwd=tmp_path,
        check=True,
    )

    assert again.read_bytes() == file.read_bytes()


def test_the_command_writes_the_zip_and_says_what_workers_need_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    named = CliRunner().invoke(app, ["gc", "package", "-o", "json"], obj={})
    told = CliRunner().invoke(app, ["gc", "package", "mine.zip"], obj={})

    assert json.loads(named.stdout)["file"] == f"lakebed-{json.loads(named.stdout)['version']}.zip"
    assert {file.name for file in tmp_path.iterdir()} == {json.loads(named.stdout)["file"], "mine.zip"}
    assert told.stdout.startswith("mine.zip: ")
    assert ", ".join(NEEDED) in told.stderr


def test_a_folder_that_is_not_there_is_an_error_and_not_a_trace(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gc", "package", str(tmp_path / "nowhere" / "a.zip")], obj={})

    assert done.exit_code == 2
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    ("cores", "settings", "tasks"),
    [
        (2, {}, 16),
        (100, {}, 400),
        (2, {"spark.executor.instances": "10", "spark.executor.cores": "5"}, 200),
        (2, {"spark.executor.instances": "10"}, 40),
        (2, {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "50"}, 200),
        (2, {"spark.dynamicAllocation.enabled": "false", "spark.dynamicAllocation.maxExecutors": "50"}, 16),
        (2, {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "2147483647"}, 16),
    ],
)
def test_work_is_dealt_to_four_tasks_for_each_core_that_there_is_or_is_promised(
    cores: int, settings: dict[str, str], tasks: int
) -> None:
    assert tasks_for(cores, settings.get) == tasks
