"""Answers in pieces, for tests of the parsers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from luce.text.answer_parts import AnswerParts, Content, Reasoning
from luce.text.argument_types import ToolSchemas

MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=g>",
    "</function>",
    "<parameter=a>",
    "<parameter=b>",
    "</parameter>",
    '{"name": "f", "arguments": {"a": "}</tool_call>\\""}}',
    "{",
    "}",
    '"',
    "\\",
)
PLAIN = ("x", "1", "é", "👩‍🚀", " ", "\n", "\n\n", "<", "</", "<t", ">", "<think", "</parameter", "=")

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
            },
        },
    }
]


def render(name: str, arguments: dict[str, str]) -> str:
    """A call in the XML form, as the template writes it."""
    parts = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


def texts() -> st.SearchStrategy[str]:
    """Text full of marks, in and out of order, whole calls among them."""
    value = st.sampled_from((*MARKS, *PLAIN))
    values = st.lists(value, max_size=4).map("".join)
    call = st.dictionaries(st.sampled_from("ab"), values, max_size=2).map(lambda a: render("f", a))
    return st.lists(st.one_of(value, call), max_size=16).map("".join)


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text in pieces, cut at these places (modulo its length)."""
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


def joined(parts: Iterable[Any]) -> list[Any]:
    """Parts in order, neighbours of one kind as one."""
    found: list[Any] = []
    for part in parts:
        assert not isinstance(part, Content | Reasoning) or part.text, "an empty piece"
        if found and type(found[-1]) is type(part) and isinstance(part, Content | Reasoning):
            found[-1] = type(part)(found[-1].text + part.text)
        else:
            found.append(part)
    return found


def parse(
    pieces: str | Sequence[str],
    *,
    inside: bool = False,
    split: bool = True,
    tools: list[Any] | None = TOOLS,
    ended: bool = True,
) -> list[Any]:
    """All parts of an answer."""
    parser = AnswerParts(inside=inside, split=split, tools=None if tools is None else ToolSchemas(tools))
    pieces = [pieces] if isinstance(pieces, str) else pieces

    def parts() -> Iterator[Any]:
        for piece in pieces:
            yield from parser.feed(piece)
        yield from parser.flush(ended=ended)

    return joined(parts())
