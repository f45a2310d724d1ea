"""XML: a writer for answers, and a bounded reader for bodies.

The reader refuses what an S3 body never has: a document type, entities, depth, and more elements than the largest
request. So no body can make it slow or large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat
from xml.sax.saxutils import escape

from lakebed.base import Invalid

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
DEPTH_MAX: Final = 6
ELEMENTS_MAX: Final = 100_000
"""A completion of 10,000 parts with a checksum each has 40,000."""


class MalformedXml(Invalid):
    """A body that is no XML, or none that an S3 request has."""


class Element:
    """An element of an answer, as text from the start: a listing has thousands of them."""

    __slots__ = ("_parts", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._parts: list[str] = []

    def text(self, name: str, value: str | int | None) -> Element:
        """Add an element with a text; none for None."""
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
        """Add what is XML already."""
        self._parts += parts
        return self

    def render(self, attributes: str = "") -> str:
        return f"<{self.name}{attributes}>{''.join(self._parts)}</{self.name}>"


def escape_text(text: str) -> str:
    """Escape a text for XML. Characters that XML 1.0 cannot hold become character references, as S3 has them."""
    escaped = escape(text, {'"': "&quot;", "\r": "&#13;"})
    if escaped.isprintable():
        return escaped
    return "".join([f"&#x{ord(c):x};" if ord(c) < 32 and c not in "\t\n" else c for c in escaped])


def document(root: Element) -> bytes:
    """Write a whole answer. Only S3's errors have no namespace."""
    attributes = "" if root.name == "Error" else f' xmlns="{NAMESPACE}"'
    return ('<?xml version="1.0" encoding="UTF-8"?>\n' + root.render(attributes)).encode(errors="replace")


@dataclass(slots=True)
class Node:
    """An element of a body: its local name, its text, and its children in order."""

    name: str
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def all(self, name: str) -> Iterator[Node]:
        return (child for child in self.children if child.name == name)

    def value(self, name: str) -> str | None:
        """Return the text of the only child of this name; None where there is none.

        Raises:
            MalformedXml: there are several.
        """
        found = [child.text for child in self.all(name)]
        if len(found) > 1:
            raise MalformedXml(f"{self.name} has more than one {name}")
        return found[0] if found else None


def parse(data: bytes, root: str) -> Node:
    """Read a body whose outermost element is `root`, in S3's namespace or in none.

    Raises:
        MalformedXml: it is something else.
    """
    top = Node("")
    open_nodes = [top]
    count = 0

    def begin(name: str, _: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_nodes) > DEPTH_MAX or count > ELEMENTS_MAX:
            raise MalformedXml("the document is too deep or too long")
        node = Node(name.rpartition(" ")[2])
        open_nodes[-1].children.append(node)
        open_nodes.append(node)

    def end(_: str) -> None:
        node = open_nodes.pop()
        if node.children:
            node.text = ""

    def characters(text: str) -> None:
        open_nodes[-1].text += text

    def refuse(*_: object) -> None:
        raise MalformedXml("a document type is not allowed")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)  # expat takes it by position only
    except (expat.ExpatError, ValueError) as error:
        raise MalformedXml(f"not well-formed: {error}") from error
    if len(top.children) != 1 or top.children[0].name != root:
        raise MalformedXml(f"the document is no {root}")
    return top.children[0]
