"""Lua hooks: a script in a process of its own, with limits of time, memory and network (`lua_child.py`).

The script reads objects through questions to this process, which answers them with the rights of the user who made the
change. It has no other way out.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lakebed.base import LakebedError, in_words

from . import webhook
from .actions import duration_s
from .options import OUTPUT_CHARACTERS_MAX, TIMEOUT_S, TIMEOUT_S_MAX, HookFailed, HookOptions, Log, bare_environment

CHILD: Final = Path(__file__).with_name("lua_child.py")
CALLS: Final = ("get_object", "stat_object", "list_objects", "diff_refs")
LINE_BYTES_MAX: Final = 1 << 20
"""Room for a text of OUTPUT_CHARACTERS_MAX as JSON, and for the body of a request."""

Ask = Callable[[str, list[Any]], tuple[int, Any]]
"""Answer a question of a script: a status of HTTP, and bytes or a value of JSON. Called in the hook's thread."""


def run(
    script: str,
    args: Mapping[str, Any],
    action: Mapping[str, Any],
    *,
    timeout: object,
    options: HookOptions,
    ask: Ask,
    log: Log,
) -> None:
    """Run a script to its end. Blocks.

    Raises:
        HookFailed: the script raised an error, or passed a limit.
    """
    if not options.lua:
        raise HookFailed("this server runs no Lua hooks (LAKEBED_ACTIONS_LUA)")
    if importlib.util.find_spec("lupa") is None:
        raise HookFailed("this server has no Lua: install lakebed[lua]")
    timeout_s = min(duration_s(timeout or TIMEOUT_S), TIMEOUT_S_MAX)
    given = {
        "script": script,
        "args": args,
        "action": action,
        "calls": CALLS,
        "network": options.lua_network,
        "memory_bytes": options.lua_memory_bytes,
        "cpu_s": int(timeout_s) + 1,  # above the timeout, whose error is clearer
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(  # noqa: S603  # our own Python and our own file
            [sys.executable, "-I", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=bare_environment(),
            cwd=folder,
        ) as child,
    ):
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            child.kill()

        until_s = time.monotonic() + timeout_s
        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            _talk(child, given, options=options, ask=ask, log=log, is_late=is_late, until_s=until_s)
        finally:
            timer.cancel()
            child.kill()


def _talk(
    child: subprocess.Popen[bytes],
    given: Mapping[str, Any],
    *,
    options: HookOptions,
    ask: Ask,
    log: Log,
    is_late: threading.Event,
    until_s: float,
) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        _send(child, given)
        printed = 0
        while line := child.stdout.readline(LINE_BYTES_MAX):
            if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                raise HookFailed(f"the script printed or sent more than {LINE_BYTES_MAX} bytes at once")
            message = json.loads(line)
            if "print" in message:
                text = str(message["print"])
                log(text)
                printed += len(text) + 1
                if printed > OUTPUT_CHARACTERS_MAX:  # an endless loop must not keep this process busy
                    raise HookFailed(f"the script printed more than {OUTPUT_CHARACTERS_MAX} characters")
            elif "ask" in message:
                _send(child, _answered(str(message["ask"]), list(message["arguments"]), options, ask, until_s))
            elif "error" in message:
                raise HookFailed(str(message["error"]))
            else:
                return
    except (OSError, ValueError) as error:
        if not is_late.is_set():
            raise HookFailed(f"the script's process broke off: {in_words(error)}") from error
    if is_late.is_set():
        raise HookFailed("the script took longer than its timeout")
    status = child.wait()
    if status < 0:
        raise HookFailed(f"the script passed its limit of CPU time or memory (signal {-status})")
    words = child.stderr.read(4096).decode(errors="replace").strip().splitlines()
    raise HookFailed(f"the script's process ended with {status}: {words[-1] if words else ''}")


def _send(child: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(message).encode() + b"\n")
    child.stdin.flush()


def _answered(name: str, arguments: list[Any], options: HookOptions, ask: Ask, until_s: float) -> dict[str, Any]:
    try:
        if name == "net/http.request":
            if not options.lua_network:
                return {"error": "this server lets no script send requests (LAKEBED_ACTIONS_LUA_NETWORK)"}
            return _sent(arguments, options, until_s)
        code, value = ask(name.removeprefix("lakefs."), arguments)
    except (LakebedError, OSError, ValueError, TypeError, LookupError) as error:
        return {"error": f"{name}: {in_words(error)}"}
    if isinstance(value, bytes):
        return {"code": code, "data": base64.b64encode(value).decode()}
    return {"code": code, "value": value}


def _sent(arguments: list[Any], options: HookOptions, until_s: float) -> dict[str, Any]:
    asked: dict[str, Any] = arguments[0] if isinstance(arguments[0], dict) else {"url": arguments[0]}
    headers = {str(name): str(value) for name, value in dict(asked.get("headers") or {}).items()}
    answer = webhook.request(
        str(asked.get("method") or "GET"),
        str(asked["url"]),
        headers,
        str(asked.get("body") or "").encode(),
        timeout_s=until_s - time.monotonic(),
        options=options,
    )
    return {"code": answer.status, "data": base64.b64encode(answer.body).decode()}
