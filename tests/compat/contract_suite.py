"""Run the system tests of the contract's server, each alone, against one of ours over S3, and print what came of each.

Version 1.84 is the last that is open source. The Go module proxy has it; nothing of it is kept here:

    go mod download -json github.com/treeverse/lakefs@v1.84.0     # "Dir" names its folder; copy it, to be written to
    python -m tests.compat.contract_suite COPY
    python -m tests.compat.contract_suite COPY --edited           # the tests know the addresses of ours

The tests ask for the host s3.local.lakefs.io: let /etc/hosts name 127.0.0.1. They import from a public bucket, whose
29,400 objects are made anew here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lakebed.objectstore import environment_of
from tests.objectstore.s3_servers import client_of, serve_versitygw

from .serving import listening

HOST: Final = "s3.local.lakefs.io"
TEST_S: Final = 300
THEIRS: Final = "/data/[0-9a-v]{20}/(?:[0-9a-v]{20}"
OURS: Final = "/data/[0-9a-v]{13}/(?:[0-9]{8}"
"""What the tests cut from an address before they compare it: a slice and a name in it."""
LEFT_OUT: Final = re.compile(r"TestMain|.*GC.*|TestSpark.*")
"""Collections of that server: they start its jobs in Spark."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a copy of the module's folder")
    parser.add_argument("--edited", action="store_true", help="let the tests know our physical addresses")
    parser.add_argument("--only", default="", help="run only tests whose name matches this regular expression")
    chosen = parser.parse_args()
    esti = chosen.checkout / "esti"
    program = built(chosen.checkout, edited=chosen.edited)
    texts = [file.read_text() for file in sorted(esti.glob("*_test.go"))]
    every = [name for text in texts for name in re.findall(r"^func (Test\w+)", text, re.MULTILINE)]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as settings:
        environment = {**os.environ, **settings, "ESTI_BINARIES_DIR": str(program.parent)}
        for name in every:
            if re.search(chosen.only, name) and not LEFT_OUT.fullmatch(name):
                verdict, words = run(program, esti, environment, name)
                environment["ESTI_SETUP_LAKEFS"] = "false"  # The first one sets the server up.
                counts[verdict] += 1
                print(verdict, name, words, flush=True)
    print(dict(counts))
    return 0


def built(checkout: Path, *, edited: bool) -> Path:
    """Build the tests and `lakectl`, which they call. Returns the tests' program."""
    asked = checkout / "esti" / "lakectl_util.go"
    text = asked.read_text()
    asked.write_text(text.replace(THEIRS, OURS) if edited else text.replace(OURS, THEIRS))
    program = checkout / "built" / ("edited.test" if edited else "esti.test")
    for command in (["test", "-c", "-o", str(program), "./esti"], ["build", "-o", "built/lakectl", "./cmd/lakectl"]):
        subprocess.run(["go", *command], cwd=checkout, check=True)
    return program


@contextmanager
def serving(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a server over a bucket, and yield the variables by which the tests find it."""
    with serve_versitygw() as options:
        client = client_of(options)
        for bucket in ("lake", "esti-system-testing-data"):
            client.create_bucket(Bucket=bucket)
        fill(client, "esti-system-testing-data")
        settings = {
            **environment_of(options),
            "LAKEBED_BLOCKSTORE": "s3",
            "LAKEBED_GATEWAY_DOMAINS": HOST,
            "LAKEBED_ACTIONS_LOOPBACK": "1",
            "LAKEBED_ACTIONS_LUA_NETWORK": "1",
            "LAKEFSACTION_VAR": "this_is_actions_var",
        }
        with listening(folder / "data", settings) as url:
            port = url.rpartition(":")[2]
            yield {
                "ESTI_SETUP_LAKEFS": "true",
                "ESTI_ENDPOINT_URL": f"http://localhost:{port}",
                "ESTI_S3_ENDPOINT": f"{HOST}:{port}",
                "ESTI_FORCE_PATH_STYLE": "true",
                "ESTI_STORAGE_NAMESPACE": "s3://lake/esti",
                "ESTI_BLOCKSTORE_TYPE": "s3",
                "TEST_WEBHOOK_HOST": "localhost",
                "LAKEFSACTION_VAR": "this_is_actions_var",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test-secret",
            }


def fill(client: Any, bucket: str) -> None:
    keys = [
        f"import-test-data/{outer}prefix-{prefix}/file{number:06}"
        for outer in ("", "nested/")
        for prefix in range(1, 8)
        for number in range(1, 2101)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"x" * 1024), keys))


def run(program: Path, folder: Path, environment: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return PASS, FAIL or SKIP, and the first words of a failure. A test that panics fails."""
    command = [str(program), "-test.v", f"-test.run=^{name}$", "--system-tests", "--use-local-credentials"]
    try:
        ran = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "FAIL", "took too long"
    verdict = re.search(rf"^--- (PASS|FAIL|SKIP): {name} ", ran.stdout, re.MULTILINE)
    if verdict is not None and verdict[1] != "FAIL":
        return verdict[1], ""
    words = re.search(r"Error:\s+(.*)|^panic: (.*)|_test\.go:\d+: (\S.*)", ran.stdout, re.MULTILINE)
    return "FAIL", next(filter(None, words.groups()), "")[:160] if words else "no verdict"


if __name__ == "__main__":
    sys.exit(main())
