"""Launches the attention of the vision tower (kernels/attention_vision*.cu) and says how its operands stand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.vision import rotation

__all__ = ["VisionAttention", "paired_rows", "tile_values", "turn_table"]

TILE = 64
"""Patches of a tile."""
WGMMA_DIMS = (64, 72, 80)
"""Heads that kernels/wgmma.h has products for."""


def turn_table(grid: tuple[int, int], head_dim: int, merge: int) -> npt.NDArray[np.float32]:
    """(cosine, sine) [N, head_dim / 2, 2] of a picture's patches for the product of queries, keys and values."""
    cos, sin = rotation(grid, head_dim, merge)
    return np.ascontiguousarray(np.stack([cos[:, 0, 0], sin[:, 0, 1]], axis=-1))


def paired_rows(heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Which row of a block's first matrix [3 H D, d] stands at each place on the device: of queries and keys, the two
    dims that turn together 8 rows apart (kernels/gemm_tower_epilogue.h)."""
    half = head_dim // 2
    first = np.arange(heads)[:, None] * head_dim + np.arange(half)
    pairs = np.stack([first, first + half]).reshape(2, -1, 8).transpose(1, 0, 2).reshape(-1)
    width = heads * head_dim
    return np.concatenate([pairs, width + pairs, 2 * width + np.arange(width)])


def padded_dim(head_dim: int) -> int:
    """Dims of queries and keys with the zeros behind them."""
    return -(-head_dim // 16) * 16


def tile_values(config: VisionConfig, patches: int) -> int:
    """bf16 numbers of the tiles of a picture's queries, keys and values (kernels/vision_tiles.h). What pads heads must
    be zero from the start; nobody writes there, whatever the picture."""
    dim = config.hidden // config.heads
    return -(-patches // TILE) * TILE * config.heads * (2 * padded_dim(dim) + dim)


class VisionAttention:
    """The kernel for one tower's shapes: by warpgroup products where there are some for its heads, with the same bits.

    Args:
        wgmma: instead of what the device and the heads allow.
    """

    def __init__(self, device: Device, config: VisionConfig, *, wgmma: bool | None = None) -> None:
        self._heads, self._dim = config.heads, config.hidden // config.heads
        self.shape = {"HEADS": self._heads, "HEAD_DIM": self._dim}
        """Macros."""
        if wgmma is None:
            wgmma = device.arch in ("sm_90a", "host") and self._dim in WGMMA_DIMS
        kind = "_wgmma" if wgmma else ""
        source, name = f"attention_vision{kind}.cu", f"vision_attention{kind}"
        self._attention = device.kernel(source, name, self.shape)
        found = device.zeros(3, np.int32)
        device.kernel(source, f"{name}_shape", self.shape)((1, 1, 1), 32, [found])
        self._threads, self._shared, self._rows = map(int, device.numpy(found))

    def attend(self, patches: int, tiles: Array, y: Array, rows: int, depth: int) -> None:
        """The mean of the values into the activations ``y`` of ``rows`` rows and ``depth`` (prefill layout;
        without sums and without what pads the depth)."""
        self._attention(
            (-(-patches // self._rows), self._heads, 1),
            self._threads,
            [tiles, np.int32(patches), y, np.int32(rows), np.int32(depth)],
            shared=self._shared,
            early=True,
        )
