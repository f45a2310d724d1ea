"""Arguments and options that several commands take, with their words and their completion, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from .completion import complete_object, complete_ref, complete_repository
from .failures import Misuse

RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPOSITORY", help="lakefs://repository", autocompletion=complete_repository)
]
RefArgument = Annotated[str, typer.Argument(metavar="REF", help="lakefs://repository/ref", autocompletion=complete_ref)]
BranchArgument = Annotated[
    str, typer.Argument(metavar="BRANCH", help="lakefs://repository/branch", autocompletion=complete_ref)
]
TagArgument = Annotated[str, typer.Argument(metavar="TAG", help="lakefs://repository/tag", autocompletion=complete_ref)]
ObjectArgument = Annotated[
    str, typer.Argument(metavar="OBJECT", help="lakefs://repository/ref/path", autocompletion=complete_object)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LimitOption = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Only names that begin so.")]
MessageOption = Annotated[str, typer.Option("--message", "-m", help="What the commit says.")]
MetaOption = Annotated[
    list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="Metadata; may be repeated.")
]


def parse_meta(pairs: list[str] | None) -> dict[str, str]:
    """`name=value` pairs as a mapping; a value may hold further `=`.

    Raises:
        Misuse: a pair without `=` or name, or a name given twice.
    """
    metadata: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise Misuse(f"--meta {pair!r} is not of the form NAME=VALUE")
        if name in metadata:
            raise Misuse(f"--meta names {name!r} twice")
        metadata[name] = value
    return metadata
