"""The vision tower: one picture's patches to merged rows (spec qwen35 §12).

Every call has a shape that depends on this picture alone, so its rows do not depend on any other picture, and there is
no shared scratch: the tower runs on the encoder's thread while the engine thread computes. It keeps per-grid tables
(positions and rotations) in a small cache.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.ops import gelu_erf, gelu_tanh, layer_norm
from luce.compute.pieces import ROOM, product
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.rope import inverse_frequencies
from luce.engines.qwen35.weights import VisionBlockWeights, VisionWeights
from luce.engines.seam import PatchImage
from luce.errors import RequestError

__all__ = ["VisionTower", "merge_order", "position_rows", "rotation"]

F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
T = TypeVar("T", VisionWeights, VisionBlockWeights)

QUERY_ROWS = 256
"""Queries attended at once; bounds the score matrix of large pictures."""
ROPE_BASE = 10000.0
BLOCK_PIECES = 4
"""Pieces that the products of the blocks are summed in."""
END_PIECES = 16
"""The same for the patch embedding and the merger: most of the rows' error arises there, and little of the time."""


def merge_order(grid: tuple[int, int], merge: int) -> tuple[Ints, Ints]:
    """Row and column [N] of each patch in merge-block order (spec §11)."""
    gh, gw = grid
    shape = (gh // merge, merge, gw // merge, merge)
    rows = np.broadcast_to(np.arange(gh).reshape(gh // merge, merge, 1, 1), shape)
    columns = np.broadcast_to(np.arange(gw).reshape(1, 1, gw // merge, merge), shape)
    return rows.transpose(0, 2, 1, 3).ravel(), columns.transpose(0, 2, 1, 3).ravel()


def _axis(place: Ints, size: int, side: int) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Table indices below and above, and the fraction, with corners aligned."""
    scale = (side - 1) / (size - 1) if size > 1 else 0.0
    source = place.astype(np.float64) * scale
    low = source.astype(np.intp)
    return low, np.minimum(low + 1, side - 1), source - low


def position_rows(table: F32, side: int, grid: tuple[int, int], merge: int) -> F32:
    """The learned position table [side², d] resampled bilinearly to the grid, rows [N, d] in merge-block order."""
    rows, columns = merge_order(grid, merge)
    r0, r1, fr = _axis(rows, grid[0], side)
    c0, c1, fc = _axis(columns, grid[1], side)
    total: F32 = table[r0 * side + c0] * ((1 - fr) * (1 - fc)).astype(np.float32)[:, None]
    total += table[r0 * side + c1] * ((1 - fr) * fc).astype(np.float32)[:, None]
    total += table[r1 * side + c0] * (fr * (1 - fc)).astype(np.float32)[:, None]
    total += table[r1 * side + c1] * (fr * fc).astype(np.float32)[:, None]
    return total


def rotation(grid: tuple[int, int], head_dim: int, merge: int) -> tuple[F32, F32]:
    """Cosines [N, 1, 1, hd/2] and signed sines [N, 1, 2, hd/2] of the 2-D rotary embedding."""
    rows, columns = merge_order(grid, merge)
    frequencies = inverse_frequencies(ROPE_BASE, head_dim // 2)
    places = np.stack([rows, columns], axis=1).astype(np.float32)
    angle = (places[:, :, None] * frequencies).reshape(len(rows), head_dim // 2).astype(np.float64)
    sin = np.sin(angle).astype(np.float32)
    return np.cos(angle).astype(np.float32)[:, None, None], np.stack([-sin, sin], axis=1)[:, None]


def _turned(weights: T, *names: str) -> T:
    """The same weights with the named matrices as [in, out]."""
    matrices: dict[str, Any] = {name: np.ascontiguousarray(getattr(weights, name).T) for name in names}
    return attrs.evolve(weights, **matrices)


class VisionTower:
    """``tower(image)`` → merged rows [num_tokens, out_hidden] float32."""

    def __init__(self, config: VisionConfig, weights: VisionWeights) -> None:
        self.config = config
        blocks = tuple(_turned(block, "qkv", "proj", "fc1", "fc2") for block in weights.blocks)
        turned = _turned(weights, "patch", "merger_fc1", "merger_fc2")
        self.weights = attrs.evolve(turned, blocks=blocks)
        """Matrices as [in, out]; the ones given are not kept."""
        self.eps = np.float32(config.layer_norm_eps)
        self.head_dim = config.hidden // config.heads
        self._tables = functools.lru_cache(maxsize=16)(self._make_tables)

    def _make_tables(self, grid: tuple[int, int]) -> tuple[F32, F32, F32]:
        merge = self.config.merge_size
        positions = position_rows(self.weights.positions, self.config.grid_side, grid, merge)
        return positions, *rotation(grid, self.head_dim, merge)

    def __call__(self, image: PatchImage) -> F32:
        """Encode one picture.

        Raises:
            RequestError: patches and grid do not fit each other or the tower.
        """
        config, merge = self.config, self.config.merge_size
        gh, gw = image.grid
        values = config.in_channels * config.patch_size**2
        if gh < merge or gw < merge or gh % merge or gw % merge or image.patches.shape != (gh * gw, values):
            raise RequestError(
                f"patches {image.patches.shape} do not fit the grid {image.grid}: expected [{gh * gw}, {values}] and "
                f"sides that {merge} divides",
                field="image",
            )
        with np.errstate(all="ignore"):
            return self._encode(np.asarray(image.patches, np.float32), image.grid)

    def _encode(self, patches: F32, grid: tuple[int, int]) -> F32:
        w = self.weights
        room = np.empty(ROOM, np.float32)
        positions, cos, sin = self._tables(grid)
        x = product(patches, w.patch, w.patch_bias, END_PIECES, room)
        x += positions
        normed = np.empty_like(x)
        for block in w.blocks:
            layer_norm(x, block.norm1, block.norm1_bias, self.eps, out=normed)
            qkv = product(normed, block.qkv, block.qkv_bias, BLOCK_PIECES, room)
            x += product(self._attend(qkv, cos, sin), block.proj, block.proj_bias, BLOCK_PIECES, room)
            layer_norm(x, block.norm2, block.norm2_bias, self.eps, out=normed)
            middle = product(normed, block.fc1, block.fc1_bias, BLOCK_PIECES, room)
            x += product(gelu_tanh(middle), block.fc2, block.fc2_bias, BLOCK_PIECES, room)
        layer_norm(x, w.merger_norm, w.merger_norm_bias, self.eps, out=normed)
        merged = normed.reshape(-1, self.config.hidden * self.config.merge_size**2)
        middle = product(merged, w.merger_fc1, w.merger_fc1_bias, END_PIECES, room)
        return product(gelu_erf(middle), w.merger_fc2, w.merger_fc2_bias, END_PIECES, room)

    def _attend(self, qkv: F32, cos: F32, sin: F32) -> F32:
        """Bidirectional attention of all patches, [N, 3d] to [N, d], before the output projection."""
        count, heads, dim = len(qkv), self.config.heads, self.head_dim
        qk = qkv[:, : 2 * heads * dim].reshape(count, 2 * heads, 2, dim // 2)
        turned = qk[:, :, ::-1] * sin
        qk = qk * cos
        qk += turned
        qk = qk.reshape(count, 2, heads, dim)
        q = qk[:, 0] * np.float32(dim**-0.5)
        queries = np.ascontiguousarray(q.transpose(1, 0, 2))
        keys = np.ascontiguousarray(qk[:, 1].transpose(1, 2, 0))
        values = np.ascontiguousarray(qkv[:, 2 * heads * dim :].reshape(count, heads, dim).transpose(1, 0, 2))
        mixed = np.empty((count, heads, dim), np.float32)
        for first in range(0, count, QUERY_ROWS):
            scores = queries[:, first : first + QUERY_ROWS] @ keys
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            total = np.add.reduce(scores, axis=-1, keepdims=True)
            part = scores @ values
            part /= total
            mixed[first : first + QUERY_ROWS] = part.transpose(1, 0, 2)
        return mixed.reshape(count, heads * dim)
