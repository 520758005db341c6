"""Short chunk passes from graphs: launched with round counts, with the bits of their own rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from luce.compute.device import Device, Kernel
from luce.compute.kernel_sources import Defines
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.passes import GRAPH_ROWS
from luce.engines.qwen35.device.plan import DeviceSizes
from luce.engines.qwen35.device.runner import WARM_LANES, chunk_class, graph_rows
from luce.engines.qwen35.device.setting_up import _kernels
from luce.engines.qwen35.device.weights import list_weights, upload
from luce.engines.seam import RowSource
from tests.engines.device.harness import bf16_model, device_of_tests, new_device_engine
from tests.engines.harness import Driver, Rows, random_ids, same_bits, text_spec
from tests.engines.models import NAN_TOKEN, SAMPLED_IDS


@pytest.fixture(scope="module")
def engine() -> Iterator[DeviceEngine]:
    """Its chunk passes have 64 rows at most."""
    made = new_device_engine(*bf16_model(), chunk_rows=64)
    yield made
    made.shutdown()


def test_counts_that_a_pass_is_launched_with() -> None:
    assert chunk_class((7, 1, 0, 1), 16) == (16, 1, 1, 2)
    assert chunk_class((17, 1, 0, 2), 16) == (64, 1, 1, 5)
    assert chunk_class((64, 1, 1, 4), 16) == (64, 1, 1, 5)
    assert chunk_class((65, 3, 1, 6), 16) == (128, 8, 8, 16)
    assert chunk_class((65, 9, 1, 12), 16) == (128, 16, 16, 24)
    assert chunk_class((2 * GRAPH_ROWS, 2, 2, 40), 64) == (2 * GRAPH_ROWS, 8, 8, 2 * GRAPH_ROWS // 64 + 8)
    assert chunk_class((GRAPH_ROWS + 1, 1, 0, 9), 64) is None, "there would be hundreds of graphs"
    assert chunk_class((40, 1, 40, 3), 16) is None, "all rows are looked at"


def test_what_serving_needs_is_recorded_at_the_start() -> None:
    """Whatever pieces prompts are cut into, beside each other or alone, with samples or without."""
    recorded = {chunk_class((rows, lanes, 1, 1), 64) for rows in graph_rows(2048) for lanes in WARM_LANES}
    assert len(recorded) == 18
    for rows in range(2, GRAPH_ROWS + 1):
        for lanes in range(1, min(rows // 2, 8) + 1):
            assert {chunk_class((rows, lanes, samples, 1), 64) for samples in (0, lanes)} <= recorded


def test_there_is_room_for_every_tile_of_every_pass() -> None:
    for rows in range(2, GRAPH_ROWS + 1, 37):
        for lanes in (1, 2, 3, 8):
            counts = [2 + (rows - 2 * lanes) * (lane == 0) for lane in range(lanes)]
            if sum(counts) != rows or min(counts) < 2:
                continue
            tiles = sum(-(-count // 16) for count in counts)
            found = chunk_class((rows, lanes, lanes, tiles), 16)
            assert found is not None
            assert all(mine >= own for mine, own in zip(found, (rows, lanes, lanes, tiles), strict=True))


@pytest.fixture(scope="module")
def whole() -> Iterator[DeviceEngine]:
    """Its chunk passes have room for whole prompts."""
    made = new_device_engine(*bf16_model(), chunk_rows=320)
    yield made
    made.shutdown()


def test_recorded_at_the_start_they_touch_no_sequence(engine: DeviceEngine) -> None:
    """Passes of other counts than those that were recorded, beside a sequence that turns into NaN."""
    specs = [text_spec(random_ids(130, seed)) for seed in (1, 2)]
    right = [engine.forward_all(spec)[0] for spec in specs]
    engine.call(lambda runner, _: runner.warm())
    recorded = engine.call(lambda runner, _: dict(runner._graphs))
    classes = 2 * len(WARM_LANES)
    assert sum(len(key) == 4 for key in recorded) == classes and None not in recorded.values()
    driver = Driver(engine)
    one, two = (driver.open(spec, slot) for slot, spec in enumerate(specs))
    bad = driver.open(text_spec([1, NAN_TOKEN, *random_ids(100, 7)]), 2)
    for at in range(0, 130, 26):
        outcomes = driver.step([Rows(bad, bad.high, 9), Rows(one, at, 26), Rows(two, at, 13)])
        assert outcomes[1].error is None and outcomes[2].error is None
        driver.step([Rows(two, at + 13, 13)])
    for sequence, logits in zip((one, two), right, strict=True):
        assert len(sequence.recorder.logits) >= 5
        for position, row in sequence.recorder.logits.items():
            assert same_bits(row, logits[position - 1]), position
        assert engine.audit(sequence.slot) == []
    seen = engine.call(lambda runner, _: list(runner._graphs))
    assert seen == list(recorded), "a pass of three lanes was among those recorded"


@pytest.mark.parametrize("most", [100, 13])
def test_a_last_row_beside_others_prompts_has_its_bits(whole: DeviceEngine, most: int) -> None:
    """In a chunk pass, of many rows and of few, and the sequence goes on from there."""
    engine = whole
    specs = [text_spec(random_ids(130, seed)) for seed in (1, 2, 3)]
    right = [engine.forward_all(spec)[0] for spec in specs]
    driver = Driver(engine)
    one, two, three = (driver.open(spec, slot) for slot, spec in enumerate(specs))
    driver.step([Rows(one, 0, 129, sample=False), Rows(two, 0, 129, sample=False)])
    kinds: list[tuple[bool, int]] = []

    def noted(is_step: bool, pieces: Any, *rest: Any, **more: Any) -> Any:
        kinds.append((is_step, len(pieces)))
        return plain(is_step, pieces, *rest, **more)

    runner: Any = engine._runner
    plain = runner._pass
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "_pass", noted)
        outcomes = driver.step([Rows(one, 129, 1), Rows(three, 0, most), Rows(two, 129, 1)])
    assert kinds == [(False, 3)] and all(outcome.error is None for outcome in outcomes)
    for _ in range(3):
        driver.step([Rows(one, one.high, 1, RowSource.LAST_SAMPLED)])
    for at in range(most, 130, 30):
        driver.step([Rows(three, at, min(30, 130 - at))])
    for sequence, logits in zip((one, two, three), right, strict=True):
        assert sequence.recorder.logits
        for position, row in sequence.recorder.logits.items():
            assert position > 130 or same_bits(row, logits[position - 1]), position
        assert engine.audit(sequence.slot) == []
        driver.close(sequence)


def test_what_is_recorded_at_the_start_was_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side with everything else, not one after the other while recording."""
    config, weights = bf16_model()
    device, text = device_of_tests(), list_weights(weights)
    upload(device, text)
    sizes = DeviceSizes(4, 24, 512, 128)
    compiled = set(_kernels(device, config.text, text, sizes, SAMPLED_IDS, tiled=False))
    engine = new_device_engine(config, weights, chunk_rows=128)
    asked: set[tuple[str, str, tuple[tuple[str, int | str], ...]]] = set()
    make = type(device).kernel

    def noted(self: Device, source: str, name: str, defines: Defines | None = None) -> Kernel:
        asked.add((source, name, tuple(sorted((defines or {}).items()))))
        return make(self, source, name, defines)  # type: ignore[arg-type]

    monkeypatch.setattr(type(device), "kernel", noted)
    try:
        engine.call(lambda runner, _: (runner._graphs.clear(), runner.warm()))
    finally:
        engine.shutdown()
    assert any(source == "gemm_prefill.cu" for source, _, _ in asked)
    assert asked <= compiled
