"""From a body of POST /v1/responses to a job: what its fields ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError
from luce.http.answering.effort import effort_options
from luce.http.answering.prepare import Job, check_model, prepare, read_object
from luce.http.answering.renamed import fields_of
from luce.http.answering.tool_schemas import check_tool_schema
from luce.http.answering.unserved import without_unserved
from luce.http.answering.wish import Limit, Wish, checked_timeout
from luce.http.json_body import typed
from luce.http.openai.responses.conversation import conversation_of, easy_messages
from luce.http.openai.responses.request import ResponsesRequest
from luce.http.openai.responses.tools import form_of, offered_tools
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
    wants_logprobs = LOGPROBS in (request.include or ())
    tools = offered_tools(request)
    wish = _wish(request, tuple(tools.values()), model, wants_logprobs=wants_logprobs)
    with fields_of(wish.tools, wish.form, place="input", places=tuple(tools)):
        job = prepare(wish, model, options, prefix="resp_")
    told = {name: value for name, value in raw.items() if name != "input"}  # its pictures are let go
    return ResponsesJob(job, bool(request.stream), told, wants_logprobs)


def _check(request: ResponsesRequest) -> None:
    for index, tool in enumerate(request.tools or ()):
        check_tool_schema(tool.parameters, f"tools[{index}].parameters")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")
    if request.metadata is not None and len(request.metadata) > 16:
        raise RequestError(
            f"metadata holds {len(request.metadata)} pairs; at most 16 are taken", field="metadata"
        )


def _wish(
    request: ResponsesRequest,
    tools: tuple[Mapping[str, Any], ...],
    model: LoadedModel,
    *,
    wants_logprobs: bool,
) -> Wish:
    effort = request.reasoning.effort if request.reasoning is not None else None
    options, budget = effort_options(effort, model, "reasoning.effort")
    return Wish(
        conversation=conversation_of(request),
        params=_sampling(request, model, wants_logprobs=wants_logprobs),
        limit=Limit("max_output_tokens", request.max_output_tokens),
        tools=tools,
        form=form_of(request, tools, budget),
        one_call=request.parallel_tool_calls is False,
        template_kwargs=options,
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
    )


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
