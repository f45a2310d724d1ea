"""Webhooks: where they may go, and that a slow answer does not outlast its timeout."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Iterator

import httpx
import pytest

from lakebed.base import in_words
from lakebed.hooks import HookFailed, HookOptions, webhook

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture(params=[OK + b"x: ", OK + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n", OK + b"\r\n"])
def dripping(request: pytest.FixtureRequest) -> Iterator[tuple[str, threading.Event]]:
    """Serve an answer that begins so and goes on byte for byte, for ever. The event: the client went away."""
    gone = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            connected, _ = listening.accept()
            with connected:
                connected.recv(65536)
                connected.sendall(request.param)
                while not stop.wait(0.02):
                    connected.sendall(b"1")
        gone.set()

    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/", gone
        stop.set()
        thread.join()


def test_an_answer_that_drips_ends_with_the_timeout(dripping: tuple[str, threading.Event]) -> None:
    url, gone = dripping

    with pytest.raises(HookFailed, match="no answer"):
        webhook.send({"url": url, "timeout": "300ms"}, {}, options=HookOptions(loopback=True), log=print)

    assert gone.wait(600)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[fe80::1]",
    ],
)
def test_no_hook_reaches_this_machine_or_a_metadata_service(host: str) -> None:
    with pytest.raises(HookFailed, match="LAKEBED_ACTIONS_LOOPBACK"):
        _send(host, HookOptions(private=True))


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "224.0.0.1", "[fd12::1]", "[64:ff9b::a00:1]"]
)
def test_no_hook_reaches_a_private_network_unless_the_server_allows_it(host: str) -> None:
    with pytest.raises(HookFailed, match="LAKEBED_ACTIONS_PRIVATE"):
        _send(host, HookOptions(loopback=True))


def _send(host: str, options: HookOptions) -> None:
    webhook.send({"url": f"http://{host}:9/", "timeout": "10m"}, {}, options=options, log=print)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "timeout error"),
        (http.client.IncompleteRead(b"12", 8), "incomplete read: 2 bytes read, 8 more expected"),
        (ConnectionError("ConnectionError: the peer left"), "connection error: the peer left"),
        (TimeoutError("TimeoutError()"), "timeout error"),
        (TimeoutError("TimeoutError"), "timeout error"),
        (httpx.ReadError("ReadError while reading"), "read error while reading"),
        (httpx.ReadError("ReadErrors are many"), "ReadErrors are many"),
        (
            OSError(111, "Connect call failed ('10.0.0.1', 1)"),
            "Connection refused: Connect call failed ('10.0.0.1', 1)",
        ),
        (
            OSError("Both: [Errno 111] a ('::1', 1), [Errno 113] b"),
            "Both: Connection refused: a ('::1', 1), No route to host: b",
        ),
        (
            OSError("Both: [Errno 111] a, [Errno 111] Connection refused"),
            "Both: Connection refused: a, Connection refused",
        ),
        (RuntimeError("h:1: [Errno 111] Connection refused (timeout: 1s)"), "h:1: Connection refused (timeout: 1s)"),
        (OSError(98, "on ('::1', 1): address already in use"), "on ('::1', 1): address already in use"),
        (FileNotFoundError(2, "No such file or directory", "a"), "No such file or directory: 'a'"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            socket.gaierror(8, "nodename nor servname provided, or not known"),
            "nodename nor servname provided, or not known",
        ),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version"), "[SSL: WRONG_VERSION_NUMBER] wrong version"),
        (KeyError("id"), "there is no 'id'"),
        (httpx.ConnectTimeout(""), "connect timeout"),
    ],
)
def test_an_error_is_told_without_the_name_of_its_class(error: Exception, words: str) -> None:
    assert in_words(error) == words


def test_a_receiver_that_is_not_there_is_named_without_its_secrets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]

    with pytest.raises(HookFailed) as refused:
        webhook.send(
            {"url": f"http://127.0.0.1:{port}/key?token=1", "timeout": "400ms"},
            {},
            options=HookOptions(loopback=True),
            log=print,
        )

    assert str(refused.value) == f"no answer from http://127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize(
    ("url", "headers", "message"),
    [
        ("http://h/key?token=SECRET x", {}, "nothing was sent to http://h: the URL has a blank or a control character"),
        ("http://h:80/?token=SECRETé", {}, "nothing was sent to http://h:80: the URL or a header is not valid in HTTP"),
        ("http://a..b/SECRET", {}, "nothing was sent to http://a..b: the URL or a header is not valid in HTTP"),
        ("http://h/", {"a": "SECRET☃"}, "nothing was sent to http://h: the URL or a header is not valid in HTTP"),
        ("http://h/", {"SECRET:": "1"}, "nothing was sent to http://h: the URL or a header is not valid in HTTP"),
        ("http://user:SECRET/x@h/", {}, "the URL is malformed: look at its host and port"),
        ("http://[SECRET]/", {}, "the URL is malformed: look at its host and port"),
        ("SECRET:x", {}, "the URL needs http:// or https:// and a host"),
    ],
)
def test_a_request_that_cannot_be_sent_is_not_tried_again_and_shows_no_secrets(
    url: str, headers: dict[str, str], message: str
) -> None:
    lines: list[str] = []
    properties = {"url": url, "headers": headers, "query_params": {"a": 1}, "timeout": "10m"}

    with pytest.raises(HookFailed) as refused:
        webhook.send(properties, {}, options=HookOptions(), log=lambda line, *_: lines.append(line))

    assert (str(refused.value), len(lines)) == (message, 1)


def test_a_header_with_a_line_break_is_refused_without_its_value() -> None:
    headers = {"authorization": "Bearer S\nECRET"}

    with pytest.raises(HookFailed, match=r"^nothing was sent to http://h: the URL or a header is not valid in HTTP$"):
        webhook.request("POST", "http://h/", headers, b"", timeout_s=600, options=HookOptions())


@pytest.mark.parametrize("whom", ["http://[::1]", "https://[2001:db8::1]:9"])
def test_an_address_of_ipv6_keeps_its_brackets(whom: str) -> None:
    with pytest.raises(webhook.NoAnswer, match=f"^no answer from {re.escape(whom)}: the time is over$"):
        webhook.request("POST", f"{whom}/", {}, b"", timeout_s=0, options=HookOptions())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_of_ipv6_needs_no_port(scheme: str) -> None:
    with pytest.raises(HookFailed, match=r"^::1 is this machine"):
        webhook.request("POST", f"{scheme}://[::1]/", {}, b"", timeout_s=600, options=HookOptions())
