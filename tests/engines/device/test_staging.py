"""Copies on their way to host memory: steps go on meanwhile, buffers are used again, what goes wrong is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.device import copies
from luce.engines.qwen35.device.packed_state import LEAST_ON_DEVICE
from luce.engines.qwen35.device.staging import BUFFERS, THREADS, Buffer, Staged, Staging
from tests.engines.harness import Driver
from tests.engines.requests import Request, adopted, capture, do, prompt

Host = npt.NDArray[Any]
PATIENCE = 30


@attrs.define
class Gate:
    """An event that a test lets pass."""

    passed: threading.Event = attrs.field(factory=threading.Event)

    def record(self) -> None: ...

    def synchronize(self) -> None:
        assert self.passed.wait(PATIENCE)


class Bus:
    """A device whose copies are there once their gate is open."""

    def __init__(self) -> None:
        self.gates: list[Gate] = []
        self.pending: list[tuple[Host, Host]] = []
        self._lock = threading.Lock()

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        return np.full(shape, -1, dtype)

    def copy(self, to: Host, source: Host) -> Gate:
        with self._lock:
            self.pending.append((to, source.copy()))
            return self.event()

    def event(self) -> Gate:
        self.gates.append(Gate())
        return self.gates[-1]

    def synchronize(self) -> None:
        self.pending.clear()

    def arrive(self, number: int) -> None:
        with self._lock:
            for to, source in self.pending:
                np.copyto(to, source)
            self.pending.clear()
        self.gates[number].passed.set()


class Bench:
    def __init__(self) -> None:
        self.bus = Bus()
        device: Any = self.bus
        self.staging = Staging(device, {"x": ((THREADS, 3), "float32")})
        self.freed: list[float] = []
        """Copies of which nothing is read on the device any more."""

    def copy(self, value: float) -> tuple[Host, Staged]:
        to = np.zeros((THREADS, 3), np.float32)

        def launch(buffer: Buffer) -> Any:
            return self.bus.copy(buffer["x"], np.full((THREADS, 3), value, np.float32))

        def finish(buffer: Buffer, number: int, count: int) -> None:
            to[number::count] = buffer["x"][number::count]

        return to, self.staging.bring(launch, finish, lambda: self.freed.append(value))

    def send(self, value: float, to: Host) -> None:
        def fill(buffer: Buffer, number: int, count: int) -> None:
            buffer["x"][number::count] = value

        def launch(buffer: Buffer) -> Any:
            return self.bus.copy(to, buffer["x"])

        self.staging.send(fill, launch, lambda: self.freed.append(value))

    def launched(self, count: int) -> None:
        """Wait until so many copies are."""
        until(lambda: len(self.bus.gates) >= count)
        assert len(self.bus.gates) == count


def until(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.001)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for gate in made.bus.gates:
        gate.passed.set()
    made.staging.close()


def test_a_copy_is_launched_soon_and_whole_later(bench: Bench) -> None:
    to, staged = bench.copy(5)
    bench.launched(1)
    assert not to.any() and not bench.freed, "the device is not there yet"
    bench.bus.arrive(0)
    staged.wait()
    assert (to == 5).all() and bench.freed == [5]


def test_one_more_than_there_are_buffers_waits_for_the_first_and_nobody_for_it(bench: Bench) -> None:
    begun = [bench.copy(value) for value in range(1, BUFFERS + 3)]
    bench.launched(BUFFERS)
    time.sleep(0.02)
    bench.launched(BUFFERS)  # there is no buffer for the next
    for number in range(2):
        bench.bus.arrive(number)
        begun[number][1].wait()
        bench.launched(BUFFERS + 1 + number)
    for number in range(2, BUFFERS + 2):
        bench.bus.arrive(number)
    for value, (to, staged) in enumerate(begun, 1):
        staged.wait()
        assert (to == value).all(), value
    assert sorted(bench.freed) == list(range(1, BUFFERS + 3))


def test_buffers_come_back_from_those_that_are_sent(bench: Bench) -> None:
    """However many copies wait to be launched for the buffers that they have."""
    targets = [np.zeros((THREADS, 3), np.float32) for _ in range(BUFFERS)]
    for number, to in enumerate(targets):
        bench.send(number + 1, to)
    begun = [bench.copy(9) for _ in range(2 * BUFFERS)]
    bench.launched(BUFFERS)
    for number in range(3 * BUFFERS):
        until(lambda number=number: len(bench.bus.gates) > number)  # type: ignore[misc]
        bench.bus.arrive(number)
    for to, staged in begun:
        staged.wait()
        assert (to == 9).all()


def test_what_is_held_goes_at_the_end_of_the_block_or_when_it_is_waited_for(bench: Bench) -> None:
    with bench.staging.holding():
        begun = [bench.copy(value) for value in (1, 2)]
        time.sleep(0.01)
        bench.launched(0)
    bench.launched(2)
    for number, (to, staged) in enumerate(begun):
        bench.bus.arrive(number)
        staged.wait()
        assert (to == number + 1).all()
    with bench.staging.holding():
        to, staged = bench.copy(3)
        waits = threading.Thread(target=staged.wait)
        waits.start()
        bench.launched(3)
        bench.bus.arrive(2)
        waits.join(PATIENCE)
        assert (to == 3).all()


def test_what_is_sent_is_whole_when_its_copy_is_launched(bench: Bench) -> None:
    to = np.zeros((THREADS, 3), np.float32)
    for number in range(BUFFERS + 1):
        bench.send(number + 1, to)
        bench.bus.arrive(number)
        assert (to == number + 1).all()


def test_a_buffer_that_is_on_its_way_to_the_device_is_nobody_elses(bench: Bench) -> None:
    targets = [np.zeros((THREADS, 3), np.float32) for _ in range(BUFFERS)]
    for number, to in enumerate(targets):
        bench.send(number + 1, to)
    waits = threading.Thread(target=lambda: bench.send(9, np.zeros((THREADS, 3), np.float32)))
    waits.start()
    waits.join(0.05)
    assert waits.is_alive() and len(bench.bus.gates) == BUFFERS
    bench.bus.arrive(0)
    waits.join(PATIENCE)
    assert not waits.is_alive()
    assert [to[0, 0] for to in targets] == list(range(1, BUFFERS + 1))


def test_what_goes_wrong_is_told_and_leaves_the_buffers(bench: Bench) -> None:
    def planted(buffer: Buffer, number: int, count: int) -> None:
        if number == 2:
            raise MemoryError("planted")

    def no_launch(buffer: Buffer) -> Any:
        bench.bus.copy(buffer["x"], np.zeros((THREADS, 3), np.float32))
        raise ValueError("planted")

    event: Any = bench.bus.event
    freed: list[int] = []
    for number in range(BUFFERS + 1):
        before, first = len(freed), len(bench.bus.gates)
        staged = bench.staging.bring(lambda buffer: event(), planted, lambda: freed.append(0))
        bench.launched(first + 1)
        bench.bus.arrive(first)
        with pytest.raises(MemoryError, match="planted"):
            staged.wait()
        with pytest.raises(MemoryError, match="planted"):
            bench.staging.send(planted, no_launch, lambda: freed.append(1))
        with pytest.raises(ValueError, match="planted"):
            bench.staging.bring(no_launch, nothing, lambda: freed.append(2)).wait()
        assert not bench.bus.pending, "nothing is on its way into a buffer that others get"
        with pytest.raises(ValueError, match="planted"):
            bench.staging.send(nothing, no_launch, lambda: freed.append(3))
        assert not bench.bus.pending
        until(lambda before=before: len(freed) == before + 4)  # type: ignore[misc]
        assert sorted(freed[before:]) == [0, 1, 2, 3], number


def nothing(buffer: Buffer, number: int, count: int) -> None:
    """Done with a buffer."""


def test_steps_do_not_wait_for_a_snapshot(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that block are not used: every stream would pause for 0.25 GB of a 27B."""
    spec = prompt(0)
    source = Request(driver, spec, 0)
    source.advance(80)
    engine: Any = driver.engine
    monkeypatch.setattr(copies, "BUS_PIECE", 1000)

    def blocks(array: Any) -> Host:
        raise AssertionError("a copy that blocks")

    with monkeypatch.context() as patched:
        patched.setattr(engine.device, "numpy", blocks)
        taken = capture(source)
        (outcome,) = do(driver, taken)
    assert outcome.error is None and outcome.nbytes == engine.capabilities.captured_bytes(80)
    assert engine.audit_stored(taken.handle, spec) == []
    other = Request(driver, spec, 1)
    do(driver, adopted(other, taken, source.opened.blocks))
    assert engine.audit(1) == []


def test_rows_are_launched_before_a_slot_that_is_none_of_theirs_is_filled(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy takes the host a while, in which the device has something to do."""
    source, other = Request(driver, prompt(0), 0), Request(driver, prompt(1), 1)
    source.advance(80)
    taken = capture(source)
    do(driver, taken)
    order: list[str] = []
    engine: Any = driver.engine
    runner = engine._runner
    put, rows = runner.copies.put, runner.segments
    monkeypatch.setattr(runner.copies, "put", lambda *a: (order.append("fill"), put(*a))[1])
    monkeypatch.setattr(runner, "segments", lambda *a: (order.append("rows"), rows(*a))[1])
    again = Request(driver, prompt(0), 2)
    item = adopted(again, taken, source.opened.blocks)
    part = other.next_rows(20)
    result = driver.run([part], [item])
    assert order == ["rows", "fill"] and result.work[0].error is None
    other.took(part, result.outcomes[0].tokens)
    assert engine.audit(2) == []
    third = Request(driver, prompt(0), 3)
    item = adopted(third, taken, source.opened.blocks)
    order.clear()
    part = third.next_rows(20)
    result = driver.run([part], [item])
    assert order == ["fill", "rows"] and result.work[0].error is None, "its own rows need what fills it"
    third.took(part, result.outcomes[0].tokens)
    for sequence in (source, other, again, third):
        sequence.finish()
        sequence.check()


def test_a_copy_waits_for_steps_of_its_own_slot_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = Request(driver, prompt(0), 0), Request(driver, prompt(1), 1)
    source.advance(80)
    other.advance(20)
    engine: Any = driver.engine
    settled: list[bool] = []
    settle = engine._settle
    monkeypatch.setattr(engine, "_settle", lambda: (settled.append(True), settle())[1])
    for moving, waits in ((source, False), (other, True)):
        engine.call(lambda *_: None)  # all steps so far are noted
        settled.clear()
        part = other.next_rows(10)
        with monkeypatch.context() as patched:
            patched.setattr(engine, "_note_finished", lambda: None)  # as if the device were not there yet
            rows = engine.launch(driver.plan([part]))
            copy = engine.launch(driver.plan(work=[capture(moving, moving.row + (10 if waits else 0))]))
            results = engine.collect(rows), engine.collect(copy)
        assert results[1].work[0].error is None and bool(settled) == waits
        other.took(part, results[0].outcomes[0].tokens)
    for sequence in (source, other):
        sequence.finish()
        sequence.check()


def test_steps_wait_for_no_bus_and_no_buffer(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a copy for which there is no place on the device waits until one is free."""
    requests = [Request(driver, prompt(index), index) for index in range(3)]
    for request in requests:
        request.advance(30)
    engine: Any = driver.engine
    staging = engine._runner.copies._staging
    opened, taken = threading.Event(), staging._take

    def stuck() -> Buffer:
        assert opened.wait(PATIENCE)
        return taken()  # type: ignore[no-any-return]

    monkeypatch.setattr(staging, "_take", stuck)
    items = [capture(request) for request in requests]
    part = requests[2].next_rows(5)
    result = driver.run([part], items[:LEAST_ON_DEVICE])
    requests[2].took(part, result.outcomes[0].tokens)
    assert [one.error for one in result.work] == [None, None] and not opened.is_set()
    ticket = engine.launch(driver.plan(work=items[LEAST_ON_DEVICE:]))
    assert not ticket.finished.wait(0.05), "there is no place for it"
    opened.set()
    assert engine.collect(ticket).work[0].error is None
    for item, request in zip(items, requests, strict=True):
        assert engine.audit_stored(item.handle, request.spec) == []
    for request in requests:
        request.finish()
        request.check()
