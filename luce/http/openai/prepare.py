"""From a body of POST /v1/chat/completions to a job: what its fields ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.constraints.wish import ConstraintWish
from luce.engines.loaded import LoadedModel
from luce.errors import RequestError, quoted
from luce.http.answering.effort import checked_budget, effort_options
from luce.http.answering.prepare import Job, check_model, prepare, read_request
from luce.http.answering.renamed import fields_of
from luce.http.answering.thinking import SWITCH
from luce.http.answering.tool_schemas import check_tool_schema
from luce.http.answering.wish import (
    Limit,
    Wish,
    checked_choices,
    checked_request_id,
    checked_stops,
    checked_timeout,
)
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.form_fields import text_form
from luce.http.openai.generation_fields import or_else, sampling_params
from luce.http.openai.tool_choice import call_form
from luce.http.openai.unsupported import CHAT, check_best_of, check_stream_options
from luce.http.options import HttpOptions
from luce.text.messages import Conversation, normalise

__all__ = ["ChatJob", "prepare_chat"]


@attrs.frozen(eq=False)
class ChatJob:
    """A chat request, ready to submit, and how its answer is to be written."""

    job: Job
    stream: bool
    include_usage: bool
    continuous_usage: bool


def prepare_chat(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> ChatJob:
    """Read, check and prepare one body of POST /v1/chat/completions.

    Raises:
        RequestError: names the field at fault.
    """
    request, raw = read_request(body, ChatRequest, model, CHAT)
    check_model(request.model, model, options)
    for index, tool in enumerate(request.tools or ()):
        check_tool_schema(tool.function.parameters, f"tools[{index}].function.parameters")
    check_best_of(request)
    check_stream_options(request)
    stream = request.stream_options
    wish = _wish(request, raw, model, options)
    with fields_of(raw.get("tools") or (), wish.form, _TOOL_FIELDS):
        job = prepare(wish, model, options, prefix="chatcmpl-")
    return ChatJob(
        job=job,
        stream=or_else(request.stream, False),
        include_usage=stream is not None and or_else(stream.include_usage, False),
        continuous_usage=stream is not None and or_else(stream.continuous_usage_stats, False),
    )


def _wish(request: ChatRequest, raw: Mapping[str, Any], model: LoadedModel, options: HttpOptions) -> Wish:
    split = request.reasoning_format != "none"
    if request.include_reasoning is False and not split:
        raise RequestError(
            'include_reasoning false needs reasoning_format "auto" or "deepseek": with "none" reasoning is content',
            field="include_reasoning",
        )
    conversation, continuation = _conversation(request, raw["messages"])
    one_call = request.parallel_tool_calls is False
    calls = call_form(request.tool_choice, raw.get("tools") or (), single=one_call)
    effort, budget = effort_options(request.reasoning_effort, model)
    if request.thinking_token_budget is not None:
        budget = checked_budget(request.thinking_token_budget)
    return Wish(
        conversation=conversation,
        continuation=continuation,
        params=sampling_params(request, model, _logprobs(request)),
        limit=_limit(request),
        n=checked_choices(request.n, options.max_choices),
        tools=calls.tools if calls is not None else (),
        one_call=one_call,
        form=ConstraintWish(text_form(request), calls, budget),
        template_kwargs=_template_options(request, model, effort, continues=bool(continuation)),
        split_reasoning=split,
        show_reasoning=request.include_reasoning is not False,
        stop=checked_stops(request.stop),
        include_stop=or_else(request.include_stop_str_in_output, False),
        skip_special_tokens=or_else(request.skip_special_tokens, True),
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
        request_id=checked_request_id(request.request_id),
    )


def _limit(request: ChatRequest) -> Limit:
    """The answer's limit; OpenAI renamed max_tokens to max_completion_tokens."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens ({quoted(old)}) and max_completion_tokens ({quoted(new)}) differ; send one of them",
            field="max_tokens",
        )
    return Limit("max_tokens", old) if new is None else Limit("max_completion_tokens", new)


def _logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs")
    return or_else(request.top_logprobs, 0) if request.logprobs else None


def _conversation(request: ChatRequest, messages: list[Any]) -> tuple[Conversation, str]:
    """What the model answers to, and the text that the answer goes on from."""
    conversation, continues = normalise(messages), or_else(request.continue_final_message, False)
    if request.add_generation_prompt is continues:
        raise RequestError(
            "add_generation_prompt must be false with continue_final_message and true without it, or left out",
            field="add_generation_prompt",
        )
    if not continues:
        return conversation, ""
    final, field = conversation.messages[-1], f"messages[{len(messages) - 1}]"
    if final["role"] != "assistant":
        raise RequestError(f"{field}.role: {_CONTINUED} must be the assistant's", field=f"{field}.role")
    for name in ("tool_calls", "reasoning_content"):
        if final.get(name):
            raise RequestError(f"{field}.{name}: {_CONTINUED} is text alone", field=f"{field}.{name}")
    if not isinstance(final["content"], str) or not final["content"]:
        raise RequestError(f"{field}.content: {_CONTINUED} must hold text", field=f"{field}.content")
    return normalise(messages[:-1]), final["content"]


def _template_options(
    request: ChatRequest, model: LoadedModel, effort: Mapping[str, Any], *, continues: bool
) -> Mapping[str, Any] | None:
    """An answer that has begun does not think first. What the template is told by name comes before the effort."""
    given = request.chat_template_kwargs
    if continues and SWITCH in model.preparer.options:
        return {SWITCH: False} | (given or {})
    return {**effort, **(given or {})} or None


_CONTINUED = "the message that the answer continues (continue_final_message)"
_TOOL_FIELDS = {name: f"function.{name}" for name in ("name", "description", "parameters")}
