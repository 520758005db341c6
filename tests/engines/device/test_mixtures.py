"""A mixture of experts on the device engine: near the numpy engine, and the same bits whoever runs beside a request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.runner import Runner
from luce.engines.qwen35.slots import Slot
from tests.engines.device.harness import bf16_model, new_device_engine
from tests.engines.device.test_device_engine import greedy, spec
from tests.engines.harness import Driver, Rows, new_engine, same_bits
from tests.engines.models import MIXTURE

F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def engine() -> Iterator[DeviceEngine]:
    made = new_device_engine(*bf16_model(MIXTURE))
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def logits(engine: DeviceEngine) -> F32:
    return engine.forward_all(spec())[0]


def test_near_the_numpy_engine(engine: DeviceEngine) -> None:
    """A row whose last expert wins by less than rounding goes another way from there on; most rows do not."""
    on_cpu = new_engine(*bf16_model(MIXTURE), block_size=64, num_blocks=8)
    try:
        layers = on_cpu.forward_all(spec())[1]
    finally:
        on_cpu.shutdown()
    mine = engine.forward_all(spec())[1]
    for number, (a, b) in enumerate(zip(mine, layers, strict=True)):
        errors = np.sqrt(np.mean((a - b) ** 2, axis=1) / np.mean(b**2, axis=1))
        assert np.quantile(errors, 0.75) < 0.01 * (number + 1), number


@pytest.mark.parametrize("chunk", [7, 64, 100, 1000])
def test_chunks(engine: DeviceEngine, logits: F32, chunk: int) -> None:
    driver = Driver(engine)
    sequence = driver.open(spec(), slot=chunk % 4)
    driver.prefill(sequence, *range(chunk, len(spec().token_ids), chunk))
    for position, row in sequence.recorder.logits.items():
        assert same_bits(row, logits[position - 1]), position
    assert engine.audit(sequence.slot) == []
    driver.close(sequence)


def test_rows_one_by_one(engine: DeviceEngine, logits: F32) -> None:
    driver = Driver(engine)
    sequence = driver.open(spec(), slot=1)
    driver.step([Rows(sequence, 0, 120, sample=False)])
    for at in range(120, 130):
        driver.step([Rows(sequence, at, 1)])
    assert len(sequence.recorder.logits) == 10
    for position, row in sequence.recorder.logits.items():
        assert same_bits(row, logits[position - 1]), position
    driver.close(sequence)


def test_alone_and_beside_others_at_both_depths_eager_and_from_graphs() -> None:
    specs = [spec(), spec(3), spec(5)]
    engine = new_device_engine(*bf16_model(MIXTURE))
    try:
        alone = [greedy(engine, [one], 7, 1)[0] for one in specs]
        assert len({token for answer in alone for token, _ in answer}) > 5, "the model must say something"
        assert greedy(engine, specs, 7, 2) == alone
        assert greedy(engine, specs, 7, 1) == alone
    finally:
        engine.shutdown()
    eager = new_device_engine(*bf16_model(MIXTURE), eager=True)
    try:
        assert greedy(eager, specs, 7, 2) == alone
    finally:
        eager.shutdown()


def test_the_plan_is_what_is_allocated(engine: DeviceEngine) -> None:
    planned = sum(part.nbytes for part in engine.plan)

    def held(runner: Runner, _: dict[int, Slot]) -> int:
        pool = runner.pool
        arrays = [*pool.state.values(), *pool.kv.values(), pool.tables, pool.histories]
        return sum(int(array.nbytes) for array in arrays) + runner.program.nbytes + runner.copies.nbytes

    assert engine.call(held) == planned
