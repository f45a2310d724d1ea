"""Clients of a storm: each with paths and branches of its own, over HTTP and the S3 gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from bench.http import Answer, objects_url
from tests.outside.servers import Client, NoAnswer, NotSent

from .journal import CALLS, Journal
from .model import ABSENT, DUE, MAIN, PART, Model, Place, body_of, value_of

REPOSITORY: Final = "storm"
ROOT: Final = f"/repositories/{REPOSITORY}"
PAUSE_S: Final = 0.05
IN_PARTS: Final = " in parts"
"""Ends a value that was uploaded so: its tag is another digest."""
DOWN_S: Final = 0.5
"""After an answer that says that something is down, a client waits for so long."""
ON: Final = {"is_on": True, "is_paused": False, "grace_s": 1}
SKEWED: Final = b"RequestTimeTooSkewed"
OUTAGES: Final = frozenset({500, 502, 503, 504, 507})
OUTCOMES_UNKNOWN: Final = (
    b"may yet be found done",
    b"answer was lost",
    b"may not outlast",
    b"were done:",
    b"may be stored or not",
    b"known to be done",
    b"may have taken this write",
    b"may have been first",
    b"took its place, or a commit came first",
    b"the database is damaged",  # So SQLite calls pages that the disk does not give. Its whole file is read at the end.
    b"<Code>InternalError</Code>",
)
"""What a server says with status 500 where it does not know what its database or object store did. S3 has one code for
this and for an error that was not foreseen: the servers' logs have the latter, and the judge reads them."""
BUSY: Final = frozenset({409, 412, 423, 429})


class Caller:
    """Sends requests to any server, counts the answers, and says which of them are wrong."""

    def __init__(self, clients: Sequence[Client], servers: int, chance: random.Random, calls: dict[str, int]) -> None:
        self._clients = clients
        self._servers = servers
        self._chance = chance
        self._calls = calls
        self.wrong: list[str] = []

    async def call(
        self,
        f: str,
        method: str,
        target: str,
        body: object,
        expected: set[int],
        *,
        headers: dict[str, str] | None = None,
        is_beside: bool = False,
        is_s3: bool = False,
    ) -> Answer | None:
        """Return an answer of an expected status. None: it may have happened or not."""
        client = self._clients[is_beside]
        while True:
            try:
                number = self._chance.randrange(self._servers)
                if is_s3:
                    assert isinstance(body, bytes)
                    answer = await client.send_signed(number, method, target, body)
                else:
                    answer = await client.send(number, method, target, body, headers)
            except NotSent:
                await asyncio.sleep(PAUSE_S)
                continue
            except NoAnswer:
                self._count(f"{f} ?")
                return None
            break
        self._count(f"{f} {answer.status}")
        if answer.status in expected:
            return answer
        if answer.status == 403 and SKEWED in answer.body:
            return None  # its clock has jumped
        if answer.status in OUTAGES:
            await asyncio.sleep(DOWN_S)
        is_foreseen = answer.status != 500 or any(text in answer.body for text in OUTCOMES_UNKNOWN)
        if not is_foreseen or answer.status not in expected | OUTAGES | BUSY:
            self.wrong.append(f"{f} {method} {target}: {answer.status} {answer.body[:300]!r}")
        return None

    def _count(self, name: str) -> None:
        self._calls[name] = self._calls.get(name, 0) + 1


class StormClient:
    """One client. `model` knows what its places may hold; the journal has each of its calls."""

    def __init__(
        self, number: int, seed: int, caller: Caller, journal: Journal, *, scheme: str, is_quiet: Callable[[], bool]
    ) -> None:
        self.number = number
        self.model = Model(number)
        self.caller = caller
        self._chance = random.Random(f"{seed}/client/{number}")
        self._journal = journal
        self._names = [f"{number}/{folder}/{name}" for folder in "xy" for name in range(3)]
        self._due = [f"{DUE}{number}/{name}" for name in range(2)]
        self._made = 0
        self._call_number = number * 1_000_000
        self._scheme = scheme
        self._is_quiet = is_quiet

    async def begin(self) -> None:
        """Make the branch that only merges change, and the first own branch."""
        body, is_made = {"name": self.model.into, "source": "base"}, False
        while not is_made:
            answer = await self.caller.call("make branch", "POST", f"{ROOT}/branches", body, {201, 409})
            is_made = answer is not None
        await self._begin_own()

    async def _begin_own(self) -> None:
        before = self.model.own
        while self.model.own == before:
            self._made += 1
            name = f"own-{self.number}-{self._made}"
            begun, body = {"f": "make branch", "branch": name}, {"name": name, "source": self.model.into}
            await self._known(begun, "POST", f"{ROOT}/branches", body, {201: "ok"})

    async def act(self) -> None:
        """Do one thing, now and then beside a commit."""
        choices: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (22, self.put),
            (8, self.put_by_s3),
            (5, self.put_new),
            (5, self.put_over),
            (4, self.put_in_parts),
            (8, self.delete),
            (10, self.move),
            (9, self.copy),
            (3, self.reset),
            (3, self.reset_some),
            (10, self.read),
            (6, self.read_commit),
            (8, lambda: self.commit(self._branch(), _nothing)),
            (9, lambda: self.commit(self._branch(), self._chance.choice([self.put, self.move, self.delete]))),
            (6, self.merge),
            (2, self.make_tag),
            (1, self.delete_tag),
            (2, self.drop_branch),
            (1, self.drop_repository),
            (1, self.switch),
        ]
        [(_, deed)] = self._chance.choices(choices, [weight for weight, _ in choices])
        await (self.put if self._is_quiet() and deed in {self.put_in_parts, self.copy} else deed)()

    # Deeds

    async def put(self) -> None:
        place, value = self._place(due=0.1), self._value()
        await self._write({"f": "put", "value": value}, place, "POST", body_of(value), {201: "ok"})

    async def put_new(self) -> None:
        place, value = self._place(), self._value()
        begun, answers = {"f": "put new", "value": value}, {201: "ok", 412: "refused"}
        await self._write(begun, place, "POST", body_of(value), answers, {"if-none-match": "*"})

    async def put_over(self) -> None:
        """Replace what is there on the condition that it is what it should be."""
        place, value = self._place(), self._value()
        over = self._chance.choice(sorted(map(str, self.model.at(place) - ABSENT)) or [""])
        if not over or over.endswith(IN_PARTS):
            return
        tag = hashlib.md5(body_of(over), usedforsecurity=False).hexdigest()
        begun = {"f": "put over", "value": value, "over": over}
        answers = {201: "ok", 412: "refused", 404: "refused"}
        await self._write(begun, place, "POST", body_of(value), answers, {"if-match": f'"{tag}"'})

    async def put_by_s3(self) -> None:
        (branch, path), value = self._place(), self._value()
        begun = {"f": "put", "value": value, "branch": branch, "path": path}
        await self._known(begun, "PUT", _s3_target(branch, path), body_of(value), {200: "ok"}, is_s3=True)

    async def put_in_parts(self) -> None:
        """Upload in one part or, seldom, in two, through the S3 gateway. Some uploads are given up, or left."""
        (branch, path), value = self._place(), self._value() + IN_PARTS
        target = _s3_target(branch, path)
        begun_upload = await self.caller.call("begin parts", "POST", f"{target}?uploads=", b"", {200}, is_s3=True)
        found = re.search(rb"<UploadId>(.*?)</UploadId>", begun_upload.body) if begun_upload else None
        if found is None:
            return
        upload = quote(found[1].decode(), safe="")
        # A value's own bytes come last: only the last part may be small.
        parts = [body_of(value)] if self._chance.random() < 0.9 else [PART, body_of(value)]
        tags = []
        for number, part in enumerate(parts, 1):
            where = f"{target}?partNumber={number}&uploadId={upload}"
            if await self.caller.call("put part", "PUT", where, part, {200, 404}, is_s3=True) is None:
                return
            tags.append(hashlib.md5(part, usedforsecurity=False).hexdigest())
        fate = self._chance.random()
        if fate < 0.15:
            await self.caller.call("abort parts", "DELETE", f"{target}?uploadId={upload}", b"", {204, 404}, is_s3=True)
        elif fate < 0.98:
            row = '<Part><PartNumber>{}</PartNumber><ETag>"{}"</ETag></Part>'
            rows = "".join(row.format(number, tag) for number, tag in enumerate(tags, 1))
            body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
            begun = {"f": "put", "value": value, "branch": branch, "path": path, "parts": len(parts)}
            # A week of an upload is a minute here, so a clock that is off may end one between its parts: 404, or 400.
            outcomes = {200: "ok", 404: "unknown", 400: "unknown"}
            await self._known(begun, "POST", f"{target}?uploadId={upload}", body, outcomes, is_s3=True)

    async def delete(self) -> None:
        place = self._place(due=0.1)
        if self._chance.random() < 0.3:
            begun = {"f": "delete", "branch": place[0], "path": place[1]}
            await self._known(begun, "DELETE", _s3_target(*place), b"", {204: "ok"}, is_s3=True)
        else:
            await self._write({"f": "delete"}, place, "DELETE", b"", {204: "ok"})

    async def move(self) -> None:
        source = self._place()
        await self._from("move", source, {"src_path": source[1], "src_branch": source[0]})

    async def copy(self) -> None:
        source = self._place()
        body = {"src_path": source[1], "src_ref": source[0], "shallow": self._chance.random() < 0.7}
        await self._from("copy", source, body)

    async def _from(self, f: str, source: Place, body: object) -> None:
        place = self._place()
        if source != place:
            begun = {"f": f, "from": source, "branch": place[0], "path": place[1]}
            target = f"{ROOT}/branches/{place[0]}/objects/{f}?dest_path={place[1]}"
            await self._known(begun, "POST", target, body, {201: "ok", 404: "absent"})

    async def reset(self) -> None:
        """Reset a branch of its own as a whole."""
        await self._reset("", {"type": "reset"})

    async def reset_some(self) -> None:
        """Reset an object, or what is below a folder."""
        name = self._chance.choice(self._names)
        prefix = name if self._chance.random() < 0.5 else name.rpartition("/")[0] + "/"
        await self._reset(prefix, {"type": "common_prefix" if prefix.endswith("/") else "object", "path": prefix})

    async def _reset(self, prefix: str, body: object) -> None:
        begun = {"f": "reset", "branch": self.model.own, "prefix": prefix}
        await self._known(begun, "PUT", f"{ROOT}/branches/{self.model.own}", body, {204: "ok", 404: "refused"})

    async def commit(self, branch: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        begun = self._begin({"f": "commit", "branch": branch})
        target = f"{ROOT}/branches/{branch}/commits"
        body: dict[str, Any] = {"message": "storm"}
        if self._chance.random() < 0.2:
            body["date"] = 1_700_000_000 + self._chance.randrange(1_000_000)
        call = self.caller.call("commit", "POST", target, body, {201, 400}, is_beside=True)
        answer, _ = await asyncio.gather(call, meanwhile())
        # Noted behind what was done beside it: the commit may have that, or not.
        if answer is None:
            self._end(begun, "unknown")
        elif answer.status == 400:
            self._end(begun, "refused")
        else:
            self._end(begun, "ok", id=json.loads(answer.body)["id"])

    async def merge(self) -> None:
        own = self.model.own
        target = f"{ROOT}/refs/{own}/merge/{self.model.into}"
        begun = {"f": "merge", "branch": own}
        await self._known(begun, "POST", target, {"strategy": "source-wins"}, {200: "ok", 400: "refused"})

    async def make_tag(self) -> None:
        if not self.model.commits:
            return
        self._made += 1
        name, commit = f"tag-{self.number}-{self._made}", self._chance.choice([*self.model.commits])
        begun = {"f": "make tag", "tag": name, "id": commit}
        answers = {201: "ok", 404: "refused", 410: "refused"}
        await self._known(begun, "POST", f"{ROOT}/tags", {"id": name, "ref": commit}, answers)

    async def delete_tag(self) -> None:
        if self.model.tags:
            name = self._chance.choice([*self.model.tags])
            begun = {"f": "delete tag", "tag": name}
            await self._known(begun, "DELETE", f"{ROOT}/tags/{name}", b"", {204: "ok", 404: "refused"})

    async def read(self) -> None:
        place = self._place(due=0.1)
        begun = self._begin({"f": "read", "branch": place[0], "path": place[1]})
        if self._chance.random() < 0.3:
            answer = await self.caller.call("read", "GET", _s3_target(*place), b"", {200, 404, 410, 403}, is_s3=True)
        else:
            answer = await self.caller.call("read", "GET", target_of(*place, kind="refs"), b"", {200, 404, 410})
        self._end_read(begun, answer)

    async def read_commit(self) -> None:
        if not self.model.commits:
            return
        commit = self._chance.choice([*self.model.commits][-200:])
        tree = self.model.commits[commit][1]
        path = self._chance.choice([*tree] or self._names)
        begun = self._begin({"f": "read commit", "id": commit, "path": path})
        where = target_of(commit, path, kind="refs")
        answer = await self.caller.call("read commit", "GET", where, b"", {200, 404, 410})
        if answer is not None and answer.status == 410:
            self._end(begun, "gone")
        else:
            self._end_read(begun, answer)

    def _end_read(self, begun: int, answer: Answer | None) -> None:
        if answer is None or answer.status == 403:  # The clock of the server is off: it refuses all that is signed.
            self._end(begun, "unknown")
        else:
            self._end(begun, "ok", value=value_of(answer.body) if answer.status == 200 else None)

    async def drop_branch(self) -> None:
        own = self.model.own
        begun = {"f": "delete branch", "branch": own}
        await self._known(begun, "DELETE", f"{ROOT}/branches/{own}", b"", {204: "ok"})
        await self._begin_own()

    async def drop_repository(self) -> None:
        """Make a repository, overwrite an object in it, and delete it with all that waits in its queue."""
        self._made += 1
        name = f"scratch-{self.number}-{self._made}"
        body = {"name": name, "storage_namespace": f"{self._scheme}://lake/{name}"}
        if await self.caller.call("make repository", "POST", "/repositories", body, {201}) is None:
            return
        await self.caller.call("hard delete", "PUT", f"/repositories/{name}/hard_delete", ON, {200, 404})
        for _ in range(3):
            target = objects_url(name, "main", "a", kind="branches").removeprefix("/api/v1")
            await self.caller.call("put scratch", "POST", target, b"scratch", {201})
        await self.caller.call("delete repository", "DELETE", f"/repositories/{name}", b"", {204})

    async def switch(self) -> None:
        """Turn hard delete on, off, or make it pause."""
        body = self._chance.choice([{"is_on": False}, {"is_on": True, "is_paused": True}, {}, {}]) or ON
        await self.caller.call("switch", "PUT", f"{ROOT}/hard_delete", body, {200})

    # What they have in common

    def _branch(self) -> str:
        return self._chance.choice([MAIN, self.model.own])

    def _place(self, *, due: float = 0.0) -> Place:
        return self._branch(), self._chance.choice(self._due if self._chance.random() < due else self._names)

    def _value(self) -> str:
        self._made += 1
        return f"{self.number}/{self._made}"

    async def _write(
        self,
        begun: dict[str, Any],
        place: Place,
        method: str,
        body: bytes,
        answers: dict[int, str],
        headers: dict[str, str] | None = None,
    ) -> None:
        begun |= {"branch": place[0], "path": place[1]}
        await self._known(begun, method, target_of(*place), body, answers, headers=headers)

    async def _known(
        self,
        begun: dict[str, Any],
        method: str,
        target: str,
        body: object,
        answers: dict[int, str],
        *,
        headers: dict[str, str] | None = None,
        is_s3: bool = False,
    ) -> None:
        """Make a call and note what came of it. An answer that is not among these leaves that unknown."""
        call = self._begin(begun)
        f = f"{begun['f']} by S3" if is_s3 else begun["f"]
        answer = await self.caller.call(f, method, target, body, {*answers}, headers=headers, is_s3=is_s3)
        self._end(call, "unknown" if answer is None else answers[answer.status])

    def _begin(self, begun: dict[str, Any]) -> int:
        self._call_number += 1
        line = {"client": self.number, "call": self._call_number, "begin": True, **begun}
        self.model.absorb(self._journal.write(CALLS, line))
        return self._call_number

    def _end(self, call: int, end: str, **more: object) -> None:
        line = {"client": self.number, "call": call, "end": end, **more}
        self.model.absorb(self._journal.write(CALLS, line))


def target_of(ref: str, path: str, *, kind: str = "branches") -> str:
    return objects_url(REPOSITORY, ref, path, kind=kind).removeprefix("/api/v1")


def _s3_target(branch: str, path: str) -> str:
    return f"/{REPOSITORY}/{branch}/{path}"


async def _nothing() -> None:
    return
