"""Tools of the Responses API as chat templates take them, and what the answer is held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.constraints.wish import CallForm, ConstraintWish, TextForm, TextKind
from luce.errors import RequestError, quoted
from luce.http.openai.responses.request import (
    AllowedTools,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedFunction,
    ResponsesRequest,
    Tool,
)

__all__ = ["form_of", "offered_tools"]


def offered_tools(request: ResponsesRequest) -> dict[int, Mapping[str, Any]]:
    """Those that the model is shown, by their places in the request: those that may be called.

    Raises:
        RequestError: a tool is allowed that is not there.
    """
    choice, tools = request.tool_choice, request.tools or []
    if choice == "none":
        return {}
    names = {tool.name for tool in tools}
    if isinstance(choice, AllowedTools):
        for index, allowed in enumerate(choice.tools):
            _check_known(allowed.name, names, f"tool_choice.tools[{index}].name")
        names = {allowed.name for allowed in choice.tools}
    return {index: _function(tool) for index, tool in enumerate(tools) if tool.name in names}


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def form_of(
    request: ResponsesRequest, tools: tuple[Mapping[str, Any], ...], budget: int | None
) -> ConstraintWish:
    """What the answer is held to.

    Args:
        budget: tokens of thinking.

    Raises:
        RequestError: a call is wanted of a tool that is not there.
    """
    return ConstraintWish(_text(request), _calls(request, tools), budget)


def _text(request: ResponsesRequest) -> TextForm | None:
    form = request.text.format if request.text is not None else None
    if isinstance(form, JsonSchemaFormat):
        return TextForm(TextKind.JSON_SCHEMA, form.schema, "text.format.schema")
    return TextForm(TextKind.JSON_OBJECT, field="text.format") if isinstance(form, JsonObjectFormat) else None


def _calls(request: ResponsesRequest, tools: tuple[Mapping[str, Any], ...]) -> CallForm | None:
    choice, single = request.tool_choice, request.parallel_tool_calls is False
    if isinstance(choice, NamedFunction):
        _check_known(choice.name, {tool["function"]["name"] for tool in tools}, "tool_choice.name")
        named = tuple(tool for tool in tools if tool["function"]["name"] == choice.name)
        return CallForm(named, required=True, single=True)
    required = choice == "required" or (isinstance(choice, AllowedTools) and choice.mode == "required")
    if required and not tools:
        raise RequestError("tool_choice needs tools to call", field="tool_choice")
    return CallForm(tools, required=required, single=single) if tools else None


def _check_known(name: str, names: set[str], field: str) -> None:
    if name not in names:
        raise RequestError(f"{field}: there is no tool {quoted(name)} among tools", field=field)
