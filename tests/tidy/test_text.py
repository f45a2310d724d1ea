"""What must not be in any file of the project, and what every file must have."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from re import _constants as opcode  # type: ignore[attr-defined]  # has no stubs; says how `re` reads a pattern
from re import _parser as parser  # type: ignore[attr-defined]  # as above
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".jsonl", ".html", ".css", ".js", ""}
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
MENTION = re.compile(r"docs/[a-z]+/[A-Za-z0-9_.-]+\.md")
SOURCE = re.compile(r"(?<![\w./<-])(?:[a-z_0-9]+/)+[a-z_0-9]+\.py\b")
BACKTRACKS_LITTLE = {
    "[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*",
    "(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*",
    r"(?P<base>[^~^@$]+)(?:@\{(?P<when>[^{}]+)\})?(?P<steps>(?:[~^]\d*)*)(?P<suffix>[@$]?)",
}
"""Each round of the outer repeat begins with what the inner one cannot take, so a text is read in one way."""
HARD_WORDS = re.compile(r"\b(nobody|somebody|whoever|told|said|so many|as ever|were there)\b", re.IGNORECASE)
WORDS_MAX = 25
PROSE_MAX = 120
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SIZE_MAX = 5 << 20


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def texts() -> list[tuple[Path, str]]:
    return [
        (file.relative_to(ROOT), file.read_text())
        for file in tracked()
        if file.suffix in TEXT and "tests/formats/golden" not in file.as_posix()
    ]


def test_no_file_is_large_and_no_lock_file_is_kept() -> None:
    files = tracked()

    assert [str(file) for file in files if file.stat().st_size > SIZE_MAX] == []
    assert [file.name for file in files if file.name in {"uv.lock", "poetry.lock", "package-lock.json"}] == []


def test_nothing_is_left_for_later() -> None:
    here = Path("tests/tidy/test_text.py")
    found = [f"{file}: {match[0]}" for file, text in texts() if file != here for match in LEFTOVER.finditer(text)]

    assert found == []


def test_no_message_has_the_name_of_a_class_of_python() -> None:
    """`in_words` is for messages. A label of metrics, the facts of an error, a comparison and a `repr` may."""
    names = re.compile(r"type\((error|self)\)\.__name__|\{error!r\}|\brepr\(error\)|\{\w*kind_?\.__name__\}")
    known = {
        "base/errors.py",
        "server/operate/metrics.py",
        "kv/drivers/sqlite/file.py",
        "objectstore/drivers/remote_answers.py",
    }
    known |= {"lake/refs.py", "lake/asynchronous.py"}  # as Python shows objects
    source = ROOT / "src" / "lakebed"
    found = {file.relative_to(source).as_posix() for file in source.rglob("*.py") if names.search(file.read_text())}

    assert found <= known


def test_every_suppression_gives_its_reason() -> None:
    """`# noqa: CODE  # why` and `# type: ignore[code]  # why`."""
    bare = re.compile(r"#\s*(noqa|type:\s*ignore)(\[[^\]]*\]|:\s*[A-Z0-9, ]+)?\s*$")
    found = [
        f"{file}:{number}"
        for file, text in texts()
        if file.suffix == ".py"
        for number, line in enumerate(text.splitlines(), 1)
        if bare.search(line)
    ]

    assert found == []


def test_every_module_opens_with_what_it_is_about() -> None:
    found = [
        str(file)
        for file, text in texts()
        if file.suffix == ".py" and text.strip() and not text.startswith('"""')
        if ast.get_docstring(ast.parse(text)) is None
    ]

    assert found == []


@pytest.mark.parametrize("pattern", [LINK, MENTION], ids=["links", "mentions"])
def test_documents_that_are_named_exist(pattern: re.Pattern[str]) -> None:
    missing = []
    for file, text in texts():
        if pattern is LINK and file.suffix != ".md":
            continue
        for match in pattern.finditer(text):
            target = match[1] if pattern is LINK else match[0]
            if "://" in target or target.startswith("mailto:"):
                continue
            base = ROOT if pattern is MENTION else (ROOT / file).parent
            if not (base / target).exists():
                missing.append(f"{file}: {target}")

    assert missing == []


def test_source_files_that_are_named_exist() -> None:
    """`versions/fencing.py` in a text is a file below the project, the package or the text's own part."""
    missing = []
    for file, text in texts():
        here = (ROOT / file).parent
        bases = (ROOT, ROOT / "src", ROOT / "src" / "lakebed", here, here.parent)
        named = set(SOURCE.findall(text)) if file.suffix in {".md", ".py"} else set()
        missing += [f"{file}: {name}" for name in sorted(named) if not any((base / name).exists() for base in bases)]

    assert missing == []


@pytest.mark.parametrize("folder", ["design", "formats", "guide"])
def test_the_index_of_a_folder_names_every_page(folder: str) -> None:
    pages = {page.name for page in (ROOT / "docs" / folder).glob("*.md")} - {"README.md"}

    assert pages - set(LINK.findall((ROOT / "docs" / folder / "README.md").read_text())) == set()


def test_a_sentence_of_a_page_for_users_has_at_most_25_words_and_none_that_is_hard_to_read() -> None:
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs" / "guide").glob("*.md") if page.name != "api.md")]
    found = [
        f"{page.name}: {sentence}"
        for page in sorted(pages)
        for sentence in sentences(page.read_text())
        if len(re.findall(r"\S*\w\S*", sentence)) > WORDS_MAX or HARD_WORDS.search(sentence)
    ]

    assert found == []
    assert list(sentences("# Head\nOne `a. B`\ntwo. Three\n- four\n| five | six |\n")) == [
        "One X two.",
        "Three",
        "four",
        "five",
        "six",
    ]


def sentences(text: str) -> Iterator[str]:
    """Split the prose, list items and cells of a page in Markdown. Code counts as one word, a link as its text."""
    text = re.sub(r"^#.*$|\|[ :|-]*\|$", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)|(?<=\|)\n|\|", text):
        words = re.sub(r"^\s*(?:[-*]|\d+\.) |\s+", " ", block).strip()
        yield from filter(None, re.split(r"(?<=[.!?:;])[)\"*]*\s+(?=[A-Z\[(*])", words))


def test_no_line_of_prose_is_longer_than_120_columns() -> None:
    """Tables, examples and words that nothing can break are; the page of the API is generated."""
    pages = [page for page in tracked() if page.suffix == ".md" and page.name != "api.md" and "docs" in page.parts]
    long = []
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *pages]:
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        long += [
            f"{page.name}: {line}" for line in prose.splitlines() if len(line) > PROSE_MAX and line[0] not in "|<!#"
        ]

    assert len(pages) > 50
    assert long == []


def test_no_pattern_repeats_what_repeats() -> None:
    """`((\\d*-\\d*,? ?)+)` reads a text in exponentially many ways: sixty bytes of a header stop a process for ever."""
    found = [
        (file.name, pattern)
        for file in sorted((ROOT / "src").rglob("*.py"))
        for pattern in patterns_in(file)
        if pattern not in BACKTRACKS_LITTLE and repeats(parser.parse(pattern), is_inside=False)
    ]

    assert found == []
    assert repeats(parser.parse(r"bytes=((\d*-\d*,? ?)+)"), is_inside=False)


def patterns_in(file: Path) -> Iterator[str]:
    text = file.read_text()
    for node in ast.walk(ast.parse(text if "re." in text else "")):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("re")), args=[ast.Constant(value=str(pattern)), *_]):
                yield pattern
            case ast.Call(func=ast.Attribute(value=ast.Name("re")), args=[ast.Constant(value=bytes(data)), *_]):
                yield data.decode()


def repeats(items: Iterable[Any], *, is_inside: bool) -> bool:
    """Return whether a repeat without an end lies in another one."""
    for operation, argument in items:
        is_endless, parts = False, []
        if operation in (opcode.MAX_REPEAT, opcode.MIN_REPEAT):
            is_endless, parts = argument[1] is opcode.MAXREPEAT, [argument[2]]
        elif operation is opcode.SUBPATTERN:
            parts = [argument[3]]
        elif operation in (opcode.BRANCH, opcode.ASSERT, opcode.ASSERT_NOT):
            parts = argument[1] if operation is opcode.BRANCH else [argument[1]]
        if (is_endless and is_inside) or any(repeats(part, is_inside=is_inside or is_endless) for part in parts):
            return True
    return False


def test_every_client_of_http_names_its_time_limit() -> None:
    """The tests lift httpx's own limit (tests/conftest.py), so none of them would meet the lack of one."""
    calls = [
        (file, node)
        for file in sorted((ROOT / "src").rglob("*.py"))
        if "httpx" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"httpx.Client", "httpx.AsyncClient"}
    ]
    silent = [
        f"{file.name}:{node.lineno}" for file, node in calls if all(each.arg != "timeout" for each in node.keywords)
    ]

    assert calls
    assert silent == []
