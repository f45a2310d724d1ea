"""Hold the ports and the fence of a run's steps, and read and write the tables and records in the run's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Clock, Conflict, Corrupt, NotFound, Ports, RunId, Tasks, count_of, parse_slice_name
from lakebed.gc import messages
from lakebed.gc.engines import Engine
from lakebed.gc.engines.engine import Table, check_table, encode
from lakebed.gc.messages import (
    APPLYING_PREFIX,
    CLAIM_ATTEMPTS_MAX,
    BadInput,
    Claim,
    Cleared,
    CommitCounts,
    Expire,
    Manifest,
    NoClaimLeft,
    Part,
    Pieces,
    Plan,
    PlanMissing,
    PreparedCommits,
    RecheckInputs,
    RunKind,
    Service,
    StartedRun,
    claims_in,
    decode_plan,
    encode_plan,
    input_folder,
    next_claim,
    plan_path,
    run_folder,
)
from lakebed.objectstore import ObjectExists, ObjectMissing, ObjectOutcomeUnknown, ObjectStore

# Let one apply at a time run in a repository, without a lock: the latest one continues.
#
# 1. an apply *claims* the next number: a file that only one writer can create
# 2. before each step and each batch of deletes it checks for a higher number, and stops if there is one
# 3. the stopped apply's deletes are in the ledger
#
# So an apply that died blocks no other. Safety does not depend on the claim: two applies may delete an object of both
# plans at the same time, which is harmless. The claim gives the order.


class Overtaken(Conflict):
    """Another apply of this repository began later, so this one stopped. Facts: `run_id` of the later apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Check whether an apply is still the latest one. Travels to tasks. `key` is the file of its claim."""

    key: str

    async def check(self, store: ObjectStore) -> None:
        """Check with one listing, which is empty unless a later apply began.

        Raises:
            Overtaken: a later apply began, or another repository or installation has the namespace.
        """
        newer = await _claims(store, after=self.key)
        if newer:
            run_id = await _run_of(store, newer[-1])
            if not run_id:
                # The server claims a number, too, when a repository is made over a used namespace, or a person chooses
                # an installation (`gc adopt`). An older apply does not know the new objects and asks no server.
                raise Overtaken("another repository or installation has this namespace now, and this apply stopped")
            raise Overtaken(f"another apply has begun, of run {run_id}, and this one stopped", run_id=run_id)

    def outdated(self, claims: Sequence[str]) -> list[str]:
        """Return the claims with a lower number. No apply needs their files any more."""
        return [key for key in claims if key < self.key]


async def claim(store: ObjectStore, clock: Clock, run_id: str) -> tuple[Fence, list[str]]:
    """Claim the next number: from now on every earlier apply of the repository stops.

    Return the fence, and the files of earlier claims, which may be removed.

    Raises:
        Overtaken: every attempt lost to another apply, or the last number is taken.
    """
    data = msgspec.json.encode(Claim(run_id=run_id, started_ms=clock.now_ms()))
    for _ in range(CLAIM_ATTEMPTS_MAX):
        there = await _claims(store)
        try:
            fence = Fence(key=next_claim(there))
        except NoClaimLeft as error:
            raise Overtaken(str(error), run_id=run_id) from error
        try:
            await store.put(fence.key, data, if_absent=True)
        except (ObjectExists, ObjectOutcomeUnknown):
            continue  # A lost answer may hide a claim of our own. The next number overtakes it like any other.
        return fence, fence.outdated(there)
    raise Overtaken(f"{CLAIM_ATTEMPTS_MAX} other applies began before this one could", run_id=run_id)


async def _claims(store: ObjectStore, *, after: str = "") -> list[str]:
    """Return the claims in order of number. Ignore files that no apply wrote."""
    return claims_in([stat.key async for page in store.list(APPLYING_PREFIX, start_after=after) for stat in page])


async def _run_of(store: ObjectStore, key: str) -> str:
    try:
        return msgspec.json.decode(await store.get(key), type=Claim).run_id
    except (ObjectMissing, msgspec.MsgspecError):
        return "(unknown)"


A = TypeVar("A")
T = TypeVar("T")

Progress = Callable[[str], None]
"""Report the next step to a person, as one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Hold the ports of a run. The flow, the kinds and the sweep await only these."""

    repository: str
    service: Service
    engine: Engine
    store: ObjectStore
    ports: Ports
    progress: Progress

    async def read(self, manifest: Manifest, table: messages.Table) -> pa.Table:
        """Read a whole table from the run's namespace (`read_input`)."""
        return await read_input(self.store, self.ports.tasks, manifest, table)

    async def reread(
        self,
        ask: Callable[[], Awaitable[A]],
        work: Callable[[A], Awaitable[T]],
        *,
        commits_of: Callable[[A], Manifest] = attrgetter("commits"),
    ) -> T:
        """Call `work` with the service's answer, and return its result. `commits_of` gives the answer's table COMMITS.

        If a file is missing, ask again for the commits, and repeat while the list of commits gets shorter.

        Raises:
            Corrupt: a file is missing or altered, and no commit was swept or removed meanwhile.
        """
        # A run reads commit records before their trees. A metadata run may meanwhile delete files of a swept commit, or
        # of a commit whose committer gave up (docs/design/protocols.md, "Orphaned commits"). It keeps nothing.
        # Reading commits late is safe: the listing and the staged cells were read before them. Each turn needs a commit
        # that was swept or removed, so the loop ends.
        answer = await ask()
        while True:
            try:
                return await work(answer)
            except Corrupt as error:
                # Read the table before asking again: the service may overwrite it.
                before = _there(await self.read(commits_of(answer), messages.COMMITS))
                answer = await ask()
                now = _there(await self.read(commits_of(answer), messages.COMMITS))
                gone = len(before) - pc.sum(pc.is_in(before, value_set=now), min_count=0).as_py()
                if not gone:
                    raise
                self.progress(f"{count_of(gone, 'commit')} went meanwhile, and files of theirs ({error}): again")

    async def expire(
        self, plan: Plan, request: Expire, recheck: Callable[[RecheckInputs], Awaitable[Cleared]]
    ) -> Cleared:
        """Publish the run, and return the result of `recheck` with the service's answer."""
        return await self.reread(
            lambda: self.service.expire(plan.run_id, request), recheck, commits_of=lambda answer: whole(answer)[0]
        )

    async def expire_no_commits(
        self,
        plan: Plan,
        rules_version: int,
        recheck: Callable[[RecheckInputs], Awaitable[Cleared]],
        *,
        planned_ms: int = 0,
    ) -> Cleared:
        """Do the same for a run that deletes objects and expires no commits: its table of commits is empty."""
        nothing = messages.arrow_schema(messages.EXPIRED).empty_table()
        request = Expire(
            kind=plan.kind,
            commits=await write_input(self.store, folder_in(plan, messages.EXPIRED.name), messages.EXPIRED, nothing),
            rules_version=rules_version,
            planned_ms=planned_ms,
            holds_version=plan.holds_version,
            uid=plan.uid,
        )
        return await self.expire(plan, request, recheck)


def _there(commits: pa.Table) -> pa.Array:
    """Return the ids of commits that were not swept."""
    return commits.filter(pc.invert(commits["swept"]))["id"].combine_chunks()


def whole(answer: RecheckInputs) -> tuple[Manifest, Manifest]:
    if answer.commits is None or answer.uncommitted is None:
        raise BadInput("the server did not say what must be kept", run_id=answer.run_id)
    return answer.commits, answer.uncommitted


async def read_input(store: ObjectStore, tasks: Tasks, manifest: Manifest, table: messages.Table) -> pa.Table:
    """Read a whole table of the protocol, and check every byte against its manifest. The driver holds it in memory.

    Raises:
        BadInput: the manifest is of another table, or a part is missing, short or changed.
    """
    check_table(manifest, table)
    messages.check_listing(manifest, await sizes(store, manifest.folder))
    data = await read_all(store, tasks, [manifest.folder + part.name for part in manifest.parts])
    parts = [
        messages.read_part(manifest, table, part, bytes_) for part, bytes_ in zip(manifest.parts, data, strict=True)
    ]
    return messages.join_parts(manifest, table, parts)


async def write_input(store: ObjectStore, folder: str, table: messages.Table, rows: pa.Table) -> Manifest:
    """Write a table of the protocol as one part."""
    data = messages.encode_part(table, rows)
    name = messages.part_name(0)
    await store.put(folder + name, data)
    return messages.manifest_of(table, folder, [messages.part_of(name, data, rows=rows.num_rows)])


async def write_piece(store: ObjectStore, folder: str, name: str, table: Table, rows: pa.Table) -> Pieces:
    """Write rows of a collector's own table as the only part of a folder."""
    data = encode(table, rows)
    await store.put(folder + name, data)
    return Pieces(folder=folder, parts=(messages.part_of(name, data, rows=rows.num_rows),))


async def read_garbage(store: ObjectStore, plan: Plan, part: Part) -> pa.Table:
    """Return the rows of one part of a plan (table GARBAGE), or raise BadInput."""
    key = plan.garbage.folder + part.name
    data = await find(store, key)
    if data is None:
        raise BadInput(f"{key} is missing", missing=key, part=part.name)
    return messages.read_part(plan.garbage, messages.GARBAGE, part, data)


def folder_in(run: StartedRun | Plan, name: str) -> str:
    """Return a table's folder in the run's folder."""
    return input_folder(run.kind, RunId(run.run_id), name)


def slice_numbers(names: Sequence[str]) -> list[int]:
    """Return the slices' numbers, ascending, each once, or raise BadInput."""
    numbers: set[int] = set()
    for name in names:
        number = parse_slice_name(name)
        if number is None:
            raise BadInput(f"{name!r} is listed as a closed slice, and no slice is called so", input="closed slices")
        numbers.add(number)
    return sorted(numbers)


def plan_frame(context: RunContext, run: StartedRun, prepared: PreparedCommits) -> dict[str, Any]:
    """Return the fields that plans of every kind share."""
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "uid": run.uid,
        "repository": context.repository,
        "namespace": run.namespace,
        "now_ms": run.now_ms,
        "closed_slices": len(run.closed_slices),
        "open_slices": run.open_slices,
        "rules": prepared.rules,
        "rules_version": prepared.rules_version,
        "holds_version": prepared.holds.version,
        "commits": prepared.commits,
        "refs": prepared.refs,
        "has_tables": prepared.tables_ms is not None,
    }


async def write_plan(store: ObjectStore, plan: Plan) -> str:
    """Write the plan, and return the SHA-256 of its file."""
    data = encode_plan(plan)
    await store.put(plan_path(plan.kind, plan.run_id), data)
    return sha256_of(data)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def read_plan(store: ObjectStore, run_id: str) -> Plan:
    """Read the plan of a run.

    Raises:
        PlanMissing: the namespace has no finished plan of the run.
        BadInput: the plan is unreadable, of an unknown format, or changed.
    """
    return (await read_plan_file(store, run_id))[0]


def counts_of(commits: pa.Table) -> CommitCounts:
    """Count the rows of COMMITS for a plan that expires no commit."""
    swept = int(pc.sum(commits["swept"]).as_py() or 0)
    return CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept)


async def read_plan_file(store: ObjectStore, run_id: str) -> tuple[Plan, str]:
    """Return the plan and the SHA-256 of its file, or raise PlanMissing or BadInput."""
    for kind in RunKind:
        data = await find(store, plan_path(kind, run_id))
        if data is not None:
            plan = decode_plan(data, run_id)
            if plan.kind is not kind:
                raise BadInput(f"the plan of run {run_id} lies in the folder of another kind", input="plan")
            return plan, sha256_of(data)
    raise PlanMissing(f"run {run_id} has no finished plan", run_id=run_id)


async def list_plans(store: ObjectStore) -> list[str]:
    """Return the ids of the runs with a finished plan, oldest first."""
    run_ids: list[str] = []
    for kind in RunKind:
        root = run_folder(kind, RunId("x")).removesuffix("x/")
        run_ids += [name.removesuffix("/plan.json") for name in await sizes(store, root) if name.endswith("/plan.json")]
    return sorted(run_ids)


async def find(store: ObjectStore, key: str) -> bytes | None:
    """Return the file's content, or None if there is no such file."""
    try:
        return await store.get(key)
    except NotFound:
        return None


async def read_all(store: ObjectStore, tasks: Tasks, keys: Sequence[str]) -> list[bytes]:
    """Return the files' contents in the order of `keys`."""
    return [data async for _, data in tasks.ahead(keys, store.get)]


async def write_once(store: ObjectStore, key: str, data: bytes) -> bytes:
    """Store `data` unless the file exists, and return the content of the file."""
    try:
        await store.put(key, data, if_absent=True)
    except (ObjectExists, ObjectOutcomeUnknown):
        return await store.get(key)
    return data


async def sizes(store: ObjectStore, prefix: str) -> dict[str, int]:
    """Return the size of each object below `prefix`, by the rest of its key, in byte order."""
    return {stat.key.removeprefix(prefix): stat.size_bytes async for page in store.list(prefix) for stat in page}
