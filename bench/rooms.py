"""How many files a plan and an apply enter: `python -m bench.rooms`. Nothing is timed.

`python -m bench.rooms --lines` writes the lines of each part into docs/design/0005-layout.md.

One repository over stores in memory, the service and the local engine in this process: what a newcomer has to read to
follow a run. Caches are cold. Figures: docs/design/0009-one-flow.md.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import lakebed

ROOT = f"{Path(lakebed.__file__).parent}/"


@contextmanager
def entered() -> Iterator[set[str]]:
    """The files of this package whose functions are called."""
    files: set[str] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        # The body of a module runs when it is imported: that is not a room of this question.
        if event == "call" and name.startswith(ROOT) and frame.f_code.co_name != "<module>":
            files.add(name.removeprefix(ROOT))

    sys.setprofile(enter)
    try:
        yield files
    finally:
        sys.setprofile(None)


async def main() -> dict[str, set[str]]:
    from lakebed.base import Entry, RepositoryUid
    from lakebed.gc.engines import LocalEngine
    from lakebed.gc.kinds import kind_to_plan
    from lakebed.gc.live import CollectionService
    from lakebed.gc.machine import flow
    from lakebed.gc.messages import RunKind, Service, UncommittedOptions
    from lakebed.gc.rules import DAY_MS, MetadataRule, days_rules
    from lakebed.gc.runs.context import RunContext
    from lakebed.kv.drivers.memory import MemoryStore
    from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
    from lakebed.runtime import live_ports
    from lakebed.versions import Note, Options, TreeCache, Trees, Versions

    store, ports = MemoryObjectStore("mem://rooms"), live_ports()
    versions = Versions(
        uid=RepositoryUid("r1"),
        store=MemoryStore(),
        objectstore=store,
        trees=Trees(store, TreeCache(1 << 20), ports),
        ports=ports,
        options=Options(owner="rooms"),
    )
    service = CollectionService(versions)
    context = RunContext(
        repository="rooms",
        service=Service(service),
        engine=LocalEngine(store, ports, open_deleter=lambda: MemoryDeleter(store)),
        store=store,
        ports=ports,
        progress=lambda _: None,
    )

    async def body(address: str) -> Entry:
        stored = await store.put(address, address.encode())
        return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)

    await versions.commits.initialise("main")
    for days in (30, 20, 1):
        await versions.staging.upload("main", b"a", body)
        created_ms = ports.clock.now_ms() - days * DAY_MS
        await versions.commits.commit("main", Note(message="m", committer="me", created_ms=created_ms))
    for _ in range(2):
        await versions.staging.upload("main", b"b", body)
    await service.rules.write(days_rules(5))
    found: dict[str, set[str]] = {}
    for kind in (RunKind.UNCOMMITTED, RunKind.COMMITTED):
        of_kind = kind_to_plan(kind, UncommittedOptions(), MetadataRule())
        with entered() as files:
            run_id = (await flow.plan(context, of_kind)).run_id
        found[f"plan of {kind.value} data"] = files
        with entered() as files:
            await flow.apply(context, run_id, grace_s=0)
        found[f"apply of {kind.value} data"] = files
    return found


LIVE_SIDE = ("gc/live/", "versions/", "kv/")
FILES_MAX = 29
WITH_LIVE_MAX = 45
"""The figures that were reached last. With more, the exit code is 1."""


LAYOUT = Path(__file__).parents[1] / "docs" / "design" / "0005-layout.md"
COLUMNS = 3
BESIDE = ("bench", "explorer", "sim", "tests")


def write_lines() -> None:
    """Write the table of lines anew, and the sum of `src` below it."""
    root = LAYOUT.parents[2]
    lines: Counter[str] = Counter()
    for folder in ("src/lakebed", *BESIDE):
        for file in (root / folder).rglob("*.py"):
            names = file.parent.relative_to(root / folder).parts
            part = "/".join(names[: 2 if names[:1] == ("gc",) else 1]) or "lakebed"
            lines[part if folder == "src/lakebed" else folder] += file.read_text().count("\n")
    total = sum(lines.values()) - sum(lines[folder] for folder in BESIDE)
    cells = [f"| `{part}` | {count:,} |" for part, count in sorted(lines.items())]
    height = -(-len(cells) // COLUMNS)
    rows = [" ".join(cells[row::height]) for row in range(height)]
    head = [" ".join(["| part | lines |"] * COLUMNS), " ".join(["| --- | ---: |"] * COLUMNS)]
    table = "\n".join([*head, *rows])
    page = re.sub(r"\| part \| lines \| \| part.*?\n\n", f"{table}\n\n", LAYOUT.read_text(), flags=re.DOTALL)
    LAYOUT.write_text(re.sub(r"`src` has [\d,]+ lines", f"`src` has {total:,} lines", page))


if __name__ == "__main__":
    if sys.argv[1:] == ["--lines"]:
        write_lines()
        sys.exit()
    is_over = False
    for what, files in asyncio.run(main()).items():
        ours = sorted(name for name in files if not name.startswith(LIVE_SIDE))
        print(f"{what}: {len(ours)} files of the collector, {len(files)} with the live side\n  {' '.join(ours)}")
        is_over |= len(ours) > FILES_MAX or len(files) > WITH_LIVE_MAX
    sys.exit(is_over)
