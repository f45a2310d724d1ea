"""A lake: a connected server or an opened folder, and its repositories."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from lakebed.base import AlreadyExists, Invalid
from lakebed.client import Client, Credentials, Token
from lakebed.settings import effective_settings

from .repository import Repository


class Lake:
    """Repositories, by name. A context manager: leaving it closes the connections.

    Threads may share it. Made by `connect` or `open_local`.
    """

    def __init__(self, client: Client, *, on_close: Callable[[], None] = lambda: None) -> None:
        self.client = client
        """For operations without a method here: the client has every operation of the server, see `Client.do`."""
        self._on_close = on_close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Lake({self.client.endpoint!r})"

    def close(self) -> None:
        """Close the connections; for a lake in this process, also its server."""
        self.client.close()
        self._on_close()

    def repository(self, name: str) -> Repository:
        """Return a repository.

        Raises:
            NotFound: the repository does not exist.
        """
        return Repository(self.client, self.client.repositories.get(name))

    def repositories(self, *, prefix: str = "") -> Iterator[Repository]:
        """Yield repositories by name, ascending."""
        for found in self.client.repositories.list(prefix=prefix):
            yield Repository(self.client, found)

    def create_repository(
        self, name: str, storage: str = "", *, default_branch: str = "main", exist_ok: bool = False
    ) -> Repository:
        """Make a repository with a first commit and a default branch.

        `storage` is the storage namespace, such as `s3://bucket/prefix`, which no other repository may use. It may be
        empty if the server keeps objects in a folder. `exist_ok`: return an existing repository of this name.

        Raises:
            AlreadyExists: the name is taken.
            Invalid: a bad name, a missing storage namespace, or one in use.
        """
        try:
            made = self.client.repositories.create(
                name, storage or self._default_storage(name), default_branch=default_branch
            )
        except AlreadyExists as error:
            if exist_ok:
                return self.repository(name)
            if "not unique" not in str(error):
                raise
            raise AlreadyExists(f"repository {name} exists already: exist_ok=True takes it", **error.facts) from error
        return Repository(self.client, made)

    def _default_storage(self, name: str) -> str:
        storage = self.client.config().storage_config
        if storage is None or storage.blockstore_type != "local":
            raise Invalid(f"say where {name} keeps its objects: storage='s3://bucket/prefix'")
        return f"local://{name}"


def connect(
    endpoint: str | None = None,
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    token: str | None = None,
    timeout_s: float = 60.0,
) -> Lake:
    """Connect to a server. Sends no request yet.

    Missing arguments come from LAKEBED_ENDPOINT, LAKEBED_ACCESS_KEY_ID and LAKEBED_SECRET_ACCESS_KEY, then from the
    file that `lakebed config set` writes. `token` is that of a login, instead of a key pair.

    Raises:
        Invalid: the endpoint is not an http or https URL, or half of the key pair is missing.
    """
    settings = effective_settings(os.environ, endpoint=endpoint)
    key = access_key_id if access_key_id is not None else settings.access_key_id
    secret = secret_access_key if secret_access_key is not None else settings.secret_access_key
    if token is not None:
        return Lake(Client(settings.endpoint, Token(token=token), timeout_s=timeout_s))
    if bool(key) != bool(secret):
        raise Invalid(f"the {'secret_access_key' if key else 'access_key_id'} is missing: a key pair has both")
    pair = Credentials(access_key_id=key, secret_access_key=secret) if key else None
    return Lake(Client(settings.endpoint, pair, timeout_s=timeout_s))
