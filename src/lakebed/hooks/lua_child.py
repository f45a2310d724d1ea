"""The process of one Lua hook. It is started by its path, alone, and imports nothing of this package.

Limits are set before the script is read: CPU time, memory, no file or socket may be opened, none may grow. Lua gets no
`io`, `os.execute`, `package`, `debug` or `load`, and no attribute of any Python object. All that leaves the process are
lines of JSON on its output: text that was printed, or a question, whose answer is a line on its input.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import resource
import sys
from typing import Any

HIDDEN = ("io", "package", "debug", "python", "dofile", "loadfile", "load", "loadstring", "collectgarbage", "module")
PRELUDE = """
local clock, date, time, difftime = os.clock, os.date, os.time, os.difftime
os = {clock = clock, date = date, time = time, difftime = difftime}
string.dump = nil
local handed = ...
local modules = {}
for name, functions in pairs(handed) do modules[name] = functions end
function require(name)
  local found = modules[name]
  if found == nil then error("module " .. tostring(name) .. " is not available to hooks", 2) end
  return found
end
"""


def main() -> int:
    os.nice(19)  # A script that computes for a minute leaves the processors to the server.
    given = json.loads(sys.stdin.readline())
    import lupa.lua54 as lupa  # before the limits: it is a file

    memory = int(given["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_CPU, (int(given["cpu_s"]), int(given["cpu_s"]) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory + (512 << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

    def no_attributes(*_: object) -> str:
        raise AttributeError("not available to hooks")

    lua = lupa.LuaRuntime(
        unpack_returned_tuples=True,
        register_eval=False,
        register_builtins=False,
        attribute_filter=no_attributes,
        max_memory=memory,
        encoding="latin-1",  # a string of Lua is bytes: each becomes one character here, and back
    )

    def to_lua(value: Any) -> Any:
        if isinstance(value, dict):
            return lua.table_from({_bytes(key): to_lua(each) for key, each in value.items()})
        if isinstance(value, list | tuple):
            return lua.table_from([to_lua(each) for each in value])
        return _bytes(value) if isinstance(value, str) else value

    def from_lua(value: Any, depth: int = 0) -> Any:
        if depth > 64:
            raise ValueError("the table is too deep")
        if lupa.lua_type(value) == "table":
            items = list(value.items())
            if items and [key for key, _ in items] == list(range(1, len(items) + 1)):
                return [from_lua(each, depth + 1) for _, each in items]
            return {str(from_lua(key, depth + 1)): from_lua(each, depth + 1) for key, each in items}
        if isinstance(value, str):
            return value.encode("latin-1").decode(errors="replace")
        if value is None or isinstance(value, bool | int | float):
            return value
        raise ValueError(f"{lupa.lua_type(value)} is no data")

    def ask(name: str) -> Any:
        def asking(*arguments: Any) -> Any:
            _say({"ask": name, "arguments": [from_lua(each) for each in arguments]})
            answer = json.loads(sys.stdin.readline())
            if "error" in answer:
                raise RuntimeError(answer["error"])
            if "data" in answer:
                return answer["code"], base64.b64decode(answer["data"]).decode("latin-1")
            return answer["code"], to_lua(answer.get("value"))

        return asking

    def write(*values: Any) -> None:
        _say({"print": "\t".join(_shown(each) for each in values)})

    modules = {
        "encoding/json": {
            "marshal": lambda value: _bytes(json.dumps(from_lua(value), ensure_ascii=False)),
            "unmarshal": lambda text: to_lua(json.loads(text.encode("latin-1"))),
        },
        "encoding/base64": {
            "encode": lambda text: base64.b64encode(text.encode("latin-1")).decode(),
            "decode": lambda text: base64.b64decode(text).decode("latin-1"),
        },
        "crypto/sha256": {"digest": lambda text: hashlib.sha256(text.encode("latin-1")).hexdigest()},
        "crypto/hmac": {
            "sign_sha256": lambda text, key: hmac.digest(
                key.encode("latin-1"), text.encode("latin-1"), "sha256"
            ).decode("latin-1")
        },
        "strings": {
            "split": lambda text, separator: to_latin(lua, text.split(separator)),
            "trim": lambda text: text.strip(" \t\r\n"),
            "replace": lambda text, old, new, count=-1: text.replace(old, new, int(count)),
            "has_prefix": lambda text, part: text.startswith(part),
            "has_suffix": lambda text, part: text.endswith(part),
            "contains": lambda text, part: part in text,
        },
        "regexp": {"match": lambda pattern, text: re.search(pattern, text) is not None},
        "path": {
            "parse": lambda text: lua.table_from(
                {"parent": text.rstrip("/").rpartition("/")[0], "base_name": text.rstrip("/").rpartition("/")[2]}
            ),
            "join": lambda separator, *parts: separator.join(part.strip(separator) for part in parts),
            "default_separator": lambda: "/",
            "is_hidden": lambda text, separator="/", prefix="_": any(
                part.startswith(prefix) for part in text.split(separator)
            ),
        },
        "lakefs": {name: ask(f"lakefs.{name}") for name in given["calls"]},
        "net/http": {"request": ask("net/http.request")} if given["network"] else {},
    }
    set_up = lua.eval("function(hidden) for _, name in ipairs(hidden) do _G[name] = nil end end")
    compile_ = lua.eval(
        "(function() local load = load; return function(text, name) return load(text, name, 't') end end)()"
    )
    prelude, _ = _pair(compile_(PRELUDE, "=prelude"))
    names = lua.globals()
    set_up(lua.table_from(list(HIDDEN)))
    prelude(lua.table_from({name: lua.table_from(functions) for name, functions in modules.items() if functions}))
    names.print = write
    names.action, names.args = to_lua(given["action"]), to_lua(given["args"])
    chunk, error = _pair(compile_(_bytes(given["script"]), "=script"))
    if chunk is None:
        _say({"error": str(error)})
        return 0
    try:
        chunk()
    except MemoryError:
        _say({"error": f"the script used more than {memory >> 20} MiB"})
    except Exception as error:  # noqa: BLE001  # whatever the script did is its failure, and the parent's to tell
        _say({"error": str(error).partition("\nstack traceback")[0]})
    else:
        _say({"done": True})
    return 0


def to_latin(lua: Any, texts: list[str]) -> Any:
    return lua.table_from(texts)


def _pair(found: Any) -> tuple[Any, Any]:
    return found if isinstance(found, tuple) else (found, None)


def _bytes(value: Any) -> Any:
    return value.encode().decode("latin-1") if isinstance(value, str) else value


def _shown(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.encode("latin-1").decode(errors="replace") if isinstance(value, str) else str(value)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
