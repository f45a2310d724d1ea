"""Run one benchmark and print a table for people or, with `--json`, one JSON object on the last line. Exits with 1
where a figure misses its limit at full size. `--record` appends the result to bench/results/NAME.jsonl.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from .harness import Bench, Figure, Result, run

FOLDERS = {
    "clusters": "document ranges",
    "collecting": "erase-branches lifecycle listing prepare sweep",
    "embedded": "commit log migrate rewrite sandboxes tables wide",
    "serving": "extras gateway list mixed operations pages stat ten-objects upload workers",
}
FILES = dict.fromkeys(("list", "stat", "upload"), "objects")
NAMES = {
    name: f"bench.{folder}.{FILES.get(name, name.replace('-', '_'))}"
    for folder, names in FOLDERS.items()
    for name in names.split()
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=sorted(NAMES))
    parser.add_argument("of", nargs="*", help="of operations: names")
    sizes = ("small", "twentieth", "twentieth-spark", "tenth", "full")
    parser.add_argument(
        "--size",
        choices=sizes,
        default="full",
        help="tenth: of document, lifecycle, migrate, pages; twentieth and twentieth-spark: document",
    )
    parser.add_argument("--repeat", type=int, default=5, help="measured runs of each side, in turn (default 5)")
    parser.add_argument("--against", default="", metavar="SRC", help="of operations: the sources to compare with")
    parser.add_argument("--dir", type=Path, help="of document: keep all in this folder, and go on with what is there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    found = importlib.import_module(NAMES[options.name])
    bench: Bench = found.BENCHES[options.name] if options.name in FILES else found.BENCH
    narrowed = bench.narrowed
    if options.against:
        if bench.against is None:
            parser.error(f"{options.name} is not compared with other sources")
        narrowed = partial(bench.against, options.against)
    if options.of or options.against:
        if narrowed is None:
            parser.error(f"{options.name} is not taken in parts")
        try:
            bench = narrowed(options.of)
        except ValueError as error:
            parser.error(str(error))
    if options.dir is not None:
        if not bench.in_folder:
            parser.error(f"{options.name} keeps nothing in a folder")
        bench = replace(bench, parts=partial(bench.parts, folder=options.dir))
    result = run(bench, size=options.size, repeat=options.repeat)
    line = msgspec.json.encode(result).decode()
    if options.record:
        with (Path(__file__).parent / "results" / f"{options.name}.jsonl").open("a") as file:
            file.write(line + "\n")
    print(line if options.json else table(result))
    return int(options.size == "full" and any(figure.is_over() for figure in result.figures))


def table(result: Result) -> str:
    lines = [f"{result.name}, {result.size}: {result.machine}, {result.repeat} runs"]
    lines.append(f"{'what':58} {'value':>10}   {'floor':>8}  {'ratio':>6} {'spread':>15}  {'limit':>5} {'peak MiB':>9}")
    lines += [row(figure) for figure in result.figures]
    return "\n".join(lines)


def row(figure: Figure) -> str:
    compared = " " * 34
    if figure.ratio is not None:
        spread = f"{figure.ratio_min:.2f} – {figure.ratio_max:.2f}"
        compared = f"{figure.floor:>9.3f}  {figure.ratio:>6.2f} {spread:>15} "
    elif figure.value_min is not None:
        spread = f"{figure.value_min:.2f} – {figure.value_max:.2f}"
        compared = f"{spread:>33} "
    limit = "" if figure.limit is None else f"{figure.limit:.1f}"
    if figure.least is not None:
        limit = f"≥ {figure.least:.1f}"
    over = "   over its limit" if figure.is_over() else ""
    return f"{figure.what:58} {figure.value:>8.3f} {figure.unit:<3}{compared} {limit:>5} {figure.peak_mib:>9.0f}{over}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
