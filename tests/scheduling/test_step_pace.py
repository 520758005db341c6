"""Prompt rows beside answers: as many as measured times allow."""

from __future__ import annotations

import pytest

from luce.scheduling.plan import plan
from luce.scheduling.step_pace import FIRST_ROWS, GATHER_SECONDS, LEAST_ROWS, WHOLE, StepPace
from tests.scheduling.pictures import lane, state

ALONE, FIXED, ROW = 0.008, 0.006, 80e-6
"""Seconds of answers' rows, of any prompt piece, and of each of its rows: about a large model on a large GPU."""


def step(pace: StepPace, answers: int = 4, rows: int | None = None, slow: float = 1.0) -> float:
    """One step with as many prompt rows as the pace says, or ``rows``; its seconds."""
    prompts = pace.rows_beside(answers) if rows is None else rows
    seconds = slow * (ALONE + FIXED + ROW * prompts)
    pace.note(answers, prompts, seconds)
    return seconds


def settled_pace(seconds: float = 0.04) -> StepPace:
    pace = StepPace(seconds)
    pace.note(4, 0, ALONE)
    for _ in range(12):
        step(pace)
    return pace


@pytest.mark.parametrize("seconds", [0.02, 0.04, 0.1])
def test_steps_come_close_to_the_time_and_stay_under_it(seconds: float) -> None:
    pace = StepPace(seconds)
    pace.note(4, 0, ALONE)
    assert pace.rows_beside(4) == FIRST_ROWS
    taken = [step(pace) for _ in range(30)]
    assert max(taken) <= seconds
    assert all(0.8 * seconds < one for one in taken[12:])


def test_more_answers_leave_less_room() -> None:
    pace = settled_pace()
    pace.note(32, 0, 3 * ALONE)
    assert LEAST_ROWS < pace.rows_beside(32) < pace.rows_beside(4)
    assert pace.rows_beside(64) == pace.rows_beside(32), "not measured: as the nearest that was"
    assert pace.rows_beside(1) == pace.rows_beside(4)


def test_ends_of_prompts_tell_what_every_piece_takes() -> None:
    """From large pieces alone each row would have its share of that, and too few would fit: 256 for 325."""
    pace = settled_pace()
    assert pace.rows_beside(4) == 256
    for _ in range(10):
        step(pace, rows=3)
    assert pace.rows_beside(4) == 320
    assert all(step(pace) <= pace.seconds for _ in range(30))
    assert pace.rows_beside(4) == 320


def test_slow_ends_of_prompts_count() -> None:
    """Else a device that became slow would never be found out."""
    pace = settled_pace()
    before = pace.rows_beside(4)
    for _ in range(2):
        step(pace, rows=before // 4, slow=10)
    assert pace.rows_beside(4) < before


def test_a_device_that_is_as_fast_as_before_again_is_found_out() -> None:
    """While it was slow only few rows were tried."""
    pace = settled_pace()
    step(pace, rows=3)
    for _ in range(30):
        step(pace, slow=20)
    assert pace.rows_beside(4) == LEAST_ROWS
    for _ in range(30):
        step(pace)
    assert pace.rows_beside(4) == 320


def test_one_measurement_far_off_is_forgotten_soon() -> None:
    pace = settled_pace()
    before = pace.rows_beside(4)
    step(pace, slow=100)
    assert before / 2 <= pace.rows_beside(4) < before
    for _ in range(6):
        step(pace)
    assert pace.rows_beside(4) >= 0.8 * before


def test_a_device_too_slow_for_the_time_still_computes_prompts() -> None:
    pace = StepPace(0.04)
    for _ in range(20):
        pace.note(4, 0, 1.0)
        pace.note(4, pace.rows_beside(4), 1.5)
    assert pace.rows_beside(4) == LEAST_ROWS


def test_pieces_end_where_chunks_do() -> None:
    assert settled_pace().rows_beside(4) % WHOLE == 0


def test_a_device_without_a_clock_is_not_measured() -> None:
    pace = StepPace(0.04)
    pace.note(4, 0, 0.0)
    pace.note(4, 64, 0.0)
    assert pace.rows_beside(4) == FIRST_ROWS


def test_only_beside_answers_and_never_over_the_budget() -> None:
    answer, prompt = lane(0, 20, 20), lane(1, 0, 20)

    def rows(*lanes: object, beside: int) -> list[int]:
        found = plan(state(*lanes, rows_beside=beside))
        return [segment.count for segment in found.segments if segment.slot == 1]

    assert rows(prompt, beside=3) == [8], "nobody waits: the whole budget"
    assert rows(answer, prompt, beside=3) == [3]
    assert rows(answer, prompt, beside=300) == [8]


def test_rows_to_wait_for_are_as_many_as_fit_into_the_time() -> None:
    pace = StepPace(0.04)
    assert pace.gather_rows is None, "nothing was measured"
    pace.note_prompts(1000, 0.1, first_tokens=True)
    assert pace.gather_rows == int(10_000 * GATHER_SECONDS)
    pace.note_prompts(3000, 0.3, first_tokens=False)
    assert pace.gather_rows == pytest.approx(10_000 * (GATHER_SECONDS - 0.3), abs=1)
    pace.note_prompts(10_000, 1.0, first_tokens=False)
    assert pace.gather_rows == 0
    pace.note(1, 0, 0.01)
    assert pace.gather_rows == int(10_000 * GATHER_SECONDS), "somebody got a token"


COPY = {1: 0.003, 2: 0.004, 4: 0.005}
"""Seconds of one of so many copies of states in a step."""


def copying(pace: StepPace, copies: int, rows: int | None = None, slow: float = 1.0) -> float:
    """:func:`step` with copies of states in it."""
    prompts = pace.rows_beside(4, copies) if rows is None else rows
    seconds = ALONE + slow * copies * COPY[copies] + (FIXED + ROW * prompts if prompts else 0)
    pace.note(4, prompts, seconds, captures=copies)
    return seconds


def test_steps_with_copies_of_states_stay_under_the_time_too() -> None:
    pace = settled_pace()
    for _ in range(10):
        step(pace, rows=3)
    before = pace.rows_beside(4)
    for _ in range(12):
        for copies in (1, 2, 4):
            copying(pace, copies, rows=0)
    assert all(copying(pace, copies) <= pace.seconds for copies in (1, 2, 4) for _ in range(8))
    assert all(step(pace) <= pace.seconds for _ in range(4))
    assert LEAST_ROWS < pace.rows_beside(4, 4) < pace.rows_beside(4, 2) < pace.rows_beside(4) == before


def test_copies_are_no_part_of_what_rows_take() -> None:
    """Else a step without copies would get too few, and one with several too many."""
    pace, other = settled_pace(), settled_pace()
    for _ in range(12):
        copying(pace, 2, rows=0)
    for _ in range(12):
        copying(pace, 2)
    assert pace.rows_beside(4) == other.rows_beside(4)
    assert pace.rows_beside(1) == other.rows_beside(1)


def test_the_trap_of_the_copies_is_set() -> None:
    """Counted as rows' time, as they once were, two copies are too much after steps without any."""
    pace = settled_pace()
    rows = pace.rows_beside(4)
    assert ALONE + FIXED + ROW * rows <= pace.seconds < ALONE + FIXED + ROW * (rows + WHOLE) + 2 * COPY[2]


def test_where_every_mixed_step_has_copies_its_time_is_found_all_the_same() -> None:
    pace = StepPace(0.04)
    pace.note(4, 0, ALONE)
    taken = [copying(pace, 2) for _ in range(40)]
    assert max(taken[20:]) <= pace.seconds
    assert min(taken[20:]) > 0.6 * pace.seconds


def test_numbers_of_copies_that_were_not_measured_count_as_the_nearest_that_was() -> None:
    pace = settled_pace()
    for _ in range(8):
        copying(pace, 2, rows=0)
    assert pace.rows_beside(4, 4) < pace.rows_beside(4, 2) < pace.rows_beside(4)


def test_a_slow_copy_is_forgotten_soon() -> None:
    """As the first one, which takes the memory that copies pass through."""
    pace = settled_pace()
    copying(pace, 1, rows=0, slow=100)
    assert pace.rows_beside(4, 1) == LEAST_ROWS
    for _ in range(6):
        copying(pace, 1)
    assert pace.rows_beside(4, 1) >= 192
