"""`lakebed mcp`: tools for an agent on standard input and output, which call the configured server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import Session, command
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, is_uri, parse_ref, parse_repository

if TYPE_CHECKING:
    from lakebed.agents import Operations, Writers

app = noun(
    "Give an agent tools over the Model Context Protocol.",
    "lakebed mcp --read-only",
    "lakebed mcp --branch lakefs://lake/agent",
)


@app.command("mcp")
@command
def mcp(
    session: Session,
    read_only: Annotated[bool, Option("--read-only", help="Offer no tool that changes anything.")] = False,
    branch: Annotated[
        str, Option("--branch", "-b", metavar="URI", help="Writes go to this branch alone: lakefs://lake/agent.")
    ] = "",
    repository: Annotated[
        list[str] | None,
        Option("--repository", metavar="URI", help="Only this one. May be repeated. Default: all that you may read."),
    ] = None,
) -> None:
    """Give an agent tools over the Model Context Protocol, on standard input and output.

    An agent's program starts this command. It reads with your credentials, and writes to --branch. No tool merges,
    deletes or applies a plan. The same tools are at /mcp of a server.
    """
    if read_only and branch:
        raise Misuse("--read-only and --branch contradict each other")
    from lakebed import agents  # here, since it loads packages that only an extra brings

    if not agents.is_installed():
        raise Misuse("this command needs the package mcp: pip install 'lakebed[mcp]'")
    session.client.current_user()  # An agent's program shows this error. It hides those of tools.
    operations = agents.ClientOperations(session.client)
    scope = agents.Scope(
        operations=operations,
        writers=_writers(branch, operations),
        repositories=tuple(parse_repository(_as_uri(each)) for each in repository or []),
    )
    asyncio.run(agents.serve_stdio(scope))


def _writers(branch: str, operations: Operations) -> Writers:
    from lakebed import agents

    if not branch:
        return agents.NoWrites()
    uri = parse_ref(_as_uri(branch))
    return agents.FixedBranch(uri.repository, uri.ref, operations)


def _as_uri(text: str) -> str:
    return text if is_uri(text) else f"{SCHEME}{text}"
