"""What products multiply: what leaves the range of f16 fails its request alone, and says what to try."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from luce.compute import cupy_device
from luce.compute.operands import Operands
from luce.engines.choose_device import choose_device
from luce.engines.seam import RowSource, Segment, SegmentKind, StepPlan
from luce.errors import ConfigError
from tests.engines.device.harness import bf16_model, device_of_tests, new_device_engine
from tests.engines.harness import Driver, Rows, same_bits, text_spec


def test_rows_beyond_the_range_say_what_to_try() -> None:
    """Scales of the final norm that make activations of three millions of one token's row alone."""
    config, weights = bf16_model()
    spec = text_spec([3, 1, 4, 1, 5])
    found: dict[Operands, str | None] = {}
    for operands in Operands:
        scales = np.full_like(weights.final_norm, 2.0**22)
        engine = new_device_engine(
            config, attrs.evolve(weights, final_norm=scales), device=device_of_tests(operands), num_slots=2
        )
        try:
            table = Driver(engine).take(1)
            engine.open(0, spec)
            segment = Segment(0, SegmentKind.PREFILL, 0, 5, RowSource.PROMPT, True)
            ticket = engine.launch(StepPlan(0, (segment,), (tuple(table),), fresh_blocks=tuple(table)))
            found[operands] = engine.collect(ticket).outcomes[0].error
        finally:
            engine.shutdown()
    assert found[Operands.BF16] is None
    assert "not finite; f16 may have no numbers for them, try --operands bf16" in (found[Operands.F16] or "")


def test_a_row_has_its_bits_beside_others_and_in_pieces() -> None:
    config, weights = bf16_model()
    engine = new_device_engine(config, weights, device=device_of_tests(Operands.BF16))
    try:
        spec = text_spec([(7 * i + 3) % 100 for i in range(90)])
        whole = engine.forward_all(spec)[0]
        driver = Driver(engine)
        sequence, other = driver.open(spec, slot=1), driver.open(text_spec([5, 6, 7, 8]), slot=2)
        driver.step([Rows(sequence, 0, 65), Rows(other, 0, 3)])
        driver.step([Rows(other, 3, 1), Rows(sequence, 65, 24)])
        driver.step([Rows(sequence, 89, 1)])
        assert len(sequence.recorder.logits) == 3
        for position, logits in sequence.recorder.logits.items():
            assert same_bits(logits, whole[position - 1]), position
    finally:
        engine.shutdown()


def test_the_cpu_has_no_such_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_none(*_: object, **__: object) -> None:
        raise ConfigError("no GPU")

    monkeypatch.setattr(cupy_device, "open_device", open_none)
    for device in ("cpu", "auto"):
        with pytest.raises(ConfigError, match="is for a GPU; the CPU multiplies float32") as refused:
            choose_device(device, operands=Operands.F16)
        assert refused.value.flag == "--operands"
