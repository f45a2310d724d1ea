"""Tables for people, by the API: who may see and set back what, and what of it is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from lakebed.base import TABLES, path_to_key
from lakebed.catalog.tables.tables import SETTLED
from lakebed.ranges import changes_from_rows
from lakebed.server import AppState
from tests.server.http.test_permissions import Login, allow, give, login
from tests.server.iceberg.test_door import make, sales
from tests.server.operate.test_audit import lines

__all__ = ["login", "sales"]
ORDERS = {"table": "sales/orders"}


async def change(client: httpx.AsyncClient, sales: str, text: str) -> None:
    updates = [{"action": "set-properties", "updates": {"k": text}}]
    answer = await client.post(f"{sales}/orders", json={"requirements": [], "updates": updates})
    assert answer.status_code == 200, answer.text


async def test_who_may_read_a_table_sees_it_and_who_may_commit_sets_it_back(
    client: httpx.AsyncClient, login: Login, sales: str, repo: str, tmp_path: Path, state: AppState
) -> None:
    await make(client, sales)
    await make(client, sales, "other")
    await change(client, sales, "1")
    where = "arn:lakefs:fs:::repository/lake"
    ann = await login("ann")
    await give(client, "ann", allow("fs:ReadObject", resource=f"{where}/object/sales/orders.iceberg/*"))
    ben = await login("ben")
    await give(
        client,
        "ben",
        allow("fs:ReadObject", "fs:WriteObject", resource=f"{where}/object/sales/orders.iceberg/*"),
        allow("fs:CreateCommit", resource=f"{where}/branch/main"),
        allow("fs:ReadBranch", resource="*"),
    )
    url, back = f"{repo}/branches/main/tables/rollback", {"ref": "main~1"}

    seen = await ann.get(f"{repo}/refs/main/tables/stat", params=ORDERS)
    hidden = await ann.get(f"{repo}/refs/main/tables/stat", params={"table": "sales/other"})
    listed = await ann.get(f"{repo}/refs/main/tables")
    compared = await ann.get(f"{repo}/refs/main~1/diff/main/table", params=ORDERS)
    refused = await ann.post(url, params=ORDERS, json=back)
    done = await ben.post(url, params=ORDERS, json=back)
    again = await ben.post(url, params=ORDERS, json={"ref": "main"})
    both = await ben.post(url, params=ORDERS, json={"ref": "main", "snapshot_id": "1"})

    assert seen.json()["properties"] == {"k": "1"}
    assert compared.json()["properties_set"] == {"k": "1"}
    assert [one.status_code for one in (hidden, listed, refused, again, both)] == [403, 403, 403, 400, 400]
    assert done.json()["commit"]["committer"] == "ben"
    assert (await client.get(f"{repo}/refs/main/tables/stat", params=ORDERS)).json()["properties"] == {}
    [record, *_] = [one for one in lines(tmp_path) if one["operation"] == "rollBackTable" and one["status"] == 200]
    assert (record["user"], record["what"]["table"], record["what"]["branch"]) == ("ben", "sales/orders", "main")
    assert state


async def test_a_transaction_needs_the_rights_of_a_commit_at_each_of_its_tables(
    client: httpx.AsyncClient, login: Login, sales: str
) -> None:
    await make(client, sales)
    where = "arn:lakefs:fs:::repository/lake"
    commits = allow("fs:CreateCommit", resource=f"{where}/branch/main")
    updates = [{"action": "set-properties", "updates": {"k": "1"}}]
    change = {"identifier": {"namespace": ["sales"], "name": "orders"}, "requirements": [], "updates": updates}
    url = sales.replace("namespaces/sales/tables", "transactions/commit")

    for user, actions, status in (
        ("ann", ["fs:WriteObject"], 403),
        ("ben", ["fs:ReadObject"], 403),
        ("cem", ["fs:ReadObject", "fs:WriteObject"], 204),
    ):
        asked = await login(user)
        await give(client, user, commits, allow(*actions, resource=f"{where}/object/sales/orders.iceberg/*"))
        assert (await asked.post(url, json={"table-changes": [change]})).status_code == status, user


async def test_a_rename_needs_to_read_and_remove_the_one_name_and_to_write_the_other(
    client: httpx.AsyncClient, login: Login, sales: str
) -> None:
    await make(client, sales)
    where = "arn:lakefs:fs:::repository/lake"
    commits = allow("fs:CreateCommit", resource=f"{where}/branch/main")
    names = {"source": {"namespace": ["sales"], "name": "orders"}, "destination": {"namespace": ["sales"], "name": "b"}}
    url = sales.replace("namespaces/sales/tables", "tables/rename")

    for user, of_source, of_target, status in (
        ("ann", ["fs:ReadObject"], ["fs:WriteObject"], 403),
        ("ben", ["fs:DeleteObject"], ["fs:WriteObject"], 403),
        ("cem", ["fs:ReadObject", "fs:DeleteObject"], ["fs:ReadObject"], 403),
        ("dee", ["fs:ReadObject", "fs:DeleteObject"], ["fs:WriteObject"], 204),
    ):
        asked = await login(user)
        source = allow(*of_source, resource=f"{where}/object/sales/orders.iceberg/*")
        target = allow(*of_target, resource=f"{where}/object/sales/b.iceberg/*")
        await give(client, user, commits, source, target)
        answer = await asked.post(url, json=names)
        assert answer.status_code == status, (user, answer.text)


async def test_a_denial_of_the_ref_that_a_table_goes_back_to_holds(
    client: httpx.AsyncClient, login: Login, sales: str, repo: str
) -> None:
    await make(client, sales)
    await client.post(f"{repo}/branches", json={"name": "secret", "source": "main"})
    await change(client, sales, "1")
    ann = await login("ann")
    denied = allow("fs:ReadBranch", resource="arn:lakefs:fs:::repository/lake/branch/secret", effect="deny")
    await give(client, "ann", allow("fs:*"), denied)
    # The ref may be read, and the table there may not.
    ben = await login("ben")
    unread = {**allow("fs:ReadObject", effect="deny"), "condition": {"StringEquals": {"branch": ["secret"]}}}
    await give(client, "ben", allow("fs:*"), unread)

    for caller in (ann, ben):
        answer = await caller.post(f"{repo}/branches/main/tables/rollback", params=ORDERS, json={"ref": "secret"})
        assert answer.status_code == 403, answer.text


async def test_a_history_tells_what_a_merge_brought_and_goes_on_page_by_page(
    client: httpx.AsyncClient, sales: str, repo: str
) -> None:
    await make(client, sales)
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    dev = sales.replace("lake.main", "lake.dev")
    await change(client, dev, "1")
    await change(client, dev, "2")
    await client.post(f"{repo}/refs/dev/merge/main", json={})
    url, found = f"{repo}/refs/main/tables/versions", list[Any]()
    after = ""
    for _ in range(2):
        page = (await client.get(url, params={**ORDERS, "amount": 1, "after": after})).json()
        found += page["results"]
        after = page["pagination"]["next_offset"]

    assert ["Merge" in one["commit"]["message"] for one in found] == [True, False]
    assert found[1]["commit"]["message"] == "sales.orders: create"
    assert page["pagination"]["has_more"] is False


async def test_a_history_goes_on_over_metadata_that_upkeep_forgot(
    client: httpx.AsyncClient, sales: str, repo: str, state: AppState
) -> None:
    """A run deleted the file, and then its entry on the hidden branch goes."""
    await make(client, sales)
    await change(client, sales, "1")
    await change(client, sales, "2")
    versions = (await state.catalog.get("lake")).versions
    seen = (await client.get(f"{repo}/refs/main/tables/versions", params=ORDERS)).json()["results"]
    gone = path_to_key(seen[1]["metadata_location"].removeprefix("s3://lake.tables/"))
    await versions.commits.commit(TABLES, SETTLED)
    await versions.merges.apply(TABLES, changes_from_rows([gone], [None]), SETTLED)

    left = await client.get(f"{repo}/refs/main/tables/versions", params=ORDERS)

    assert left.status_code == 200, left.text
    assert [one.get("is_gone", False) for one in left.json()["results"]] == [False, True, False]


async def test_tables_are_listed_by_pages_through_all_namespaces(
    client: httpx.AsyncClient, sales: str, repo: str
) -> None:
    lake = sales.removesuffix("/sales/tables")
    for levels in (["a"], ["sales", "eu"], ["sales", "eu", "west"], ["z"]):
        assert (await client.post(lake, json={"namespace": levels})).status_code == 200
    for namespace in ("a", "sales", "sales%1Feu", "sales%1Feu%1Fwest", "z"):
        for name in ("one", "two"):
            await make(client, f"{lake}/{namespace}/tables", name)
    whole = [one["table"] for one in (await client.get(f"{repo}/refs/main/tables")).json()["results"]]
    paged: list[str] = []
    after, has_more = "", True
    while has_more:
        page = (await client.get(f"{repo}/refs/main/tables", params={"amount": 3, "after": after})).json()
        paged += [one["table"] for one in page["results"]]
        after, has_more = page["pagination"]["next_offset"], page["pagination"]["has_more"]
    inside = (await client.get(f"{repo}/refs/main/tables", params={"namespace": "sales/eu"})).json()["results"]
    wrong = await client.get(f"{repo}/refs/main/tables", params={"namespace": "sales", "after": "a/one"})

    assert whole == paged
    assert whole[:4] == ["a/one", "a/two", "sales/one", "sales/two"]
    assert len(whole) == 10
    assert [one["table"].rpartition("/")[0] for one in inside] == ["sales/eu"] * 2 + ["sales/eu/west"] * 2
    assert wrong.status_code == 400
