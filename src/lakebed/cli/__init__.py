"""The command line, by noun. `lakebed.cli.__main__` is where it starts; `session.py` carries every command.

A command outside of this folder needs only the names below, and a line in `COMMANDS` (kit/tree.py):

    app = noun("Greet people.")

    @app.command("hello")
    def hello(session: Session, name: Annotated[str, Argument(help="Whom to greet.")]) -> None:
        '''Greet a person.'''
        session.say(f"hello {name}")
"""

from lakebed.settings import Settings, read_settings, write_settings

from .kit.failures import Misuse
from .kit.output import called, human_duration
from .kit.parameters import Argument, Option
from .kit.progress import bar
from .kit.session import Session, connect
from .kit.tree import app, noun

__all__ = [
    "Argument",
    "Misuse",
    "Option",
    "Session",
    "Settings",
    "app",
    "bar",
    "called",
    "connect",
    "human_duration",
    "noun",
    "read_settings",
    "write_settings",
]
