"""The matrix keeps a device's engine for one service after the other."""

from __future__ import annotations

from typing import Any

from luce.demo.matrix.running import _KeptEngine
from luce.engines.seam import SlotWork, WorkKind
from tests.engines.device.harness import bf16_model, new_device_engine
from tests.engines.harness import Driver, random_ids, same_bits, text_spec


def test_nothing_of_a_service_is_left_to_the_next_one() -> None:
    engine = new_device_engine(*bf16_model())
    kept: Any = _KeptEngine(engine)
    try:
        spec = text_spec(random_ids(70, 3))
        for _ in range(2):  # the second one gets the same handle and the same blocks
            driver = Driver(kept)
            sequence = driver.open(spec, slot=1)
            driver.prefill(sequence)
            (saved,) = driver.run(work=[SlotWork(WorkKind.SAVE, 1, 70, 5)]).work
            assert saved.error is None
            assert same_bits(sequence.recorder.logits[70], engine.forward_all(spec)[0][69])
            kept.close(1)
            kept.shutdown()
            left = engine.call(lambda runner, _: (len(runner.stored.states), any(runner.pool.held)))
            assert left == (0, False)
            del driver, sequence
            kept = _KeptEngine(engine)  # drivers remember blocks by engine
    finally:
        kept.end()
