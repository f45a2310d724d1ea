"""S3 servers for tests: moto's on 127.0.0.1, or a real one, versitygw, and one that fails.

LAKEBED_TEST_S3_ENDPOINT                      the real one; its tests make buckets lakebed-test-… and remove them
LAKEBED_TEST_S3_REGION                        us-east-1 where it is missing
LAKEBED_TEST_S3_ACCESS_KEY_ID, …_SECRET_ACCESS_KEY, …_SESSION_TOKEN       or AWS's own variables
LAKEBED_TEST_S3_PLANNER_ACCESS_KEY_ID, …_SECRET_ACCESS_KEY, …_SESSION_TOKEN
                                              a key that may do everything in these buckets but delete objects
LAKEBED_TEST_S3_PLANNER_PRINCIPAL             where only a bucket's policy can give that key what it may: its name
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from lakebed.objectstore import ObjectStoreOptions
from lakebed.testing.contracts.network import held_port
from tests.kv.servers import Server, folder_for, go_program, running
from tests.serving import serving


class AtomicConditions:
    """moto looks whether a key is taken and then stores, and lets other threads in between. S3 does not."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"} & environ.keys():
            return self._app(environ, start_response)
        with self._lock:
            return [*self._app(environ, start_response)]


PLANNER: Final = "planner"
"""The access key of one who may do everything but delete objects."""

DENIED: Final = "<Code>AccessDenied</Code><Message>Access Denied</Message>"


class Permissions:
    """Deletes are refused to PLANNER as under a policy without s3:DeleteObject: one of many keys with the status of
    success, and an error for each key. To give up an unfinished upload of one's own is another permission.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        one = environ["REQUEST_METHOD"] == "DELETE" and "uploadId" not in query
        many = environ["REQUEST_METHOD"] == "POST" and "delete" in query
        if not (one or many) or f"Credential={PLANNER}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            return self._app(environ, start_response)
        keys = keys_in(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        errors = "".join(f"<Error><Key>{key}</Key>{DENIED}</Error>" for key in keys)
        answer = (f"<DeleteResult>{errors}</DeleteResult>" if many else f"<Error>{DENIED}</Error>").encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(answer)))]
        start_response("200 OK" if many else "403 Forbidden", headers)
        return [answer]


_VARIABLES: Final = "LAKEBED_TEST_S3_"
_MADE: Final[list[str]] = []
"""Buckets that are to be removed again."""


def real_endpoint() -> str | None:
    return os.environ.get(f"{_VARIABLES}ENDPOINT")


@contextmanager
def serve_s3() -> Iterator[ObjectStoreOptions]:
    """Options for a server: moto's here, or the real one. No buckets that tests made are left there."""
    given = real_endpoint()
    if given is None:
        with serve_moto() as options:
            yield options
        return
    region = os.environ.get(f"{_VARIABLES}REGION", "us-east-1")
    family = _VARIABLES if f"{_VARIABLES}ACCESS_KEY_ID" in os.environ else "AWS_"
    options = replace(options_for(given, region=region), **_key_of(family))
    made_before = len(_MADE)
    try:
        yield options
    finally:
        for bucket in _MADE[made_before:]:
            _remove_bucket(options, bucket)
        del _MADE[made_before:]


def planner_of(options: ObjectStoreOptions) -> ObjectStoreOptions:
    """The same server for one who may not delete. Skips the test where a real server has no such key for us."""
    if real_endpoint() is None:
        return replace(options, s3_access_key_id=PLANNER)
    if f"{_VARIABLES}PLANNER_ACCESS_KEY_ID" not in os.environ:
        pytest.skip(f"{_VARIABLES}PLANNER_ACCESS_KEY_ID names no key that may not delete")
    return replace(options, **_key_of(f"{_VARIABLES}PLANNER_"))


def _key_of(family: str) -> dict[str, Any]:
    return {
        "s3_access_key_id": os.environ[f"{family}ACCESS_KEY_ID"],
        "s3_secret_access_key": os.environ[f"{family}SECRET_ACCESS_KEY"],
        "s3_session_token": os.environ.get(f"{family}SESSION_TOKEN"),
    }


def _remove_bucket(options: ObjectStoreOptions, bucket: str) -> None:
    """With all that is in it. Some servers show a folder only when the object of its name is gone."""
    client = client_of(options)
    while found := client.list_objects_v2(Bucket=bucket).get("Contents", []):
        for each in found:
            client.delete_object(Bucket=bucket, Key=each["Key"])
    client.delete_bucket(Bucket=bucket)


@contextmanager
def serve_moto() -> Iterator[ObjectStoreOptions]:
    """moto's server, whatever the environment says: with any credentials but those of PLANNER one may do everything."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = AtomicConditions(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, Permissions(app), threaded=True)
    with serving(server):
        yield options_for(f"http://127.0.0.1:{server.server_port}")


@contextmanager
def serve_versitygw() -> Iterator[ObjectStoreOptions]:
    """A server of S3 over a folder that others wrote, in Go. Skips where it cannot be had."""
    built = go_program("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
    with folder_for("versitygw") as folder, held_port() as port:
        (files := folder / "files").mkdir()
        command = [str(built), "--access", "test", "--secret", "test-secret", "--port", f"127.0.0.1:{port}", "--quiet"]
        # As root, for the folder of the program may be closed to others.
        with running(Server([*command, "posix", str(files)], folder, port, as_root=True)):
            yield options_for(f"http://127.0.0.1:{port}", secret_access_key="test-secret")


def options_for(
    endpoint: str, *, region: str = "us-east-1", access_key_id: str = "test", secret_access_key: str = "test"
) -> ObjectStoreOptions:
    return ObjectStoreOptions(
        s3_endpoint=endpoint,
        s3_region=region,
        s3_access_key_id=access_key_id,
        s3_secret_access_key=secret_access_key,
        retries_max=1,
        timeout_s=600,
    )


def client_of(options: ObjectStoreOptions) -> Any:
    """boto3's client, to see with other eyes what lies in a bucket."""
    return boto3.client(
        "s3",
        endpoint_url=options.s3_endpoint,
        region_name=options.s3_region,
        aws_access_key_id=options.s3_access_key_id,
        aws_secret_access_key=options.s3_secret_access_key,
        aws_session_token=options.s3_session_token,
    )


def make_bucket(options: ObjectStoreOptions) -> str:
    bucket, client = f"lakebed-test-{uuid.uuid4().hex[:12]}", client_of(options)
    client.create_bucket(Bucket=bucket)
    if real_endpoint() is not None:
        _MADE.append(bucket)
        principal = os.environ.get(f"{_VARIABLES}PLANNER_PRINCIPAL")
        if principal:
            client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(_planners_policy(bucket, principal)))
    return bucket


def _planners_policy(bucket: str, principal: str) -> dict[str, Any]:
    """What docs/guide/object-stores.md gives to who only plans."""
    may = {"Effect": "Allow", "Principal": {"AWS": [principal]}}
    here = f"arn:aws:s3:::{bucket}"
    objects = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    return {
        "Version": "2012-10-17",
        "Statement": [
            may | {"Action": ["s3:ListBucket"], "Resource": [here]},
            may | {"Action": objects, "Resource": [f"{here}/*"]},
        ],
    }


BROKEN: Final = "\0"


@contextmanager
def serve_failures(answer: Callable[[str, str, bytes], tuple[int, str] | None]) -> Iterator[ObjectStoreOptions]:
    """A server that answers what `answer(method, path, body)` says: status and XML, or None to hang up. To HEAD it says
    just how long the XML is. An answer with BROKEN in it ends there, and is shorter than it says.
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
                sent, broken, _ = text.partition(BROKEN)
                self.close_connection = bool(broken)
                self.wfile.write(sent.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield options_for(f"http://127.0.0.1:{server.server_address[1]}")


@contextmanager
def serve_broken_bodies(data: bytes, breaks: int) -> Iterator[tuple[ObjectStoreOptions, list[str]]]:
    """A server of one object under every key, and the requests so far. The first `breaks` bodies end half-way."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            requests.append(asked or "all")
            first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(data)) if last else len(data)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(end - start))
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if len(requests) <= breaks:
                end, self.close_connection = (start + end) // 2, True
            self.wfile.write(data[start:end])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield options_for(f"http://127.0.0.1:{server.server_address[1]}"), requests


def keys_in(delete_request: bytes) -> list[str]:
    return re.findall(r"<Key>(.*?)</Key>", delete_request.decode())
