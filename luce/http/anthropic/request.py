"""The body of POST /v1/messages as typed values.

Every field that this server knows stands here; any other is refused by name. Explicit null means absent. What is known
and not served is listed in `unserved.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

__all__ = [
    "AssistantMessage",
    "CountRequest",
    "ImageBlock",
    "MessagesBody",
    "MessagesRequest",
    "RedactedThinkingBlock",
    "SystemMessage",
    "TextBlock",
    "ThinkingAdaptive",
    "ThinkingBlock",
    "ThinkingDisabled",
    "ThinkingEnabled",
    "Tool",
    "ToolChoiceAny",
    "ToolChoiceNone",
    "ToolChoiceTool",
    "ToolResultBlock",
    "ToolUseBlock",
    "UserMessage",
]


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    pass


CacheControl = dict[str, Any]
"""Taken, and of no effect whatever it says: the prefix cache works by itself, on every prompt."""


class TextBlock(_Strict, tag_field="type", tag="text", frozen=True):
    text: str
    cache_control: CacheControl | None = None
    citations: None = None
    parsed_output: Any = None
    """What anthropic's ``parse`` made of the text; of no effect."""


class Base64Source(_Strict, tag_field="type", tag="base64", frozen=True):
    data: str
    media_type: str


class UrlSource(_Strict, tag_field="type", tag="url", frozen=True):
    url: str


class ImageTransformations(_Strict, frozen=True):
    oversized_image: Literal["downsize"] | None = None


class ImageBlock(_Strict, tag_field="type", tag="image", frozen=True):
    source: Base64Source | UrlSource
    cache_control: CacheControl | None = None
    transformations: ImageTransformations | None = None


class Caller(_Strict, frozen=True):
    type: Literal["direct"]


class ToolUseBlock(_Strict, tag_field="type", tag="tool_use", frozen=True):
    id: str
    name: Annotated[str, Meta(min_length=1)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Caller | None = None
    toolset_name: None = None


class ToolResultBlock(_Strict, tag_field="type", tag="tool_result", frozen=True):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


class ThinkingBlock(_Strict, tag_field="type", tag="thinking", frozen=True):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Strict, tag_field="type", tag="redacted_thinking", frozen=True):
    data: str


class UserMessage(_Strict, tag_field="role", tag="user", frozen=True):
    content: str | list[TextBlock | ImageBlock | ToolResultBlock]


class AssistantMessage(_Strict, tag_field="role", tag="assistant", frozen=True):
    content: str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock]


class SystemMessage(_Strict, tag_field="role", tag="system", frozen=True):
    content: str | list[TextBlock]


class Tool(_Strict, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    """Of no effect: the arguments of a call come at once, when it is complete."""
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    input_examples: Annotated[list[Any], Meta(max_length=0)] | None = None


class ToolChoiceAuto(_Strict, tag_field="type", tag="auto", frozen=True):
    disable_parallel_tool_use: bool | None = None


class ToolChoiceAny(_Strict, tag_field="type", tag="any", frozen=True):
    disable_parallel_tool_use: bool | None = None


class ToolChoiceTool(_Strict, tag_field="type", tag="tool", frozen=True):
    name: str
    disable_parallel_tool_use: bool | None = None


class ToolChoiceNone(_Strict, tag_field="type", tag="none", frozen=True):
    disable_parallel_tool_use: bool | None = None


Display = Literal["summarized", "omitted"] | None


class ThinkingEnabled(_Strict, tag_field="type", tag="enabled", frozen=True):
    budget_tokens: int
    display: Display = None


class ThinkingAdaptive(_Strict, tag_field="type", tag="adaptive", frozen=True):
    display: Display = None


class ThinkingDisabled(_Strict, tag_field="type", tag="disabled", frozen=True):
    pass


class JsonFormat(_Strict, tag_field="type", tag="json_schema", frozen=True):
    schema: dict[str, Any]


class OutputConfig(_Strict, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(_Strict, frozen=True):
    user_id: str | None = None


class MessagesBody(_Strict, frozen=True, kw_only=True):
    """What both addresses take."""

    messages: list[UserMessage | AssistantMessage | SystemMessage]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None

    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    # Of this server; not Anthropic's.
    seed: int | None = None
    timeout: float | None = None
    """Seconds from the request's arrival until its answer is complete."""
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    """Requests of different salts share no cached prefix."""

    # Taken and of no effect on the answer.
    cache_control: CacheControl | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    user_profile_id: Any = None
    workspace_id: Any = None


class MessagesRequest(MessagesBody, frozen=True, kw_only=True):
    max_tokens: int


class CountRequest(MessagesBody, frozen=True, kw_only=True):
    """The same, so that a body can be counted as it is."""

    max_tokens: int | None = None
