"""A double of Cosmos DB's HTTP API, written from its documents, since no emulator of it is to be had here.

`python -m tests.kv.cosmos_double PORT FILE` serves on 127.0.0.1. It has what the driver uses: the account, databases,
containers, transactional batches, reads of an item, and the driver's three queries, in pages. It looks at no key.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from lakebed.kv.drivers import cosmos as driver
from tests.kv.doubles import Answer, Request, Service, serve

PAGE = 300
BATCH_MAX = 100
BATCH_BYTES_MAX = 2 << 20
ID_MAX = 1023
PARTITION_KEY_MAX = 2048
OWNER_NOT_FOUND = "1003"


class Cosmos(Service):
    """`level`, `many_regions`: settings of the account. `container`: further properties of the containers it shows."""

    def __init__(
        self, file: str, *, level: str = "Strong", many_regions: bool = False, container: dict[str, Any] | None = None
    ) -> None:
        super().__init__(file)
        self.account = {
            "_self": "",
            "id": "double",
            "_rid": "double",
            "media": "//media/",
            "addresses": "//addresses/",
            "_dbs": "//dbs/",
            "writableLocations": [],
            "readableLocations": [],
            "enableMultipleWriteLocations": many_regions,
            "userConsistencyPolicy": {"defaultConsistencyLevel": level},
        }
        self.container = container or {}
        self.database.execute("CREATE TABLE IF NOT EXISTS things (path TEXT PRIMARY KEY, body TEXT)")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS items (container TEXT, p TEXT, id TEXT, body TEXT,"
            " PRIMARY KEY (container, p, id)) WITHOUT ROWID"
        )

    def answer(self, request: Request) -> Answer:
        path = request.path.strip("/")
        if request.headers.get("x-ms-consistency-level", "Strong") != "Strong":
            return Answer(400, b'{"code": "BadRequest", "message": "the driver asks for strong consistency"}')
        match request.method, path.split("/"):
            case "GET", [""]:
                return _json(self.account)
            case "POST", ["dbs"] | ["dbs", _, "colls"]:
                return self._make(path, json.loads(request.body))
            case "GET", ["dbs", _] | ["dbs", _, "colls", _]:
                return self._show(path)
            case "GET", ["dbs", _, "colls", _, "pkranges"]:
                if "if-none-match" in request.headers:
                    return Answer(304, headers={"etag": '"1"'})
                ranges = [{"id": "0", "minInclusive": "", "maxExclusive": "FF", "_rid": "r", "_etag": '"1"'}]
                return _json({"PartitionKeyRanges": ranges, "_count": 1}, etag='"1"')
            case "POST", ["dbs", _, "colls", _, "docs"] if "x-ms-cosmos-is-batch-request" in request.headers:
                return self._batch(path, request)
            case "POST", ["dbs", _, "colls", _, "docs"]:
                return self._query(path, request)
            case "GET", ["dbs", _, "colls", _, "docs", name]:
                return self._read(path.rpartition("/")[0], _partition(request) or "", name)
        return Answer(405)

    def _make(self, path: str, body: dict[str, Any]) -> Answer:
        made = f"{path}/{body['id']}"
        thing = {**body, "_rid": os.urandom(4).hex(), "_self": made, "_etag": '"1"'}
        row = (made, json.dumps(thing))
        if not self.database.execute("INSERT OR IGNORE INTO things VALUES (?, ?)", row).rowcount:
            return _json({"code": "Conflict", "message": made}, 409)
        return _json(thing, 201)

    def _show(self, path: str) -> Answer:
        row = self.database.execute("SELECT body FROM things WHERE path = ?", (path,)).fetchone()
        if row is None:
            return _json({"code": "NotFound", "message": path}, 404)
        return _json(json.loads(row[0]) | (self.container if "/colls/" in path else {}))

    def _read(self, container: str, partition: str, name: str) -> Answer:
        if self._show(container.removesuffix("/docs")).status != 200:
            return _json({"code": "NotFound"}, 404, **{"x-ms-substatus": OWNER_NOT_FOUND})
        found = self._find(container, partition, name)
        return _json({"code": "NotFound"}, 404) if found is None else _json(found, etag=found["_etag"])

    def _find(self, container: str, partition: str, name: str) -> dict[str, Any] | None:
        where = (container, partition, name)
        row = self.database.execute("SELECT body FROM items WHERE (container, p, id) = (?, ?, ?)", where).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def _batch(self, container: str, request: Request) -> Answer:
        operations = json.loads(request.body)
        partition = _partition(request)
        if len(operations) > BATCH_MAX or partition is None or len(partition) > PARTITION_KEY_MAX:
            return _json({"code": "BadRequest", "message": "too many operations, or a bad partition key"}, 400)
        if len(request.body) > BATCH_BYTES_MAX:
            return _json({"code": "RequestEntityTooLarge"}, 413)
        results: list[dict[str, Any]] = []
        self.database.execute("BEGIN IMMEDIATE")
        for operation in operations:
            status, item = self._carry_out(container, partition, operation)
            results.append({"statusCode": status, "requestCharge": 1.0})
            if item is not None:
                results[-1] |= {"eTag": item["_etag"], "resourceBody": item}
            if status >= 400:
                break
        failed = results[-1]["statusCode"] >= 400
        self.database.execute("ROLLBACK" if failed else "COMMIT")
        if failed:
            results = [{"statusCode": 424, "requestCharge": 0.0} for _ in results[:-1]] + results[-1:]
            results += [{"statusCode": 424, "requestCharge": 0.0} for _ in operations[len(results) :]]
        return _json(results, 207 if failed else 200)

    def _carry_out(
        self, container: str, partition: str, operation: dict[str, Any]
    ) -> tuple[int, dict[str, Any] | None]:
        body = operation.get("resourceBody") or {}
        name = operation.get("id") or body["id"]
        if not 0 < len(name) <= ID_MAX or re.search(r"[/\\?#]", name) or (body and body["p"] != partition):
            return 400, None
        found = self._find(container, partition, name)
        kind = operation["operationType"]
        if kind == "Create" and found is not None:
            return 409, None
        if kind in {"Replace", "Delete"} and found is None:
            return 404, None
        if "ifMatch" in operation and found is not None and operation["ifMatch"] != found["_etag"]:
            return 412, None
        if kind == "Delete":
            where = (container, partition, name)
            self.database.execute("DELETE FROM items WHERE (container, p, id) = (?, ?, ?)", where)
            return 204, None
        item = {**body, "_etag": f'"{os.urandom(8).hex()}"', "_rid": "r", "_ts": 1}
        row = (container, partition, name, json.dumps(item))
        self.database.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", row)
        return 200 if found else 201, item

    def _query(self, container: str, request: Request) -> Answer:
        """Answer one of the driver's queries, by pages of fewer items than it asks for."""
        asked, partition = json.loads(request.body), _partition(request)
        values = {each["name"]: each["value"] for each in asked.get("parameters") or []}
        rows = self.database.execute(
            "SELECT body FROM items WHERE container = ? AND (p = ? OR ?)", (container, partition, partition is None)
        )
        items = [json.loads(body) for (body,) in rows]
        match asked["query"]:
            case driver.SCAN:
                chosen = sorted((item for item in items if item["k"] >= values["@start"]), key=lambda item: item["k"])
            case driver.SELECT:
                chosen = [item for item in items if item["id"] in values["@ids"]]
            case driver.PARTITIONS if request.headers.get("x-ms-documentdb-query-enablecrosspartition"):
                chosen = items
            case _:
                return _json({"code": "BadRequest", "message": asked["query"]}, 400)
        columns = re.findall(r"c\.(\w+)", asked["query"].partition(" FROM ")[0])
        # Goes on behind an item, as Cosmos does, not at a number: others come and go meanwhile.
        chosen = sorted(chosen, key=lambda item: (item.get("k", ""), item["p"]))
        if behind := request.headers.get("x-ms-continuation"):
            chosen = [item for item in chosen if [item.get("k", ""), item["p"]] > json.loads(behind)]
        last = min(PAGE, int(request.headers.get("x-ms-max-item-count") or PAGE))
        found = [{column: item.get(column) for column in columns} for item in chosen[:last]]
        end = [chosen[last - 1].get("k", ""), chosen[last - 1]["p"]] if last < len(chosen) else None
        headers = {"x-ms-continuation": json.dumps(end)} if end else {}
        return _json({"_rid": "r", "Documents": found, "_count": len(found)}, 200, **headers)


def _partition(request: Request) -> str | None:
    key = request.headers.get("x-ms-documentdb-partitionkey")
    return None if key is None else str(json.loads(key)[0])


def _json(value: object, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"content-type": "application/json", **headers})


if __name__ == "__main__":
    serve(Cosmos(sys.argv[2]), int(sys.argv[1]))
