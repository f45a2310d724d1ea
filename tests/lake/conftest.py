"""A lake in a folder, and one behind a real server: what holds for one holds for the other."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

import lakebed

names = itertools.count()
_SERVE = """
import sys
from pathlib import Path
from lakebed.server import options_of, serve
serve(options_of(Path(sys.argv[1]), {}), port=0, on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture(scope="module", params=["folder", "server"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lakebed.Lake]:
    folder = tmp_path_factory.mktemp("lake")
    if request.param == "folder":
        with lakebed.open_local(folder, environment={}) as opened:
            yield opened
        return
    process = subprocess.Popen([sys.executable, "-c", _SERVE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        with lakebed.connect(url) as nameless:
            pair = nameless.client.setup("esti")
        with lakebed.connect(
            url, access_key_id=pair.access_key_id, secret_access_key=pair.secret_access_key
        ) as connected:
            yield connected
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(600) == 0


@pytest.fixture
def repository(lake: lakebed.Lake) -> lakebed.Repository:
    return lake.create_repository(f"own-{next(names)}")
