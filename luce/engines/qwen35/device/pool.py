"""What sequences leave behind on the device, and which KV blocks somebody holds.

Nothing here is ever cleared: kernels know by position what is there (``kernels/batch.h``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from luce.compute.device import Array, Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS
from luce.engines.qwen35.device.layouts import bytes_per_snapshot, kv_arrays, state_arrays
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.errors import DeviceError

__all__ = ["DevicePool", "allocate", "pool_arrays"]


def pool_arrays(slots: int, max_context: int) -> Iterator[ArraySpec]:
    """Block tables and histories. A row launched ahead may overrun the context, and draws for the place behind it."""
    part = "recurrent state"
    yield ArraySpec(part, "block tables", (slots, -(-(max_context + 1) // BLOCK_ROWS)), "int32")
    yield ArraySpec(part, "histories", (slots, max_context + 2), "int32")


def allocate(device: Device, arrays: Iterable[ArraySpec]) -> dict[str, Array]:
    """The arrays by name."""
    return {spec.name: device.empty(spec.shape, np.dtype(spec.dtype)) for spec in arrays}


class DevicePool:
    """Recurrent state of all slots, keys and values of all blocks, block tables and histories."""

    block_size = BLOCK_ROWS

    def __init__(
        self,
        device: Device,
        config: TextConfig,
        num_slots: int,
        num_blocks: int,
        max_context: int,
        *,
        poison: bool = False,
    ) -> None:
        """``poison``: what belongs to nobody holds NaN patterns (tests)."""
        self.device, self.config = device, config
        self.num_slots, self.num_blocks = num_slots, num_blocks
        self._poison = poison
        self.held = bytearray(num_blocks)
        """By block: 1 while somebody holds it."""
        self.state = allocate(device, state_arrays(config, num_slots))
        """By name, [DeltaNet layers, slots, …]."""
        self.kv = allocate(device, kv_arrays(config, num_blocks))
        """Keys and values [attention layers, blocks, Hkv, 64, D], bfloat16 bits."""
        others = allocate(device, pool_arrays(num_slots, max_context))
        self.tables, self.histories = others["block tables"], others["histories"]
        if poison:
            for array in (*self.state.values(), *self.kv.values()):
                device.fill(array, 0xFF)

    @property
    def table_stride(self) -> int:
        """Entries of a slot's block table."""
        return int(self.tables.shape[1])

    @property
    def history_stride(self) -> int:
        return int(self.histories.shape[1])

    @property
    def bytes_per_slot(self) -> int:
        return sum(int(array.nbytes) for array in self.state.values()) // self.num_slots

    @property
    def bytes_per_token(self) -> int:
        return sum(int(array.nbytes) for array in self.kv.values()) // (self.num_blocks * BLOCK_ROWS)

    @property
    def bytes_per_snapshot(self) -> int:
        return bytes_per_snapshot(self.config)

    def forget(self, slot: int) -> None:
        """Nobody owns ``slot``'s state any more."""
        if self._poison:
            for array in self.state.values():
                for layer in range(array.shape[0]):
                    self.device.fill(array[layer, slot], 0xFF)

    def take_back(self, blocks: Sequence[int]) -> None:
        """Nobody holds these blocks any more.

        Raises:
            DeviceError: nobody held one of them.
        """
        for block in blocks:
            if not (0 <= block < self.num_blocks and self.held[block]):
                raise DeviceError(f"block {block} is freed, but nobody held it")
            self.held[block] = 0
            if self._poison:
                for array in self.kv.values():
                    for layer in range(array.shape[0]):
                        self.device.fill(array[layer, block], 0xFF)

    def give_out(self, blocks: Sequence[int]) -> None:
        """These blocks are somebody's from now on.

        Raises:
            DeviceError: a block does not exist, or somebody holds it.
        """
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.held[block]:
                raise DeviceError(f"block {block} is called fresh, but does not exist or is held already")
            self.held[block] = 1

    def covers(self, table: Sequence[int], rows: int) -> bool:
        """Is there a held block in ``table`` for each of ``rows`` rows?"""
        needed = -(-rows // BLOCK_ROWS)
        held, count = self.held, self.num_blocks
        return len(table) >= needed and all(0 <= block < count and held[block] for block in table[:needed])
