"""Make the statements of a sandbox's key, once, with the sandbox.

It may read the source and the branch, write, commit and reset on the branch, and open pull requests from it. A merge
or reset puts a commit of another ref on the branch and asks for no allow of that ref, so the rights deny all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lakebed.auth import Condition, InvalidPolicy, Ref, Statement, check_statements
from lakebed.versions import RefKind, Versions

READ: Final = ("fs:ReadBranch", "fs:ReadTag", "fs:ReadCommit", "fs:ReadObject", "fs:ListObjects", "fs:ListCommits")


def rights_of(repository: str, branch: str, source: Ref, denials: Sequence[Statement] = ()) -> tuple[Statement, ...]:
    """Return the statements of a sandbox's user. `denials` are those of its maker: they hold for its key, too.

    Raises:
        InvalidPolicy: the name of a tag, or a denial, has characters that no statement can have.
    """
    lake = f"arn:lakefs:fs:::repository/{repository}"
    refs = (branch, str(source.ref))
    at_refs = (Condition(operator="StringEquals", key="ref", values=refs),)
    elsewhere = (Condition(operator="StringNotEquals", key="ref", values=refs),)
    on_branch = (Condition(operator="StringEquals", key="branch", values=(branch,)),)
    written, moved = ("fs:WriteObject", "fs:DeleteObject"), ("fs:CreateCommit", "fs:RevertBranch")
    return check_statements(
        [
            Statement(effect="allow", actions=("fs:ReadRepository", "pr:ReadPullRequest"), resource=lake),
            Statement(effect="allow", actions=READ, resource=lake, conditions=at_refs),
            Statement(effect="allow", actions=READ, resource=f"{lake}/*", conditions=at_refs),
            Statement(effect="allow", actions=written, resource=f"{lake}/object/*", conditions=on_branch),
            Statement(effect="allow", actions=moved, resource=f"{lake}/branch/{branch}", conditions=on_branch),
            Statement(effect="allow", actions=("pr:WritePullRequest",), resource=lake, conditions=on_branch),
            Statement(effect="deny", actions=READ, resource="*", conditions=elsewhere),
            *denials,
        ]
    )


async def source_of(versions: Versions, expression: str) -> Ref:
    """Return the branch or tag that the key may go on reading. Another expression stands for its commit of now.

    Raises:
        RefNotFound, BranchNotFound, CommitNotFound: it names nothing.
    """
    kind = await versions.refs.kind_of(expression)
    if kind is RefKind.BRANCH:
        return Ref.of_branch(expression)
    if kind is RefKind.TAG:
        tag = Ref.of_tag(expression)
        try:
            rights_of("lake", "branch", tag)
        except InvalidPolicy:
            pass  # No condition can name this tag.
        else:
            return tag
    return Ref(ref=await versions.refs.resolve_commit(expression))
