"""The catalog's port of hooks: read the actions at an event's ref, run those that match, record the run.

Before a change: hooks run while the change waits for its end, and one failure refuses it. So does an action file that
cannot be read: a check that is there and cannot run was not passed. After a change they run beside the request.

Actions run at the same time, the hooks of one action in their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias

from lakebed.base import CommitId, LakebedError, MetarangeId, NotFound, RepositoryId, from_row, in_words, key_to_path
from lakebed.catalog import Event, EventType, HookRefused, Objects
from lakebed.versions import Commit, CommitNotFound, ContentsGone, Listing, Versions

from . import airflow, lua, webhook
from .actions import FILE_BYTES_MAX, FILES_MAX, FOLDER, Action, Hook, InvalidAction, parse, should_run
from .options import (
    OUTPUT_CHARACTERS_MAX,
    TIMEOUT_HOLDING_S,
    TIMEOUT_S,
    TIMEOUT_S_MAX,
    HookFailed,
    HookOptions,
    Secrets,
)
from .runs import ActionRunRecord, HookRunRecord, Runs

logger = logging.getLogger(__name__)

CALLER: Final[ContextVar[object]] = ContextVar("caller", default=None)
"""The request whose change is made. Scripts read with its permissions."""
AT_ONCE_MAX: Final = 8
"""Hooks of one repository that run in one process. The others queue, and hold up no other repository's."""
PARSED_MAX: Final = 1000
WITHOUT_MAX: Final = 10_000
WHY_CHARACTERS_MAX: Final = 4096

Asker: TypeAlias = Callable[[object, str, list[Any]], Awaitable[tuple[int, Any]]]
"""Answer a question of a script: the caller, the name and the arguments."""


@dataclass(slots=True)
class _Ran:
    action: str
    hook: str
    started_ms: int
    ended_ms: int = 0
    why: str = ""
    lines: list[str] = field(default_factory=list)
    secrets: Secrets | None = None
    written: int = 0

    def log(self, line: str, limit: int = OUTPUT_CHARACTERS_MAX) -> None:
        """Keep one line, or its first `limit` characters, while there is room."""
        if self.written < OUTPUT_CHARACTERS_MAX:
            # Secrets are hidden before anything is cut: the half of one would no longer be found.
            self.lines.append(self.hidden(line)[:limit])
            self.written += len(self.lines[-1]) + 1  # an empty line takes room too

    @property
    def output(self) -> str:
        return "\n".join(self.lines)[:OUTPUT_CHARACTERS_MAX]

    def fail(self, why: str) -> None:
        self.why = self.hidden(why)[:WHY_CHARACTERS_MAX]
        self.log(f"failed: {self.why}")

    def hidden(self, text: str) -> str:
        return text if self.secrets is None else self.secrets.hide(text)


class RepositoryHooks:
    def __init__(
        self,
        repository: RepositoryId,
        versions: Versions,
        objects: Objects,
        *,
        options: HookOptions,
        ask: Asker,
        keep: Callable[[asyncio.Future[Any]], None],
        pool: Executor,
        turns: asyncio.Semaphore,
    ) -> None:
        """`keep` holds on to work that goes on after its request. Hooks run in threads of `pool`.

        `turns` is the repository's own, with AT_ONCE_MAX: its share of the threads.
        """
        self._repository = repository
        self._versions = versions
        self._objects = objects
        self._options = options
        self._ask = ask
        self._keep = keep
        self._pool = pool
        self._turns = turns
        self._runs = Runs(versions)
        self._parsed: dict[tuple[str, str], Action] = {}
        # Commits without an action file. A commit never changes, so it never gets one.
        self._without: set[str] = set()

    async def before(self, event: Event) -> str:
        """Run the hooks of an event, record the run, and return its id.

        Raises:
            HookRefused: one failed, or an action file cannot be read.
        """
        if not self._options.enabled:
            return ""
        why, run_id = await self._run(event)
        if why:
            log = f"lakebed actions show lakefs://{self._repository} {run_id}"
            raise HookRefused(f"{event.type} hook aborted, run id '{run_id}': {why}; its log: {log}", run=run_id)
        return run_id

    async def after(self, event: Event) -> None:
        if event.pre_run and event.commit_id:
            try:
                await self._runs.name_commit(event.pre_run, event.commit_id)
            except LakebedError as error:  # The change was made, and must not look as if it was not.
                logger.warning("run %s of %s has no commit: %s", event.pre_run, self._repository, error)
        if self._options.enabled and not self._is_without(event):
            self._keep(asyncio.ensure_future(self._run_after(event)))

    async def _run_after(self, event: Event) -> None:
        try:
            why, run_id = await self._run(event)
            if why:
                logger.warning("%s hook of %s failed, run %s: %s", event.type, self._repository, run_id, why)
        except LakebedError as error:
            logger.warning("%s hooks of %s did not run: %s", event.type, self._repository, error)
        except Exception:  # a bug here must not end the keeper of this task
            logger.exception("%s hooks of %s failed", event.type, self._repository)

    async def _run(self, event: Event) -> tuple[str, str]:
        """Return why the run failed, empty if it did not, and its id, empty where nothing ran."""
        started_ms = self._now_ms()
        try:
            actions = [(each, hooks) for each in await self._actions(event) if (hooks := each.hooks_for(event))]
            if not actions:
                return "", ""
            run_id = self._runs.fresh_id()
        except InvalidAction as error:
            run_id = self._runs.fresh_id()
            # Listed as a hook that failed, so that the run says why.
            ran = [_Ran(str(error.facts["path"]), "read", started_ms, self._now_ms(), str(error), [str(error)])]
            why = str(error)
        else:
            event = await self._with_commit(event)
            groups = await asyncio.gather(*[self._run_action(*each, event, run_id) for each in actions])
            ran = [each for group in groups for each in group]
            failed = [f"action {each.action}, hook {each.hook}: {each.why}" for each in ran if each.why]
            why = "; ".join(failed)
        record = ActionRunRecord(
            event_type=event.type,
            branch=event.branch,
            tag=event.tag,
            source_ref=event.source_ref,
            commit_id=event.commit_id,
            committer=event.committer,
            started_ms=started_ms,
            ended_ms=self._now_ms(),
            failed=bool(why),
            why=why[:WHY_CHARACTERS_MAX],
            hooks=tuple(
                HookRunRecord(
                    id=f"{number:04}",
                    action=each.action,
                    hook_id=each.hook,
                    started_ms=each.started_ms,
                    ended_ms=each.ended_ms,
                    failed=bool(each.why),
                )
                for number, each in enumerate(ran)
            ),
        )
        await self._runs.write(run_id, record, [each.output for each in ran])
        return why, run_id

    async def _with_commit(self, event: Event) -> Event:
        """Name the commit that a new branch or tag will have, as far as it is known."""
        if event.commit_id or event.type not in {EventType.PRE_CREATE_BRANCH, EventType.PRE_CREATE_TAG}:
            return event
        return replace(event, commit_id=await self._versions.refs.resolve_commit(event.source_ref))

    async def _run_action(self, action: Action, hooks: Sequence[Hook], event: Event, run_id: str) -> list[_Ran]:
        ran: list[_Ran] = []
        for hook in hooks:
            if should_run(hook.condition, has_failed=any(each.why for each in ran)):
                async with self._turns:
                    ran.append(await self._run_hook(action, hook, event, run_id))
        return ran

    async def _run_hook(self, action: Action, hook: Hook, event: Event, run_id: str) -> _Ran:
        ran = _Ran(action=action.name, hook=hook.id, started_ms=self._now_ms())
        secrets = ran.secrets = Secrets(self._options.environment)
        try:
            described = self._described(action, hook, event)
            if hook.type == "lua":
                described |= await self._described_to_scripts(event, run_id)
                await self._run_script(hook, event, described, secrets, ran)
            else:
                properties = {"timeout": default_timeout_s(event), **secrets.fill(hook.properties)}
                send = webhook.send if hook.type == "webhook" else airflow.trigger
                work = partial(send, properties, described, options=self._options, log=ran.log)
                await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except LakebedError as error:
            ran.fail(in_words(error))
        except Exception as error:  # a hook that cannot run was not passed, whatever the reason
            logger.exception("hook %s of %s", hook.id, self._repository)
            ran.fail(f"it could not run: {in_words(error)}")
        ran.ended_ms = self._now_ms()
        return ran

    async def _run_script(
        self, hook: Hook, event: Event, described: dict[str, Any], secrets: Secrets, ran: _Ran
    ) -> None:
        script = hook.properties.get("script")
        if not script:
            script = await self._script_at(str(hook.properties["script_path"]), event)
        loop, caller = asyncio.get_running_loop(), CALLER.get()

        def ask(name: str, arguments: list[Any]) -> tuple[int, Any]:
            answer = asyncio.run_coroutine_threadsafe(self._answer(caller, name, arguments), loop)
            return answer.result(TIMEOUT_S_MAX)

        run = partial(
            lua.run,
            str(script),
            secrets.fill(hook.properties.get("args") or {}),
            described,
            timeout=hook.properties.get("timeout") or default_timeout_s(event),
            options=self._options,
            ask=ask,
            log=ran.log,
        )
        await loop.run_in_executor(self._pool, run)

    async def _script_at(self, path: str, event: Event) -> str:
        """Read a script with the permissions of the user who makes the change: its errors show parts of it."""
        status, value = await self._ask(CALLER.get(), "get_object", [self._repository, event.source_ref, path])
        if status != 200:
            raise HookFailed(f"script_path {path}: {value['message']}")
        if len(value) > FILE_BYTES_MAX:
            raise HookFailed(f"{path} has more than {FILE_BYTES_MAX} bytes")
        return bytes(value).decode(errors="replace")

    async def _answer(self, caller: object, name: str, arguments: list[Any]) -> tuple[int, Any]:
        # An action file runs with the next committer's rights, and its author could else read that user's data.
        if arguments[:1] != [self._repository]:
            return 403, {"message": f"hooks of {self._repository} read no other repository"}
        return await self._ask(caller, name, arguments)

    async def _described_to_scripts(self, event: Event, run_id: str) -> dict[str, Any]:
        """Return the fields that only scripts get. `commit` is the event's commit, or the one that is asked for."""
        if event.commit_id and event.type is not EventType.PRE_MERGE:
            commit = await self._versions.history.get_commit(CommitId(event.commit_id))
        else:
            parents = [(await self._versions.refs.get_branch(event.branch)).commit_id]
            parents += [CommitId(event.commit_id)] if event.commit_id else []
            commit = Commit(
                generation=0,
                message=event.message,
                committer=event.committer,
                created_ms=self._now_ms() if event.created_ms is None else event.created_ms,
                metarange_id=MetarangeId(""),  # Not made yet.
                parents=tuple(parents),
                metadata=dict(event.metadata),
            )
        return {
            "run_id": run_id,
            "pre_run_id": event.pre_run,
            "storage_namespace": self._versions.context.objectstore.uri,
            "username": event.committer,
            "commit": {
                "message": commit.message,
                "committer": commit.committer,
                "metadata": commit.metadata,
                "parents": list(commit.parents),
                "meta_range_id": commit.metarange_id,
                "creation_date": commit.created_ms // 1000,
                "version": commit.version,
                "generation": commit.generation,
            },
        }

    def _described(self, action: Action, hook: Hook, event: Event) -> dict[str, Any]:
        """Return the event as every hook gets it."""
        return {
            "event_type": str(event.type),
            "event_time": datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat().replace("+00:00", "Z"),
            "action_name": action.name,
            "hook_id": hook.id,
            "repository_id": self._repository,
            "branch_id": event.branch,
            "tag_id": event.tag,
            "source_ref": event.source_ref,
            "commit_id": event.commit_id,
            "merge_source": event.merge_source,
            "commit_message": event.message,
            "committer": event.committer,
            "commit_metadata": dict(event.metadata),
        }

    async def _actions(self, event: Event) -> Sequence[Action]:
        """Read the action files that count for an event.

        Raises:
            InvalidAction: one of them cannot be read.
        """
        if self._is_without(event):
            return []
        try:
            # Most have none, and a page is as long as is asked for, whatever lies behind the folder.
            if not (await self._files(event, limit=1)).items:
                if commit := _commit_of(event):
                    self._note_without(commit)
                return []
            listing = await self._files(event, limit=FILES_MAX + 1)
        except (CommitNotFound, ContentsGone):
            return []  # The change itself reports the error of this ref.
        if len(listing.items) > FILES_MAX:
            raise InvalidAction(f"{FOLDER} has more than {FILES_MAX} files", path=FOLDER)
        found = []
        for key, row in listing.items:
            if row is None or (entry := from_row(row)).size_bytes == 0:
                continue  # A folder's marker, or an empty file: it asks for no check.
            path = key_to_path(key)
            known = self._parsed.get((path, entry.address))
            if known is None:
                if entry.size_bytes > FILE_BYTES_MAX:
                    raise InvalidAction(f"action file {path}: it has more than {FILE_BYTES_MAX} bytes", path=path)
                try:
                    text = await self._objects.read(entry)
                except NotFound as error:
                    raise InvalidAction(f"action file {path}: {error}", path=path) from error
                known = await asyncio.to_thread(parse, path, text)  # up to a second for a large one
                if len(self._parsed) >= PARSED_MAX:
                    self._parsed.clear()
                if "://" not in entry.address:  # elsewhere the bytes may change
                    self._parsed[path, entry.address] = known
            found.append(known)
        return found

    async def _files(self, event: Event, *, limit: int) -> Listing:
        staging, prefix = self._versions.staging, FOLDER.encode()
        if commit := _commit_of(event):
            return await staging.list_commit(CommitId(commit), prefix=prefix, limit=limit)
        return await staging.list(event.source_ref, prefix=prefix, limit=limit)

    def _is_without(self, event: Event) -> bool:
        return _commit_of(event) in self._without

    def _note_without(self, commit: str) -> None:
        if len(self._without) >= WITHOUT_MAX:
            self._without.clear()
        self._without.add(commit)

    def _now_ms(self) -> int:
        return self._versions.context.ports.clock.now_ms()


def _commit_of(event: Event) -> str:
    """Return the commit that has the event's action files. Empty: they are read from a ref, with its staged changes."""
    if event.source_is_commit:
        return event.source_ref
    # A new branch has nothing staged.
    return event.commit_id if event.type is EventType.POST_CREATE_BRANCH else ""


def default_timeout_s(event: Event) -> float:
    return TIMEOUT_HOLDING_S if event.type.startswith("pre") else TIMEOUT_S
