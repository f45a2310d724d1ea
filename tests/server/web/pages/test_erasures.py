"""Erasures in the browser: what a plan of one says, its certificate, and what the server says to a certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from lakebed.gc.messages import (
    Certificate,
    ErasedObject,
    ErasureOrder,
    InBranch,
    Outlook,
    RunKind,
    Standing,
    certificate_path,
    encode_certificate,
)
from lakebed.gc.rules import Selection
from lakebed.server import App, AppState
from tests.server.rest.gc.test_plans import write as write
from tests.server.web.browsing import Browser
from tests.server.web.test_hostile import HOSTILE, check

ERASURES = "/repositories/lake/erasures"


@pytest.fixture
async def browser(app: App, client: httpx.AsyncClient, repo: str) -> AsyncIterator[Browser]:
    browser = Browser(app)
    pair = (await client.post("/auth/users/esti/credentials")).json()
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        yield browser


@pytest.fixture
def certify(state: AppState) -> Any:
    """Writes a certificate of run r1, which no server signed, as whoever writes to the namespace can."""

    async def certify(text: str, objects: int) -> Certificate:
        store = (await state.catalog.get("lake")).objectstore
        erased = ErasedObject(address=text, paths=(text,), size_bytes=1, checksum=text, is_absent=True)
        made = Certificate(
            repository="lake",
            namespace=store.uri,
            run_id="r1",
            selection=Selection(paths=(text,), metadata={text: text}),
            why=text,
            takes_shared=True,
            planned_ms=1,
            plan=text,
            ledger={},
            objects=(erased,) * objects,
            stands=(Standing(what=text, where=text, why=text),),
            remains=(text,),
        )
        await store.put(certificate_path("r1"), encode_certificate(made))
        return made

    return certify


@pytest.mark.parametrize("text", [*HOSTILE, "zq" * 5000], ids=range(len(HOSTILE) + 1))
async def test_no_name_of_an_erasure_becomes_html(browser: Browser, write: Any, certify: Any, text: str) -> None:
    order = ErasureOrder(selection=Selection(paths=(text,), globs=(text,), digests=(text,)), why=text)
    standing = Standing(what=text, where=text, why=text)
    outlook = Outlook(
        stands=(standing,),
        stands_count=1,
        unmatched=(text,),
        remains=(text,),
        by_branch=(InBranch(branch=text, objects=1, size_bytes=1),),
    )
    await write("r1", ["x"], RunKind.ERASURE, erasure=order, outlook=outlook)
    await certify(text, 60)

    for address, query in (
        (ERASURES, {"after": ""}),
        (f"{ERASURES}/r1", {}),
        (f"{ERASURES}/r1", {"prefix": text, "after": text}),
        (f"{ERASURES}/r1/certificate", {}),
        (f"{ERASURES}/r1/certificate", {"after": text}),
    ):
        check(await browser.get(address, **query), text)
    token = await browser.token()
    fields = {"token": token, "paths": text, "digests": text, "metadata": text, "why": text, "typed": text}
    for address in (ERASURES, f"{ERASURES}/r1"):
        check(await browser.post(address, fields), text)


async def test_a_plan_says_what_goes_and_what_would_stand_and_asks_for_its_number(browser: Browser, write: Any) -> None:
    order = ErasureOrder(selection=Selection(paths=("users/ann",)), why="request 12")
    standing = Standing(what="object", where="data/1/2", why="legal hold case-1 keeps it")
    outlook = Outlook(stands=(standing,), stands_count=2, unmatched=("users/nan",))
    await write("r1", ["x/1", "x/2"], RunKind.ERASURE, erasure=order, outlook=outlook)
    await write("c1", ["x/1"])

    every = await browser.get(ERASURES)
    plan = await browser.get(f"{ERASURES}/r1")
    wrong = await browser.fill(plan, "/r1", typed="1")
    other = await browser.get(f"{ERASURES}/c1")
    general = await browser.get("/repositories/lake/collections/r1")

    assert "request 12" in every.text
    assert "collections/c1" not in every.text
    for words in ("request 12", "users/ann", "legal hold case-1 keeps it", "Nothing was found at", "x/1", "2 objects"):
        assert words in plan.text
    assert (wrong.status_code, "type 2 to confirm" in wrong.text) == (400, True)
    assert (other.status_code, "is not an erasure" in other.text) == (404, True)
    assert "This run is an erasure" in general.text


async def test_a_form_without_a_selection_or_a_reason_keeps_what_was_entered(browser: Browser) -> None:
    page = await browser.get(ERASURES)
    for fields, words in (
        ({"why": "request 12"}, "nothing is selected"),
        ({"paths": "users/ann", "why": " "}, "needs a reason"),
        ({"metadata": "pii", "why": "x"}, "is not KEY=VALUE"),
        ({"paths": "a\n" * 40_000, "why": "x"}, "`lakebed erase plan`"),
    ):
        refused = await browser.fill(page, "erasures", **fields)
        assert (refused.status_code, words in refused.text) == (400, True), refused.text[:3000]
        assert (fields.get("paths") or fields["why"].strip())[:9] in refused.text


async def test_a_certificate_that_the_server_did_not_sign_is_doubted(
    browser: Browser, client: httpx.AsyncClient, write: Any, certify: Any
) -> None:
    order = ErasureOrder(selection=Selection(paths=("a",)), why="a")
    await write("r1", ["x"], RunKind.ERASURE, erasure=order)
    missing = await browser.get(f"{ERASURES}/r1/certificate")
    made = await certify("a", 51)
    shown = await browser.get(f"{ERASURES}/r1/certificate")
    rest = await browser.get(f"{ERASURES}/r1/certificate", after="50")
    file = await client.get("/repositories/lake/gc/runs/r1/certificate")
    await certify("a" * 1000, 2_000)
    large = await browser.get(f"{ERASURES}/r1/certificate")

    assert (missing.status_code, "has no certificate" in missing.text) == (404, True)
    assert "Do not trust this file" in shown.text
    assert "BEGIN PUBLIC KEY" in shown.text
    assert (shown.text.count("<td>yes"), rest.text.count("<td>yes")) == (50, 1)
    assert (file.content, file.headers["content-type"]) == (encode_certificate(made), "application/json")
    assert 'api/v1/repositories/lake/gc/runs/r1/certificate" download="certificate-r1.json"' in shown.text
    assert (large.status_code, "too large to show" in large.text) == (200, True)
