"""The fields that chat completions and completions share, as typed values. Explicit null means absent."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct

from luce.engines.loaded import LoadedModel
from luce.http.openai.form_fields import FormFields
from luce.sampling.parameters import SamplingParams, parse_logit_bias

__all__ = ["GenerationFields", "StreamOptions", "Strict", "or_else", "sampling_params"]

T = TypeVar("T")


class Strict(Struct, forbid_unknown_fields=True, frozen=True):
    """An object in which any other field is refused by name."""


class StreamOptions(Strict, frozen=True):
    include_usage: bool | None = None
    """One more chunk before the end, with ``usage`` and no choices."""
    continuous_usage_stats: bool | None = None
    """``usage`` so far in every chunk."""
    include_obfuscation: Literal[False] | None = None


class GenerationFields(FormFields, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    """Answers to the same prompt."""
    best_of: int | None = None
    """As many as ``n``, if anything."""

    max_tokens: int | None = None
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

    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    """Requests of different salts share no cached prefix, so that none can tell what another one has asked."""
    request_id: Annotated[str, Meta(extra_json_schema={"pattern": "^[!-~]{1,128}$"})] | None = None
    """As the header ``x-request-id``, before which it goes."""

    # Taken and of no effect on the answer.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    add_special_tokens: bool | None = None
    """The family has no token that every prompt begins with."""
    spaces_between_special_tokens: bool | None = None
    """Decoding is by bytes: nothing is put between tokens."""


def sampling_params(request: GenerationFields, model: LoadedModel, logprobs: int | None) -> SamplingParams:
    """What a request says about sampling, the model's defaults in the gaps. Ranges are not looked at.

    Raises:
        RequestError: a key of ``logit_bias`` is no token id.
    """
    defaults = model.defaults
    return SamplingParams(
        temperature=or_else(request.temperature, defaults.temperature),
        top_k=or_else(request.top_k, defaults.top_k),
        top_p=or_else(request.top_p, defaults.top_p),
        min_p=or_else(request.min_p, defaults.min_p),
        repetition_penalty=or_else(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=or_else(request.presence_penalty, defaults.presence_penalty),
        frequency_penalty=or_else(request.frequency_penalty, defaults.frequency_penalty),
        logit_bias=parse_logit_bias(request.logit_bias or {}),
        seed=request.seed,
        min_tokens=or_else(request.min_tokens, 0),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=or_else(request.ignore_eos, False),
        eos_token_ids=model.eos_token_ids,
        logprobs=logprobs,
    )


def or_else(value: T | None, default: T) -> T:
    return default if value is None else value
