"""Tools of Anthropic's API as chat templates take them, and what the answer is held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.constraints.wish import CallForm, ConstraintWish, TextForm, TextKind
from luce.errors import RequestError, quoted
from luce.http.anthropic.request import (
    MessagesBody,
    Tool,
    ToolChoiceAny,
    ToolChoiceNone,
    ToolChoiceTool,
)

__all__ = ["form_of", "offered_tools"]


def offered_tools(request: MessagesBody) -> tuple[Mapping[str, Any], ...]:
    """Those that the model is shown; none when none may be called."""
    if isinstance(request.tool_choice, ToolChoiceNone):
        return ()
    return tuple(map(_function, request.tools or ()))


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def form_of(
    request: MessagesBody, tools: tuple[Mapping[str, Any], ...], budget: int | None
) -> ConstraintWish:
    """What the answer is held to.

    Args:
        budget: tokens of thinking.

    Raises:
        RequestError: a call is wanted of a tool that is not there.
    """
    text = None
    config = request.output_config
    if config is not None and config.format is not None:
        text = TextForm(TextKind.JSON_SCHEMA, config.format.schema, "output_config.format.schema")
    return ConstraintWish(text, _calls(request, tools), budget)


def _calls(request: MessagesBody, tools: tuple[Mapping[str, Any], ...]) -> CallForm | None:
    choice = request.tool_choice
    single = choice is not None and choice.disable_parallel_tool_use is True
    if not isinstance(choice, ToolChoiceAny | ToolChoiceTool):
        return CallForm(tools, single=single) if tools else None
    if isinstance(choice, ToolChoiceTool):
        tools = tuple(tool for tool in tools if tool["function"]["name"] == choice.name)
        if not tools:
            raise RequestError(
                f"tool_choice.name: there is no tool {quoted(choice.name)} among tools",
                field="tool_choice.name",
            )
    elif not tools:
        raise RequestError('tool_choice {"type": "any"} needs tools', field="tool_choice")
    return CallForm(tools, required=True, single=single)
