"""The vision tower on a device: one picture's patches to merged rows (spec qwen35 §12), on a stream of its own.

Products read operands and sum in float32, attention reads bf16; residual rows are float32. A block is seven kernels:
norm, queries with keys and values, attention, output product, norm, two products. Every launch has a shape that depends
on this picture alone, so its rows do not depend on any other picture nor on what the text model does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.activations import num_values, padded_depth
from luce.compute.device import Array, Device, Graph
from luce.compute.gemm_prefill import prefill_rows
from luce.compute.gemm_tower import (
    TowerEpilogue,
    TowerMatrix,
    launch_gemm_tower,
    tower_kernels,
    tower_matrix_bytes,
)
from luce.compute.room import room_bytes
from luce.compute.spread_copies import SpreadCopies
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.compiling import compile_all
from luce.engines.qwen35.device.kept_rows import KeptRows, kept_rows
from luce.engines.qwen35.device.slices import Run, at_once
from luce.engines.qwen35.device.vision_attention import VisionAttention, paired_rows, tile_values, turn_table
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.vision import position_corners
from luce.engines.qwen35.weights import VisionBlockWeights, VisionWeights
from luce.engines.seam import PatchImage
from luce.errors import RequestError

__all__ = ["GRAPHS", "DeviceVision", "layer_norm_shared", "vision_arrays", "vision_weight_arrays"]

F32 = npt.NDArray[np.float32]

WARPS = 8
"""Rows of a block of kernels/vision_rows.cu."""
PART_BLOCKS = 1
"""Blocks of the tower in a part of the launches."""
GRAPHS = 8
"""Sizes of pictures whose launches are kept: a part from one call, whatever else Python does."""


def vision_arrays(config: VisionConfig, patches: int, *, beside: bool = False) -> tuple[ArraySpec, ...]:
    """Working memory for pictures of up to ``patches`` patches. ``beside``: as :class:`DeviceVision` takes it."""
    width = config.in_channels * config.patch_size**2
    merged = config.hidden * config.merge_size**2
    tokens = -(-patches // config.merge_size**2)
    inputs = max(_input_values(patches, max(config.hidden, width)), _input_values(tokens, merged))
    inner = max(_input_values(patches, config.ffn), _input_values(tokens, merged))
    part = "vision tower"
    kept = (ArraySpec(part, "kept rows", (kept_rows(tokens), config.out_hidden)),) if beside else ()
    return (
        ArraySpec(part, "patches", (patches, width)),
        ArraySpec(part, "corners", (patches, 4), "int32"),
        ArraySpec(part, "shares", (patches, 4)),
        ArraySpec(part, "rotations", (patches, config.hidden // config.heads // 2, 2)),
        ArraySpec(part, "rows", (patches, config.hidden)),
        ArraySpec(part, "heads", (tile_values(config, patches),), "uint16"),
        ArraySpec(part, "product inputs", (inputs,), "uint16"),
        ArraySpec(part, "inner inputs", (inner,), "uint16"),
        ArraySpec(part, "encoded", (tokens, config.out_hidden)),
        *kept,
    )


def vision_weight_arrays(config: VisionConfig) -> Iterator[ArraySpec]:
    """Learned positions, matrices, their biases, and the norms' vectors."""
    d, merged = config.hidden, config.hidden * config.merge_size**2
    width = config.in_channels * config.patch_size**2
    block = [(3 * d, d), (d, d), (config.ffn, d), (d, config.ffn)]
    shapes = [(d, width), *block * config.depth, (merged, merged), (config.out_hidden, merged)]
    part = "vision tower"
    yield ArraySpec(part, "learned positions", (config.grid_side**2, d))
    for number, (rows, depth) in enumerate(shapes):
        yield ArraySpec(part, f"matrix {number}", (tower_matrix_bytes(rows, depth),), "uint8")
        yield ArraySpec(part, f"bias {number}", (rows,))
    for number in range(4 * config.depth + 2):
        yield ArraySpec(part, f"norm {number}", (d,))


def layer_norm_shared(width: int) -> int:
    """Bytes of shared memory of ``layer_norm``."""
    return WARPS * (width // 8 | 1) * 16


def _input_values(rows: int, depth: int) -> int:
    height = prefill_rows(rows)
    return num_values(height, depth, height)


@attrs.frozen(eq=False)
class _Block:
    norm1: Array
    norm1_bias: Array
    qkv: TowerMatrix
    proj: TowerMatrix
    norm2: Array
    norm2_bias: Array
    fc1: TowerMatrix
    fc2: TowerMatrix


class DeviceVision:
    """``tower(image)`` → merged rows [num_tokens, out_hidden] float32.

    Args:
        max_patches: of one picture; larger ones are refused.
        run: launches a picture's parts, given its patches.
        beside: the text model is on the same device, and finds the last pictures' rows there.

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
        *,
        beside: bool = False,
    ) -> None:
        self.config = config
        self.max_patches = max_patches
        self._device = device
        self._run = run
        self.stream = device.stream()
        working = vision_arrays(config, max_patches, beside=beside)
        size = room_bytes(one.nbytes for one in (*vision_weight_arrays(config), *working))
        with device.using(self.stream):
            with device.room(size):
                self._load(weights)
                self._arrays = {one.name: device.zeros(one.shape, one.dtype) for one in working}
                self._attention = VisionAttention(device, config)
            if device.arch != "host":  # where compiling takes longest, a test asks for few of them
                compile_all(device, list(tower_kernels(device, self._attention.shape)))
            self._of_shades = device.kernel("vision_rows.cu", "patches_of_shades")
            self._of_values = device.kernel("vision_rows.cu", "patches_of_values")
            self._positions = device.kernel("vision_rows.cu", "positions")
            self._layer_norm = device.kernel("vision_rows.cu", "layer_norm", {"WIDTH": config.hidden})
            self._staging = device.pinned(self._arrays["patches"].nbytes, np.uint8)
            self._result = device.pinned(self._arrays["encoded"].shape, np.float32)
            device.synchronize()
        self.kept = KeptRows(device, self._arrays["kept rows"]) if beside else None
        self._copies = SpreadCopies()
        self._grid: tuple[int, int] | None = None
        """Whose positions and rotations are on the device."""
        self._scale: F32 | None = None
        self._scale_array: Array = None
        """What shades stand for, on the device."""
        self._parts = max(-(-config.depth // PART_BLOCKS), 1)
        self._graphs: dict[int, list[Graph] | None] = {}
        """Of parts, by number of patches; None after the first picture of that many. The size used last stands last."""

    def _load(self, weights: VisionWeights) -> None:
        device = self._device

        def matrix(values: F32, bias: F32) -> TowerMatrix:
            return TowerMatrix.load(device, values.reshape(len(values), -1), bias)

        def vector(values: F32) -> Array:
            return device.array(np.ascontiguousarray(values, np.float32))

        def block(one: VisionBlockWeights) -> _Block:
            return _Block(
                vector(one.norm1),
                vector(one.norm1_bias),
                matrix(one.qkv[order], one.qkv_bias[order]),
                matrix(one.proj, one.proj_bias),
                vector(one.norm2),
                vector(one.norm2_bias),
                matrix(one.fc1, one.fc1_bias),
                matrix(one.fc2, one.fc2_bias),
            )

        order = paired_rows(self.config.heads, self.config.hidden // self.config.heads)
        self._table = vector(weights.positions)
        self._patch = matrix(weights.patch, weights.patch_bias)
        self._blocks = tuple(map(block, weights.blocks))
        self._norm, self._norm_bias = vector(weights.merger_norm), vector(weights.merger_norm_bias)
        self._fc1 = matrix(weights.merger_fc1, weights.merger_fc1_bias)
        self._fc2 = matrix(weights.merger_fc2, weights.merger_fc2_bias)

    def _matrices(self) -> Iterator[TowerMatrix]:
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
            self._place(image.grid, count)
            self._enter(image, count)
            self._run(partial(self._launch, count), self._parts, count)
            return self._leave(image.num_tokens)

    def close(self) -> None:
        """No more pictures."""
        self._copies.close()

    # -- launches -------------------------------------------------------------------------------------------------

    def _enter(self, image: PatchImage, count: int) -> None:
        """The first product's inputs. Shades become numbers on the device."""
        device, width = self._device, image.values.shape[1]
        staged = self._staging[: image.values.nbytes].view(image.values.dtype).reshape(image.values.shape)
        raw = self._arrays["patches"].reshape(-1).view(np.uint8)[: image.values.nbytes]
        to = raw.view(image.values.dtype).reshape(image.values.shape)
        for piece in self._copies.each(staged, image.values):
            device.upload(to[piece], staged[piece])
        height = prefill_rows(count)
        of_shades = image.scale is not None
        if of_shades and image.scale is not self._scale:
            self._scale, self._scale_array = image.scale, device.array(np.asarray(image.scale, np.float32))
        kernel = self._of_shades if of_shades else self._of_values
        kernel(
            (-(-count // WARPS), 1, 1),
            32 * WARPS,
            [
                *((raw, self._scale_array) if of_shades else (raw,)),
                *map(np.int32, (count, width)),
                *((np.int32(self.config.patch_size**2),) if of_shades else ()),
                *(self._arrays["product inputs"], np.int32(height), np.int32(padded_depth(width))),
            ],
            early=True,
        )

    def _leave(self, tokens: int) -> F32:
        """The encoded rows in memory of the caller's own, copied there as they come."""
        device, result, rows = self._device, self._result[:tokens], self._arrays["encoded"][:tokens]
        found = np.empty_like(result)
        if self.kept is not None:
            self.kept.keep(found, rows)
        arrivals = []
        for piece in self._copies.pieces(result):
            device.download(result[piece], rows[piece])
            event = device.event()
            event.record()
            arrivals.append((piece, event))
        found.fill(0)  # its pages come in while the device computes
        copies = []
        for piece, event in arrivals:
            event.synchronize()
            copies.append(self._copies.start(found[piece], result[piece]))
        for copy in copies:
            copy.result()
        return found

    def _launch(self, count: int, part: int) -> None:
        """A part of the launches, one after the other from the inputs to encoded rows. The first picture of a size goes
        launch by launch, which loads what a capture must not; the next is recorded."""
        if part == 0:
            known = count in self._graphs
            self._graphs[count] = self._graphs.pop(count, None) or ([] if known else None)
            if len(self._graphs) > GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        graphs = self._graphs[count]
        if graphs is None:
            self._launch_eagerly(count, part)
            return
        if part == len(graphs):
            graphs.append(self._device.capture(lambda: self._launch_eagerly(count, part)))
        graphs[part].launch()

    def _launch_eagerly(self, count: int, part: int) -> None:
        config, arrays = self.config, self._arrays
        x, inputs, inner = arrays["rows"][:count], arrays["product inputs"], arrays["inner inputs"]
        height, depth = prefill_rows(count), padded_depth(config.hidden)
        if part == 0:
            self._positions(
                (-(-count // WARPS), 1, 1),
                32 * WARPS,
                [
                    *(self._table, arrays["corners"], arrays["shares"]),
                    *map(np.int32, (count, config.hidden)),
                    x,
                ],
                early=True,
            )
            self._product(self._patch, inputs, x, count, TowerEpilogue.ADD)
        for block in self._blocks[part * PART_BLOCKS : (part + 1) * PART_BLOCKS]:
            self._normed(x, block.norm1, block.norm1_bias, 1)
            self._product(block.qkv, inputs, arrays["heads"], count, TowerEpilogue.HEADS)
            self._attention.attend(count, arrays["heads"], inputs, height, depth)
            self._product(block.proj, inputs, x, count, TowerEpilogue.ADD)
            self._normed(x, block.norm2, block.norm2_bias, 1)
            self._product(block.fc1, inputs, inner, count, TowerEpilogue.GELU)
            self._product(block.fc2, inner, x, count, TowerEpilogue.ADD)
        if part + 1 < self._parts:
            return
        group = config.merge_size**2
        tokens = count // group
        self._normed(x, self._norm, self._norm_bias, group)
        self._product(self._fc1, inputs, inner, tokens, TowerEpilogue.GELU_ERF)
        self._product(self._fc2, inner, arrays["encoded"], tokens, TowerEpilogue.STORE)

    def _place(self, grid: tuple[int, int], count: int) -> None:
        """Positions and rotations of a grid; those of the picture before stay when it has the same."""
        if grid == self._grid:
            return
        merge, dim = self.config.merge_size, self.config.hidden // self.config.heads
        corners, shares = position_corners(self.config.grid_side, grid, merge)
        turns = turn_table(grid, dim, merge)
        self._grid = None
        for name, values in (("corners", corners.astype(np.int32)), ("shares", shares), ("rotations", turns)):
            to = self._arrays[name].reshape(-1)[: values.size]
            self._device.upload(to, values.reshape(-1))
        self.stream.synchronize()
        self._grid = grid

    def _product(self, matrix: TowerMatrix, x: Array, to: Array, rows: int, epilogue: TowerEpilogue) -> None:
        heads = epilogue is TowerEpilogue.HEADS
        launch_gemm_tower(
            self._device,
            matrix,
            x,
            to,
            live=rows,
            epilogue=epilogue,
            turn=self._arrays["rotations"] if heads else None,
            shape=self._attention.shape if heads else None,
        )

    def _normed(self, x: Array, scale: Array, bias: Array, group: int) -> None:
        """The next product's inputs: ``group`` normalised rows side by side in each."""
        rows, width = int(x.shape[0]) // group, int(x.shape[1])
        self._layer_norm(
            (-(-rows * group // WARPS), 1, 1),
            32 * WARPS,
            [
                *(x, scale, bias, np.float32(self.config.layer_norm_eps), *map(np.int32, (rows, group))),
                *(self._arrays["product inputs"], np.int32(prefill_rows(rows))),
                np.int32(padded_depth(width * group)),
            ],
            shared=layer_norm_shared(width),
            early=True,
        )
