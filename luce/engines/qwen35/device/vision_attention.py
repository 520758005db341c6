"""Launches the attention of the vision tower (kernels/attention_vision.cu): between the two products of a block."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.vision import rotation

__all__ = ["VisionAttention", "VisionTiles", "turn_table"]

TILE = 64
"""Patches of a tile."""
INPUT_WARPS = 8


def turn_table(grid: tuple[int, int], head_dim: int, merge: int) -> npt.NDArray[np.float32]:
    """(cosine, sine) [N, head_dim / 2, 2] of a picture's patches for :meth:`VisionAttention.inputs`."""
    cos, sin = rotation(grid, head_dim, merge)
    return np.ascontiguousarray(np.stack([cos[:, 0, 0], sin[:, 0, 1]], axis=-1))


@attrs.frozen(eq=False)
class VisionTiles:
    """Queries, keys and values of one picture as the kernels hand them on; serve all blocks of the tower."""

    q: Array
    """bfloat16 bits [H, tiles, 64 · padded head dim]."""
    keys: Array
    values: Array
    """bfloat16 bits [H, tiles, 64 · head dim]."""


class VisionAttention:
    """The kernels for one tower's shapes."""

    def __init__(self, device: Device, config: VisionConfig) -> None:
        self._heads, self._dim = config.heads, config.hidden // config.heads
        shape = {"HEADS": self._heads, "HEAD_DIM": self._dim}
        self._inputs = device.kernel("attention_vision.cu", "vision_inputs", shape)
        self._attention = device.kernel("attention_vision.cu", "vision_attention", shape)
        found = device.zeros(4, np.int32)
        device.kernel("attention_vision.cu", "vision_attention_shape", shape)((1, 1, 1), 32, [found])
        self._threads, self._shared, self._rows, self._depth = map(int, device.numpy(found))

    def tiles_nbytes(self, patches: int) -> int:
        """Bytes of :meth:`tiles`."""
        return self._heads * -(-patches // TILE) * TILE * 2 * (2 * self._depth + self._dim)

    def tiles(self, device: Device, patches: int) -> VisionTiles:
        """Room for pictures of exactly as many tiles as ``patches`` need."""
        lead = (self._heads, -(-patches // TILE))
        deep, wide = TILE * self._depth, TILE * self._dim
        return VisionTiles(*(device.empty((*lead, size), np.uint16) for size in (deep, deep, wide)))

    def inputs(self, patches: int, x: Array, bias: Array | None, turn: Array, tiles: VisionTiles) -> None:
        """Bias, rotation and tiles.

        Args:
            x: float32 [patches, 3 · H · head dim or more]: queries, keys, values.
            bias: float32 [3 · H · head dim], or None.
            turn: :func:`turn_table`.
        """
        units = -(-patches // TILE) * TILE // 8 * 3 * self._heads
        self._inputs(
            (-(-units // INPUT_WARPS), 1, 1),
            32 * INPUT_WARPS,
            [x, np.int32(patches), np.int32(x.shape[1]), bias, turn, tiles.q, tiles.keys, tiles.values],
            early=True,
        )

    def attend(self, patches: int, tiles: VisionTiles, y: Array) -> None:
        """The mean of the values into ``y``, float32 [patches, H · head dim]."""
        self._attention(
            (-(-patches // self._rows), self._heads, 1),
            self._threads,
            [tiles.q, tiles.keys, tiles.values, np.int32(patches), y],
            shared=self._shared,
            early=True,
        )
