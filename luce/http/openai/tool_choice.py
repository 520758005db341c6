"""``tool_choice``: whether and which tools an answer calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from luce.constraints.wish import CallForm
from luce.errors import RequestError, shown_name

__all__ = ["ToolChoice", "call_form"]


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class FunctionName(_Strict, frozen=True):
    name: str


class NamedTool(_Strict, tag_field="type", tag="function", frozen=True):
    function: FunctionName


class AllowedTools(_Strict, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ChooseAllowed(_Strict, tag_field="type", tag="allowed_tools", frozen=True):
    allowed_tools: AllowedTools


ToolChoice = Literal["auto", "none", "required"] | NamedTool | ChooseAllowed


def call_form(
    choice: ToolChoice | None, tools: Sequence[Mapping[str, Any]], *, single: bool
) -> CallForm | None:
    """What calls of the answer have to be; None: there are none.

    Args:
        tools: as the client sent them.
        single: one call at most.

    Raises:
        RequestError: it names a tool that is not there, or requires one where there is none.
    """
    if choice == "none":
        return None
    if not tools:
        if choice in (None, "auto"):
            return None
        raise RequestError("tool_choice asks for a call, and there are no tools", field="tool_choice")
    if isinstance(choice, NamedTool):
        chosen = _named([choice.function.name], tools, "tool_choice.function.name")
        return CallForm(chosen, required=True, single=True)
    if isinstance(choice, ChooseAllowed):
        allowed = choice.allowed_tools
        names = [tool.function.name for tool in allowed.tools]
        chosen = _named(names, tools, "tool_choice.allowed_tools.tools")
        return CallForm(chosen, required=allowed.mode == "required", single=single)
    return CallForm(tuple(tools), required=choice == "required", single=single)


def _named(
    names: Sequence[str], tools: Sequence[Mapping[str, Any]], field: str
) -> tuple[Mapping[str, Any], ...]:
    if not names:
        raise RequestError(f"{field} names no tool", field=field)
    known = {tool["function"]["name"]: tool for tool in tools}
    for name in names:
        if name not in known:
            raise RequestError(f"{field}: there is no tool {shown_name(name)} in tools", field=field)
    return tuple(known[name] for name in dict.fromkeys(names))
