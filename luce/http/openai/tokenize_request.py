"""The bodies and answers of /tokenize, /detokenize and /apply-template, as vLLM and llama.cpp have them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from luce.http.answering.unserved import Unserved
from luce.http.openai.chat_request import Message, Tool
from luce.http.openai.generation_fields import Strict

__all__ = [
    "UNSERVED",
    "DetokenizeRequest",
    "Detokenized",
    "TemplateApplied",
    "TemplateRequest",
    "TokenizeRequest",
    "Tokens",
]

UNSERVED: Unserved = {
    "with_pieces": ((False,), "return_token_strs gives the text of each token"),
    "chat_template": ((), "the model's own template is used"),
    "mm_processor_kwargs": (({},), "pictures are read as the model's own preprocessing does"),
    "continue_final_message": ((False,), "a new turn is begun, or none (add_generation_prompt)"),
    "truncate_prompt_tokens": ((), "nothing is cut"),
}


class _ForTemplate(Strict, frozen=True, kw_only=True):
    model: str | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """True when it is left out: the prompt ends with the start of an answer."""


class TokenizeRequest(_ForTemplate, frozen=True, kw_only=True):
    """One of ``prompt``, ``content`` and ``messages``."""

    prompt: str | None = None
    content: str | None = None
    """llama.cpp's name for ``prompt``."""
    messages: list[Message] | None = None
    parse_special: bool | None = None
    """llama.cpp's: the text of a special token is that token. True when it is left out; of no effect on messages."""
    return_token_strs: bool | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    """These two have no effect: the family has no token that every prompt begins with."""


class TemplateRequest(_ForTemplate, frozen=True, kw_only=True):
    messages: list[Message]


class DetokenizeRequest(Strict, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


class Tokens(Struct, frozen=True):
    count: int
    max_model_len: int
    """Tokens of the context, prompt and answer together."""
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct, frozen=True):
    prompt: str
    content: str
    """The same, as llama.cpp calls it."""


class TemplateApplied(Struct, frozen=True):
    prompt: str
