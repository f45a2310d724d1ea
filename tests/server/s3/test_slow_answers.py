"""A completion that takes long: its outcome is in the document, and the process ends after it."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response
from starlette.types import Message

from lakebed.base import OutcomeUnknown
from lakebed.server.process.draining import Drain
from lakebed.server.s3.multipart import SlowAnswer


async def answered(outcome: Response | Exception) -> bytes:
    making: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    if isinstance(outcome, Exception):
        making.set_exception(outcome)
    else:
        making.set_result(outcome)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("the body was read before")

    await SlowAnswer(making)({}, receive, send)
    assert sent[-1]["more_body"] is False
    return b"".join([message.get("body", b"") for message in sent])


async def test_the_result_follows_the_declaration() -> None:
    assert (await answered(Response(b"<?xml?>\n<Result/>"))).endswith(b"<Result/>")


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), ValueError("a bug")])
async def test_every_error_is_in_the_document(error: Exception) -> None:
    assert b"<Code>InternalError</Code>" in await answered(error)


async def test_a_process_that_ends_knows_of_work_until_it_is_done() -> None:
    drain = Drain()
    work = asyncio.ensure_future(asyncio.sleep(0))

    drain.keep(work)
    assert drain.work == {work}
    await work
    await asyncio.sleep(0)
    assert not drain.work
