"""One Spark session for all tests here; starting one takes longer than any of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.gc import EngineName, LocalSession, SessionOptions, local_session
from tests.spark.lakeside import Lakeside
from tests.spark.served import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TOKEN = ("LAKEBED_TOKEN", "for this process alone")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that runs on the local engine needs no JVM."""
    here = Path(__file__).parent
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if here in item.path.parents and EngineName.LOCAL not in params.values():
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def session() -> Iterator[LocalSession]:
    with contextlib.ExitStack() as stopping:
        with pytest.MonkeyPatch.context() as patch:
            # Only while it starts: the programs that later tests start have credentials of their own.
            patch.setenv(*TOKEN)
            options = SessionOptions(cores=2, shuffle_partitions=2)
            running = stopping.enter_context(local_session(options, os.environ))
            assert os.environ[TOKEN[0]] == TOKEN[1]  # hidden while it started, and no longer
        yield running


@pytest.fixture(params=[EngineName.LOCAL, EngineName.SPARK])
def engine(request: pytest.FixtureRequest) -> EngineName:
    """Each test that asks for `spark` runs on both engines."""
    found: EngineName = request.param
    return found


@pytest.fixture
def spark(engine: EngineName, request: pytest.FixtureRequest) -> SparkSession | None:
    """The session to collect with; None on the local engine."""
    if engine is EngineName.LOCAL:
        return None
    session: LocalSession = request.getfixturevalue("session")
    return session.spark


@pytest.fixture
def lakeside(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip that `lakebed gc package` makes."""
    file = tmp_path_factory.mktemp("package") / "lakebed.zip"
    subprocess.run([sys.executable, "-m", "lakebed", "gc", "package", str(file)], check=True, capture_output=True)
    return file
