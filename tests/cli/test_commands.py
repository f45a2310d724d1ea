"""What all commands share: how they start, ask, answer and end."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lakebed.base import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    exit_code,
)
from lakebed.cli.kit.failures import describe
from lakebed.cli.kit.tree import COMMANDS
from lakebed.client import BadRequest
from lakebed.examples.quickstart import LocalServer
from lakebed.settings import profiles, read_settings
from tests.cli.conftest import Shell
from tests.cli.gc.test_runs import start_run

Put = Callable[[str, str], None]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("x"), 3),
        (AlreadyExists("x"), 4),
        (Conflict("x"), 4),
        (Unavailable("x"), 5),
        (OutcomeUnknown("x"), 5),
        (Invalid("x"), 2),
        (BadRequest("x", status=400), 1),
        (Denied("x"), 1),
        (Corrupt("x"), 1),
        (LakebedError("x"), 1),
    ],
)
def test_each_family_has_its_exit_code(error: LakebedError, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_is_one_line() -> None:
    assert describe(LakebedError("first\nsecond")) == "first"
    assert describe(LakebedError("")) == "lakebed error"


def test_of_a_copy_to_a_full_disk_the_target_is_named() -> None:
    copied = OSError(errno.ENOSPC, "No space left on device", "source", None, "target")

    assert describe(copied) == "target: No space left on device"
    assert describe(FileNotFoundError(errno.ENOENT, "No such file", "source", None, "target")) == "source: No such file"


def modules_after(*arguments: str) -> set[str]:
    """Modules that a command has loaded when it is done."""
    script = (
        "import sys\n"
        f"sys.argv = {['lakebed', *arguments]!r}\n"
        "from lakebed.cli.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('\\n', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_command_loads_only_what_it_needs() -> None:
    heavy = {"httpx", "rich", "pyarrow", "pyspark", "uvicorn", "starlette", "numpy", "pygments"}

    assert modules_after("--version") & heavy == set()
    assert modules_after("repo", "create", "--help") & heavy == set()
    assert modules_after("branch", "list", "lakefs://none", "--endpoint", "http://127.0.0.1:9") & heavy == {"httpx"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(shell: Shell, name: str) -> None:
    outcome = shell.ok(name, "--help")

    assert outcome.out.startswith(f"Usage: lakebed {name} ")
    assert outcome.err == ""


def test_the_help_names_every_command(shell: Shell) -> None:
    shown = shell.ok("--help").out

    assert all(f"\n  {name} " in shown for name in COMMANDS)


def test_a_command_that_does_not_exist_is_a_misuse(shell: Shell) -> None:
    assert shell("nonsense").code == 2
    assert shell("repo", "nonsense").code == 2
    assert shell("repo", "list", "--nonsense").code == 2
    assert shell("repo", "list", "-o", "xml").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["gc", "nonsense"],
        ["gc", "plan", "lakefs://lake", "--bogus"],
        ["gc", "plan"],
        ["gc", "plan", "lakefs://lake", "--clean-every", "0"],
        ["gc", "rules", "set-default", "lakefs://lake", "7d", "8d"],
        ["repo", "list", "-o", "xml"],
        ["serve", "--data", "d", "--port", "99999"],
    ],
)
def test_misuse_is_told_in_one_line_like_every_other_error(shell: Shell, arguments: list[str]) -> None:
    outcome = shell(*arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert re.search(r" -h\)$|, as in `lakebed gc plan lakefs://lake` \(-h explains\)$", outcome.err)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("comit", "commit"), ("brnch", "branch"), ("objetcs", "object"), ("checkout", "lakebed local checkout")],
)
def test_a_command_that_is_nearly_right_is_suggested(shell: Shell, typed: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in shell(typed).err.lower()


def test_a_command_that_stands_elsewhere_comes_before_one_that_is_nearly_right(shell: Shell) -> None:
    assert "Did you mean 'lakebed local pull' or 'pulls'?" in shell("pull").err


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("gc rules get", "gc rules show"),
        ("lifecycle policy get", "lifecycle policy show"),
        ("object list", "object ls"),
        ("object delete", "object rm"),
        ("object show", "object stat"),
        ("repo ls", "repo list"),
        ("branch rm", "branch delete"),
        ("quota unset", "quota remove"),
        ("lifecycle policy remove", "lifecycle policy unset"),
        ("gc rule delete", "gc rules unset"),
        ("pull list", "pulls list"),
        ("pull ls", "pulls list"),
        ("event follow", "events follow"),
        ("action show", "actions show"),
        ("auth user ls", "auth users list"),
        ("auth policy rm", "auth policies delete"),
        ("branches list", "branch list"),
        ("gc jobs ls", "gc job list"),
    ],
)
def test_synonyms_of_verbs_and_nouns_in_either_number_are_taken(shell: Shell, typed: str, named: str) -> None:
    assert shell.ok(*typed.split(), "--help").out.startswith(f"Usage: lakebed {named} ")


def test_a_word_that_could_be_two_verbs_is_answered_with_both(shell: Shell) -> None:
    assert "Did you mean 'delete' or 'remove'?" in shell("auth", "groups", "rm", "g").err
    assert shell("object", "get", "lakefs://lake/main/a").code == 2


def test_what_is_missing_is_said_before_any_question_and_a_question_that_cannot_be_asked_names_the_deed(
    shell: Shell, lake: str, put: Put
) -> None:
    for words in (
        ("branch", "delete", f"{lake}/none"),
        ("branch", "reset", f"{lake}/none", "--to", "main"),
        ("branch", "revert", f"{lake}/none", "main"),
        ("tag", "delete", f"{lake}/none"),
        ("repo", "delete", "lakefs://no-such-lake"),
        ("object", "rm", f"{lake}/main/none"),
        ("auth", "users", "delete", "none"),
        ("auth", "groups", "delete", "none"),
        ("auth", "policies", "delete", "none"),
        ("auth", "users", "delete-key", "none", "AKIA"),
    ):
        assert shell(*words).code == 3, words

    put(f"{lake}/main/a", "1")
    shell.ok("tag", "create", f"{lake}/v1", "main")
    refused = shell("repo", "delete", lake)
    assert (refused.code, "refusing to delete the repository" in refused.err) == (2, True)
    assert "without --yes: there is no terminal to ask at" in refused.err
    shell.ok("object", "rm", f"{lake}/main/a")
    assert shell("tag", "delete", f"{lake}/v1", "--for-good").code == 2
    shell.ok("tag", "delete", f"{lake}/v1")


def test_an_option_before_the_command_is_answered_with_where_it_stands(shell: Shell) -> None:
    outcome = shell("--profile", "x", "whoami")

    assert (outcome.code, outcome.err) == (
        2,
        "error: no such option '--profile'. Options stand behind the command (lakebed -h)\n",
    )


def test_a_noun_without_a_verb_is_answered_with_its_help(shell: Shell) -> None:
    outcome = shell("gc")

    assert outcome.code == 2
    assert outcome.err.startswith("Usage: lakebed gc ")


def test_a_server_with_an_object_store_that_there_is_not_does_not_start(shell: Shell, tmp_path: Path) -> None:
    outcome = shell("serve", "--data", str(tmp_path / "lake"), "--port", "0", LAKEBED_BLOCKSTORE="ftp")

    assert (outcome.code, outcome.err) == (2, "error: LAKEBED_BLOCKSTORE is 'ftp': known are local, s3, gs, az\n")
    assert not (tmp_path / "lake").exists()


def test_no_server_is_unavailable(shell: Shell) -> None:
    outcome = shell("repo", "list", "--endpoint", "http://127.0.0.1:9")

    assert outcome.code == 5
    assert outcome.err.startswith("error: cannot reach http://127.0.0.1:9: ")
    assert outcome.out == ""


def test_wrong_credentials_are_refused(shell: Shell) -> None:
    secret = shell("repo", "list", LAKEBED_SECRET_ACCESS_KEY="wrong")
    key = shell("repo", "list", LAKEBED_ACCESS_KEY_ID="AKIAJNOBODY", LAKEBED_SECRET_ACCESS_KEY="wrong")

    assert (secret.code, key.code) == (1, 1)
    assert f"(from {shell.environment['LAKEBED_CONFIG']}, its secret from LAKEBED_SECRET_ACCESS_KEY)" in secret.err
    assert "does not accept access key AKIAJNOBODY (from LAKEBED_ACCESS_KEY_ID, its secret" in key.err
    assert len(key.err.splitlines()) == 1


def test_a_profile_that_has_another_key_for_the_server_is_named(server: LocalServer, tmp_path: Path) -> None:
    mine = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml"), "LAKEBED_ENDPOINT": server.endpoint})
    kept = ("--access-key-id", "AKIA234567890ABCDEFG", "--secret-access-key", "kept")
    mine.ok("config", "set", "--endpoint", f"{server.endpoint}/api/v1/", *kept, "--profile", "first one")

    outcome = mine("repo", "list", LAKEBED_ACCESS_KEY_ID="AKIAJNOBODY", LAKEBED_SECRET_ACCESS_KEY="wrong")

    assert outcome.err.endswith("another one's. --profile 'first one' has another key for it\n")


def test_a_key_without_its_secret_is_no_credentials(shell: Shell, server: LocalServer, tmp_path: Path) -> None:
    alone = {"LAKEBED_CONFIG": str(tmp_path / "none.toml"), "LAKEBED_ACCESS_KEY_ID": "AKIAJ"}

    outcome = shell("repo", "list", "--endpoint", shell.ok("config", "show", "-o", "json").json["endpoint"], **alone)

    assert (outcome.code, outcome.err) == (
        1,
        "error: no credentials: there is a key id, from LAKEBED_ACCESS_KEY_ID, but no secret\n",
    )


def test_who_has_no_credentials_is_told_where_they_come_from(shell: Shell, server: LocalServer) -> None:
    outcome = shell("repo", "list", "--endpoint", server.endpoint, LAKEBED_CONFIG="/nowhere/config.toml")

    assert outcome.code == 1
    assert "lakebed setup" in outcome.err
    assert "lakebed config set" in outcome.err


def test_what_is_no_lakebed_server_is_told_apart(shell: Shell) -> None:
    assert shell("repo", "list", "--endpoint", "not a url").code == 2


def test_an_endpoint_that_is_none_is_not_stored(tmp_path: Path) -> None:
    outcome = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})("config", "set", "--endpoint", "foo")

    assert (outcome.code, outcome.err) == (2, "error: endpoint 'foo' is not of the form http://host:port\n")
    assert list(tmp_path.iterdir()) == []


def test_an_option_in_place_of_a_value_is_refused(
    shell: Shell, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    folder = shell("serve", "--data", "-h")
    message = shell("commit", f"{lake}/main", "-m", "--allow-empty")

    assert (folder.code, folder.err) == (
        2,
        "error: -h looks like an option: write ./-h for a file or folder of this name\n",
    )
    assert message.code == 2
    assert message.err.startswith("error: --allow-empty is an option: the value before it is missing (")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_listen_leaves_no_folder(shell: Shell, server: LocalServer, tmp_path: Path) -> None:
    port = server.endpoint.rpartition(":")[2]

    outcome = shell("serve", "--data", str(tmp_path / "new"), "--port", port)

    assert (outcome.code, "is taken" in outcome.err) == (5, True)
    assert list(tmp_path.iterdir()) == []


def test_a_server_is_set_up_once(shell: Shell) -> None:
    outcome = shell("setup")

    assert outcome.code == 4
    assert "already initialized" in outcome.err


EXPORTED = [
    "LAKEBED_ENDPOINT",
    "LAKEBED_ACCESS_KEY_ID",
    "LAKEBED_SECRET_ACCESS_KEY",
    "LAKECTL_SERVER_ENDPOINT_URL",
    "LAKECTL_CREDENTIALS_ACCESS_KEY_ID",
    "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
]


def key_of(name: str) -> str:
    return f"AKIA{name.upper():0>16}"


def pair_of(name: str, secret: str) -> tuple[str, ...]:
    return ("--access-key-id", key_of(name), "--secret-access-key", secret)


def test_a_new_server_says_so_and_its_key_replaces_no_other_one(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    mine = Shell(environment={"LAKEBED_CONFIG": str(path)})
    mine.ok("config", "set", "--endpoint", "http://old:1/", *pair_of("old", "s1"))
    before = path.read_bytes()
    new = LocalServer(data=tmp_path / "data", log=tmp_path / "log", port=0)
    new.start()
    try:
        at = ("--endpoint", new.endpoint)
        who, health, refused = mine("whoami", *at), mine("doctor", *at), mine("setup", *at)
        unchanged = path.read_bytes() == before
        mine.ok("config", "set", *at, "--profile", "new", *pair_of("gone", "s2"))
        made = mine.ok("setup", *at, "--profile", "new", "-o", "json").json
        shown = mine.ok("whoami", "--profile", "new")
    finally:
        new.stop()

    setting_up = f"lakebed setup --endpoint {new.endpoint}"
    assert (who.code, who.err) == (1, f"error: {new.endpoint} is not set up yet: `{setting_up}` makes its first user\n")
    assert f"run `{setting_up}`" in health.err
    assert (refused.code, unchanged) == (2, True)
    assert "holds the key of http://old:1/: add --profile NAME" in refused.err
    assert read_settings(path).secret_access_key == "s1"
    assert read_settings(path, "new").access_key_id == made["access_key_id"]
    # The key of an earlier server at the same endpoint.
    assert read_settings(path, new.endpoint.removeprefix("http://")).secret_access_key == "s2"
    assert "admin" in shown.out


def test_a_stored_key_that_another_replaces_moves_to_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    mine = Shell(environment={"LAKEBED_CONFIG": str(path)})

    def store(port: int, key: str) -> str:
        return mine.ok("config", "set", "--endpoint", f"http://one:{port}", *pair_of(key, f"secret-{key}")).err

    said = [store(port, key) for port, key in ((1, "a"), (1, "b"), (2, "c"), (1, "d"), (2, "e"), (1, "d"), (2, "e"))]

    assert ["is now in profile" in one for one in said] == [False, True, True, True, True, True, False]
    assert said[1] == f"key {key_of('a')}, which was there, is now in profile one:1: --profile one:1 takes it\n"
    kept = {name: read_settings(path, name).secret_access_key for name in ("", *profiles(path))}
    assert kept == {
        "": "secret-e",
        "one:1": "secret-a",
        "one:1-2": "secret-b",
        "one:2": "secret-c",
        "one:1-3": "secret-d",
        "one:2-2": "secret-e",
    }


def test_what_cannot_be_a_key_pair_is_refused(tmp_path: Path) -> None:
    mine = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})
    mine.ok("config", "set", *pair_of("a", "s1"))

    wrong = mine("config", "set", "--access-key-id", "kim", "--secret-access-key", "s2")
    half = mine("config", "set", "--access-key-id", key_of("b"))

    assert (wrong.code, half.code) == (2, 2)
    assert "'kim' is no access key id: one is AKIA and 16 capitals and digits" in wrong.err
    assert f"add --secret-access-key -: the secret that is stored is that of {key_of('a')}" in half.err
    assert read_settings(tmp_path / "config.toml").access_key_id == key_of("a")


def test_each_command_that_shows_a_key_pair_writes_the_same_lines_for_a_shell(shell: Shell, lake: str) -> None:
    shell.ok("auth", "users", "create", "zoe", "--no-key")
    commands = [
        ["config", "show"],
        ["auth", "users", "create-key", "zoe"],
        ["auth", "users", "create", "zoe2"],
        ["sandbox", "create", lake, "--from", "main", "--ttl", "1h"],
    ]
    lines = [shell.ok(*words, "--export").out for words in commands]
    whole = shell.ok(*commands[-1]).out

    shown = [re.sub("=.*", "", text).replace("export BOX\n", "") for text in lines]
    assert set(shown) == {shown[0]}
    assert shown[0].split("export ")[1:] == [f"{name}\n" for name in EXPORTED]
    found = subprocess.run(["sh", "-c", f"{lines[3]}env"], capture_output=True, text=True, check=True).stdout
    variables = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
    assert variables["BOX"].startswith("sandbox-")
    assert variables["AWS_SECRET_ACCESS_KEY"] == variables["LAKEBED_SECRET_ACCESS_KEY"]
    assert shell("whoami", **variables).out.split()[1] == variables["BOX"]
    # Without the option they are there, too: the secret is shown once.
    assert "export AWS_ACCESS_KEY_ID=AKIA" in whole


def test_the_configuration_is_shown_without_the_secret(shell: Shell) -> None:
    shown = shell.ok("config", "show", "-o", "json").json

    assert shown["secret_access_key"] == "(set)"
    assert shown["access_key_id"].startswith("AKIA")
    assert shown["file"] == shell.environment["LAKEBED_CONFIG"]


def test_the_configuration_keeps_what_is_not_given(shell: Shell, tmp_path: Path) -> None:
    environment = {"LAKEBED_CONFIG": str(tmp_path / "config.toml")}
    other = Shell(environment=environment)

    other.ok("config", "set", "--endpoint", "http://one", *pair_of("key", "secret"))
    other.ok("config", "set", "--endpoint", "http://two")

    shown = other.ok("config", "show", "-o", "json").json
    assert (shown["endpoint"], shown["access_key_id"]) == ("http://two", key_of("key"))


def test_a_secret_is_read_from_a_pipe(tmp_path: Path) -> None:
    environment = {"LAKEBED_CONFIG": str(tmp_path / "config.toml")}
    process = Shell(environment=environment).process("config", "set", "--secret-access-key", "-", stdin=subprocess.PIPE)

    _, err = process.communicate(b"hidden\n")

    assert (process.returncode, err) == (0, b"")
    assert 'secret_access_key = "hidden"' in (tmp_path / "config.toml").read_text()


def test_a_configuration_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('secret_access_key = "x"\n')
    path.chmod(0o644)

    assert "chmod 600" in Shell(environment={"LAKEBED_CONFIG": str(path)}).ok("config", "show").err


def test_a_configuration_that_makes_no_sense_stops_every_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("nonsense")

    assert Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})("repo", "list").code == 2


def test_nothing_is_stored_when_nothing_is_given_and_nobody_can_be_asked(tmp_path: Path) -> None:
    outcome = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})("config", "set")

    assert outcome.code == 2
    assert list(tmp_path.iterdir()) == []


def on_terminal(shell: Shell, answer: bytes, *arguments: str, **environment: str) -> tuple[int, str]:
    """Type a command and an answer at a terminal of 24 lines."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lakebed", *arguments],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "TERM": "xterm",
            **shell.environment,
            **environment,
        },
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    said = b""
    answered = False
    while True:
        try:
            chunk = os.read(controller, 4096)
        except OSError:
            break  # Linux says EIO when the last one closed the terminal.
        said += chunk
        if not answered and b"[y/N]" in said:
            os.write(controller, answer)
            answered = True
        if not chunk:
            break
    os.close(controller)
    return process.wait(), said.decode()


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 1), (b"\n", 1, 1)])
def test_what_destroys_asks_first(shell: Shell, lake: str, put: Put, answer: bytes, code: int, left: int) -> None:
    put(f"{lake}/main/a", "1")

    ended, said = on_terminal(shell, answer, "object", "rm", "-r", f"{lake}/main/")

    assert ended == code
    assert f"Delete all objects below {lake}/main/? [y/N]" in " ".join(said.split())
    assert len(shell.ok("object", "ls", f"{lake}/main", "-o", "json").json) == left


def test_a_question_is_wrapped_between_words_at_a_terminal(shell: Shell, lake: str) -> None:
    _, said = on_terminal(shell, b"n\n", "repo", "delete", lake)

    asked = said[: said.index("[y/N]:") + len("[y/N]:")]
    assert max(map(len, asked.splitlines())) <= 80
    assert " ".join(asked.split()).endswith("with all its branches, tags and commits? [y/N]:")


def test_an_answer_that_is_none_is_asked_for_again(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")

    ended, said = on_terminal(shell, b"maybe\nyes\n", "object", "rm", "-r", f"{lake}/main/")

    assert (ended, said.count("[y/N]"), "answer y or n" in said) == (0, 2, True)


def test_only_a_list_that_does_not_fit_goes_through_the_pager(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(40):
        (tmp_path / "many" / f"f{number:02}").write_text("x")
    shell.ok("object", "upload", "-r", str(tmp_path / "many"), f"{lake}/main/many")
    pager = "sed s/^/paged:/"

    _, long = on_terminal(shell, b"", "object", "ls", f"{lake}/main/many/", LAKEBED_PAGER=pager)
    _, short = on_terminal(shell, b"", "object", "ls", f"{lake}/main/many/", "-n", "3", LAKEBED_PAGER=pager)
    _, off = on_terminal(shell, b"", "object", "ls", f"{lake}/main/many/", LAKEBED_PAGER="", PAGER=pager)
    ended, left = on_terminal(shell, b"", "object", "ls", f"{lake}/main/many/", PAGER="head -n 1")
    piped = shell("object", "ls", f"{lake}/main/many/", LAKEBED_PAGER=pager)

    assert long.count("paged:") == 40
    assert (short.count("many/f"), "paged:" in short) == (3, False)
    assert (off.count("many/f"), "paged:" in off) == (40, False)
    assert (ended, left.count("many/f")) == (0, 1)
    ended, broken = on_terminal(shell, b"", "object", "ls", f"{lake}/main/many/", PAGER='less "')
    assert (ended, "is not a command" in " ".join(broken.split())) == (2, True)
    assert "paged:" not in piped.out


def test_verbose_shows_each_request_and_quiet_only_results_and_errors(
    shell: Shell, lake: str, put: Put, tmp_path: Path
) -> None:
    put(f"{lake}/main/a", "1")

    loud = shell("object", "cat", f"{lake}/main/a", "-v")
    quiet = shell("object", "rm", f"{lake}/main/a", "--yes", "-q")
    both = shell("repo", "list", "-v", "-q")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "b").write_text("1")
    put(f"{lake}/main/some/b", "2")
    failed = shell("object", "upload", "-r", str(tmp_path / "some"), f"{lake}/main/some", "--if-absent", "-q")

    assert re.search(r"^> GET /api/v1/repositories/\S+/objects 200 \d+ ms$", loud.err, re.MULTILINE)
    assert loud.out == "1"
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert "REPOSITORY" in shell("repo", "list", "-q").out
    assert both.code == 2
    assert (failed.code, "some/b" in failed.err) == (1, True)


def test_quiet_says_nothing_of_what_it_made_but_the_id_that_only_it_knows(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/a", "1")
    made = [
        shell("commit", f"{lake}/main", "-m", "a", "-q"),
        shell("branch", "create", f"{lake}/dev", "-q"),
        shell("tag", "create", f"{lake}/v1", "main", "-q"),
        shell("object", "cp", f"{lake}/main/a", f"{lake}/dev/b", "-q"),
        shell("commit", f"{lake}/dev", "-m", "b", "-q"),
    ]
    pull = shell.ok("pulls", "create", f"{lake}/dev", f"{lake}/main", "-t", "b", "-q").out.strip()
    made.append(shell("pulls", "merge", lake, pull, "--yes", "-q"))

    assert [(one.code, one.out, one.err) for one in made] == [(0, "", "")] * len(made)
    assert shell.ok("pulls", "show", lake, pull, "-o", "json").json["status"] == "merged"


def test_what_is_mistyped_is_answered_with_what_is_there(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/data/march.csv", "1")
    name = lake.removeprefix("lakefs://")

    said = [
        shell("repo", "show", f"lakefs://{name[:-1]}").err,
        shell("log", f"{lake}/mian").err,
        shell("object", "cat", f"{lake}/main/data/mrach.csv").err,
        shell("object", "cat", f"{lake}/main/data/zzz").err,
        shell("du", lake).err,
        shell("gc", "rules", "display").err,
    ]

    for line, hint in zip(
        said,
        [
            "Did you mean lakefs://lake-",
            f"Did you mean {lake}/main?",
            f"Did you mean {lake}/main/data/march.csv?",
            f"`lakebed object ls {lake}/main/data/` shows what is there",
            "Did you mean 'lakebed object du'?",
            "There are: show, set-default,",
        ],
        strict=True,
    ):
        assert hint in line


def test_a_hint_is_given_only_where_it_helps(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/data/a", "1")
    shell.ok("tag", "create", f"{lake}/v1", "main")

    tag = shell("object", "upload", "-", f"{lake}/v1/x", stdin="1")
    folder = shell("object", "download", f"{lake}/main/data", "./unused")
    ancestor = shell("log", f"{lake}/main~9")

    assert (tag.code, "v1 is a tag: only branches can be written" in tag.err) == (3, True)
    assert (folder.code, folder.err.endswith("add --recursive\n")) == (3, True)
    assert (ancestor.code, "branch list" in ancestor.err) == (3, False)


def test_what_is_not_in_a_list_that_was_cut_is_not_called_missing(
    shell: Shell, lake: str, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.ok("branch", "create", f"{lake}/zz")
    monkeypatch.setattr("lakebed.cli.kit.nearby.LOOKED_AT_MAX", 1)

    missing = shell("object", "cat", f"{lake}/zz/zz")

    assert missing.code == 3
    assert "shows what is there" not in missing.err
    assert "Did you mean" not in missing.err


def test_help_is_a_word_too(shell: Shell) -> None:
    assert shell.ok("help", "branch", "create").out == shell.ok("branch", "create", "-h").out


@pytest.mark.parametrize(
    "words",
    [
        ["comit", "-o", "json"],
        ["repo", "list", "--bogus", "--output=json"],
        ["repo", "list", "-qo", "json", "--bogus"],
        ["repo", "list", "-vojson", "--bogus"],
        ["repo", "list", "--\udcff", "-o", "json"],
        ["repo", "list", "--endpoint", "\udcff", "-o", "json"],
        ["object", "upload", "\udcff", "lakefs://lake", "-o", "json"],
    ],
)
def test_a_misuse_is_json_where_json_is_asked_for(shell: Shell, words: list[str]) -> None:
    outcome = shell(*words)

    assert (outcome.code, json.loads(outcome.err)["error"]["kind"]) == (2, "misused")


def test_what_follows_two_dashes_asks_for_nothing(shell: Shell) -> None:
    assert shell("log", "--", "lakefs://lake/main", "-o", "json").err.startswith("error: ")


def test_a_file_that_is_missing_is_named_in_json_whatever_its_bytes(shell: Shell) -> None:
    outcome = shell("object", "upload", "\udcff", "lakefs://lake/main/a", "-o", "json")

    assert outcome.code == 2
    assert r"\udcff" in json.loads(outcome.err)["error"]["message"]


def test_a_message_in_bytes_that_are_no_unicode_is_a_misuse(shell: Shell, lake: str) -> None:
    outcome = shell("commit", f"{lake}/main", "-m", "\udcff")

    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "its bytes are not UTF-8" in outcome.err


def test_a_number_beyond_all_counts_is_a_misuse(shell: Shell, lake: str) -> None:
    outcome = shell("log", f"{lake}/main", "-n", "9" * 23)

    assert outcome.code == 2
    assert "is out of range" in outcome.err


def test_an_error_is_wrapped_between_words_at_a_terminal(shell: Shell, lake: str) -> None:
    ended, said = on_terminal(shell, b"", "merge", f"{lake}/main", f"{lake}-of-others/main")

    assert ended != 0
    assert max(map(len, said.splitlines())) <= 80 < len(said)
    assert " ".join(said.split()).startswith(f"error: {lake}/main")


def test_a_bar_is_shown_to_somebody_who_watches_and_not_in_a_pipe(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(1 << 20))

    _, watched = on_terminal(shell, b"", "object", "upload", str(tmp_path / "f"), f"{lake}/main/")
    piped = shell.ok("object", "upload", str(tmp_path / "f"), f"{lake}/main/")

    assert "uploading f" in watched
    assert piped.err == ""


def test_a_reader_that_goes_away_is_no_error(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(4 << 20))
    shell.ok("object", "upload", str(tmp_path / "f"), f"{lake}/main/")

    process = shell.process("object", "cat", f"{lake}/main/f")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()

    assert process.wait() == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("words", [["--help"], ["gc", "plan", "-h"], ["--version"], ["--show-completion", "bash"]])
def test_a_reader_that_goes_away_from_the_help_is_no_error(shell: Shell, words: list[str]) -> None:
    process = shell.process(*words)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


def test_a_reader_that_goes_away_from_errors_is_no_error(shell: Shell) -> None:
    process = shell.process("nonsense")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()

    assert process.stdout.read() == b""
    assert process.wait() == 141
    process.stdout.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--help"], ["gc", "-h"], ["--version"]])
def test_help_that_cannot_be_written_is_one_line(shell: Shell, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        environment = {**os.environ, **shell.environment}
        done = subprocess.run(
            [sys.executable, "-m", "lakebed", *words], env=environment, stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_ctrl_c_ends_with_one_line_and_leaves_nothing_half_done(shell: Shell, lake: str) -> None:
    process = shell.process("object", "upload", "-", f"{lake}/main/a", stdin=subprocess.PIPE)
    assert process.stdin is not None
    # More than a pipe holds: when this returns, the command is reading, and on its way to the server.
    process.stdin.write(b"x" * (3 << 20))
    process.stdin.flush()

    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    stopped = (
        b"stopped: a request was on its way, and the server may carry it out. Look before you run the command again\n"
    )
    assert (process.returncode, out, err) == (130, b"", stopped)
    assert shell("object", "stat", f"{lake}/main/a").code == 3


def test_serving_a_folder_with_something_else_in_it_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    outcome = shell("serve", "--data", str(tmp_path), "--port", "0")

    assert outcome.code == 2
    assert "not a Lakebed data folder" in outcome.err


def test_serving_on_a_port_that_is_taken_is_unavailable(shell: Shell, tmp_path: Path) -> None:
    port = shell.ok("config", "show", "-o", "json").json["endpoint"].rpartition(":")[2]

    outcome = shell("serve", "--data", str(tmp_path / "new"), "--port", port)

    assert outcome.code == 5
    assert "is taken" in outcome.err
    assert "--port" in outcome.err


def completed(shell: Shell, line: str) -> list[str]:
    """Return what bash is offered for the last word. It splits words at colons and equals signs."""
    words = [part for word in line.split(" ") for part in re.split("([:=])", word)]
    if len(words) > 1 and words[-2:] == ["=", ""]:
        words.pop()
    environment = {
        **os.environ,
        **shell.environment,
        "_LAKEBED_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    script = "import sys; sys.argv = ['lakebed']; from lakebed.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


def test_commands_are_completed(shell: Shell) -> None:
    assert completed(shell, "lakebed br") == ["branch"]


def test_repositories_branches_and_paths_are_completed(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/data/a", "1")
    put(f"{lake}/main/data/b", "2")
    name = lake.removeprefix("lakefs:")

    assert completed(shell, f"lakebed repo show {lake[:-3]}") == [name]
    assert completed(shell, f"lakebed log {lake}/ma") == [f"{name}/main"]
    assert completed(shell, f"lakebed diff {lake}/main {lake}/ma") == [f"{name}/main"]
    assert completed(shell, "lakebed repo show lake") == ["lakefs://"]


def test_the_only_folder_is_completed_with_what_is_in_it(shell: Shell, lake: str, put: Put) -> None:
    """The shell would put a space behind it, and one could not go on."""
    put(f"{lake}/main/data/a", "1")
    put(f"{lake}/main/data/b", "2")
    name = lake.removeprefix("lakefs:")

    assert completed(shell, f"lakebed log {lake[:-3]}") == [f"{name}/main"]
    assert completed(shell, f"lakebed object ls {lake}/main/da") == [f"{name}/main/data/a", f"{name}/main/data/b"]


def test_a_path_is_completed_behind_an_equals_sign(shell: Shell, lake: str, put: Put) -> None:
    put(f"{lake}/main/year=2013/month=01/a", "1")
    put(f"{lake}/main/year=2013/month=02/a", "2")

    months = ["01/", "02/"]
    assert completed(shell, f"lakebed object ls {lake}/main/year=2013/month=") == months
    assert completed(shell, f"lakebed object cp {lake}/main/year=2013/month=01/a {lake}/main/year=2013/mo") == [
        f"2013/month={month}" for month in months
    ]


def test_runs_are_completed(shell: Shell, lake: str) -> None:
    run = start_run(shell, lake)

    assert completed(shell, f"lakebed gc status {lake} {run[:5]}") == [run]


def test_completion_without_a_server_offers_nothing_and_says_nothing(shell: Shell) -> None:
    nowhere = Shell(environment={**shell.environment, "LAKEBED_ENDPOINT": "http://127.0.0.1:9"})

    assert completed(nowhere, "lakebed repo show lakefs://a") == []


def test_the_help_of_a_noun_says_whole_sentences_in_a_narrow_terminal(shell: Shell) -> None:
    for noun in ("gc", "object", "branch", "auth", "config"):
        told = shell.ok(noun, "--help").out
        assert "..." not in told.partition("Commands:")[2], told


def test_ctrl_c_at_a_question_is_an_interrupt_and_nothing_is_done(shell: Shell, lake: str) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lakebed", "repo", "delete", lake],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **shell.environment},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    asked = b""
    while b"[y/N]" not in asked:
        asked += os.read(ours, 1000)

    out = b""
    while process.returncode is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):  # Python misses a signal right before it begins to read
            out, _ = process.communicate(timeout=30)

    assert (process.returncode, out.strip()) == (130, b"")
    assert shell("repo", "show", lake).code == 0
    os.close(theirs)
    os.close(ours)


LISTS = """
    repo list --prefix zz
    repo list --deleted --prefix zz
    branch list LAKE --prefix zz
    branch list LAKE --deleted
    branch protect LAKE
    tag list LAKE
    log LAKE/main --since 2100-01-01
    diff LAKE/main
    blame LAKE/main/
    object ls LAKE/main/
    object find LAKE/main/
    pulls list LAKE
    actions list LAKE
    gc list LAKE --data DATA
    gc ledger LAKE --data DATA
    gc job list LAKE
    gc rules history LAKE
    lifecycle policy history LAKE
    hold list LAKE
    hold history LAKE
    auth users list --prefix zz
    auth groups list --prefix zz
    auth policies list --prefix zz
    auth principals list ann
    audit --user nosuch
""".strip().splitlines()


def test_each_list_that_is_empty_says_so_on_stderr_and_is_an_empty_array_as_json(
    shell: Shell, lake: str, data: Path
) -> None:
    for line in LISTS:
        words = line.replace("LAKE", lake).replace("DATA", str(data)).split()
        text, record = shell.ok(*words), shell.ok(*words, "-o", "json")

        assert (text.out, text.err.count("\n")) == ("", 1), line
        assert text.err.startswith(("no ", "nothing ", "the ledger has no ", "there was never ")), line
        assert (record.json, record.err) == ([], ""), line


def test_a_data_folder_whose_name_is_no_unicode_is_shown_in_json(shell: Shell) -> None:
    shown = shell("config", "show", "-o", "json", LAKEBED_DATA="/lake\udcff")

    assert (shown.code, shown.json["data"]) == (0, "/lake\\udcff")
