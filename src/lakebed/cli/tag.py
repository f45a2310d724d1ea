"""`lakebed tag`: names for commits that never move."""

from __future__ import annotations

from typing import Annotated

import typer

from .arguments import LimitOption, PrefixOption, RepositoryArgument, TagArgument, YesOption
from .branch import ref_in, ref_table
from .completion import complete_ref
from .failures import being_new, being_there
from .session import Session, command
from .tree import noun
from .uris import RefUri, parse_repository, parse_tag

app = noun("Create, list, show and delete tags.")


@app.command("create")
@command
def create(
    session: Session,
    uri: TagArgument,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="What it names: a ref, or lakefs://repository/ref.", autocompletion=complete_ref
        ),
    ],
) -> None:
    """Name a commit for ever."""
    tag = parse_tag(uri)
    named = ref_in(tag.repository, ref)
    with being_new(str(tag)), being_there(str(RefUri(tag.repository, named))):
        made = session.client.tags.create(tag.repository, tag.ref, ref=named)
    session.show(made, lambda _: f"created {tag} at {made.commit_id[:12]}")


@app.command("list")
@command
def list_tags(session: Session, uri: RepositoryArgument, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List the tags of a repository and the commits they name."""
    session.show_all(session.client.tags.list(parse_repository(uri), prefix=prefix, limit=limit), ref_table)


@app.command("show")
@command
def show(session: Session, uri: TagArgument) -> None:
    """Show which commit a tag names."""
    tag = parse_tag(uri)
    session.show(session.client.tags.get(tag.repository, tag.ref), lambda found: found.commit_id)


@app.command("delete")
@command
def delete(session: Session, uri: TagArgument, yes: YesOption = False) -> None:
    """Delete a tag. The commit it names stays until retention lets it go."""
    tag = parse_tag(uri)
    session.confirm(f"Delete the tag {tag}?", yes=yes)
    session.client.tags.delete(tag.repository, tag.ref)
    session.done(f"deleted {tag}", deleted=str(tag))
