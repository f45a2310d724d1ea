"""`lakebed mcp`: tools for an agent on standard input and output, which call the configured server."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import msgspec

from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import Session, connect
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, is_uri, parse_ref, parse_repository
from lakebed.gc.rules import parse_lifetime

if TYPE_CHECKING:
    from lakebed.agents import Operations, Writers

app = noun(
    "Give an agent tools over the Model Context Protocol.",
    "lakebed mcp",
    "lakebed mcp --read-only --repository lakefs://lake",
    "lakebed mcp --branch lakefs://lake/agent",
)


@app.command("mcp")
def mcp(
    session: Session,
    read_only: Annotated[bool, Option("--read-only", help="Offer no tool that changes anything.")] = False,
    branch: Annotated[
        str, Option("--branch", "-b", metavar="URI", help="Write to this branch alone, and make no sandbox.")
    ] = "",
    ttl: Annotated[
        str, Option("--ttl", metavar="DURATION", help="How long a sandbox lasts: 36h, 20d or 2w. Default: 24h.")
    ] = "",
    source: Annotated[
        str, Option("--from", metavar="REF", help="Where a sandbox begins. Default: the default branch.")
    ] = "",
    repository: Annotated[
        list[str] | None,
        Option("--repository", metavar="URI", help="Only this one. May be repeated. Default: all that you may read."),
    ] = None,
) -> None:
    """Give an agent tools over the Model Context Protocol, on standard input and output.

    An agent's program starts this command. It reads with your credentials. At its first write to a repository it makes
    a sandbox, and writes there with the key of the sandbox. No tool merges, deletes or applies a plan.
    """
    if sum(map(bool, (read_only, branch, ttl or source))) > 1:
        raise Misuse("choose one: --read-only, --branch, or a sandbox (--ttl, --from)")
    if ttl:
        parse_lifetime(ttl)
    from lakebed import agents  # here, since it loads packages that only an extra brings

    if not agents.is_installed():
        raise Misuse("this command needs the package mcp: pip install 'lakebed[mcp]'")
    session.client.current_user()  # An agent's program shows this error. It hides those of tools.
    own = agents.ClientOperations(session.client)
    with ExitStack() as clients:

        def connected(access_key_id: str, secret_access_key: str) -> Operations:
            keys = {"access_key_id": access_key_id, "secret_access_key": secret_access_key}
            pair = msgspec.structs.replace(session.settings, **keys)
            return agents.ClientOperations(clients.enter_context(connect(pair)))

        writers: Writers
        if read_only:
            writers = agents.NoWrites()
        elif branch:
            uri = parse_ref(_as_uri(branch))
            writers = agents.FixedBranch(uri.repository, uri.ref, own)
        else:
            writers = agents.OwnSandbox(own, agents.InMemory(own, connected), source=source, ttl=ttl)
        named = tuple(parse_repository(_as_uri(each)) for each in repository or [])
        scope = agents.Scope(operations=own, writers=writers, repositories=named)
        asyncio.run(scope.check_names())  # as above
        asyncio.run(agents.serve_stdio(scope))


def _as_uri(text: str) -> str:
    return text if is_uri(text) else f"{SCHEME}{text}"
