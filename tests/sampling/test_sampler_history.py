"""History by position: the commit rule, resuming, and draws that depend on no earlier call."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.sampling.parameters import SamplingParams
from luce.sampling.sampler import Sampler

VOCAB = 30
PROMPT = np.array([3, 1, 4, 1, 5], np.int32)
START = len(PROMPT)
PARAMS = SamplingParams(
    seed=12, temperature=1.3, top_p=0.95, repetition_penalty=1.4, presence_penalty=2.0, frequency_penalty=0.4,
    min_tokens=3, stop_token_ids=(0, 1), logprobs=2,
)  # fmt: skip


def logits(position: int, salt: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng((position, salt)).normal(0, 2, VOCAB).astype(np.float32)


def straight(count: int, params: SamplingParams = PARAMS) -> list[int]:
    sampler = Sampler(params, PROMPT, VOCAB)
    return [sampler.sample(logits(START + index), START + index).token for index in range(count)]


@given(
    st.lists(st.tuples(st.sampled_from(["sample", "truncate", "record"]), st.integers(0, 12)), max_size=40)
)
def test_any_history_of_calls_gives_the_straight_answer(steps: list[tuple[str, int]]) -> None:
    """After any drafts, truncations and re-samplings, the next draws equal those of a fresh sampler."""
    sampler, model = Sampler(PARAMS, PROMPT, VOCAB), list[int]()
    for operation, argument in steps:
        index = min(argument, len(model))
        position = START + index
        if operation == "truncate":
            sampler.truncate(position)
            del model[index:]
        elif operation == "record":  # a wrong draft
            sampler.record(argument, position)
            model[index:] = [argument]
        else:
            fresh = Sampler(PARAMS, PROMPT, VOCAB, generated=model[:index])
            expected = fresh.sample(logits(position, argument), position)
            assert sampler.sample(logits(position, argument), position) == expected
            model[index:] = [expected.token]
        assert sampler.generated == tuple(model)
    sampler.truncate(0)
    assert [sampler.sample(logits(START + i), START + i).token for i in range(8)] == straight(8)


def test_sampling_a_position_again_replaces_it() -> None:
    sampler = Sampler(PARAMS, PROMPT, VOCAB)
    tokens = [sampler.sample(logits(START + index), START + index) for index in range(6)]
    again = sampler.sample(logits(START + 2), START + 2)
    assert again == tokens[2]
    assert len(sampler.generated) == 3
    row = logits(START + 2)
    row[again.token] = -50.0
    other = sampler.sample(row, START + 2)
    assert other.token != again.token
    assert sampler.generated[-1] == other.token


def test_resumed_tokens_count_as_generated() -> None:
    """Prompt and answer so far, reopened: same continuation. Taken for prompt it would differ (armed)."""
    whole = straight(12)
    for cut in range(1, 12):
        resumed = Sampler(PARAMS, PROMPT, VOCAB, generated=whole[:cut])
        rest = [resumed.sample(logits(START + i), START + i).token for i in range(cut, 12)]
        assert whole[:cut] + rest == whole
    cut = 5
    wrong = Sampler(PARAMS, np.concatenate([PROMPT, np.array(whole[:cut], np.int32)]), VOCAB)
    assert whole[cut:] != [wrong.sample(logits(START + i), START + i).token for i in range(cut, 12)]


def test_speculative_verification_gives_the_plain_answer() -> None:
    """Drafts of which a known prefix is right: sample each row against the draft, keep until a mismatch."""
    whole = straight(14)
    for wrong_at in range(4):
        sampler, out = Sampler(PARAMS, PROMPT, VOCAB), list[int]()
        while len(out) < 14:
            drafts = whole[len(out) : len(out) + 3]
            if wrong_at < len(drafts):
                drafts[wrong_at] = (drafts[wrong_at] + 1) % VOCAB
            for draft in [*drafts, None]:
                position = START + len(out)
                out.append(sampler.sample(logits(position), position).token)
                if out[-1] != draft:
                    break
        assert out[:14] == whole


OPTIONS: list[dict[str, Any]] = [
    {}, {"temperature": 0}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7},
    {"min_p": 0.1}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05}, {"repetition_penalty": 1.5},
    {"presence_penalty": 1.5}, {"frequency_penalty": 1.5}, {"temperature": 0, "repetition_penalty": 3.0},
    {"logit_bias": {3: 5.0}}, {"logit_bias": {3: -100.0}, "temperature": 0}, {"seed": 1}, {"seed": -1},
    {"min_tokens": 6, "stop_token_ids": (2, 4, 6)}, {"logprobs": 0}, {"logprobs": 20}, {"logprobs": 3, "top_p": 0.5},
]  # fmt: skip


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_options_mean_the_same_alone_and_beside_others_b71(random: Any, concurrency: int) -> None:
    """Twenty option sets, any of them next at any time: each draws what it draws alone."""
    alone = [answer_of(fields) for fields in OPTIONS]
    waiting = list(range(len(OPTIONS)))
    running: dict[int, list[Any]] = {}
    samplers = {
        index: Sampler(SamplingParams(**{"seed": 0} | OPTIONS[index]), PROMPT, VOCAB) for index in waiting
    }
    while waiting or running:
        while waiting and len(running) < concurrency:
            running[waiting.pop(0)] = []
        index = random.choice(sorted(running))
        running[index].append(draw(samplers[index], len(running[index])))
        if len(running[index]) == 10:
            assert running.pop(index) == alone[index]
    assert len({tuple(token.token for token in tokens) for tokens in alone}) > 11  # armed: options matter


def draw(sampler: Sampler, index: int) -> Any:
    """The next token of a model whose logits depend on the answer so far."""
    return sampler.sample(logits(START + index, sum(sampler.generated)), START + index)


def answer_of(fields: dict[str, Any]) -> list[Any]:
    sampler = Sampler(SamplingParams(**{"seed": 0} | fields), PROMPT, VOCAB)
    return [draw(sampler, index) for index in range(10)]


def test_draws_depend_on_seed_position_and_id_only() -> None:
    params = SamplingParams(seed=4)
    row = logits(0)
    wanted = {}
    for position in range(START, START + 20):
        sampler = Sampler(params, PROMPT, VOCAB, generated=[0] * (position - START))
        wanted[position] = sampler.sample(row, position).token
    assert len(set(wanted.values())) > 3  # armed: position matters
    sampler = Sampler(params, PROMPT, VOCAB, generated=[9] * 25)
    for position in sorted(wanted, reverse=True):
        assert sampler.sample(row, position).token == wanted[position]
