"""The vision tower: one picture's patches to merged rows (spec qwen35 §12).

Every call has a shape that depends on this picture alone, so its rows do not depend on any other picture, and there is
no shared scratch: the tower runs on the encoder's thread while the engine thread computes. Large arrays are let go as
soon as nothing reads them any more (:mod:`luce.engines.qwen35.memory_parts` counts what is there at once); what is
kept for the next picture are tables of positions and rotations, up to a number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
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

__all__ = ["VisionTower", "merge_order", "position_corners", "position_rows", "rotation"]

F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
T = TypeVar("T", VisionWeights, VisionBlockWeights)
Grid = tuple[int, int]
Tables = tuple[F32, F32, F32]

QUERY_ROWS = 256
"""Queries attended at once; bounds the score matrix of large pictures."""
TABLE_BYTES = 32 << 20
"""Most bytes of the tables of grids that are kept for the next picture of the same size."""
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


def position_corners(side: int, grid: tuple[int, int], merge: int) -> tuple[Ints, F32]:
    """Rows of the learned position table [side², d] around each patch, and their shares of its position, [N, 4] each
    in merge-block order."""
    rows, columns = merge_order(grid, merge)
    r0, r1, fr = _axis(rows, grid[0], side)
    c0, c1, fc = _axis(columns, grid[1], side)
    corners = [r0 * side + c0, r0 * side + c1, r1 * side + c0, r1 * side + c1]
    shares = [(1 - fr) * (1 - fc), (1 - fr) * fc, fr * (1 - fc), fr * fc]
    return np.stack(corners, axis=1), np.stack(shares, axis=1).astype(np.float32)


def position_rows(table: F32, side: int, grid: tuple[int, int], merge: int) -> F32:
    """The learned position table [side², d] resampled bilinearly to the grid, rows [N, d] in merge-block order."""
    corners, shares = position_corners(side, grid, merge)
    total: F32 = table[corners[:, 0]] * shares[:, :1]
    for corner in range(1, 4):
        total += table[corners[:, corner]] * shares[:, corner : corner + 1]
    return total


def rotation(grid: tuple[int, int], head_dim: int, merge: int) -> tuple[F32, F32]:
    """Cosines [N, 1, 1, hd/2] and signed sines [N, 1, 2, hd/2] of the 2-D rotary embedding."""
    rows, columns = merge_order(grid, merge)
    frequencies = inverse_frequencies(ROPE_BASE, head_dim // 2)
    angle = (np.arange(max(grid), dtype=np.float32)[:, None] * frequencies).astype(np.float64)  # of a place
    both, shape = np.stack([rows, columns], axis=1), (len(rows), head_dim // 2)
    cos = np.cos(angle).astype(np.float32)[both].reshape(shape)
    sin = np.sin(angle).astype(np.float32)[both].reshape(shape)
    return cos[:, None, None], np.stack([-sin, sin], axis=1)[:, None]


def _turned(weights: T, *names: str) -> T:
    """The same weights with the named matrices as [in, out]."""
    matrices: dict[str, Any] = {name: np.ascontiguousarray(getattr(weights, name).T) for name in names}
    return attrs.evolve(weights, **matrices)


class RecentTables:
    """What ``make`` gives for a grid; the results used last are kept, as many as ``most`` bytes hold."""

    def __init__(self, make: Callable[[Grid], Tables], most: int) -> None:
        self._make = make
        self._most = most
        self._kept: dict[Grid, Tables] = {}
        """The one used last stands last."""

    def __call__(self, grid: Grid) -> Tables:
        tables = self._kept.pop(grid, None) or self._make(grid)
        if self._size(tables) <= self._most:
            self._kept[grid] = tables
            while self.nbytes > self._most:
                del self._kept[next(iter(self._kept))]
        return tables

    @property
    def nbytes(self) -> int:
        return sum(map(self._size, self._kept.values()))

    @staticmethod
    def _size(tables: Tables) -> int:
        return sum(table.nbytes for table in tables)


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
        self._tables = RecentTables(self._make_tables, TABLE_BYTES)

    def _make_tables(self, grid: Grid) -> Tables:
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
        if gh < merge or gw < merge or gh % merge or gw % merge or image.values.shape != (gh * gw, values):
            raise RequestError(
                f"patches {image.values.shape} do not fit the grid {image.grid}: expected [{gh * gw}, {values}] and "
                f"sides that {merge} divides",
                field="image",
            )
        with np.errstate(all="ignore"):
            return self._encode(image)

    def _encode(self, image: PatchImage) -> F32:
        w = self.weights
        room = np.empty(ROOM, np.float32)
        positions, cos, sin = self._tables(image.grid)
        x = product(image.patches, w.patch, w.patch_bias, END_PIECES, room)
        x += positions
        normed = np.empty_like(x)
        for block in w.blocks:
            layer_norm(x, block.norm1, block.norm1_bias, self.eps, out=normed)
            x += self._attention(normed, block, cos, sin, room)
            layer_norm(x, block.norm2, block.norm2_bias, self.eps, out=normed)
            x += self._ffn(normed, block, room)
        layer_norm(x, w.merger_norm, w.merger_norm_bias, self.eps, out=normed)
        del x
        merged = normed.reshape(-1, self.config.hidden * self.config.merge_size**2)
        middle = gelu_erf(product(merged, w.merger_fc1, w.merger_fc1_bias, END_PIECES, room))
        return product(middle, w.merger_fc2, w.merger_fc2_bias, END_PIECES, room)

    def _attention(self, normed: F32, block: VisionBlockWeights, cos: F32, sin: F32, room: F32) -> F32:
        """What attention adds to the rows [N, d]."""
        queries, keys, values = self._heads(
            product(normed, block.qkv, block.qkv_bias, BLOCK_PIECES, room), cos, sin
        )
        mixed = self._attend(queries, keys, values)
        del queries, keys, values
        return product(mixed, block.proj, block.proj_bias, BLOCK_PIECES, room)

    def _ffn(self, normed: F32, block: VisionBlockWeights, room: F32) -> F32:
        """What the feed-forward layer adds to the rows [N, d]."""
        middle = gelu_tanh(product(normed, block.fc1, block.fc1_bias, BLOCK_PIECES, room))
        return product(middle, block.fc2, block.fc2_bias, BLOCK_PIECES, room)

    def _heads(self, qkv: F32, cos: F32, sin: F32) -> tuple[F32, F32, F32]:
        """Turned queries [H, N, hd], scaled, and keys [H, hd, N], and values [H, N, hd] of the rows [N, 3d]."""
        count, heads, dim = len(qkv), self.config.heads, self.head_dim
        qk = qkv[:, : 2 * heads * dim].reshape(count, 2 * heads, 2, dim // 2)
        turned = qk[:, :, ::-1] * sin
        qk = qk * cos
        qk += turned
        del turned
        qk = qk.reshape(count, 2, heads, dim)
        values = np.ascontiguousarray(qkv[:, 2 * heads * dim :].reshape(count, heads, dim).transpose(1, 0, 2))
        del qkv
        keys = np.ascontiguousarray(qk[:, 1].transpose(1, 2, 0))
        q = qk[:, 0] * np.float32(dim**-0.5)
        return np.ascontiguousarray(q.transpose(1, 0, 2)), keys, values

    def _attend(self, queries: F32, keys: F32, values: F32) -> F32:
        """Bidirectional attention of all patches, [N, d], before the output projection."""
        heads, count, dim = queries.shape
        mixed = np.empty((count, heads, dim), np.float32)
        held = np.empty(heads * min(QUERY_ROWS, count) * count, np.float32)
        for first in range(0, count, QUERY_ROWS):
            rows = min(QUERY_ROWS, count - first)
            scores = held[: heads * rows * count].reshape(heads, rows, count)
            np.matmul(queries[:, first : first + rows], keys, out=scores)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            total = np.add.reduce(scores, axis=-1, keepdims=True)
            part = scores @ values
            part /= total
            mixed[first : first + rows] = part.transpose(1, 0, 2)
        return mixed.reshape(count, heads * dim)
