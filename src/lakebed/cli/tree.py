"""Hold the command tree. A noun's module is imported when its command is asked for: the others cost nothing.

`COMMANDS` is the registration point: a name, and where its application is, a group or a command.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from .failures import FAILED, INTERRUPTED, MISUSED, tell

COMMANDS: Final = {
    "quickstart": "lakebed.examples.quickstart:app",
    "serve": "lakebed.cli.serve:app",
    "setup": "lakebed.cli.config:setup_app",
    "config": "lakebed.cli.config:app",
    "whoami": "lakebed.cli.doctor:whoami_app",
    "doctor": "lakebed.cli.doctor:app",
    "repo": "lakebed.cli.repo:app",
    "branch": "lakebed.cli.refs:app",
    "tag": "lakebed.cli.refs:tags",
    "commit": "lakebed.cli.history:commit_app",
    "log": "lakebed.cli.history:log_app",
    "show": "lakebed.cli.history:show_app",
    "diff": "lakebed.cli.history:diff_app",
    "blame": "lakebed.cli.history:blame_app",
    "merge": "lakebed.cli.history:merge_app",
    "pulls": "lakebed.cli.pulls:app",
    "object": "lakebed.cli.objects:app",
    "sync": "lakebed.cli.syncing:app",
    "local": "lakebed.cli.checkouts:app",
    "import": "lakebed.cli.imports:app",
    "gc": "lakebed.cli.gc:app",
    "lifecycle": "lakebed.cli.gc.lifecycle:app",
    "hold": "lakebed.cli.gc.hold:app",
    "erase": "lakebed.cli.gc.erase:app",
    "hard-delete": "lakebed.cli.gc.hard_delete:app",
    "actions": "lakebed.cli.actions:app",
    "auth": "lakebed.cli.auth:app",
    "audit": "lakebed.cli.audit:app",
    "migrate": "lakebed.cli.migrate:app",
    "backup": "lakebed.cli.backup:app",
    "kv": "lakebed.cli.kv:app",
}
"""Each command and its application, in the order of the help: set-up first, then from repositories to objects."""


_WHOLE: Final = 1000


class Group(TyperGroup):
    """Show the whole first sentence of each command in the help, on as many lines as that takes."""

    # Typer keeps the class of its contexts private, and it moved between releases: hence Any.
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            commands: dict[str, Any] = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
            formatter.write_dl([(name, found.get_short_help_str(limit=_WHOLE)) for name, found in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Where no name is near what was typed, say which commands there are."""
        try:
            return super().resolve_command(ctx, args)
        except _UsageError as error:
            if "Did you mean" not in error.message:
                error.message = f"{error.message.rstrip('.')}. {self.near(ctx, args[0])}"
            raise

    def near(self, ctx: Any, typed: str) -> str:  # noqa: ARG002  # others look for it
        return f"There are: {', '.join(self.commands)}"


class LazyGroup(Group):
    """Find each command in its module in `COMMANDS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `help gc plan` as `gc plan -h`."""
        found: list[str] = super().parse_args(ctx, [*args[1:], "-h"] if args[:1] == ["help"] else args)
        return found

    def near(self, ctx: Any, typed: str) -> str:
        """Name the commands of nouns that are called so: `du` is `object du`."""
        nouns = {name: getattr(self.get_command(ctx, name), "commands", {}) for name in COMMANDS}
        found = [f"'lakebed {name} {typed}'" for name, verbs in nouns.items() if typed in verbs]
        return f"Did you mean {' or '.join(found)}?" if found else "The help names all"

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run one command. Misuse is reported like every other error, in one line, and ends with MISUSED."""
        typed = args[0] if args and args[0] is not None else kwargs.get("args") or sys.argv[1:]
        as_json = _wants_json([str(word) for word in typed])
        try:
            # What Typer itself would do with errors is several lines. What it returns is the code of an early exit.
            sys.exit(super().main(*args, **{**kwargs, "standalone_mode": False}))
        except _UsageError as error:
            if type(error).show is not _UsageError.show:
                # It is no error but the help of a noun without a verb.
                error.show()
            else:
                tell(MISUSED, _one_line(error), as_json=as_json)
            sys.exit(MISUSED)
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                # Ctrl-C at a question, whose line it leaves.
                typer.echo(err=True)
                sys.exit(INTERRUPTED)
            sys.exit(tell(FAILED, "no answer was given", as_json=as_json))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer suggests what it finds here, which is nothing yet.
        names: Any = dict.fromkeys(COMMANDS)
        self.commands.update(names)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # Typer's signature
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = get_command(getattr(importlib.import_module(module), name))
        found.name = cmd_name
        return found


_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""The family of all misuse. Typer exports only one member of it, and its module moved between releases."""


def _wants_json(words: list[str]) -> bool:
    """Return whether a command that cannot be understood asks for JSON."""
    pairs = set(itertools.pairwise(words))
    return bool({("-o", "json"), ("--output", "json")} & pairs or {"-ojson", "--output=json"} & set(words))


def _one_line(error: Any) -> str:
    # Typer passes on what its validator says, with the validator's own word for an error.
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    where = f" ({error.ctx.command_path} -h)" if error.ctx is not None else ""
    return f"{message[:1].lower()}{message[1:]}{where}"


def noun(help_text: str) -> typer.Typer:
    """Make an application that behaves like all of ours."""
    return typer.Typer(cls=Group, help=help_text, add_completion=False, **_MANNERS)


_MANNERS: Final[dict[str, Any]] = {
    "no_args_is_help": True,
    # Help without rich: to import it would double the time of every mistyped command.
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}

app = typer.Typer(cls=LazyGroup, **_MANNERS)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lakebed {version('lakebed')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """Version control for a data lake that deletes what is no longer reachable.

    Exit codes: 0 done, 1 failed, 2 misused, 3 not found, 4 conflict, 5 unavailable.
    """
