"""Thinking on or off, for the APIs that have a field for it: the model's chat template has the switch."""

from __future__ import annotations

from typing import Any

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError

__all__ = ["EFFORT", "SWITCH", "thinking_switch"]

SWITCH, EFFORT = "enable_thinking", "reasoning_effort"
"""The family's names for them."""


def thinking_switch(model: LoadedModel, on: bool, field: str) -> dict[str, Any]:
    """Template options that turn thinking on or off.

    Raises:
        RequestError: the template has no switch; names ``field``, which asks for it.
    """
    if SWITCH not in model.preparer.options:
        raise RequestError(
            f"{field}: the chat template of {model.name} has no switch for thinking; leave it out",
            field=field,
            code="unsupported_value",
        )
    return {SWITCH: on}
