"""`lakebed spark`: a Java that Spark starts with, and the settings by which any Spark reads and writes branches."""

from __future__ import annotations

from typing import Annotated

from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository

app = noun(
    "Set up a Spark of your own for this server.",
    "lakebed spark java     # for JAVA_HOME",
    "lakebed spark settings --repository lakefs://lake",
)


@app.command("java")
def java(session: Session) -> None:
    """Print a JAVA_HOME that Spark starts with: the machine's Java, or the one that pip brought."""
    from lakebed.spark import java_home  # here: an installation without Spark has the other commands

    home = str(java_home(session.environment))
    session.show({"java_home": home}, lambda _: home)


@app.command("settings")
def settings(
    session: Session,
    repository: Annotated[
        str, Option("--repository", metavar="URI", help="Only for this one: other buckets stay at their own store.")
    ] = "",
    secret: Annotated[bool, Option("--secret", help="Print the secret access key, too.")] = False,
) -> None:
    """Print the settings of S3A for the configured server, as lines of spark-defaults.conf.

    The secret is left out unless --secret is given.
    """
    from lakebed.spark import s3a_settings

    name = parse_repository(repository) if repository else ""
    found = s3a_settings(session.settings, repository=name)
    if not secret:
        found = {key: value for key, value in found.items() if not key.endswith(".secret.key")}
        session.note("the secret key is left out: --secret prints its line")
    session.show(found, lambda record: [f"{key} {value}" for key, value in record.items()])
