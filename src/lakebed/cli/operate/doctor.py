"""`lakebed doctor`, `whoami` and `health`: check the settings, the server, its processes and the credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import click
import msgspec

from lakebed.base import LakebedError, Unavailable, human_size
from lakebed.cli.kit.failures import Failed, describe
from lakebed.cli.kit.output import fields, hanging, human_time, table
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.wire import ServerStatus, UpkeepStep, VersionConfig

T = TypeVar("T")

app = noun("Check the settings, the server and the credentials.")
whoami_app = noun("Show whose credentials these are.")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one check. `advice` is the next step where it failed."""

    name: str
    passed: bool
    found: str
    advice: str = ""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    endpoint: str
    access_key_id: str


@whoami_app.command()
def whoami(session: Session) -> None:
    """Show the user of the configured credentials, and the server that was asked."""
    caller = Caller(
        user=session.client.current_user(),
        endpoint=session.settings.endpoint,
        access_key_id=session.settings.access_key_id,
    )
    session.show_fields(
        caller, [("User", caller.user), ("Endpoint", caller.endpoint), ("Access key id", caller.access_key_id)]
    )


@app.command()
def doctor(session: Session) -> None:
    """Check in turn that the server answers, that it is set up, and that it knows the credentials."""
    done: list[Check] = []

    def shown() -> Iterator[Check]:
        for check in _checks(session):
            done.append(check)
            yield check
            if not check.passed:
                return  # The later ones would only fail for the same reason.

    session.show_all(shown(), check_lines)
    if not all(check.passed for check in done):
        raise Failed(done[-1].advice)


def _checks(session: Session) -> Iterator[Check]:
    endpoint, client = session.settings.endpoint, session.client
    yield _check(
        "server",
        client.setup_state,
        lambda state: f"{endpoint} answers, {state.replace('_', ' ')}",
        f"start a server with `lakebed serve`, or name another with --endpoint or `lakebed config set` ({endpoint})",
    )
    if client.setup_state() != "initialized":
        yield Check(name="set-up", passed=False, found="there is no user yet", advice=f"run `{session.setting_up}`")
        return
    yield _check(
        "credentials",
        client.current_user,
        lambda user: f"user {user}",
        "store a valid key pair with `lakebed config set`; an administrator makes one with `lakebed auth users create`",
    )
    log = "the log of the server says more"
    yield _check("readiness", partial(_not_ready, endpoint), lambda _: "/_ready is ok", log)
    yield _check(
        "storage",
        client.config,
        lambda config: (
            f"{config.storage_config.blockstore_type}, server {_version_text(config.version_config)}"
            if config.storage_config and config.version_config
            else ""
        ),
        log,
    )


def _not_ready(endpoint: str) -> None:
    import httpx

    try:
        answer = httpx.get(f"{endpoint.rstrip('/')}/_ready", timeout=10)
        found = answer.json()
    except (httpx.HTTPError, ValueError):
        return  # A proxy may keep the probes to itself. The other checks asked the server.
    if answer.status_code != 200 and isinstance(found, dict):
        checks = found.get("checks", found)
        raise Unavailable(", ".join(f"{name} is {state}" for name, state in checks.items() if state != "ok"))


def _version_text(version: VersionConfig) -> str:
    """Return our release; the other number is that of the lakeFS whose API the server speaks."""
    ours = f"lakebed {version.lakebed_version}, " if version.lakebed_version else ""
    return f"{ours}API of lakeFS {version.version}"


def _check(name: str, ask: Callable[[], T], describe_found: Callable[[T], str], advice: str) -> Check:
    try:
        found = ask()
    except LakebedError as error:
        return Check(name=name, passed=False, found=describe(error), advice=advice)
    return Check(name=name, passed=True, found=describe_found(found))


def check_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Write a line for each check, as it comes."""
    for check in checks:
        mark = click.style("ok  ", fg="green") if check.passed else click.style("FAIL", fg="red")
        yield from hanging(f"{mark}  {check.name:<12} ", check.found, indent=19)


health_app = noun("Show the health of the server.")


@health_app.command()
def health(session: Session) -> None:
    """Show whether the server is ready, its versions and processes, and when their upkeep last ended well."""
    session.show(session.client.status(), text=_health_text)


def _health_text(status: ServerStatus) -> Iterator[str]:
    yield from fields(
        [
            ("Ready", "yes" if status.ready else "no"),
            ("Version", f"{status.version}, Python {status.python}"),
            ("Database", f"{status.database}: {status.checks.get('kv', '')}"),
            ("Object store", f"{status.object_store}: {status.checks.get('objects', '')}"),
            ("Disk", f"{human_size(status.disk_free_bytes)} free: {status.checks.get('disk', '')}"),
        ]
    )
    yield ""
    yield from table(
        ["process", "since", "memory", "requests", "upkeep"],
        [
            [
                f"{process.process}",
                human_time(process.started),
                human_size(process.memory_bytes),
                f"{process.requests:,}",
                _upkeep(process.upkeep),
            ]
            for process in status.processes
        ],
    )


def _upkeep(steps: list[UpkeepStep]) -> str:
    """Return which steps failed, or when the oldest one ended well."""
    failed = [f"{step.name} failed {step.failures} times" for step in steps if step.failures]
    if failed:
        return ", ".join(failed)
    return f"since {human_time(min(step.done for step in steps))}" if steps else "not yet"
