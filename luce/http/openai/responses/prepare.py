"""From a body of POST /v1/responses to a job: what its fields ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError
from luce.http.answering.prepare import Job, check_model, prepare, read_object
from luce.http.answering.thinking import EFFORT, SWITCH, thinking_switch
from luce.http.answering.unserved import not_supported, without_unserved
from luce.http.answering.wish import Limit, Wish, checked_timeout
from luce.http.json_body import typed
from luce.http.openai.responses.conversation import conversation_of, easy_messages
from luce.http.openai.responses.request import (
    AllowedTools,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedFunction,
    ResponsesRequest,
    Tool,
)
from luce.http.openai.responses.unserved import UNSERVED, refuse_by_kind
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams

__all__ = ["ResponsesJob", "prepare_response"]

LOGPROBS = "message.output_text.logprobs"


@attrs.frozen(eq=False)
class ResponsesJob:
    """A request, ready to submit, and how its answer is to be written."""

    job: Job
    stream: bool
    told: Mapping[str, Any]
    """The body without its input, as plain values: an answer repeats what was asked for."""
    wants_logprobs: bool


def prepare_response(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> ResponsesJob:
    """Read, check and prepare one body of POST /v1/responses.

    Raises:
        RequestError: names the field at fault.
    """
    raw = without_unserved(read_object(body, model), UNSERVED)
    refuse_by_kind(raw)
    easy_messages(raw)
    request = typed(raw, ResponsesRequest)
    check_model(request.model, model, options)
    _check(request)
    _refuse_forms(request)
    wants_logprobs = LOGPROBS in (request.include or ())
    wish = _wish(request, model, wants_logprobs=wants_logprobs)
    try:
        job = prepare(wish, model, options, prefix="resp_")
    except RequestError as error:
        if error.field == "messages":  # the name of it in the other API
            error.field = "input"
        raise
    told = {name: value for name, value in raw.items() if name != "input"}  # its pictures are let go
    return ResponsesJob(job, bool(request.stream), told, wants_logprobs)


def _check(request: ResponsesRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")
    if request.metadata is not None and len(request.metadata) > 16:
        raise RequestError(
            f"metadata holds {len(request.metadata)} pairs; at most 16 are taken", field="metadata"
        )


def _wish(request: ResponsesRequest, model: LoadedModel, *, wants_logprobs: bool) -> Wish:
    return Wish(
        conversation=conversation_of(request),
        params=_sampling(request, model, wants_logprobs=wants_logprobs),
        limit=Limit("max_output_tokens", request.max_output_tokens),
        tools=_tools(request),
        one_call=request.parallel_tool_calls is False,
        template_kwargs=_template_options(request, model),
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
    )


def _template_options(request: ResponsesRequest, model: LoadedModel) -> Mapping[str, Any]:
    """A template that knows levels of effort gets the level; one with a switch alone is on for all but "none"."""
    effort = request.reasoning.effort if request.reasoning is not None else None
    options = model.preparer.options
    if effort is None:
        return {}
    if EFFORT in options and not (effort == "none" and SWITCH in options):
        return {EFFORT: effort}
    return thinking_switch(model, effort != "none", "reasoning.effort")


def _tools(request: ResponsesRequest) -> tuple[Mapping[str, Any], ...]:
    """Tools as chat templates take them: those that may be called."""
    choice, tools = request.tool_choice, request.tools or []
    if choice == "none":
        return ()
    if isinstance(choice, AllowedTools):
        known = {tool.name for tool in tools}
        for index, allowed in enumerate(choice.tools):
            if allowed.name not in known:
                field = f"tool_choice.tools[{index}].name"
                raise RequestError(f"{field}: there is no such tool among tools", field=field)
        names = {allowed.name for allowed in choice.tools}
        tools = [tool for tool in tools if tool.name in names]
    return tuple(map(_function, tools))


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _refuse_forms(request: ResponsesRequest) -> None:
    """What the model cannot be held to yet."""
    choice, text = request.tool_choice, request.text
    if choice == "required" or isinstance(choice, NamedFunction):
        raise not_supported("tool_choice", 'only "auto" and "none"', only_this_value=True)
    if isinstance(choice, AllowedTools) and choice.mode == "required":
        raise not_supported("tool_choice.mode", 'only "auto"', only_this_value=True)
    if text is not None and isinstance(text.format, JsonObjectFormat | JsonSchemaFormat):
        raise not_supported("text.format", 'only {"type": "text"}', only_this_value=True)
    for index, tool in enumerate(request.tools or ()):
        if tool.strict:
            raise not_supported(f"tools[{index}].strict")


def _sampling(request: ResponsesRequest, model: LoadedModel, *, wants_logprobs: bool) -> SamplingParams:
    defaults = model.defaults
    if request.top_logprobs and not wants_logprobs:
        raise RequestError(f'top_logprobs needs "{LOGPROBS}" in include', field="top_logprobs")
    return SamplingParams(
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
        seed=request.seed,
        eos_token_ids=model.eos_token_ids,
        logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
    )
