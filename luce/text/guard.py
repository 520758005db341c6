"""Special-token text from callers stays text: a private mark keeps it apart from what the template writes.

A rendered prompt is one string, in which ``<|im_end|>`` of the template and of a user look alike. So the strings of
a caller are marked before rendering, and the mark is taken out of the plain pieces afterwards:

- In every string (object keys, too) the mark is put after each character that begins a special token and before
  each one that ends one: ``<``, ``>``. A token can then only appear where both ends come from the template, however
  the template cuts, trims or joins the strings; blanks at the ends of a text are not touched.
- A free text that is a whole inner part of a token (``im_start``) is marked inside, in case a template writes
  the brackets around it.
- The mark is a character that occurs neither in the input nor in the template, chosen per render: a rare ideograph,
  since templates may print lists and ``repr`` leaves printable characters as they are.

In what the *assistant* said before, ``<think>``, ``</think>``, ``<tool_call>`` and ``</tool_call>`` are left alone:
templates split earlier answers at them, and they become the same single ids that the model wrote. All else
in it is marked as elsewhere. A user text of the form ``<tool_response>…</tool_response>`` is text, too, and so
counts as a question, not as a tool's result; results belong into messages of role ``tool``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from luce.errors import RequestError

__all__ = ["Guard", "GuardRules"]

ASSISTANT_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_RANGES = ((0x17000, 0x187F7), (0x20000, 0x2A6DF))
"""Marks to choose from: Tangut, then rare Han. Printable, no letter case, untouched by normalisation."""
_MARKS = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES) + "]")
_ESCAPED = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


class GuardRules:
    """What to mark, for one set of special tokens. Immutable."""

    def __init__(self, tokens: Collection[str], template: str) -> None:
        """``tokens`` of one character cannot be marked and stay plain text wherever they stand."""
        names = sorted((token for token in tokens if len(token) > 1), key=lambda token: (-len(token), token))
        self._tokens = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._begins = re.compile(_any_of({token[0] for token in names}))
        self._ends = re.compile(_any_of({token[-1] for token in names}))
        kept = [token for token in ASSISTANT_TOKENS if token in set(names)]
        self._kept = re.compile("(" + "|".join(map(re.escape, kept)) + ")" if kept else "((?!))")
        self.inner = frozenset(
            token[i:j] for token in names for i in range(len(token)) for j in range(i + 1, len(token) + 1)
        )
        self._template = template

    def mark(self, text: str, mark: str) -> str:
        text = self._begins.sub(lambda found: found[0] + mark, text)
        return self._ends.sub(lambda found: mark + found[0], text)

    def mark_answer(self, text: str, mark: str) -> str:
        """As :meth:`mark`, but for the tokens that an assistant's text keeps."""
        pieces = self._kept.split(text)
        return "".join([piece if i % 2 else self.mark(piece, mark) for i, piece in enumerate(pieces)])

    def split(self, text: str) -> Iterator[tuple[str, str | None]]:
        """(plain text, the special token after it) pairs; the last token is None."""
        place = 0
        for found in self._tokens.finditer(text):
            yield text[place : found.start()], found[0]
            place = found.end()
        yield text[place:], None

    def guard_for(self, *inputs: object) -> Guard:
        """A guard whose mark does not occur in these values."""
        texts = [self._template, *_strings(inputs)]
        used = _used(texts)
        points = itertools.chain.from_iterable(range(first, last + 1) for first, last in _RANGES)
        mark = next((chr(point) for point in points if point not in used), None)
        # an input with every one of them: doubled ones are rarer still
        doubled = (
            mark * 2 for mark in map(chr, list(used)[:64]) if not any(mark * 2 in text for text in texts)
        )
        mark = mark or next(doubled, None)
        if mark is None:
            raise RequestError("the request leaves no character to mark its texts with", field="messages")
        return Guard(self, mark)


class Guard:
    """The marks of one render."""

    def __init__(self, rules: GuardRules, mark: str) -> None:
        self._rules = rules
        self._mark = mark
        self._escaped = json.dumps(mark)[1:-1]

    def text(self, text: str) -> str:
        """A free text: marked within and, if it is an inner part of a token, split."""
        if text in self._rules.inner and not text.isspace():
            text = text[0] + self._mark + text[1:]
        return self._rules.mark(text, self._mark)

    def answer(self, text: str) -> str:
        """What the assistant said before."""
        return self._rules.mark_answer(text, self._mark)

    def word(self, text: str) -> str:
        """A text that templates may compare with their own words ("low", "function")."""
        return self._rules.mark(text, self._mark)

    def words(self, value: Any) -> Any:
        """Every string in the value as a word."""
        return _mapped(value, self.word)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A normalised message (:mod:`luce.text.messages`), its structure unmarked."""
        text = self.answer if message["role"] == "assistant" else self.text
        found: dict[str, Any] = {}
        for key, value in message.items():
            if key == "role":
                found[key] = value
            elif key == "content" and isinstance(value, str):
                found[key] = text(value)
            elif key == "content":
                found[key] = [
                    {**part, "text": text(part["text"])} if part["type"] == "text" else part for part in value
                ]
            elif key == "tool_calls":
                found[key] = [self._call(call) for call in value]
            else:
                found[self.word(key)] = self.text(value) if isinstance(value, str) else self.words(value)
        return found

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        marked = {"name": self.text(function["name"]), "arguments": _mapped(function["arguments"], self.text)}
        found = {"type": call["type"], "function": marked}
        return {**found, "id": self.text(call["id"])} if "id" in call else found

    def drop(self, text: str) -> str:
        """Rendered plain text without marks (a template may have written them as JSON escapes)."""
        return text.replace(self._mark, "").replace(self._escaped, "")


def _mapped(value: Any, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {function(key): _mapped(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, function) for item in value]
    return value


def _strings(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item


def _used(texts: Iterable[str]) -> set[int]:
    used: set[int] = set()
    for text in texts:
        if not text.isascii():
            used.update(map(ord, _MARKS.findall(text)))
        for high, low in _ESCAPED.findall(text):
            used.add(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    return used


def _any_of(characters: set[str]) -> str:
    return "[" + "".join(map(re.escape, sorted(characters))) + "]" if characters else "(?!)"
