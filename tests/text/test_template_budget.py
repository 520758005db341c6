"""What a value costs: by its content alone, and counted list by list."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.text.template_budget import (
    BASE_STEPS,
    MAX_DEPTH,
    STEPS_PER_INPUT_STEP,
    Budget,
    TemplateLimitError,
    limited,
    measure,
)


def steps(value: Any) -> int:
    """One for everything, and one more for every 64 characters and every 8 items."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    if isinstance(value, Mapping):
        return 1 + len(value) // 8 + sum(map(steps, value.keys())) + sum(map(steps, value.values()))
    if isinstance(value, list | tuple):
        return 1 + len(value) // 8 + sum(map(steps, value))
    return 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab", max_size=200),
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("ab", max_size=70), inner, max_size=20)
        | st.dictionaries(st.text("ab"), inner, max_size=3).map(OrderedDict)
    ),
)


@given(VALUES)
def test_a_value_costs_its_parts(value: Any) -> None:
    cost = steps(value)
    assert Budget.for_input(value).steps == BASE_STEPS + STEPS_PER_INPUT_STEP * cost
    budget = Budget(cost)
    with limited(budget):
        measure(value)
        assert budget.steps == 0
    with limited(Budget(cost - 1)), pytest.raises(TemplateLimitError, match="more work"):
        measure(value)


def test_nesting_is_bounded() -> None:
    value: list[Any] = []
    for _ in range(MAX_DEPTH):
        value = [value]
    Budget.for_input(value)
    with pytest.raises(TemplateLimitError, match="nests"):
        Budget.for_input([value])


def test_the_texts_of_a_list_are_charged_together() -> None:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    with limited(Budget(10_000)):
        sys.setprofile(count)
        try:
            measure(["text"] * 1000)
        finally:
            sys.setprofile(before)
    assert 0 < calls < 100, "as many calls as texts"
