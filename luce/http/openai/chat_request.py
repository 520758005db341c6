"""The body of POST /v1/chat/completions as typed values.

Every field that this server knows stands here; any other is refused by name, because a field that is silently
dropped is an answer to another question. Explicit null means absent. What is known and not served yet is listed in
`unsupported.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

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


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class TextPart(_Strict, tag_field="type", tag="text", frozen=True):
    text: str


class ImageUrl(_Strict, frozen=True):
    url: str
    detail: str | None = None


class ImagePart(_Strict, tag_field="type", tag="image_url", frozen=True):
    image_url: ImageUrl


Part = TextPart | ImagePart
Content = str | list[Part] | None


class FunctionCall(_Strict, frozen=True):
    name: str
    arguments: str | dict[str, Any] | None = None
    parsed_arguments: Any = None
    """What openai's stream helpers made of the arguments; of no effect."""


class ToolCall(_Strict, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None


class SystemMessage(_Strict, tag_field="role", tag="system", frozen=True):
    content: Content = None
    name: str | None = None


class DeveloperMessage(_Strict, tag_field="role", tag="developer", frozen=True):
    content: Content = None
    name: str | None = None


class UserMessage(_Strict, tag_field="role", tag="user", frozen=True):
    content: Content = None
    name: str | None = None


class AssistantMessage(_Strict, tag_field="role", tag="assistant", frozen=True):
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


class ToolMessage(_Strict, tag_field="role", tag="tool", frozen=True):
    content: Content = None
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(_Strict, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict, frozen=True):
    type: Literal["function"]
    function: Function


class StreamOptions(_Strict, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(_Strict, frozen=True):
    messages: list[Message]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    timeout: float | None = None
    """Seconds from the request's arrival until its answer is complete."""
    skip_special_tokens: bool | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: list[Tool] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    """Requests of different salts share no cached prefix, so that none can tell what another one has asked."""
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    """llama.cpp's: where reasoning goes. With "auto" and "deepseek" into ``reasoning_content``, with "none" it stays in
    ``content``, tags and all."""
    include_reasoning: bool | None = None
    """vLLM's: false leaves reasoning out of the answer."""

    # Taken and of no effect on the answer.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None

    # Known, and served only with the values that `unsupported.py` lists.
    n: Any = None
    response_format: Any = None
    tool_choice: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    echo: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    grammar: Any = None
    priority: Any = None
    thinking_token_budget: Any = None
    enable_thinking: Any = None
