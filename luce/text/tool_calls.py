"""Tool calls in an answer, found as it streams.

Two forms, each within ``<tool_call>`` and ``</tool_call>``, whitespace free between their parts::

    <function=NAME><parameter=KEY>VALUE</parameter>…</function>        Qwen3.5, Qwen3-Coder
    {"name": NAME, "arguments": {…}}                                   Hermes, Qwen3

A call is given when it is complete, never in part: until its last mark is there it may turn out to be none, and what
was given cannot be taken back. Text that is no call, because its marks are in another order, its JSON is broken, or it
was cut off, comes out as the text that it is, unchanged.

- A VALUE lies between one line end after its opening mark and one before its closing mark, as the template writes it.
  It may hold anything, whole calls and lone marks too: it ends at the ``</parameter>`` that the next parameter or the
  end of the function follows, and that closes no ``<parameter=`` within the value. Where marks have not paired up when
  the model has ended its answer, the first such ``</parameter>`` ends it, unless another call begins or ends before.
- From a call that was cut off by a limit everything is text: a call in there may be one that it quotes.
- An answer full of marks that begin calls which are none costs a bounded time: past :data:`MAX_WASTED` characters read
  in vain, and several such calls, all of it is text.
- Of a parameter or name given twice the last value counts.
- Values are typed by the tool's schema (:mod:`luce.text.argument_types`); in the JSON form they have types already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from luce.text.argument_types import ToolSchemas
from luce.text.reasoning import held_back
from luce.text.strict_json import strict_json

__all__ = ["MAX_WASTED", "Text", "ToolCall", "ToolCallFinder"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
MAX_WASTED = 1 << 18
_FEW = 8
"""So many failures are always taken, however long the text."""
_MAX_NAME = 256
_VALUE_MARKS = re.compile(f"{_PARAMETER}|{_END_PARAMETER}")
_OTHER_CALL = re.compile(rf"{OPEN}\s*{_FUNCTION}|{_END_FUNCTION}\s*{CLOSE}")
_SPACE = re.compile(r"\s*")
_JSON_MARKS = re.compile(r'["{}\[\]]')
_STRING_MARKS = re.compile(r'["\\]')


class Text(NamedTuple):
    """Text outside calls, never empty."""

    text: str


class ToolCall(NamedTuple):
    """A complete call."""

    name: str
    arguments: str
    """A JSON object."""


class _MoreError(Exception):
    """The text so far does not decide."""


class _BrokenError(Exception):
    """This is no call."""


class ToolCallFinder:
    """One answer's tool calls. Belongs to its request; not shared.

    Args:
        tools: the declared tools, for the types of arguments.
        declared_only: asked at each call: must its name be a declared one for it to be a call?
    """

    def __init__(self, tools: ToolSchemas, declared_only: Callable[[], bool] = lambda: False) -> None:
        self._tools = tools
        self._declared_only = declared_only
        self._held = ""
        self._scan: _Scan | None = None
        self._failures = self._wasted = 0
        """Calls that were none, and characters that were read for them."""

    def feed(self, text: str) -> Iterator[Text | ToolCall]:
        """What is certain after this text. To be read to its end before the next call."""
        self._held += text
        yield from self._find(final=False, ended=False)

    def flush(self, *, ended: bool) -> Iterator[Text | ToolCall]:
        """The rest, once no more will come.

        Args:
            ended: the model ended its answer; False when it was cut off.
        """
        yield from self._find(final=True, ended=ended)
        if self._held:
            rest, self._held = self._held, ""
            yield Text(rest)

    def _find(self, *, final: bool, ended: bool) -> Iterator[Text | ToolCall]:
        while True:
            if self._failures > _FEW and self._wasted > MAX_WASTED:
                yield from self._pass(len(self._held))
                return
            place = self._held.find(OPEN)
            if place < 0:
                shown = len(self._held) - held_back(self._held, OPEN)
                yield from self._pass(shown)
                return
            yield from self._pass(place)
            if final and CLOSE not in self._held:
                return
            call = self._next(final, ended)
            if call is None:
                return
            yield call

    def _next(self, final: bool, ended: bool) -> ToolCall | Text | None:
        """What the held text begins with: a call, or the opening mark of none; None when more text must decide."""
        if self._scan is None:
            self._scan = _Scan(self._tools)
        try:
            call, end = self._attempt(final, ended)
        except _MoreError:
            if not (final and ended):
                return None
            call, end = self._fail(2 * len(self._held))
        except _BrokenError:
            call, end = self._fail(2 * len(self._held) if final else self._scan.place)
        if isinstance(call, ToolCall) and call.name not in self._tools and self._declared_only():
            call, end = self._fail(end)
        self._held, self._scan = self._held[end:], None
        return call

    def _fail(self, read: int) -> tuple[Text, int]:
        """What stands for the opening mark of no call, for which so many characters were read."""
        self._failures += 1
        self._wasted += read
        return Text(OPEN), len(OPEN)

    def _attempt(self, final: bool, ended: bool) -> tuple[ToolCall | Text, int]:
        assert self._scan is not None
        try:
            return self._scan.run(self._held)
        except _MoreError:
            if not (final and ended):
                raise
        return _Scan(self._tools, pairs=False).run(self._held)

    def _pass(self, count: int) -> Iterator[Text]:
        text, self._held = self._held[:count], self._held[count:]
        if text:
            yield Text(text)


class _Scan:
    """Reads one call from the start of a text that grows; goes on where it stopped.

    Args:
        pairs: ``<parameter=`` within a value must be closed before the value ends.
    """

    def __init__(self, tools: ToolSchemas, *, pairs: bool = True) -> None:
        self._tools = tools
        self._pairs = pairs
        self._text = ""
        self._at = len(OPEN)
        self._step: Callable[[], Callable[[], Any] | None] = self._form
        self._name = ""
        self._key = ""
        self._arguments: dict[str, Any] = {}
        self._start = 0
        """Of the value or JSON object that is being read."""
        self._depth = 0
        self._in_string = False
        self._call: ToolCall | None = None

    @property
    def place(self) -> int:
        """Up to where the text was read."""
        return self._at

    def run(self, text: str) -> tuple[ToolCall, int]:
        """The call and where it ends. Raises _MoreError or _BrokenError."""
        self._text = text
        while self._call is None:
            self._step = self._step() or self._step
        return self._call, self._at

    # Each step reads one part and returns the step after it; it moves on only once its part is whole.

    def _form(self) -> Callable[[], Any]:
        if self._choose("{", _FUNCTION) == "{":
            self._start = self._at - 1
            self._depth = 1
            return self._object
        return self._function_name

    def _function_name(self) -> Callable[[], Any]:
        self._name = self._mark_name()
        return self._body

    def _body(self) -> Callable[[], Any]:
        return self._key_name if self._choose(_PARAMETER, _END_FUNCTION) == _PARAMETER else self._xml_end

    def _key_name(self) -> Callable[[], Any]:
        self._key = self._mark_name()
        self._start, self._depth = self._at, 0
        return self._value

    def _value(self) -> Callable[[], Any] | None:
        found = _VALUE_MARKS.search(self._text, self._at)
        if found is None:
            # a mark may have begun; none is longer than </parameter>
            self._at = max(self._at, len(self._text) - len(_END_PARAMETER) + 1)
            raise _MoreError
        if found.group() == _PARAMETER:
            self._depth += self._pairs
        elif self._depth:
            self._depth -= 1
        elif self._ends_value(found.end()):
            value = self._text[self._start : found.start()].removeprefix("\n").removesuffix("\n")
            if not self._pairs and _OTHER_CALL.search(value):
                raise _BrokenError
            self._arguments[self._key] = self._tools.value(self._name, self._key, value)
            self._at = found.end()
            return self._body
        self._at = found.end()
        return None

    def _ends_value(self, place: int) -> bool:
        rest = self._text[_after_space(self._text, place) :][: len(_PARAMETER)]
        if rest in (_PARAMETER, _END_FUNCTION):
            return True
        if _PARAMETER.startswith(rest) or _END_FUNCTION.startswith(rest):
            raise _MoreError
        return False

    def _xml_end(self) -> Callable[[], Any]:
        self._choose(CLOSE)
        self._call = ToolCall(self._name, json.dumps(self._arguments, ensure_ascii=False))
        return self._xml_end

    def _object(self) -> Callable[[], Any] | None:
        marks = _STRING_MARKS if self._in_string else _JSON_MARKS
        found = marks.search(self._text, self._at)
        if found is None:
            self._at = len(self._text)
            raise _MoreError
        mark, end = found.group(), found.end()
        if mark == "\\":
            if end == len(self._text):
                self._at = found.start()
                raise _MoreError
            end += 1
        elif mark == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if mark in "{[" else -1
        self._at = end
        return None if self._depth else self._object_end

    def _object_end(self) -> Callable[[], Any]:
        end = self._at
        self._choose(CLOSE)
        self._call = _hermes(self._text[self._start : end])
        return self._object_end

    def _choose(self, *marks: str) -> str:
        """The mark that comes next behind whitespace."""
        place = _after_space(self._text, self._at)
        rest = self._text[place : place + max(map(len, marks))]
        for mark in marks:
            if rest.startswith(mark):
                self._at = place + len(mark)
                return mark
        if any(mark.startswith(rest) for mark in marks):
            raise _MoreError
        raise _BrokenError

    def _mark_name(self) -> str:
        end = self._text.find(">", self._at, self._at + _MAX_NAME + 1)
        name = self._text[self._at : end if end >= 0 else None]
        if "\n" in name or "<" in name or len(name) > _MAX_NAME:
            raise _BrokenError
        if end < 0:
            raise _MoreError
        name = name.strip()
        if not name:
            raise _BrokenError
        self._at = end + 1
        return name


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()


def _hermes(text: str) -> ToolCall:
    try:
        value = strict_json(text)
        name, arguments = value.get("name"), value.get("arguments", {})
        if isinstance(arguments, str):
            arguments = strict_json(arguments)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise _BrokenError
        written = json.dumps(arguments, ensure_ascii=False)
        (name + written).encode()  # no lone surrogates
    except (ValueError, RecursionError):
        raise _BrokenError from None
    return ToolCall(name, written)
