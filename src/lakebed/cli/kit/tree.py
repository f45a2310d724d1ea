"""Hold the command tree. A noun's module is imported when its command is asked for: the others cost nothing.

`COMMANDS` is the registration point: a name, and where its application is, a group or a command.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final

import click

from .failures import FAILED, INTERRUPTED, MISUSED, ending_with_reader, tell
from .output import PROGRAM
from .parameters import Command, Verbs
from .session import Format, Session, ending_well, with_session
from .shells import completion_options

COMMANDS: Final = {
    "quickstart": "lakebed.examples.quickstart:app",
    "serve": "lakebed.cli.operate.serve:app",
    "open": "lakebed.cli.operate.opening:app",
    "setup": "lakebed.cli.operate.config:setup_app",
    "config": "lakebed.cli.operate.config:app",
    "whoami": "lakebed.cli.operate.doctor:whoami_app",
    "doctor": "lakebed.cli.operate.doctor:app",
    "repo": "lakebed.cli.nouns.repo:app",
    "branch": "lakebed.cli.nouns.refs:app",
    "tag": "lakebed.cli.nouns.refs:tags",
    "commit": "lakebed.cli.nouns.history:commit_app",
    "log": "lakebed.cli.nouns.history:log_app",
    "show": "lakebed.cli.nouns.history:show_app",
    "diff": "lakebed.cli.nouns.history:diff_app",
    "blame": "lakebed.cli.nouns.history:blame_app",
    "merge": "lakebed.cli.nouns.history:merge_app",
    "sandbox": "lakebed.cli.nouns.sandboxes:app",
    "quota": "lakebed.cli.nouns.quotas:app",
    "pulls": "lakebed.cli.nouns.pulls:app",
    "object": "lakebed.cli.nouns.objects:app",
    "table": "lakebed.cli.tables.commands:app",
    "sync": "lakebed.cli.nouns.syncing:app",
    "export": "lakebed.cli.nouns.exporting:app",
    "local": "lakebed.cli.nouns.checkouts:app",
    "import": "lakebed.cli.nouns.imports:app",
    "spark": "lakebed.cli.operate.spark:app",
    "gc": "lakebed.cli.gc:app",
    "lifecycle": "lakebed.cli.gc.lifecycle:app",
    "hold": "lakebed.cli.gc.hold:app",
    "erase": "lakebed.cli.gc.erase:app",
    "hard-delete": "lakebed.cli.gc.hard_delete:app",
    "actions": "lakebed.cli.nouns.actions:app",
    "mcp": "lakebed.cli.operate.mcp:app",
    "events": "lakebed.cli.nouns.events:app",
    "auth": "lakebed.cli.operate.auth:app",
    "audit": "lakebed.cli.operate.audit:app",
    "health": "lakebed.cli.operate.doctor:health_app",
    "migrate": "lakebed.cli.operate.migrate:app",
    "backup": "lakebed.cli.operate.backup:app",
    "kv": "lakebed.cli.operate.kv:app",
}
"""Each command and its application, in the order of the help: set-up first, then from repositories to objects."""

SYNONYMS: Final = {
    "show": ("get", "stat"),
    "get": ("show",),
    "list": ("ls",),
    "ls": ("list",),
    "delete": ("rm", "remove", "unset"),
    "rm": ("delete", "remove", "unset"),
    "remove": ("delete", "rm", "unset"),
    "unset": ("remove",),
    "copy": ("cp",),
    "cp": ("copy",),
    "move": ("mv",),
    "mv": ("move",),
}
"""Verbs, and those that each is taken for in a group that has not the verb and has one of them. The help names some."""

_WHOLE: Final = 1000
_JSON_HERE: Final = re.compile(r"-[qv]*ojson|--output=json")
_JSON_NEXT: Final = re.compile(r"-[qv]*o|--output")


class Group(Verbs):
    """Show the whole first sentence of each command in the help, on as many lines as that takes; then examples."""

    def __init__(self, *, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(**settings)
        self.examples = examples

    def callback_of(self, function: Callable[..., None]) -> Callable[..., None]:
        """Open a session around a function whose first parameter is a `Session`."""
        first = next(iter(inspect.signature(function).parameters.values()), None)
        return with_session(function) if first and first.annotation in ("Session", Session) else function

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, one.get_short_help_str(limit=_WHOLE)) for name, one in found.items() if one and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command by its name or a synonym. Without one, say which one was meant, or which there are."""
        typed, *rest = args
        same = [] if self.get_command(ctx, typed) else self.synonyms(ctx, typed)
        if len(same) == 1 and self.is_meant(ctx, typed, same[0], rest):
            return super().resolve_command(ctx, [same[0], *rest])
        # A mistyped option is click's to explain; while a shell completes, nothing is.
        if not (ctx.resilient_parsing or typed.startswith("-") or self.get_command(ctx, typed)):
            near = [*self.elsewhere(ctx, typed), *same]
            near += [name for name in get_close_matches(typed, self.list_commands(ctx)) if name not in near]
            names = " or ".join(f"'{name}'" for name in near)
            ctx.fail(f"No such command '{typed}'. {f'Did you mean {names}?' if near else self.all_of(ctx)}")
        return super().resolve_command(ctx, args)

    def synonyms(self, ctx: click.Context, typed: str) -> list[str]:
        """Return the commands that a word stands for: verbs of its meaning, and the noun in its other number."""
        names = self.list_commands(ctx)
        plural = [typed + "s", typed + "es", typed.removesuffix("y") + "ies"]
        other = [*plural, typed.removesuffix("s"), typed.removesuffix("es"), typed.removesuffix("ies") + "y"]
        nouns = [name for name in names if name in other and isinstance(self.get_command(ctx, name), click.Group)]
        return [*(verb for verb in SYNONYMS.get(typed, ()) if verb in names), *nouns]

    def is_meant(self, ctx: click.Context, typed: str, name: str, rest: Sequence[str]) -> bool:
        """Return whether the command `name` is meant, since no other one is called so or its verb follows."""
        group = self.get_command(ctx, name)
        if not isinstance(group, Group) or not self.elsewhere(ctx, typed):
            return True
        return bool(rest) and bool(group.get_command(ctx, rest[0]) or group.synonyms(ctx, rest[0]))

    def elsewhere(self, ctx: click.Context, typed: str) -> list[str]:
        """Return groups of commands that are called so, and stand elsewhere."""
        root = ctx.find_root()
        is_there = isinstance(root.command, click.Group) and isinstance(
            root.command.get_command(root, typed), click.Group
        )
        return [f"{root.info_name} {typed}"] if is_there else []

    def all_of(self, ctx: click.Context) -> str:
        """Return a sentence for one whose word is near no command."""
        return f"There are: {', '.join(self.list_commands(ctx))}"


class LazyGroup(Group):
    """Find each command in its module in `COMMANDS`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `help gc plan` as `gc plan -h`."""
        return super().parse_args(ctx, [*args[1:], "-h"] if args[:1] == ["help"] else args)

    def elsewhere(self, ctx: click.Context, typed: str) -> list[str]:
        """Return the commands of nouns that are called so: `du` is `object du`."""
        nouns = {name: getattr(self.get_command(ctx, name), "commands", {}) for name in COMMANDS}
        return [f"{ctx.info_name} {name} {typed}" for name, verbs in nouns.items() if typed in verbs]

    def all_of(self, ctx: click.Context) -> str:  # noqa: ARG002  # they are many
        return "The help names all"

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run one command. Misuse is reported like every other error, in one line, and ends with MISUSED."""
        typed = args[0] if args and args[0] is not None else kwargs.get("args") or sys.argv[1:]
        as_json = _wants_json([str(word) for word in typed])
        try:
            with ending_well(Format.JSON if as_json else Format.TEXT):
                sys.exit(self._run(args, kwargs, as_json=as_json))
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)

    def _run(self, args: Any, kwargs: dict[str, Any], *, as_json: bool) -> Any:
        """Run one command; return the code to end with."""
        try:
            # click itself would write several lines for an error. It returns the code of an early exit.
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return MISUSED
        except click.UsageError as error:
            return tell(MISUSED, _one_line(error), as_json=as_json)
        except click.Abort as error:
            if not isinstance(error.__context__, KeyboardInterrupt):
                return tell(FAILED, "no answer was given", as_json=as_json)
            if error.__cause__ is None:
                # Ctrl-C at a question, whose line it leaves. Elsewhere click has ended the line.
                click.echo(err=True)
            return INTERRUPTED

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        # Here and in `invoke`: click's own `main` would end a closed pipe with 1.
        with ending_with_reader():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with ending_with_reader():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found: Group = getattr(importlib.import_module(module), name)
        # A group of one command is that command, as `lakebed log`.
        [only, *others] = found.commands.values()
        named: click.Command = found if others else only
        named.name = cmd_name
        return named


def _wants_json(words: list[str]) -> bool:
    """Return whether a command that cannot be understood asks for JSON."""
    options = list(itertools.takewhile(lambda word: word != "--", words))
    return any(_JSON_HERE.fullmatch(word) for word in options) or any(
        _JSON_NEXT.fullmatch(word) and value == "json" for word, value in itertools.pairwise(options)
    )


def _one_line(error: click.UsageError) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        return f"{message[:1].lower()}{message[1:]}, as in `{example_of(error.ctx)}` (-h explains)"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and isinstance(error.ctx.command, Group):
        message += ". Options stand behind the command"
    where = f" ({error.ctx.command_path} -h)" if error.ctx is not None else ""
    return f"{message[:1].lower()}{message[1:]}{where}"


def example_of(ctx: click.Context) -> str:
    """Return a whole call of a command: with the values that were given, else the one in the help of its noun."""
    command, program = ctx.command, str(ctx.find_root().info_name)
    assert isinstance(command, Command)
    noun = ctx.parent.command if ctx.parent else None
    if isinstance(noun, Group) and not any(ctx.params.get(str(one.name)) for one in command.params if one.required):
        words = ctx.command_path.removeprefix(program)
        shown = [example for example in noun.examples if example.startswith(f"{PROGRAM}{words} ")]
        if shown:
            return program + shown[0].partition("  #")[0].removeprefix(PROGRAM).rstrip()
    return command.example(ctx)


def noun(help_text: str, *examples: str) -> Group:
    """Make a group that behaves like all of ours. Each example is a whole command, of at most 78 characters."""
    return Group(help=help_text, examples=examples)


class GroupThatRuns(Group):
    """Take a URI in place of a verb as `run`: `lakebed erase lakefs://lake a.csv` is `lakebed erase run lakefs://…`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, ["run", *args] if "://" in args[0] else args)


def noun_that_runs(help_text: str, *examples: str) -> Group:
    """Make a group whose verb `run` may be left out."""
    return GroupThatRuns(help=help_text, examples=examples)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # click's signature
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"lakebed {version('lakebed')}")
        context.exit()


app = LazyGroup(
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Show the version.",
        ),
        *completion_options(),
    ],
    # Commands take these over.
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Version control for a data lake. Collections delete data that is no longer reachable.

    Synonyms work in place of a verb (ls for list, rm for delete, get for show), and nouns in either number.

    Exit codes: 0 done, 1 failed, 2 misused, 3 not found, 4 conflict, 5 unavailable.
    """,
)
