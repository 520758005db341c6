"""Pictures in slices: as long as they should be by measured times, each launched in its place among steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from luce.engines.qwen35.device.slices import Slices, at_once

PARTS = 29
PATCHES = 4096


@attrs.define
class Clock:
    """A device on which launches take their time."""

    now: float = 0.0

    def event(self) -> Moment:
        return Moment(self)


@attrs.define
class Moment:
    clock: Clock
    at: float = -1.0

    def record(self) -> None:
        self.at = self.clock.now

    def synchronize(self) -> None:
        assert self.at >= 0, "nothing was launched before it"

    def seconds_since(self, earlier: Moment) -> float:
        return self.at - earlier.at


class Bench:
    """Slices on a clock. ``seconds``: of a part."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.clock = seconds, Clock()
        device: Any = self.clock
        self.slices = Slices(device, self.in_order, 0.008)
        self.alone = True
        """Does nothing else run beside slices?"""
        self.done = 0
        self.ran: list[int] = []
        """Parts of each slice."""

    def in_order(self, launch: Callable[[], None]) -> bool:
        before = self.done
        launch()
        self.ran.append(self.done - before)
        return self.alone

    def launch(self, part: int) -> None:
        assert part == self.done, "one after the other"
        self.clock.now += self.seconds
        self.done += 1

    def encode(self, parts: int = PARTS) -> list[int]:
        self.ran, self.done = [], 0
        self.slices.run(self.launch, parts, PATCHES)
        assert self.done == parts
        return self.ran


def test_slices_are_as_long_as_measured_times_say() -> None:
    bench = Bench(0.0012)
    first = bench.encode()
    assert first[0] == 1, "nothing is measured yet"
    assert set(first[1:-1]) == {6} and sum(first) == PARTS
    assert set(bench.encode()[:-1]) == {6}, "the next picture begins with what is known"
    bench.seconds = 0.0035
    slower = bench.encode()
    assert slower[-2] == 2 and sum(slower) == PARTS


@pytest.mark.parametrize("parts", [1, 2, 3, 6, 7, 12])
def test_every_part_is_launched_once_however_they_divide(parts: int) -> None:
    bench = Bench(0.0012)
    bench.encode()
    assert sum(bench.encode(parts)) == parts
    bench.done = 0
    at_once(bench.launch, parts, PATCHES)
    assert bench.done == parts


def test_parts_longer_than_a_slice_go_one_by_one() -> None:
    assert set(Bench(0.1).encode()) == {1}


def test_a_slice_beside_steps_does_not_pass_for_a_slow_one() -> None:
    bench = Bench(0.0012)
    bench.encode()
    bench.alone, bench.seconds = False, 0.0035
    bench.encode()
    bench.alone = True
    assert bench.encode()[0] == 6
    bench.alone, bench.seconds = False, 0.0004
    bench.encode()
    bench.encode()
    assert bench.encode()[0] > 12, "a quick one is one all the more"
