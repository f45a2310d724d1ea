"""Give every command its settings, its client, its answers and its errors.

A command is a function whose first parameter is a `Session`:

    @app.command("show")
    def show(session: Session, uri: Annotated[str, Argument(...)]) -> None:
        session.show(session.client.repositories.get(parse_repository(uri)), text=describe_repository)

`with_session`, which the groups in tree.py call, adds `--endpoint`, `-o`, `-v`, `-q` and more. It makes the session,
closes it, and turns errors into a line on stderr and an exit code (failures.py). Results go to stdout, everything else
to stderr, so that output can be piped. Lists that do not fit on a terminal go through a pager (pager.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import shlex
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, Protocol, TypeVar

import click

from lakebed import interrupts
from lakebed.base import Conflict, Denied, LakebedError, NotFound, Unavailable, count_of, exit_code
from lakebed.settings import (
    PROFILE_VARIABLE,
    Settings,
    effective_settings,
    is_of,
    profiles,
    read_settings,
    settings_path,
    source_of,
)

from .failures import (
    FAILED,
    INTERRUPTED,
    Failed,
    Misuse,
    describe,
    describe_misnamed,
    describe_missing,
    ending_with_reader,
    is_misnamed,
    tell,
)
from .nearby import naming_one, way_back, what_is_near
from .output import columns_of, exports, fields, for_stderr, hanging, json_array, json_record
from .pager import pager_of, show_paged
from .parameters import Option
from .progress import Bar, bar
from .uris import BadUri, uri_meant

if TYPE_CHECKING:
    # At run time only where a command speaks to a server: httpx takes longer to load than all the rest.
    from lakebed.client import Client

P = ParamSpec("P")
R = TypeVar("R")


class KeyPair(Protocol):
    """A record with a key pair."""

    @property
    def access_key_id(self) -> str: ...
    @property
    def secret_access_key(self) -> str: ...


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Session:
    """Carry one command: its settings, client and answers."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        endpoint: str | None,
        output: Format,
        profile: str | None = None,
        verbose: bool = False,
        quiet: bool = False,
    ) -> None:
        if profile == "":
            raise Misuse("--profile has no name: an empty variable?")
        self.environment = {**environment, PROFILE_VARIABLE: profile} if profile else environment
        self.endpoint_given = endpoint or ""
        self._profile_given = profile or ""
        self.output = output
        self.is_verbose = verbose
        self.is_quiet = quiet
        self.before_answer: Callable[[], None] = lambda: None
        """Called before each line of an answer: what shows progress at the terminal erases it there."""
        self.when_stopped: Callable[[], str] | None = None
        """Returns the line for Ctrl-C: what was done, what was not, and how to go on. A long command sets it."""

    @cached_property
    def settings(self) -> Settings:
        """The settings in force.

        Raises:
            BadSettings: a file makes no sense, or has no such profile.
        """
        return effective_settings(self.environment, endpoint=self.endpoint_given)

    @cached_property
    def client(self) -> Client:
        """Speaks to the configured server with the configured credentials; made when first asked for."""
        return connect(self.settings, trace=self._trace if self.is_verbose else None)

    def _trace(self, line: str) -> None:
        self.before_answer()
        click.echo(f"> {line}", err=True)

    def data_folder(self, given: Path | None, *, new: bool = False) -> Path:
        """Return the server's data folder, absolute: the given one, else that of the settings.

        Raises:
            Misuse: there is none.
            NotFound: it does not exist, and may not be `new`.
        """
        folder = given or (Path(self.settings.data) if self.settings.data else None)
        if folder is None:
            raise Misuse("which data folder? Name it by --data, LAKEBED_DATA or `lakebed config set --data`")
        if not new and not folder.is_dir():
            raise NotFound(f"{folder} is not a data folder: name the server's by --data", path=str(folder))
        return folder.absolute()

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()

    def unreachable(self, error: LakebedError) -> Unavailable:
        """Add the source of the endpoint to an error of the connection, and the likely cause."""
        if "WRONG_VERSION_NUMBER" in str(error):
            hint = f"it does not speak TLS: try http{self.settings.endpoint.removeprefix('https')}"
        else:
            source = "--endpoint" if self.endpoint_given else source_of("endpoint", self.environment)
            origin = f"The endpoint is from {source}" if source else "No endpoint is set, so this is the default"
            hint = f"is the server running? {origin}"
        return Unavailable(f"{error}. {hint[:1].upper()}{hint[1:]}", **error.facts)

    @property
    def setting_up(self) -> str:
        """Return the command that sets up the server that was asked."""
        return setup_command(endpoint=self.endpoint_given, profile=self._profile_given)

    def unknown_here(self) -> Denied:
        """Explain why the server does not know the caller."""
        settings = self.settings
        with contextlib.suppress(LakebedError):
            if self.client.setup_state() != "initialized":
                return Denied(f"{settings.endpoint} is not set up yet: `{self.setting_up}` makes its first user")
        if not (settings.access_key_id or settings.secret_access_key):
            return Denied(
                "no credentials: `lakebed setup` makes those of a new server, `lakebed config set` stores others"
            )
        sources = [source_of(name, self.environment) for name in ("access_key_id", "secret_access_key")]
        if not (settings.access_key_id and settings.secret_access_key):
            which, has = ("secret", "key id") if settings.access_key_id else ("key id", "secret")
            return Denied(f"no credentials: there is a {has}, from {''.join(sources)}, but no {which}")
        whence = f"from {sources[0]}" if len(set(sources)) == 1 else f"from {sources[0]}, its secret from {sources[1]}"
        return Denied(
            f"{settings.endpoint} does not accept access key {settings.access_key_id} ({whence}): "
            f"it does not know it, or the secret is another one's{self._kept_aside()}"
        )

    def _kept_aside(self) -> str:
        """Return words about a profile with another key for this server: a set-up of a second one keeps the first."""
        path, used = settings_path(self.environment), self.settings
        for name in profiles(path):
            kept = read_settings(path, name)
            if is_of(kept, used.endpoint) and kept.access_key_id != used.access_key_id:
                return f". --profile {shlex.quote(name)} has another key for it"
        return ""

    @property
    def is_json(self) -> bool:
        return self.output is Format.JSON

    @property
    def shows_progress(self) -> bool:
        """Return whether progress can be seen: at a terminal, not as JSON, and not with --quiet."""
        return sys.stderr.isatty() and not (self.is_json or self.is_quiet)

    def show(self, record: R, text: Callable[[R], Iterable[str] | str]) -> None:
        """Answer with one record."""
        if self.is_json:
            self.say(json_record(record))
            return
        shown = text(record)
        for line in [shown] if isinstance(shown, str) else shown:
            self.say(line)

    def show_all(
        self, records: Iterable[R], text: Callable[[Iterable[R]], Iterable[str]], *, otherwise: str = ""
    ) -> None:
        """Answer with a list, each record as soon as it is there. `otherwise` says on stderr that there is none."""
        if self.is_json or not (pager := pager_of(self.environment)):
            for line in json_array(records) if self.is_json else self._or_note(text(records), otherwise):
                self.say(line)
            return
        self.before_answer()
        show_paged(self._or_note(text(records), otherwise), pager, self.environment, self.say)

    def _or_note(self, lines: Iterable[str], otherwise: str) -> Iterator[str]:
        is_empty = True
        for line in lines:
            is_empty = False
            yield line
        if is_empty and otherwise:
            self.note(otherwise)

    def show_table(
        self, records: Iterable[R], columns: Mapping[str, Callable[[R], object]], *, otherwise: str = ""
    ) -> None:
        """Answer with a list: a row for each record, the columns by their titles."""
        self.show_all(records, lambda found: columns_of(found, columns), otherwise=otherwise)

    def show_fields(self, record: object, pairs: Iterable[tuple[str, str]]) -> None:
        """Answer with one record, a line for each of these facts."""
        self.show(record, lambda _: fields(pairs))

    def show_key(self, pair: KeyPair, facts: Iterable[tuple[str, str]] = (), *, export: bool) -> None:
        """Answer with a key pair, behind facts about it. With `export` only the lines that set it in a shell."""
        key, secret = pair.access_key_id, pair.secret_access_key
        rows = [*facts, ("Access key id", key), ("Secret access key", secret)]
        self.show(pair, lambda _: exports(self.settings.endpoint, key, secret) if export else fields(rows))

    def done(self, message: str, record: object = None, /, **facts: object) -> None:
        """Answer that it is done: a sentence, or as JSON the new record or the facts. Quietly, only the exit code."""
        if self.is_json:
            self.say(json_record(facts if record is None else record))
        elif not self.is_quiet:
            for line in hanging("", message, indent=0):
                self.say(line)

    def say(self, line: str) -> None:
        """Write a line of the answer.

        Raises:
            Exit: the reader has ended. No caller takes that for a connection of its own that broke.
        """
        self.before_answer()
        with ending_with_reader():
            click.echo(line)

    def note(self, message: str) -> None:
        """Write a line that is no result, unless --quiet."""
        if not self.is_quiet:
            self.warn(message)

    def warn(self, message: str) -> None:
        """Write a warning, --quiet or not."""
        self.before_answer()
        with ending_with_reader():
            click.echo(for_stderr(message), err=True)

    def stopped(self, message: str = "") -> None:
        """Write the one line for Ctrl-C, --quiet or not: the message, else that of the command."""
        if line := message or (self.when_stopped or self._sent)():
            self.warn(line)
        self.when_stopped = str

    def _sent(self) -> str:
        """Return the line of a command that has none of its own: empty where it only read."""
        sent, answered = self.client.changes if "client" in self.__dict__ else (0, 0)
        if not sent:
            return ""
        done = [f"{count_of(answered, 'request')} {'was' if answered == 1 else 'were'} answered"] if answered else []
        one = "one more" if answered else "a request"
        on_its_way = [f"{one} was on its way, and the server may carry it out"] if sent > answered else []
        return f"stopped: {'; '.join(done + on_its_way)}. Look before you run the command again"

    @contextlib.contextmanager
    def bar(self, description: str, total: int = 0) -> Iterator[Bar]:
        """Show a bar of bytes at a terminal while the block runs; lines that are written meanwhile come above it."""
        before = self.before_answer
        with bar(description, total, visible=self.shows_progress) as shown:
            self.before_answer = shown.erase
            try:
                yield shown
            finally:
                self.before_answer = before

    def check_can_ask(self, question: str, *, yes: bool) -> None:
        """Check that a question can be asked, before slow work that ends in one.

        Raises:
            Misuse: there is no terminal to ask at, and `--yes` was not given.
        """
        if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
            deed, _, more = question.partition("?")
            refused = f"refusing to {deed[:1].lower()}{deed[1:]} without --yes: there is no terminal to ask at"
            raise Misuse(f"{refused}.{more}" if more else refused)

    def confirm(self, question: str, *, yes: bool, exists: Callable[[], object] = bool) -> None:
        """Return if the answer to something destructive is yes. `exists` first reads what it is about.

        Raises:
            NotFound: it does not exist. With `yes` the deed itself finds that out.
            Misuse: there is no terminal to ask at, and `--yes` was not given.
            Failed: the answer is no.
        """
        if not yes:
            exists()
        self.check_can_ask(question, yes=yes)
        asked = for_stderr(f"{question} [y/N]:")
        while not yes:
            # Not `click.confirm`: it answers "Error: invalid input", which names no valid answer.
            answer = click.prompt(asked, default="n", show_default=False, prompt_suffix=" ", err=True).strip().lower()
            if answer in {"n", "no"}:
                raise Failed("nothing was done")
            yes = answer in {"y", "yes"}
            if not yes:
                click.echo("answer y or n", err=True)


def setup_command(**options: str) -> str:
    """Return the command that sets up a server, with those options that have a value."""
    given = [word for name, value in options.items() if value for word in (f"--{name}", value)]
    return shlex.join(["lakebed", "setup", *given])


def connect(
    settings: Settings, *, attempts: int = 3, timeout_s: float = 60.0, trace: Callable[[str], None] | None = None
) -> Client:
    """Return a client, without credentials where either half is missing: some calls need none.

    A person waits: give up within a second on a server that is not there. `trace` gets a line for each request.
    """
    from lakebed.client import Client, Credentials, Retries

    key, secret = settings.access_key_id, settings.secret_access_key
    credentials = Credentials(access_key_id=key, secret_access_key=secret) if key and secret else None
    return Client(settings.endpoint, credentials, retries=Retries(attempts=attempts), timeout_s=timeout_s, trace=trace)


DataOption = Annotated[
    Path | None,
    Option("--data", metavar="DIR", help="The server's data folder. Default: LAKEBED_DATA, or the setting."),
]
EndpointOption = Annotated[
    str | None,
    Option("--endpoint", metavar="URL", help="The server. Default: from environment or configuration."),
]
ProfileOption = Annotated[
    str | None, Option("--profile", metavar="NAME", help="Take this profile of the configuration file.")
]
VerboseOption = Annotated[bool, Option("--verbose", "-v", help="Write each request to standard error.")]
QuietOption = Annotated[bool, Option("--quiet", "-q", help="Only results, errors, warnings.")]
OutputOption = Annotated[Format, Option("--output", "-o", help="For people, or for programs.")]


def with_session(function: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    """Return a function that makes the session, runs `function` with it, and closes it; see the head of this file."""

    def run(
        endpoint: str | None,
        profile: str | None,
        output: Format,
        verbose: bool,
        quiet: bool,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        context = click.get_current_context()
        with ending_well(output):
            _check_values(context, kwargs)
            if verbose and quiet:
                raise Misuse("--verbose and --quiet contradict each other")
            session = Session(
                context.obj or {}, endpoint=endpoint, profile=profile, output=output, verbose=verbose, quiet=quiet
            )
            try:
                interrupts.raise_in_command()
                function(session, *args, **kwargs)
                sys.stdout.flush()
            except KeyboardInterrupt:
                # A second Ctrl-C does not wait for the clean-up that the first one began.
                interrupts.end_at_once()
                session.stopped()
                raise
            except BadUri as error:
                if not (hint := uri_meant(error, _given(kwargs))):
                    raise
                raise BadUri(f"{error}. {hint}", **error.facts) from error
            except OSError as error:
                if not is_misnamed(error, _given(kwargs)):
                    raise
                raise Misuse(describe_misnamed(error)) from error
            except NotFound as error:
                message = naming_one(session, describe(error))
                hint = what_is_near(session, message, kwargs.values())
                raise NotFound(f"{message}. {hint}" if hint else message, **error.facts) from error
            except Conflict as error:
                if not (hint := way_back(str(error), kwargs.values())):
                    raise
                raise Conflict(f"{describe(error)}. {hint}", **error.facts) from error
            except Unavailable as error:
                if not str(error).startswith("cannot reach"):
                    raise
                raise session.unreachable(error) from error
            except Denied as error:
                from lakebed.client import NotLoggedIn  # here, since loading it takes time that most commands save

                if not isinstance(error, NotLoggedIn):
                    raise
                raise session.unknown_here() from error
            finally:
                session.close()

    return _with_signature(run, function)


def _given(values: Mapping[str, object]) -> Iterator[object]:
    """Yield the value of each parameter."""
    for value in values.values():
        if dataclasses.is_dataclass(value):
            yield from _given({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        else:
            yield from value if isinstance(value, list) else [value]


def _check_values(context: click.Context, values: Mapping[str, object]) -> None:
    options = {name for one in context.command.params for name in one.opts if name.startswith("-")} | {"-h", "--help"}
    for value in values.values():
        if isinstance(value, Path) and str(value).startswith("-") and str(value) != "-":
            raise Misuse(f"{value} looks like an option: write ./{value} for a file or folder of this name")
        if isinstance(value, str) and value in options:
            raise Misuse(f"{value} is an option: the value before it is missing ({context.command_path} -h)")


def _with_signature(run: Callable[..., None], function: Callable[..., None]) -> Callable[..., None]:
    """`run` under the name, help and parameters of `function`; those that every command has replace the session.

    parameters.py reads them from the signature. Annotations are resolved here, where the module of `function` is known.
    One that is a dataclass stands for options that several commands have, its fields.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    _, *own = inspect.signature(function).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = {
        name: _options_of(hint)
        for name, hint in hints.items()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    }
    parameters = [
        *[
            option
            for one in own
            for option in shared.get(one.name) or [one.replace(kind=keyword, annotation=hints[one.name])]
        ],
        inspect.Parameter("endpoint", keyword, annotation=EndpointOption, default=None),
        inspect.Parameter("profile", keyword, annotation=ProfileOption, default=None),
        inspect.Parameter("output", keyword, annotation=OutputOption, default=Format.TEXT),
        inspect.Parameter("verbose", keyword, annotation=VerboseOption, default=False),
        inspect.Parameter("quiet", keyword, annotation=QuietOption, default=False),
    ]

    @functools.wraps(function)
    def call(**kwargs: Any) -> None:
        for name, options in shared.items():
            kwargs[name] = hints[name](**{option.name: kwargs.pop(option.name) for option in options})
        run(**kwargs)

    del call.__dict__["__wrapped__"]
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options_of(options: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(options, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, keyword, annotation=hints[field.name], default=default)
        for field in dataclasses.fields(options)
        for default in [inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default]
    ]


@contextlib.contextmanager
def ending_well(output: Format = Format.TEXT) -> Iterator[None]:
    """Turn errors of the block into a line on stderr, or a record where programs read, and an exit code."""
    as_json = output is Format.JSON
    try:
        with ending_with_reader():
            yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    except LakebedError as error:
        raise click.exceptions.Exit(tell(exit_code(error), describe(error), error.facts, as_json=as_json)) from None
    except ModuleNotFoundError as error:
        raise click.exceptions.Exit(tell(FAILED, describe_missing(error), as_json=as_json)) from None
    except OSError as error:
        raise click.exceptions.Exit(tell(FAILED, describe(error), as_json=as_json)) from None
