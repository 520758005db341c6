"""The body of POST /v1/chat/completions as typed values.

Every field that this server serves stands here or in `generation_fields.py`; any other is refused by name, because a
field that is silently dropped is an answer to another question. Explicit null means absent. What is known and not
served is listed in `unsupported.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from luce.http.openai.generation_fields import GenerationFields, StreamOptions, Strict
from luce.http.openai.tool_choice import ToolChoice

__all__ = [
    "AssistantMessage",
    "ChatRequest",
    "ImagePart",
    "Message",
    "StreamOptions",
    "TextPart",
    "Tool",
    "ToolCall",
]


class TextPart(Strict, tag_field="type", tag="text", frozen=True):
    text: str


class ImageUrl(Strict, frozen=True):
    url: str
    detail: str | None = None


class ImagePart(Strict, tag_field="type", tag="image_url", frozen=True):
    image_url: ImageUrl


Part = TextPart | ImagePart
Content = str | list[Part] | None


class FunctionCall(Strict, frozen=True):
    name: str
    arguments: str | dict[str, Any] | None = None
    parsed_arguments: Any = None
    """What openai's stream helpers made of the arguments; of no effect."""


class ToolCall(Strict, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None


class SystemMessage(Strict, tag_field="role", tag="system", frozen=True):
    content: Content = None
    name: str | None = None


class DeveloperMessage(Strict, tag_field="role", tag="developer", frozen=True):
    content: Content = None
    name: str | None = None


class UserMessage(Strict, tag_field="role", tag="user", frozen=True):
    content: Content = None
    name: str | None = None


class AssistantMessage(Strict, tag_field="role", tag="assistant", frozen=True):
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    # An SDK sends back what it got; these say nothing when they are null or empty.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None
    parsed: Any = None
    """What openai's ``parse`` made of the content; of no effect."""


class ToolMessage(Strict, tag_field="role", tag="tool", frozen=True):
    content: Content = None
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(Strict, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict, frozen=True):
    type: Literal["function"]
    function: Function


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    thinking_token_budget: int | None = None
    """Tokens after which a think block is closed."""
    reasoning_effort: str | None = None
    """none turns thinking off; other levels bound it."""
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    """llama.cpp's: where reasoning goes. With "auto" and "deepseek" into ``reasoning_content``, with "none" it stays in
    ``content``, tags and all."""
    include_reasoning: bool | None = None
    """vLLM's: false leaves reasoning out of the answer."""
    continue_final_message: bool | None = None
    """The answer continues the last message, which is the assistant's. It is not repeated in the answer."""
    add_generation_prompt: bool | None = None
    """Begin a new turn; false goes with ``continue_final_message`` alone, and is then what is meant anyway."""
