"""Rows of pictures that stay on the device: found by the prompts that show them, the same bits as from the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.kept_rows import KEPT_PICTURES, KEPT_ROWS, KeptRows, kept_rows
from tests.engines.device.harness import bf16_model, device_of_tests, new_device_engine
from tests.engines.device.test_pictures import PATCHES, picture
from tests.engines.harness import Driver, image_spec, random_ids, same_bits

Host = npt.NDArray[Any]
WIDTH = 8


class Store:
    """Room for ten rows, and what was kept."""

    def __init__(self) -> None:
        self.device = device_of_tests()
        self.kept = KeptRows(self.device, self.device.zeros((10, WIDTH), np.float32))
        self.seed = 0

    def keep(self, count: int) -> Host:
        self.seed += 1
        rows = np.random.default_rng(self.seed).standard_normal((count, WIDTH)).astype(np.float32)
        self.kept.keep(rows, self.device.array(rows))
        return rows

    def has(self, rows: Host, start: int = 0, count: int = 1) -> bool:
        to = self.device.zeros((count, WIDTH), np.float32)
        found = self.kept.put(rows, start, to)
        if found:
            assert same_bits(self.device.numpy(to), rows[start : start + count])
        return found


def test_the_last_ones_are_there_and_the_oldest_give_way() -> None:
    store = Store()
    first, second = store.keep(4), store.keep(5)
    assert store.has(first, 1, 3) and store.has(second, 0, 5)
    third = store.keep(2)  # from the beginning: one row is left at the end
    assert not store.has(first) and store.has(second, 4) and store.has(third, 0, 2)
    fourth = store.keep(3)
    assert store.has(third) and store.has(fourth, 0, 3) and not store.has(second)
    assert not store.has(store.keep(11)), "more than there is room for"
    assert store.has(third) and store.has(fourth)


def test_rows_are_known_by_themselves() -> None:
    """Equal rows in other memory may belong to somebody else by the next moment."""
    store = Store()
    rows = store.keep(4)
    assert store.has(rows) and not store.has(rows.copy())
    del rows
    assert not store.has(np.zeros((4, WIDTH), np.float32))


def test_what_is_read_is_not_written_before() -> None:
    """The encoder's stream waits for the pass that reads what it writes over."""
    store = Store()
    order: list[str] = []

    class Event:
        def __init__(self) -> None:
            self.name = ""

        def record(self) -> None:
            order.append("record")

        def wait(self) -> None:
            order.append("wait")

    copy = store.device.copy
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store.device, "event", Event)
        patched.setattr(store.device, "copy", lambda *a: (order.append("copy"), copy(*a))[1])
        rows = store.keep(6)
        assert order == ["copy", "record"]
        assert store.has(rows)
        assert order[2:] == ["wait", "copy", "record"]
        store.keep(6)
    assert order[5:] == ["wait", "copy", "record"]


def test_room_for_a_few_pictures() -> None:
    assert kept_rows(16) == 16 * KEPT_PICTURES
    assert kept_rows(16_384) == KEPT_ROWS


@pytest.fixture(scope="module")
def engine() -> Iterator[DeviceEngine]:
    made = new_device_engine(*bf16_model(), max_patches=PATCHES, num_slots=2, num_blocks=12)
    yield made
    made.shutdown()


def logits_of(engine: DeviceEngine, rows: list[Host], cuts: tuple[int, ...]) -> dict[int, Host]:
    spec = image_spec([*random_ids(9, 1), (8, 10), *random_ids(20, 2), (4, 4), *random_ids(70, 3)], rows)
    driver = Driver(engine)
    sequence = driver.open(spec, slot=1)
    driver.prefill(sequence, *cuts)
    driver.close(sequence)
    return sequence.recorder.logits


@pytest.mark.parametrize("cuts", [(), (15, 16, 40)])
def test_a_prompt_finds_its_pictures_on_the_device(
    engine: DeviceEngine, cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [engine.encode(picture((8, 10), 0)), engine.encode(picture((4, 4), 1))]
    found: list[bool] = []
    kept: Any = engine._runner.kept
    put = kept.put
    monkeypatch.setattr(kept, "put", lambda *a: (found.append(put(*a)), found[-1])[1])
    here = logits_of(engine, rows, cuts)
    assert found and all(found)
    found.clear()
    from_host = logits_of(engine, [one.copy() for one in rows], cuts)
    assert found and not any(found)
    assert here.keys() == from_host.keys() and here
    assert all(same_bits(row, from_host[position]) for position, row in here.items())
    engine.call(lambda runner, _: runner.device.fill(kept._array, 0x3C))
    other = logits_of(engine, rows, cuts)
    assert not all(same_bits(row, here[position]) for position, row in other.items()), "it is read there"
