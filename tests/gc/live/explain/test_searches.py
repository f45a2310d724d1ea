"""Searches of `why` in pages, as a server answers them."""

from __future__ import annotations

import asyncio

import pytest

from lakebed.base import Unavailable
from lakebed.gc.live import BadContinuation, Searches
from lakebed.gc.messages import Question, WhyAnswer, WhyPage
from lakebed.ranges import RangeCorrupt
from tests.gc.conftest import Lake

MINUTE_S = 60


async def history(lake: Lake, commits: int = 5) -> str:
    """An object that each of these commits names."""
    address = await lake.put("main", "kept")
    for number in range(commits):
        await lake.put("main", "changing", str(number))
        await lake.commit("main")
    return address


def one_by_one(lake: Lake) -> Searches:
    return Searches(lake.versions.ports, files_a_page=1)


async def to_the_end(lake: Lake, searches: Searches, question: Question, page: WhyPage) -> tuple[WhyAnswer, int]:
    """The answer, and how many pages it took from this one on."""
    pages = 1
    while page.answer is None:
        page = await searches.page(lake.versions, question, page.continuation_token, default_branch="main")
        pages += 1
    return page.answer, pages


async def test_pages_lead_to_the_answer_and_tell_how_far_they_are(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)

    page = await searches.page(lake.versions, question, default_branch="main")
    told = []
    while page.progress is not None:
        told.append((page.progress.stage, page.progress.done, page.progress.of))
        page = await searches.page(lake.versions, question, page.continuation_token, default_branch="main")
    answer = page.answer

    # Records are read before it is known how many trees there are.
    assert told[0] == ("commits", 0, 0)
    assert (("commits", 5, 5) in told, len(told) > 5) == (True, True)
    assert answer == await lake.service.why.ask(address=question.address)


async def test_a_page_may_be_shorter_than_a_second(lake: Lake) -> None:
    question = Question(ref="main", path="kept")
    await history(lake)
    searches = Searches(lake.versions.ports)

    page = await searches.page(lake.versions, question, files=1, default_branch="main")
    answer = (await searches.page(lake.versions, question, page.continuation_token, default_branch="main")).answer

    assert (page.answer, page.continuation_token is None) == (None, False)
    assert answer == await lake.service.why.ask(ref="main", path="kept")


async def test_what_is_small_is_answered_at_once(lake: Lake) -> None:
    question = Question(ref="main", path="kept")
    await history(lake)

    page = await Searches(lake.versions.ports).page(lake.versions, question, default_branch="main")

    assert (page.continuation_token, page.progress) == (None, None)
    assert page.answer == await lake.service.why.ask(ref="main", path="kept")


async def test_a_search_that_is_not_known_here_begins_again_under_its_token(lake: Lake) -> None:
    """Another process of the server was asked first, or this one started anew."""
    question = Question(address=await history(lake))
    page = await one_by_one(lake).page(lake.versions, question, default_branch="main")

    answer, pages = await to_the_end(lake, one_by_one(lake), question, page)

    assert pages > 5
    assert answer == await lake.service.why.ask(address=question.address)


async def test_a_token_does_not_lead_to_the_answer_of_another_question(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)
    page = await searches.page(lake.versions, question, default_branch="main")
    other = Question(ref="main", path="changing")

    answer, _ = await to_the_end(lake, searches, other, page)

    assert answer == await lake.service.why.ask(ref="main", path="changing")


@pytest.mark.parametrize("token", ["", "../x", "ü", "a" * 65, "a b"])
async def test_what_cannot_be_a_token_is_refused(lake: Lake, token: str) -> None:
    with pytest.raises(BadContinuation):
        await one_by_one(lake).page(lake.versions, Question(address="data/x"), token, default_branch="main")


async def test_an_answer_can_be_asked_for_again_while_it_is_remembered(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)
    first = await searches.page(lake.versions, question, default_branch="main")
    token = first.continuation_token
    answer, _ = await to_the_end(lake, searches, question, first)

    again = await searches.page(lake.versions, question, token, default_branch="main")

    assert again.answer == answer


async def test_what_is_committed_while_a_search_goes_on_is_found(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)
    page = await searches.page(lake.versions, question, default_branch="main")
    await lake.put("main", "late")
    late = await lake.commit("main")

    answer, _ = await to_the_end(lake, searches, question, page)

    assert answer.objects[0].commits[0].commit == late.id
    assert answer.objects[0].commits_count == 6


async def test_a_page_that_is_asked_for_twice_at_once_goes_on_once(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)
    page = await searches.page(lake.versions, question, default_branch="main")
    token = page.continuation_token

    pages = await asyncio.gather(
        *[searches.page(lake.versions, question, token, default_branch="main") for _ in range(2)]
    )

    assert all(one.continuation_token == token for one in pages)
    assert (await to_the_end(lake, searches, question, pages[0]))[0].objects_count == 1


async def test_searches_that_nobody_asks_for_make_room(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)
    for _ in range(16):
        await searches.page(lake.versions, question, default_branch="main")

    with pytest.raises(Unavailable, match="searches are at work here; ask again in a minute"):
        await searches.page(lake.versions, question, default_branch="main")
    await lake.clock.sleep(MINUTE_S)

    assert (await searches.page(lake.versions, question, default_branch="main")).continuation_token


async def test_searches_that_have_their_answer_make_room(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = Searches(lake.versions.ports)

    answers = [(await searches.page(lake.versions, question, default_branch="main")).answer for _ in range(20)]

    assert None not in answers


async def test_a_search_that_fails_is_forgotten(lake: Lake) -> None:
    question = Question(address=await history(lake))
    searches = one_by_one(lake)
    token = (await searches.page(lake.versions, question, default_branch="main")).continuation_token
    ranges = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    contents = {key: await lake.objectstore.get(key) for key in ranges}
    await lake.deleter.delete(ranges)

    with pytest.raises(RangeCorrupt):
        await to_the_end(lake, searches, question, WhyPage(continuation_token=token))
    for key, data in contents.items():
        await lake.objectstore.put(key, data)

    page = await searches.page(lake.versions, question, token, default_branch="main")
    assert (await to_the_end(lake, searches, question, page))[0].objects[0].commits_count == 5
