"""Everything a sequence leaves behind: key/value blocks, DeltaNet states with their rings, convolution rows.

Theory of operation (design §6, performance §4.4 form C). A slot's DeltaNet state is not advanced per token. Kept are

- ``S``, the state after ``base`` tokens, where ``base`` is the last *committed* multiple of 64;
- a ring of the rows after it: normalised keys ``k``, corrections ``u`` and the log decay ``G`` summed up since the
  start of the row's 64-chunk. A chunk's rows stand together, so a row reads one contiguous block of 64;
- the rows that entered the convolution, far enough back for any row that may still be computed.

A row at or past an uncommitted multiple of 64 reads a provisional state made from ``S`` and the ring. Rows that are
void cost nothing: the next segment starts lower and their ring rows are cleared. Ring rows that hold no token are
exact zeros in k and u, so the in-chunk sums always run over 64 rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import TextConfig
from luce.engines.seam import MAX_VOID_ROWS
from luce.errors import DeviceError

__all__ = ["CHUNK", "CONV_ROWS", "MAX_LANE_ROWS", "RING", "DeltaNetState", "KvLayer", "StatePool"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

CHUNK = 64
"""Rows between two places where the DeltaNet state may be folded."""
MAX_LANE_ROWS = MAX_VOID_ROWS
"""Most rows of one slot in one pass; rows from the start of the last pass on can be dropped."""
RING = 2 * CHUNK
"""Ring rows: up to 63 before a segment's start and up to 64 in it, in whole chunks."""
CONV_ROWS = 72
"""Rows kept before convolution: 3 before a segment and up to 64 in it."""


@attrs.frozen(eq=False)
class DeltaNetState:
    """One DeltaNet layer, all slots."""

    s: F32
    """[slots, Hk, r, Dk, Dv], S at the slot's base."""
    k: F32
    """[slots, Hk, RING, Dk]; position t stands at t mod RING."""
    u: F32
    """[slots, Hk, r, RING, Dv]."""
    g: F64
    """[slots, Hv, RING], float64: sums reach minus hundreds, and small differences of them matter."""
    conv: F32
    """[slots, CONV_ROWS, channels]; position t stands at t mod CONV_ROWS."""

    def arrays(self) -> tuple[F32 | F64, ...]:
        return self.s, self.k, self.u, self.g, self.conv

    def chunk(self, slot: int, base: int) -> tuple[F32, F32, F64]:
        """Views k [Hk, 64, Dk], u [Hk, r, 64, Dv] and g [Hv, 64] of the chunk that starts at ``base``."""
        rows = slice(base % RING, base % RING + CHUNK)
        return self.k[slot, :, rows], self.u[slot, :, :, rows], self.g[slot, :, rows]


@attrs.frozen(eq=False)
class KvLayer:
    """Keys and values of one attention layer, all blocks, position-major: [blocks · block size, Hkv, D]."""

    k: F32
    v: F32


class StatePool:
    """All sequence state of an engine, allocated once."""

    def __init__(
        self, config: TextConfig, num_slots: int, num_blocks: int, block_size: int, *, poison: bool = False
    ) -> None:
        """``poison``: what belongs to nobody holds NaN, so that any read of it shows (tests)."""
        self.num_slots = num_slots
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._fill = np.float32(np.nan if poison else 0.0)
        self._poison = poison
        self.held = bytearray(num_blocks)
        """By block: 1 while somebody holds it."""
        hk, hv, dk, dv = config.key_heads, config.value_heads, config.key_dim, config.value_dim

        def new(*shape: int) -> F32:
            return np.full(shape, self._fill, np.float32)

        # One array for all layers of a kind: large enough for huge pages.
        full = sum(config.full_attention)
        lead = (config.num_layers - full, num_slots)
        states = (
            new(*lead, hk, hv // hk, dk, dv),
            new(*lead, hk, RING, dk),
            new(*lead, hk, hv // hk, RING, dv),
            np.full((*lead, hv, RING), self._fill, np.float64),
            new(*lead, CONV_ROWS, config.conv_channels),
        )
        self.deltanet = [DeltaNetState(*(array[layer] for array in states)) for layer in range(lead[0])]
        rows = (full, num_blocks * block_size, config.kv_heads, config.head_dim)
        keys, values = new(*rows), new(*rows)
        self.kv = [KvLayer(keys[layer], values[layer]) for layer in range(full)]

    @property
    def bytes_per_slot(self) -> int:
        return sum(array.nbytes for layer in self.deltanet for array in layer.arrays()) // self.num_slots

    @property
    def bytes_per_token(self) -> int:
        total = sum(layer.k.nbytes + layer.v.nbytes for layer in self.kv)
        return total // (self.num_blocks * self.block_size)

    @property
    def bytes_per_snapshot(self) -> int:
        """S, the ring rows of one chunk and 3 convolution rows of every layer (design §6)."""
        per_slot = 0
        for layer in self.deltanet:
            per_slot += layer.s[0].nbytes + 3 * layer.conv[0, 0].nbytes
            per_slot += (layer.k[0].nbytes + layer.u[0].nbytes + layer.g[0].nbytes) // (RING // CHUNK)
        return per_slot

    @property
    def nbytes(self) -> int:
        kv = sum(layer.k.nbytes + layer.v.nbytes for layer in self.kv)
        return kv + self.bytes_per_slot * self.num_slots

    def clear(self, slot: int) -> None:
        """Make ``slot`` an empty sequence: S, rings and the 3 convolution rows before position 0 are zero."""
        for layer in self.deltanet:
            layer.s[slot] = 0.0
            layer.k[slot] = 0.0
            layer.u[slot] = 0.0
            layer.conv[slot, -3:] = 0.0

    def forget(self, slot: int) -> None:
        """Nobody owns ``slot``'s state any more."""
        if self._poison:
            for layer in self.deltanet:
                for array in layer.arrays():
                    array[slot] = np.nan

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
                rows = slice(block * self.block_size, (block + 1) * self.block_size)
                for layer in self.kv:
                    layer.k[rows] = np.nan
                    layer.v[rows] = np.nan

    def give_out(self, blocks: Sequence[int]) -> None:
        """These blocks are somebody's from now on: their values become exact zeros, since splits are read whole.

        Raises:
            DeviceError: a block does not exist, or somebody holds it.
        """
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.held[block]:
                raise DeviceError(f"block {block} is called fresh, but does not exist or is held already")
            self.held[block] = 1
            rows = slice(block * self.block_size, (block + 1) * self.block_size)
            for layer in self.kv:
                layer.v[rows] = 0.0

    def covers(self, table: Sequence[int], rows: int) -> bool:
        """Is there a held block in ``table`` for each of ``rows`` rows?"""
        needed = -(-rows // self.block_size)
        held, count = self.held, self.num_blocks
        return len(table) >= needed and all(0 <= block < count and held[block] for block in table[:needed])

    def rows_at(self, table: Sequence[int], first: int, stop: int) -> npt.NDArray[np.intp]:
        """Pool rows [stop - first] of the positions ``first`` … ``stop`` - 1."""
        position = np.arange(first, stop)
        blocks = np.asarray(table, np.intp)[position // self.block_size]
        rows: npt.NDArray[np.intp] = blocks * self.block_size + position % self.block_size
        return rows

    def drop_rows(self, slot: int, start: int, end: int) -> None:
        """Positions ``start`` … ``end`` - 1 of ``slot`` are void: their ring rows become exact zeros again."""
        rows = np.arange(start, end) % RING
        for layer in self.deltanet:
            layer.k[slot][:, rows] = 0.0
            layer.u[slot][:, :, rows] = 0.0
