"""Send events to NATS and Kafka. The operator names the brokers, so that no user has the server connect elsewhere.

Each event is a message of its own. A delivery has ended once the broker has acknowledged all of them.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from lakebed.base import Invalid, in_words
from lakebed.catalog import DeliveryFailed

SEND_S: Final = 10.0
"""Less than a delivery may take before another process tries (`lakebed.catalog.subscriptions.BUSY_MS`)."""
CLOSE_S: Final = 1.0
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LIBRARIES: Final = {"nats": ("nats", "nats-py"), "kafka": ("confluent_kafka", "confluent-kafka")}
"""The module and the package by scheme."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """`nats`: the URLs of the servers. `kafka`: settings of the Kafka client, `name=value` with semicolons between."""

    nats: str = field(default="", repr=False)
    kafka: str = field(default="", repr=False)
    topics: Sequence[str] = ()
    """Patterns of the subjects and topics that subscriptions may name. Empty allows none."""

    def check(self, target: str) -> bool:
        """Return whether this is a target at a broker.

        Raises:
            Invalid: it is, and cannot be sent to: a bad name, no broker, or no client library.
        """
        scheme, _, name = target.partition(":")
        if scheme not in _LIBRARIES:
            return False
        is_name = _NAME.fullmatch(name) is not None and (scheme == "kafka" or all(name.split(".")))
        if not is_name:
            raise Invalid(f"a target at {scheme} is {scheme}:NAME, without wildcards")
        if not (self.nats if scheme == "nats" else self.kafka):
            raise Invalid(
                f"this server has no {scheme}: LAKEBED_EVENTS_{scheme.upper()} names one when the server starts"
            )
        if (error := self._denied(name)) is not None:
            raise Invalid(error)
        try:
            _library(scheme)
        except DeliveryFailed as error:
            raise Invalid(str(error)) from error
        return True

    def _denied(self, name: str) -> str | None:
        is_allowed = any(fnmatchcase(name, pattern) for pattern in self.topics)
        return None if is_allowed else f"LAKEBED_EVENTS_TOPICS of this server does not allow {name}"

    def to_nats(self, subject: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """Publish to a stream, one after the other. Blocks, in a loop of its own: the library closes without a limit.

        Raises:
            DeliveryFailed: no stream has acknowledged all of them, or the operator does not allow the subject.
        """
        if (denied := self._denied(subject)) is not None:
            raise DeliveryFailed(denied)
        try:
            asyncio.run(self._publish(subject, messages))
        except DeliveryFailed:
            raise
        except Exception as error:  # the library has many; the next delivery tries again
            raise DeliveryFailed(f"nats: {in_words(error)}") from error

    async def _publish(self, subject: str, messages: Sequence[tuple[str, bytes]]) -> None:
        servers = [one.strip() for one in self.nats.split(",")]
        client = _library("nats").NATS()
        try:
            async with asyncio.timeout(SEND_S):
                await client.connect(servers, allow_reconnect=False, connect_timeout=SEND_S, error_cb=_ignore)
                stream = client.jetstream(timeout=SEND_S)
                for _, body in messages:
                    await stream.publish(subject, body)
        finally:
            # Also where it did not come to connect: its socket is open. One that is slow to close is left alone.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await client.close()

    def to_kafka(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """Produce with the name of the ref as key, so that each ref has its order. Blocks.

        Raises:
            DeliveryFailed: the brokers have not acknowledged all of them, or the operator does not allow the topic.
        """
        if (denied := self._denied(topic)) is not None:
            raise DeliveryFailed(denied)
        failed: list[str] = []

        def noted(error: object, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        # Without a gap: an event that failed must not come after later ones.
        sure = {"acks": "all", "enable.idempotence": True, "enable.gapless.guarantee": True, "log_level": 0}
        try:
            times = {"message.timeout.ms": int(SEND_S * 1_000)}
            producer = _library("kafka").Producer({**_settings(self.kafka), **sure, **times})
            for key, body in messages:
                producer.produce(topic, body, key=key.encode(), on_delivery=noted)
            left = producer.flush(SEND_S)
        except DeliveryFailed:
            raise
        except Exception as error:  # as above
            raise DeliveryFailed(f"kafka: {in_words(error)}") from error
        if failed or left:
            raise DeliveryFailed(f"kafka: {failed[0] if failed else f'{left} events were not acknowledged'}")


def brokers(environment: Mapping[str, str]) -> Brokers:
    """Read LAKEBED_EVENTS_NATS, LAKEBED_EVENTS_KAFKA and LAKEBED_EVENTS_TOPICS."""
    return Brokers(
        nats=environment.get("LAKEBED_EVENTS_NATS", ""),
        kafka=environment.get("LAKEBED_EVENTS_KAFKA", ""),
        topics=environment.get("LAKEBED_EVENTS_TOPICS", "lakebed.*").split(),
    )


def _settings(text: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in text.split(";") if one.strip()]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _library(scheme: str) -> Any:
    module, package = _LIBRARIES[scheme]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"the Python package {package!r} is missing; try: pip install 'lakebed[{scheme}]'"
        raise DeliveryFailed(message) from error


async def _ignore(_: Exception) -> None:
    """Leave the library's errors to the call that fails."""
