"""An answer as output items: whole, and as the events of a stream.

Items stand in the order in which the model wrote their parts; one ends where a part of another kind begins. The whole
answer is put together by the same steps as the stream, so that both say the same.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from luce.http.openai.logprobs import TokenLogprob
from luce.text.answer_parts import Content, Part, Reasoning, ToolCall

__all__ = ["Event", "Item", "Items"]

Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(Struct, tag_field="type", tag="output_text", frozen=True):
    text: str
    logprobs: Sequence[TokenLogprob] = ()
    annotations: Sequence[Any] = ()


class ThoughtPart(Struct, tag_field="type", tag="reasoning_text", frozen=True):
    text: str


class MessageItem(Struct, tag_field="type", tag="message", frozen=True):
    id: str
    status: Status
    content: Sequence[TextPart]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, tag_field="type", tag="reasoning", frozen=True):
    id: str
    status: Status
    content: Sequence[ThoughtPart]
    summary: Sequence[Any] = ()
    encrypted_content: None = None


class CallItem(Struct, tag_field="type", tag="function_call", frozen=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


Item = MessageItem | ReasoningItem | CallItem


class Event(Struct, frozen=True, kw_only=True):
    sequence_number: int


class _OfItem(Event, frozen=True, kw_only=True):
    output_index: int


class ItemAdded(_OfItem, tag_field="type", tag="response.output_item.added", frozen=True, kw_only=True):
    item: Item


class ItemDone(_OfItem, tag_field="type", tag="response.output_item.done", frozen=True, kw_only=True):
    item: Item


class _OfPart(_OfItem, frozen=True, kw_only=True):
    item_id: str
    content_index: int = 0


class PartAdded(_OfPart, tag_field="type", tag="response.content_part.added", frozen=True, kw_only=True):
    part: TextPart | ThoughtPart


class PartDone(_OfPart, tag_field="type", tag="response.content_part.done", frozen=True, kw_only=True):
    part: TextPart | ThoughtPart


class TextDelta(_OfPart, tag_field="type", tag="response.output_text.delta", frozen=True, kw_only=True):
    delta: str
    logprobs: Sequence[TokenLogprob]


class TextDone(_OfPart, tag_field="type", tag="response.output_text.done", frozen=True, kw_only=True):
    text: str
    logprobs: Sequence[TokenLogprob]


class ThoughtDelta(_OfPart, tag_field="type", tag="response.reasoning_text.delta", frozen=True, kw_only=True):
    delta: str


class ThoughtDone(_OfPart, tag_field="type", tag="response.reasoning_text.done", frozen=True, kw_only=True):
    text: str


class _OfCall(_OfItem, frozen=True, kw_only=True):
    item_id: str


class ArgumentsDelta(
    _OfCall, tag_field="type", tag="response.function_call_arguments.delta", frozen=True, kw_only=True
):
    delta: str


class ArgumentsDone(
    _OfCall, tag_field="type", tag="response.function_call_arguments.done", frozen=True, kw_only=True
):
    name: str
    arguments: str


class Items:
    """One answer's items.

    Args:
        numbers: of events, shared with whoever writes others.
    """

    def __init__(self, numbers: itertools.count[int]) -> None:
        self.done: list[Item] = []
        """Those that are complete, or as complete as they will be."""
        self._numbers = numbers
        self._kind: type[Part] | None = None
        """Of the item that is open."""
        self._id = ""
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def take(self, part: Part, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[Event]:
        """The events of a part. To be read to its end before the next call.

        Args:
            logprobs: of the tokens of content; of other parts there are none.
        """
        if isinstance(part, ToolCall):
            yield from self.end()
            yield from self._call(part)
            return
        text = part.text
        if self._kind is not type(part):
            yield from self.end()
            if isinstance(part, Reasoning) and any(isinstance(one, ReasoningItem) for one in self.done):
                text = text.removeprefix(
                    "\n"
                )  # the line end that keeps several think blocks of one text apart
            yield from self._begin(type(part))
        self._pieces.append(text)
        if isinstance(part, Content):
            self._logprobs += logprobs
            yield TextDelta(delta=text, logprobs=logprobs, **self._of_part())
        else:
            yield ThoughtDelta(delta=text, **self._of_part())

    def end(self, status: Status = "completed", logprobs: Sequence[TokenLogprob] = ()) -> Iterator[Event]:
        """No more comes for the item that is open, if one is.

        Args:
            logprobs: of last tokens that gave no text.
        """
        kind, self._kind = self._kind, None
        if kind is None:
            return
        text = "".join(self._pieces)
        where = self._of_part()
        item: Item
        part: TextPart | ThoughtPart
        if kind is Content:
            self._logprobs += logprobs
            part = TextPart(text, tuple(self._logprobs))
            item = MessageItem(self._id, status, (part,))
            yield TextDone(text=text, logprobs=part.logprobs, **where)
        else:
            part = ThoughtPart(text)
            item = ReasoningItem(self._id, status, (part,))
            yield ThoughtDone(text=text, **where)
        yield PartDone(part=part, **self._of_part())
        yield from self._finished(item)

    def _begin(self, kind: type[Part]) -> Iterator[Event]:
        self._kind, self._pieces, self._logprobs = kind, [], []
        item: Item
        part: TextPart | ThoughtPart
        if kind is Content:
            self._id, part = f"msg_{uuid.uuid4().hex}", TextPart("")
            item = MessageItem(self._id, "in_progress", ())
        else:
            self._id, part = f"rs_{uuid.uuid4().hex}", ThoughtPart("")
            item = ReasoningItem(self._id, "in_progress", ())
        yield ItemAdded(item=item, **self._of_item())
        yield PartAdded(part=part, **self._of_part())

    def _call(self, call: ToolCall) -> Iterator[Event]:
        name, arguments = call
        self._id, call_id = f"fc_{uuid.uuid4().hex}", f"call_{uuid.uuid4().hex[:24]}"
        yield ItemAdded(item=CallItem(self._id, call_id, name, "", "in_progress"), **self._of_item())
        yield ArgumentsDelta(delta=arguments, item_id=self._id, **self._of_item())
        yield ArgumentsDone(name=name, arguments=arguments, item_id=self._id, **self._of_item())
        yield from self._finished(CallItem(self._id, call_id, name, arguments, "completed"))

    def _finished(self, item: Item) -> Iterator[Event]:
        where = self._of_item()
        self.done.append(item)
        yield ItemDone(item=item, **where)

    def _of_item(self) -> dict[str, Any]:
        return {"sequence_number": next(self._numbers), "output_index": len(self.done)}

    def _of_part(self) -> dict[str, Any]:
        return self._of_item() | {"item_id": self._id}
