"""Reads XML into small elements that remember their line. Refuses document type declarations.

A DTD can define entities that expand without bound or name outside files; charts need none, so the parser
stops at the declaration, before anything in it is read (the rule python-statemachine and defusedxml follow,
too). Size, depth and encoding are bounded here as well, so that what reads the elements may recurse over them and
compare them with each other.
"""

from __future__ import annotations

from xml.parsers import expat

import attrs

from luce.errors import ChartError, quoted

__all__ = ["MAX_BYTES", "SCXML_NAMESPACE", "Element", "parse_xml"]

SCXML_NAMESPACE = "http://www.w3.org/2005/07/scxml"

MAX_BYTES = 1 << 18
"""The largest of luce's own charts has 10 KB."""
MAX_ELEMENTS = 4096
MAX_DEPTH = 64
MAX_ATTRIBUTE = 1024
"""Characters of one attribute."""
MAX_TAG = 64
ENCODINGS = ("utf-8", "us-ascii")


@attrs.define(eq=False)
class Element:
    """One XML element. `tag` is the local name of an SCXML element; for any other it also says the namespace."""

    tag: str
    attributes: dict[str, str]
    line: int
    comment: str = ""
    """The comment that stands directly before the element."""
    children: list[Element] = attrs.field(factory=list)
    pieces: list[str] = attrs.field(factory=list)
    """Its text, in the pieces that the parser found."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def parse_xml(data: bytes, label: str) -> Element:
    """Parses one document. Raises ChartError that names `label` and the line."""
    if len(data) > MAX_BYTES:
        raise ChartError(f"{label}:1: more than {MAX_BYTES} bytes; a chart has a few thousand")
    parser = expat.ParserCreate("UTF-8", namespace_separator=" ")  # whatever the document says
    count = 0
    stack: list[Element] = []
    roots: list[Element] = []
    comments: list[str] = []

    def fault(message: str) -> ChartError:
        return ChartError(f"{label}:{parser.CurrentLineNumber}: {message}")

    def declaration(_version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in ENCODINGS:
            raise fault(f"the encoding is {quoted(encoding)}; charts are UTF-8")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > MAX_ELEMENTS:
            raise fault(f"more than {MAX_ELEMENTS} elements")
        if len(stack) >= MAX_DEPTH:
            raise fault(f"nested more than {MAX_DEPTH} elements deep")
        for attribute, value in attributes.items():
            if len(value) > MAX_ATTRIBUTE:
                raise fault(f"the attribute {quoted(attribute)} is longer than {MAX_ATTRIBUTE} characters")
        namespace, _, local = tag.rpartition(" ")
        if len(local) > MAX_TAG or not local.isprintable():
            raise fault(f"the element {quoted(local)} is not in luce's subset of SCXML")
        name = local if namespace == SCXML_NAMESPACE else f"{local} of namespace {quoted(namespace)}"
        element = Element(name, attributes, parser.CurrentLineNumber, " ".join(comments))
        comments.clear()
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()
        comments.clear()

    def text(piece: str) -> None:
        if stack:
            stack[-1].pieces.append(piece)

    def comment(piece: str) -> None:
        comments.append(" ".join(piece.split()))

    def doctype(*_: object) -> None:
        raise fault("document type declarations, and so entities, are refused; a chart needs none")

    parser.XmlDeclHandler = declaration
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.CommentHandler = comment
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ChartError(f"{label}:{error.lineno}: not well-formed XML: {error}") from None
    return roots[0]
