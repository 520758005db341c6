"""The body of POST /v1/responses as typed values.

Every field that this server knows stands here; any other is refused by name. Explicit null means absent. What is known
and not served is listed in `unserved.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

__all__ = [
    "AllowedTools",
    "CallItem",
    "CallOutputItem",
    "InputImage",
    "InputText",
    "JsonObjectFormat",
    "JsonSchemaFormat",
    "MessageItem",
    "NamedFunction",
    "OutputText",
    "ReasoningItem",
    "ResponsesRequest",
    "TextFormat",
    "Tool",
]


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    pass


Status = Literal["in_progress", "completed", "incomplete"] | None
"""Of an item that comes back; of no effect."""


class InputText(_Strict, tag_field="type", tag="input_text", frozen=True):
    text: str
    prompt_cache_breakpoint: Any = None
    """Taken, and of no effect: the prefix cache works by itself."""


class InputImage(_Strict, tag_field="type", tag="input_image", frozen=True):
    image_url: str
    detail: Literal["auto", "high", "original"] | None = None
    """Pictures are always read at full size."""
    file_id: None = None
    prompt_cache_breakpoint: Any = None


class OutputText(_Strict, tag_field="type", tag="output_text", frozen=True):
    text: str
    # An SDK sends back what it got; these change nothing.
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None


class Refusal(_Strict, tag_field="type", tag="refusal", frozen=True):
    refusal: str


class MessageItem(_Strict, tag_field="type", tag="message", frozen=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | InputImage | OutputText | Refusal]
    id: str | None = None
    status: Status = None
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(_Strict, tag_field="type", tag="function_call", frozen=True):
    call_id: str
    name: Annotated[str, Meta(min_length=1)]
    arguments: str
    id: str | None = None
    status: Status = None
    caller: None = None
    namespace: None = None
    is_async: Literal[False] | None = field(name="async", default=None)
    parsed_arguments: Any = None


class CallOutputItem(_Strict, tag_field="type", tag="function_call_output", frozen=True):
    output: str | list[InputText | InputImage]
    call_id: str | None = None
    id: str | None = None
    status: Status = None
    name: str | None = None
    caller: None = None
    namespace: None = None


class SummaryText(_Strict, tag_field="type", tag="summary_text", frozen=True):
    text: str


class ReasoningText(_Strict, tag_field="type", tag="reasoning_text", frozen=True):
    text: str


class ReasoningItem(_Strict, tag_field="type", tag="reasoning", frozen=True):
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    id: str | None = None
    encrypted_content: str | None = None
    status: Status = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem


class Tool(_Strict, frozen=True):
    type: Literal["function"]
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: dict[str, Any] | None = None
    """Of no effect: what a tool gives is not looked at."""
    is_async: Literal[False] | None = field(name="async", default=None)


class NamedFunction(_Strict, tag_field="type", tag="function", frozen=True):
    name: str


class AllowedTools(_Strict, tag_field="type", tag="allowed_tools", frozen=True):
    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


class TextFormat(_Strict, tag_field="type", tag="text", frozen=True):
    pass


class JsonObjectFormat(_Strict, tag_field="type", tag="json_object", frozen=True):
    pass


class JsonSchemaFormat(_Strict, tag_field="type", tag="json_schema", frozen=True):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(_Strict, frozen=True):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(_Strict, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    """Reasoning comes as it is, never as a summary; "auto" leaves that to the server."""
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto", "all_turns"] | None = None
    """What comes back of earlier turns is given to the template."""
    mode: Literal["standard"] | None = None


class StreamOptions(_Strict, frozen=True):
    include_obfuscation: Literal[False] | None = None


Include = Literal[
    "message.output_text.logprobs",
    # These are about items that no answer of this server has, or that have nothing to hide; of no effect.
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
]


class ResponsesRequest(_Strict, frozen=True, kw_only=True):
    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[Include] | None = None

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None

    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None

    # Of this server; not OpenAI's.
    seed: int | None = None
    timeout: float | None = None
    """Seconds from the request's arrival until its answer is complete."""
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    """Requests of different salts share no cached prefix."""

    metadata: dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]] | None = None
    """Comes back in the answer."""

    # Taken and of no effect on the answer.
    store: bool | None = None
    """Nothing is stored."""
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    max_tool_calls: int | None = None
    """Of tools that the server runs; it runs none."""
