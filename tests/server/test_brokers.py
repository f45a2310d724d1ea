"""Events at brokers: a real NATS server, and the Kafka broker that librdkafka brings for tests."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lakebed.base import Invalid
from lakebed.catalog import DeliveryFailed
from lakebed.server.brokers import Brokers
from tests.kv.servers import program

MESSAGES = [(f"lake/branch/{name}", json.dumps({"name": name}).encode()) for name in ("a", "b", "a")]


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    command = [program("nats-server", "nats-server"), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()


async def test_a_stream_of_nats_has_each_event_in_order(nats_url: str) -> None:
    nats = pytest.importorskip("nats")
    brokers = Brokers(nats=nats_url, topics=["lake.*"])
    with pytest.raises(DeliveryFailed, match="no response from stream"):
        await asyncio.to_thread(brokers.to_nats, "lake.events", MESSAGES)
    client = await nats.connect(nats_url)
    stream = client.jetstream()
    await stream.add_stream(name="lake", subjects=["lake.*"])

    await asyncio.to_thread(brokers.to_nats, "lake.events", MESSAGES)

    got = await stream.pull_subscribe("lake.events", "reader")
    assert [one.data for one in await got.fetch(3)] == [body for _, body in MESSAGES]
    await client.close()


def test_nats_out_of_reach_is_a_failed_delivery() -> None:
    pytest.importorskip("nats")
    with pytest.raises(DeliveryFailed, match="nats: "):
        Brokers(nats="nats://127.0.0.1:1", topics=["lake.*"]).to_nats("lake.events", MESSAGES)


def test_a_server_that_accepts_and_is_silent_is_a_failed_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nats")
    monkeypatch.setattr("lakebed.server.brokers.SEND_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers = Brokers(nats=f"nats://127.0.0.1:{silent.getsockname()[1]}", topics=["lake.*"])
        with pytest.raises(DeliveryFailed, match="nats: "):
            brokers.to_nats("lake.events", MESSAGES)


def test_kafka_has_each_event_under_its_key() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    cluster = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    [broker] = cluster.list_topics("events", timeout=10).brokers.values()
    servers = f"{broker.host}:{broker.port}"

    Brokers(kafka=f"bootstrap.servers={servers}", topics=["events"]).to_kafka("events", MESSAGES)

    reader = kafka.Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
    reader.subscribe(["events"])
    got = [(one.key().decode(), one.value()) for one in reader.consume(3, timeout=30)]
    reader.close()
    assert sorted(got) == sorted(MESSAGES)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nats:a b", "wildcards"),
        ("nats:a.*", "wildcards"),
        ("kafka:a", "LAKEBED_EVENTS_KAFKA"),
        ("nats:b", "LAKEBED_EVENTS_TOPICS"),
    ],
)
def test_a_target_that_cannot_be_sent_to_is_refused(target: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Brokers(nats="nats://127.0.0.1:1", topics=["a"]).check(target)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nats", None)

    with pytest.raises(Invalid, match="lakebed\\[nats\\]"):
        Brokers(nats="nats://127.0.0.1:1", topics=["a"]).check("nats:a")
    assert not Brokers().check("https://example.org/")


def test_nothing_is_sent_where_the_operator_no_longer_allows_it() -> None:
    with pytest.raises(DeliveryFailed, match="LAKEBED_EVENTS_TOPICS"):
        Brokers(nats="nats://127.0.0.1:1").to_nats("orders", MESSAGES)
    with pytest.raises(DeliveryFailed, match="LAKEBED_EVENTS_TOPICS"):
        Brokers(kafka="bootstrap.servers=127.0.0.1:1").to_kafka("orders", MESSAGES)
