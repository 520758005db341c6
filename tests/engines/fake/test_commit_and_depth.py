"""The commit rule, steps in flight, failures and the life of slots."""

import select

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, FakeTicket, Mode, fake_capabilities
from luce.engines.fake.reference import reference_tokens
from luce.errors import DeviceError
from tests.engines.fake.harness import Driver, decode, prefill, text_spec

SPEC = text_spec([3, 1, 4, 1, 5, 9, 2, 6])
LENGTH = len(SPEC.token_ids)


def driver(mode: Mode = Mode.INLINE) -> Driver:
    return Driver(FakeEngine(fake_capabilities(block_size=4, num_blocks=64), mode=mode))


def readable(ticket: FakeTicket) -> bool:
    return bool(select.select([ticket.fd], [], [], 0)[0])


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 5))
def test_a_lower_start_voids_what_stood_past_it(starts: list[int], chunk: int) -> None:
    """Back to any position that is not committed, at any time; the answer from there on is the same."""
    running = driver()
    running.open(0, SPEC)
    right = reference_tokens(SPEC, 16)
    row = committed = 0
    for target in [*starts, 0]:
        row = max(min(target, row), committed)
        for _ in range(target % 7 + 1):
            committed = row
            if row < LENGTH:
                count = min(chunk, LENGTH - row)
                out = running.tokens(prefill(0, row, count, sample=row + count == LENGTH))
                row += count
            else:
                out = running.tokens(decode(0, row))
                row += 1
            assert out == [right[row - LENGTH]] if row >= LENGTH else [None]
            if row == LENGTH + 15:
                break


def test_what_was_committed_stays() -> None:
    running = driver()
    running.open(0, SPEC)
    running.step(prefill(0, 0, 3))
    running.step(prefill(0, 0, 6))
    running.step(prefill(0, 5, 1))
    with pytest.raises(PlanError, match="before 5 are committed"):
        running.step(prefill(0, 4, 1))


def test_two_steps_in_flight() -> None:
    running = driver(Mode.MANUAL)
    engine = running.engine
    running.open(0, SPEC)
    right = reference_tokens(SPEC, 3)
    first = running.launch(prefill(0, 0, LENGTH, sample=True))
    second = running.launch(decode(0, LENGTH))
    assert engine.in_flight == 2
    with pytest.raises(PlanError, match="in flight"):
        running.launch(decode(0, LENGTH + 1))
    assert not readable(first)
    with pytest.raises(PlanError, match="not done"):
        engine.collect(first)
    assert engine.finish_next()
    assert readable(first)
    assert not readable(second)
    with pytest.raises(PlanError, match="launch order"):
        engine.collect(second)
    assert engine.collect(first).outcomes[0].tokens[0].token == right[0]
    assert not readable(first)  # collecting reads it empty
    third = running.launch(decode(0, LENGTH + 1))
    assert engine.finish_next() and engine.finish_next() and not engine.finish_next()
    assert [engine.collect(ticket).outcomes[0].tokens[0].token for ticket in (second, third)] == right[1:]
    assert engine.in_flight == 0


def test_collecting_after_the_collector_read_the_eventfd() -> None:
    import os

    running = driver()
    running.open(0, SPEC)
    ticket = running.launch(prefill(0, 0, LENGTH, sample=True))
    assert os.eventfd_read(ticket.fd) == 1
    assert running.engine.collect(ticket).number == ticket.number


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
def test_a_failed_row_fails_alone_until_its_slot_is_closed(mode: Mode) -> None:
    running = driver(mode)
    other = text_spec([2, 7, 1, 8, 2, 8])
    running.open(0, SPEC)
    running.open(1, other)
    good = running.tokens(prefill(0, 0, LENGTH, sample=True), prefill(1, 0, 6, sample=True))[1:]
    running.engine.fail_row(0, "injected")
    for index in range(3):
        bad, fine = running.step(decode(0, LENGTH + index), decode(1, 6 + index)).outcomes
        assert (bad.error, bad.kept, bad.tokens) == ("injected", 0, ())
        assert fine.error is None
        good.append(fine.tokens[0].token)
    assert good == reference_tokens(other, 4)
    running.close(0)
    running.open(0, SPEC)
    assert running.generate(0, SPEC, 5) == reference_tokens(SPEC, 5)
    running.engine.shutdown()


def test_an_overrun_row_of_a_failed_lane_fails_too() -> None:
    """At depth 2 the next row is launched before the failure is known."""
    running = driver(Mode.MANUAL)
    engine = running.engine
    running.open(0, SPEC)
    engine.fail_row(0)
    tickets = [running.launch(prefill(0, 0, LENGTH, sample=True)), running.launch(decode(0, LENGTH))]
    while engine.finish_next():
        pass
    assert all(engine.collect(ticket).outcomes[0].error for ticket in tickets)


def test_a_failed_step_fails_its_slots_and_no_others() -> None:
    running = driver()
    running.open(0, SPEC)
    running.open(1, SPEC)
    assert running.tokens(prefill(1, 0, LENGTH, sample=True)) == reference_tokens(SPEC, 1)
    running.engine.fail_step(2, "the device fell over")
    with pytest.raises(DeviceError, match="fell over"):
        running.step(prefill(0, 0, LENGTH, sample=True))
    assert running.engine.in_flight == 0
    failed, fine = running.step(decode(0, LENGTH), decode(1, LENGTH)).outcomes
    assert failed.error == "the device fell over"
    assert fine.tokens[0].token == reference_tokens(SPEC, 2)[1]
    running.close(0)
    running.open(0, SPEC)
    assert running.generate(0, SPEC, 5) == reference_tokens(SPEC, 5)


def test_a_bug_in_the_device_code_escapes_at_collect() -> None:
    def script(*_: object) -> int:
        raise ZeroDivisionError

    running = Driver(FakeEngine(mode=Mode.THREAD, script=script))
    running.open(0, SPEC)
    with pytest.raises(ZeroDivisionError):
        running.step(prefill(0, 0, LENGTH, sample=True))
    running.engine.shutdown()


def test_shutdown_is_idempotent_and_final() -> None:
    for mode in Mode:
        running = driver(mode)
        running.open(0, SPEC)
        running.engine.shutdown()
        running.engine.shutdown()
        with pytest.raises(PlanError, match="shut down"):
            running.launch(prefill(0, 0, 2))
