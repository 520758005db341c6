"""Reasoning and content of an answer, told apart as it streams.

The family's chat template opens ``<think>`` in the prompt when thinking is on, so an answer may begin inside the block.
It writes a past turn as ``<think>``, line end, reasoning, line end, ``</think>``, two line ends, content, and trims
both. So whitespace around the reasoning and line ends before the content belong to neither: given back in
``reasoning_content`` and ``content``, they render to the same ids again.

- A block is one where the answer begins, where the last block ended, or behind a tool call. ``<think>`` anywhere else,
  in content or in reasoning, is text.
- ``</think>`` ends it. One more right behind it, or one that nothing opened, is dropped; inside content it is text.
- A tool call ends a block that was not closed; the ``</think>`` that may still follow is dropped.
- A block that never ends is reasoning to its end.
- Several blocks are one reasoning text, a line end between them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CLOSE", "OPEN", "Content", "Reasoning", "ReasoningSplitter", "held_back"]

OPEN, CLOSE = "<think>", "</think>"


class Reasoning(NamedTuple):
    """A piece of the reasoning; never empty."""

    text: str


class Content(NamedTuple):
    """A piece of what is meant for the reader; never empty."""

    text: str


Piece = Reasoning | Content

# Where the splitter stands.
_OPENING, _THINKING, _ANSWERING = "opening", "thinking", "answering"


class ReasoningSplitter:
    """One answer's reasoning. Belongs to its request; not shared.

    Args:
        inside: the prompt opened the block.
        split: tell reasoning from content; otherwise all is content as it stands, tags included.
        calls: tool calls may stand in the answer: whitespace is held back until it is known that none follows, since
            around calls it is the template's.
    """

    def __init__(self, *, inside: bool, split: bool = True, calls: bool = False) -> None:
        self._split = split
        self._calls = calls
        self._state = (_THINKING if inside else _OPENING) if split else _ANSWERING
        self._held = ""
        self._fresh = True
        """Nothing of this block was given yet."""
        self._reasoned = self._said = False
        """Some reasoning, some content was given."""
        self._after_block = self._after_call = False
        """Nothing but whitespace came since a block ended, since a call."""
        self._unclosed = False
        """A call ended the block; its ``</think>`` may still come."""

    @property
    def thinking(self) -> bool:
        """The text stands inside a block."""
        return self._state == _THINKING

    def feed(self, text: str) -> list[Piece]:
        """What is certain after this text."""
        self._held += text
        pieces: list[Piece] = []
        while self._advance(pieces):
            pass
        return pieces

    def call(self) -> list[Piece]:
        """A tool call stands here, behind the text so far, whose last part comes out."""
        pieces: list[Piece] = []
        rest, self._held = self._held.rstrip(), ""
        if self._state == _THINKING:
            self._reason(rest, pieces)
            self._unclosed = True
        else:
            self._say(rest, pieces)
        self._after_call = True
        self._after_block = False
        self._state = _OPENING if self._split else _ANSWERING
        return pieces

    def flush(self) -> list[Piece]:
        """The rest, once no more will come."""
        pieces: list[Piece] = []
        rest, self._held = self._held, ""
        if self._state == _THINKING:
            self._reason(rest.rstrip(), pieces)
        else:
            self._say(rest, pieces)
        return pieces

    def _advance(self, pieces: list[Piece]) -> bool:
        """One step on the held text; False when it needs more."""
        if self._state == _THINKING:
            return self._think(pieces)
        if self._state == _OPENING:
            return self._open()
        self._answer(pieces)
        return False

    def _think(self, pieces: list[Piece]) -> bool:
        if self._fresh:
            self._held = self._held.lstrip()
            if self._held.startswith(OPEN):
                self._held = self._held[len(OPEN) :]
                return True
            if OPEN.startswith(self._held):
                return False
        inside, closed, rest = self._held.partition(CLOSE)
        if closed:
            self._reason(inside.rstrip(), pieces)
            self._held, self._state, self._after_block = rest, _OPENING, True
            return True
        shown = self._held[: len(self._held) - held_back(self._held, CLOSE)].rstrip()
        self._reason(shown, pieces)
        self._held = self._held[len(shown) :]
        return False

    def _open(self) -> bool:
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._held, self._state, self._fresh, self._unclosed = start[len(OPEN) :], _THINKING, True, False
            return True
        if start.startswith(CLOSE):
            self._held, self._after_block, self._unclosed = start[len(CLOSE) :], True, False
            return True
        if OPEN.startswith(start) or CLOSE.startswith(start):
            return False
        self._state = _ANSWERING
        return True

    def _answer(self, pieces: list[Piece]) -> None:
        if self._unclosed:
            before, closed, rest = self._held.partition(CLOSE)
            if closed:
                self._held, self._unclosed = before + rest, False
        keep = held_back(self._held, CLOSE) if self._unclosed else 0
        shown = self._held[: len(self._held) - keep]
        if self._calls:
            shown = shown.rstrip()
        self._say(shown, pieces)
        self._held = self._held[len(shown) :]

    def _reason(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Reasoning("\n" + text if self._fresh and self._reasoned else text))
            self._fresh, self._reasoned = False, True

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if (self._after_call or self._after_block) and not text.strip():
            text = ""
        elif self._after_call and not self._said:
            text = text.lstrip()
        elif self._after_block and not self._said:
            text = text.lstrip("\n")
        if text:
            pieces.append(Content(text))
            self._said, self._after_block, self._after_call = True, False, False


def held_back(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that ``tag`` begins with, the whole tag apart."""
    start = text.rfind(tag[0], max(0, len(text) - len(tag) + 1))
    best = 0
    while start >= 0:
        if tag.startswith(text[start:]):
            best = len(text) - start
        start = text.rfind(tag[0], max(0, len(text) - len(tag) + 1), start)
    return best
