"""Azure's and Google's object stores for tests: Azurite, which is Microsoft's own emulator, and a double of ours."""

from __future__ import annotations

import base64
import hashlib
import hmac
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import quote

import httpx

from lakebed.objectstore import ObjectStoreOptions
from lakebed.testing.contracts.network import held_port
from tests.kv.servers import Server, folder_for, npm_package, program, running

AZURITE = "azurite@3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its published key."""

BUCKETS = ("bucket-1", "bucket-2")
"""The double has these from its start."""


@contextmanager
def azurite() -> Iterator[Server]:
    """Start Azurite's blob service. Killed, it loses the writes of its last five seconds."""
    script = azurite_script()
    node = program("node", "nodejs")
    with folder_for("azurite") as folder, held_port() as port:
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", str(folder / "data")]
        command = [node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


def azurite_script() -> Path:
    """Load Azurite, or skip."""
    return npm_package(AZURITE) / "dist" / "src" / "blob" / "main.js"


@contextmanager
def gcs_double() -> Iterator[Server]:
    """Start the double with the buckets of BUCKETS."""
    with folder_for("gcs") as folder, held_port() as port:
        script = Path(__file__).with_name("gcs_double.py")
        command = [sys.executable, str(script), str(port), str(folder / "objects.db"), *BUCKETS]
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


def azure_options(port: int) -> ObjectStoreOptions:
    return ObjectStoreOptions(
        azure_account=ACCOUNT,
        azure_key=KEY,
        azure_endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}",
        retries_max=1,
        timeout_s=600,  # the emulator is slow beside other tests
    )


def gcs_options(port: int) -> ObjectStoreOptions:
    return ObjectStoreOptions(gs_endpoint=f"http://127.0.0.1:{port}", retries_max=1, timeout_s=600)


def make_container(port: int, name: str) -> str:
    _put(port, f"/{ACCOUNT}/{name}", b"", {}, query="restype:container")
    return name


def put_blob(port: int, container: str, name: str, data: bytes) -> None:
    """Put a blob under any name, also under one that no driver of ours writes."""
    _put(port, f"/{ACCOUNT}/{container}/{quote(name)}", data, {"x-ms-blob-type": "BlockBlob"})


def _put(port: int, path: str, data: bytes, extra: dict[str, str], *, query: str = "") -> None:
    """Send a request that is signed as Azure's documents say, with the key of the account."""
    date = format_datetime(datetime.now(UTC), usegmt=True)
    headers = {**extra, "x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{header}:{value}\n" for header, value in headers.items())
    length = str(len(data)) if data else ""
    text = f"PUT\n\n\n{length}{chr(10) * 9}{named}/{ACCOUNT}{path}" + (f"\n{query}" if query else "")
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signed(text)}"
    url = f"http://127.0.0.1:{port}{path}" + (f"?{query.replace(':', '=')}" if query else "")
    answer = httpx.put(url, content=data, headers={**headers, "Content-Length": str(len(data))}, trust_env=False)
    assert answer.status_code == 201, answer.text


def token_without_deletes(container: str) -> str:
    """Make a shared access signature that may do everything in a container but delete."""
    expiry = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = "2020-12-06"
    fields = ["racwl", "", expiry, f"/blob/{ACCOUNT}/{container}", "", "", "", version, "c", "", "", *[""] * 5]
    signature = _signed("\n".join(fields))
    return f"sv={version}&se={quote(expiry)}&sr=c&sp=racwl&sig={quote(signature, safe='')}"


def _signed(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
