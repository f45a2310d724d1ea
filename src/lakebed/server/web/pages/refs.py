"""Branches, sandboxes and tags: list, create, delete and undelete them, and show their earlier commits."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound
from lakebed.catalog import matching
from lakebed.operations import deleted, history, repositories, sandboxes
from lakebed.server.web.visit import Visit, page_at

ROWS: Final = 30
MEASURED: Final = 20
"""Branches with their distances: each costs as much as four others."""
SANDBOXES: Final = "/repositories/{repository}/sandboxes"


@page_at("/repositories/{repository}/branches")
async def show_branches(visit: Visit, name: str) -> Response:
    prefix = visit.query("prefix")
    is_measured = visit.query("distances") == "1"
    amount = MEASURED if is_measured else ROWS
    branches = await visit.call(
        history.LIST_BRANCHES, name, prefix=prefix, after=visit.query("after"), amount=amount, details=True
    )
    gone = await visit.look(deleted.LIST_DELETED_BRANCHES, name, prefix=prefix, amount=ROWS)
    rules = await visit.look(repositories.GET_BRANCH_PROTECTION_RULES, name)
    patterns = [rule.pattern for rule in rules or ()]
    default, distances = "", {}
    if is_measured:
        repository = await visit.look(repositories.GET_REPOSITORY, name)
        default = "" if repository is None else repository.default_branch
        for each in branches.results if default else ():
            with suppress(NotFound):  # It was deleted meanwhile.
                distances[each.id] = await visit.look(history.COUNT_AHEAD, name, each.id, default)
    return visit.render(
        "branches",
        name=name,
        branches=branches,
        gone=gone,
        default=default,
        distances=distances,
        protected={each.id for each in branches.results if matching(patterns, each.id)},
    )


@show_branches.form()
async def create_branch(visit: Visit, name: str) -> Response:
    branch = visit.entry("name").strip()
    body = wire.BranchCreation(name=branch, source=visit.entry("source"), ttl=visit.entry("ttl").strip() or None)
    await visit.call(history.CREATE_BRANCH, name, body=body)
    return visit.go("repositories", name, "objects", ref=branch, notice=f"Created the branch {branch}.")


@page_at("/repositories/{repository}/tags")
async def show_tags(visit: Visit, name: str) -> Response:
    prefix = visit.query("prefix")
    tags = await visit.call(history.LIST_TAGS, name, prefix=prefix, after=visit.query("after"), amount=ROWS)
    gone = await visit.look(deleted.LIST_DELETED_TAGS, name, prefix=prefix, amount=ROWS)
    return visit.render("tags", name=name, tags=tags, gone=gone)


@show_tags.form()
async def create_tag(visit: Visit, name: str) -> Response:
    tag = visit.entry("name").strip()
    await visit.call(history.CREATE_TAG, name, body=wire.TagCreation(id=tag, ref=visit.entry("source")))
    return visit.go("repositories", name, "tags", notice=f"Created the tag {tag}.")


@page_at("/repositories/{repository}/moves")
async def show_moves(visit: Visit, name: str) -> Response:
    """Show the earlier commits of a branch or a tag, even of a deleted one."""
    branch, tag = visit.query("branch"), visit.query("tag")
    operation = deleted.LIST_TAG_MOVES if tag else deleted.LIST_BRANCH_MOVES
    moves = await visit.call(operation, name, tag or branch, after=visit.query("after"), amount=ROWS)
    return visit.render("moves", name=name, branch=branch, tag=tag, moves=moves)


@show_moves.form("/back")
async def move_back(visit: Visit, name: str) -> Response:
    """Move a branch back to one of its earlier commits."""
    branch, commit = visit.query("branch"), visit.query("commit")
    visit.check_typed(branch)
    await visit.call(history.HARD_RESET_BRANCH, name, branch, ref=commit, refuse_expired=True)
    return visit.go("repositories", name, "moves", branch=branch, notice=f"{branch} is at {commit[:12]} again.")


@page_at(SANDBOXES)
async def show_sandboxes(visit: Visit, name: str) -> Response:
    found = await visit.call(
        sandboxes.LIST_SANDBOXES, name, prefix=visit.query("prefix"), after=visit.query("after"), amount=ROWS
    )
    next_after = found.pagination.next_offset
    return visit.render("sandboxes", name=name, sandboxes=found.results, next_after=next_after, now=visit.now())


@show_sandboxes.form()
async def create_sandbox(visit: Visit, name: str) -> Response:
    body = wire.SandboxCreation(
        source=visit.entry("source").strip(), ttl=visit.entry("ttl").strip(), name=visit.entry("name").strip()
    )
    made = await visit.call(sandboxes.CREATE_SANDBOX, name, body=body)
    return visit.render("key_pair", pair=made, sandbox=made, name=name)


@page_at(SANDBOXES + "/{sandbox}")
async def show_sandbox(visit: Visit, name: str, sandbox: str) -> Response:
    found = await visit.call(sandboxes.GET_SANDBOX, name, sandbox)
    return visit.render("sandbox", name=name, sandbox=found, now=visit.now())


@show_sandbox.form("/extend")
async def extend_sandbox(visit: Visit, name: str, sandbox: str) -> Response:
    body = wire.SandboxExtension(ttl=visit.entry("ttl").strip())
    await visit.call(sandboxes.EXTEND_SANDBOX, name, sandbox, body=body)
    return visit.go("repositories", name, "sandboxes", sandbox, notice=f"{sandbox} lasts {body.ttl} from now.")


@show_sandbox.form("/promote")
async def promote_sandbox(visit: Visit, name: str, sandbox: str) -> Response:
    visit.check_typed(sandbox)
    await visit.call(sandboxes.PROMOTE_SANDBOX, name, sandbox)
    notice = f"The branch {sandbox} stays. Its key is revoked."
    return visit.go("repositories", name, "objects", ref=sandbox, notice=notice)


@show_sandbox.form("/end")
async def end_sandbox(visit: Visit, name: str, sandbox: str) -> Response:
    visit.check_typed(sandbox)
    ended = await visit.call(sandboxes.END_SANDBOX, name, sandbox)
    kept = f" Its branch stays: {ended.branch_kept}" if ended.branch_kept else " Its branch can be undeleted."
    return visit.go("repositories", name, "sandboxes", notice=f"Ended {sandbox}. Its key is revoked.{kept}")


delete_branch = show_branches.carry_out(
    "/delete", history.DELETE_BRANCH, "repository branch", "Deleted the branch {branch}.", typed="branch"
)
undelete_branch = show_branches.carry_out(
    "/undelete", deleted.UNDELETE_BRANCH, "repository branch", "The branch {branch} is back."
)
delete_tag = show_tags.carry_out("/delete", history.DELETE_TAG, "repository tag", "Deleted the tag {tag}.", typed="tag")
undelete_tag = show_tags.carry_out("/undelete", deleted.UNDELETE_TAG, "repository tag", "The tag {tag} is back.")
