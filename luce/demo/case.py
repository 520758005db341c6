"""One task case: a conversation in OpenAI chat form and the one right answer."""

import json
from hashlib import blake2b
from typing import Any

import attrs

from luce.demo.drawing import Chart, Pixels, draw

Message = dict[str, Any]


@attrs.frozen
class Case:
    """A question with one right answer.

    `messages` hold `{"type": "image"}` parts, one for each of `charts` in order.  `answer` is the visible
    text, with a tool call in its XML form.  `reasoning` is the text of the think block, None when thinking is off.
    `about` tells apart the cases of a task whose answers alone do not: terms of a sum, a text to recall from.
    """

    task: str
    messages: list[Message]
    answer: str
    charts: tuple[Chart, ...] = ()
    tools: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    about: str = ""

    @property
    def for_tests_only(self) -> bool:
        """Whether training must not see this case: one in eight, whatever the wording of the question."""
        earlier = [message for message in self.messages if message["role"] not in ("system", "user")]
        shown = [attrs.astuple(chart) for chart in self.charts]
        subject = json.dumps([self.about, earlier, shown, self.reasoning, self.answer])
        return blake2b(subject.encode(), digest_size=1).digest()[0] % 8 == 0

    @property
    def enable_thinking(self) -> bool:
        return self.reasoning is not None

    @property
    def completion(self) -> str:
        """What the model writes after the generation prompt, without the end token."""
        if self.reasoning is None:
            return self.answer
        return f"{self.reasoning}\n</think>\n\n{self.answer}"

    @property
    def max_tokens(self) -> int:
        """Enough for the right answer under any byte-level tokenizer, with room to see an overrun."""
        return len(self.completion.encode()) + 16

    def pictures(self) -> list[Pixels]:
        """RGB pixels of the charts, each (height, width, 3) uint8."""
        return [draw(chart) for chart in self.charts]


def image_part() -> dict[str, Any]:
    return {"type": "image"}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*parts: str | dict[str, Any]) -> Message:
    """A user message: plain text when there is one text and no picture, else a list of parts."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return {"role": "user", "content": parts[0]}
    return {"role": "user", "content": [text_part(p) if isinstance(p, str) else p for p in parts]}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
