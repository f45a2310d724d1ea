"""Share among the commands of `lakebed gc`: arguments, a collector, names of runs, and a Spark of this machine.

--data or LAKEBED_BLOCKS_LOCAL_ROOT says where the bytes of a `local://` repository lie. That is checked before anything
slow begins.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from lakebed import gc
from lakebed.base import Denied, NotFound, RunKind, Unavailable, count_of
from lakebed.cli.kit.completion import complete_run
from lakebed.cli.kit.failures import Misuse, describe
from lakebed.cli.kit.output import human_duration
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.progress import CLEAR, Line
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.uris import parse_repository

from .options import collectors, gc_rules, messages, objectstore
from .text import unfinished_text

if TYPE_CHECKING:
    # A client takes long to import.
    from lakebed.client import Client
    from lakebed.operations import Operation

ONLY: Final = "only"
"""The deleted repository of this name, where there is only one."""
LATEST: Final = "latest"
SUPPOSED: Final = "supposed"
"""The state of a plan by rules that are not saved."""
LISTED_MAX: Final = 10_000
"""Look for names of runs among this many of the newest."""
RUN_ID_LENGTH: Final = 20
WATCH_S: Final = 0.5
VERSIONS_PAGE: Final = 100
_RUN_HELP: Final = "A run's id or the beginning of one, or `latest`, or `latest-committed` (or another kind)."
RunArgument = Annotated[str, Argument(metavar="RUN", help=_RUN_HELP, complete=complete_run)]
RunsArgument = Annotated[list[str], Argument(metavar="RUN", help=_RUN_HELP, complete=complete_run)]
RootOption = Annotated[
    Path | None,
    Option("--data", "--local-root", metavar="DIR", help="The server's data folder, or that of local:// repositories."),
]


def checked_collector(session: Session, uri: str, local_root: Path | None, *, deleted: str = "") -> gc.Collector:
    """Make a collector for commands that read or write the namespace, and check that it is within reach.

    Raises:
        Misuse: it is local://, and --data is missing.
        NamespaceMissing: it is not at the place that --data or the object store's settings name.
    """
    collector = collector_of(session, uri, local_root, deleted=deleted)
    try:
        collector.check_namespace()
    except objectstore.InvalidNamespace as error:
        if collector.objectstore.local_root is None and str(error.facts["uri"]).startswith("local://"):
            raise Misuse(
                "local:// repositories need the server's data folder: --data DIR, LAKEBED_DATA, or for good "
                "`lakebed config set --data DIR`"
            ) from error
        raise
    except gc.NamespaceMissing as error:
        if local_root is None:
            raise
        advice = f"is {local_root} the data folder of this repository's server?"
        raise gc.NamespaceMissing(f"{error}; {advice}", **error.facts) from error
    return collector


def reader_of(session: Session, uri: str, local_root: Path | None, *, deleted: str = "") -> gc.Collector:
    """Return a collector for commands that only read plans and the ledger. Where the namespace is not within reach, and
    no folder was named, it asks the server.
    """
    try:
        return checked_collector(session, uri, local_root, deleted=deleted)
    except (Misuse, gc.NamespaceMissing, Denied, Unavailable):
        if local_root is not None:
            raise
    of = collector_of(session, uri, deleted=deleted)
    return gc.ServedCollector(
        client=of.client,
        repository=of.repository,
        progress=of.progress,
        deleted=deleted,
        command_options=of.command_options,
    )


def collector_of(session: Session, uri: str, local_root: Path | None = None, *, deleted: str = "") -> gc.Collector:
    """Make a collector for commands that ask the server, and read files only where they are within reach."""
    from lakebed.runtime import leave_pandas_out

    leave_pandas_out()  # before the collector makes its first Arrow arrays

    repository = parse_repository(uri)
    # Only options that were typed: the environment and the profile also apply to the next command.
    typed = [] if local_root is None else ["--data", str(local_root)]
    if deleted not in {"", ONLY}:
        typed += ["--uid", deleted]
    options = objectstore.options_from_environment(session.environment)
    if local_root is None and options.local_root is None and session.settings.data:
        local_root = Path(session.settings.data)
    if local_root is not None:
        options = replace(options, local_root=objects_in(local_root))
    return gc.Collector(
        client=session.client,
        repository=repository,
        objectstore=options,
        engine=messages.engine_from(session.environment),
        tasks=gc.session_options(session.environment).tasks,
        progress=timed(session),
        deleted=deleted,
        command_options=tuple(typed),
    )


def service_of(client: Client, repository: str, *, deleted: str = "") -> messages.Service:
    """Ask the server only, without a collector: a plain install can do this."""
    return messages.Service(gc.HttpRequests(client, repository, deleted=deleted))


def adopt_by(session: Session, uri: str, *, yes: bool, deleted: str = "") -> None:
    """Let this installation collect in the namespace, once a person agrees."""
    service = service_of(session.client, parse_repository(uri), deleted=deleted)
    session.confirm(
        f"Collect in {uri} by what this server knows? Objects that only another installation names, or a newer state of"
        " this one, may then be deleted.",
        yes=yes,
    )
    session.show(gc.finish(service.adopting()), lambda adopted: [f"adopted by {adopted.adopted_by}"])


def run_named(session: Session, collector: gc.Collector, name: str, *, waiting: bool = False) -> str:
    """Return the id of the run with this id, or with an id that begins so; or of the latest run, of any kind or, as
    `latest-committed`, of one kind. Notes which it is. An unknown name is returned as it is. `waiting`: `latest` is of
    a kind that can have a window.

    A plan by rules that are not saved is never the latest: it was made to be looked at, by its id. Nor is a plan of
    another user: the right to plan must not decide which plan an operator applies.

    Raises:
        Misuse: several runs begin so.
    """
    if len(name) >= RUN_ID_LENGTH:
        return name
    known = _known_runs(collector)
    if name in known:
        return name
    if name == LATEST or name.removeprefix(f"{LATEST}-") in {one.kind for one in known.values()}:
        kind = name.removeprefix(LATEST).removeprefix("-")
        kinds = {kind} if kind else {each.value for each in RunKind if each.can_wait or not waiting}
        found = sorted(run for run, one in known.items() if one.kind in kinds and one.is_own and not one.supposed)[-1:]
    else:
        found = sorted(run for run in known if run.startswith(name))
    if len(found) > 1:
        raise Misuse(f"{count_of(len(found), 'run')} begin with {name!r}: {', '.join(found[:3])}…")
    if not found:
        return name
    kind = known[found[0]].kind
    others = sorted({f"{LATEST}-{one.kind}" for one in known.values() if one.kind != kind})
    hint = f"; of other kinds: {', '.join(others)}" if name == LATEST and others else ""
    session.note(f"run {found[0]} ({kind}){hint}")
    return found[0]


class _Known(NamedTuple):
    kind: str
    is_own: bool
    supposed: bool = False


def _known_runs(collector: gc.Collector) -> dict[str, _Known]:
    """Return the runs that the server knows, and plans where the namespace is within reach."""
    answer = collector.run_list()
    own = {one.run_id for one in answer.planned if one.is_own}
    known = {view.run_id: _Known(view.kind.value, view.run_id in own or not view.plan) for view in answer.runs}
    try:
        listed = collector.listed(limit=LISTED_MAX)
        return {
            **{
                run.run_id: _Known(run.kind.value, run.is_own or run.objects is None, run.state == SUPPOSED)
                for run in listed
            },
            **known,
        }
    except objectstore.InvalidNamespace:
        return known


def read_run(collector: gc.Collector, run: str) -> messages.Plan:
    """Return the plan of a run, or say that there is neither a plan nor a run of this name."""
    try:
        return collector.show(run)
    except gc.PlanMissing:
        if collector.status(run) is not None:
            raise
        raise no_such_run(collector, run) from None


def read_run_status(collector: gc.Collector, run: str) -> gc.RunStatus:
    """Return how far a run has come; by its record alone where the namespace is not within reach.

    Raises:
        NotFound: there is neither a run nor a plan of this name.
    """
    try:
        return collector.run_status(run)
    except gc.PlanMissing:
        raise no_such_run(collector, run) from None
    except objectstore.InvalidNamespace:
        view = collector.status(run)
        if view is None:
            raise
        return gc.run_status_by_record(view)


def check_applies(found: messages.Plan, command: str) -> None:
    """Refuse a plan that another command applies."""
    if (other := gc.apply_command(found.kind)) != command:
        raise Misuse(f"run {found.run_id} is of kind {found.kind.value}: {other} carries it out")


def warn_of_unfinished(session: Session, collector: gc.Collector) -> None:
    for run in collector.unfinished():
        session.note(unfinished_text(run, collector.command(run.run_id, run.kind)))
    if isinstance(collector, gc.ServedCollector) and (unread := collector.unread()):
        session.note(f"files that were not read tell whether these runs have begun to delete: {', '.join(unread)}")


def check_run(collector: gc.Collector, run: str) -> None:
    """Refuse a name that neither a run nor a plan has."""
    if collector.status(run) is None:
        read_run(collector, run)


def is_plan(session: Session, collector: gc.Collector, run: str) -> bool:
    """Return whether there is a plan of this name. The server looks: the namespace may be out of reach here."""
    try:
        session.client.do(collectors.GET_GC_PLAN, collector.repository, run)
    except NotFound:
        return False
    return True


def no_such_run(collector: gc.Collector, run: str) -> NotFound:
    noun = "gc deleted list" if collector.deleted else "gc list"
    uri = f"lakefs://{collector.repository}"
    return NotFound(f"{uri} has no run {run}: `lakebed {noun} {uri}` shows those that there are", run_id=run)


def objects_in(folder: Path) -> Path:
    """Return the folder of repositories: the one given, or the one in a server's data folder.

    Raises:
        NotFound: there is no such folder.
    """
    if not folder.is_dir():
        raise NotFound(f"--data {folder}: no such folder. It, or LAKEBED_DATA, names the server's data folder")
    objects = folder.absolute() / "objects"
    return objects if objects.is_dir() else folder.absolute()


PLAN_STOPPED: Final = "stopped: nothing was deleted, and no other plan was written; run the same command again"
APPLY_STOPPED: Final = "stopped: all deletions so far are recorded; run the same command again to go on"


def timed(session: Session) -> Callable[[str], None]:
    """Note stages as they begin, each with the time since the first one: a question before it may have waited long."""
    began_s: float | None = None

    def say(line: str) -> None:
        nonlocal began_s
        began_s = began_s or time.monotonic()
        # Write over a line of progress.
        start = CLEAR if sys.stderr.isatty() else ""
        text = f"{start}[{human_duration(time.monotonic() - began_s)}] {line}"
        # An apply that was stopped says itself how far it came (gc/runs/status.py).
        (session.stopped if line.startswith("stopped") else session.note)(text)

    return say


def policy_file(path: Path) -> str:
    """Read a lifecycle policy (JSON). The server checks its form.

    Raises:
        Misuse: the file cannot be read, or is not JSON.
    """
    try:
        data = path.read_bytes()
        msgspec.json.decode(data)
        return data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{path} is not JSON: {error}. docs/guide/lifecycle.md has a policy to begin with") from error


def rules_file(path: Path) -> gc_rules.Rules:
    """Read rules as `gc rules show -o json` shows them.

    Raises:
        Misuse: the file cannot be read.
        InvalidRules: the content has another form, or the server would refuse the rules.
    """
    shown = "`lakebed gc rules show -o json` shows the form"
    try:
        return gc_rules.read_rules(path.read_bytes(), name=str(path))
    except OSError as error:
        raise Misuse(f"{describe(error)}. {shown}") from error
    except gc_rules.InvalidRules as error:
        raise gc_rules.InvalidRules(f"{error}. {shown}", **error.facts) from error


def check(session: Session, collector: gc.Collector, request: messages.Request) -> None:
    """Run every check that can refuse the request before anything slow begins.

    Raises:
        NoSpark, NotFound: the request needs Spark or Java, which this installation lacks.
    """
    collector.check(request)
    gc.check_spark(session.environment, collector.engine_of(request))


@contextlib.contextmanager
def with_spark(session: Session, collector: gc.Collector) -> Iterator[gc.Collector]:
    """Give the collector a Spark of this machine, which starts when it is needed and ends with the block. An unforeseen
    error goes to a file, and one line of it to the terminal.
    """
    options = gc.session_options(session.environment)

    @contextlib.contextmanager
    def start() -> Iterator[Any]:
        session.note("starting Spark")
        with contextlib.ExitStack() as ending:
            running = ending.enter_context(gc.local_session(options, session.environment))
            line = ending.enter_context(_tasks_shown(running, visible=session.shows_progress))
            session.before_answer = line.erase
            yield running.spark

    with gc.unforeseen(), gc.session_on_demand(start) as spark:
        yield replace(collector, session=spark)


@contextlib.contextmanager
def _tasks_shown(local: gc.LocalSession, *, visible: bool) -> Iterator[Line]:
    """While the block runs, show how many tasks are done of the stages under way."""
    line, done = Line(visible=visible), threading.Event()
    watcher = threading.Thread(target=_watch, args=(local, line, done), daemon=True)
    if visible:
        watcher.start()
    try:
        yield line
    finally:
        done.set()
        if visible:
            watcher.join()


def _watch(local: gc.LocalSession, line: Line, done: threading.Event) -> None:
    tracker = local.spark.sparkContext.statusTracker()

    def look() -> str:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        tasks = sum(stage.numTasks for stage in running)
        return f"{sum(stage.numCompletedTasks for stage in running)} of {tasks} tasks" if running else ""

    while not done.wait(WATCH_S):
        line.update(look)
    line.erase()


class _Version(Protocol):
    @property
    def version(self) -> int: ...


V = TypeVar("V", bound=_Version)
V_co = TypeVar("V_co", bound=_Version, covariant=True)


class _History(Protocol[V_co]):
    """Hold a page of the versions of a setting, newest first."""

    @property
    def versions(self) -> Sequence[V_co]: ...

    @property
    def has_more(self) -> bool: ...


def versions_of(
    session: Session, listing: Operation[None, _History[V]], repository: str, limit: int | None
) -> Iterator[V]:
    """Yield the versions of a setting, newest first, a page a request."""
    before: int | None = None
    left, has_more = limit, True
    while has_more and left != 0:
        query = {"before": before, "amount": VERSIONS_PAGE if left is None else min(VERSIONS_PAGE, left)}
        page = session.client.do(listing, repository, query=query)
        yield from page.versions
        left = None if left is None else left - len(page.versions)
        before = page.versions[-1].version if page.versions else None
        has_more = page.has_more and bool(page.versions)
