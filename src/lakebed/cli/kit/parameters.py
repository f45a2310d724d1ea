"""Declare parameters of commands as annotations of a function, and make click's commands of such functions.

    def log(
        uri: Annotated[str, Argument(metavar="REF", help="lakefs://repository/ref")],
        limit: Annotated[int | None, Option("--limit", "-n", min=1, help="Show at most this many.")] = None,
    ) -> None:
        '''Show the history of a ref, newest first.'''

- A parameter without a default is required. The docstring is the help; its first sentence stands in lists of commands.
- Types: str, int, float, Path, TextIO (a file, opened; - is standard input), bool (a flag), an enumeration of strings
  (one of its values), or any of them or None. Of a list, the option is repeated, and the argument takes all words left.
"""

from __future__ import annotations

import enum
import inspect
import math
import shlex
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TextIO, TypedDict, Unpack

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

_MOST: Final = 2**53 - 1
"""The largest number of any option: every reader of JSON holds it exactly, and it fits a count of 64 bits."""

EXAMPLES: Final = {
    "REPOSITORY": "lakefs://lake",
    "BRANCH": "lakefs://lake/dev",
    "TAG": "lakefs://lake/v1",
    "REF": "lakefs://lake/main",
    "OBJECT": "lakefs://lake/main/logs/a.csv",
    "URI": "lakefs://lake/main/logs/",
    "PATH|REPOSITORY": "lakefs://lake/main/logs/a.csv",
    "PATTERN": "lakefs://lake/dev",
    "PATTERN|REPOSITORY": "lakefs://lake/dev",
    "[REPOSITORY|BRANCH]": "lakefs://lake",
    "NAMESPACE": "local://lake",
    "SOURCE": "lakefs://lake/dev",
    "DESTINATION": "lakefs://lake/main",
    "TARGET": "./copy",
    "DIR": "./lake",
    "FILE": "file.json",
    "BACKUP": "./backup",
    "FROM": "sqlite:///lake/metadata.db",
    "TO": "postgres://lakebed@db.example/lakebed",
    "URL": "https://hooks.example/lakebed",
    "PATH": "orders/v3.json",
    "CERTIFICATE": "cert.json",
    "DURATION": "30d",
    "DURATION|off": "2d",
    "N|off": "10",
    "on|off": "on",
    "RUN": "latest",
    "OTHER_RUN": "1f8a",
    "plan|apply|run|purge|simulate": "plan",
    "TABLE": "sales.orders",
    "SANDBOX": "sandbox-kim-0123456789",
    "PULL": "1f8a",
    "JOB": "1f8a",
    "SUBSCRIPTION": "1f8a",
    "USER": "kim",
    "GROUP": "writers",
    "POLICY": "FSReadAll",
    "LEVEL": "Read",
    "KEY": "AKIA0123456789",
    "ACTION": "fs:DeleteObject",
    "PRINCIPAL": "'https://login.example#kim'",
    "--after": "42",
    "--message": "'add b'",
    "--title": "'fix a'",
    "--why": "'case 17'",
}
"""What an example of a command has in place of a metavar or an option that is missing."""

Complete = Callable[[click.Context, str], list[str] | None]
"""Returns what a shell may put in place of a word that was begun; None: files of this machine."""


class Details(TypedDict, total=False):
    """Describe a parameter. `metavar` stands for its value in the help; `min` and `max` are allowed themselves.

    `example` is the value in the message about a missing one; else it is in EXAMPLES. A text that `names_file` may hold
    any bytes, as names of files do. Other texts are valid Unicode.
    """

    help: str
    metavar: str
    example: str
    min: float
    max: float
    envvar: str
    complete: Complete
    names_file: bool


class Option:
    """Declare an option by its names; `--on/--off` is a flag with two."""

    def __init__(self, *names: str, **details: Unpack[Details]) -> None:
        self.names = names
        self.details = details


class Argument:
    """Declare a positional argument."""

    def __init__(self, **details: Unpack[Details]) -> None:
        self.details = details


class _Parameter(click.Parameter):
    """Show a parameter in the help as all of ours are shown."""

    help: str | None
    is_optional_list = False
    example = ""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        typed = value if isinstance(value, (list, tuple)) else [value]
        is_needed = isinstance(self, click.Argument) or isinstance(self.type, click.Path)
        if is_needed and "" in typed and ctx.get_parameter_source(str(self.name)) is ParameterSource.COMMANDLINE:
            # An empty path would be the present folder.
            raise click.BadParameter("it is empty: is a variable unset?", ctx=ctx, param=self)
        found = super().process_value(ctx, value)
        if self.multiple or self.nargs == -1:
            return [*found] if found or not self.is_optional_list else None
        return found

    def _help_text(self) -> str:
        facts = [
            f"env var: {self.envvar}" if self.envvar else "",
            f"default: {default}" if (default := self._default_text()) else "",
            self.type.range_text() if isinstance(self.type, _Number) else "",
            "required" if self.required else "",
        ]
        extra = "; ".join(filter(None, facts))
        return "  ".join(filter(None, [self.help, extra and f"[{extra}]"]))

    def _default_text(self) -> str:
        if isinstance(self.default, bool):
            names = self.opts if self.default else self.secondary_opts
            # A flag without an opposite is off unless given: that needs no words.
            return names[0].lstrip("-") if self.secondary_opts else ""
        # click has a value of its own for a default that is not given.
        return str(self.default) if isinstance(self.default, (str, int, float, Path)) else ""

    def in_example(self, given: object = None) -> str:
        """Return the parameter as an example of its command has it, with the value that was given, if any."""
        names = [self.metavar or "", *self.opts]
        examples = [self.example, *(EXAMPLES.get(name, "") for name in names), *getattr(self.type, "choices", ())]
        values = given if isinstance(given, list) else [given]
        value = " ".join(shlex.quote(str(one)) for one in values) if given else next(filter(None, examples), "")
        return f"{self.opts[0]} {value}" if isinstance(self, click.Option) else value


class _Option(_Parameter, click.Option):
    def make_metavar(self, ctx: click.Context) -> str:  # noqa: ARG002  # click's signature
        return self.metavar or _type_text(self.type)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = super().get_help_record(ctx)
        return shown and (shown[0], self._help_text())


class _Argument(_Parameter, click.Argument):
    def __init__(self, *args: Any, help: str | None = None, **more: Any) -> None:  # noqa: A002  # click's word
        super().__init__(*args, **more)
        self.help = help  # click itself keeps it since 8.5

    def make_metavar(self, ctx: click.Context) -> str:  # noqa: ARG002  # click's signature
        name = f"{self.human_readable_name}..." if self.nargs == -1 else self.human_readable_name
        return name if self.required else f"[{name}]"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002  # click's signature
        return self.human_readable_name, self._help_text()

    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002  # click's signature
        return f"'{self.human_readable_name}'"


class _Enumerated(click.Choice[Any]):
    """Accept the values of an enumeration."""

    def __init__(self, options: type[enum.StrEnum]) -> None:
        super().__init__([one.value for one in options])
        self._options = options

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._options(super().convert(value, param, ctx))


class _Text(click.ParamType):  # type: ignore[type-arg]  # generic since 8.4
    """Accept text, which is sent as UTF-8. Bytes that are none arrive from the shell as surrogates."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            # Without the value: it may be a secret.
            self.fail("its bytes are not UTF-8", param, ctx)
        return value


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic since 8.4
    """Accept numbers in a range, and refuse others in plain words."""

    name = "number"

    def __init__(self, of: type[int] | type[float], least: float | None, most: float | None) -> None:
        self._of = of
        self._least = -math.inf if least is None else least
        self._most = math.inf if most is None else most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            # Python itself reads 1_000, and the digits of every script.
            found = self._of(value if str(value).isascii() and "_" not in str(value) else "")
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a {'whole ' if self._of is int else ''}number", param, ctx)
        if not self._least <= found <= self._most:
            self.fail(f"{value} is out of range: {self.range_text()}", param, ctx)
        if abs(found) > _MOST:
            self.fail(f"{value} is out of range: at most {_MOST}", param, ctx)
        return found

    def range_text(self) -> str:
        if self._most < math.inf and self._least > -math.inf:
            return f"{self._least:g} to {self._most:g}"
        if self._most < math.inf:
            return f"at most {self._most:g}"
        return f"at least {self._least:g}" if self._least > -math.inf else ""


def _type_text(kind: click.ParamType[Any]) -> str:
    match kind:
        case click.Choice():
            return "|".join(kind.choices)
        case _Number():
            return "N"
        case click.Path():
            return "PATH"
    return "TEXT"


class _WithHelp(click.Command):
    """List arguments, then options, in the help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, kind in (("Arguments", click.Argument), ("Options", click.Option)):
            shown = [one.get_help_record(ctx) for one in self.get_params(ctx) if isinstance(one, kind)]
            if rows := [*filter(None, shown)]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Do nothing: since 8.5 click would list arguments here too, without their defaults."""


class Command(_WithHelp):
    """One command."""

    def example(self, ctx: click.Context) -> str:
        """Return a call with all that is required: the values of this one, and others in place of those missing."""
        needed = [one for one in self.params if one.required and isinstance(one, _Parameter)]
        return " ".join([ctx.command_path, *(one.in_example(ctx.params.get(str(one.name))) for one in needed)])


class Verbs(_WithHelp, click.Group):
    """Hold commands under their names: its own, then those of groups inside, each in the order of their addition."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(self.commands, key=lambda name: isinstance(self.commands[name], click.Group))

    def command(self, name: str = "", **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:  # type: ignore[override]  # ours reads annotations
        """Add the function as a command, by its own name where none is given. The function stays as it is."""

        def add(function: Callable[..., None]) -> Callable[..., None]:
            self.add_command(command_of(self.callback_of(function), name, **settings))
            return function

        return add

    def callback_of(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return the function that the command runs."""
        return function


def command_of(function: Callable[..., None], name: str = "", **settings: Any) -> Command:
    """Make the command that a function is by its signature."""
    signature = inspect.signature(function, eval_str=True)
    return Command(
        name or function.__name__.replace("_", "-"),
        params=[_parameter_of(one) for one in signature.parameters.values()],
        callback=function,
        help=inspect.getdoc(function),
        **settings,
    )


def _parameter_of(one: inspect.Parameter) -> click.Parameter:
    assert typing.get_origin(one.annotation) is Annotated, f"{one} is not declared"
    hint, declared = typing.get_args(one.annotation)
    details = declared.details
    accepted = [part for part in _parts_of(hint) if part is not types.NoneType]
    [accepted_type] = accepted
    is_list = typing.get_origin(accepted_type) is list
    [value_type] = typing.get_args(accepted_type) if is_list else [accepted_type]
    settings: dict[str, Any] = {
        "help": details.get("help"),
        "metavar": details.get("metavar"),
        "envvar": details.get("envvar"),
        "required": one.default is one.empty,
    }
    if one.default is not one.empty and not (is_list and one.default is None):
        settings["default"] = one.default.value if isinstance(one.default, enum.Enum) else one.default
    if value_type is str:
        settings["shell_complete"] = _completing(details.get("complete", _complete_file))
    made: _Parameter
    if isinstance(declared, Argument):
        made = _Argument([one.name], type=_type_of(value_type, details), nargs=-1 if is_list else 1, **settings)
    elif value_type is bool:
        made = _Option([one.name, *declared.names], is_flag=True, **settings)
    else:
        made = _Option([one.name, *declared.names], type=_type_of(value_type, details), multiple=is_list, **settings)
    made.example = details.get("example", "")
    made.is_optional_list = is_list and len(accepted) < len(_parts_of(hint))
    return made


def _parts_of(hint: Any) -> Sequence[Any]:
    """Return the types that a union is of; another type as it is."""
    return typing.get_args(hint) if typing.get_origin(hint) in {types.UnionType, typing.Union} else (hint,)


def _type_of(value_type: Any, details: Details) -> click.ParamType[Any]:
    if value_type in {int, float}:
        return _Number(value_type, details.get("min"), details.get("max"))
    if value_type is Path:
        return click.Path(path_type=Path)
    if value_type is TextIO:
        return click.File(encoding="utf-8")
    if isinstance(value_type, type) and issubclass(value_type, enum.StrEnum):
        return _Enumerated(value_type)
    assert value_type is str, f"no parameter can be of type {value_type}"
    return click.STRING if details.get("names_file") else _Text()


def _completing(complete: Complete) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def found(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = complete(context, incomplete)
        if known is None:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(one) for one in known if one.startswith(incomplete)]

    return found


def _complete_file(_: click.Context, __: str) -> None:
    """Complete files: any text may name one."""
