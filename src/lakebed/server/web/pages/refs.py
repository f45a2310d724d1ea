"""Branches, sandboxes and tags: list, create, delete and undelete them, and show their earlier commits."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.operations import deleted, history, sandboxes
from lakebed.server.web.visit import Page, Visit

ROWS: Final = 30
SANDBOXES: Final = "/repositories/{repository}/sandboxes"


async def show_branches(visit: Visit) -> Response:
    [name] = visit.args
    prefix = visit.query("prefix")
    branches = await visit.call(
        history.LIST_BRANCHES, name, prefix=prefix, after=visit.query("after"), amount=ROWS, details=True
    )
    gone = await visit.look(deleted.LIST_DELETED_BRANCHES, name, prefix=prefix, amount=ROWS)
    return visit.render("branches", name=name, branches=branches, gone=gone)


async def create_branch(visit: Visit) -> Response:
    [name] = visit.args
    branch = visit.entry("name").strip()
    body = wire.BranchCreation(name=branch, source=visit.entry("source"), ttl=visit.entry("ttl").strip() or None)
    await visit.call(history.CREATE_BRANCH, name, body=body)
    return visit.go("repositories", name, "objects", ref=branch, notice=f"Created the branch {branch}.")


async def delete_branch(visit: Visit) -> Response:
    [name] = visit.args
    branch = visit.query("branch")
    visit.check_typed(branch)
    await visit.call(history.DELETE_BRANCH, name, branch)
    return visit.go("repositories", name, "branches", notice=f"Deleted the branch {branch}.")


async def undelete_branch(visit: Visit) -> Response:
    [name] = visit.args
    await visit.call(deleted.UNDELETE_BRANCH, name, visit.query("branch"))
    return visit.go("repositories", name, "branches", notice=f"The branch {visit.query('branch')} is back.")


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


async def delete_tag(visit: Visit) -> Response:
    [name] = visit.args
    tag = visit.query("tag")
    visit.check_typed(tag)
    await visit.call(history.DELETE_TAG, name, tag)
    return visit.go("repositories", name, "tags", notice=f"Deleted the tag {tag}.")


async def undelete_tag(visit: Visit) -> Response:
    [name] = visit.args
    await visit.call(deleted.UNDELETE_TAG, name, visit.query("tag"))
    return visit.go("repositories", name, "tags", notice=f"The tag {visit.query('tag')} is back.")


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
    # The operation returns all sandboxes, so the page cuts.
    after = visit.query("after")
    every = [each for each in (await visit.call(sandboxes.LIST_SANDBOXES, name)).results if each.id > after]
    rows = every[:ROWS]
    return visit.render(
        "sandboxes", name=name, sandboxes=rows, next_after=rows[-1].id if len(every) > ROWS else "", now=visit.now()
    )


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


_BRANCHES: Final = Page(
    method="GET",
    path="/repositories/{repository}/branches",
    operations=(history.LIST_BRANCHES, deleted.LIST_DELETED_BRANCHES),
    handler=show_branches,
)
_TAGS: Final = Page(
    method="GET",
    path="/repositories/{repository}/tags",
    operations=(history.LIST_TAGS, deleted.LIST_DELETED_TAGS),
    handler=show_tags,
)
_MOVES: Final = Page(
    method="GET",
    path="/repositories/{repository}/moves",
    operations=(deleted.LIST_BRANCH_MOVES, deleted.LIST_TAG_MOVES),
    handler=show_moves,
)
_SANDBOXES: Final = Page(method="GET", path=SANDBOXES, operations=(sandboxes.LIST_SANDBOXES,), handler=show_sandboxes)
_SANDBOX: Final = Page(
    method="GET", path=SANDBOXES + "/{sandbox}", operations=(sandboxes.GET_SANDBOX,), handler=show_sandbox
)
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
    *(
        Page(method="POST", path=page.path + end, operations=(operation,), handler=handler, shown_by=page)
        for page, end, operation, handler in _FORMS
    ),
)
