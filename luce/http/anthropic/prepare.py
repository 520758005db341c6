"""From a body of POST /v1/messages to a job: what its fields ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.engines.loaded import LoadedModel
from luce.http.answering.effort import checked_budget, effort_options
from luce.http.answering.prepare import Job, check_model, count_prompt, prepare, read_object
from luce.http.answering.renamed import fields_of
from luce.http.answering.thinking import SWITCH, thinking_switch
from luce.http.answering.tool_schemas import check_tool_schema
from luce.http.answering.unserved import without_unserved
from luce.http.answering.wish import Limit, Wish, checked_stops, checked_timeout
from luce.http.anthropic.conversation import conversation_of
from luce.http.anthropic.request import (
    CountRequest,
    MessagesBody,
    MessagesRequest,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
)
from luce.http.anthropic.tools import form_of, offered_tools
from luce.http.anthropic.unserved import UNSERVED, refuse_threads, refuse_tools_of_the_api
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
    raw = _served(body, model)
    request = typed(raw, MessagesRequest)
    wish = _wish(request, Limit("max_tokens", request.max_tokens, bounded_by_context=True), model, options)
    thinking = request.thinking
    with fields_of(wish.tools, wish.form, {"parameters": "input_schema"}):
        job = prepare(wish, model, options, prefix="msg_")
    return MessagesJob(
        job=job,
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
    raw = _served(body, model)
    request = typed(raw, CountRequest)
    return count_prompt(
        _wish(request, Limit("max_tokens", request.max_tokens), model, options), model, options
    )


def _served(body: bytes | bytearray, model: LoadedModel) -> dict[str, Any]:
    """The body as values, once it asks for nothing that is known and not served."""
    raw = read_object(body, model)
    refuse_threads(raw)
    raw = without_unserved({name: value for name, value in raw.items() if name != "thread"}, UNSERVED)
    refuse_tools_of_the_api(raw)
    return raw


def _wish(request: MessagesBody, limit: Limit, model: LoadedModel, http: HttpOptions) -> Wish:
    check_model(request.model, model, http)
    for index, tool in enumerate(request.tools or ()):
        check_tool_schema(tool.input_schema, f"tools[{index}].input_schema")
    asked, tools = conversation_of(request), offered_tools(request)
    options, budget = _thinking(request, model, begun=bool(asked.begun))
    return Wish(
        conversation=asked.conversation,
        params=_sampling(request, model),
        limit=limit,
        continuation=asked.begun or "",
        tools=tools,
        form=form_of(request, tools, budget),
        one_call=request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use is True,
        template_kwargs=options,
        stop=checked_stops(request.stop_sequences, "stop_sequences"),
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
    )


def _thinking(
    request: MessagesBody, model: LoadedModel, *, begun: bool
) -> tuple[Mapping[str, Any], int | None]:
    """(template options, tokens of thinking).

    Thinking is as the model has it unless it is asked for, and an answer that has begun does not think. Effort bounds
    what is thought; of itself it neither begins nor ends it.
    """
    thinking = request.thinking
    effort = request.output_config.effort if request.output_config is not None else None
    options, budget = effort_options(effort, model, "output_config.effort")
    if not isinstance(thinking, ThinkingAdaptive):
        options.pop(SWITCH, None)
    if isinstance(thinking, ThinkingEnabled):
        options |= thinking_switch(model, True, "thinking")
        budget = checked_budget(thinking.budget_tokens, "thinking.budget_tokens")
    elif isinstance(thinking, ThinkingDisabled):
        options |= thinking_switch(model, False, "thinking")
    elif thinking is None and begun and SWITCH in model.preparer.options:
        options[SWITCH] = False
    return options, budget


def _sampling(request: MessagesBody, model: LoadedModel) -> SamplingParams:
    asked = {"temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p}
    chosen: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    defaults: dict[str, Any] = dict(model.defaults.values)
    return SamplingParams(
        **(defaults | chosen),
        seed=request.seed,
        eos_token_ids=model.eos_token_ids,
    )
