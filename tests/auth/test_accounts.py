"""Set-up, users, credentials."""

from __future__ import annotations

import re

import pytest

from lakebed.auth import (
    Accounts,
    AlreadyInitialised,
    CredentialsNotFound,
    InvalidUser,
    ServerKeys,
    UserExists,
    UserNotFound,
)
from lakebed.base import OutcomeUnknown, Ports
from lakebed.kv import Predicate, Store, open_store


async def test_set_up_makes_the_first_user_with_credentials_of_the_form_that_clients_check(accounts: Accounts) -> None:
    issued = await accounts.set_up("esti")

    assert re.fullmatch(r"AKIAJ[A-Z0-9]{14}Q", issued.access_key_id)
    assert re.fullmatch(r"[A-Za-z0-9+/]{40}", issued.secret_access_key)
    assert (await accounts.get_user("esti")).id == "esti"
    assert await accounts.installation() is not None


async def test_set_up_takes_the_key_pair_it_is_given(accounts: Accounts) -> None:
    issued = await accounts.set_up(
        "esti", access_key_id="AKIAJAAAAAAAAAAAAAAQ", secret_access_key="a secret key of 26 letters"
    )

    assert issued.access_key_id == "AKIAJAAAAAAAAAAAAAAQ"
    assert await accounts.find_credentials("AKIAJAAAAAAAAAAAAAAQ") is not None


async def test_set_up_refuses_a_secret_that_can_be_guessed(accounts: Accounts) -> None:
    with pytest.raises(InvalidUser, match="at least 16 characters"):
        await accounts.set_up("esti", access_key_id="AKIAJAAAAAAAAAAAAAAQ", secret_access_key="x" * 15)


async def test_set_up_is_done_once(accounts: Accounts) -> None:
    await accounts.set_up("esti")

    with pytest.raises(AlreadyInitialised):
        await accounts.set_up("mallory")
    with pytest.raises(UserNotFound):
        await accounts.get_user("mallory")


@pytest.mark.parametrize("key", ["AKIA", "akiajaaaaaaaaaaaaaaq", "AKIAJAAAAAAAAAAAAAAQ\n", "AKIAJAAAAAAAAAAAAAAX"])
async def test_set_up_refuses_access_keys_of_another_form(accounts: Accounts, key: str) -> None:
    with pytest.raises(InvalidUser):
        await accounts.set_up("esti", access_key_id=key, secret_access_key="a secret key of 26 letters")

    assert await accounts.installation() is None


class _DyingStore:
    """A store that stops answering after so many writes."""

    def __init__(self, store: Store, writes: int) -> None:
        self._store = store
        self._left = writes

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _spend(self) -> None:
        if self._left == 0:
            raise OutcomeUnknown("crash")
        self._left -= 1

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._spend()
        await self._store.set(partition, key, value)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        self._spend()
        return await self._store.set_if(partition, key, value, predicate)


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
async def test_a_crash_in_the_middle_of_set_up_lets_the_operator_repeat_it(
    ports: Ports, keys: ServerKeys, writes: int
) -> None:
    store = open_store("mem://")
    dying: Store = _DyingStore(store, writes)  # type: ignore[assignment]  # the rest of the port is passed through
    with pytest.raises(OutcomeUnknown):
        await Accounts(dying, ports, keys).set_up("esti")

    accounts = Accounts(store, ports, keys)
    issued = await accounts.set_up("esti")

    assert (await accounts.get_credentials("esti", issued.access_key_id)).user_id == "esti"


async def test_secrets_are_not_stored_in_clear(accounts: Accounts, store: Store) -> None:
    issued = await accounts.set_up("esti")

    page = await store.scan(b"auth", b"", 100)

    assert not any(issued.secret_access_key.encode() in value for value in page.values)


async def test_users_are_listed_by_id_in_pages(accounts: Accounts) -> None:
    for user in ("carol", "alice", "bob"):
        await accounts.create_user(user)

    first, has_more = await accounts.list_users(prefix="", after="", limit=2)
    second, has_still_more = await accounts.list_users(prefix="", after=first[-1].id, limit=2)

    assert [user.id for user in first + second] == ["alice", "bob", "carol"]
    assert (has_more, has_still_more) == (True, False)


async def test_a_user_id_is_taken_once(accounts: Accounts) -> None:
    await accounts.create_user("alice")

    with pytest.raises(UserExists):
        await accounts.create_user("alice")


@pytest.mark.parametrize("user", ["", "a/b", "a\x00", "x" * 129])
async def test_a_user_id_that_cannot_be_a_key_is_refused(accounts: Accounts, user: str) -> None:
    with pytest.raises(InvalidUser):
        await accounts.create_user(user)


async def test_deleting_a_user_deletes_its_credentials(accounts: Accounts) -> None:
    await accounts.create_user("alice")
    issued = await accounts.create_credentials("alice")

    await accounts.delete_user("alice")

    assert await accounts.find_credentials(issued.access_key_id) is None
    with pytest.raises(UserNotFound):
        await accounts.delete_user("alice")


async def test_credentials_belong_to_one_user(accounts: Accounts) -> None:
    await accounts.create_user("alice")
    await accounts.create_user("bob")
    issued = await accounts.create_credentials("alice")

    with pytest.raises(CredentialsNotFound):
        await accounts.get_credentials("bob", issued.access_key_id)
    with pytest.raises(CredentialsNotFound):
        await accounts.delete_credentials("bob", issued.access_key_id)
    found, has_more = await accounts.list_credentials("alice", prefix="", after="", limit=10)
    assert [record.access_key_id for record in found] == [issued.access_key_id]
    assert not has_more
