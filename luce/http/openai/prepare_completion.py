"""From a body of POST /v1/completions to jobs, one for each prompt."""

from __future__ import annotations

import attrs

from luce.constraints.wish import ConstraintWish
from luce.engines.loaded import LoadedModel
from luce.errors import RequestError, quoted
from luce.http.answering.prepare import Job, check_model, prepare, read_request
from luce.http.answering.room import refuse_hopeless_text
from luce.http.answering.token_ids import check_ids
from luce.http.answering.wish import (
    Limit,
    WholePrompt,
    Wish,
    checked_choices,
    checked_request_id,
    checked_stops,
    checked_timeout,
)
from luce.http.openai.completion_request import CompletionRequest, read_prompts
from luce.http.openai.form_fields import text_form
from luce.http.openai.generation_fields import or_else, sampling_params
from luce.http.openai.unsupported import COMPLETION, check_best_of, check_stream_options
from luce.http.options import HttpOptions
from luce.sampling.parameters import MAX_LOGPROBS
from luce.text.tokenizer import Tokenizer

__all__ = ["CompletionJob", "prepare_completion"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, and vLLM's."""


@attrs.frozen(eq=False)
class CompletionJob:
    """A request for completions, ready to submit, and how its answers are to be written."""

    jobs: tuple[Job, ...]
    """By prompt."""
    echoes: tuple[str, ...]
    """What the answers to each prompt begin with."""
    stream: bool
    include_usage: bool
    continuous_usage: bool


def prepare_completion(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> CompletionJob:
    """Read, check and prepare one body of POST /v1/completions.

    Raises:
        RequestError: names the field at fault.
    """
    request, _ = read_request(body, CompletionRequest, model, COMPLETION, texts=("prompt",))
    check_model(request.model, model, options)
    check_best_of(request)
    check_stream_options(request)
    _check_logprobs(request)
    stream, context = request.stream_options, model.engine.capabilities.max_context
    wish = Wish(
        conversation=WholePrompt((), "prompt"),
        params=sampling_params(request, model, request.logprobs).with_seed(),  # one for all prompts
        n=checked_choices(request.n, options.max_choices),
        limit=Limit("max_tokens", request.max_tokens, default=DEFAULT_MAX_TOKENS),
        split_reasoning=False,
        form=ConstraintWish(text_form(request)),
        stop=checked_stops(request.stop),
        include_stop=or_else(request.include_stop_str_in_output, False),
        skip_special_tokens=or_else(request.skip_special_tokens, True),
        timeout=checked_timeout(request.timeout),
        cache_salt=request.cache_salt or "",
        request_id=checked_request_id(request.request_id),
    )
    special = or_else(request.parse_special, True)
    jobs, echoes = [], []
    for field, prompt in read_prompts(request.prompt):
        ids = _ids(prompt, model.tokenizer, context, special=special, field=field)
        jobs.append(
            prepare(attrs.evolve(wish, conversation=WholePrompt(ids, field)), model, options, prefix="cmpl-")
        )
        if request.echo:
            echoes.append(
                prompt if isinstance(prompt, str) else model.tokenizer.decode(ids, skip_special=False)
            )
        else:
            echoes.append("")
    return CompletionJob(
        jobs=tuple(jobs),
        echoes=tuple(echoes),
        stream=or_else(request.stream, False),
        include_usage=stream is not None and or_else(stream.include_usage, False),
        continuous_usage=stream is not None and or_else(stream.continuous_usage_stats, False),
    )


def _ids(
    prompt: str | list[int], tokenizer: Tokenizer, context: int, *, special: bool, field: str
) -> list[int]:
    if isinstance(prompt, str):
        refuse_hopeless_text(prompt, tokenizer, context, field)
        encode = tokenizer.encode_prompt if special else tokenizer.encode_text
        ids = encode(prompt, field=field)
    else:
        ids = prompt
        check_ids(ids, tokenizer, field)
    if not ids:
        raise RequestError(f"{field} must not be empty: the model needs at least one token", field=field)
    return ids


def _check_logprobs(request: CompletionRequest) -> None:
    count = request.logprobs
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise RequestError(
            f"logprobs must be from 0 to {MAX_LOGPROBS}, not {quoted(count)}", field="logprobs"
        )
    if count is not None and request.echo:
        raise RequestError(
            "logprobs with echo is not supported: log-probabilities are those of the answer, not of the prompt",
            field="echo",
            code="unsupported_value",
        )
