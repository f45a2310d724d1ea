"""`lakebed erase`: delete objects for good, from every commit and branch, whatever rules, tags and windows say.

`plan` shows the objects and deletes nothing. `apply` carries the plan out and writes a certificate: which objects are
absent, which still stand, and why. `verify` makes the same checks again. Both exit with 0 only where nothing stands.
Legal holds are respected. `check` needs no server: it compares a certificate with its signature.

Bytes that no entry names have no path on record. `--everywhere` collects all of them after the erasure, whatever their
paths were, by the flow of every collection, and the certificate names that run as its proof.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace

from lakebed import gc
from lakebed.base import Denied, count_of, grace_seconds
from lakebed.cli.kit.arguments import RepositoryArgument, YesOption
from lakebed.cli.kit.failures import Failed, Misuse, describe
from lakebed.cli.kit.output import human_time, prose
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun_that_runs
from lakebed.cli.kit.uris import parse_repository

from .options import GraceOption, Working, asked, collectors, gc_rules, messages
from .report import certificate_html
from .session import (
    PLAN_STOPPED,
    RootOption,
    RunArgument,
    check,
    check_applies,
    checked_collector,
    read_run,
    run_named,
    with_spark,
)
from .text import amount, collected_text, left_text, plan_text, plan_texts, remaining_texts, report_text, standing_text

app = noun_that_runs(
    "Erase objects for good, from every commit and branch.",
    "lakebed erase plan lakefs://lake users/ann.json --why 'request 12'",
    "lakebed erase apply lakefs://lake latest-erasure --everywhere --out cert.json",
    "lakebed erase verify lakefs://lake cert.json      # a year later, say",
    "lakebed erase check cert.json --key key.pem       # without a server",
)

PathsArgument = Annotated[
    list[str] | None,
    Argument(metavar="PATH", help="Paths. With * a glob, with / at the end all paths below."),
]
OutOption = Annotated[
    Path | None, Option("--out", metavar="FILE", help="Write the certificate to this file, in JSON, for `verify`.")
]
HtmlOption = Annotated[
    Path | None, Option("--html", metavar="FILE", help="Write it to this file as an HTML page, too.")
]
EverywhereOption = Annotated[
    bool, Option("--everywhere", help="Then delete all that no entry names, too: of some no record has the path.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """Options that select objects, and the reason; in the order of the help."""

    why: Annotated[str, Option("--why", help="The reason, such as a request's number. The plan keeps it.")]
    paths: PathsArgument = None
    file: Annotated[Path | None, Option("--from", metavar="FILE", help="Paths, one a line, taken as they are.")] = None
    digests: Annotated[list[str] | None, Option("--digest", help="A checksum. Repeatable.")] = None
    metadata: Annotated[
        list[str] | None, Option("--metadata", metavar="KEY=VALUE", help="Only entries with this. Repeatable.")
    ] = None
    shared: Annotated[
        bool, Option("--shared", help="Also objects that other entries name: these then read as erased.")
    ] = False
    copies: Annotated[
        bool, Option("--copies", help="Look for the content at other paths, however many rows there are.")
    ] = False

    def order(self) -> messages.ErasureOrder:
        """Return the order. Refuse one without a reason."""
        selection = _selection(self.paths or [], self.file, self.digests or [], self.metadata or [])
        if not self.why.strip():
            raise Misuse("--why is empty: the plan and the certificate name the reason")
        return messages.ErasureOrder(
            selection=selection, why=self.why, takes_shared=self.shared, finds_copies=self.copies
        )


@app.command("plan")
def plan(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    choosing: Choosing,
    local_root: RootOption = None,
) -> None:
    """Find every object that these entries ever named, and save the plan. Deletes nothing."""
    request: Any = asked("plan", working, kinds=[])
    order = choosing.order()
    collector = checked_collector(session, uri, local_root)
    session.when_stopped = lambda: PLAN_STOPPED
    with with_spark(session, collector) as collector:
        made = collector.plan_erasure(order, engine=request.engine, tasks=request.tasks)
        session.show_all([made], partial(plan_texts, command=None if session.is_quiet else collector.command_of_all))


@app.command("apply")
def apply(
    session: Session,
    uri: RepositoryArgument,
    run: RunArgument,
    working: Working,
    everywhere: EverywhereOption = False,
    out: OutOption = None,
    html: HtmlOption = None,
    readers_grace: GraceOption = None,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Erase the objects of a plan, and certify it. May be repeated after a crash, or to certify again."""
    _check_files(out, html)
    collector = checked_collector(session, uri, local_root)
    run = run_named(session, collector, run)
    found = read_run(collector, run)
    check_applies(found, "lakebed erase apply")
    request = _erasing(working, run, everywhere=everywhere, readers_grace=readers_grace)
    with with_spark(session, collector) as collector:
        made = _carried_out(session, collector, request, yes=yes)
    _tell(session, collector, made, out, html)


@app.command("run")
def run(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    choosing: Choosing,
    everywhere: EverywhereOption = False,
    out: OutOption = None,
    html: HtmlOption = None,
    readers_grace: GraceOption = None,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Plan, show the plan, apply it once you agree, and certify. `lakebed erase lakefs://…` does the same."""
    planning: Any = asked("plan", working, kinds=[])
    if readers_grace is not None:
        grace_seconds(readers_grace)
    _check_files(out, html)
    order = choosing.order()
    session.check_can_ask(f"Erase from {uri} for good?", yes=yes)
    collector = checked_collector(session, uri, local_root)
    session.when_stopped = lambda: PLAN_STOPPED
    with with_spark(session, collector) as collector:
        found = collector.plan_erasure(order, engine=planning.engine, tasks=planning.tasks)
        for line in plan_text(_before_certificate(found, everywhere=everywhere)):
            session.note(line)
        request = _erasing(working, found.run_id, everywhere=everywhere, readers_grace=readers_grace)
        made = _carried_out(session, collector, request, yes=yes)
    _tell(session, collector, made, out, html)


def _erasing(working: Working, run: str, *, everywhere: bool, readers_grace: str | None) -> messages.EraseRequest:
    applying: Any = asked("apply", working, run_id=run, readers_grace=readers_grace)
    return messages.EraseRequest(
        run_id=run,
        everywhere=everywhere,
        readers_grace=readers_grace,
        engine=applying.engine,
        tasks=applying.tasks,
    )


def _before_certificate(found: messages.Plan, *, everywhere: bool) -> messages.Plan:
    """Leave out lines that the certificate repeats; and, with `everywhere`, the advice to apply with that."""
    if found.outlook is None:
        return found
    remains = tuple(
        text
        for text in found.outlook.remains
        if text not in gc.REMAINS and not (everywhere and text.startswith(gc.GARBAGE_STAYS))
    )
    return replace(found, outlook=replace(found.outlook, remains=remains))


def _carried_out(
    session: Session, collector: gc.Collector, request: messages.EraseRequest, *, yes: bool
) -> messages.Certificate:
    """Apply this plan, unless that was done; with `everywhere` run the collection that proves it; then certify."""
    again = _command(collector, request.run_id, everywhere=request.everywhere)
    session.when_stopped = lambda: f"stopped: all erasures so far are recorded; `{again}` goes on, and certifies"
    left = gc.left_of_erasure(collector, request, check=partial(check, session, collector), note=session.note)
    going = []
    if left.applying is not None and left.plan.totals.all.objects:
        going.append(f"{amount(left.plan.totals.all)} of lakefs://{collector.repository}")
    if left.collecting is not None:
        going.append("all that no entry of it names, whatever its path was")
    if going:
        session.confirm(f"Erase {', and '.join(going)}, for good?", yes=yes)
    for made in gc.erase(collector, left, by=session.client.current_user(), note=session.note):
        if isinstance(made, messages.Certificate):
            return made
        if isinstance(made, messages.Plan):
            session.note(f"run {made.run_id} deletes {amount(made.totals.all)} that no entry names")
        else:
            session.note(report_text(made))
    raise AssertionError("an erasure ends with its certificate")


def _command(collector: gc.Collector, run_id: str, *, everywhere: bool = False, verify: bool = False) -> str:
    apply = collector.command(run_id, messages.RunKind.ERASURE, everywhere=everywhere)
    return apply.replace("erase apply", "erase verify") if verify else apply


@app.command("verify")
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
    """Check a certificate again: is each object absent, and does anything stand now."""
    _check_files(out, html)
    request: Any = asked("plan", working, kinds=[])
    collector = checked_collector(session, uri, local_root)
    file = Path(certificate)
    session.when_stopped = lambda: "stopped: not all was checked, and nothing was changed; run the same command again"
    try:
        before = _certificate_in(file) if file.is_file() else collector.certificate(certificate)
    except messages.InvalidRunId as error:
        raise Misuse(f"there is no file {certificate}, and it is no id of a run") from error
    if before is None:
        raise Misuse(f"there is no file {certificate}, and run {certificate} has no certificate")
    with with_spark(session, collector) as collector:
        made = collector.verify(before, by=session.client.current_user(), engine=request.engine, tasks=request.tasks)
    _tell(session, collector, made, out, html)


@app.command("certificate")
def certificate(
    session: Session, uri: RepositoryArgument, run: RunArgument, out: OutOption = None, html: HtmlOption = None
) -> None:
    """Fetch the certificate of a run from the server. It needs no access to the object store."""
    _check_files(out, html)
    found = messages.decode_certificate(session.client.do(collectors.GET_GC_CERTIFICATE, parse_repository(uri), run))
    session.show(found, _certificate_text)
    _write_files(found, out, html)


@app.command("key")
def key(session: Session, uri: RepositoryArgument) -> None:
    """Print the server's public key in PEM. Keep it beside a certificate: `erase check --key` needs no server."""
    found = session.client.do(collectors.GET_GC_CERTIFICATE_KEY, parse_repository(uri))
    session.show(found, lambda one: iter(one.pem.splitlines()))


@app.command("check")
def check_offline(
    session: Session,
    certificate: Annotated[Path, Argument(metavar="CERTIFICATE", help="Its file.", names_file=True)],
    key: Annotated[Path, Option("--key", metavar="FILE", help="The public key, as `lakebed erase key` prints it.")],
) -> None:
    """Check without a server that the owner of this key signed the certificate as it is. Looks at no object store."""
    try:
        found, pem = _certificate_in(certificate), key.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Misuse(f"{describe(error)}. `--out` of an erasure wrote the certificate, `erase key` the key") from error
    try:
        is_whole = messages.is_signed(found, pem)
    except ModuleNotFoundError as error:
        raise Misuse("to check a signature takes the package cryptography: pip install 'lakebed[server]'") from error
    if not is_whole:
        raise Failed(
            f"{certificate}: the owner of this key did not sign the certificate as it is. It was changed, or another"
            " server made it"
        )
    session.show(found, _checked_text)
    if found.stands:
        raise Failed(left_text(found.stands))


def _certificate_in(file: Path) -> messages.Certificate:
    try:
        return messages.decode_certificate(file.read_bytes())
    except messages.BadInput as error:
        raise Failed(f"{file}: {error}. Name the file as `--out` of the erasure wrote it") from error


def _checked_text(found: messages.Certificate) -> Iterator[str]:
    when = human_time(found.made_ms // 1000)
    yield from prose(
        f"signed by the owner of this key: {found.repository}, run {found.run_id}, {found.made_by}, {when}"
    )
    yield from _certificate_text(found)


def _tell(
    session: Session, collector: gc.Collector, made: messages.Certificate, out: Path | None, html: Path | None
) -> None:
    session.show(made, _certificate_text)
    if advice := _advice(collector, made):
        session.note(advice)
    try:
        _write_files(made, out, html)
    except OSError as error:
        verify = _command(collector, made.run_id, verify=True)
        text = f"the certificate is not in its file: {describe(error)}. `{verify} --out FILE` writes it again"
        raise Failed(text) from error
    if made.stands:
        raise Failed(left_text(made.stands))


def _write_files(made: messages.Certificate, out: Path | None, html: Path | None) -> None:
    if out is not None:
        out.write_bytes(messages.encode_certificate(made))
    if html is not None:
        html.write_text(certificate_html(made), encoding="utf-8")


def _advice(collector: gc.Collector, made: messages.Certificate) -> str:
    """Say how to remove what stands; empty where its own lines say so. To collect again helps neither while a
    hold keeps all that no entry names, nor while a deferred run keeps it.
    """
    stands = {one.what for one in made.stands}
    if not stands & {"garbage", "deferred"}:
        return ""
    again = _command(collector, made.run_id, everywhere=True)
    waiting: list[gc.ListedRun] = []
    # The certificate is made already. A caller who may not list these gets the plain advice.
    with contextlib.suppress(Denied):
        if "garbage" in stands:
            try:
                collector.check_held(messages.RunKind.UNCOMMITTED)
            except gc.HeldBack as error:
                return f"{error}. Once it is released, to delete what no entry names, and certify again: {again}"
        waiting = [one for one in collector.listed() if one.state == "deferred" and one.until_ms is not None]
        if "deferred" not in stands:  # Only garbage stands. Runs that publish hold objects of commits alone.
            waiting = [one for one in waiting if not one.kind.publishes]
    if waiting:
        last = max(waiting, key=lambda one: one.until_ms or 0)
        verify = _command(collector, made.run_id, verify=True)
        until = human_time(-(-(last.until_ms or 0) // 1000))
        return (
            f"run {last.run_id} keeps objects until {until}. `lakebed gc purge` deletes them then; after it: {verify}"
        )
    return f"to delete all that no entry names, and certify again: {again}" if "garbage" in stands else ""


def _check_files(out: Path | None, html: Path | None) -> None:
    """Run this before any deletion: a certificate that cannot be written must stop the command."""
    if out is not None and html is not None and out.resolve() == html.resolve():
        raise Misuse(f"--out and --html are one file: {out}. The certificate and its page need two")
    for file in (out, html):
        if file is None or (file.exists() and not file.is_file() and not file.is_dir()):  # a pipe or a device
            continue
        is_new = not file.exists()
        with file.open("ab"):
            pass
        if is_new:
            file.resolve().unlink()


def _certificate_text(made: messages.Certificate) -> Iterator[str]:
    absent = sum(one.is_absent for one in made.objects)
    yield f"run {made.run_id}: {absent:,} of {count_of(len(made.objects), 'object')} absent"
    for one in made.stands:
        yield from standing_text(one)
    if made.collected is not None:
        yield collected_text(made.collected)
    yield from remaining_texts(made.remains)


def _selection(paths: list[str], file: Path | None, digests: list[str], metadata: list[str]) -> gc_rules.Selection:
    named = [path for path in paths if "*" not in path and not path.endswith("/")]
    try:
        listed = [] if file is None else [line for line in file.read_text().splitlines() if line]
    except UnicodeDecodeError as error:
        raise Misuse(f"{file} is not text: {error}") from error
    pairs = [text.partition("=") for text in metadata]
    if wrong := next((text for text, (key, sign, _) in zip(metadata, pairs, strict=True) if not (key and sign)), None):
        raise Misuse(f"{wrong!r} is not KEY=VALUE")
    return gc_rules.check_selection(
        gc_rules.Selection(
            paths=(*named, *listed),
            globs=tuple(path for path in paths if path not in named),
            digests=tuple(digests),
            metadata={key: value for key, _, value in pairs},
        )
    )
