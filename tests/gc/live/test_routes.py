"""Collection over HTTP: the contract's words and ours, on the real application without a socket."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from lakebed.gc.messages import (
    EXPIRED,
    GARBAGE,
    End,
    Mark,
    PreparedCommits,
    RecheckInputs,
    RunList,
    RunState,
    RunView,
    StartedRun,
    UncommittedPage,
    manifest_of,
)

RULES = {"default_retention_days": 7, "branches": [{"branch_id": "main", "retention_days": 20}]}
GC = "repositories/lake/gc"


async def call(http: httpx.AsyncClient, path: str, type_: type, *, json: object = None, status: int = 200) -> object:
    content = b"" if json is None else msgspec.json.encode(json)
    response = await http.post(f"{GC}/{path}", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    return msgspec.json.decode(response.content, type=type_)


# Rules


async def test_a_repository_without_rules_answers_not_found(http: httpx.AsyncClient) -> None:
    response = await http.get("repositories/lake/settings/gc_rules")

    assert (response.status_code, response.json()) == (404, {"message": "not found"})


@pytest.mark.parametrize(("path", "method"), [("settings/gc_rules", "PUT"), ("gc/rules", "POST")])
async def test_rules_read_back_as_they_were_set(http: httpx.AsyncClient, path: str, method: str) -> None:
    written = await http.request(method, f"repositories/lake/{path}", json=RULES)

    assert written.status_code == 204
    assert (await http.get(f"repositories/lake/{path}")).json() == RULES


async def test_deleted_rules_are_not_found(http: httpx.AsyncClient) -> None:
    await http.put("repositories/lake/settings/gc_rules", json=RULES)

    assert (await http.delete("repositories/lake/settings/gc_rules")).status_code == 204
    assert (await http.get("repositories/lake/settings/gc_rules")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"default_retention_days": 7},
        {"default_retention_days": "7", "branches": []},
        {"default_retention_days": -1, "branches": []},
        {"default_retention_days": 0, "branches": []},
        {"default_retention_days": 7, "branches": [{"branch_id": "main"}]},
        {"default_retention_days": 7, "branches": [{"branch_id": "m", "retention_days": 1}] * 2},
    ],
)
async def test_rules_nobody_can_have_meant_are_refused(http: httpx.AsyncClient, body: object) -> None:
    assert (await http.put("repositories/lake/settings/gc_rules", json=body)).status_code == 400


FULL = {
    "default": "36h",
    "branches": [{"pattern": "main", "period": "6mo"}, {"pattern": "feature-*", "period": "2w"}],
    "keep_last": [{"pattern": "main", "commits": 3}],
    "tags_pin": False,
    "uncommitted_min_age": "2d",
}


async def test_full_rules_read_back_and_in_days_as_the_closest_rounded_up(http: httpx.AsyncClient) -> None:
    written = await http.put(f"{GC}/rules/full", json=FULL)

    assert (written.status_code, written.json()) == (200, {"version": 1, "counts_after": []})
    shown = (await http.get(f"{GC}/rules/full")).json()
    assert (shown["version"], shown["rules"], shown["changed_by"]) == (1, FULL, "admin")
    assert (await http.get("repositories/lake/settings/gc_rules")).json() == {
        "default_retention_days": 2,
        "branches": [
            {"branch_id": "feature-*", "retention_days": 14},
            {"branch_id": "main", "retention_days": 184},
        ],
    }


async def test_writing_days_that_were_read_leaves_the_rules_as_they_are(http: httpx.AsyncClient) -> None:
    await http.put(f"{GC}/rules/full", json=FULL)

    days = (await http.get("repositories/lake/settings/gc_rules")).json()
    assert (await http.put("repositories/lake/settings/gc_rules", json=days)).status_code == 204

    assert (await http.get(f"{GC}/rules/full")).json()["rules"] == FULL


async def test_writing_other_days_replaces_periods_and_leaves_pins(http: httpx.AsyncClient) -> None:
    await http.put(f"{GC}/rules/full", json=FULL)

    await http.put("repositories/lake/settings/gc_rules", json=RULES)

    rules = (await http.get(f"{GC}/rules/full")).json()["rules"]
    assert rules == FULL | {"default": "7d", "branches": [{"pattern": "main", "period": "20d"}]}


async def test_rules_never_set_are_of_version_0(http: httpx.AsyncClient) -> None:
    shown = (await http.get(f"{GC}/rules/full")).json()

    assert shown == {"version": 0, "rules": None, "changed_ms": 0, "changed_by": ""}


async def test_rules_that_somebody_changed_meanwhile_are_not_overwritten(http: httpx.AsyncClient) -> None:
    await http.put(f"{GC}/rules/full", json=FULL, params={"if_version": 0})

    refused = await http.put(f"{GC}/rules/full", json=FULL, params={"if_version": 0})
    not_deleted = await http.delete(f"{GC}/rules/full", params={"if_version": 7})
    deleted = await http.delete(f"{GC}/rules/full", params={"if_version": 1})

    assert (refused.status_code, not_deleted.status_code, deleted.status_code) == (412, 412, 200)
    assert "another user changed them" in refused.json()["message"]
    assert (await http.get(f"{GC}/rules/full")).json()["rules"] is None
    assert (await http.get("repositories/lake/settings/gc_rules")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"default": 7},
        {"default": "7"},
        {"default": "0d"},
        {"default": "7d", "keep_lsat": []},
        {"default": "7d", "branches": [{"pattern": "main", "period": "3m"}]},
        {"default": "7d", "branches": [{"pattern": "main", "period": "3d"}] * 2},
        {"default": "7d", "keep_last": [{"pattern": "main", "commits": 0}]},
    ],
)
async def test_full_rules_nobody_can_have_meant_are_refused(http: httpx.AsyncClient, body: object) -> None:
    assert (await http.put(f"{GC}/rules/full", json=body)).status_code == 400
    assert (await http.get(f"{GC}/rules/full")).json()["version"] == 0


async def test_history_lists_versions_and_each_can_be_read(http: httpx.AsyncClient) -> None:
    await http.put(f"{GC}/rules/full", json=FULL)
    await http.delete(f"{GC}/rules/full")
    await http.put("repositories/lake/settings/gc_rules", json=RULES)

    page = (await http.get(f"{GC}/rules/history", params={"amount": 2})).json()
    rest = (await http.get(f"{GC}/rules/history", params={"before": 2})).json()

    assert ([version["version"] for version in page["versions"]], page["has_more"]) == ([3, 2], True)
    assert ([version["rules"] for version in rest["versions"]], rest["has_more"]) == ([FULL], False)
    assert (await http.get(f"{GC}/rules/full", params={"version": 1})).json() == rest["versions"][0]
    assert (await http.get(f"{GC}/rules/full", params={"version": 4})).status_code == 404


async def test_explain_says_which_rule_wins(http: httpx.AsyncClient) -> None:
    assert (await http.get(f"{GC}/rules/explain", params={"branch": "main"})).status_code == 404
    await http.put(f"{GC}/rules/full", json=FULL)

    found = (await http.get(f"{GC}/rules/explain", params={"branch": "feature-1"})).json()
    nothing = (await http.get(f"{GC}/rules/explain")).json()

    assert (found["pattern"], found["period"], found["why"]) == (
        "feature-*",
        "2w",
        "the only pattern that matches",
    )
    assert (nothing["branch"], nothing["pattern"], nothing["period"]) == (None, None, "36h")
    assert (await http.get(f"{GC}/rules/explain", params={"branch": "a b"})).status_code == 400


async def test_who_may_set_rules_is_told_so_and_the_configuration_is_there(http: httpx.AsyncClient) -> None:
    assert (await http.get(f"{GC}/rules/set_allowed")).status_code == 204
    assert (await http.get("config/garbage-collection")).json()["grace_period"] > 0


async def test_an_unknown_repository_is_named(http: httpx.AsyncClient) -> None:
    for path in ("settings/gc_rules", "gc/rules", "gc/rules/full", "gc/rules/history", "gc/runs", "gc/runs/x"):
        response = await http.get(f"repositories/none/{path}")
        assert (response.status_code, response.json()) == (404, {"message": "repository not found"})


# Runs


async def test_a_run_of_uncommitted_data_goes_from_marking_to_ended(http: httpx.AsyncClient) -> None:
    await http.post("repositories/lake/branches/main/objects", params={"path": "a"}, content=b"x")

    started = await call(http, "runs", StartedRun, json={"kind": "uncommitted"}, status=201)
    assert isinstance(started, StartedRun)
    assert len(started.closed_slices) == 1
    page = await call(http, f"runs/{started.run_id}/uncommitted", UncommittedPage)
    assert isinstance(page, UncommittedPage)
    assert page.manifest is not None
    assert page.manifest.rows == 1
    prepared = await call(http, f"runs/{started.run_id}/commits", PreparedCommits)
    assert isinstance(prepared, PreparedCommits)
    assert (prepared.commits.rows, prepared.refs.rows, prepared.rules) == (1, 1, None)
    plan = manifest_of(GARBAGE, "x/", [])
    await call(http, f"runs/{started.run_id}/marked", RunView, json=Mark(plan=plan))
    assert (await http.post(f"{GC}/runs/{started.run_id}/ended")).status_code == 400
    ended = await call(http, f"runs/{started.run_id}/ended", RunView, json=End(plan=plan.digest()))
    assert isinstance(ended, RunView)
    assert ended.state is RunState.ENDED

    runs = msgspec.json.decode((await http.get(f"{GC}/runs")).content, type=RunList)
    assert runs.runs == (ended,)
    assert msgspec.json.decode((await http.get(f"{GC}/runs/{started.run_id}")).content, type=RunView) == ended


async def test_a_step_of_an_abandoned_run_is_a_conflict(http: httpx.AsyncClient) -> None:
    started = await call(http, "runs", StartedRun, json={"kind": "uncommitted"}, status=201)
    assert isinstance(started, StartedRun)
    await call(http, f"runs/{started.run_id}/abandoned", RunView)

    response = await http.post(f"{GC}/runs/{started.run_id}/uncommitted")

    assert (response.status_code, response.json()) == (409, {"message": f"run {started.run_id} is abandoned"})


async def test_expiring_without_rules_is_refused(http: httpx.AsyncClient) -> None:
    started = await call(http, "runs", StartedRun, json={"kind": "committed"}, status=201)
    assert isinstance(started, StartedRun)
    body = {"commits": manifest_of(GARBAGE, "x/", []), "rules_version": 0}

    response = await http.post(f"{GC}/runs/{started.run_id}/expire", content=msgspec.json.encode(body))

    assert response.status_code == 404
    assert "no retention rules" in response.json()["message"]


async def test_a_recheck_of_nothing_is_answered_whole(http: httpx.AsyncClient) -> None:
    await http.put("repositories/lake/settings/gc_rules", json=RULES)
    started = await call(http, "runs", StartedRun, json={"kind": "committed"}, status=201)
    assert isinstance(started, StartedRun)
    folder = f"{started.folder}expired/"
    body = {"commits": manifest_of(EXPIRED, folder, []), "rules_version": 1}
    answer = await call(http, f"runs/{started.run_id}/expire", RecheckInputs, json=body)

    assert isinstance(answer, RecheckInputs)
    assert answer.commits is not None
    assert (answer.commits.rows, answer.expiring) == (1, 0)


@pytest.mark.parametrize("run_id", ["..", "UPPER", "a%2Fb"])
async def test_a_name_that_is_no_run_id_is_refused(http: httpx.AsyncClient, run_id: str) -> None:
    response = await http.post(f"{GC}/runs/{run_id}/commits")

    assert response.status_code in {400, 404}


async def test_an_unknown_run_is_not_found(http: httpx.AsyncClient) -> None:
    assert (await http.get(f"{GC}/runs/none")).status_code == 404


# The contract's operations


async def test_the_contracts_preparations_answer_with_locations_in_the_namespace(http: httpx.AsyncClient) -> None:
    commits = await http.post(f"{GC}/prepare_commits")
    uncommitted = await http.post(f"{GC}/prepare_uncommited", json={})

    assert (commits.status_code, uncommitted.status_code) == (201, 201)
    run = commits.json()["run_id"]
    assert commits.json()["gc_commits_location"] == f"local://lake/_lakefs/retention/gc/committed/{run}/commits/"
    run = uncommitted.json()["run_id"]
    location = f"local://lake/_lakefs/retention/gc/uncommitted/{run}/uncommitted/"
    assert uncommitted.json() == {"run_id": run, "gc_uncommitted_location": location}


async def test_the_contracts_preparation_leaves_no_run_marking(http: httpx.AsyncClient) -> None:
    run = (await http.post(f"{GC}/prepare_uncommited", json={})).json()["run_id"]

    assert (await http.get(f"{GC}/runs/{run}")).json()["state"] == "abandoned"


@pytest.mark.parametrize("token", ["x", "x:y", ":"])
async def test_a_continuation_that_is_none_is_refused(http: httpx.AsyncClient, token: str) -> None:
    response = await http.post(f"{GC}/prepare_uncommited", json={"continuation_token": token})

    assert response.status_code in {400, 404}


# Restoring


async def test_what_no_run_holds_is_not_found_and_the_message_says_so(http: httpx.AsyncClient) -> None:
    response = await http.post(f"{GC}/restore", json={"run_id": "04gq"})

    message = "run 04gq holds no object, and no ledger says that it deleted one"
    assert (response.status_code, response.json()) == (404, {"message": message})


async def test_a_protected_branch_is_not_restored_to(http: httpx.AsyncClient) -> None:
    await http.put("repositories/lake/settings/branch_protection", json=[{"pattern": "ma*"}])

    response = await http.post(f"{GC}/restore", json={"run_id": "04gq"})

    assert response.status_code == 403


@pytest.mark.parametrize("body", [{"run_id": 1}, {"run_id": "../x"}, {"continuation_token": "x"}])
async def test_a_restore_that_nobody_can_have_meant_is_refused(http: httpx.AsyncClient, body: object) -> None:
    assert (await http.post(f"{GC}/restore", json=body)).status_code == 400


async def test_runs_without_a_record_are_listed_on_request(http: httpx.AsyncClient) -> None:
    """What they took: tests/gc/runs/test_recording.py."""
    started = await call(http, "runs", StartedRun, json={"kind": "uncommitted"}, status=201)
    assert isinstance(started, StartedRun)

    answer = await http.get(f"{GC}/runs?forgotten=true")

    found = msgspec.json.decode(answer.content, type=RunList)
    assert [view.run_id for view in found.runs] == [started.run_id]
