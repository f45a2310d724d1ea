"""Who sent a request: what is believed, and what is not."""

from __future__ import annotations

import base64

import jwt
import pytest

from lakebed.auth import (
    TOKEN_LIFETIME_S,
    Accounts,
    Authenticator,
    AuthFormat,
    Groups,
    NotAuthenticated,
    Principals,
    ServerKeys,
    SessionNotFound,
)
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


async def test_a_key_of_a_scope_is_made_once_and_only_a_right_one_is_kept(
    accounts: Accounts, authenticator: Authenticator
) -> None:
    issued = await accounts.set_up("esti")
    made: list[str] = []

    def make_key(secret: str) -> bytes:
        made.append(secret)
        return b"key of " + secret.encode()

    async def ask(scope: str, *, right: bool = True) -> None:
        found = await authenticator.check_signature(
            issued.access_key_id, lambda key: right and bool(key), make_key=make_key, scope=scope
        )
        assert found[1] == b"key of " + issued.secret_access_key.encode()

    with pytest.raises(NotAuthenticated):
        await ask("20261123/eu/s3", right=False)
    assert len(made) == 1

    for _ in range(2):
        await ask("20261123/eu/s3")
    assert len(made) == 2

    authenticator.forget_all()
    await ask("20261123/eu/s3")
    assert len(made) == 3

    for _ in range(2):
        await ask("")
    assert len(made) == 5, "a key without a scope is not kept"


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


@pytest.mark.parametrize("later_s", [5, -3600], ids=["later", "clock set back"])
async def test_deleted_credentials_end_at_once_here_and_in_seconds_elsewhere(
    accounts: Accounts,
    keys: ServerKeys,
    ports: Ports,
    authenticator: Authenticator,
    principals: Principals,
    later_s: int,
) -> None:
    await accounts.set_up("esti")
    issued = await accounts.create_credentials("esti")
    header = basic(issued.access_key_id, issued.secret_access_key)
    elsewhere = Authenticator(accounts, keys, ports, principals)
    await authenticator.authenticate(header, None)
    await elsewhere.authenticate(header, None)

    await accounts.delete_credentials("esti", issued.access_key_id)
    authenticator.forget_all()

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(header, None)
    await ports.clock.sleep(later_s)
    with pytest.raises(NotAuthenticated):
        await elsewhere.authenticate(header, None)


async def test_another_server_secret_says_so_instead_of_refusing_everybody(
    accounts: Accounts, store: Store, ports: Ports, principals: Principals
) -> None:
    issued = await accounts.set_up("esti")
    other = ServerKeys(b"another server secret")
    elsewhere = Authenticator(Accounts(store, ports, other), other, ports, principals)

    with pytest.raises(AuthFormat, match=issued.access_key_id):
        await elsewhere.authenticate(basic(issued.access_key_id, issued.secret_access_key), None)


async def test_a_login_ends_with_its_key_pair(
    accounts: Accounts, keys: ServerKeys, ports: Ports, authenticator: Authenticator, principals: Principals
) -> None:
    await accounts.set_up("esti")
    issued = await accounts.create_credentials("esti")
    token, _ = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)
    elsewhere = Authenticator(accounts, keys, ports, principals)
    await elsewhere.authenticate(None, token.encode())

    await accounts.delete_credentials("esti", issued.access_key_id)
    authenticator.forget_all()

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(None, token.encode())
    await ports.clock.sleep(5)
    with pytest.raises(NotAuthenticated):
        await elsewhere.authenticate(None, token.encode())
    assert await accounts.list_sessions("esti") == []


async def test_a_token_whose_key_pair_went_without_its_sessions_opens_nothing(
    accounts: Accounts, authenticator: Authenticator, store: Store
) -> None:
    issued = await accounts.set_up("esti")
    token, _ = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)

    await store.delete(b"auth", b"credentials/" + issued.access_key_id.encode())  # as a crash in between leaves it

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(b"Bearer " + token.encode(), None)


async def test_a_logout_ends_one_session_and_no_other(accounts: Accounts, authenticator: Authenticator) -> None:
    issued = await accounts.set_up("esti")
    ended, _ = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)
    other, _ = await authenticator.log_in(issued.access_key_id, issued.secret_access_key)

    await authenticator.log_out(await authenticator.authenticate(None, ended.encode()))

    with pytest.raises(NotAuthenticated):
        await authenticator.authenticate(None, ended.encode())
    assert (await authenticator.authenticate(None, other.encode())).user_id == "esti"


async def test_sessions_are_listed_until_they_end(
    accounts: Accounts, authenticator: Authenticator, ports: Ports
) -> None:
    issued = await accounts.set_up("esti")
    await authenticator.log_in(issued.access_key_id, issued.secret_access_key)
    await ports.clock.sleep(10)
    await authenticator.log_in(issued.access_key_id, issued.secret_access_key)

    sessions = await accounts.list_sessions("esti")
    await accounts.end_session("esti", sessions[0].id)

    assert [session.access_key_id for session in sessions] == [issued.access_key_id] * 2
    assert await accounts.list_sessions("esti") == sessions[1:]
    await ports.clock.sleep(TOKEN_LIFETIME_S)
    assert await accounts.list_sessions("esti") == []
    with pytest.raises(SessionNotFound):
        await accounts.end_session("esti", sessions[0].id)


async def test_the_oldest_sessions_of_a_user_end_where_there_are_too_many(
    accounts: Accounts, authenticator: Authenticator, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.auth.accounts.SESSIONS_MAX", 3)
    issued = await accounts.set_up("esti")
    tokens = []
    for _ in range(5):
        tokens.append((await authenticator.log_in(issued.access_key_id, issued.secret_access_key))[0].encode())
        await ports.clock.sleep(1)

    assert len(await accounts.list_sessions("esti")) == 3
    for ended in tokens[:2]:
        with pytest.raises(NotAuthenticated):
            await authenticator.authenticate(None, ended)
    assert [(await authenticator.authenticate(None, token)).user_id for token in tokens[2:]] == ["esti"] * 3


async def test_wrong_secrets_are_answered_more_and_more_slowly_and_a_right_one_at_once(
    accounts: Accounts, authenticator: Authenticator, ports: Ports
) -> None:
    issued = await accounts.set_up("esti")
    waited_ms: list[int] = []
    for _ in range(14):
        began_ms = ports.clock.now_ms()
        with pytest.raises(NotAuthenticated):
            await authenticator.check_key_pair(issued.access_key_id, "wrong")
        waited_ms.append(ports.clock.now_ms() - began_ms)

    began_ms = ports.clock.now_ms()
    await authenticator.check_key_pair(issued.access_key_id, issued.secret_access_key)

    assert waited_ms == [0] * 5 + [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]
    assert ports.clock.now_ms() == began_ms
    with pytest.raises(NotAuthenticated) as caught:
        await authenticator.check_key_pair(issued.access_key_id, "wrong")
    assert caught.value.facts["failures"] == 1


async def test_an_unknown_key_is_answered_as_slowly_as_a_wrong_secret(
    accounts: Accounts, authenticator: Authenticator, ports: Ports
) -> None:
    issued = await accounts.set_up("esti")

    async def waited_ms(access_key_id: str) -> list[int]:
        found: list[int] = []
        for _ in range(7):
            began_ms = ports.clock.now_ms()
            with pytest.raises(NotAuthenticated):
                await authenticator.check_key_pair(access_key_id, "wrong")
            found.append(ports.clock.now_ms() - began_ms)
        return found

    assert await waited_ms("AKIAMADEUP") == await waited_ms(issued.access_key_id) == [0] * 5 + [100, 200]


async def test_recovery_makes_an_administrator_with_a_fresh_key_pair(
    accounts: Accounts, authenticator: Authenticator, store: Store, ports: Ports
) -> None:
    await accounts.set_up("esti")
    groups = Groups(store, ports, accounts)

    issued = await accounts.recover("rescue")
    again = await accounts.recover("rescue")

    assert (await authenticator.check_key_pair(issued.access_key_id, issued.secret_access_key)).user_id == "rescue"
    assert again.access_key_id != issued.access_key_id
    members, _ = await groups.list_members("Admins", prefix="", after="", limit=10)
    assert [user.id for user in members] == ["esti", "rescue"]


async def test_recovery_of_an_installation_without_set_up_sets_it_up(accounts: Accounts) -> None:
    await accounts.recover("esti")

    assert await accounts.installation() is not None
