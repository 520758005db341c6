"""How a chat answer is to be told apart into reasoning, content and tool calls: what a request asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from luce.engines.loaded import PreparedPrompt
from luce.errors import RequestError
from luce.http.openai.chat_request import ChatRequest
from luce.text.answer_parts import AnswerParts
from luce.text.argument_types import ToolSchemas

__all__ = ["AnswerForm", "answer_form", "offered_tools"]


@attrs.frozen(eq=False)
class AnswerForm:
    """Of one request. Immutable."""

    inside: bool
    """The prompt opened a think block."""
    split: bool = True
    """Reasoning is told from content."""
    show_reasoning: bool = True
    tools: tuple[Mapping[str, Any], ...] = ()
    """Offered to the model; calls are looked for when there are any."""
    one_call: bool = False
    """The answer ends with its first call."""

    def parser(self) -> AnswerParts:
        """A fresh parser for the answer."""
        tools = ToolSchemas(list(self.tools)) if self.tools else None
        return AnswerParts(inside=self.inside, split=self.split, tools=tools)


def offered_tools(request: ChatRequest, raw: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The tools that the model is told of, as the client sent them; None of them with ``tool_choice`` none."""
    return None if request.tool_choice == "none" else raw.get("tools") or None


def answer_form(
    request: ChatRequest, tools: Sequence[Mapping[str, Any]] | None, prompt: PreparedPrompt
) -> AnswerForm:
    """What the request's fields say.

    Raises:
        RequestError: fields that contradict each other.
    """
    split = request.reasoning_format != "none"
    if request.include_reasoning is False and not split:
        raise RequestError(
            'include_reasoning false needs reasoning_format "auto" or "deepseek": with "none" reasoning is content',
            field="include_reasoning",
        )
    return AnswerForm(
        inside=prompt.starts_in_thinking,
        split=split,
        show_reasoning=request.include_reasoning is not False,
        tools=tuple(tools or ()),
        one_call=request.parallel_tool_calls is False,
    )
