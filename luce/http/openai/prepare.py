"""From a body of POST /v1/chat/completions to a job: what its fields ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError, quoted
from luce.http.answering.prepare import Job, check_model, prepare, read_request
from luce.http.answering.wish import Limit, Wish, checked_stops, checked_timeout
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.unsupported import refuse_unsupported
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams, parse_logit_bias
from luce.text.messages import normalise

__all__ = ["ChatJob", "prepare_chat"]

T = TypeVar("T")


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
    request, raw = read_request(body, ChatRequest, model)
    check_model(request.model, model, options)
    refuse_unsupported(request)
    stream = request.stream_options
    return ChatJob(
        job=prepare(_wish(request, raw, model), model, options, prefix="chatcmpl-"),
        stream=_or(request.stream, False),
        include_usage=stream is not None and _or(stream.include_usage, False),
        continuous_usage=stream is not None and _or(stream.continuous_usage_stats, False),
    )


def _wish(request: ChatRequest, raw: Mapping[str, Any], model: LoadedModel) -> Wish:
    split = request.reasoning_format != "none"
    if request.include_reasoning is False and not split:
        raise RequestError(
            'include_reasoning false needs reasoning_format "auto" or "deepseek": with "none" reasoning is content',
            field="include_reasoning",
        )
    return Wish(
        conversation=normalise(raw["messages"]),
        params=_sampling(request, model),
        limit=_limit(request),
        tools=() if request.tool_choice == "none" else tuple(raw.get("tools") or ()),
        one_call=request.parallel_tool_calls is False,
        template_kwargs=request.chat_template_kwargs,
        split_reasoning=split,
        show_reasoning=request.include_reasoning is not False,
        stop=checked_stops(request.stop),
        include_stop=_or(request.include_stop_str_in_output, False),
        skip_special_tokens=_or(request.skip_special_tokens, True),
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
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


def _sampling(request: ChatRequest, model: LoadedModel) -> SamplingParams:
    defaults = model.defaults
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs")
    return SamplingParams(
        temperature=_or(request.temperature, defaults.temperature),
        top_k=_or(request.top_k, defaults.top_k),
        top_p=_or(request.top_p, defaults.top_p),
        min_p=_or(request.min_p, defaults.min_p),
        repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(request.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_or(request.frequency_penalty, defaults.frequency_penalty),
        logit_bias=parse_logit_bias(request.logit_bias or {}),
        seed=request.seed,
        min_tokens=_or(request.min_tokens, 0),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=_or(request.ignore_eos, False),
        eos_token_ids=model.eos_token_ids,
        logprobs=_or(request.top_logprobs, 0) if request.logprobs else None,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
