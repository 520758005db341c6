"""How much an answer may think before it is given: levels of effort as numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError, quoted
from luce.http.answering.thinking import EFFORT, SWITCH, thinking_switch

__all__ = ["BUDGETS", "checked_budget", "effort_options"]

BUDGETS: Mapping[str, int | None] = {
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": None,
    "max": None,
}
"""Tokens of thinking by ``reasoning_effort``; None is no limit. ``none`` turns thinking off."""


def checked_budget(budget: int | None, field: str = "thinking_token_budget") -> int | None:
    """Raises RequestError for a negative one."""
    if budget is not None and budget < 0:
        raise RequestError(f"{field} must be at least 0, not {quoted(budget)}", field=field)
    return budget


def effort_options(
    effort: str | None, model: LoadedModel, field: str = "reasoning_effort"
) -> tuple[dict[str, Any], int | None]:
    """Template options and the budget of a level of effort.

    Raises:
        RequestError: there is no such level, or thinking cannot be turned off.
    """
    if effort is None:
        return {}, None
    if effort == "none":
        return thinking_switch(model, False, field), None
    if effort not in BUDGETS:
        levels = ", ".join(["none", *BUDGETS])
        raise RequestError(f"{field} must be one of {levels}, not {quoted(effort)}", field=field)
    options: dict[str, Any] = {SWITCH: True} if SWITCH in model.preparer.options else {}
    if EFFORT in model.preparer.options:
        options[EFFORT] = effort
    return options, BUDGETS[effort]
