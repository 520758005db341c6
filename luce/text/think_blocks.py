"""Which text of a streamed answer lies in think blocks, for stop strings: they apply to the answer alone.

Nothing is dropped here or moved; the rules of what is a block are those of :mod:`luce.text.reasoning`.
"""

from __future__ import annotations

from luce.text.reasoning import CLOSE, OPEN

__all__ = ["ThinkBlocks"]


class ThinkBlocks:
    """One answer's think blocks. Belongs to its request; not shared.

    Args:
        inside: the prompt opened a block.
    """

    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._opening = not inside
        """Only whitespace and closing tags came since the beginning, or since a block."""
        self._held = ""
        """Text of which it is not known whether it opens a block."""
        self._tail = ""
        """The end of the block's text so far, where its closing tag may begin."""

    def split(self, text: str) -> list[tuple[str, bool]]:
        """The text that is decided, in order: (piece, whether it lies in a block, tags included)."""
        pieces: list[tuple[str, bool]] = []
        while text:
            if self._inside:
                text = self._in_block(text, pieces)
            elif self._opening:
                text = self._before_block(text, pieces)
            else:
                pieces.append((text, False))
                break
        return pieces

    def flush(self) -> list[tuple[str, bool]]:
        """The rest, once no more will come."""
        held, self._held = self._held, ""
        return [(held, False)] if held else []

    def _in_block(self, text: str, pieces: list[tuple[str, bool]]) -> str:
        """What of the text is left behind the block."""
        seen = self._tail + text
        place = seen.find(CLOSE)
        if place < 0:
            self._tail = seen[-len(CLOSE) + 1 :]
            pieces.append((text, True))
            return ""
        end = place + len(CLOSE) - len(self._tail)
        pieces.append((text[:end], True))
        self._inside, self._opening, self._tail = False, True, ""
        return text[end:]

    def _before_block(self, text: str, pieces: list[tuple[str, bool]]) -> str:
        """What of the text is left behind the tag it begins with, if it does."""
        held, self._held = self._held + text, ""
        start = held.lstrip()
        for tag in (OPEN, CLOSE):
            if start.startswith(tag):
                end = len(held) - len(start) + len(tag)
                pieces.append((held[:end], True))
                self._inside = tag == OPEN
                return held[end:]
        if OPEN.startswith(start) or CLOSE.startswith(start):
            self._held = held
            return ""
        self._opening = False
        return held
