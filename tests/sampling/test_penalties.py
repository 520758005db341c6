"""Penalties by hand (B83) and their counts under the commit rule."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.sampling.parameters import SamplingParams
from luce.sampling.penalties import Penalties, TokenCounts

ROW = [0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, -1.0, 1.5]


def applied(generated: list[int], **fields: Any) -> list[float]:
    penalties = Penalties(SamplingParams(**fields), np.array([5, 5, 7], np.int32), len(ROW))
    for token in generated:
        penalties.add(token)
    x = np.array(ROW)
    penalties.apply(x)
    return x.tolist()


def changed(**at: float) -> list[float]:
    return [at.get(f"t{token}", value) for token, value in enumerate(ROW)]


def test_presence_and_frequency_see_generated_tokens_only() -> None:
    """Prompt [5, 5, 7], generated [7]: 5 is untouched, 7 pays once."""
    assert applied([7], presence_penalty=0.5) == changed(t7=-1.5)
    assert applied([7], frequency_penalty=0.25) == changed(t7=-1.25)
    assert applied([7, 7, 8], presence_penalty=0.5, frequency_penalty=0.25) == changed(t7=-2.0, t8=0.75)


def test_repetition_sees_prompt_and_generated_tokens_once_each() -> None:
    assert applied([7], repetition_penalty=2.0) == changed(t5=1.0, t7=-2.0)
    assert applied([7, 8], repetition_penalty=2.0) == changed(t5=1.0, t7=-2.0, t8=0.75)
    assert applied([], repetition_penalty=0.5) == changed(t5=4.0, t7=-0.5)


def test_all_three_in_the_documented_order() -> None:
    """-1 * 2, then - 0.25 - 0.5: not (-1 - 0.75) * 2."""
    together = applied([7], repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    assert together == changed(t5=1.0, t7=-2.75)


def test_prompt_ids_outside_the_tokenizer_are_ignored() -> None:
    penalties = Penalties(SamplingParams(repetition_penalty=2.0), np.array([5, 8, 9], np.int32), 9)
    x = np.array([*ROW, 6.0])  # id 9 is padding
    penalties.apply(x)
    assert x.tolist() == [*changed(t5=1.0, t8=0.75), 6.0]


@pytest.mark.parametrize("fields", [{}, {"repetition_penalty": 1.0, "presence_penalty": 0.0}])
def test_inactive(fields: dict[str, float]) -> None:
    penalties = Penalties(SamplingParams(**fields), np.array([1], np.int32), 9)
    penalties.add(3)
    penalties.remove(3)
    assert not penalties.active


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=200))
def test_counts_follow_additions_and_removals(steps: list[tuple[bool, int]]) -> None:
    counts, tokens = TokenCounts(), list[int]()
    for grow, token in steps:
        if grow or not tokens:
            tokens.append(token)
            counts.add(token)
        else:
            counts.remove(tokens.pop())
    ids, numbers = counts.items()
    assert dict(zip(ids.tolist(), numbers.tolist(), strict=True)) == {t: tokens.count(t) for t in set(tokens)}
