"""An answer's text as it streams, in parts: reasoning, content, tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from luce.text.argument_types import ToolSchemas
from luce.text.reasoning import Content, Reasoning, ReasoningSplitter
from luce.text.tool_calls import Text, ToolCall, ToolCallFinder

__all__ = ["AnswerParts", "Content", "Part", "Reasoning", "ToolCall"]

Part = Reasoning | Content | ToolCall


class AnswerParts:
    """The parts of one answer. Belongs to its request; not shared.

    Calls are looked for in reasoning too, since models begin one without closing the block; there only declared tools
    count, so that a form that a thought merely quotes stays a thought.

    Args:
        inside: the prompt opened a think block.
        split: tell reasoning from content.
        tools: the declared tools; None: calls are text.
    """

    def __init__(self, *, inside: bool, split: bool, tools: ToolSchemas | None) -> None:
        self._splitter = ReasoningSplitter(inside=inside, split=split, calls=tools is not None)
        self._finder = None if tools is None else ToolCallFinder(tools, lambda: self._splitter.thinking)

    @property
    def thinking(self) -> bool:
        """The text so far ends inside a think block; never when it is not split."""
        return self._splitter.thinking

    def feed(self, text: str) -> Iterator[Part]:
        """What is certain after this text. To be read to its end before the next call."""
        if self._finder is None:
            yield from self._splitter.feed(text)
        else:
            yield from self._sorted(self._finder.feed(text))

    def flush(self, *, ended: bool) -> Iterator[Part]:
        """The rest, once no more will come.

        Args:
            ended: the model ended its answer; False when it was cut off.
        """
        if self._finder is not None:
            yield from self._sorted(self._finder.flush(ended=ended))
        yield from self._splitter.flush()

    def _sorted(self, found: Iterable[Text | ToolCall]) -> Iterator[Part]:
        for one in found:
            if isinstance(one, Text):
                yield from self._splitter.feed(one.text)
            else:
                yield from self._splitter.call()
                yield one
