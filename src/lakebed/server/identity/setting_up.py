"""Set up a new server: the first caller becomes its administrator.

A page in the operator's browser can send requests to the operator's machine, even under its own host name (DNS
rebinding). Others can reach a server that listens beyond this machine before its operator does. So set-up accepts only
JSON, and no foreign origin. On loopback it requires a loopback Host, and elsewhere the secret that the server printed.

A proxy on this machine forwards requests of others. If a request shows that it came through a proxy, set-up requires a
secret as well. Not every proxy shows itself: the guide tells its operator to set a secret.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from lakebed.auth import NotPermitted
from lakebed.server.http.errors import InvalidBody
from lakebed.server.http.requests import RestRequest, check_origin

SECRET_HEADER = b"x-lakebed-setup-secret"
_PROXIES = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
"""Headers that proxies add."""


def check_set_up(request: RestRequest, secret: str | None) -> None:
    """Check that this request may set the server up. `secret` None: the server listens on loopback only.

    Raises:
        InvalidBody: the body is not sent as JSON.
        NotPermitted: the origin or host is foreign, or the secret is missing or wrong.
    """
    if (request.header(b"content-type") or "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidBody("set-up takes application/json")
    check_origin(request)
    if secret is not None:
        if not hmac.compare_digest((request.header(SECRET_HEADER) or "").encode(), secret.encode()):
            raise NotPermitted(
                "set-up needs the secret that the server printed when it started: `lakebed setup --secret SECRET`"
            )
    elif not is_loopback(_host_of(request)) or _came_through_proxy(request):
        raise NotPermitted(
            "set-up is open to this machine only: call the server by a loopback address and through no proxy, or start"
            " it with LAKEBED_SETUP_SECRET and send that secret"
        )


THIS_MACHINE: Final = "this machine"


def sender_of(request: RestRequest) -> str:
    """Return the machine that sent the request, if known. All requests through a proxy on this machine look alike."""
    host = (request.scope.get("client") or ("",))[0]
    if not is_loopback(host):
        return host
    return "a proxy on this machine" if _came_through_proxy(request) else THIS_MACHINE


def _came_through_proxy(request: RestRequest) -> bool:
    # nginx uses HTTP/1.0 to a server behind it by default. No client of ours does.
    return request.scope["http_version"] == "1.0" or any(request.header(name) is not None for name in _PROXIES)


def is_loopback(host: str) -> bool:
    """Return whether the name or address is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(request: RestRequest) -> str:
    try:
        return urlsplit(f"//{request.header(b'host') or ''}").hostname or ""
    except ValueError:
        return ""
