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
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import yaml

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
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # A script that computes for a minute leaves the processors to the server.
    given = json.loads(sys.stdin.readline())
    import lupa.lua54 as lupa  # before the limits: it is a file

    memory = int(given["memory_bytes"])
    _limit(memory_bytes=memory, cpu_s=int(given["cpu_s"]))
    lua = lupa.LuaRuntime(
        unpack_returned_tuples=True,
        register_eval=False,
        register_builtins=False,
        attribute_filter=_no_attributes,
        max_memory=memory,
        encoding="latin-1",  # a string of Lua is bytes: each becomes one character here, and back
    )
    _say(_run(_Bridge(lua, lupa.lua_type), given))
    return 0


def _limit(*, memory_bytes: int, cpu_s: int) -> None:
    datetime.strptime("", "")  # noqa: DTZ007  # before the limits: it imports what it needs at its first call
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes + (512 << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def _no_attributes(*_: object) -> str:
    raise AttributeError("not available to hooks")


def _run(bridge: _Bridge, given: dict[str, Any]) -> dict[str, Any]:
    """Run the script. Return the last message to the parent: `done` or `error`."""
    lua = bridge.lua
    set_up = lua.eval("function(hidden) for _, name in ipairs(hidden) do _G[name] = nil end end")
    compile_ = lua.eval(
        "(function() local load = load; return function(text, name) return load(text, name, 't') end end)()"
    )
    prelude, _ = _pair(compile_(PRELUDE, "=prelude"))
    names = lua.globals()
    set_up(lua.table_from(list(HIDDEN)))
    modules = _MODULES | _modules_of(bridge, given["calls"], has_network=given["network"])
    prelude(lua.table_from({name: lua.table_from(functions) for name, functions in modules.items() if functions}))
    names.print = lambda *values: _say({"print": "\t".join(_shown(each) for each in values)})
    names.action, names.args = bridge.to_lua(given["action"]), bridge.to_lua(given["args"])
    chunk, error = _pair(compile_(_lua_text(given["script"]), "=script"))
    if chunk is None:
        return {"error": str(error)}
    try:
        chunk()
    except MemoryError:
        return {"error": f"the script used more than {int(given['memory_bytes']) >> 20} MiB"}
    except Exception as failure:  # noqa: BLE001  # whatever the script did is its failure, and the parent's to tell
        return {"error": str(failure).partition("\nstack traceback")[0]}
    return {"done": True}


class _Bridge:
    """Convert values from and to Lua, and ask the parent process on behalf of the script."""

    def __init__(self, lua: Any, type_of: Callable[[Any], str | None]) -> None:
        self.lua = lua
        self._type_of = type_of

    def to_lua(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self.lua.table_from({_lua_text(key): self.to_lua(each) for key, each in value.items()})
        if isinstance(value, list | tuple):
            return self.lua.table_from([self.to_lua(each) for each in value])
        return _lua_text(value)

    def from_lua(self, value: Any, depth: int = 0) -> Any:
        if depth > 64:
            raise ValueError("the table is too deep")
        if self._type_of(value) == "table":
            items = list(value.items())
            if items and [key for key, _ in items] == list(range(1, len(items) + 1)):
                return [self.from_lua(each, depth + 1) for _, each in items]
            return {str(self.from_lua(key, depth + 1)): self.from_lua(each, depth + 1) for key, each in items}
        if isinstance(value, str):
            return _plain(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise ValueError(f"{self._type_of(value)} is no data")

    def asking(self, name: str) -> Callable[..., Any]:
        """Return a function for Lua that asks the parent this question."""

        def ask(*arguments: Any) -> Any:
            code, value = _question(name, [self.from_lua(each) for each in arguments])
            return code, value.decode("latin-1") if isinstance(value, bytes) else self.to_lua(value)

        return ask

    def delta_table(self, repository: str, ref: str, path: str) -> Any:
        """Return the actions of each version of a Delta table, as lines of JSON, and its last metadata."""
        versions, metadata = _read_delta_log(repository, ref, f"{path.strip('/')}/_delta_log/")
        lines_of = {number: self.to_lua(lines) for number, lines in versions.items()}
        return self.lua.table_from(lines_of), self.to_lua(metadata)


def _question(name: str, arguments: list[Any]) -> tuple[int, Any]:
    """Ask the parent process, and return a status with bytes or a value of JSON."""
    _say({"ask": name, "arguments": arguments})
    answer = json.loads(sys.stdin.readline())
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["code"], base64.b64decode(answer["data"]) if "data" in answer else answer.get("value")


def _read_delta_log(repository: str, ref: str, log: str) -> tuple[dict[int, list[str]], Any]:
    versions: dict[int, list[str]] = {}
    metadata: Any = {}
    after, has_more = "", True
    while has_more:
        page = _fine(*_question("lakefs.list_objects", [repository, ref, after, log, "/", 1000]), log)
        has_more, after = page["pagination"]["has_more"], page["pagination"]["next_offset"]
        for row in page["results"]:
            if found := re.fullmatch(r"(\d{20})\.json", row["path"][len(log) :]):
                data = _fine(*_question("lakefs.get_object", [repository, ref, row["path"]]), row["path"])
                versions[int(found[1])] = lines = data.decode().splitlines()
                metadata = next((at["metaData"] for at in map(json.loads, lines) if "metaData" in at), metadata)
    if sorted(versions) != list(range(len(versions))) or not versions:
        raise RuntimeError(f"{log} has not every version from 0 on as JSON: checkpoints are not read")
    return versions, metadata


def _modules_of(bridge: _Bridge, calls: list[str], *, has_network: bool) -> dict[str, dict[str, Any]]:
    """Return the modules that take or return tables, or ask the parent."""
    table, to_lua, from_lua = bridge.lua.table_from, bridge.to_lua, bridge.from_lua
    return {
        "encoding/json": {
            "marshal": lambda value: _lua_text(json.dumps(from_lua(value), ensure_ascii=False)),
            "unmarshal": lambda text: to_lua(json.loads(_raw(text))),
        },
        "encoding/yaml": {
            "marshal": lambda value: _lua_text(yaml.safe_dump(from_lua(value), allow_unicode=True, sort_keys=True)),
            "unmarshal": lambda text: to_lua(yaml.safe_load(_raw(text))),
        },
        "strings": {
            "split": lambda text, separator: table(text.split(separator)),
            "trim": lambda text: text.strip(" \t\r\n"),
            "replace": lambda text, old, new, count=-1: text.replace(old, new, int(count)),
            "has_prefix": lambda text, part: text.startswith(part),
            "has_suffix": lambda text, part: text.endswith(part),
            "contains": lambda text, part: part in text,
        },
        "regexp": {
            "match": lambda pattern, text: re.search(pattern, text) is not None,
            "quote_meta": re.escape,
            "compile": lambda pattern: table(_compiled(table, pattern)),
        },
        "net/url": {"parse": lambda text: table(_url(text))},
        "formats": {"delta_client": lambda *_: table({"get_table": bridge.delta_table})},
        "path": {
            "parse": lambda text: table(
                {"parent": text.rstrip("/").rpartition("/")[0], "base_name": text.rstrip("/").rpartition("/")[2]}
            ),
            "join": lambda separator, *parts: separator.join(part.strip(separator) for part in parts),
            "default_separator": lambda: "/",
            "is_hidden": lambda text, separator="/", prefix="_": any(
                part.startswith(prefix) for part in text.split(separator)
            ),
        },
        "lakefs": {name: bridge.asking(f"lakefs.{name}") for name in calls},
        "net/http": {"request": bridge.asking("net/http.request")} if has_network else {},
    }


_LAYOUT = {
    "2006": "%Y", "January": "%B", "Jan": "%b", "01": "%m", "Monday": "%A", "Mon": "%a", "02": "%d",
    "15": "%H", "03": "%I", "04": "%M", "05": "%S", "PM": "%p", "MST": "%Z", "Z07:00": "%z", "-07:00": "%z",
    "-0700": "%z", ".000000": ".%f", "06": "%y",
}  # fmt: skip
"""Python's words for the parts of a layout, which is the moment 2006-01-02 15:04:05 -0700 as it should look."""
_UTC_PARTS = _LAYOUT | {"MST": "UTC", "Z07:00": "Z", "-07:00": "+00:00", "-0700": "+0000"}
_PARTS = re.compile("|".join(map(re.escape, sorted(_LAYOUT, key=len, reverse=True))))


def _fine(code: int, value: Any, path: str) -> Any:
    if code != 200:
        raise RuntimeError(f"{path}: {code} {value.get('message', '') if isinstance(value, dict) else ''}")
    return value


def _python_layout(layout: str, parts: dict[str, str] = _LAYOUT) -> str:
    return _PARTS.sub(lambda found: parts[found[0]], layout.replace("%", "%%"))


def _moment(ns: Any, zone: str) -> datetime:
    # Other zones lie in files, and this process opens none.
    if zone not in {"", "UTC", "Z"}:
        raise ValueError(f"the zone {zone} is not available to hooks: UTC is")
    return datetime.fromtimestamp(int(ns) // 10**9, UTC).replace(microsecond=int(ns) % 10**9 // 1000)


def _ns(moment: datetime) -> int:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1000


def _url(text: str) -> dict[str, str]:
    parts = urlsplit(text)
    return {
        "scheme": parts.scheme,
        "host": parts.netloc.rpartition("@")[2],
        "path": parts.path,
        "query": parts.query,
        "fragment": parts.fragment,
    }


def _compiled(table: Callable[[Any], Any], pattern: str) -> dict[str, Any]:
    """Return the functions of one pattern. A missing part is an empty text, or an empty table."""
    compiled = re.compile(pattern)

    def groups(found: re.Match[str] | None) -> list[str]:
        return [] if found is None else [found[0], *(each or "" for each in found.groups())]

    def first(found: Any, count: Any) -> Any:
        return found if count is None or count < 0 else islice(found, int(count))

    return {
        "find": lambda text: found[0] if (found := compiled.search(text)) else "",
        "find_submatch": lambda text: table(groups(compiled.search(text))),
        "find_all": lambda text, count=None: table([found[0] for found in first(compiled.finditer(text), count)]),
        "find_all_submatch": lambda text, count=None: table(
            [table(groups(found)) for found in first(compiled.finditer(text), count)]
        ),
    }


def _pair(found: Any) -> tuple[Any, Any]:
    return found if isinstance(found, tuple) else (found, None)


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


def _plain(text: str) -> str:
    """Return a string of Lua as text."""
    return _raw(text).decode(errors="replace")


def _lua_text(value: Any) -> Any:
    return value.encode().decode("latin-1") if isinstance(value, str) else value


def _shown(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _plain(value) if isinstance(value, str) else str(value)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _fail(message: str) -> None:
    raise RuntimeError(_plain(message))


_MODULES: dict[str, dict[str, Callable[..., Any]]] = {
    "encoding/hex": {
        "encode": lambda text: _raw(text).hex(),
        "decode": lambda text: bytes.fromhex(text).decode("latin-1"),
    },
    "encoding/base64": {
        "url_encode": lambda text: base64.urlsafe_b64encode(_raw(text)).decode(),
        "url_decode": lambda text: base64.urlsafe_b64decode(text).decode("latin-1"),
        "encode": lambda text: base64.b64encode(_raw(text)).decode(),
        "decode": lambda text: base64.b64decode(text).decode("latin-1"),
    },
    "crypto/sha256": {"digest": lambda text: hashlib.sha256(_raw(text)).hexdigest()},
    "crypto/md5": {"digest": lambda text: hashlib.md5(_raw(text), usedforsecurity=False).hexdigest()},
    "crypto/hmac": {
        "sign_sha1": lambda text, key: hmac.digest(_raw(key), _raw(text), "sha1").decode("latin-1"),
        "sign_sha256": lambda text, key: hmac.digest(_raw(key), _raw(text), "sha256").decode("latin-1"),
    },
    "time": {
        "now": time.time_ns,
        "since": lambda ns: time.time_ns() - int(ns),
        "sleep": lambda ns: time.sleep(max(0, int(ns)) / 1e9),
        "format": lambda ns, layout, zone="UTC": _moment(ns, zone).strftime(_python_layout(layout, _UTC_PARTS)),
        "format_iso": lambda ns, zone="UTC": _moment(ns, zone).isoformat().replace("+00:00", "Z"),
        "parse": lambda layout, text: _ns(datetime.strptime(text, _python_layout(layout))),  # noqa: DTZ007  # see _ns
        "parse_iso": lambda text: _ns(datetime.fromisoformat(text)),
    },
    "uuid": {"new": lambda: str(uuid.uuid4())},
    "hook": {"fail": _fail},
}
"""The modules whose functions need no table and no answer of the parent."""


if __name__ == "__main__":
    sys.exit(main())
