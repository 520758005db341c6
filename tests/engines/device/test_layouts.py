"""What stands where on the device."""

from __future__ import annotations

import numpy as np
import pytest

from luce.engines.qwen35.device.layouts import (
    block_rows,
    bytes_per_snapshot,
    kv_arrays,
    rows_block,
    state_arrays,
)
from tests.engines.models import demo_config


@pytest.mark.parametrize("values", [False, True])
def test_blocks_to_rows_and_back(values: bool) -> None:
    heads, dim = 2, 32
    tiles = np.arange(heads * 64 * dim, dtype=np.uint16).reshape(heads, 64 * dim)
    rows = block_rows(tiles, dim, values=values)
    assert rows.shape == (64, heads, dim)
    for key, head, at in ((0, 0, 0), (9, 1, 17), (63, 1, 31)):
        core = (key // 8 * (dim // 8) + at // 8) * 64
        inside = at % 8 * 8 + key % 8 if values else key % 8 * 8 + at % 8
        assert rows[key, head, at] == tiles[head, core + inside]
    assert np.array_equal(rows_block(rows, values=values), tiles)


def test_sizes_of_the_27b() -> None:
    """Design §7: a snapshot of the 27B is about 157 MB, a token 64 KiB."""
    import attrs

    text = attrs.evolve(
        demo_config().text,
        num_layers=64,
        full_attention=tuple((i + 1) % 4 == 0 for i in range(64)),
        hidden=5120,
        heads=24,
        kv_heads=4,
        key_heads=16,
        value_heads=48,
    )
    assert 155e6 < bytes_per_snapshot(text) < 250e6
    assert sum(spec.nbytes for spec in kv_arrays(text, 10)) == 10 * 64 * 64 * 1024
    per_slot = sum(spec.nbytes for spec in state_arrays(text, 1))
    assert per_slot > bytes_per_snapshot(text)
