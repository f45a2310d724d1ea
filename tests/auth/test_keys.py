"""The server secret and what is derived from it."""

from __future__ import annotations

import pytest

from lakebed.auth import AuthFormat, ServerKeys, load_server_keys
from lakebed.base import Invalid, Ports
from lakebed.kv import Store


async def test_the_secret_is_made_once_and_found_again(store: Store, ports: Ports) -> None:
    first = await load_server_keys(store, ports.ids)
    second = await load_server_keys(store, ports.ids)

    assert first.token_key == second.token_key


async def test_a_secret_that_is_handed_in_is_stored_nowhere(store: Store, ports: Ports) -> None:
    await load_server_keys(store, ports.ids, b"sixteen bytes or more")

    assert (await store.scan(b"auth", b"", 10)).keys == []


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(Invalid):
        ServerKeys(b"short")


def test_a_sealed_secret_opens_for_its_access_key_alone() -> None:
    keys = ServerKeys(b"a secret for tests only")
    sealed = keys.seal("secret", access_key_id="A", nonce=bytes(12))

    assert keys.unseal(sealed, access_key_id="A") == "secret"
    with pytest.raises(AuthFormat):
        keys.unseal(sealed, access_key_id="B")
    with pytest.raises(AuthFormat):
        keys.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), access_key_id="A")
    with pytest.raises(AuthFormat):
        keys.unseal(b"", access_key_id="A")
