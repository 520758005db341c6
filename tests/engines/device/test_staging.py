"""Copies on their way to host memory: steps go on meanwhile, buffers are used again, what goes wrong is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.device.staging import BUFFERS, THREADS, Staged, Staging
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

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        return np.full(shape, -1, dtype)

    def download(self, pinned: Host, source: Host) -> None:
        self.pending.append((pinned, source.copy()))

    def event(self) -> Gate:
        self.gates.append(Gate())
        return self.gates[-1]

    def synchronize(self) -> None:
        self.pending.clear()

    def arrive(self, number: int) -> None:
        for to, source in self.pending:
            np.copyto(to, source)
        self.pending.clear()
        self.gates[number].passed.set()


class Bench:
    def __init__(self) -> None:
        self.bus = Bus()
        device: Any = self.bus
        self.staging = Staging(device, {"x": ((THREADS, 3), "float32")})

    def copy(self, value: float) -> tuple[Host, Staged]:
        to = np.zeros((THREADS, 3), np.float32)

        def launches(buffer: dict[str, Host]) -> Iterator[tuple[Host, Host]]:
            yield buffer["x"], np.full((THREADS, 3), value, np.float32)

        def finish(buffer: dict[str, Host], number: int, count: int) -> None:
            to[number::count] = buffer["x"][number::count]

        return to, self.staging.copy(launches, finish)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for gate in made.bus.gates:
        gate.passed.set()
    made.staging.close()


def test_a_copy_is_launched_now_and_whole_later(bench: Bench) -> None:
    to, staged = bench.copy(5)
    assert not to.any(), "the device is not there yet"
    bench.bus.arrive(0)
    staged.wait()
    assert (to == 5).all()


def test_one_more_than_there_are_buffers_waits_for_the_first(bench: Bench) -> None:
    begun = [bench.copy(value) for value in range(1, BUFFERS + 1)]
    more: list[tuple[Host, Staged]] = []
    waits = threading.Thread(target=lambda: more.append(bench.copy(9)))
    waits.start()
    assert not more and len(bench.bus.gates) == BUFFERS, "there is no buffer for it"
    bench.bus.arrive(0)
    waits.join(PATIENCE)
    assert more and len(bench.bus.gates) == BUFFERS + 1
    for number in range(1, BUFFERS + 1):
        bench.bus.arrive(number)
    for value, (to, staged) in [*enumerate(begun, 1), (9, more[0])]:
        staged.wait()
        assert (to == value).all(), value


def test_what_goes_wrong_is_told_and_leaves_the_buffers(bench: Bench) -> None:
    def finish(buffer: dict[str, Host], number: int, count: int) -> None:
        if number == 2:
            raise MemoryError("planted")

    def no_launches(buffer: dict[str, Host]) -> Iterator[tuple[Host, Host]]:
        yield buffer["x"], np.zeros((THREADS, 3), np.float32)
        raise ValueError("planted")

    for number in range(BUFFERS + 1):
        staged = bench.staging.copy(lambda buffer: [], finish)
        bench.bus.arrive(number)
        with pytest.raises(MemoryError, match="planted"):
            staged.wait()
        with pytest.raises(ValueError, match="planted"):
            bench.staging.copy(no_launches, finish)
        assert not bench.bus.pending, "nothing is on its way into a buffer that others get"


def test_steps_do_not_wait_for_a_snapshot(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that block are not used: every stream would pause for 0.25 GB of a 27B."""
    spec = prompt(0)
    source = Request(driver, spec, 0)
    source.advance(80)
    engine: Any = driver.engine

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
