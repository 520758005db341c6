"""Launches the attention kernels (kernels/attention_*.cu): what stands between the two products of an attention layer.

A pass runs :meth:`AttentionKernels.inputs` and then :meth:`~AttentionKernels.step` (lanes of one row) or
:meth:`~AttentionKernels.chunks` (any lanes). Both give a row the same bits: the tree is in kernels/attention.h.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.activations import padded_depth
from luce.compute.device import Array, Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.rope import rotations

__all__ = ["AttentionKernels", "KvArrays", "PassArrays", "SplitArrays", "rope_table"]

INPUT_WARPS = 8
WGMMA_DIMS = (128, 256)


def rope_table(config: TextConfig, positions: int) -> npt.NDArray[np.float32]:
    """(cosine, sine) [positions, rotary_dim / 2, 2] for :meth:`AttentionKernels.inputs`."""
    return np.stack(rotations(config, positions), axis=-1)


@attrs.frozen(eq=False)
class PassArrays:
    """The parts of a pass's descriptors, on the device (see ``Descriptors``)."""

    header: Array
    rows: Array
    lanes: Array
    tiles: Array
    tables: Array
    """int32, block tables; a lane's begins at its ``table``."""


@attrs.frozen(eq=False)
class KvArrays:
    """Pools of one layer: bfloat16 bits [blocks, Hkv, 64 · D], tiles as kernels/attention.h lays them out."""

    keys: Array
    values: Array

    @property
    def blocks(self) -> np.int32:
        return np.int32(self.keys.shape[0])


@attrs.frozen(eq=False)
class SplitArrays:
    """Scratch of a step: what each split of a lane gives."""

    parts: Array
    """float32 [rows, H, splits, D]."""
    marks: Array
    """float32 [rows, H, splits, 4]."""

    @property
    def splits(self) -> int:
        return int(self.marks.shape[2])


class AttentionKernels:
    """The kernels for one model's shapes; serves all its layers."""

    def __init__(self, device: Device, config: TextConfig, *, wgmma: bool | None = None) -> None:
        """``wgmma``: prefill by warpgroup products, which take heads of 128 or 256 dims; by default on sm_90a alone."""
        self._heads, self._kv_heads, self._dim = config.heads, config.kv_heads, config.head_dim
        self._eps = np.float32(config.rms_eps)
        self._depth = np.int32(padded_depth(self._heads * self._dim))
        shape = {"HEADS": self._heads, "KV_HEADS": self._kv_heads, "HEAD_DIM": self._dim}
        _, h, w = config.mrope_section
        turning = {"ROTARY": config.rotary_dim, "SECTION_H": h, "SECTION_W": w}
        self._inputs = device.kernel("attention_inputs.cu", "attention_inputs", {**shape, **turning})
        shape["SHARED_LIMIT"] = device.shared_limit
        self._decode = device.kernel("attention_decode.cu", "attention_decode", shape)
        self._merge = device.kernel("attention_decode.cu", "attention_merge", shape)
        self.wgmma = self._dim in WGMMA_DIMS and device.arch == "sm_90a" if wgmma is None else wgmma
        prefill = "attention_prefill_wgmma" if self.wgmma else "attention_prefill"
        self._prefill = device.kernel(f"{prefill}.cu", prefill, shape)
        found = device.zeros(4, np.int32)
        device.kernel("attention_decode.cu", "attention_decode_shape", shape)((1, 1, 1), 32, [found])
        self._decode_threads, self._decode_shared, self.split_keys, _ = map(int, device.numpy(found))
        device.kernel(f"{prefill}.cu", f"{prefill}_shape", shape)((1, 1, 1), 32, [found])
        self._prefill_threads, self._prefill_shared, self.query_tile, self._tile_heads = map(
            int, device.numpy(found)
        )
        """``query_tile``: most rows of a Tile."""
        self._decode_blocks = device.multiprocessors

    def split_arrays(self, device: Device, rows: int, max_context: int) -> SplitArrays:
        """Scratch for steps of up to ``rows`` lanes of up to ``max_context`` tokens."""
        splits = -(-max_context // self.split_keys)
        shape = (rows, self._heads, splits)
        return SplitArrays(
            device.empty((*shape, self._dim), np.float32), device.empty((*shape, 4), np.float32)
        )

    def inputs(
        self,
        batch: PassArrays,
        rows: int,
        x: Array,
        q_norm: Array,
        k_norm: Array,
        rope: Array,
        q: Array,
        kv: KvArrays,
    ) -> None:
        """Normalised and turned queries into ``q``, keys and values of the rows into the pools.

        Args:
            rows: most rows of the pass.
            x: float32 [rows, 2 · H · D + 2 · Hkv · D or more]: (query, gate) by head, keys, values.
            q_norm, k_norm: float32 [D], the factors (1 + weight).
            rope: :func:`rope_table`.
            q: bfloat16 bits [rows, H, D].
        """
        units = rows * (self._heads + 2 * self._kv_heads)
        self._inputs(
            (-(-units // INPUT_WARPS), 1, 1),
            32 * INPUT_WARPS,
            [
                *(x, np.int32(x.shape[1]), q_norm, k_norm, rope, np.int32(rope.shape[0])),
                *(batch.header, batch.rows, q, kv.keys, kv.values, kv.blocks, self._eps),
            ],
            shared=4 * INPUT_WARPS * self._dim,
            early=True,
        )

    def step(
        self,
        batch: PassArrays,
        rows: int,
        x: Array,
        q: Array,
        kv: KvArrays,
        scratch: SplitArrays,
        y: Array,
        y_rows: int,
        y_tile: int = 0,
    ) -> None:
        """Gated attention of lanes of one row each into ``y``, whose layout is told by ``y_rows`` and ``y_tile``.

        Args:
            rows: most lanes of the pass, at most 64.
            scratch: long enough for every lane, or the rest of the lane is not read.
        """
        self.splits(batch, q, kv, scratch)
        self.merge(batch, rows, x, kv, scratch, y, y_rows, y_tile)

    def splits(self, batch: PassArrays, q: Array, kv: KvArrays, scratch: SplitArrays) -> None:
        """The first half of :meth:`step`: every split for itself."""
        self._decode(
            (self._decode_blocks, 1, 1),
            self._decode_threads,
            [
                *(q, kv.keys, kv.values, batch.header, batch.lanes, batch.tables, kv.blocks),
                *(scratch.parts, scratch.marks, np.int32(scratch.splits)),
            ],
            shared=self._decode_shared,
            early=True,
        )

    def merge(
        self,
        batch: PassArrays,
        rows: int,
        x: Array,
        kv: KvArrays,
        scratch: SplitArrays,
        y: Array,
        y_rows: int,
        y_tile: int = 0,
    ) -> None:
        """The second half of :meth:`step`: splits in order, gates, and the rows of ``y``."""
        self._merge(
            (rows, self._heads, 1),
            self._dim,
            [
                *(
                    scratch.parts,
                    scratch.marks,
                    batch.header,
                    batch.rows,
                    batch.lanes,
                    batch.tables,
                    kv.blocks,
                ),
                *(np.int32(scratch.splits), x, np.int32(x.shape[1])),
                *(y, np.int32(y_rows), np.int32(y_tile), self._depth),
            ],
            shared=16 * self._dim + 64,
            early=True,
        )

    def chunks(
        self,
        batch: PassArrays,
        tiles: int,
        x: Array,
        q: Array,
        kv: KvArrays,
        y: Array,
        y_rows: int,
        y_tile: int,
    ) -> None:
        """Gated attention of all rows of the pass into ``y``, whose layout is told by ``y_rows`` and ``y_tile``.

        Args:
            tiles: tiles of the pass, of up to ``query_tile`` rows each.
        """
        self._prefill(
            (self._heads // self._tile_heads, tiles, 1),
            self._prefill_threads,
            [
                *(q, kv.keys, kv.values, batch.header, batch.rows, batch.lanes, batch.tiles, batch.tables),
                *(kv.blocks, x, np.int32(x.shape[1])),
                *(y, np.int32(y_rows), np.int32(y_tile), self._depth),
            ],
            shared=self._prefill_shared,
            early=True,
        )
