"""Declare once what several commands take: arguments and options, with their help and their completion."""

from __future__ import annotations

from typing import Annotated

import typer

from .completion import complete_object, complete_ref, complete_repository
from .failures import Misuse
from .uris import SCHEME, RefUri, is_uri, parse_ref

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
UidOption = Annotated[str, typer.Option("--uid", help="Which one, where several had the name (`repo list --deleted`).")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
LimitOption = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Only names that begin with this.")]
PathsOption = Annotated[str, typer.Option("--prefix", help="Only paths that begin with this.")]
RefuseExpiredOption = Annotated[
    bool,
    typer.Option("--refuse-expired", help="Fail where it would bring objects that a lifecycle policy let go."),
]
EmptyOption = Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changed.")]
MessageOption = Annotated[str, typer.Option("--message", "-m", help="The commit's message.")]
MetaOption = Annotated[
    list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="Metadata; may be repeated.")
]


def ref_in(repository: str, text: str) -> str:
    """Return a ref that was given bare or as a URI of the same repository.

    Raises:
        Misuse: it is of another one.
    """
    if not is_uri(text):
        return text
    uri = parse_ref(text)
    if uri.repository != repository:
        raise Misuse(f"{uri} is not in {SCHEME}{repository}")
    return uri.ref


def same_repository(left: RefUri, right: RefUri) -> str:
    """Return the repository of both.

    Raises:
        Misuse: they are of two.
    """
    if left.repository != right.repository:
        raise Misuse(f"{left} and {right} are not in one repository")
    return left.repository


def parse_meta(pairs: list[str] | None) -> dict[str, str]:
    """Return `name=value` pairs as a mapping; a value may hold further `=`.

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
