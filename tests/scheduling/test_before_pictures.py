"""Few rows in front of a picture wait for it; who has a picture is let in between plans."""

from __future__ import annotations

import attrs
import pytest

from luce.scheduling.before_pictures import rows_to_go
from luce.scheduling.plan import plan
from luce.scheduling.state import Lane, Limits, Parked, Waiting
from tests.scheduling.pictures import lane, state

LIMITS = Limits(num_slots=4, block_size=16, prefill_budget=100, rows_before_picture=8)


def chunks(*lanes: Lane, limits: Limits = LIMITS, **more: object) -> list[tuple[int, int, int]]:
    """(slot, first row, rows) of prompts in the next step."""
    found = plan(state(*lanes, limits=limits, **more)).segments
    return [(one.slot, one.start, one.count) for one in found if one.slot < 3]


@pytest.mark.parametrize("ready, goes", [(7, False), (8, True), (20, True)])
def test_few_rows_wait_for_the_picture_behind_them(ready: int, goes: bool) -> None:
    assert chunks(lane(0, 0, 50, ready_rows=ready)) == ([(0, 0, ready)] if goes else [])
    assert chunks(lane(0, 12, 50, ready_rows=12 + ready)) == ([(0, 12, ready)] if goes else [])


def test_the_trap_is_set() -> None:
    free = attrs.evolve(LIMITS, rows_before_picture=1)
    assert chunks(lane(0, 0, 50, ready_rows=1), limits=free) == [(0, 0, 1)]


def test_they_go_with_the_picture() -> None:
    assert chunks(lane(0, 0, 50)) == [(0, 0, 50)]
    assert chunks(lane(0, 48, 50)) == [(0, 48, 2)], "what is left of a prompt waits for nothing"


def test_a_piece_may_be_as_small_as_its_step_leaves_room() -> None:
    assert chunks(lane(0, 0, 95), lane(1, 0, 50, ready_rows=20)) == [(0, 0, 95), (1, 0, 5)]
    assert chunks(lane(0, 0, 50, ready_rows=20, cut_row=3)) == [(0, 0, 3)]


def test_others_do_not_wait_with_them() -> None:
    assert chunks(lane(0, 0, 50, ready_rows=5), lane(1, 0, 50)) == [(1, 0, 50)]
    assert chunks(lane(0, 0, 50, ready_rows=5), lane(1, 49, 50), gather_rows=1000) == [(1, 49, 1)]


def test_also_beside_answers() -> None:
    assert chunks(lane(3, 50, 50), lane(0, 0, 50, ready_rows=5), rows_beside=64) == []


def test_a_prompt_is_through_whatever_the_least() -> None:
    assert rows_to_go(at=0, ready=3, prompt=3, least=1000) == 3
    assert rows_to_go(at=3, ready=3, prompt=9, least=1) == 3


# -- between plans ----------------------------------------------------------------------------------------------------

SHOWN, TEXT = Waiting(2, 1, pictures=True), Waiting(1, 1)


def let_in(*waiting: Waiting, **more: object) -> list[int]:
    given = {"waiting": waiting, "free_slots": (0, 1, 2), "early": True} | more
    decision = plan(state(lane(3, 0, 20), **given))
    assert not decision.segments
    return [grant.key for grant in decision.grants]


def test_who_has_a_picture_is_let_in_between_plans() -> None:
    assert let_in(SHOWN) == [2]
    assert let_in(TEXT) == [] and let_in(TEXT, early=False) == [1]


def test_with_those_before_it_and_without_those_behind_it() -> None:
    assert let_in(TEXT, SHOWN) == [1, 2]
    assert let_in(TEXT, SHOWN, Waiting(3, 1)) == [1, 2]


def test_by_the_same_rules_as_ever() -> None:
    assert let_in(TEXT, SHOWN, available_blocks=1) == [], "the text takes it: nobody is overtaken"
    assert let_in(TEXT, SHOWN, free_slots=(0,)) == []
    assert let_in(SHOWN, parked=(Parked(0, 1),)) == []
    assert let_in(SHOWN, admitting=False) == []


def test_nothing_else_is_decided_then() -> None:
    decision = plan(state(lane(0, 20, 20), parked=(Parked(9, 1),), free_slots=(1,), early=True))
    assert not decision.moves and not decision.segments
