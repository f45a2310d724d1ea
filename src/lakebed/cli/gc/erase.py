"""`lakebed erase`: objects go for good, from every commit and branch, whatever rules, tags and windows say.

`plan` shows what goes and deletes nothing. `apply` carries it out and certifies what is absent, and what still stands
and why. `verify` asks the same again. Both exit with 0 only where nothing stands. Legal holds are respected.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from lakebed.base import count_of
from lakebed.cli.arguments import RepositoryArgument, YesOption
from lakebed.cli.failures import FAILED, Misuse, describe
from lakebed.cli.parameters import Argument, Option
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun

from .options import GraceOption, Working, asked
from .report import certificate_html
from .session import RootOption, RunArgument, check, check_applies, checked_collector, read_run, run_named, with_spark
from .text import amount, plan_texts, remaining_text, report_text, standing_text

if TYPE_CHECKING:
    # At run time only in the commands: these load Arrow, for which `--help` need not wait.
    from lakebed.gc.protocol import Certificate
    from lakebed.gc.rules import Selection

app = noun("Erase objects for good, from every commit and branch.")

PathsArgument = Annotated[
    list[str] | None,
    Argument(metavar="[PATH]...", help="Paths. One with * is a glob, one that ends with / is all below."),
]


@app.command("plan")
@command
def plan(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    why: Annotated[str, Option("--why", help="The reason, such as a request's number. The plan keeps it.")],
    paths: PathsArgument = None,
    file: Annotated[Path | None, Option("--from", metavar="FILE", help="Paths, one a line, taken as they are.")] = None,
    digests: Annotated[list[str] | None, Option("--digest", help="A checksum. Repeatable.")] = None,
    metadata: Annotated[
        list[str] | None, Option("--metadata", metavar="KEY=VALUE", help="Only entries with this. Repeatable.")
    ] = None,
    shared: Annotated[
        bool, Option("--shared", help="Also objects that other entries name: these then read as erased.")
    ] = False,
    copies: Annotated[
        bool, Option("--copies", help="Look for the content at other paths, however many rows there are.")
    ] = False,
    local_root: RootOption = None,
) -> None:
    """Find every object that these entries ever named. Write down what goes, and what stays. Deletes nothing."""
    from lakebed.gc.protocol import ErasureOrder

    request: Any = asked("plan", working, kinds=[])
    order = ErasureOrder(
        selection=_selection(paths or [], file, digests or [], metadata or []),
        why=why,
        takes_shared=shared,
        finds_copies=copies,
    )
    collector = checked_collector(session, uri, local_root)
    with with_spark(session, collector) as collector:
        made = collector.plan_erasure(order, engine=request.engine, tasks=request.tasks)
        session.show_all([made], partial(plan_texts, command=collector.command_of_all))


OutOption = Annotated[
    Path | None, Option("--out", metavar="FILE", help="Write the certificate here, in JSON, as verify reads it.")
]
HtmlOption = Annotated[Path | None, Option("--html", metavar="FILE", help="Write it here as a page, too.")]


@app.command("apply")
@command
def apply(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    working: Working,
    out: OutOption = None,
    html: HtmlOption = None,
    readers_grace: GraceOption = None,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Erase what a plan names, and certify it. May be repeated after a crash, or to certify again."""
    collector = checked_collector(session, uri, local_root)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    check_applies(found, "lakebed erase apply")
    request: Any = asked("apply", working, run_id=run, readers_grace=readers_grace)
    is_done = collector.finished(run) is not None
    if not is_done:
        check(session, collector, request)
        session.confirm(f"Erase {amount(found.totals.all)} of {uri} for good?", yes=yes)
    with with_spark(session, collector) as collector:
        if not is_done:
            session.note(report_text(collector.apply(request)))
        made = collector.certify(run, by=session.client.current_user(), engine=request.engine, tasks=request.tasks)
    _tell(session, made, out, html)


@app.command("verify")
@command
def verify(
    session: Session,
    uri: RepositoryArgument,
    certificate: Annotated[
        str, Argument(metavar="CERTIFICATE", help="Its file, or the id of the run.", names_file=True)
    ],
    working: Working,
    out: OutOption = None,
    html: HtmlOption = None,
    local_root: RootOption = None,
) -> None:
    """Ask again what a certificate says: is each object absent, and what stands now."""
    from lakebed.gc.protocol import decode_certificate

    request: Any = asked("plan", working, kinds=[])
    collector = checked_collector(session, uri, local_root)
    file = Path(certificate)
    before = decode_certificate(file.read_bytes()) if file.is_file() else collector.certificate(certificate)
    if before is None:
        raise Misuse(f"there is no file {certificate}, and run {certificate} has no certificate")
    with with_spark(session, collector) as collector:
        made = collector.verify(before, by=session.client.current_user(), engine=request.engine, tasks=request.tasks)
    _tell(session, made, out, html)


def _tell(session: Session, made: Certificate, out: Path | None, html: Path | None) -> None:
    from lakebed.gc.protocol import encode_certificate

    try:
        if out is not None:
            out.write_bytes(encode_certificate(made))
        if html is not None:
            html.write_text(certificate_html(made), encoding="utf-8")
    except OSError as error:
        raise Misuse(describe(error)) from error
    session.show(made, _certificate_text)
    if made.stands:
        raise click.exceptions.Exit(FAILED)


def _certificate_text(made: Certificate) -> Iterator[str]:
    absent = sum(one.is_absent for one in made.objects)
    yield f"run {made.run_id}: {absent:,} of {count_of(len(made.objects), 'object')} absent"
    yield from map(standing_text, made.stands)
    for text in made.remains:
        yield from remaining_text(text)


def _selection(paths: list[str], file: Path | None, digests: list[str], metadata: list[str]) -> Selection:
    from lakebed.gc.rules import Selection, check_selection

    named = [path for path in paths if "*" not in path and not path.endswith("/")]
    try:
        listed = [] if file is None else [line for line in file.read_text().splitlines() if line]
    except OSError as error:
        raise Misuse(describe(error)) from error
    except UnicodeDecodeError as error:
        raise Misuse(f"{file} is no text: {error}") from error
    pairs = [text.partition("=") for text in metadata]
    if wrong := next((text for text, (key, sign, _) in zip(metadata, pairs, strict=True) if not (key and sign)), None):
        raise Misuse(f"{wrong!r} is not KEY=VALUE")
    return check_selection(
        Selection(
            paths=(*named, *listed),
            globs=tuple(path for path in paths if path not in named),
            digests=tuple(digests),
            metadata={key: value for key, _, value in pairs},
        )
    )
