"""S3 servers on 127.0.0.1 for tests: moto's, or the one that LAKEBED_TEST_S3_ENDPOINT names, and one that fails."""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any, Final
from urllib.parse import parse_qs

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from lakebed.blocks import BlockOptions


class AtomicConditions:
    """moto looks whether a key is taken and then stores, and lets other threads in between. S3 does not."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._app(environ, start_response)
        with self._lock:
            return [*self._app(environ, start_response)]


PLANNER: Final = "planner"
"""The access key of one who may do everything but delete objects."""

DENIED: Final = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


class Permissions:
    """DeleteObject and DeleteObjects are refused to PLANNER, as a policy without s3:DeleteObject does. To give up an
    unfinished upload of one's own is another permission.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        deletes = environ["REQUEST_METHOD"] == "DELETE" and "uploadId" not in query
        deletes |= environ["REQUEST_METHOD"] == "POST" and "delete" in query
        if deletes and f"Credential={PLANNER}/" in environ.get("HTTP_AUTHORIZATION", ""):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(DENIED)))])
            return [DENIED]
        return self._app(environ, start_response)


@contextmanager
def serve_s3() -> Iterator[BlockOptions]:
    """Options for a server: moto's here, or a real one that LAKEBED_TEST_S3_ENDPOINT, LAKEBED_TEST_S3_REGION,
    LAKEBED_TEST_S3_ACCESS_KEY_ID and LAKEBED_TEST_S3_SECRET_ACCESS_KEY name.
    """
    given = os.environ.get("LAKEBED_TEST_S3_ENDPOINT")
    if given:
        yield options_for(
            given,
            region=os.environ.get("LAKEBED_TEST_S3_REGION", "us-east-1"),
            access_key_id=os.environ["LAKEBED_TEST_S3_ACCESS_KEY_ID"],
            secret_access_key=os.environ["LAKEBED_TEST_S3_SECRET_ACCESS_KEY"],
        )
        return
    with serve_moto() as options:
        yield options


@contextmanager
def serve_moto() -> Iterator[BlockOptions]:
    """moto's server, whatever the environment says: with any credentials but those of PLANNER one may do everything."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = AtomicConditions(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, Permissions(app), threaded=True)
    with _running(server):
        yield options_for(f"http://127.0.0.1:{server.server_port}")


def options_for(
    endpoint: str, *, region: str = "us-east-1", access_key_id: str = "test", secret_access_key: str = "test"
) -> BlockOptions:
    return BlockOptions(
        s3_endpoint=endpoint,
        s3_region=region,
        s3_access_key_id=access_key_id,
        s3_secret_access_key=secret_access_key,
        s3_retries_max=1,
        s3_timeout_s=30,
    )


def client_of(options: BlockOptions) -> Any:
    """boto3's client, to see with other eyes what lies in a bucket."""
    return boto3.client(
        "s3",
        endpoint_url=options.s3_endpoint,
        region_name=options.s3_region,
        aws_access_key_id=options.s3_access_key_id,
        aws_secret_access_key=options.s3_secret_access_key,
    )


def make_bucket(options: BlockOptions) -> str:
    bucket = f"lakebed-test-{uuid.uuid4().hex[:12]}"
    client_of(options).create_bucket(Bucket=bucket)
    return bucket


@contextmanager
def serve_failures(answer: Callable[[str, str, bytes], tuple[int, str] | None]) -> Iterator[BlockOptions]:
    """A server that answers what `answer(method, path, body)` says: status and XML, or None to hang up. To HEAD it says
    just how long the XML is.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answer(self.command, self.path, body)
            if found is None:
                self.close_connection = True
                return
            status, text = found
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with _running(server):
        yield options_for(f"http://127.0.0.1:{server.server_address[1]}")


@contextmanager
def _running(server: BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def keys_in(delete_request: bytes) -> list[str]:
    return re.findall(r"<Key>(.*?)</Key>", delete_request.decode())
