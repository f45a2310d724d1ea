"""Webhooks: one POST of the event as JSON. Any answer but 2xx fails the hook.

The address is looked at after the connection is made and before a byte is sent: a name that resolves to this machine,
or to the metadata service of a cloud, gets nothing. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from .actions import duration_s
from .options import OUTPUT_CHARACTERS_MAX, TIMEOUT_S, TIMEOUT_S_MAX, HookFailed, HookOptions

ATTEMPTS_MAX: Final = 3
RETRIED: Final = frozenset({429, 502, 503, 504})
RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes


def send(
    properties: Mapping[str, Any],
    body: bytes,
    *,
    options: HookOptions,
    log: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Send the event, again after answers that ask for it. Blocks; `properties` have their secrets.

    Raises:
        HookFailed: the answer was not 2xx, or none came in time.
    """
    timeout_s = min(duration_s(properties.get("timeout", TIMEOUT_S)), TIMEOUT_S_MAX)
    until_s = time.monotonic() + timeout_s
    url, query = str(properties["url"]), _query(properties.get("query_params") or {})
    target = url + (("&" if urlsplit(url).query else "?") + urlencode(query) if query else "")
    headers = {"content-type": "application/json", **_headers(properties.get("headers") or {})}
    attempt = 0
    while True:
        attempt += 1
        log(f"POST {url}, attempt {attempt}")
        try:
            answer = request("POST", target, headers, body, timeout_s=until_s - time.monotonic(), options=options)
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = f"no answer: {type(error).__name__}: {error}"
            is_final = False
        else:
            log(f"answer {answer.status}")
            log(answer.body[:4096].decode(errors="replace"))
            if 200 <= answer.status < 300:
                return
            words, is_final = f"the webhook answered {answer.status}", answer.status not in RETRIED
        wait_s = RETRY_S * 2 ** (attempt - 1)
        if is_final or attempt == ATTEMPTS_MAX or is_over() or time.monotonic() + wait_s >= until_s:
            raise HookFailed(words)
        log(words)
        time.sleep(wait_s)


def request(
    method: str, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float, options: HookOptions
) -> Answer:
    """Send one request and read its answer, up to OUTPUT_CHARACTERS_MAX bytes of it.

    Raises:
        HookFailed: the URL is none of http, or leads to this machine.
        OSError, HTTPException: the connection failed.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise HookFailed(f"{parts.scheme}: only http and https URLs with a host are sent to")
    if timeout_s <= 0:
        raise TimeoutError("the time is over")
    kind = _Https if parts.scheme == "https" else _Http
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    connection.may_be_loopback = options.loopback
    until_s = time.monotonic() + timeout_s
    try:
        connection.request(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, {**headers})
        answer = connection.getresponse()
        found = bytearray()
        while len(found) < OUTPUT_CHARACTERS_MAX and (chunk := answer.read1(OUTPUT_CHARACTERS_MAX - len(found))):
            found += chunk
            if time.monotonic() > until_s:
                raise TimeoutError("the answer took too long")
        return Answer(status=answer.status, body=bytes(found))
    finally:
        connection.close()


class _Http(http.client.HTTPConnection):
    may_be_loopback = False

    def connect(self) -> None:
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        _check_address(self.sock, may_be_loopback=self.may_be_loopback)


class _Https(_Http):
    default_port = http.client.HTTPS_PORT

    def connect(self) -> None:
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _check_address(connected: socket.socket, *, may_be_loopback: bool) -> None:
    """
    Raises:
        HookFailed: the connection leads to this machine or to its link.
    """
    address = ipaddress.ip_address(connected.getpeername()[0].partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    is_own = address.is_loopback or address.is_link_local or address.is_unspecified
    # Connecting to an own address of another interface leads to this machine too.
    is_own = is_own or connected.getpeername()[0] == connected.getsockname()[0]
    if is_own and not may_be_loopback:
        connected.close()
        raise HookFailed(
            f"{address} is this machine or its link: the server sends hooks there only with LAKEBED_ACTIONS_LOOPBACK=1"
        )


def _query(params: Any) -> Sequence[tuple[str, str]]:
    if not isinstance(params, dict):
        raise HookFailed("query_params is no mapping")
    return [
        (str(name), str(each))
        for name, value in params.items()
        for each in (value if isinstance(value, list) else [value])
    ]


def _headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, dict):
        raise HookFailed("headers is no mapping")
    found = {str(name): str(value) for name, value in headers.items()}
    if any(character in text for name, value in found.items() for text in (name, value) for character in "\r\n"):
        raise HookFailed("a header has a line break")
    return found
