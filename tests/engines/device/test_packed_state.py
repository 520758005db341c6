"""What one launch packs is what stands in the pool, wherever the slot and however far; and it comes back to the same
places and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.device.descriptors import CHUNK_ROWS, RING_ROWS
from luce.engines.qwen35.device.layouts import state_parts
from luce.engines.qwen35.device.packed_state import (
    COUNT_BYTES,
    PackedPieces,
    conv_window,
    copy_arrays,
    packed_bytes,
    packed_parts,
    piece_bytes,
)
from luce.engines.qwen35.device.pool import DevicePool
from tests.engines.device.harness import device_of_tests
from tests.engines.models import tiny_config

CONFIG = tiny_config().text
SLOT, BLOCK = 2, 5

Host = npt.NDArray[Any]


def filled_pool(seed: int) -> DevicePool:
    pool = DevicePool(device_of_tests(), CONFIG, 4, 7, 300)
    rng = np.random.default_rng(seed)
    for array in (*pool.state.values(), *pool.kv.values()):
        pool.device.upload(
            array, rng.integers(0, 256, array.nbytes, np.uint8).view(array.dtype).reshape(array.shape)
        )
    return pool


def contents(pool: DevicePool) -> dict[str, Host]:
    return {name: pool.device.numpy(array) for name, array in (pool.state | pool.kv).items()}


def kept(whole: dict[str, Host], position: int) -> dict[str, Host]:
    """Views of what a copy keeps, by plain indexing."""
    first = position // CHUNK_ROWS * CHUNK_ROWS % RING_ROWS
    found: dict[str, Host] = {}
    for part in state_parts(CONFIG):
        values = whole[part.name][:, SLOT]
        if part.name == "conv":
            values = values[:, conv_window(position)]
        elif part.axis is not None:
            values = values[:, :, first : first + CHUNK_ROWS]
        found[part.name] = values
    return found | {name: whole[name][:, BLOCK] for name in ("keys", "values")}


class Mover:
    def __init__(self, pool: DevicePool) -> None:
        self.device, self.pieces = pool.device, PackedPieces(pool)
        arrays = {spec.name: pool.device.zeros(spec.shape, spec.dtype) for spec in copy_arrays(CONFIG, 1)}
        self.packed, self.table = arrays["packed states"][0], arrays["pieces"][0]

    def move(self, position: int, block: int | None, *, packing: bool) -> int:
        table = self.device.pinned(piece_bytes(CONFIG), np.uint8)
        count = self.pieces.fill(table, SLOT, position, block, packing=packing)
        self.device.upload(self.table, table)
        self.pieces.launch(self.table, count, self.packed, packing=packing)
        return count


@pytest.mark.parametrize("position", [1, 2, 3, 63, 64, 71, 72, 100, 128, 200, 255])
def test_packed_is_what_stands_in_the_pool(position: int) -> None:
    pool = filled_pool(position)
    mover = Mover(pool)
    count = mover.move(position, BLOCK, packing=True)
    assert count == (piece_bytes(CONFIG) - COUNT_BYTES) // 24
    packed = pool.device.numpy(mover.packed)
    wanted = kept(contents(pool), position)
    for part in packed_parts(CONFIG):
        np.testing.assert_array_equal(part.of(packed), wanted[part.name], err_msg=part.name)


@pytest.mark.parametrize("block", [BLOCK, None])
@pytest.mark.parametrize("position", [2, 64, 100, 200])
def test_it_comes_back_to_its_places_and_nowhere_else(position: int, block: int | None) -> None:
    source, target = filled_pool(0), filled_pool(1)
    before = contents(target)
    giving, taking = Mover(source), Mover(target)
    giving.move(position, BLOCK, packing=True)
    target.device.upload(taking.packed, source.device.numpy(giving.packed))
    taking.move(position, block, packing=False)
    wanted, news = kept(before, position), kept(contents(source), position)
    for name, values in wanted.items():
        if block is None and name in ("keys", "values"):
            continue
        if name == "conv":  # picked by places: a copy
            before[name][:, SLOT, conv_window(position)] = news[name]
        else:
            values[...] = news[name]
    for name, found in contents(target).items():
        np.testing.assert_array_equal(found, before[name], err_msg=name)


def test_parts_stand_behind_one_another() -> None:
    end = 0
    for part in packed_parts(CONFIG):
        assert end <= part.offset < end + 64 and part.offset % 64 == 0
        end = part.offset + part.nbytes
    assert end <= packed_bytes(CONFIG) < end + 64
