"""XML: a writer for answers, and a bounded reader for bodies.

The reader refuses content that no S3 body has: a document type, entities, depth, many attributes, text beside
elements, long tags, and more elements or lines than the largest request. Its time is linear in the body, at most 0.3 s
of CPU for
8 MiB. A body over LOOP_BYTES_MAX is read in a thread, in pieces, so that the event loop can run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from xml.parsers import expat
from xml.sax.saxutils import escape

from lakebed.base import Invalid

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
DEPTH_MAX: Final = 6
ELEMENTS_MAX: Final = 45_000
"""More than the 40,000 elements of a completion of 10,000 parts with a checksum each."""
DELETE_ELEMENTS_MAX: Final = 8_000
"""More than the 6,000 elements of a deletion of 1,000 keys with all that S3 allows. Its body may be the larger one."""
LINES_OF_ELEMENT_MAX: Final = 3
"""Allow a line for each tag. The parser stops at each line end, which costs as much as a short tag."""
ATTRIBUTES_MAX: Final = 64
"""The limit for the whole document, including namespace declarations."""
PIECE_BYTES: Final = 32 << 10
"""Larger than any tag or text: keys have at most 1,024 bytes."""
LOOP_BYTES_MAX: Final = 64 << 10
_threads: Final = ThreadPoolExecutor(1, thread_name_prefix="documents")
"""One thread, separate from the file threads: more would only compete for the interpreter lock."""
T = TypeVar("T")


class MalformedXml(Invalid):
    """The body is no XML, or not the XML of an S3 request."""


class Element:
    """An element of an answer, built as text: a listing has thousands of them."""

    __slots__ = ("_parts", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._parts: list[str] = []

    def text(self, name: str, value: str | int | None) -> Element:
        """Add an element with a text. None adds no element."""
        if value is not None:
            self._parts.append(f"<{name}>{escape_text(str(value))}</{name}>")
        return self

    def flag(self, name: str, *, value: bool) -> Element:
        self._parts.append(f"<{name}>{'true' if value else 'false'}</{name}>")
        return self

    def add(self, child: Element) -> Element:
        self._parts.append(child.render())
        return self

    def markup(self, parts: Sequence[str]) -> Element:
        """Add markup that is XML already."""
        self._parts += parts
        return self

    def render(self, attributes: str = "") -> str:
        return f"<{self.name}{attributes}>{''.join(self._parts)}</{self.name}>"


def escape_text(text: str) -> str:
    """Escape a text for XML. Characters that XML 1.0 does not allow become character references, as in S3."""
    escaped = escape(text, {'"': "&quot;", "\r": "&#13;"})
    if escaped.isprintable():
        return escaped
    return "".join([f"&#x{ord(c):x};" if ord(c) < 32 and c not in "\t\n" else c for c in escaped])


def document(root: Element) -> bytes:
    """Write a whole answer. Only S3's errors have no namespace."""
    attributes = "" if root.name == "Error" else f' xmlns="{NAMESPACE}"'
    return ('<?xml version="1.0" encoding="UTF-8"?>\n' + root.render(attributes)).encode(errors="replace")


class Node:
    """An element of a body: its local name, its children in order, and its text if it has no children."""

    __slots__ = ("children", "name", "pieces")

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: list[Node] = []
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def all(self, name: str) -> Iterator[Node]:
        return (child for child in self.children if child.name == name)

    def value(self, name: str) -> str | None:
        """Return the text of the only child of this name, or None if there is no such child."""
        found = [child.text for child in self.all(name)]
        if len(found) > 1:
            raise MalformedXml(f"{self.name} has more than one {name}")
        return found[0] if found else None


async def read_document(data: bytes, root: str, read: Callable[[Node], T]) -> T:
    """Parse a body, and return the result of `read`. Both run in a thread if the body is large.

    Raises:
        MalformedXml: the body is malformed, or `read` refuses it.
    """
    if len(data) <= LOOP_BYTES_MAX:
        return read(parse(data, root))
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: read(parse(data, root)))


def parse(data: bytes, root: str) -> Node:
    """Read a body whose outermost element is `root`, in S3's namespace or without one, or raise MalformedXml."""
    if b"\0" in data:
        # XML in UTF-8 never has a zero byte. UTF-16, in which `<` is no single byte, always has.
        raise MalformedXml("the document is not UTF-8")
    elements_max = DELETE_ELEMENTS_MAX if root == "Delete" else ELEMENTS_MAX
    if data.count(b"\n") + data.count(b"\r") > LINES_OF_ELEMENT_MAX * elements_max:
        raise MalformedXml("the document has too many lines")
    top = Node("")
    parser = _parser(top, elements_max)
    try:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if len(piece) == PIECE_BYTES and b"<" not in piece:
                raise MalformedXml("a tag or a text is too long")
            parser.Parse(piece, False)  # expat takes it by position only
            if start - parser.CurrentByteIndex > PIECE_BYTES:
                # With each further piece, expat would read the unfinished comment again from its start.
                raise MalformedXml("a comment is too long")
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError) as error:
        raise MalformedXml(f"not well-formed: {error}") from error
    if len(top.children) != 1 or top.children[0].name != root:
        raise MalformedXml(f"the document is no {root}")
    return top.children[0]


def _parser(top: Node, elements_max: int) -> expat.XMLParserType:
    """Return a parser that puts the outermost element into `top`."""
    open_nodes = [top]
    elements = attributes = 0

    def begin(name: str, given: dict[str, str]) -> None:
        nonlocal elements
        elements += 1
        if len(open_nodes) > DEPTH_MAX or elements > elements_max:
            raise MalformedXml("the document is too deep or too long")
        if given:
            count_attributes(len(given))
        parent, node = open_nodes[-1], Node(name.rpartition(" ")[2])
        if parent.pieces:
            refuse_text(parent)
        parent.children.append(node)
        open_nodes.append(node)

    def take_text(text: str) -> None:
        open_nodes[-1].pieces.append(text)

    def end(_: str) -> None:
        node = open_nodes.pop()
        if node.children and node.pieces:
            refuse_text(node)

    def refuse_text(node: Node) -> None:
        """Drop the white space between elements, and refuse any other text there."""
        for piece in node.pieces:
            if not piece.isspace():
                raise MalformedXml(f"{node.name} has text beside its elements")
        node.pieces.clear()

    def count_attributes(count: int) -> None:
        nonlocal attributes
        attributes += count
        if attributes > ATTRIBUTES_MAX:
            raise MalformedXml("the document has too many attributes")

    def refuse(*_: object) -> None:
        raise MalformedXml("a document type is not allowed")

    parser = expat.ParserCreate("UTF-8", namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = take_text
    parser.StartNamespaceDeclHandler = lambda *_: count_attributes(1)
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    return parser
