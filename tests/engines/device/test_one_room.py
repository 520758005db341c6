"""An engine's arrays come from one allocation of just their size."""

from __future__ import annotations

import pytest

from luce.compute.room import room_bytes
from luce.engines.qwen35.config import MoeConfig
from tests.engines.device.harness import bf16_model, device_of_tests, new_device_engine
from tests.engines.device.rooms import watch_rooms


@pytest.mark.parametrize("moe", [None, MoeConfig(experts=8, used=3, ffn=64, shared_ffn=96)])
def test_what_is_planned_is_what_is_made(moe: MoeConfig | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = watch_rooms(device_of_tests(), monkeypatch)
    engine = new_device_engine(*bf16_model(moe), chunk_rows=64)
    engine.shutdown()
    ((size, taken),) = rooms
    assert size == room_bytes(spec.nbytes for spec in engine.plan)
    assert room_bytes(taken) - room_bytes(()) <= size, "arrays that the plan does not list"
    listed = sum(spec.nbytes for spec in engine.plan)
    assert listed <= sum(taken) < listed + 1024, "or lists and nobody makes"
