"""What a request asks of its answer's form, in no API's words: every endpoint fills in one :class:`ConstraintWish`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["CallForm", "ConstraintWish", "TextForm", "TextKind"]


class TextKind(enum.Enum):
    """What :attr:`TextForm.value` is."""

    JSON_SCHEMA = "json_schema"
    """A JSON schema: an object, true or false."""
    JSON_OBJECT = "json_object"
    """Nothing: any JSON object."""
    REGEX = "regex"
    """A regular expression that the whole answer matches (Rust's syntax, no look-around)."""
    CHOICE = "choice"
    """A sequence of strings, one of which is the answer."""
    LARK = "lark"
    """A grammar in llguidance's kind of Lark."""
    GBNF = "gbnf"
    """A grammar in llama.cpp's notation."""


@attrs.frozen
class TextForm:
    """What the text of an answer has to be. Reasoning is free."""

    kind: TextKind
    value: Any = None
    field: str = "response_format"
    """The request's field that says so, for errors."""


@attrs.frozen
class CallForm:
    """What tool calls in an answer have to be."""

    tools: tuple[Mapping[str, Any], ...]
    """Those that may be called, as definitions in OpenAI's form. Arguments of all of them are held to
    ``function.parameters`` when calls are required, else those of tools with ``function.strict``."""
    required: bool = False
    """The answer is calls and nothing else. False: it may be text with calls in it."""
    single: bool = False
    """One call at most."""
    field: str = "tool_choice"
    """The request's field that requires calls, for errors."""

    @property
    def strict(self) -> bool:
        """Arguments of some tool are to be held to its schema."""
        return any(tool["function"].get("strict") is True for tool in self.tools)

    @property
    def binding(self) -> bool:
        """It is not just as the model likes."""
        return self.required or self.strict


@attrs.frozen
class ConstraintWish:
    """All that a request asks of its answer's form."""

    text: TextForm | None = None
    calls: CallForm | None = None
    thinking_budget: int | None = None
    """Tokens of thinking after which the think block is closed; None: as long as it likes."""

    @property
    def field(self) -> str:
        """The request's field that asks for the most, for errors."""
        if self.text is not None:
            return self.text.field
        if self.calls is not None and self.calls.binding:
            return self.calls.field if self.calls.required else "tools"
        return "thinking_token_budget"

    @property
    def empty(self) -> bool:
        """The answer may be as the model likes."""
        bound = self.calls is not None and self.calls.binding
        return self.text is None and not bound and self.thinking_budget is None
