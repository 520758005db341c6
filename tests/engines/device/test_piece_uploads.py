"""Rows on their way to the device through two small buffers: whole, and none overwritten before it was read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luce.engines.qwen35.device.buffers import PieceUploads
from tests.engines.device.harness import device_of_tests
from tests.engines.harness import same_bits

WIDTH = 24


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40])
def test_all_rows_come_over(rows: int) -> None:
    device = device_of_tests()
    uploads = PieceUploads(device, 8 * WIDTH * 4)
    for seed in range(3):
        wanted = np.random.default_rng(seed).standard_normal((rows, 2 * WIDTH)).astype(np.float32)[:, ::2]
        to = device.zeros((rows, WIDTH), np.float32)
        uploads.upload(to, wanted)
        assert same_bits(device.numpy(to), wanted)


def test_a_buffer_is_filled_again_when_its_copy_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = device_of_tests()
    order: list[str] = []

    class Event:
        def record(self) -> None:
            order.append("record")

        def synchronize(self) -> None:
            order.append("wait")

    monkeypatch.setattr(device, "event", Event)
    uploads = PieceUploads(device, 8 * WIDTH * 4)
    to = device.zeros((32, WIDTH), np.float32)
    uploads.upload(to, np.ones((32, WIDTH), np.float32))
    assert order == ["record", "record", "wait", "record", "wait", "record"]
    uploads.upload(to[:8], np.ones((8, WIDTH), np.float32))
    assert order[6:] == ["wait", "record"]
