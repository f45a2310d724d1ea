"""The client: one connection, and the operations over it, by noun."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from lakebed.operations import Operation, accounts, installation, operators
from lakebed.wire import Config, CredentialsWithSecret, LoginTicket, ServerStatus, Setup

from .auth import Audit, Groups, Policies, Quotas, Sandboxes, Users
from .connection import Connection, Credentials, Query, Retries, Token
from .errors import BadAnswer
from .events import Actions, Events
from .history import History
from .http import httpx
from .objects import Objects
from .refs import Branches, Pulls, Tags
from .repositories import Repositories
from .tables import Tables
from .transfers import Files

A = TypeVar("A")
B = TypeVar("B")


class Client:
    """A Lakebed server, spoken to over HTTP with a key pair or a token. Synchronous; may be shared by threads.

    A context manager: leaving it closes the connections. No request is made before the first call.
    `trace` gets a line for each request that is sent: method, path, status, time. `transport` and `sleep` are for
    tests.

    Raises:
        BadEndpoint: the endpoint is not an http or https URL.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: Credentials | Token | None = None,
        *,
        retries: Retries = Retries(),
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        connection = Connection(
            endpoint,
            credentials,
            retries=retries,
            timeout_s=timeout_s,
            transport=transport,
            sleep=sleep,
            trace=trace,
        )
        self._connection = connection
        self.endpoint = connection.endpoint
        self.repositories = Repositories(connection)
        self.branches = Branches(connection)
        self.tags = Tags(connection)
        self.history = History(connection)
        self.objects = Objects(connection)
        self.files = Files(connection)
        self.actions = Actions(connection)
        self.pulls = Pulls(connection)
        self.tables = Tables(connection)
        self.events = Events(connection)
        self.users = Users(connection)
        self.groups = Groups(connection)
        self.policies = Policies(connection)
        self.sandboxes = Sandboxes(connection)
        self.quotas = Quotas(connection)
        self.audit = Audit(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def changes(self) -> tuple[int, int]:
        """Return how many requests other than reads were sent, and how many of them were answered."""
        return self._connection.changes_sent, self._connection.changes_answered

    def setup_state(self) -> str:
        """Return `initialized` or `not_initialized`."""
        return self._connection.do(installation.GET_SETUP_STATE).state

    def setup(self, username: str, *, secret: str = "") -> CredentialsWithSecret:
        """Make the first user, and return its key pair: no later call returns the secret key again.

        `secret` is the one that the server printed when it started; a server on loopback needs none.

        Raises:
            Taken: the server is set up already.
        """
        headers = {"x-lakebed-setup-secret": secret} if secret else None
        return self._connection.do(installation.SETUP, body=Setup(username=username), headers=headers)

    def config(self) -> Config:
        return self._connection.do(installation.GET_CONFIG)

    def current_user(self) -> str:
        """Return the id of the user whose credentials these are. One request shows whether they are valid."""
        return self._connection.do(accounts.GET_CURRENT_USER).user.id

    def status(self) -> ServerStatus:
        """Return how the server is: ready or not, its processes and their upkeep."""
        return self._connection.do(operators.GET_SERVER_STATUS)

    def login_ticket(self) -> LoginTicket:
        """Make the ticket of a link that logs a browser of this machine in as this user, once, within a minute."""
        return self._connection.do(accounts.CREATE_LOGIN_TICKET)

    def do(
        self,
        operation: Operation[B, A],
        *arguments: str,
        body: B | None = None,
        query: Query | None = None,
        content: Callable[[], Iterable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> A:
        """Carry out an operation of the table (`lakebed.operations`); `arguments` fill in its path, in order.

        `content` is a body in pieces, of an operation that takes bytes.

        Raises:
            ErrorAnswer, Unreachable, AnswerLost, BadAnswer: as every call.
        """
        return self._connection.do(operation, *arguments, body=body, query=query, content=content, headers=headers)

    def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        query: Query | None = None,
        repeatable: bool | None = None,
    ) -> object:
        """Any route by its whole path (`/api/v1/…`); the decoded JSON of the answer, None where it has no body.

        `path_to` makes the path of an operation. Retries as connection.py says.

        Raises:
            ErrorAnswer, Unreachable, AnswerLost: as every call.
            BadAnswer: the body is not JSON.
        """
        answer = self._connection.send(method, path, json=json, query=query, repeatable=repeatable)
        if not answer.content:
            return None
        try:
            return msgspec.json.decode(answer.content)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"unexpected answer to {method} {path}: {error}", request=f"{method} {path}") from error
