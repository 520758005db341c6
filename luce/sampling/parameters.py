"""Sampling parameters of one request: an immutable value with every limit checked in one place.

Names, defaults and ranges follow vLLM's documented ``SamplingParams``, which the OpenAI fields map onto.
Nothing here is clamped: a value out of range is a :class:`RequestError` that names the request field.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping

import attrs

from luce.errors import RequestError
from luce.sampling.philox import derived_seed

__all__ = ["GREEDY_BELOW", "MAX_LOGPROBS", "SamplingParams", "parse_logit_bias"]

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: the limit of the softmax, with ties going to the lowest id."""
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 100.0
_INT64 = range(-(2**63), 2**63)


def _pairs(
    value: Mapping[int, float] | Iterable[tuple[int, float]],
) -> tuple[tuple[int, float], ...]:
    items = value.items() if isinstance(value, Mapping) else value
    return tuple((token, bias) for token, bias in items)


def _ids(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


def _random_seed() -> int:
    return secrets.randbits(63)


@attrs.frozen
class SamplingParams:
    """How the tokens of one request are chosen; :class:`luce.sampling.sampler.Sampler` does the work."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 and -1 keep all."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Drop tokens less likely than ``min_p`` times the most likely one."""
    repetition_penalty: float = 1.0
    """Over prompt and generated tokens; 1 is off."""
    presence_penalty: float = 0.0
    """Over generated tokens only, like ``frequency_penalty``."""
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_pairs)
    """(token id, value added to its logit), one entry a token. A mapping is accepted."""
    seed: int | None = None
    """Any signed 64-bit integer, 0 included; None until :meth:`with_seed`."""
    min_tokens: int = 0
    """End-of-sequence and stop ids cannot be sampled before so many tokens were generated."""
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_ids)
    ignore_eos: bool = False
    """An end-of-sequence token does not end the answer. It is not masked."""
    eos_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_ids)
    """The model's, set by the server."""
    max_tokens: int | None = None
    """Most generated tokens; None is up to the end of the context."""
    logprobs: int | None = None
    """None: no log-probabilities. n: those of the chosen token and of the n most likely (0..20)."""

    @property
    def greedy(self) -> bool:
        """True when no noise takes part, by temperature or because only the most likely token survives."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.min_p >= 1.0

    @property
    def penalises(self) -> bool:
        """True when earlier tokens take part, by any of the three penalties."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def with_seed(self, draw: Callable[[], int] = _random_seed) -> SamplingParams:
        """These parameters with a seed: the caller's own if there is one (0 is one), else one drawn now."""
        return self if self.seed is not None else attrs.evolve(self, seed=draw())

    def for_choice(self, index: int) -> SamplingParams:
        """The parameters of choice ``index`` of a request for several; choice 0 is what a lone one gets."""
        assert self.seed is not None, "resolve the seed with with_seed() first"
        return attrs.evolve(self, seed=derived_seed(self.seed, index))

    def validate(self, vocab_size: int) -> None:
        """Check every field against its range.

        ``vocab_size`` is the tokenizer's number of ids, not the padded width of the model's output.

        Raises:
            RequestError: names the first field that is out of range and says what is accepted.
        """
        _number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, MAX_REPETITION_PENALTY, open_low=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _integer("top_k", self.top_k, -1, None, "use 0 or -1 to keep all tokens")
        if self.seed is not None:
            _integer("seed", self.seed, _INT64.start, _INT64.stop - 1, "a signed 64-bit integer")
        if self.logprobs is not None:
            _integer("top_logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None)
        _integer("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), not {self.min_tokens}",
                field="min_tokens",
            )
        self._validate_ids(vocab_size)

    def _validate_ids(self, vocab_size: int) -> None:
        for token in self.stop_token_ids:
            _token("stop_token_ids", token, vocab_size)
        if self.min_tokens and len({*self.stop_token_ids, *self.eos_token_ids}) >= vocab_size:
            raise RequestError(
                "stop_token_ids with min_tokens must leave a token that may be sampled",
                field="stop_token_ids",
            )
        seen: set[int] = set()
        for token, bias in self.logit_bias:
            _token("logit_bias", token, vocab_size)
            _number("logit_bias", bias, -100.0, 100.0, what=f"logit_bias of token {token}")
            if token in seen:
                raise RequestError(f"logit_bias names token {token} twice", field="logit_bias")
            seen.add(token)


def parse_logit_bias(value: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """The OpenAI form of ``logit_bias``, a JSON object keyed by decimal token ids, as pairs.

    Ranges are left to :meth:`SamplingParams.validate`.

    Raises:
        RequestError: a key is not a decimal integer.
    """
    pairs: list[tuple[int, float]] = []
    for key, bias in value.items():
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise RequestError(f"logit_bias keys must be token ids, not {key[:40]!r}", field="logit_bias")
        pairs.append((int(key), bias))
    return tuple(pairs)


def _number(
    field: str, value: float, low: float, high: float, *, open_low: bool = False, what: str | None = None
) -> None:
    name = what or field
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, not {type(value).__name__}", field=field)
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside or not math.isfinite(value):
        span = f"greater than {low:g} and at most {high:g}" if open_low else f"from {low:g} to {high:g}"
        raise RequestError(f"{name} must be {span}, not {_shown(value)}", field=field)


def _integer(field: str, value: int, low: int, high: int | None, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{field} must be an integer, not {type(value).__name__}", field=field)
    if value < low or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(
            f"{field} must be {span}, not {_shown(value)}{f' ({hint})' if hint else ''}", field=field
        )


def _token(field: str, token: int, vocab_size: int) -> None:
    if isinstance(token, bool) or not isinstance(token, int):
        raise RequestError(f"{field} must hold token ids, not {type(token).__name__}", field=field)
    if not 0 <= token < vocab_size:
        raise RequestError(
            f"{field}: token id {_shown(token)} is outside the vocabulary of {vocab_size} ids", field=field
        )


def _shown(value: float) -> str:
    """A number for a message; an absurdly long integer is not printed in full."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "an integer of more than 20 digits"
    return f"{value:g}"
