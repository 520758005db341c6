"""Which token ends an answer, and why."""

from luce.sampling.finish import FinishRule
from luce.sampling.parameters import SamplingParams


def test_plain_tokens_go_on_until_the_limit() -> None:
    params = SamplingParams(max_tokens=3, eos_token_ids=(2,))
    assert [FinishRule(params).reason(9, n) for n in (1, 2, 3)] == [None, None, "length"]
    assert FinishRule(SamplingParams()).reason(9, 10**6) is None


def test_eos_and_stop_ids() -> None:
    params = SamplingParams(eos_token_ids=(2, 3), stop_token_ids=(7,))
    assert [FinishRule(params).reason(token, 1) for token in (2, 3, 7, 8)] == ["stop", "stop", "stop", None]


def test_ignore_eos_keeps_stop_ids() -> None:
    params = SamplingParams(eos_token_ids=(2, 7), stop_token_ids=(7,), ignore_eos=True)
    assert FinishRule(params).reason(2, 1) is None
    assert FinishRule(params).reason(7, 1) == "stop"


def test_a_stop_id_at_the_limit_is_a_stop() -> None:
    params = SamplingParams(eos_token_ids=(2,), max_tokens=4)
    assert FinishRule(params).reason(2, 4) == "stop"
    assert FinishRule(params).reason(3, 4) == "length"


def test_min_tokens_counts_the_tokens_before_the_stop() -> None:
    params = SamplingParams(eos_token_ids=(2,), min_tokens=2, max_tokens=9)
    assert [FinishRule(params).reason(2, n) for n in (1, 2, 3)] == [None, None, "stop"]
    exact = SamplingParams(eos_token_ids=(2,), min_tokens=2, max_tokens=2)
    assert FinishRule(exact).reason(2, 2) == "length"
