"""A server that answers from a script, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx

from lakebed.client import Client, Credentials, Retries, Token

PAIR = Credentials(access_key_id="AKIAJTEST", secret_access_key="secret")
Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Script:
    """Gives one answer for each request, in order; the last one for ever. Bodies that are sent are read."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)


def client_of(script: Script, credentials: Credentials | Token = PAIR, *, attempts: int = 3) -> Client:
    """A client of that server, which notes its waits instead of waiting."""
    return Client(
        "http://lake.test",
        credentials,
        retries=Retries(attempts=attempts),
        transport=httpx.MockTransport(script),
        sleep=script.waits.append,
    )


def failed(status: int, message: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"message": message}, headers=headers)


class Breaking(httpx.SyncByteStream):
    """A body whose connection breaks after some chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks
        raise httpx.ReadError("connection reset")
