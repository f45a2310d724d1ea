"""Lifecycle policies: versions, who set them, lost answers, and what is refused; also over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lakebed.base import OutcomeUnknown, RunId, RunState
from lakebed.gc.live import PolicyBook, PolicyNotFound, PotentialCommits, RulesMoved
from lakebed.gc.live.publish import potential
from lakebed.gc.live.records.settings import POLICY_KEY
from lakebed.gc.mark.inputs.listing import run_file
from lakebed.gc.messages import RunKind, run_folder
from lakebed.gc.rules.lifecycle import InvalidPolicy
from lakebed.kv import Predicate
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.versions import RunRecord
from tests.gc.conftest import Lake

LOGS = b'{ "logs": {"prefix": "logs/", "days": 10, "branch_days": {"main": 5}} }'
LATER = b'{"logs": {"prefix": "logs/", "days": 20}}'
BAD = b'{"logs": {"prefix": "logs/", "days": -1}}'
POLICY = "repositories/lake/lifecycle/policy"


async def test_a_policy_reads_back_as_it_was_written(lake: Lake) -> None:
    book = PolicyBook(lake.versions)

    written, _ = await book.write(LOGS, by="ann")

    assert written == await book.read()
    assert (written.version, written.policy, written.changed_by) == (1, LOGS, "ann")
    assert written.changed_ms == lake.clock.ms
    version, policy = await book.in_force()
    assert (version, policy.rules[0].branches) == (1, (("main", "5d"),))


async def test_every_version_of_a_policy_can_be_read(lake: Lake) -> None:
    book = PolicyBook(lake.versions)
    await book.write(LOGS, by="ann")
    await book.write(None, by="bob")
    await book.write(LATER, by="ann")

    found, has_more = await book.history()

    assert [(one.version, one.policy, one.changed_by) for one in found] == [
        (3, LATER, "ann"),
        (2, None, "bob"),
        (1, LOGS, "ann"),
    ]
    assert not has_more
    assert (await book.version(1)).policy == LOGS


async def test_a_bad_policy_changes_nothing(lake: Lake) -> None:
    book = PolicyBook(lake.versions)
    await book.write(LOGS)

    with pytest.raises(InvalidPolicy, match=r"logs\.days"):
        await book.write(BAD)

    assert (await book.read()).policy == LOGS
    assert (await book.read()).version == 1


async def test_a_period_for_a_branch_that_is_not_there_is_refused(lake: Lake) -> None:
    unknown = LOGS.replace(b'"main"', b'"mian"')

    with pytest.raises(InvalidPolicy, match="there is no branch mian"):
        await PolicyBook(lake.versions).write(unknown)


async def test_a_policy_that_another_user_changed_is_not_overwritten(lake: Lake) -> None:
    book = PolicyBook(lake.versions)
    await book.write(LOGS)

    with pytest.raises(RulesMoved):
        await book.write(LATER, expected=0)

    assert (await book.read()).policy == LOGS


async def test_a_repository_without_a_policy_says_so(lake: Lake) -> None:
    book = PolicyBook(lake.versions)
    with pytest.raises(PolicyNotFound):
        await book.in_force()

    await book.write(LOGS)
    await book.write(None)

    with pytest.raises(PolicyNotFound):
        await book.in_force()


class LosesOneAnswer(MemoryStore):
    lost = False

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        written = await super().set_if(partition, key, value, predicate)
        if key == POLICY_KEY and not self.lost:
            self.lost = True
            raise OutcomeUnknown("the answer was lost")
        return written


async def test_a_lost_answer_makes_no_second_version() -> None:
    store = LosesOneAnswer()
    book = PolicyBook(Lake(store, MemoryObjectStore("mem://ns")).versions)

    await book.write(LATER, by="ann")

    assert store.lost
    assert (await book.read()).version == 1


# Over HTTP


def body_of(policy: bytes) -> dict[str, Any]:
    return {"content": b'{"policy": ' + policy + b"}", "headers": {"content-type": "application/json"}}


async def test_a_policy_set_over_http_reads_back_with_its_history(http: httpx.AsyncClient) -> None:
    assert (await http.get(POLICY)).json() == {"version": 0, "policy": None, "changed_ms": 0, "changed_by": ""}

    written = await http.put(POLICY, **body_of(LOGS))
    await http.put(f"{POLICY}?if_version=1", **body_of(LATER))

    assert written.json() == {"version": 1, "warnings": []}
    shown = (await http.get(POLICY)).json()
    assert (shown["version"], shown["policy"], shown["changed_by"]) == (2, json.loads(LATER), "admin")
    assert (await http.get(f"{POLICY}?version=1")).json()["policy"] == json.loads(LOGS)
    versions = (await http.get(f"{POLICY}/history")).json()["versions"]
    assert [one["version"] for one in versions] == [2, 1]
    assert (await http.delete(f"{POLICY}?if_version=1")).status_code == 412
    assert (await http.delete(POLICY)).json()["version"] == 3


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (BAD, "logs.days: -1 is not a whole number of days"),
        (b'{"a": {"prefix": "x", "days": 1}, "b": {"prefix": "x/y", "days": 1}}', "b.prefix: 'x/y' overlaps with 'x'"),
        (b'{"a": {"prefix": "x", "days": 1, "branch_days": {"gone": 1}}}', "there is no branch gone"),
        (b'{"a": {"prefix": "x", "day": 1}}', "a.day: unknown field"),
        (b'{"a": {"prefix": "x/../y", "days": 1}}', "a.prefix: paths have no .."),
        (b'{"a": {"prefix": "x", "days": 1}, "a": {"prefix": "y", "days": 1}}', "'a' is given twice"),
        (json.dumps({f"r{number}": {} for number in range(10_000)}).encode(), "bytes, at most 100,000"),
        (json.dumps({"a": {"prefix": "x" * 1_000_000, "days": 1}}).encode(), "bytes, at most 100,000"),
        (b"null", "a policy is a JSON object"),
    ],
)
async def test_a_bad_policy_is_refused_over_http_and_changes_nothing(
    http: httpx.AsyncClient, policy: bytes, words: str
) -> None:
    refused = await http.put(POLICY, **body_of(policy))
    checked = await http.post(f"{POLICY}/validate", **body_of(policy))

    assert refused.status_code == 400
    assert words in refused.json()["message"]
    assert checked.status_code == 200
    assert not checked.json()["is_valid"]
    assert words in "\n".join(f"{one['place']}: {one['message']}" for one in checked.json()["problems"])
    assert (await http.get(POLICY)).json()["version"] == 0


async def test_potential_commits_are_found_once_and_read_by_the_page(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(potential, "PAGE_COMMITS", 2)
    at = "repositories/lake/lifecycle/potential"
    await http.put(POLICY, **body_of(b'{"logs": {"prefix": "logs/", "branch_days": {"main": 5}}}'))
    ids = [await made_on(http, "main") for _ in range(3)]
    await http.post("repositories/lake/branches", json={"name": "dev", "source": ids[1]})
    await made_on(http, "dev")

    begun = (await http.post(at)).json()
    pages = [(await http.get(f"{at}/{begun['run_id']}?page={page}")).json() for page in range(begun["pages"])]

    found = {id_: page["sets"][str(number)] for page in pages for id_, number in page["commits"]}
    # What `dev` reaches no rule covers, so only the newest commit of `main` can have anything to give.
    assert found == {ids[2]: ["main"]}
    assert (await http.get(f"{at}/{begun['run_id']}?page=9")).status_code == 404
    assert (await http.get(f"{at}/none?page=0")).status_code == 404


async def test_each_potential_commit_is_on_one_page_with_its_branches(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(potential, "PAGE_COMMITS", 2)
    at = "repositories/lake/lifecycle/potential"
    await http.put(POLICY, **body_of(LOGS))
    ids = [await made_on(http, "main") for _ in range(3)]
    await http.post("repositories/lake/branches", json={"name": "dev", "source": ids[1]})
    ids.append(await made_on(http, "dev"))

    begun = (await http.post(at)).json()
    pages = [(await http.get(f"{at}/{begun['run_id']}?page={page}")).json() for page in range(begun["pages"])]

    found = [(id_, page["sets"][str(number)]) for page in pages for id_, number in page["commits"]]
    both, main, dev = ["dev", "main"], ["main"], ["dev"]
    assert [len(page["commits"]) for page in pages] == [2, 2, 1]
    assert begun["commits"] == len(found) == 5
    assert {id_: sets for id_, sets in found if id_ in ids} == dict(zip(ids, (both, both, main, dev), strict=True))


async def test_a_collection_of_metadata_knows_the_folder_of_potential_commits_for_that_of_a_run(lake: Lake) -> None:
    """So it takes the folder once it is old, though no record names the run."""
    await PolicyBook(lake.versions).write(LOGS, by="ann")

    begun = await PotentialCommits(lake.versions).find()

    folder = run_folder(RunKind.LIFECYCLE, RunId(begun.run_id))
    keys = [stat.key async for page in lake.versions.objectstore.list(folder) for stat in page]
    assert keys
    assert {run_file(key) for key in keys} == {("lifecycle", begun.run_id)}


@pytest.mark.parametrize("state", [RunState.ENDED, RunState.SWEEPING])
async def test_what_a_run_took_is_no_longer_potential_once_that_run_has_ended(lake: Lake, state: RunState) -> None:
    await PolicyBook(lake.versions).write(LOGS, by="ann")
    await lake.put("main", "old")
    old = await lake.commit("main")
    lake.days(30)
    record = RunRecord(
        kind=RunKind.LIFECYCLE,
        state=state,
        started_ms=lake.clock.ms,
        planned_ms=lake.clock.ms,
        rules_version="1",
        swept=True,
    )
    await lake.versions.retired.write_run(RunId("earlier"), record, None)
    await lake.put("main", "new")
    new = await lake.commit("main")

    begun = await PotentialCommits(lake.versions).find()

    found = {id_ for id_, _ in (await PotentialCommits(lake.versions).page(begun.run_id, 0)).commits}
    assert new.id in found
    assert (old.id in found) is (state is not RunState.ENDED)


async def made_on(http: httpx.AsyncClient, branch: str) -> str:
    body = {"message": "m", "allow_empty": True}
    id_: str = (await http.post(f"repositories/lake/branches/{branch}/commits", json=body)).json()["id"]
    return id_


async def test_potential_commits_need_a_policy(http: httpx.AsyncClient) -> None:
    assert (await http.post("repositories/lake/lifecycle/potential")).status_code == 404


async def test_a_valid_policy_is_said_to_be_valid_with_its_warnings(http: httpx.AsyncClient) -> None:
    checked = (await http.post(f"{POLICY}/validate", **body_of(b'{"a": {"prefix": "x", "days": 1}}'))).json()

    assert checked["is_valid"]
    assert [(one["rule"], one["place"], one["is_warning"]) for one in checked["problems"]] == [("a", "a.prefix", True)]
