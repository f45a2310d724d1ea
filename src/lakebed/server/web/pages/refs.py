"""Branches, sandboxes and tags: list, create, delete and undelete them, and show their earlier commits."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound
from lakebed.catalog import matching
from lakebed.operations import deleted, history, repositories, sandboxes
from lakebed.server.web.visit import Visit, carry_out, form_at, page_at

ROWS: Final = 30
MEASURED: Final = 20
"""Branches with their distances: each costs as much as four others."""
SANDBOXES: Final = "/repositories/{repository}/sandboxes"


async def show_branches(visit: Visit) -> Response:
    [name] = visit.args
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


async def create_branch(visit: Visit) -> Response:
    [name] = visit.args
    branch = visit.entry("name").strip()
    body = wire.BranchCreation(name=branch, source=visit.entry("source"), ttl=visit.entry("ttl").strip() or None)
    await visit.call(history.CREATE_BRANCH, name, body=body)
    return visit.go("repositories", name, "objects", ref=branch, notice=f"Created the branch {branch}.")


async def show_tags(visit: Visit) -> Response:
    [name] = visit.args
    prefix = visit.query("prefix")
    tags = await visit.call(history.LIST_TAGS, name, prefix=prefix, after=visit.query("after"), amount=ROWS)
    gone = await visit.look(deleted.LIST_DELETED_TAGS, name, prefix=prefix, amount=ROWS)
    return visit.render("tags", name=name, tags=tags, gone=gone)


async def create_tag(visit: Visit) -> Response:
    [name] = visit.args
    tag = visit.entry("name").strip()
    await visit.call(history.CREATE_TAG, name, body=wire.TagCreation(id=tag, ref=visit.entry("source")))
    return visit.go("repositories", name, "tags", notice=f"Created the tag {tag}.")


async def show_moves(visit: Visit) -> Response:
    """Show the earlier commits of a branch or a tag, even of a deleted one."""
    [name] = visit.args
    branch, tag = visit.query("branch"), visit.query("tag")
    operation = deleted.LIST_TAG_MOVES if tag else deleted.LIST_BRANCH_MOVES
    moves = await visit.call(operation, name, tag or branch, after=visit.query("after"), amount=ROWS)
    return visit.render("moves", name=name, branch=branch, tag=tag, moves=moves)


async def move_back(visit: Visit) -> Response:
    """Move a branch back to one of its earlier commits."""
    [name] = visit.args
    branch, commit = visit.query("branch"), visit.query("commit")
    visit.check_typed(branch)
    await visit.call(history.HARD_RESET_BRANCH, name, branch, ref=commit, refuse_expired=True)
    return visit.go("repositories", name, "moves", branch=branch, notice=f"{branch} is at {commit[:12]} again.")


async def show_sandboxes(visit: Visit) -> Response:
    [name] = visit.args
    found = await visit.call(
        sandboxes.LIST_SANDBOXES, name, prefix=visit.query("prefix"), after=visit.query("after"), amount=ROWS
    )
    next_after = found.pagination.next_offset
    return visit.render("sandboxes", name=name, sandboxes=found.results, next_after=next_after, now=visit.now())


async def create_sandbox(visit: Visit) -> Response:
    [name] = visit.args
    body = wire.SandboxCreation(
        source=visit.entry("source").strip(), ttl=visit.entry("ttl").strip(), name=visit.entry("name").strip()
    )
    made = await visit.call(sandboxes.CREATE_SANDBOX, name, body=body)
    return visit.render("key_pair", pair=made, sandbox=made, name=name)


async def show_sandbox(visit: Visit) -> Response:
    name, sandbox = visit.args
    found = await visit.call(sandboxes.GET_SANDBOX, name, sandbox)
    return visit.render("sandbox", name=name, sandbox=found, now=visit.now())


async def extend_sandbox(visit: Visit) -> Response:
    name, sandbox = visit.args
    body = wire.SandboxExtension(ttl=visit.entry("ttl").strip())
    await visit.call(sandboxes.EXTEND_SANDBOX, name, sandbox, body=body)
    return visit.go("repositories", name, "sandboxes", sandbox, notice=f"{sandbox} lasts {body.ttl} from now.")


async def promote_sandbox(visit: Visit) -> Response:
    name, sandbox = visit.args
    visit.check_typed(sandbox)
    await visit.call(sandboxes.PROMOTE_SANDBOX, name, sandbox)
    notice = f"The branch {sandbox} stays. Its key is revoked."
    return visit.go("repositories", name, "objects", ref=sandbox, notice=notice)


async def end_sandbox(visit: Visit) -> Response:
    name, sandbox = visit.args
    visit.check_typed(sandbox)
    ended = await visit.call(sandboxes.END_SANDBOX, name, sandbox)
    kept = f" Its branch stays: {ended.branch_kept}" if ended.branch_kept else " Its branch can be undeleted."
    return visit.go("repositories", name, "sandboxes", notice=f"Ended {sandbox}. Its key is revoked.{kept}")


_TO_BRANCHES: Final = "repositories/{repository}/branches"
_TO_TAGS: Final = "repositories/{repository}/tags"
delete_branch = carry_out(
    history.DELETE_BRANCH, "repository branch", _TO_BRANCHES, "Deleted the branch {branch}.", typed="branch"
)
undelete_branch = carry_out(deleted.UNDELETE_BRANCH, "repository branch", _TO_BRANCHES, "The branch {branch} is back.")
delete_tag = carry_out(history.DELETE_TAG, "repository tag", _TO_TAGS, "Deleted the tag {tag}.", typed="tag")
undelete_tag = carry_out(deleted.UNDELETE_TAG, "repository tag", _TO_TAGS, "The tag {tag} is back.")

_BRANCHES: Final = page_at(
    "/repositories/{repository}/branches",
    show_branches,
    history.LIST_BRANCHES,
    history.COUNT_AHEAD,
    deleted.LIST_DELETED_BRANCHES,
    repositories.GET_REPOSITORY,
    repositories.GET_BRANCH_PROTECTION_RULES,
)
_TAGS: Final = page_at("/repositories/{repository}/tags", show_tags, history.LIST_TAGS, deleted.LIST_DELETED_TAGS)
_MOVES: Final = page_at(
    "/repositories/{repository}/moves", show_moves, deleted.LIST_BRANCH_MOVES, deleted.LIST_TAG_MOVES
)
_SANDBOXES: Final = page_at(SANDBOXES, show_sandboxes, sandboxes.LIST_SANDBOXES)
_SANDBOX: Final = page_at(SANDBOXES + "/{sandbox}", show_sandbox, sandboxes.GET_SANDBOX)
_FORMS: Final = (
    (_BRANCHES, "", history.CREATE_BRANCH, create_branch),
    (_BRANCHES, "/delete", history.DELETE_BRANCH, delete_branch),
    (_BRANCHES, "/undelete", deleted.UNDELETE_BRANCH, undelete_branch),
    (_TAGS, "", history.CREATE_TAG, create_tag),
    (_TAGS, "/delete", history.DELETE_TAG, delete_tag),
    (_TAGS, "/undelete", deleted.UNDELETE_TAG, undelete_tag),
    (_SANDBOXES, "", sandboxes.CREATE_SANDBOX, create_sandbox),
    (_SANDBOX, "/extend", sandboxes.EXTEND_SANDBOX, extend_sandbox),
    (_SANDBOX, "/promote", sandboxes.PROMOTE_SANDBOX, promote_sandbox),
    (_SANDBOX, "/end", sandboxes.END_SANDBOX, end_sandbox),
    (_MOVES, "/back", history.HARD_RESET_BRANCH, move_back),
)
PAGES: Final = (
    _BRANCHES,
    _TAGS,
    _MOVES,
    _SANDBOXES,
    _SANDBOX,
    *(form_at(page.path + end, handler, operation, shown_by=page) for page, end, operation, handler in _FORMS),
)
