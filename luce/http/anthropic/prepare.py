"""From a body of POST /v1/messages to a job: what its fields ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError
from luce.http.answering.prepare import Job, check_model, count_prompt, prepare, read_object
from luce.http.answering.thinking import EFFORT, SWITCH, thinking_switch
from luce.http.answering.unserved import not_supported, without_unserved
from luce.http.answering.wish import Limit, Wish, checked_stops, checked_timeout
from luce.http.anthropic.conversation import conversation_of
from luce.http.anthropic.request import (
    CountRequest,
    MessagesBody,
    MessagesRequest,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
    Tool,
    ToolChoiceAny,
    ToolChoiceNone,
    ToolChoiceTool,
)
from luce.http.anthropic.unserved import UNSERVED, refuse_tools_of_the_api
from luce.http.json_body import typed
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams

__all__ = ["MessagesJob", "count_messages", "prepare_messages"]


@attrs.frozen(eq=False)
class MessagesJob:
    """A request, ready to submit, and how its answer is to be written."""

    job: Job
    stream: bool
    max_tokens: int
    """As asked for; the context may leave less."""
    omit_thinking: bool
    """Thinking is shown as a block without its text."""


def prepare_messages(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> MessagesJob:
    """Read, check and prepare one body of POST /v1/messages.

    Raises:
        RequestError: names the field at fault.
    """
    raw = without_unserved(read_object(body, model), UNSERVED)
    refuse_tools_of_the_api(raw)
    request = typed(raw, MessagesRequest)
    wish = _wish(request, Limit("max_tokens", request.max_tokens, bounded_by_context=True), model, options)
    thinking = request.thinking
    return MessagesJob(
        job=prepare(wish, model, options, prefix="msg_"),
        stream=bool(request.stream),
        max_tokens=request.max_tokens,
        omit_thinking=isinstance(thinking, ThinkingEnabled | ThinkingAdaptive)
        and thinking.display == "omitted",
    )


def count_messages(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> int:
    """The tokens that the prompt of such a body has.

    Raises:
        RequestError: names the field at fault.
    """
    raw = without_unserved(read_object(body, model), UNSERVED)
    refuse_tools_of_the_api(raw)
    request = typed(raw, CountRequest)
    return count_prompt(
        _wish(request, Limit("max_tokens", request.max_tokens), model, options), model, options
    )


def _wish(request: MessagesBody, limit: Limit, model: LoadedModel, options: HttpOptions) -> Wish:
    check_model(request.model, model, options)
    _refuse_forms(request)
    asked = conversation_of(request)
    return Wish(
        conversation=asked.conversation,
        params=_sampling(request, model),
        limit=limit,
        continuation=asked.begun or "",
        tools=_tools(request),
        one_call=request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use is True,
        template_kwargs=_template_options(request, model, begun=bool(asked.begun)),
        stop=checked_stops(request.stop_sequences, "stop_sequences"),
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
    )


def _template_options(request: MessagesBody, model: LoadedModel, *, begun: bool) -> Mapping[str, Any]:
    """Thinking is as the model has it unless it is asked for; an answer that has begun does not think."""
    thinking, config = request.thinking, request.output_config
    found: dict[str, Any] = {}
    if isinstance(thinking, ThinkingEnabled):
        found |= thinking_switch(model, True, "thinking")
    elif isinstance(thinking, ThinkingDisabled):
        found |= thinking_switch(model, False, "thinking")
    elif thinking is None and begun and SWITCH in model.preparer.options:
        found[SWITCH] = False
    if config is not None and config.effort is not None:
        if EFFORT not in model.preparer.options:
            raise RequestError(
                f"output_config.effort: the chat template of {model.name} knows no levels of effort; leave it out",
                field="output_config.effort",
                code="unsupported_value",
            )
        found[EFFORT] = config.effort
    return found


def _tools(request: MessagesBody) -> tuple[Mapping[str, Any], ...]:
    """Tools as chat templates take them; none when none may be called."""
    if isinstance(request.tool_choice, ToolChoiceNone):
        return ()
    return tuple(map(_function, request.tools or ()))


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function | {"parameters": tool.input_schema}}


def _refuse_forms(request: MessagesBody) -> None:
    """What the model cannot be held to yet."""
    if isinstance(request.tool_choice, ToolChoiceAny | ToolChoiceTool):
        raise not_supported("tool_choice", 'only {"type": "auto"} and {"type": "none"}', only_this_value=True)
    if request.output_config is not None and request.output_config.format is not None:
        raise not_supported("output_config.format")
    if isinstance(request.thinking, ThinkingEnabled):
        raise not_supported("thinking.budget_tokens", 'use {"type": "adaptive"}')
    for index, tool in enumerate(request.tools or ()):
        if tool.strict:
            raise not_supported(f"tools[{index}].strict")


def _sampling(request: MessagesBody, model: LoadedModel) -> SamplingParams:
    asked = {"temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p}
    chosen: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    defaults: dict[str, Any] = dict(model.defaults.values)
    return SamplingParams(
        **(defaults | chosen),
        seed=request.seed,
        eos_token_ids=model.eos_token_ids,
    )
