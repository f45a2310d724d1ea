"""Links that log in: once, within a minute, from the machine that asked for them."""

from __future__ import annotations

import asyncio

import pytest

from lakebed.auth import Accounts, Authenticator, Identity, NotAuthenticated, Principals, TicketRefused, Tickets
from lakebed.auth.records import PARTITION, TICKETS, TicketRecord, decode
from lakebed.auth.tickets import TICKET_S, TICKET_SESSION_S
from lakebed.base import Invalid, Ports
from lakebed.kv import Store
from tests.clocks import TurnableClock

HERE = "this machine"


@pytest.fixture
def tickets(store: Store, ports: Ports, accounts: Accounts) -> Tickets:
    return Tickets(store, ports, accounts)


async def caller_of(accounts: Accounts) -> Identity:
    issued = await accounts.set_up("esti")
    return Identity(user_id="esti", access_key_id=issued.access_key_id)


async def test_a_ticket_logs_its_user_in_once(
    accounts: Accounts, authenticator: Authenticator, tickets: Tickets, store: Store
) -> None:
    made = await tickets.issue_for(await caller_of(accounts), sender=HERE)

    token, _, lifetime_s = await tickets.redeem(authenticator, "esti", made.secret, sender=HERE)

    assert (await authenticator.authenticate(None, token.encode())).user_id == "esti"
    assert lifetime_s == TICKET_SESSION_S
    with pytest.raises(TicketRefused, match="used before"):
        await tickets.redeem(authenticator, "esti", made.secret, sender=HERE)
    held = await store.get(PARTITION, TICKETS + b"esti")
    assert held is not None
    assert made.secret.encode() not in held.value
    assert decode(TicketRecord, held.value).access_key_id == ""


async def test_of_two_browsers_at_once_one_gets_in(
    accounts: Accounts, authenticator: Authenticator, tickets: Tickets
) -> None:
    made = await tickets.issue_for(await caller_of(accounts), sender=HERE)

    found = await asyncio.gather(
        *(tickets.redeem(authenticator, "esti", made.secret, sender=HERE) for _ in range(5)), return_exceptions=True
    )

    assert sorted(type(each).__name__ for each in found) == ["TicketRefused"] * 4 + ["tuple"]
    assert len(await accounts.list_sessions("esti")) == 1


async def test_a_ticket_is_refused_late_elsewhere_replaced_or_wrong_and_stays_good_where_it_belongs(
    accounts: Accounts, authenticator: Authenticator, tickets: Tickets, ports: Ports
) -> None:
    caller = await caller_of(accounts)
    first = await tickets.issue_for(caller, sender=HERE)
    made = await tickets.issue_for(caller, sender=HERE)
    for user, secret, sender, words in (
        ("esti", first.secret, HERE, "newer link"),
        ("esti", made.secret + "x", HERE, "no such link"),
        ("esti", "", HERE, "no such link"),
        ("esti", "\udc80", HERE, "no such link"),
        ("mallory", made.secret, HERE, "no such link"),
        ("a/b", made.secret, HERE, "no such link"),
        ("", made.secret, HERE, "no such link"),
        ("esti", made.secret, "10.0.0.7", "only on the machine"),
        ("esti", made.secret, "", "only on the machine"),
    ):
        with pytest.raises(TicketRefused, match=words):
            await tickets.redeem(authenticator, user, secret, sender=sender)
    assert isinstance(ports.clock, TurnableClock)
    ports.clock.ms += 1000 * TICKET_S

    with pytest.raises(TicketRefused, match="older than"):
        await tickets.redeem(authenticator, "esti", made.secret, sender=HERE)
    assert await accounts.list_sessions("esti") == []


async def test_the_session_of_a_ticket_ends_with_the_key_pair_or_login_that_it_continues(
    accounts: Accounts, authenticator: Authenticator, tickets: Tickets, principals: Principals, ports: Ports
) -> None:
    caller = await caller_of(accounts)
    made = await tickets.issue_for(caller, sender=HERE)
    of_pair, _, _ = await tickets.redeem(authenticator, "esti", made.secret, sender=HERE)
    await principals.attach("esti", "https://idp.example#7", [])
    token, ends_s = await authenticator.log_in_as("https://idp.example#7", lifetime_s=600)
    login = await authenticator.authenticate(None, token.encode())
    assert isinstance(ports.clock, TurnableClock)
    ports.clock.ms += 30_000
    made = await tickets.issue_for(login, sender=HERE)
    of_login, expires_s, lifetime_s = await tickets.redeem(authenticator, "esti", made.secret, sender=HERE)

    await accounts.delete_credentials("esti", caller.access_key_id)
    await principals.detach("esti", "https://idp.example#7")
    authenticator.forget_all()

    assert (expires_s, lifetime_s) == (ends_s, 570)
    for token in (of_pair, of_login):
        with pytest.raises(NotAuthenticated):
            await authenticator.authenticate(None, token.encode())


async def test_nothing_to_continue_and_deleted_users_make_no_session(
    accounts: Accounts, authenticator: Authenticator, tickets: Tickets
) -> None:
    caller = await caller_of(accounts)
    with pytest.raises(Invalid, match="a link that logs in needs a key pair or a login to continue"):
        await tickets.issue_for(Identity(user_id="esti"), sender=HERE)
    with pytest.raises(Invalid, match="a link that logs in needs a key pair or a login to continue"):
        await tickets.issue_for(Identity(user_id="esti", session="none"), sender=HERE)
    made = await tickets.issue_for(caller, sender=HERE)
    await accounts.delete_user("esti")
    await accounts.create_user("esti")

    with pytest.raises(TicketRefused):
        await tickets.redeem(authenticator, "esti", made.secret, sender=HERE)
