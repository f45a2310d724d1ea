"""Run collections without the command line's other nouns: `python -m lakebed.gc`, or this file given to `spark-submit`.

    python -m lakebed.gc plan  lakefs://lake --committed
    python -m lakebed.gc apply lakefs://lake RUN
    spark-submit … lakebed/gc/__main__.py run lakefs://lake

Options are the fields of the requests in `lakebed.gc.messages`. Reads LAKEBED_ENDPOINT, LAKEBED_ACCESS_KEY_ID and
LAKEBED_SECRET_ACCESS_KEY, or LAKEBED_TOKEN, and the server's variables for the object store. Writes results to stdout
as JSON, a record a line, and all else to stderr. Ends with the codes of `lakebed` (docs/guide/cli.md). No other file of
the collectors reads the environment.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lakebed.base import LakebedError, RunKind, count_of, exit_code, in_words
from lakebed.client import Client, Credentials, NotLoggedIn, Token

# spark-submit runs this file as a script, which has no package: no import here is relative.
from lakebed.gc import (
    OPTIONS,
    Collector,
    PurgeReport,
    check_spark,
    erase,
    left_of_erasure,
    local_session,
    messages,
    session_on_demand,
    session_options,
    unforeseen,
)
from lakebed.gc.rules import read_rules
from lakebed.objectstore import names_of_no_keys, options_from_environment
from lakebed.runtime import leave_pandas_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "job"
STOP_S: Final = 20.0
"""Give a job this long to end by itself after standard input ended."""
FORCED: Final = 1
_FILE: Final = "LAKEBED_ENVIRONMENT_FILE"
_ON_YARN: Final = "SPARK_YARN_STAGING_DIR"
"""Set if the driver runs on a YARN cluster. YARN runs an application again that never started a session, however it
ended. So every action starts the session first, even if it needs none."""
_ACTIONS: Final = (
    ("plan", "decide what goes; delete nothing"),
    ("apply", "carry out one plan"),
    ("run", "finish what is unfinished, plan and apply; purge at the end"),
    ("purge", "delete what was deferred, where the window is over"),
    ("simulate", "sum up what the lifecycle policy would delete on each coming day"),
    (JOB, "do what the request on standard input says, until standard input ends"),
    ("show", "print a plan"),
    ("diff", "compare two plans"),
    ("list", "list runs and plans"),
    ("why", "say what keeps an object and until when, or which run took it"),
)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    leave_pandas_out()
    parser = _parser()
    options = parser.parse_args(arguments)
    request = _request(parser, options)
    remote = getattr(options, "remote", "")
    try:
        environ = _with_file(environ)
        if not remote and _ON_YARN in environ:
            with unforeseen():
                _attached()
        with Client(environ.get("LAKEBED_ENDPOINT", "http://127.0.0.1:8000"), _credentials(environ)) as client:
            collector = Collector(
                client=client,
                repository=options.repository,
                objectstore=options_from_environment(environ),
                engine=messages.engine_from(environ),
                # A cluster has another default than one machine.
                tasks=session_options(environ).tasks if _is_local(remote, environ) else None,
                progress=_note,
                deleted=options.uid,
            )
            if request is None:
                return _print(_read(collector, options))
            collector.check_namespace()
            collector.check(request)
            if _is_local(remote, environ):
                check_spark(environ, collector.engine_of(request))
            with unforeseen(), session_on_demand(lambda: _session(remote, environ)) as session:
                return _print(_collect(replace(collector, session=session), request))
    except LakebedError as error:
        _note(f"error: {_unknown_here(environ) if isinstance(error, NotLoggedIn) else error}")
        return exit_code(error)


def _with_file(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Add the variables of the file that LAKEBED_ENVIRONMENT_FILE names, if any. They override those that are set."""
    if not (name := environ.get(_FILE, "")):
        return environ
    try:
        lines = Path(name).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise messages.InvalidRequest(f"{_FILE} names {name}, which cannot be read: {in_words(error)}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        variable, equals, value = line.strip().partition("=")
        if variable.startswith("#") or not (variable or equals):
            continue
        if not equals or not variable.isidentifier():
            raise messages.InvalidRequest(f"line {number} of {name} is not of the form NAME=VALUE")
        found[variable] = value
    return {**environ, **found}


def _request(parser: argparse.ArgumentParser, options: argparse.Namespace) -> messages.Request | None:
    """Return the checked request, or None for an action that only reads. Misuse ends the program with its usage."""
    # A server starts `job lakefs://lake` with the request as JSON in the first line of standard input.
    request: messages.Request | None = None
    try:
        if options.action == JOB:
            request = msgspec.json.decode(_first_line(), type=messages.Request)
            request.check()
            _end_with_input()
        elif options.action in messages.REQUESTS:
            request = _request_of_words(options)
        elif options.action == "why":
            _set_place(parser, options)
    except (LakebedError, OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        parser.error(str(error))
    return request


def _request_of_words(options: argparse.Namespace) -> messages.Request:
    fields = msgspec.structs.fields(messages.REQUESTS[options.action])
    given = {field.name: getattr(options, field.name) for field in fields}
    if (file := given.get("rules")) is not None:
        given["rules"] = read_rules(Path(file).read_bytes(), name=file)
    if (file := given.get("policy")) is not None:
        given["policy"] = Path(file).read_text("utf-8")
    return messages.request_of(options.action, **given)


def _credentials(environ: Mapping[str, str]) -> Credentials | Token:
    token = environ.get("LAKEBED_TOKEN", "")
    if token:
        return Token(token=token)
    return Credentials(
        access_key_id=environ.get("LAKEBED_ACCESS_KEY_ID", ""),
        secret_access_key=environ.get("LAKEBED_SECRET_ACCESS_KEY", ""),
    )


def _unknown_here(environ: Mapping[str, str]) -> str:
    """Explain why the server does not know the caller."""
    if environ.get("LAKEBED_TOKEN"):
        return "the server does not accept the token in LAKEBED_TOKEN"
    missing = [name for name in ("LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY") if not environ.get(name)]
    if missing:
        return f"no credentials: set {' and '.join(missing)}, or LAKEBED_TOKEN"
    key = environ["LAKEBED_ACCESS_KEY_ID"]
    return f"the server does not accept access key {key} (from LAKEBED_ACCESS_KEY_ID) with LAKEBED_SECRET_ACCESS_KEY"


def _first_line() -> bytes:
    """Read one line of standard input, and no byte after it."""
    line = b""
    while not line.endswith(b"\n") and (read := os.read(sys.stdin.fileno(), 1)):
        line += read
    return line


def _end_with_input() -> None:
    """End as on Ctrl-C when standard input ends: the process at its other end closed it, or died."""

    def watch() -> None:
        # Do not read through sys.stdin. Its lock would be held when the interpreter shuts down, which then aborts.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        main_thread = threading.main_thread().ident
        assert main_thread is not None, "it runs"
        signal.pthread_kill(main_thread, signal.SIGINT)
        # The main thread may not end in time.
        time.sleep(STOP_S)
        os._exit(FORCED)

    threading.Thread(target=watch, daemon=True).start()


def _read(collector: Collector, options: argparse.Namespace) -> Iterator[Any]:
    """Answer the actions that need no Spark session."""
    match options.action:
        case "show" if options.objects:
            yield from collector.objects(options.run_id)
        case "show":
            yield collector.show(options.run_id)
        case "diff":
            yield collector.diff(options.run_id, options.other)
        case "list":
            yield from collector.listed()
        case _:
            yield collector.why(address=options.address, ref=options.ref, path=options.path)


def _collect(collector: Collector, request: messages.Request) -> Iterator[Any]:
    match request:
        case messages.PlanRequest():
            yield from collector.plan(request)
        case messages.ApplyRequest():
            yield collector.apply(request)
        case messages.PurgeRequest():
            yield collector.purge(request)
        case messages.SimulateRequest():
            found = collector.simulate(
                days=request.days, policy=request.policy, engine=request.engine, tasks=request.tasks
            )
            yield {"simulation": messages.sums_of(found)}
        case messages.PlanErasureRequest():
            yield collector.plan_erasure(request.order, engine=request.engine, tasks=request.tasks)
        case messages.EraseRequest():
            yield from _erase(collector, request)
        case _:
            yield from collector.run(request)


def _erase(collector: Collector, request: messages.EraseRequest) -> Iterator[Any]:
    """Erase and certify. Yield the counts of the certificate: it may have 64 MiB, and is in the namespace."""
    left = left_of_erasure(collector, request, check=collector.check, note=_note)
    for made in erase(collector, left, by="", note=_note):
        if not isinstance(made, messages.Certificate):
            yield made
            continue
        if made.stands:
            _note(
                f"error: the certificate names {count_of(len(made.stands), 'thing')} of the content that still stands"
            )
        yield messages.counted(made)


def _note(line: str) -> None:
    # spark-submit sends this to stdout, too.
    sys.stderr.write(line + "\n")


def _print(records: Iterable[Any]) -> int:
    """Write each record, and return the exit code."""
    # Write a record as soon as it arrives, so that the deletes of one run are known even if the next run fails.
    failed = False
    for record in records:
        sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
        failed |= isinstance(record, messages.RunReport | PurgeReport) and record.objects_failed > 0
        failed |= isinstance(record, messages.Plan | messages.RunReport) and bool(
            names_of_no_keys(record.unknown_files)
        )
        failed |= isinstance(record, messages.Certified) and record.stands > 0
        failed |= isinstance(record, messages.BranchesSwept) and any(map(messages.is_open, record.branches))
    return 1 if failed else 0


def _is_local(remote: str, environ: Mapping[str, str]) -> bool:
    """Return whether this process starts the session itself, on this machine."""
    # spark-submit sets the variable.
    return not remote and "PYSPARK_GATEWAY_PORT" not in environ


@contextlib.contextmanager
def _session(remote: str, environ: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a session of Spark Connect (`remote`), else the cluster's under spark-submit, else one of this machine."""
    if remote:
        from pyspark.sql import SparkSession

        if remote.startswith("local"):
            # Spark starts a server on this machine. Its workers must run this Python, which has lakebed.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder: Any = SparkSession.builder
        yield builder.remote(remote).getOrCreate()
    elif "PYSPARK_GATEWAY_PORT" in environ:
        yield _attached()
    else:
        with local_session(session_options(environ), environ) as session:
            yield session.spark


def _attached() -> SparkSession:
    """Return the session of spark-submit. It has the cluster's settings, and ends with its application."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    session: SparkSession = builder.appName("lakebed gc").getOrCreate()
    return session


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lakebed.gc", description="Collect the garbage of a repository.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in _ACTIONS:
        # Only a server starts a job, so the help leaves it out.
        action = actions.add_parser(name) if name == JOB else actions.add_parser(name, help=summary)
        action.add_argument(
            "--uid", default="", metavar="UID", help="a deleted repository that had the name, or `only`"
        )
        if name == "why":
            action.add_argument("place", metavar="lakefs://REPOSITORY[/REF/PATH]")
            action.add_argument("address", nargs="?", default="", metavar="ADDRESS", help="in place of a path")
        else:
            action.add_argument("repository", type=_repository, metavar="lakefs://REPOSITORY")
        if name in {"apply", "show", "diff"}:
            action.add_argument("run_id", metavar="RUN")
        if name == "show":
            action.add_argument("--objects", action="store_true", help="each object that goes, in place of the sums")
        if name == "diff":
            action.add_argument("other", metavar="RUN")
        if name in messages.REQUESTS:
            action.add_argument("--remote", default="", metavar="URL", help="Spark Connect, as sc://host:15002")
            for field in msgspec.structs.fields(messages.REQUESTS[name]):
                _add_option(action, field.name)
    return parser


def _add_option(action: argparse.ArgumentParser, field: str) -> None:
    if field == "kinds":
        for kind in RunKind:
            _, text = OPTIONS.get(kind.value, ("", f"Only {kind.data}."))
            action.add_argument(f"--{kind.value}", dest=field, action="append_const", const=kind.value, help=text)
    elif field == "mode":
        modes = action.add_mutually_exclusive_group()
        for mode in (messages.Mode.CLEAN, messages.Mode.OPTIMISED, messages.Mode.OLD_LAYOUT):
            modes.add_argument(f"--{mode}", dest=field, action="store_const", const=mode, help=OPTIONS[mode][1])
    elif (name := field.replace("_", "-")) in OPTIONS:
        metavar, text = OPTIONS[name]
        takes: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_const", "const": True}
        action.add_argument(f"--{name}", help=text, **takes)


def _repository(text: str) -> str:
    repository = text.removeprefix("lakefs://")
    if not text.startswith("lakefs://") or not repository or "/" in repository:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form lakefs://repository")
    return repository


def _set_place(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Parse the place that `why` asks for: a path at a ref, or an address in a repository."""
    scheme, _, rest = options.place.partition("://")
    options.repository, _, rest = rest.partition("/")
    options.ref, _, options.path = rest.partition("/")
    if scheme != "lakefs" or not options.repository or bool(options.address) == bool(options.path):
        parser.error("why asks after lakefs://repository/ref/path, or after lakefs://repository and an address")
    if options.address and options.ref:
        parser.error("an address goes with lakefs://repository alone")


def _exit(run: Callable[[], int]) -> None:
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    _exit(lambda: main(sys.argv[1:], os.environ))
