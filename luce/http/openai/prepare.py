"""From a request body to a :class:`Submission`: everything that costs CPU time, on a worker thread.

JSON, base64, decoding and resizing of pictures, template and tokenising all happen here, so that the trio thread
only moves messages. Pure but for the ids and seeds it draws; raises RequestError for whatever the client got wrong.
"""

from __future__ import annotations

import time
import uuid
from typing import TypeVar

import attrs

from luce.actors.submission import Submission, prefix_keys
from luce.engines.loaded import LoadedModel
from luce.errors import RequestError, quoted
from luce.http.json_body import decode_object, typed
from luce.http.openai.answer_form import AnswerForm, answer_form, offered_tools
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.images import picture_bytes
from luce.http.openai.room import (
    answer_room,
    body_limits,
    refuse_hopeless,
    refuse_too_large,
    refuse_too_much_text,
)
from luce.http.openai.unsupported import refuse_unsupported
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams, parse_logit_bias
from luce.text.messages import normalise

__all__ = ["ChatJob", "check_model", "prepare_chat"]

T = TypeVar("T")

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_TIMEOUT = 86_400.0
"""Seconds."""


@attrs.frozen(eq=False)
class ChatJob:
    """A chat request, ready to submit, and how its answer is to be written."""

    submission: Submission
    created: int
    """Unix seconds."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    form: AnswerForm
    top_logprobs: int | None
    """Alternatives to show for each token; None: no log-probabilities."""


def prepare_chat(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> ChatJob:
    """Read, check and prepare one body of POST /v1/chat/completions.

    Raises:
        RequestError: names the field at fault.
    """
    context = model.engine.capabilities.max_context
    raw = decode_object(body, limits=body_limits(context))
    request = typed(raw, ChatRequest)
    check_model(request.model, model, options)
    refuse_unsupported(request)
    refuse_too_much_text(raw, context)
    conversation = normalise(raw["messages"])
    field, wanted = _wanted_tokens(request)
    params = _sampling(request, model)
    params.validate(model.tokenizer.num_token_ids)
    stop = _stop_strings(request.stop)
    timeout = _timeout(request.timeout)

    refuse_hopeless(conversation.messages, model.tokenizer, context)
    references = conversation.images
    if references and not model.engine.capabilities.images:
        raise RequestError(f"the model {model.name} does not read pictures", field=references[0].field)
    files = picture_bytes(references, options.max_images, options.max_image_bytes)
    named = [(file, reference.field) for file, reference in zip(files, references, strict=True)]
    refuse_too_large(sum(model.preparer.image_tokens(file, field=place) for file, place in named), context)
    images = tuple(model.preparer.prepare_image(file, field=place) for file, place in named)
    tools = offered_tools(request, raw)
    prompt = model.preparer.build(
        conversation.messages,
        images,
        tools=tools,
        template_kwargs=request.chat_template_kwargs,
    )
    room = answer_room(len(prompt.token_ids), wanted, field, context)
    params = attrs.evolve(params, max_tokens=room).with_seed()
    params.validate(model.tokenizer.num_token_ids)
    stream = request.stream_options
    form = answer_form(request, tools, prompt)
    submission = Submission(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        prompt=prompt,
        images=images,
        params=params,
        stop=stop,
        include_stop=_or(request.include_stop_str_in_output, False),
        stop_in_reasoning=not form.split,
        skip_special_tokens=_or(request.skip_special_tokens, True),
        timeout=timeout,
    )
    return ChatJob(
        submission=attrs.evolve(submission, keys=prefix_keys(submission, model.engine.capabilities)),
        created=int(time.time()),
        stream=_or(request.stream, False),
        include_usage=stream is not None and _or(stream.include_usage, False),
        continuous_usage=stream is not None and _or(stream.continuous_usage_stats, False),
        form=form,
        top_logprobs=params.logprobs,
    )


def check_model(name: str | None, model: LoadedModel, options: HttpOptions) -> None:
    """Raises RequestError (404) when a request names a model that is not served here."""
    if name is not None and name != model.name and name not in options.aliases:
        raise RequestError(
            f"the model {quoted(name)} is not served here; this server has {model.name!r}",
            field="model",
            status=404,
            code="model_not_found",
        )


def _wanted_tokens(request: ChatRequest) -> tuple[str, int | None]:
    """(field, value) of the answer's limit; OpenAI renamed max_tokens to max_completion_tokens."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens ({quoted(old)}) and max_completion_tokens ({quoted(new)}) differ; send one of them",
            field="max_tokens",
        )
    field, value = ("max_tokens", old) if new is None else ("max_completion_tokens", new)
    if value is not None and value < 1:
        raise RequestError(f"{field} must be at least 1, not {quoted(value)}", field=field)
    if request.min_tokens is not None and value is not None and request.min_tokens > value:
        raise RequestError(
            f"min_tokens must be at most {field} ({quoted(value)}), not {quoted(request.min_tokens)}",
            field="min_tokens",
        )
    return field, value


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
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=parse_logit_bias(request.logit_bias or {}),
        seed=request.seed,
        min_tokens=_or(request.min_tokens, 0),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=_or(request.ignore_eos, False),
        eos_token_ids=model.eos_token_ids,
        logprobs=_or(request.top_logprobs, 0) if request.logprobs else None,
    )


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop holds {len(stops)} strings; at most {MAX_STOPS} are taken", field="stop")
    for text in stops:
        if not text:
            raise RequestError("stop must not hold an empty string", field="stop")
        if len(text) > MAX_STOP_LENGTH:
            raise RequestError(f"a stop string has at most {MAX_STOP_LENGTH} characters", field="stop")
    return stops


def _timeout(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds <= MAX_TIMEOUT:
        raise RequestError(
            f"timeout must be a number of seconds above 0 and at most {MAX_TIMEOUT:,.0f}, not {quoted(seconds)}",
            field="timeout",
        )
    return seconds


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
