"""A port of S3's own, beside that of the server, with one process and with several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

_SERVE = """
import sys
from pathlib import Path
from lakebed.server import options_of, serve
serve(
    options_of(Path(sys.argv[1]), {}), port=0, workers=int(sys.argv[2]), s3_listen=("127.0.0.1", 0),
    on_ready=lambda url: print(url, flush=True), on_s3_ready=lambda url: print(url, flush=True),
)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_every_request_to_it_is_s3s_and_none_to_the_other(tmp_path: Path, workers: int) -> None:
    command = [sys.executable, "-c", _SERVE, str(tmp_path / "data"), str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        s3, own = process.stdout.readline().strip(), process.stdout.readline().strip()

        for path in (
            "/",
            "/api/v1/config",
            "/_health",
            "/lake/main/a",
            "/lake.main/notes.txt",
            "/lake.main?list-type=2",
        ):
            answer = httpx.get(s3 + path)
            assert (answer.status_code, answer.headers["content-type"]) == (403, "application/xml")
            assert "<Code>AccessDenied</Code>" in answer.text
        assert httpx.get(own + "/_health").text == "alive!"
        assert httpx.get(own + "/").headers["content-type"].startswith("text/html")
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(600) == 0
