"""Who sent a request: what is believed, and what is not."""

from __future__ import annotations

import base64

import jwt
import pytest

from lakebed.auth import TOKEN_LIFETIME_S, Accounts, Authenticator, AuthFormat, NotAuthenticated, ServerKeys
from lakebed.base import Ports
from lakebed.kv import Store


def basic(access_key_id: str, secret_access_key: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{access_key_id}:{secret_access_key}".encode())


async def test_basic_with_the_right_secret_is_its_user(accounts: Accounts, authenticator: Authenticator) -> None:
    issued = await accounts.set_up("esti")

    identity = await authenticator.authenticate(basic(issued.access_key_id, issued.secret_access_key), None)

    assert identity.user_id == "esti"


async def test_basic_with_a_wrong_secret_is_nobody(accounts: Accounts, authenticator: Authenticator) -> None:
    issued = await accounts.set_up("esti")

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(basic(issued.access_key_id, issued.secret_access_key[:-1]), None)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Basic",
        b"Basic !!!",
        b"Basic " + base64.b64encode(b"no colon"),
        b"Basic " + base64.b64encode(b"\xff\xfe:x"),
        b"Basic " + base64.b64encode(b"AKIAJAAAAAAAAAAAAAAQ:x"),
        b"Bearer not.a.token",
        b"Digest x",
        b"\xff",
    ],
)
async def test_what_proves_nothing_is_nobody(accounts: Accounts, authenticator: Authenticator, header: bytes) -> None:
    await accounts.set_up("esti")

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(header, None)


async def test_no_proof_is_nobody(authenticator: Authenticator) -> None:
    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(None, None)


async def test_a_login_token_is_its_user_as_bearer_and_as_cookie(
    accounts: Accounts, authenticator: Authenticator
) -> None:
    issued = await accounts.set_up("esti")

    token, _ = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)

    assert (await authenticator.authenticate(b"Bearer " + token.encode(), None)).user_id == "esti"
    assert (await authenticator.authenticate(None, token.encode())).user_id == "esti"


async def test_a_token_ends(accounts: Accounts, authenticator: Authenticator, ports: Ports) -> None:
    issued = await accounts.set_up("esti")
    token, expires_s = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)
    assert expires_s == ports.clock.now_ms() // 1000 + TOKEN_LIFETIME_S

    await ports.clock.sleep(TOKEN_LIFETIME_S)

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(b"Bearer " + token.encode(), None)


async def test_tokens_of_another_key_or_without_signature_are_nobody(
    accounts: Accounts, authenticator: Authenticator, ports: Ports
) -> None:
    await accounts.set_up("esti")
    user = await accounts.get_user("esti")
    claims = {"sub": "esti", "uid": user.uid, "exp": ports.clock.now_ms() // 1000 + 60, "aud": "login"}

    for token in (
        jwt.encode(claims, b"another key, as long as it must be", algorithm="HS256"),
        jwt.encode(claims, "", algorithm="none"),
    ):
        with pytest.raises(NotAuthenticated):
            await authenticator.authenticate(b"Bearer " + token.encode(), None)


async def test_a_token_outlives_neither_its_user_nor_a_user_made_again_under_its_id(
    accounts: Accounts, authenticator: Authenticator
) -> None:
    await accounts.create_user("alice")
    issued = await accounts.create_credentials("alice")
    token, _ = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)
    await accounts.delete_user("alice")
    await accounts.create_user("alice")

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(b"Bearer " + token.encode(), None)


async def test_deleted_credentials_end_at_once_here_and_in_seconds_elsewhere(
    accounts: Accounts, keys: ServerKeys, ports: Ports, authenticator: Authenticator
) -> None:
    await accounts.set_up("esti")
    issued = await accounts.create_credentials("esti")
    header = basic(issued.access_key_id, issued.secret_access_key)
    elsewhere = Authenticator(accounts, keys, ports)
    await authenticator.authenticate(header, None)
    await elsewhere.authenticate(header, None)

    await accounts.delete_credentials("esti", issued.access_key_id)
    authenticator.forget_all()

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(header, None)
    await ports.clock.sleep(5)
    with pytest.raises(NotAuthenticated):
        await elsewhere.authenticate(header, None)


async def test_another_server_secret_says_so_instead_of_refusing_everybody(
    accounts: Accounts, store: Store, ports: Ports
) -> None:
    issued = await accounts.set_up("esti")
    other = ServerKeys(b"another server secret")
    elsewhere = Authenticator(Accounts(store, ports, other), other, ports)

    with pytest.raises(AuthFormat, match=issued.access_key_id):
        await elsewhere.authenticate(basic(issued.access_key_id, issued.secret_access_key), None)
