"""A double of Consul's HTTP API for its key-value store, written from its documents, since no server is to be had.

`python -m tests.kv.consul_double PORT FILE` serves on 127.0.0.1. It has what the driver uses: listings of names,
transactions with their limits, and the settings of the agent. As Consul does, it keeps the modification index of a key
where a write changes nothing, and fails a whole transaction where a key that it reads is absent.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from tests.kv.doubles import Answer, Request, Service, serve

REQUEST_BYTES_MAX = 512 << 10
OPERATIONS_MAX = 64


class Failed(Exception):
    """One operation of a transaction fails."""


class Consul(Service):
    """`token`: every request must have it. `is_dev`: say that all is kept in memory."""

    def __init__(self, file: str, *, token: str = "", is_dev: bool = False) -> None:
        super().__init__(file)
        self.token = token
        self.is_dev = is_dev
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB, flags TEXT, made INT, modified INT)"
        )
        self.database.execute("CREATE TABLE IF NOT EXISTS raft (number INT)")
        self.database.execute("INSERT INTO raft SELECT 10 WHERE NOT EXISTS (SELECT * FROM raft)")

    def answer(self, request: Request) -> Answer:
        if self.token and request.headers.get("x-consul-token") != self.token:
            return Answer(403, b"Permission denied: token with AccessorID 'anonymous' lacks permission")
        if (request.method, request.path) == ("GET", "/v1/agent/self"):
            return Answer(200, json.dumps({"DebugConfig": {"DevMode": self.is_dev, "Revision": "x"}}).encode())
        if request.method == "GET" and request.path.startswith("/v1/kv/") and "keys" in request.asked:
            return self._list(request.path.removeprefix("/v1/kv/"), request.asked.get("separator", ""))
        if (request.method, request.path) == ("PUT", "/v1/txn"):
            return self._transact(request.body)
        return Answer(405, b"method not allowed")

    def _list(self, prefix: str, separator: str) -> Answer:
        rows = self.database.execute(
            "SELECT key FROM kv WHERE key >= ? AND key < ? ORDER BY key", (prefix, prefix + "\U0010ffff")
        )
        found: dict[str, None] = {}
        for (key,) in rows:
            head, cut, _ = key[len(prefix) :].partition(separator) if separator else (key[len(prefix) :], "", "")
            found[prefix + head + cut] = None
        return Answer(200, json.dumps(list(found)).encode()) if found else Answer(404)

    def _transact(self, body: bytes) -> Answer:
        if len(body) > REQUEST_BYTES_MAX:
            return Answer(413, b"Request body too large, max size: 524288 bytes.")
        operations = json.loads(body)
        if len(operations) > OPERATIONS_MAX:
            return Answer(413, b"Transaction contains too many operations")
        results: list[Any] = []
        errors: list[Any] = []
        [(before,)] = self.database.execute("SELECT number FROM raft")
        self.database.execute("BEGIN IMMEDIATE")
        self.database.execute("UPDATE raft SET number = number + 1")
        for position, operation in enumerate(operations):
            try:
                found = self._carry_out(operation["KV"], before + 1)
            except Failed as failure:
                errors.append({"OpIndex": position, "What": str(failure)})
            else:
                results += [] if found is None else [{"KV": found}]
        self.database.execute("ROLLBACK" if errors else "COMMIT")
        answer = {"Results": None if errors else results, "Errors": errors or None}
        return Answer(409 if errors else 200, json.dumps(answer).encode())

    def _carry_out(self, asked: dict[str, Any], index: int) -> dict[str, Any] | None:
        key = asked["Key"]
        row = self.database.execute("SELECT value, flags, made, modified FROM kv WHERE key = ?", (key,)).fetchone()
        match asked["Verb"]:
            case "get" if row is None:
                raise Failed(f'key "{key}" doesn\'t exist')
            case "get":
                return self._pair(key, base64.b64encode(row[0]).decode() or None)
            case "check-index" if row is None:
                raise Failed(f'failed to check index, key "{key}" doesn\'t exist')
            case "check-index" if row[3] != asked["Index"]:
                raise Failed(f'failed index check for key "{key}", current modify index {row[3]} != {asked["Index"]}')
            case "check-index":
                return self._pair(key, None)
            case "delete":
                self.database.execute("DELETE FROM kv WHERE key = ?", (key,))
                return None
            case "cas" if (row[3] if row else 0) != asked["Index"]:
                raise Failed(f'failed to set key "{key}", index is stale')
            case "cas" | "set":
                value, flags = base64.b64decode(asked["Value"]), str(asked["Flags"])
                if row is None or (row[0], row[1]) != (value, flags):
                    values = (key, value, flags, row[2] if row else index, index)
                    self.database.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?, ?, ?)", values)
                return self._pair(key, None)
        raise Failed(f'unknown KV verb "{asked["Verb"]}"')

    def _pair(self, key: str, value: str | None) -> dict[str, Any]:
        [(flags, made, modified)] = self.database.execute("SELECT flags, made, modified FROM kv WHERE key = ?", (key,))
        return {
            "LockIndex": 0,
            "Key": key,
            "Flags": int(flags),
            "Value": value,
            "CreateIndex": made,
            "ModifyIndex": modified,
        }


if __name__ == "__main__":
    serve(Consul(sys.argv[2]), int(sys.argv[1]))
