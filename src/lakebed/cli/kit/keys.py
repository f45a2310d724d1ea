"""Show a key pair: facts for a person, or lines for a shell, the same in each command that shows one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Protocol

from lakebed.settings import VARIABLES

from .output import fields
from .parameters import Option
from .session import Session

ExportOption = Annotated[
    bool,
    Option("--export", help='Only lines for a shell, which set the key pair: eval "$(... --export)".'),
]


class KeyPair(Protocol):
    """A record with a key pair."""

    @property
    def access_key_id(self) -> str: ...
    @property
    def secret_access_key(self) -> str: ...


def show_key(session: Session, pair: KeyPair, before: Sequence[tuple[str, str]] = (), *, export: bool = False) -> None:
    """Answer with a key pair, behind facts about it. With `export` only the lines that set it in a shell."""
    facts = [*before, ("Access key id", pair.access_key_id), ("Secret access key", pair.secret_access_key)]
    session.show(pair, lambda pair: exports(session, pair) if export else fields(facts))


def exports(session: Session, pair: KeyPair, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the lines that set a key pair for `lakebed` and for programs that speak S3; then `more` variables."""
    endpoint, key, secret = session.settings.endpoint, pair.access_key_id, pair.secret_access_key
    variables = {
        VARIABLES["endpoint"]: endpoint,
        VARIABLES["access_key_id"]: key,
        VARIABLES["secret_access_key"]: secret,
        "AWS_ENDPOINT_URL": endpoint.rstrip("/").removesuffix("/api/v1"),
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        **(more or {}),
    }
    for name, value in variables.items():
        yield f"export {name}={shlex.quote(value)}"
