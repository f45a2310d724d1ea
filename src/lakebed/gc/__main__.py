"""Collections without the command line's other nouns: `python -m lakebed.gc`, or this file given to `spark-submit`.

    python -m lakebed.gc plan  lakefs://lake --committed
    python -m lakebed.gc apply lakefs://lake RUN
    spark-submit … lakebed/gc/__main__.py run lakefs://lake

Under spark-submit the cluster's session is used, with `--remote` one of Spark Connect, else one of this machine. The
server and the credentials come from LAKEBED_ENDPOINT, LAKEBED_ACCESS_KEY_ID and LAKEBED_SECRET_ACCESS_KEY, or
LAKEBED_TOKEN in place of the two; the access to the object store from the variables that the server reads too. Results
go to stdout as JSON, a record a line; what is told besides goes to stderr, which spark-submit sends to stdout too.

Only this file of the collectors reads the environment. It ends with the codes of `lakebed` (docs/guide/cli.md): 0 when
all is done, 1 when it failed or objects could not be deleted, 2 when it was misused, 3 when there is no such thing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lakebed.base import LakebedError, OutcomeUnknown, Unavailable, exit_code
from lakebed.client import Client, Credentials, Token
from lakebed.gc import (
    TASKS,
    Collector,
    Mode,
    PurgeReport,
    UncommittedOptions,
    grace_seconds,
    local_session,
    options_of,
    session_options,
    unforeseen,
)
from lakebed.gc.protocol import RunKind, RunReport
from lakebed.gc.rules import Rules, read_rules
from lakebed.objectstore import options_from_environment
from lakebed.runtime import leave_pandas_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOKS: Final = frozenset({"show", "diff", "list", "why"})
PATIENCE_S: Final = 20.0
"""How long what is under way may take to end."""
FORCED: Final = 1


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    leave_pandas_out()
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.action == "why":
        _place(parser, options)
    if getattr(options, "mode", None) is Mode.OLD_LAYOUT and options.kind != [RunKind.UNCOMMITTED.value]:
        parser.error("--old-layout goes with --uncommitted alone")
    if _says_how(options) and options.kind and RunKind.UNCOMMITTED not in _kinds(options):
        parser.error("how uncommitted data is looked for goes with --uncommitted, or without a kind")
    if getattr(options, "rules", None) is not None and RunKind.METADATA in _kinds(options):
        parser.error("--rules does not go with --metadata, which goes by no rules")
    if options.attended:
        _end_with_input()
    try:
        with Client(environ.get("LAKEBED_ENDPOINT", "http://127.0.0.1:8000"), _credentials(environ)) as client:
            collector = Collector(
                client=client,
                repository=options.repository,
                objectstore=options_from_environment(environ),
                tasks=_tasks(options, environ),
                progress=_note,
                uncommitted=_uncommitted(options),
                readers_grace_s=getattr(options, "readers_grace", None),
            )
            if options.action in _LOOKS:
                return _say(_look(collector, options))
            _check(collector, options)
            with unforeseen(), _session(options.remote, environ) as spark:
                return _say(_collect(collector, spark, options))
    except LakebedError as error:
        is_unknown = error.facts.get("status") == 401
        _note(f"error: {_unknown_here(environ) if is_unknown else error}")
        return exit_code(error)


def _says_how(options: argparse.Namespace) -> bool:
    """Whether it is said how uncommitted data is to be looked for."""
    if options.action not in {"plan", "run"}:
        return False
    ways = (options.clean_every, options.clean_after, options.token_expiry)
    return options.mode is not Mode.AUTOMATIC or any(way is not None for way in ways)


def _credentials(environ: Mapping[str, str]) -> Credentials | Token:
    token = environ.get("LAKEBED_TOKEN", "")
    if token:
        return Token(token=token)
    return Credentials(
        access_key_id=environ.get("LAKEBED_ACCESS_KEY_ID", ""),
        secret_access_key=environ.get("LAKEBED_SECRET_ACCESS_KEY", ""),
    )


def _unknown_here(environ: Mapping[str, str]) -> str:
    """What to say where the server does not know who asks."""
    if environ.get("LAKEBED_TOKEN"):
        return "the server does not accept the token in LAKEBED_TOKEN"
    missing = [name for name in ("LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY") if not environ.get(name)]
    if missing:
        return f"no credentials: set {' and '.join(missing)}, or LAKEBED_TOKEN"
    key = environ["LAKEBED_ACCESS_KEY_ID"]
    return f"the server does not accept access key {key} (from LAKEBED_ACCESS_KEY_ID) with LAKEBED_SECRET_ACCESS_KEY"


def _end_with_input() -> None:
    """End as on Ctrl-C when standard input ends, which is when whoever holds its other end closes it or dies."""

    def watch() -> None:
        # Not through sys.stdin: its lock would be held when the interpreter shuts down, which it does not survive.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        main_thread = threading.main_thread().ident
        assert main_thread is not None, "it runs"
        signal.pthread_kill(main_thread, signal.SIGINT)
        time.sleep(PATIENCE_S)
        os._exit(FORCED)

    threading.Thread(target=watch, daemon=True).start()


def _look(collector: Collector, options: argparse.Namespace) -> Iterator[Any]:
    """What needs no Spark."""
    match options.action:
        case "show" if options.objects:
            yield from collector.objects(options.run)
        case "show":
            yield collector.show(options.run)
        case "diff":
            yield collector.diff(options.run, options.other)
        case "list":
            yield from collector.listed()
        case _:
            yield collector.why(address=options.address, ref=options.ref, path=options.path)


def _check(collector: Collector, options: argparse.Namespace) -> None:
    """What would be refused is refused before a session begins."""
    collector.check()
    match options.action:
        case "plan":
            collector.check_planning(_kinds(options), rules=options.rules)
        case "apply":
            collector.check_applying(options.run, quarantine=options.quarantine)
        case "purge":
            collector.check_purging()
        case _:
            collector.check_running(_kinds(options), quarantine=options.quarantine)


def _collect(collector: Collector, spark: SparkSession, options: argparse.Namespace) -> Iterator[Any]:
    match options.action:
        case "plan":
            yield from collector.plan_each(spark, _kinds(options), rules=options.rules)
        case "apply":
            yield collector.apply(spark, options.run, quarantine=options.quarantine)
        case "purge":
            yield collector.purge(spark)
        case _:
            left = None
            try:
                yield from collector.run_each(spark, _kinds(options), quarantine=options.quarantine)
            except (Unavailable, OutcomeUnknown):
                raise
            except LakebedError as error:
                left = error
                _note(str(error))
            # In any case: what could not be planned or finished tonight may never be.
            yield collector.purge(spark)
            if left is not None:
                raise left


def _tasks(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if options.tasks:
        return int(options.tasks)
    is_here = not options.remote and "PYSPARK_GATEWAY_PORT" not in environ
    return session_options(environ).tasks if is_here else TASKS


def _kinds(options: argparse.Namespace) -> list[RunKind]:
    return [RunKind(kind) for kind in options.kind or ()]


def _note(line: str) -> None:
    sys.stderr.write(line + "\n")


def _say(records: Iterable[Any]) -> int:
    """Each as it comes: what one run deleted is told even where the next one fails."""
    failed = False
    for record in records:
        sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
        failed |= isinstance(record, RunReport | PurgeReport) and record.objects_failed > 0
    return 1 if failed else 0


@contextlib.contextmanager
def _session(remote: str, environ: Mapping[str, str]) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    if remote:
        if remote.startswith("local"):
            # A server of its own on this machine: its workers are to be this Python, which has us.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        yield builder.remote(remote).getOrCreate()
    elif "PYSPARK_GATEWAY_PORT" in environ:
        # spark-submit started us: its session has the cluster's settings, and ends with its application.
        yield builder.appName("lakebed gc").getOrCreate()
    else:
        with local_session(session_options(environ), environ) as session:
            yield session.spark


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lakebed.gc", description="Collect the garbage of a repository.")
    actions = parser.add_subparsers(dest="action", required=True)
    for name, summary in (
        ("plan", "decide what goes; delete nothing"),
        ("apply", "carry out one plan"),
        ("run", "finish what is unfinished, plan and apply; purge at the end"),
        ("purge", "delete what lies in quarantine past its window"),
        ("show", "print a plan"),
        ("diff", "compare two plans"),
        ("list", "list runs and plans"),
        ("why", "say what keeps an object and until when, or which run took it"),
    ):
        action = actions.add_parser(name, help=summary)
        if name == "why":
            action.add_argument("place", metavar="lakefs://REPOSITORY[/REF/PATH]")
            action.add_argument("address", nargs="?", default="", metavar="ADDRESS", help="in place of a path")
        else:
            action.add_argument("repository", type=_repository, metavar="lakefs://REPOSITORY")
        if name in {"apply", "show", "diff"}:
            action.add_argument("run", metavar="RUN")
        if name == "show":
            action.add_argument("--objects", action="store_true", help="each object that goes, in place of the sums")
        if name == "diff":
            action.add_argument("other", metavar="RUN")
        if name == "plan":
            action.add_argument("--rules", type=_rules, metavar="FILE", help="by the rules of a file, not saved")
        if name in {"plan", "run"}:
            _add_modes(action)
            for kind in RunKind:
                what = f"only {kind.value} data; default: all, one after the other"
                action.add_argument(f"--{kind.value}", dest="kind", action="append_const", const=kind.value, help=what)
            action.add_argument("--kind", action="append", choices=[kind.value for kind in RunKind], help="the same")
        if name in {"apply", "run"}:
            action.add_argument("--quarantine", metavar="7d", help="move objects aside, and keep them for so long")
            grace = "delete nothing that a read may have found so shortly before; default: see the guide"
            action.add_argument("--readers-grace", type=_grace, metavar="15m", help=grace)
        action.add_argument("--tasks", type=_positive, help="about four a core of the cluster; here: two a core")
        action.add_argument("--remote", default="", metavar="URL", help="Spark Connect, as sc://host:15002")
        action.add_argument("--attended", action="store_true", help="end when standard input does")
    return parser


def _add_modes(action: argparse.ArgumentParser) -> None:
    """How uncommitted data is looked for."""
    modes = action.add_mutually_exclusive_group()
    for mode, what in (
        (Mode.CLEAN, "look at everything"),
        (Mode.OPTIMISED, "look at what changed since an earlier run, or fail"),
        (Mode.OLD_LAYOUT, "look only at objects outside slices"),
    ):
        modes.add_argument(
            f"--{mode.value}", dest="mode", action="store_const", const=mode, help=f"uncommitted: {what}"
        )
    action.set_defaults(mode=Mode.AUTOMATIC)
    action.add_argument("--older-than", metavar="7d", help="with --old-layout: written so long ago")
    action.add_argument("--clean-every", type=_positive, metavar="10", help="of so many runs one looks at everything")
    action.add_argument("--clean-after", metavar="7d", help="and at the latest after so long")
    action.add_argument("--token-expiry", metavar="1h", help="leave slices opened within so long to a later run")


def _uncommitted(options: argparse.Namespace) -> UncommittedOptions:
    """
    Raises:
        InvalidDuration: a period that is none.
    """
    if options.action not in {"plan", "run"}:
        return UncommittedOptions()
    return options_of(
        options.mode,
        clean_every=options.clean_every,
        clean_after=options.clean_after,
        token_expiry=options.token_expiry,
        older_than=options.older_than,
    )


def _repository(text: str) -> str:
    repository = text.removeprefix("lakefs://")
    if not text.startswith("lakefs://") or not repository or "/" in repository:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form lakefs://repository")
    return repository


def _place(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What `why` asks after: a path of a ref, or of a repository an address."""
    scheme, _, rest = options.place.partition("://")
    options.repository, _, rest = rest.partition("/")
    options.ref, _, options.path = rest.partition("/")
    if scheme != "lakefs" or not options.repository or bool(options.address) == bool(options.path):
        parser.error("why asks after lakefs://repository/ref/path, or after lakefs://repository and an address")
    if options.address and options.ref:
        parser.error("an address goes with lakefs://repository alone")


def _rules(text: str) -> Rules:
    try:
        return read_rules(Path(text).read_bytes(), name=text)
    except (LakebedError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _grace(text: str) -> int:
    try:
        return grace_seconds(text)
    except LakebedError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _exit(run: Callable[[], int]) -> None:
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    _exit(lambda: main(sys.argv[1:], os.environ))
