"""The sampler: pipeline, masks, log-probabilities, and reported faults B81, B83, B86, B87."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from luce.errors import DeviceError
from luce.sampling.masks import mask_of
from luce.sampling.parameters import SamplingParams
from luce.sampling.philox import gumbel
from luce.sampling.sampler import NonFiniteLogitsError, Sampler

PROMPT = np.array([5, 5, 7], np.int32)
VOCAB = 12
Logits = npt.NDArray[np.float32]


def logits(*values: float) -> Logits:
    row = np.full(VOCAB, -20.0, np.float32)
    row[: len(values)] = values
    return row


def noisy(seed: int, size: int = VOCAB) -> Logits:
    return np.random.default_rng(seed).normal(0, 1.5, size).astype(np.float32)


def make(vocab: int = VOCAB, **fields: Any) -> Sampler:
    return Sampler(SamplingParams(**{"seed": 0} | fields), PROMPT, vocab)


def first(row: Logits, **fields: Any) -> int:
    return make(**fields).sample(row, len(PROMPT)).token


def answer(rows: list[Logits], **fields: Any) -> list[int]:
    sampler = make(len(rows[0]), **fields)
    return [sampler.sample(row, len(PROMPT) + index).token for index, row in enumerate(rows)]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    row = logits(1, 3, 3, 2)
    plain: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.5}, {"logit_bias": {0: 1.0}}]
    for fields in plain:
        assert first(row, temperature=0, **fields) == 1


def test_logits_are_not_modified() -> None:
    row = noisy(4)
    before = row.copy()
    row.flags.writeable = False
    fields = {"logit_bias": {1: -5.0}, "repetition_penalty": 2.0, "min_tokens": 1, "stop_token_ids": (1,)}
    make(**fields, temperature=0.5, top_p=0.9, logprobs=3).sample(row, 3)
    assert row.tolist() == before.tolist()


def test_the_draw_by_hand() -> None:
    row = noisy(1)
    expected = int((row.astype(np.float64) / 0.7 + gumbel(9, 3, np.arange(VOCAB))).argmax())
    assert first(row, temperature=0.7, seed=9) == expected
    assert expected != int(row.argmax())  # armed: the noise decides


def test_top_k_restricts_the_set_and_keeps_each_tokens_own_noise() -> None:
    row = noisy(2)
    ids = np.sort(np.argsort(-row)[:3])
    for seed in range(50):
        score = row[ids].astype(np.float64) + gumbel(seed, 3, np.arange(VOCAB))[ids]
        assert first(row, seed=seed, top_k=3) == int(ids[score.argmax()])


def test_penalties_change_the_choice_b83() -> None:
    """Token 5 is in the prompt only: presence must not touch it, repetition must."""
    row = logits(0, 0, 0, 0, 2.2, 3.0)
    assert first(row, temperature=0, presence_penalty=2.0, frequency_penalty=2.0) == 5
    assert first(row, temperature=0, repetition_penalty=1.5) == 4
    sampler = make(temperature=0, presence_penalty=1.0)
    assert [sampler.sample(row, position).token for position in (3, 4, 5)] == [5, 4, 5]


def test_a_bias_comes_before_the_penalties() -> None:
    """(1 + 3) / 2 = 2 loses to 2.2; penalised first it would be 1 / 2 + 3 = 3.5."""
    row = logits(0, 0, 0, 0, 2.2, 1.0)
    assert first(row, temperature=0, logit_bias={5: 3.0}) == 5
    assert first(row, temperature=0, logit_bias={5: 3.0}, repetition_penalty=2.0) == 4


def test_min_tokens_masks_eos_and_stop_ids_until_then() -> None:
    rows = [logits(1, 9, 8, 2)] * 4
    fields: dict[str, Any] = {"temperature": 0, "eos_token_ids": (1,), "stop_token_ids": (2,)}
    assert answer(rows, **fields) == [1, 1, 1, 1]  # armed
    assert answer(rows, **fields, min_tokens=2) == [3, 3, 1, 1]
    assert answer(rows, **fields, min_tokens=2, logit_bias={1: 100.0}) == [3, 3, 1, 1]
    assert answer(rows, **fields, ignore_eos=True) == [1, 1, 1, 1]  # nothing is masked by ignore_eos
    sampled = fields | {"temperature": 1.0}
    for seed in range(30):
        assert not {1, 2} & set(answer(rows[:2], **sampled, min_tokens=2, seed=seed))


def test_padded_tail_is_never_sampled_b86() -> None:
    row = np.concatenate([noisy(3), np.array([50.0, np.nan, np.inf], np.float32)])
    assert int(row[: VOCAB + 1].argmax()) == VOCAB  # armed: the padding would win
    sampler = make(temperature=0, logprobs=20)
    sampled = sampler.sample(row, 3)
    assert sampled.token == int(row[:VOCAB].argmax())
    assert [token for token, _ in sampled.top] == np.argsort(-row[:VOCAB]).tolist()
    for seed in range(100):
        assert make(temperature=5.0, seed=seed).sample(row, 3).token < VOCAB


def test_seed_zero_is_a_seed_b81() -> None:
    rows = [noisy(index, 300) for index in range(12)]
    zero = answer(rows, seed=0)
    assert zero == answer(rows, seed=0) == answer(rows, seed=0)
    distinct = [tuple(answer(rows, seed=seed)) for seed in (0, 1, -1, 2**63 - 1, -(2**63), 2**32)]
    assert len(set(distinct)) == len(distinct)
    unresolved = SamplingParams()
    with pytest.raises(AssertionError):
        Sampler(unresolved, PROMPT, VOCAB)


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-4}, {"temperature": 1e-6}, {"temperature": 1e-30}, {"temperature": 5e-324},
    {"top_p": 1e-9}, {"top_p": 5e-324}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 0, "top_k": 10**9},
    {"temperature": 100.0, "top_p": 1e-9}, {"temperature": 1e-4, "min_p": 0.5, "top_k": 10**9, "top_p": 0.9},
]  # fmt: skip


@pytest.mark.parametrize("fields", EXTREMES)
def test_extreme_parameters_are_greedy_b87(fields: dict[str, Any]) -> None:
    rows = [noisy(index, 300) for index in range(20)]
    greedy = [int(row.argmax()) for row in rows]
    assert answer(rows, seed=5) != greedy  # armed
    with np.errstate(all="raise", under="ignore"):
        assert answer(rows, seed=5, **fields) == greedy


@pytest.mark.parametrize("fields", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-30}])
def test_extreme_parameters_break_ties_like_greedy(fields: dict[str, Any]) -> None:
    row = logits(1, 3, 3, 3)
    assert {first(row, seed=seed) for seed in range(60)} >= {1, 2, 3}  # armed
    assert {first(row, seed=seed, **fields) for seed in range(60)} == {1}


@pytest.mark.parametrize("temperature", [1e-4, 0.5, 2.0, 100.0])
def test_extreme_logits_stay_finite_b87(temperature: float) -> None:
    biggest = float(np.finfo(np.float32).max)
    row = logits(biggest, -biggest, biggest, 0.0)
    fields = {"temperature": temperature, "repetition_penalty": 100.0, "logit_bias": {0: 100.0, 1: -100.0}}
    with np.errstate(all="raise", under="ignore"):
        seen = {
            make(**fields, top_p=top_p, seed=seed, logprobs=5).sample(row, 3)
            for seed in range(20)
            for top_p in (1.0, 0.5)
        }
    assert {sampled.token for sampled in seen} <= {0, 2}
    for sampled in seen:
        assert all(math.isfinite(value) for _, value in sampled.top)


def test_non_finite_logits_are_a_typed_error_and_change_nothing() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        for fields in ({"temperature": 0}, {}, {"top_k": 3}):
            sampler = make(**fields)
            token = sampler.sample(noisy(1), 3).token
            row = noisy(2)
            row[4] = bad
            with pytest.raises(NonFiniteLogitsError, match=r"position 4 .* 1 of 12") as caught:
                sampler.sample(row, 4)
            assert isinstance(caught.value, DeviceError)
            assert sampler.generated == (token,)


def test_logprobs_are_of_the_unprocessed_logits() -> None:
    row = logits(0, math.log(2), math.log(5))
    row[3:] = -1000.0
    fields = {"logit_bias": {0: 50.0}, "temperature": 0, "repetition_penalty": 3.0}
    sampled = make(**fields, logprobs=2).sample(row, 3)
    assert sampled.token == 0
    assert sampled.logprob == pytest.approx(math.log(1 / 8), abs=1e-6)
    assert [token for token, _ in sampled.top] == [2, 1]
    assert [value for _, value in sampled.top] == pytest.approx([math.log(5 / 8), math.log(2 / 8)], abs=1e-6)


def test_logprobs_off_zero_and_ties() -> None:
    row = logits(1, 3, 3, 3)
    assert make(temperature=0).sample(row, 3).logprob is None
    chosen = make(temperature=0, logprobs=0).sample(row, 3)
    assert chosen.logprob is not None
    assert chosen.top == ()
    top = make(temperature=0, logprobs=2).sample(row, 3).top
    assert [token for token, _ in top] == [1, 2]
    assert top[0][1] == chosen.logprob


def test_a_rows_bits_do_not_depend_on_its_neighbours() -> None:
    """The same row alone, in a batch beside NaN rows, and strided."""
    row = noisy(8, 501)
    batch = np.full((9, 600), np.nan, np.float32)
    fields: dict[str, Any] = {"top_p": 0.9, "logprobs": 20, "repetition_penalty": 1.3, "temperature": 0.9}
    for seed in range(10):
        alone = make(501, seed=seed, **fields).sample(row, 3)
        for place in range(9):
            batch[:] = np.nan
            batch[place, :501] = row
            assert make(501, seed=seed, **fields).sample(batch[place], 3) == alone
        columns = np.asfortranarray(batch)
        columns[4, :501] = row
        assert not columns[4].flags.c_contiguous
        assert make(501, seed=seed, **fields).sample(columns[4], 3) == alone


def held(ids: list[int], row: Logits, **fields: Any) -> int:
    return make(**fields).sample(row, len(PROMPT), mask_of(ids, VOCAB)).token


def test_only_what_the_mask_allows_is_chosen() -> None:
    for seed in range(40):
        row = noisy(seed)
        best = int(row.argmax())
        others = [index for index in range(VOCAB) if index != best and index % 2]
        assert held(others, row, temperature=0) == max(others, key=lambda index: row[index])
        hard: list[dict[str, Any]] = [
            {"temperature": 1.0},
            {"temperature": 2.0, "top_k": 1},
            {"temperature": 0.7, "top_p": 0.1},
            {"temperature": 1.0, "min_p": 1.0},
            {"temperature": 1.0, "logit_bias": {best: 100.0}, "repetition_penalty": 3.0},
        ]
        for fields in hard:
            assert held(others, row, seed=seed, **fields) in others


def test_a_mask_of_everything_changes_nothing() -> None:
    for seed in range(20):
        row = noisy(seed)
        for fields in ({"temperature": 0}, {"temperature": 1.3, "top_k": 5, "top_p": 0.8}):
            assert held(list(range(VOCAB)), row, seed=seed, **fields) == first(row, seed=seed, **fields)


def test_the_draw_among_allowed_ones_is_theirs_without_the_mask() -> None:
    """A mask takes tokens out and moves nobody's noise."""
    row, ids = noisy(3), [0, 3, 4, 9]
    for seed in range(30):
        score = row[ids].astype(np.float64) + gumbel(seed, 3, np.arange(VOCAB))[ids]
        assert held(ids, row, seed=seed) == ids[int(score.argmax())]


def test_log_probabilities_do_not_see_the_mask() -> None:
    row = noisy(5)
    best = int(row.argmax())
    other = (best + 1) % VOCAB
    free = make(temperature=0, logprobs=3).sample(row, 3)
    token = make(temperature=0, logprobs=3).sample(row, 3, mask_of([other], VOCAB))
    assert token.token == other and token.top == free.top
    assert token.logprob == pytest.approx(float(row[other]) - np.log(np.exp(row.astype(float)).sum()))


def test_a_form_that_is_complete_comes_before_min_tokens() -> None:
    row, fields = noisy(6), {"min_tokens": 5, "eos_token_ids": (2,), "stop_token_ids": (7,), "temperature": 0}
    assert held([2], row, **fields) == 2
    assert held([2, 7], row, **fields) in (2, 7)
    row[2] = 50.0
    assert held([2, 4], row, **fields) == 4, "while anything else may come, it holds"


def test_masks_that_allow_nothing_or_do_not_fit_fail_the_row() -> None:
    sampler = make(temperature=0)
    with pytest.raises(DeviceError, match="allows no token"):
        sampler.sample(noisy(1), 3, np.zeros(1, np.uint32))
    with pytest.raises(DeviceError, match="2 words does not fit 12"):
        sampler.sample(noisy(1), 3, np.ones(2, np.uint32))
    beyond = np.array([1 << 20], np.uint32)  # past the tokenizer's ids
    with pytest.raises(DeviceError, match="allows no token"):
        sampler.sample(noisy(1), 3, beyond)
    assert sampler.generated == ()
