"""Prompts that came together get their first tokens together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from luce.engines.seam import Segment
from luce.scheduling.plan import plan
from luce.scheduling.state import Lane, Limits
from tests.scheduling.pictures import lane, state

LIMITS = Limits(num_slots=8, block_size=16, prefill_budget=100)


def chunks(
    *lanes: Lane, rows: int | None = 1000, cached: Mapping[int, int] | None = None
) -> dict[int, tuple[int, bool]]:
    """(rows, is a token drawn) of each slot in the next step."""
    frozen = state(*lanes, limits=LIMITS, gather_rows=rows, cached_rows=cached or {})
    found: tuple[Segment, ...] = plan(frozen).segments
    return {segment.slot: (segment.count, segment.sample) for segment in found}


def test_a_prompt_waits_with_its_last_row_for_the_others() -> None:
    first, second = lane(0, 0, 80), lane(1, 0, 90)
    assert chunks(first, second) == {0: (79, False), 1: (20, False)}
    assert chunks(first._replace(next_row=79), second._replace(next_row=20)) == {0: (1, True), 1: (70, True)}


def test_the_trap_is_set() -> None:
    assert chunks(lane(0, 0, 80), lane(1, 0, 90), rows=None) == {0: (80, True), 1: (20, False)}


def test_it_keeps_waiting_while_others_are_computed() -> None:
    waiting, second, third = lane(0, 79, 80), lane(1, 0, 90), lane(2, 0, 90)
    assert chunks(waiting, second, third) == {1: (89, False), 2: (9, False)}


def test_it_waits_for_a_picture_only_while_there_is_something_to_compute() -> None:
    done, encoding = lane(0, 0, 80), lane(1, 0, 90, runnable=False, ready_rows=0)
    assert chunks(done, encoding) == {0: (79, False)}
    assert chunks(done._replace(next_row=79), encoding) == {0: (1, True)}


def test_whoever_is_alone_waits_for_nobody() -> None:
    assert chunks(lane(0, 0, 80)) == {0: (80, True)}


def test_prompts_that_end_in_one_step_wait_for_nobody() -> None:
    assert chunks(lane(0, 0, 40), lane(1, 0, 50)) == {0: (40, True), 1: (50, True)}


@pytest.mark.parametrize("rows, waits", [(69, False), (71, True)])
def test_only_for_as_many_rows_as_time_allows(rows: int, waits: bool) -> None:
    assert chunks(lane(0, 0, 80), lane(1, 0, 91), rows=rows)[0] == (79 if waits else 80, not waits)


@pytest.mark.parametrize("prompt, waits", [(180, True), (181, False)])
def test_not_for_much_longer_prompts(prompt: int, waits: bool) -> None:
    """20 rows of it go into the same step."""
    assert chunks(lane(0, 0, 80), lane(1, 0, prompt))[0] == (79 if waits else 80, not waits)


def test_rows_from_a_cache_are_no_part_of_a_prompts_length() -> None:
    assert chunks(lane(0, 60, 80), lane(1, 0, 180))[0] == (19, False)
    assert chunks(lane(0, 60, 80), lane(1, 0, 180), cached={0: 60})[0] == (20, True)
