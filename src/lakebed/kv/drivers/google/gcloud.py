"""gRPC requests to Google's services: the parts that the drivers of Bigtable and Spanner share.

Both drivers bypass the layers above the client libraries' stubs: these repeat a write whose answer was lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import google.auth
import grpc
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing
from lakebed.kv.store import StoreUnavailable

CONNECT_S_MAX: Final = 20.0
"""Wait this long for a connection, or half of a request's time: so that the request ends as not sent."""
_NOT_CONNECTED: Final = "failed to connect to all addresses"
"""gRPC's message when it had no connection for the request."""
_REFUSED: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""After these codes, and the two codes with their own class, nothing happened."""
_PASSING: Final = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED})


class NotThere(StoreUnavailable):
    """The resource that the request names does not exist."""


class AlreadyThere(StoreUnavailable):
    """The resource that the request would make exists already."""


class Aborted(Passing):
    """The service undid the transaction, and asks to begin again. No transaction is open."""


def emulator_of(uri: StoreUri) -> str:
    """Read the option `endpoint`. Return the host and port of an emulator, or an empty text."""
    endpoint = uri.text("endpoint", "")
    if endpoint and not endpoint.startswith("http://"):
        raise InvalidStoreUri(f"{uri.scheme}: endpoint is that of an emulator: http://HOST:PORT", scheme=uri.scheme)
    return urlsplit(endpoint).netloc


def open_transport(made_by: Any, emulator: str, name: str, timeout_s: float) -> Any:
    """Open a channel to the service of these stubs, or to its emulator, for requests of this duration."""
    options = _channel_options(timeout_s)
    if emulator:
        return made_by(channel=grpc.aio.insecure_channel(emulator, options=options))
    try:
        credentials, _ = google.auth.default(scopes=made_by.AUTH_SCOPES)
    except GoogleAuthError as error:
        raise StoreUnavailable(f"{name}: no credentials: {error}") from error
    host = f"{made_by.DEFAULT_HOST}:443"
    return made_by(channel=made_by.create_channel(host, credentials=credentials, options=options))


def _channel_options(timeout_s: float) -> list[tuple[str, int]]:
    connect_s = max(min(timeout_s / 2, CONNECT_S_MAX), 1)
    return [
        ("grpc.enable_retries", 0),  # else gRPC would repeat a write
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Despite its name, this is the time for one attempt to connect, up to the server's first answer.
        ("grpc.min_reconnect_backoff_ms", int(connect_s * 1000)),
        ("grpc.use_local_subchannel_pool", 1),  # else a store would inherit the backoff of a closed store
    ]


@asynccontextmanager
async def translated(name: str, aborting: Collection[grpc.StatusCode] = ()) -> AsyncIterator[None]:
    """Translate errors of a request. Raise those of `aborting` as `Aborted`."""
    try:
        yield
    except exceptions.GoogleAPICallError as error:
        raise _failure(name, error.grpc_status_code, error.message, aborting) from error
    except grpc.aio.AioRpcError as error:
        raise _failure(name, error.code(), error.details(), aborting) from error
    except GoogleAuthError as error:
        raise Passing(f"{name}: no credentials: {error}") from error


def _failure(
    name: str, code: grpc.StatusCode | None, details: str | None, aborting: Collection[grpc.StatusCode]
) -> Exception:
    message = f"{name}: {'' if code is None else code.name}: {details}"
    if code == grpc.StatusCode.NOT_FOUND:
        return NotThere(message)
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return AlreadyThere(message)
    if code in _REFUSED:
        return StoreUnavailable(message)
    if code in aborting:
        return Aborted(message)
    if code in _PASSING or _NOT_CONNECTED in message:
        return Passing(message)
    return OutcomeUnknown(message)
