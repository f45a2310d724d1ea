"""`lakebed sandbox`: lend a branch and a key pair to a person or a program, for a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated

from lakebed.base import Denied, NotFound, human_size, parse_size
from lakebed.cli.kit.arguments import ExportOption, RepositoryArgument, YesOption, ref_in
from lakebed.cli.kit.failures import Misuse, being_there
from lakebed.cli.kit.output import exports, human_time, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, RefUri, parse_repository
from lakebed.gc.rules import parse_lifetime
from lakebed.wire import Sandbox, SandboxEnded

app = noun(
    "Lend a branch and a key pair that can write nothing else, for a time.",
    "lakebed sandbox create lakefs://lake --from main --ttl 2d --name kim",
    "lakebed sandbox list lakefs://lake",
    "lakebed sandbox end lakefs://lake sandbox-kim-0123456789 --yes",
)

SandboxArgument = Annotated[str, Argument(metavar="SANDBOX", help="A sandbox's id, which is its branch, too.")]
TtlOption = Annotated[str, Option("--ttl", metavar="DURATION", help="How long from now: 90m, 36h, 20d or 2w.")]


@app.command("create")
def create(
    session: Session,
    uri: RepositoryArgument,
    source: Annotated[str, Option("--from", metavar="REF", help="The branch, tag or commit that it begins at.")],
    ttl: TtlOption,
    name: Annotated[str, Option("--name", help="A word for its id, such as who it is for.")] = "",
    quota: Annotated[str, Option("--quota", metavar="SIZE", help="How much may be written: 500MiB or 10GiB.")] = "",
    export: ExportOption = False,
) -> None:
    """Make a branch, and a key pair that reads the source, writes the branch and opens pull requests.

    The secret key is shown once, in lines for a shell. At the end the key is revoked and the branch deleted.
    """
    parse_lifetime(ttl)
    repository, quota_bytes = parse_repository(uri), parse_size(quota) if quota else 0
    if quota and not quota_bytes:
        raise Misuse("a quota has at least one byte: leave --quota out, and the branch has none")
    endpoint = session.settings.endpoint
    ref = ref_in(repository, source)
    with being_there(str(RefUri(repository, ref))):
        made = session.client.sandboxes.create(repository, ref, ttl=ttl, name=name, quota_bytes=quota_bytes)
    lines = exports(endpoint, made.access_key_id, made.secret_access_key, BOX=made.id)
    session.show(made, lambda one: [*([] if export else _text(one)), *lines])


@app.command("list")
def list_sandboxes(session: Session, uri: RepositoryArgument) -> None:
    """List the sandboxes of a repository."""
    found = session.client.sandboxes.list(parse_repository(uri))
    columns: dict[str, Callable[[Sandbox], object]] = {
        "sandbox": lambda one: one.id,
        "state": lambda one: one.state,
        "from": lambda one: one.source,
        "until": lambda one: human_time(one.expiration_date),
        "by": lambda one: one.created_by,
    }
    session.show_table(found, columns, otherwise="no sandbox")


@app.command("show")
def show(session: Session, uri: RepositoryArgument, sandbox: SandboxArgument) -> None:
    """Show a sandbox: its source, its end, its key."""
    session.show(session.client.sandboxes.get(parse_repository(uri), sandbox), _text)


@app.command("extend")
def extend(session: Session, uri: RepositoryArgument, sandbox: SandboxArgument, ttl: TtlOption) -> None:
    """Let a sandbox last longer."""
    parse_lifetime(ttl)
    extended = session.client.sandboxes.extend(parse_repository(uri), sandbox, ttl=ttl)
    session.show(extended, lambda one: [f"{one.id} lasts until {human_time(one.expiration_date)}"])


@app.command("end")
def end(session: Session, uri: RepositoryArgument, sandbox: SandboxArgument, yes: YesOption = False) -> None:
    """Revoke the key and delete the branch, which can be undeleted for a while.

    Uncommitted changes are lost. Open pull requests of the branch are named first: they can no longer be merged.
    """
    repository, sandboxes = parse_repository(uri), session.client.sandboxes
    exists = partial(sandboxes.get, repository, sandbox)
    _warn_of_pulls(session, repository, sandbox)
    session.confirm(f"End {sandbox}, and delete its branch?", yes=yes, exists=exists)
    ended = sandboxes.end(repository, sandbox)
    session.show(ended, _ended)


@app.command("promote")
def promote(session: Session, uri: RepositoryArgument, sandbox: SandboxArgument, yes: YesOption = False) -> None:
    """Revoke the key, and keep the branch for good."""
    repository, sandboxes = parse_repository(uri), session.client.sandboxes
    exists = partial(sandboxes.get, repository, sandbox)
    session.confirm(f"Revoke the key of {sandbox}, and keep its branch?", yes=yes, exists=exists)
    session.show(sandboxes.promote(repository, sandbox), _ended)


def _warn_of_pulls(session: Session, repository: str, sandbox: str) -> None:
    """Name the open pull requests of the branch. Say nothing to a user who may not list them."""
    with suppress(Denied, NotFound):
        for pull in session.client.pulls.list(repository):
            if pull.source_branch == sandbox:
                title = printable(pull.title)
                session.note(
                    f"pull request {pull.id} ({title}) into {pull.destination_branch} stays open, and cannot be merged"
                    f" once the branch is deleted. To close it: lakebed pulls close {SCHEME}{repository} {pull.id}"
                )


def _ended(ended: SandboxEnded) -> list[str]:
    branch = f"its branch stays: {ended.branch_kept}" if ended.branch_kept else "its branch is deleted"
    return [f"{ended.id} has ended; {branch}"]


def _text(one: Sandbox) -> list[str]:
    return [
        f"sandbox    {one.id} ({one.state})",
        f"from       {one.source} at {one.commit_id[:12]}",
        f"until      {human_time(one.expiration_date)}",
        f"by         {one.created_by}",
        *([f"quota      {human_size(one.quota_bytes)}"] if one.quota_bytes else []),
        f"key        {one.access_key_id}",
    ]
