"""The vision tower on a device: one picture's patches to merged rows (spec qwen35 §12), on a stream of its own.

Products read bf16 and sum in float32, attention likewise; the rows between are float32. Every launch has a shape that
depends on this picture alone, so its rows do not depend on any other picture nor on what the text model does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute import gemm_prefill
from luce.compute.activations import BUCKETS, num_values, padded_depth
from luce.compute.bf16 import round_bf16
from luce.compute.device import Array, Device
from luce.compute.gemm import Epilogue, GemmScratch, WeightMatrix, scratch_for
from luce.compute.gemm_prefill import launch_gemm_prefill, prefill_rows
from luce.compute.norms import NORM_SHARED, norm_threads
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.slices import Run, at_once
from luce.engines.qwen35.device.vision_attention import VisionAttention, VisionTiles, turn_table
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.vision import position_rows
from luce.engines.qwen35.weights import VisionBlockWeights, VisionWeights
from luce.engines.seam import PatchImage
from luce.errors import RequestError

__all__ = ["DeviceVision", "vision_arrays", "vision_weight_bytes"]

F32 = npt.NDArray[np.float32]

FEW = BUCKETS[-1]
"""Rows that go through the GEMM for few rows."""
THREADS = 256
PART_BLOCKS = 1
"""Blocks of the tower in a part of the launches."""


def vision_arrays(config: VisionConfig, patches: int) -> tuple[ArraySpec, ...]:
    """Working memory for pictures of up to ``patches`` patches."""
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    deepest = max(config.ffn, config.hidden, width)
    merged = config.hidden * config.merge_size**2
    tokens = -(-patches // config.merge_size**2)
    inputs = max(_input_values(patches, deepest), _input_values(tokens, merged))
    part = "vision tower"
    return (
        ArraySpec(part, "patches", (patches, width)),
        ArraySpec(part, "positions", (patches, config.hidden)),
        ArraySpec(part, "rotations", (patches, config.hidden // config.heads // 2, 2)),
        ArraySpec(part, "rows", (patches, config.hidden)),
        ArraySpec(part, "products", (max(patches * max(3 * config.hidden, config.ffn), tokens * merged),)),
        ArraySpec(part, "mixed", (patches, config.hidden)),
        ArraySpec(part, "product inputs", (inputs,), "uint16"),
        ArraySpec(part, "encoded", (tokens, config.out_hidden)),
    )


def vision_weight_bytes(config: VisionConfig) -> int:
    """Bytes of the matrices in records."""
    d, merged = config.hidden, config.hidden * config.merge_size**2
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    block = [(3 * d, d), (d, d), (config.ffn, d), (d, config.ffn)]
    shapes = [(d, width), *block * config.depth, (merged, merged), (config.out_hidden, merged)]
    return sum(-(-rows // 16) * 16 * padded_depth(depth) * 2 for rows, depth in shapes)


def _height(rows: int) -> int:
    return next((size for size in BUCKETS if size >= rows), prefill_rows(rows))


def _tile(rows: int) -> int:
    return 0 if rows <= FEW else prefill_rows(rows)


def _input_values(rows: int, depth: int) -> int:
    return num_values(_height(rows), depth, _tile(rows))


@attrs.frozen(eq=False)
class _Block:
    norm1: Array
    norm1_bias: Array
    qkv: WeightMatrix
    qkv_bias: Array
    proj: WeightMatrix
    proj_bias: Array
    norm2: Array
    norm2_bias: Array
    fc1: WeightMatrix
    fc1_bias: Array
    fc2: WeightMatrix
    fc2_bias: Array


class DeviceVision:
    """``tower(image)`` → merged rows [num_tokens, out_hidden] float32.

    Args:
        max_patches: of one picture; larger ones are refused.
        run: launches a picture's parts, given its patches.

    Raises:
        DeviceError: a kernel does not compile, or there is not enough memory.
    """

    def __init__(
        self,
        device: Device,
        config: VisionConfig,
        weights: VisionWeights,
        max_patches: int,
        run: Run = at_once,
    ) -> None:
        self.config = config
        self.max_patches = max_patches
        self._device = device
        self._run = run
        self.stream = device.stream()
        with device.using(self.stream):
            self._load(weights)
            names = vision_arrays(config, max_patches)
            self._arrays = {one.name: device.empty(one.shape, one.dtype) for one in names}
            self._attention = VisionAttention(device, config)
            self._tiles = self._attention.tiles(device, max_patches)
            plans = [one.plan(rows) for one in self._matrices() for rows in BUCKETS]
            self._scratch: GemmScratch = scratch_for(device, plans)
            names_of = ("ROUND", "GELU", "GELU_ERF")
            self._pointwise = {
                name: device.kernel("pointwise.cu", "pointwise", {"FUNCTION": name}) for name in names_of
            }
            self._add_bias = device.kernel("pointwise.cu", "add_bias", {"FUNCTION": "ROUND"})
            self._layer_norm = device.kernel("norm.cu", "layer_norm")
            self._staging = device.pinned((max_patches, self._arrays["patches"].shape[1]), np.float32)
            self._result = device.pinned(self._arrays["encoded"].shape, np.float32)
            device.synchronize()
        self._parts = max(-(-config.depth // PART_BLOCKS), 1)
        self._grid: tuple[int, int] | None = None
        """Whose positions and rotations are on the device."""

    def _load(self, weights: VisionWeights) -> None:
        device = self._device

        def matrix(values: F32) -> WeightMatrix:
            flat = np.asarray(values, np.float32).reshape(len(values), -1)
            raw = round_bf16(flat).view(np.uint8).reshape(len(values), -1)
            return WeightMatrix.load(device, "BF16", raw, flat.shape[1])

        def vector(values: F32) -> Array:
            return device.array(np.ascontiguousarray(values, np.float32))

        def block(one: VisionBlockWeights) -> _Block:
            return _Block(
                **{
                    field.name: (matrix if field.type in (WeightMatrix, "WeightMatrix") else vector)(
                        getattr(one, field.name)
                    )
                    for field in attrs.fields(_Block)
                }
            )

        self._table = np.asarray(weights.positions, np.float32)
        self._patch, self._patch_bias = matrix(weights.patch), vector(weights.patch_bias)
        self._blocks = tuple(map(block, weights.blocks))
        self._norm, self._norm_bias = vector(weights.merger_norm), vector(weights.merger_norm_bias)
        self._fc1, self._fc1_bias = matrix(weights.merger_fc1), vector(weights.merger_fc1_bias)
        self._fc2, self._fc2_bias = (
            matrix(weights.merger_fc2),
            np.asarray(weights.merger_fc2_bias, np.float32),
        )

    def _matrices(self) -> Iterator[WeightMatrix]:
        yield from (self._patch, self._fc1, self._fc2)
        for block in self._blocks:
            yield from (block.qkv, block.proj, block.fc1, block.fc2)

    def __call__(self, image: PatchImage) -> F32:
        """Encode one picture, on the caller's thread; one at a time.

        Raises:
            RequestError: patches and grid do not fit each other or the tower, or it is too large.
        """
        config, merge = self.config, self.config.merge_size
        gh, gw = image.grid
        count = gh * gw
        values = config.in_channels * config.patch_size**2
        if gh < merge or gw < merge or gh % merge or gw % merge or image.values.shape != (count, values):
            raise RequestError(
                f"patches {image.values.shape} do not fit the grid {image.grid}: expected [{count}, {values}] and "
                f"sides that {merge} divides",
                field="image",
            )
        if count > self.max_patches:
            raise RequestError(
                f"the picture has {count} patches, the server takes {self.max_patches}", field="image"
            )
        with self._device.using(self.stream):
            self._enter(image.patches, image.grid, count)
            self._run(partial(self._launch, count), self._parts, count)
            tokens = count // merge**2
            result = self._result[:tokens]
            self._device.download(result, self._arrays["encoded"][:tokens])
            self.stream.synchronize()
            found: F32 = result + self._fc2_bias
        return found

    # -- launches -------------------------------------------------------------------------------------------------

    def _enter(self, patches: F32, grid: tuple[int, int], count: int) -> None:
        """The picture's inputs, on their way to the device."""
        self._place(grid, count)
        staged = self._staging.reshape(-1)[: patches.size].reshape(patches.shape)
        staged[...] = patches
        self._device.upload(self._raw(count), staged)

    def _raw(self, count: int) -> Array:
        width = self.config.in_channels * self.config.patch_size**2
        return self._arrays["patches"].reshape(-1)[: count * width].reshape(count, width)

    def _launch(self, count: int, part: int) -> None:
        """A part of the launches, one after the other from the inputs to encoded rows."""
        config, arrays = self.config, self._arrays
        x, d = arrays["rows"][:count], config.hidden
        if part == 0:
            raw = self._raw(count)
            self._activate("ROUND", raw, int(raw.shape[1]), None)
            y = self._product(self._patch, count)
            self._add(count, x, y, self._patch_bias, arrays["positions"])
        mixed = arrays["mixed"][:count]
        tiles = self._tiles_of(count)
        for block in self._blocks[part * PART_BLOCKS : (part + 1) * PART_BLOCKS]:
            self._normed(x, block.norm1, block.norm1_bias, 1)
            y = self._product(block.qkv, count)
            self._attention.inputs(count, y, block.qkv_bias, arrays["rotations"], tiles)
            self._attention.attend(count, tiles, mixed)
            self._activate("ROUND", mixed, d, None)
            self._add(count, x, self._product(block.proj, count), block.proj_bias, None)
            self._normed(x, block.norm2, block.norm2_bias, 1)
            self._activate("GELU", self._product(block.fc1, count), config.ffn, block.fc1_bias)
            self._add(count, x, self._product(block.fc2, count), block.fc2_bias, None)
        if part + 1 < self._parts:
            return
        group = config.merge_size**2
        tokens = count // group
        self._normed(x, self._norm, self._norm_bias, group)
        self._activate("GELU_ERF", self._product(self._fc1, tokens), d * group, self._fc1_bias)
        self._product(self._fc2, tokens, arrays["encoded"])

    def _place(self, grid: tuple[int, int], count: int) -> None:
        """Positions and rotations of a grid; those of the picture before stay when it has the same."""
        if grid == self._grid:
            return
        merge, dim = self.config.merge_size, self.config.hidden // self.config.heads
        positions = position_rows(self._table, self.config.grid_side, grid, merge)
        turns = turn_table(grid, dim, merge)
        self._grid = None
        for name, values in (("positions", positions), ("rotations", turns)):
            to = self._arrays[name].reshape(-1)[: values.size]
            self._device.copy(to, self._device.array(values.reshape(-1)))
        self.stream.synchronize()
        self._grid = grid

    def _tiles_of(self, count: int) -> VisionTiles:
        """The room as tiles of this picture."""
        heads, number = self.config.heads, -(-count // 64)

        def part(array: Array) -> Array:
            size = array.shape[2]
            return array.reshape(-1)[: heads * number * size].reshape(heads, number, size)

        return VisionTiles(part(self._tiles.q), part(self._tiles.keys), part(self._tiles.values))

    def _product(self, matrix: WeightMatrix, rows: int, to: Array | None = None) -> Array:
        """x W^T of the product inputs, f32 [rows, N]."""
        if to is None:
            to = self._arrays["products"][: rows * matrix.rows].reshape(rows, matrix.rows)
        x, height = self._arrays["product inputs"], _height(rows)
        if rows <= FEW:
            matrix.decode(x, to, height, Epilogue.STORE, self._scratch, valid=rows)
        else:
            launch_gemm_prefill(
                self._device,
                matrix.format,
                matrix.records,
                x,
                to,
                live=rows,
                rows=height,
                n=matrix.rows,
                depth=matrix.depth,
                epilogue=gemm_prefill.Epilogue.STORE,
            )
        return to

    def _activate(self, function: str, x: Array, width: int, bias: Array | None) -> None:
        """The next product's inputs: function(x + bias) of f32 [rows, width]."""
        rows, depth = int(x.shape[0]), padded_depth(width)
        self._pointwise[function](
            (-(-depth // (8 * THREADS)), rows, 1),
            THREADS,
            [
                *(None, np.int32(rows), x, np.int32(x.shape[1]), bias, np.int32(width)),
                *(
                    self._arrays["product inputs"],
                    np.int32(_height(rows)),
                    np.int32(_tile(rows)),
                    np.int32(depth),
                ),
            ],
            early=True,
        )

    def _normed(self, x: Array, scale: Array, bias: Array, group: int) -> None:
        """The next product's inputs: ``group`` normalised rows side by side in each."""
        rows, width = int(x.shape[0]) // group, int(x.shape[1])
        self._layer_norm(
            (rows, 1, 1),
            norm_threads(width),
            [
                *(x, scale, bias, np.float32(self.config.layer_norm_eps), np.int32(width), np.int32(group)),
                *(self._arrays["product inputs"], np.int32(_height(rows)), np.int32(_tile(rows))),
                np.int32(padded_depth(width * group)),
            ],
            shared=NORM_SHARED + 8 * group,
            early=True,
        )

    def _add(self, rows: int, x: Array, y: Array, bias: Array, table: Array | None) -> None:
        """x = (table or x) + (y + bias)."""
        width = int(x.shape[1])
        self._add_bias(
            (-(-width // THREADS), rows, 1),
            THREADS,
            [np.int32(rows), x, y, np.int32(y.shape[1]), bias, table, np.int32(width)],
            early=True,
        )
