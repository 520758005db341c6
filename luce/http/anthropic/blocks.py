"""An answer as content blocks: whole, and as the events of a stream.

Blocks stand in the order in which the model wrote their parts; a block ends where a part of another kind begins. The
whole answer is put together by the same steps as the stream, so that both say the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from luce.text.answer_parts import Content, Part, Reasoning, ToolCall

__all__ = ["Block", "BlockEvent", "Blocks"]

SIGNATURE = "unsigned"
"""Of thinking. Clients keep no block whose signature is empty; nothing is signed here, and nothing is checked."""


class TextAnswer(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUse(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


Block = TextAnswer | ThinkingAnswer | ToolUse


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop


class Blocks:
    """One answer's blocks.

    Args:
        omit_thinking: blocks of thinking have no text.
    """

    def __init__(self, *, omit_thinking: bool) -> None:
        self._omit_thinking = omit_thinking
        self.blocks: list[Block] = []
        """Those so far; the last one has its text when it has ended."""
        self._open = False
        self._pieces: list[str] = []
        """Text of the last one."""

    def take(self, part: Part) -> Iterator[BlockEvent]:
        """The events of a part. To be read to its end before the next call."""
        if isinstance(part, ToolCall):
            yield from self.end()
            yield from self._call(part)
        elif isinstance(part, Reasoning):
            yield from self._think(part)
        else:
            yield from self._say(part)

    def end(self) -> Iterator[BlockEvent]:
        """No more comes for the block that is open, if one is."""
        if not self._open:
            return
        self._open = False
        block, text = self.blocks[-1], "".join(self._pieces)
        if isinstance(block, ThinkingAnswer):
            block.thinking, block.signature = text, SIGNATURE
            yield self._delta(SignatureDelta(SIGNATURE))
        elif isinstance(block, TextAnswer):
            block.text = text
        yield BlockStop(len(self.blocks) - 1)

    def _think(self, part: Reasoning) -> Iterator[BlockEvent]:
        text = part.text
        if not self._in(ThinkingAnswer):
            yield from self.end()
            if any(isinstance(block, ThinkingAnswer) for block in self.blocks):
                text = text.removeprefix(
                    "\n"
                )  # the line end that keeps several think blocks of one text apart
            yield self._start(ThinkingAnswer("", ""))
        if not self._omit_thinking:
            self._pieces.append(text)
            yield self._delta(ThinkingDelta(text))

    def _say(self, part: Content) -> Iterator[BlockEvent]:
        if not self._in(TextAnswer):
            yield from self.end()
            yield self._start(TextAnswer(""))
        self._pieces.append(part.text)
        yield self._delta(TextDelta(part.text))

    def _call(self, call: ToolCall) -> Iterator[BlockEvent]:
        name = f"toolu_{uuid.uuid4().hex[:24]}"
        yield self._start(ToolUse(name, call.name, msgspec.Raw(b"{}")))
        self.blocks[-1] = ToolUse(name, call.name, msgspec.Raw(call.arguments.encode()))
        yield self._delta(InputJsonDelta(call.arguments))
        yield from self.end()

    def _in(self, kind: type[Block]) -> bool:
        return self._open and isinstance(self.blocks[-1], kind)

    def _start(self, block: Block) -> BlockStart:
        self.blocks.append(block)
        self._open, self._pieces = True, []
        return BlockStart(len(self.blocks) - 1, block)

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> BlockDelta:
        return BlockDelta(len(self.blocks) - 1, delta)
