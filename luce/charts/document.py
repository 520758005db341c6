"""Reads XML into small elements that remember their line. Refuses document type declarations.

A DTD can define entities that expand without bound or name outside files; charts need none, so the parser
stops at the declaration, before anything in it is read (the rule python-statemachine and defusedxml follow,
too).
"""

from __future__ import annotations

from xml.parsers import expat

import attrs

from luce.errors import ChartError

__all__ = ["SCXML_NAMESPACE", "Element", "parse_xml"]

SCXML_NAMESPACE = "http://www.w3.org/2005/07/scxml"


@attrs.define(eq=False)
class Element:
    """One XML element. `tag` is the local name of an SCXML element; for any other it also says the namespace."""

    tag: str
    attributes: dict[str, str]
    line: int
    comment: str = ""
    """The comment that stands directly before the element."""
    children: list[Element] = attrs.field(factory=list)
    text: str = ""


def parse_xml(data: bytes, label: str) -> Element:
    """Parses one document. Raises ChartError that names `label` and the line."""
    parser = expat.ParserCreate(namespace_separator=" ")
    stack: list[Element] = []
    roots: list[Element] = []
    comments: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        namespace, _, local = tag.rpartition(" ")
        name = local if namespace == SCXML_NAMESPACE else f"{local} of namespace {namespace!r}"
        element = Element(name, attributes, parser.CurrentLineNumber, " ".join(comments))
        comments.clear()
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()
        comments.clear()

    def text(piece: str) -> None:
        if stack:
            stack[-1].text += piece

    def comment(piece: str) -> None:
        comments.append(" ".join(piece.split()))

    def doctype(*_: object) -> None:
        raise ChartError(f"{label}:{parser.CurrentLineNumber}: document type declarations are refused")

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
