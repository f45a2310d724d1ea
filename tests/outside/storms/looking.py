"""Look at what a storm left, with no fault in the way, and write it down. `judging.py` reads that.

before.json   the value of each path of each ref that a client knows, as the storm left it
after.json    the same once everything was collected; the objects, what names them, the ledger, the certificates
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from lakebed.base import LakebedError, NotFound
from lakebed.gc.api.showing import ledger_rows_of
from lakebed.gc.messages import CERTIFICATES_PREFIX, LedgerQuery
from lakebed.versions import Versions
from tests.outside.servers import Client

from .collectors import DONE, Collectors, Eraser, abort_upload, open_uploads
from .installations import HOUR_S, Installation
from .journal import CALLS, read_journal
from .model import MAIN, Model, value_of
from .settling import clean_up, collect, drain, named_addresses, reachable_addresses

BEFORE: Final = "before"
AFTER: Final = "after"
GONE: Final = "(gone)"
"""Stands for a value that a collection took although the path is there, or for a commit that it took."""
TRIES: Final = 5


def models_of(folder: Path) -> dict[int, Model]:
    """Return what each client knew when the storm ended, by its calls."""
    models: dict[int, Model] = {}
    for line in read_journal(folder, CALLS):
        model = models.setdefault(line["client"], Model(line["client"]))
        model.absorb(line)
    for model in models.values():
        model.finish()
    return models


async def look(
    installation: Installation, collectors: Collectors | None, client: Client, eraser: Eraser | None
) -> None:
    """Write both files. All servers run, and stop here: the rest is done in this process."""
    folder, models = installation.folder, models_of(installation.folder)
    uploads = await open_uploads(client)
    for path, upload in uploads:
        await abort_upload(client, path, upload)
    async with installation.without_faults() as (versions, _):
        _save(folder, BEFORE, {"refs": await _values(versions, models)})
    commands: dict[str, Any] = {}
    if collectors is not None and eraser is not None:
        commands = await _collect_all(collectors)
        commands["verify"] = await _verify(collectors, eraser.certified)
    # Ends each process as its owner would, so that what it let go last is written down.
    await asyncio.gather(*[server.stop(is_kill=False) for server in installation.servers])
    async with installation.without_faults() as (versions, deleter):
        await clean_up(versions)
        await drain(versions, deleter)
        listed = await _listed(versions)
        left = len(listed - await named_addresses(versions))
        await collect(versions, deleter)
        ledger = [
            _plain(row) async for row in ledger_rows_of(versions.objectstore, versions.ports.tasks, LedgerQuery())
        ]
        _save(
            folder,
            AFTER,
            {
                "refs": await _values(versions, models),
                "listed": sorted(await _listed(versions)),
                "named": sorted(await named_addresses(versions)),
                "reachable": sorted(await reachable_addresses(versions)),
                "left_before_run": left,
                "uploads_aborted": len(uploads),
                "ledger": ledger,
                "certificates": await _certificates(versions),
                "commands": commands,
            },
        )


async def _collect_all(collectors: Collectors) -> dict[str, Any]:
    """Run every kind of collection to its end, and verify each certificate once more."""
    ended: dict[str, Any] = {}
    for words in (
        ("lifecycle", "plan"),
        ("lifecycle", "apply", "latest-lifecycle", "--yes"),
        ("gc", "run", "--uncommitted", "--clean", "--yes"),
        ("gc", "run", "--committed", "--yes"),
        ("gc", "purge", "--yes"),
        ("gc", "run", "--metadata", "--yes"),
    ):
        if words[1] == "purge":
            await asyncio.sleep(2 * HOUR_S)  # the longest window
        for _ in range(TRIES):
            code, text = await collectors.run(*words)
            ended[" ".join(words)] = {"code": code, "output": text[-500:]}
            if code == DONE:
                break
            await asyncio.sleep(2)
    return ended


async def _verify(collectors: Collectors, runs: Iterable[str]) -> dict[str, Any]:
    """Verify certificates by the command, and return those that do not hold."""
    failed: dict[str, Any] = {}
    for run in runs:
        code, text = await collectors.run("erase", "verify", run)
        if code != DONE:
            failed[run] = {"code": code, "output": text[-2_000:]}
    return failed


async def _values(versions: Versions, models: Mapping[int, Model]) -> dict[str, dict[str, str | None]]:
    wanted: dict[str, set[str]] = {}
    for model in models.values():
        for branch, path in model.current:
            if branch in {MAIN, model.own, model.into}:
                wanted.setdefault(branch, set()).add(path)
        for commit, (_, tree) in model.commits.items():
            wanted.setdefault(commit, set()).update(tree)
        for tag, commit in model.tags.items():
            wanted.setdefault(tag, set()).update(model.commits[commit][1])
    known: dict[str, str] = {}
    return {
        ref: {path: await _value(versions, ref, path, known) for path in sorted(paths)}
        for ref, paths in sorted(wanted.items())
    }


async def _value(versions: Versions, ref: str, path: str, known: dict[str, str]) -> str | None:
    try:
        entry = await versions.staging.get(ref, path.encode())
        if entry.address not in known:
            known[entry.address] = value_of(await versions.objectstore.get(entry.address))
        return known[entry.address]
    except NotFound as error:
        if "address" in error.facts or "key" not in error.facts:
            return f"({error!r})"
        return None
    except LakebedError as error:
        return GONE if type(error).__name__ in TAKEN else f"({error!r})"


TAKEN: Final = frozenset({"ContentsGone"})


async def _listed(versions: Versions) -> set[str]:
    return {stat.key async for page in versions.objectstore.list("data/") for stat in page}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("run_id", "address", "state", "error", "reason", "rule", "path", "deleted_at")
    return {name: row[name] for name in kept}


async def _certificates(versions: Versions) -> dict[str, Any]:
    pages = [page async for page in versions.objectstore.list(CERTIFICATES_PREFIX)]
    keys = [stat.key for page in pages for stat in page]
    return {key: json.loads(await versions.objectstore.get(key)) for key in keys}


def _save(folder: Path, name: str, state: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps(state, default=str))
