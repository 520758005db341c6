"""How an answer is to be told apart into reasoning, content and tool calls: what a request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.text.answer_parts import AnswerParts
from luce.text.argument_types import ToolSchemas

__all__ = ["AnswerForm"]


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
