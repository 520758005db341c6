"""Every field's range, named in the error; the seed rules (B81) and the logit_bias rules (B86)."""

import math
from typing import Any

import attrs
import pytest

from luce.errors import RequestError
from luce.sampling.parameters import SamplingParams, parse_logit_bias

VOCAB = 100
NAN, INF = math.nan, math.inf

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 100},
    {"temperature": 1e-30},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"min_p": 0},
    {"min_p": 1.0},
    {"top_k": -1},
    {"top_k": 0},
    {"top_k": 10**9},
    {"repetition_penalty": 0.01},
    {"presence_penalty": -2},
    {"frequency_penalty": 2.0},
    {"seed": 0},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1},
    {"min_tokens": 5, "max_tokens": 5},
    {"logprobs": 0},
    {"logprobs": 20},
    {"logit_bias": {0: -100, 99: 100.0}},
    {"stop_token_ids": (0, 99)},
]

REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(
        ("temperature", {"temperature": value})
        for value in (-0.1, 100.1, NAN, INF, -INF, True, "1", None, 10**400)
    ),
    *(("top_p", {"top_p": value}) for value in (0, 0.0, -1, 1.0001, NAN, INF, "x")),
    *(("min_p", {"min_p": value}) for value in (-0.01, 1.01, NAN)),
    *(("top_k", {"top_k": value}) for value in (-2, 1.5, True, "5")),
    *(("repetition_penalty", {"repetition_penalty": value}) for value in (0, -1, 101, NAN, INF)),
    *(("presence_penalty", {"presence_penalty": value}) for value in (-2.1, 2.1, NAN)),
    *(("frequency_penalty", {"frequency_penalty": value}) for value in (-2.1, 2.1, INF)),
    *(("seed", {"seed": value}) for value in (2**63, -(2**63) - 1, 1.0, True, "0", 10**5000)),
    *(("top_logprobs", {"logprobs": value}) for value in (-1, 21, 2.0, True)),
    *(("max_tokens", {"max_tokens": value}) for value in (0, -1, 1.5)),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 6, "max_tokens": 5}),
    *(("stop_token_ids", {"stop_token_ids": (value,)}) for value in (-1, VOCAB, 10**12, 1.0, True)),
    ("stop_token_ids", {"stop_token_ids": tuple(range(99)), "eos_token_ids": (99,), "min_tokens": 1}),
    *(
        ("logit_bias", {"logit_bias": {value: 1.0}})
        for value in (-1, VOCAB, 10**12, 10**5000, 3.5, "5", True)
    ),
    *(("logit_bias", {"logit_bias": {1: value}}) for value in (NAN, INF, -INF, 1e9, 100.5, -101, None, "x")),
    ("logit_bias", {"logit_bias": ((1, 0.5), (1, 0.5))}),
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_accepted(fields: dict[str, Any]) -> None:
    SamplingParams(**fields).validate(VOCAB)


@pytest.mark.parametrize(("field", "fields"), REFUSED)
def test_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**fields).validate(VOCAB)
    assert caught.value.field == field
    assert caught.value.status == 400
    assert field in caught.value.message or field == "top_logprobs"
    assert len(caught.value.message) < 200


def test_padded_vocabulary_is_not_addressable() -> None:
    """An id that the model's output has but the tokenizer does not is refused (B86)."""
    params = SamplingParams(logit_bias={VOCAB: 1.0})
    params.validate(VOCAB + 28)  # armed: with the padded width it would pass
    with pytest.raises(RequestError, match="outside the vocabulary of 100 ids"):
        params.validate(VOCAB)


def test_logit_bias_json_keys() -> None:
    assert parse_logit_bias({"5": 1, "99": -2.5}) == ((5, 1), (99, -2.5))
    assert parse_logit_bias({"-1": 1}) == ((-1, 1),)  # its range is validate's business
    for key in ("abc", "3.5", "", "-", "1e3", "٣", " 5", "1" * 30, "0x1"):
        with pytest.raises(RequestError) as caught:
            parse_logit_bias({key: 1.0})
        assert caught.value.field == "logit_bias"


def test_the_same_token_under_two_spellings_is_refused() -> None:
    with pytest.raises(RequestError, match="twice"):
        SamplingParams(logit_bias=parse_logit_bias({"5": 1.0, "05": 2.0})).validate(VOCAB)


def test_zero_is_a_seed() -> None:
    drawn: list[int] = []

    def draw() -> int:
        drawn.append(77)
        return 77

    assert SamplingParams(seed=0).with_seed(draw).seed == 0
    assert drawn == []
    resolved = SamplingParams().with_seed(draw)
    assert resolved.seed == 77
    assert resolved.with_seed(draw) is resolved
    assert drawn == [77]


def test_drawn_seeds_are_valid_and_differ() -> None:
    resolved = [SamplingParams().with_seed() for _ in range(50)]
    for params in resolved:
        params.validate(VOCAB)
    assert len({params.seed for params in resolved}) == 50


def test_choices_have_their_own_seeds() -> None:
    params = SamplingParams(seed=0, top_k=5)
    choices = [params.for_choice(index) for index in range(4)]
    assert choices[0] == params
    assert len({choice.seed for choice in choices}) == 4
    for choice in choices:
        choice.validate(VOCAB)
        assert choice.top_k == 5


def test_values_are_immutable_and_hashable() -> None:
    params = SamplingParams(logit_bias={3: 1.0}, stop_token_ids=[1, 2])
    assert params.logit_bias == ((3, 1.0),)
    assert params.stop_token_ids == (1, 2)
    assert hash(params) == hash(SamplingParams(logit_bias=[(3, 1.0)], stop_token_ids=(1, 2)))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        params.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [({"temperature": 0}, True), ({"temperature": 1e-30}, True), ({"top_k": 1}, True), ({"min_p": 1.0}, True),
     ({}, False), ({"temperature": 1e-4}, False), ({"top_k": 2}, False), ({"top_k": -1}, False)],
)  # fmt: skip
def test_greedy(fields: dict[str, Any], greedy: bool) -> None:
    assert SamplingParams(**fields).greedy is greedy
