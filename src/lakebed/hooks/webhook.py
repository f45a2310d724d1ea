"""Webhooks: one POST of the event as JSON. Any answer but 2xx fails the hook.

A name is resolved once, and the connection goes to the address that was looked at: this machine, the metadata service
of a cloud and private networks get nothing, under any name. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from lakebed.base import in_words

from .actions import duration_s
from .options import OUTPUT_CHARACTERS_MAX, TIMEOUT_S, TIMEOUT_S_MAX, HookFailed, HookOptions, Log

ATTEMPTS_MAX: Final = 3
RETRIED: Final = frozenset({429, 502, 503, 504})
RETRY_S: Final = 0.5
SHOWN_MAX: Final = 4096
"""The characters of an answer's body that a run shows."""
REASON_MAX: Final = 500
"""And those that the error of a refused change shows."""
METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        ["fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"],
    )
)
"""Addresses at which clouds hand out credentials of the machine, besides the link-local ones."""
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
"""The last four bytes of an address here are the address of IPv4 where the connection ends."""


class NoAnswer(HookFailed):
    """The connection failed, or the time was over. The same request may succeed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes

    @property
    def reason(self) -> str:
        """Return the status and the beginning of the answer's body, on one line."""
        words = " ".join(self.body.decode(errors="replace").split())
        return f"{self.status}: {words[:REASON_MAX]}" if words else str(self.status)


def send(
    properties: Mapping[str, Any],
    event: Mapping[str, Any],
    *,
    options: HookOptions,
    log: Log,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Send the event, again after answers that ask for it. Blocks; `properties` have their secrets.

    Raises:
        HookFailed: the answer was not 2xx, or none came in time.
    """
    timeout_s = min(duration_s(properties.get("timeout", TIMEOUT_S)), TIMEOUT_S_MAX)
    until_s = time.monotonic() + timeout_s
    url, query = str(properties["url"]), _query(properties.get("query_params") or {})
    target = url + (("&" if "?" in url else "?") + urlencode(query) if query else "")
    headers = {"content-type": "application/json", **_headers(properties.get("headers") or {})}
    body = msgspec.json.encode(event)
    attempt = 0
    while True:
        attempt += 1
        log(f"POST {url}, attempt {attempt}")
        try:
            answer = request("POST", target, headers, body, timeout_s=until_s - time.monotonic(), options=options)
        except NoAnswer as error:
            words, is_final = str(error), False
        else:
            log(f"answer {answer.status}")
            log(answer.body.decode(errors="replace"), SHOWN_MAX)
            if 200 <= answer.status < 300:
                return
            words, is_final = f"the webhook answered {answer.reason}", answer.status not in RETRIED
        wait_s = RETRY_S * 2 ** (attempt - 1)
        if is_final or attempt == ATTEMPTS_MAX or is_over() or time.monotonic() + wait_s >= until_s:
            raise HookFailed(words)
        log(words)
        time.sleep(wait_s)


def request(
    method: str, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float, options: HookOptions
) -> Answer:
    """Send one request and read its answer, up to OUTPUT_CHARACTERS_MAX bytes of it.

    Messages have the host and port and no more of the URL, and no header: the rest may be secret.

    Raises:
        HookFailed: the URL or a header is not valid, or the URL leads where hooks may not go.
        NoAnswer: the connection failed.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise HookFailed("the URL is malformed: look at its host and port") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise HookFailed("the URL needs http:// or https:// and a host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    whom = f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
    try:
        return _sent(method, parts, headers, body, timeout_s=timeout_s, options=options)
    except http.client.InvalidURL as error:
        raise HookFailed(f"nothing was sent to {whom}: the URL has a blank or a control character") from error
    except (OSError, http.client.HTTPException) as error:  # before ValueError: a bad certificate is both
        raise NoAnswer(f"no answer from {whom}: {in_words(error)}") from error
    except ValueError as error:  # its own words quote the header
        raise HookFailed(f"nothing was sent to {whom}: the URL or a header is not valid in HTTP") from error


def _sent(
    method: str, parts: SplitResult, headers: Mapping[str, str], body: bytes, *, timeout_s: float, options: HookOptions
) -> Answer:
    assert parts.hostname
    if timeout_s <= 0:
        raise TimeoutError("the time is over")
    kind = _Https if parts.scheme == "https" else _Http
    # Without a port, http.client would take the end of an IPv6 address for one.
    port = kind.default_port if parts.port is None else parts.port
    connection = kind(parts.hostname, port, timeout=timeout_s)
    connection.options = options
    connection.until_s = time.monotonic() + timeout_s
    # A socket's own time limit begins anew with each byte: an answer that drips would never end.
    timer = threading.Timer(timeout_s, connection.cut)
    timer.daemon = True
    timer.start()
    try:
        connection.request(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, {**headers})
        answer = connection.getresponse()
        found = bytearray()
        while len(found) < OUTPUT_CHARACTERS_MAX and (chunk := answer.read1(OUTPUT_CHARACTERS_MAX - len(found))):
            found += chunk
        connection.check_time()  # an answer that was cut off looks like one that ended
        return Answer(status=answer.status, body=bytes(found))
    finally:
        timer.cancel()
        connection.close()


class _Http(http.client.HTTPConnection):
    options = HookOptions()
    until_s = 0.0
    _held: socket.socket | None = None

    def connect(self) -> None:
        """Connect to the first address of the host that answers, where the options allow it."""
        failed: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            _check_address(str(address[0]), self.options)
            connected = socket.socket(family, kind, protocol)
            try:
                self.check_time()
                connected.settimeout(max(0.001, self.until_s - time.monotonic()))
                connected.connect(address)
                _check_peer(connected, self.options)
            except OSError as error:
                connected.close()
                failed = error
            except BaseException:
                connected.close()
                raise
            else:
                self.hold(connected)
                return
        raise failed or OSError("the host has no address")

    def hold(self, connected: socket.socket) -> None:
        """Use a socket, and let `cut` end it. `self.sock` is gone once the header of an answer was read."""
        self.sock = self._held = connected
        self.check_time()  # the timer may have been here before the socket

    def check_time(self) -> None:
        """
        Raises:
            TimeoutError: the time is over.
        """
        if time.monotonic() >= self.until_s:
            raise TimeoutError("the time is over")

    def cut(self) -> None:
        """End the connection, from another thread: its reader goes on at once."""
        if self._held is not None:
            with contextlib.suppress(OSError):  # it is closed already
                # Not SSLSocket's own: that one would let the reader go on without TLS.
                socket.socket.shutdown(self._held, socket.SHUT_RDWR)


class _Https(_Http):
    default_port = http.client.HTTPS_PORT

    def connect(self) -> None:
        super().connect()
        context = ssl.create_default_context()
        wrapped = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.hold(wrapped)
        wrapped.do_handshake()


OWN: Final = "this machine, its link or a cloud's metadata service", "LAKEBED_ACTIONS_LOOPBACK"
PRIVATE: Final = "no public address", "LAKEBED_ACTIONS_PRIVATE"


def _check_address(text: str, options: HookOptions) -> None:
    """
    Raises:
        HookFailed: the options do not allow this address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:
            address = ipaddress.IPv4Address(address.packed[-4:])
        else:
            address = address.ipv4_mapped or address.sixtofour or address
    is_own = address.is_loopback or address.is_link_local or address.is_unspecified or address in METADATA
    if is_own and not options.loopback:
        raise _refused(text, OWN)
    is_public = address.is_global and not (address.is_reserved or address.is_multicast)
    if not is_own and not is_public and not options.private:
        raise _refused(text, PRIVATE)


def _check_peer(connected: socket.socket, options: HookOptions) -> None:
    """
    Raises:
        HookFailed: the connection leads to an own address of another interface: to this machine too.
    """
    peer = connected.getpeername()[0]
    if peer == connected.getsockname()[0] and not options.loopback:
        raise _refused(peer, OWN)


def _refused(address: str, why: tuple[str, str]) -> HookFailed:
    return HookFailed(f"{address} is {why[0]}: the server sends hooks there only with {why[1]}=1")


def _query(params: Any) -> Sequence[tuple[str, str]]:
    if not isinstance(params, dict):
        raise HookFailed("query_params is not a mapping")
    return [
        (str(name), str(each))
        for name, value in params.items()
        for each in (value if isinstance(value, list) else [value])
    ]


def _headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, dict):
        raise HookFailed("headers is not a mapping")
    found = {str(name): str(value) for name, value in headers.items()}
    if any(character in text for name, value in found.items() for text in (name, value) for character in "\r\n"):
        raise HookFailed("a header has a line break")
    return found
