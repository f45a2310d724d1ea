"""Collections of a storm: the commands that a person types, one after the other, and erasures beside them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

from tests.outside.servers import Client, NoAnswer, NotSent

from .clients import REPOSITORY, ROOT, target_of
from .installations import Installation
from .journal import COMMANDS, Journal
from .model import body_of

_RUN: Final = re.compile(r"([0-9a-v]{20}) \(erasure\)")
RESTORED: Final = "restored"
"""The branch that gets what is restored. No client reads it."""
URI: Final = f"lakefs://{REPOSITORY}"
LONGEST_S: Final = 240
SHOWN: Final = 1_500
"""Characters of an output that the journal keeps."""
DONE: Final = 0
NOT_THERE: Final = 3
TRIES: Final = 15
LEFT_S: Final = 5.0
"""An upload in parts that is open for longer was left by its client."""
CHOICES: Final = (
    (6, ("gc", "run", "--uncommitted", "--yes")),
    (3, ("gc", "run", "--uncommitted", "--clean", "--yes")),
    (1, ("gc", "run", "--uncommitted", "--window", "1h", "--yes")),
    (5, ("gc", "run", "--committed", "--yes")),
    (3, ("gc", "run", "--committed", "--window", "2h", "--yes")),
    (3, ("gc", "run", "--metadata", "--yes")),
    (2, ("gc", "plan", "--committed")),
    (2, ("gc", "plan", "--uncommitted")),
    (2, ("gc", "apply", "latest-committed", "--yes")),
    (2, ("gc", "apply", "latest-uncommitted", "--yes")),
    (3, ("gc", "purge", "--yes")),
    (3, ("gc", "restore", "0/x/", "--to", f"lakefs://{REPOSITORY}/{RESTORED}/", "--overwrite")),
    (3, ("lifecycle", "plan")),
    (3, ("lifecycle", "apply", "latest-lifecycle", "--yes")),
    (1, ("gc", "ledger")),
)
"""Commands, where the repository's URI comes behind the second word, and how often each is run."""
ASKING_ONLY: Final = frozenset({("gc", "restore")})
"""Commands that take no data folder."""


class Collectors:
    """Runs commands against any server of the installation. `some` and `none` are for those who stop them."""

    def __init__(self, installation: Installation, journal: Journal, seed: int) -> None:
        self._installation = installation
        self._journal = journal
        self._chance = random.Random(f"{seed}/collectors")
        self._running: set[asyncio.subprocess.Process] = set()
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        """Not set: an erasure did not come through at first. Until it does, no other collection begins, and clients
        neither copy nor upload in parts: a certificate holds only where nothing is under way."""
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def is_quiet(self) -> bool:
        return not self._may_begin.is_set()

    def be_quiet(self, *, is_quiet: bool) -> None:
        self._may_begin.clear() if is_quiet else self._may_begin.set()

    async def run_all_the_time(self) -> None:
        while True:
            await self._may_begin.wait()
            [(_, words)] = self._chance.choices(CHOICES, [weight for weight, _ in CHOICES])
            await self.run(*words)
            await asyncio.sleep(self._chance.uniform(0, 1))

    async def run(self, *words: str, timeout_s: float = LONGEST_S) -> tuple[int, str]:
        """Run `lakebed WORD WORD URI WORD…`, and return its exit code and all that it printed."""
        await self._may_run.wait()
        command = [*words[:2], URI, *words[2:]]
        if self._installation.scheme == "local" and words[:2] not in ASKING_ONLY:
            command += ["--data", str(self._installation.data)]
        begun = self._journal.now_s
        # A file, so that what a process printed is kept that is killed.
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "lakebed", *command],
                stdout=output,
                stderr=output,
                stdin=asyncio.subprocess.DEVNULL,
                env=self._environment(),
            )
            self._running.add(process)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), timeout_s)
            finally:
                if process.returncode is None:
                    process.kill()
                code = await process.wait()
                self._running.discard(process)
            output.seek(0)
            text = output.read().decode(errors="replace")
        self._note(words, code, text, begun)
        return code, text

    def _note(self, words: tuple[str, ...], code: int, text: str, begun: float) -> None:
        self.ended[f"{' '.join(words[:2])} {code}"] += 1
        stands = [each for each in text.splitlines() if each.startswith("stands ")]
        line = {"began": begun, "command": words, "code": code, "output": text[-SHOWN:], "stands": stands[:5]}
        self._journal.write(COMMANDS, line)
        if "Traceback (most recent call last)" in text:
            self.wrong.append(f"{' '.join(words)} ended with a stack trace: {text[-SHOWN:]}")

    def _environment(self) -> dict[str, str]:
        fleet = self._installation.fleet
        key_id, _, secret = base64.b64decode(fleet.authorization.removeprefix("Basic ")).decode().partition(":")
        server = self._chance.choice([each for each in fleet.servers if each.port] or fleet.servers)
        return {
            **os.environ,
            **self._installation.environment,
            "LAKEBED_ENDPOINT": f"http://127.0.0.1:{server.door or server.port or 1}",
            "LAKEBED_ACCESS_KEY_ID": key_id,
            "LAKEBED_SECRET_ACCESS_KEY": secret,
            "LAKEBED_GC_ENGINE": "local",
        }

    async def some(self) -> asyncio.subprocess.Process | None:
        """Return a collector that runs, if one does soon."""
        for _ in range(100):
            if self._running:
                return self._chance.choice(sorted(self._running, key=lambda process: process.pid))
            await asyncio.sleep(0.1)
        return None

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """Kill them all, and let none begin within the block."""
        self._may_run.clear()
        try:
            while running := list(self._running):
                for process in running:
                    with suppress(ProcessLookupError):
                        process.kill()
                await asyncio.sleep(0.05)
            yield
        finally:
            self._may_run.set()


async def open_uploads(client: Client) -> list[tuple[str, str]]:
    """Return path and id of each upload in parts that was begun and has not ended."""
    answer = await client.send_signed(0, "GET", f"/{REPOSITORY}?uploads=")
    found = re.findall(rb"<Upload>.*?<Key>(.*?)</Key>.*?<UploadId>(.*?)</UploadId>", answer.body, re.DOTALL)
    return [(path.decode(), upload.decode()) for path, upload in found]


async def abort_upload(client: Client, path: str, upload: str) -> None:
    await client.send_signed(0, "DELETE", f"/{REPOSITORY}/{path}?uploadId={quote(upload, safe='')}")


class Eraser:
    """Writes what must go, commits it, and has it erased, again and again. Each erasure has a folder of its own."""

    def __init__(self, collectors: Collectors, client: Client, journal: Journal, processes: int, seed: int) -> None:
        self._collectors = collectors
        self._client = client
        self._journal = journal
        self._processes = processes
        self._chance = random.Random(f"{seed}/eraser")
        self.begun = 0
        self.certified: list[str] = []
        """Runs with a certificate on which nothing stands."""
        self.wrong: list[str] = []
        self._seen_s: dict[str, float] = {}
        """Open uploads by id, and when they were first seen."""

    async def run_all_the_time(self) -> None:
        while True:
            self.begun += 1
            await self.erase(self.begun)
            await asyncio.sleep(1)

    async def erase(self, number: int) -> None:
        folder = f"erase/{number}/"
        paths = [f"{folder}{name}" for name in range(3)]
        for path in (*paths, paths[0]):
            await self._call("POST", target_of("main", path), body_of(f"erase/{number}"), {201})
        commit = await self._call("POST", f"{ROOT}/branches/main/commits", {"message": "to be erased"}, {201, 400})
        ref = json.loads(commit.body)["id"] if commit.status == 201 else "main"
        began_s = self._journal.now_s
        run_id, code, output = await self._erase_at_last(number, folder)
        self.certified += [run_id] if code == DONE else []
        line = {"erasure": number, "run": run_id, "certified": code == DONE, "took": self._journal.now_s - began_s}
        self._journal.write(COMMANDS, line | {"output": output[-SHOWN:]})
        if code == DONE:
            for path in paths:
                for at in ("main", ref):
                    answer = await self._call("GET", target_of(at, path, kind="refs"), b"", {200, 404, 410})
                    if answer.status == 200:
                        self.wrong.append(f"erasure {number} is certified, and {path} of {at} can be read")

    async def _erase_at_last(self, number: int, folder: str) -> tuple[str, int, str]:
        """Return the run, and the last exit code and output. Where something stands, apply the run again."""
        out = self._journal.folder / "certificates" / f"{number}.json"
        out.parent.mkdir(exist_ok=True)
        options = ("--everywhere", "--yes", "--out", str(out))
        run_id, code, output = "", NOT_THERE, ""
        for number_of_try in range(TRIES):
            self._collectors.be_quiet(is_quiet=number_of_try > 0)
            await self._end_uploads()
            if run_id:
                code, output = await self._collectors.run("erase", "apply", run_id, *options)
            else:
                code, output = await self._collectors.run("erase", "run", folder, *options, "--why", f"storm {number}")
            # Its run may have been recorded, and another command may go on with it: then nothing is left to be planned.
            run_id = run_id or "".join(_RUN.findall(output)[-1:])
            if out.exists():
                run_id = json.loads(out.read_text())["certificate"]["run_id"]
            if code == DONE:
                break
            is_collected = "no entry named" in output and "nothing was collected" not in output
            if "was abandoned" in output or (is_collected and "plan again" in output):
                # This run can do no more. What stands came after its plan, or was written to then.
                run_id = ""
                out.unlink(missing_ok=True)
            if "keeps its objects until" in output:
                await self._collectors.run("gc", "purge", "--yes")
            elif "which has not ended" in output:
                # A collector was killed in its sweep. The next run of the night goes on with it.
                await self._collectors.run("gc", "run", "--uncommitted", "--yes")
            await asyncio.sleep(self._chance.uniform(1, 4))
        self._collectors.be_quiet(is_quiet=False)
        return run_id, code, output

    async def _end_uploads(self) -> None:
        """Give up what clients left unfinished. No certificate holds while an upload may be of its paths."""
        now_s = self._journal.now_s
        with suppress(NoAnswer, NotSent):
            for path, upload in await open_uploads(self._client):
                if now_s - self._seen_s.setdefault(upload, now_s) > LEFT_S:
                    await abort_upload(self._client, path, upload)

    async def _call(self, method: str, target: str, body: object, expected: set[int]) -> Any:
        """Ask until an expected answer comes: each of its calls may be repeated."""
        while True:
            with suppress(NoAnswer, NotSent):
                answer = await self._client.send(self._chance.randrange(self._processes), method, target, body)
                if answer.status in expected:
                    return answer
            await asyncio.sleep(0.3)
