"""The feed-forward of a mixture of experts on a device: scratch and launches of kernels/moe.cu and moe_gemm.cu."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from luce.compute.activations import num_values, padded_depth
from luce.compute.device import Array, Device
from luce.compute.packing import RECORD_BYTES, ROW_BLOCK, interleave, pack, stored_format
from luce.engines.qwen35.weights import MoeWeights

__all__ = ["DeviceExperts", "DeviceMoe", "MoeShape", "experts_of"]

GROUP_THREADS, PLAN_THREADS = 256, 1024
PLAN_ROWS = 64
"""Most rows whose pairs one block orders."""
MAX_EXPERTS, MAX_RANKS = 512, 16
_STORE, _SWIGLU = 0, 2


@attrs.frozen(eq=False)
class DeviceExperts:
    """One layer's weights on a device.

    The records of a matrix are those of all experts one after the other, as :func:`luce.compute.packing.pack` makes
    them: gate and up interleaved by 8 rows [2 ffn, hidden], down [hidden, ffn]. The shared expert is the last of them,
    or stands apart where its format is another one. All have the same ffn; a smaller one is filled up with rows and
    columns that are zero.
    """

    router: Array
    """float32, or bf16 as uint16, [experts + 1, hidden]; the last row is the shared expert's gate."""
    gate_up: Array
    gate_up_format: str
    down: Array
    down_format: str
    shared_gate_up: Array | None = None
    shared_gate_up_format: str = ""
    shared_down: Array | None = None
    shared_down_format: str = ""


def experts_of(device: Device, w: MoeWeights) -> DeviceExperts:
    """A layer's weights, given as float32, as bf16 on a device; the router stays float32."""
    experts, both, hidden = w.gate_up.shape
    ffn = max(both // 2, len(w.shared.gate))
    gate_up = np.zeros((experts + 1, 2, ffn, hidden), np.float32)
    gate_up[:experts, :, : both // 2] = w.gate_up.reshape(experts, 2, -1, hidden)
    gate_up[experts, 0, : len(w.shared.gate)] = w.shared.gate
    gate_up[experts, 1, : len(w.shared.up)] = w.shared.up
    down = np.zeros((experts + 1, hidden, ffn), np.float32)
    down[:experts, :, : w.down.shape[2]] = w.down
    down[experts, :, : w.shared.down.shape[1]] = w.shared.down
    wide = [
        pack("F32", interleave(gate.view(np.uint8), up.view(np.uint8)), hidden).records
        for gate, up in gate_up
    ]
    deep = [pack("F32", matrix.view(np.uint8), ffn).records for matrix in down]
    return DeviceExperts(
        device.array(np.concatenate([w.router, w.shared_gate])),
        *(device.array(np.stack(wide)), stored_format("F32")),
        *(device.array(np.stack(deep)), stored_format("F32")),
    )


@attrs.frozen
class MoeShape:
    hidden: int
    """A multiple of 128."""
    ffn: int
    """A multiple of 8."""
    experts: int
    """At most 512."""
    used: int
    """At most 15."""


@attrs.frozen
class _Launch:
    """How many columns a tile has, and how the blocks of moe_gemm are made. No bit depends on it."""

    tiles: int
    warps: int
    stages: int

    def shared(self, name: str) -> int:
        piece = RECORD_BYTES[name] // (2 if name == "BF16" else 1)
        return self.warps * self.stages * (piece + 8) + self.warps * self.tiles * 32


def _launch_for(name: str, tiles: int, limit: int) -> _Launch:
    """As many warps as have registers, with rings of at least two stages in ``limit`` bytes of shared memory."""
    most = 8 if tiles > 2 else 12 if name == "BF16" else 20
    for warps in range(most, 0, -4):
        for stages in range(8, 1, -1):
            found = _Launch(tiles, warps, stages)
            if found.shared(name) <= limit:
                return found
    raise AssertionError("four warps fit everywhere")


class DeviceMoe:
    """Scratch and launches for up to ``max_rows`` rows; one serves all layers of a stream."""

    def __init__(self, device: Device, shape: MoeShape, max_rows: int) -> None:
        assert shape.hidden % 128 == 0 and shape.ffn % 8 == 0
        assert shape.experts <= MAX_EXPERTS and shape.used < MAX_RANKS
        self.device, self.shape, self.max_rows = device, shape, max_rows
        ranks = shape.used + 1
        pairs = max_rows * ranks
        self.wide = device.empty((max_rows, shape.hidden), np.float32)
        """Rows as ``rms_norm_wide`` leaves them, the router's input."""
        self.logits = device.empty((max_rows, shape.experts + 1), np.float32)
        self.chosen = device.empty((max_rows, ranks), np.int32)
        self.weights = device.empty((max_rows, ranks), np.float32)
        self.order = device.empty(pairs, np.int32)
        self.place = device.empty(pairs, np.int32)
        self.tiles = device.empty((pairs + shape.experts + 1, 4), np.int32)
        self.num_tiles = device.empty(2, np.int32)
        self.middle = device.zeros(num_values_of(pairs, shape.ffn), np.uint16)
        self.results = device.empty((pairs, shape.hidden), np.float32)

    @staticmethod
    def num_bytes(shape: MoeShape, max_rows: int) -> int:
        """Device memory that one takes."""
        ranks = shape.used + 1
        pairs = max_rows * ranks
        floats = max_rows * (shape.hidden + shape.experts + 1 + 2 * ranks) + pairs * (2 + shape.hidden)
        return 4 * (floats + 4 * (pairs + shape.experts + 1) + 2) + 2 * num_values_of(pairs, shape.ffn)

    def launch(
        self, layer: DeviceExperts, header: Array, inputs: Array, input_rows: int, x: Array, rows: int
    ) -> None:
        """Queue ``x`` += the layer's feed-forward.

        Args:
            header: the pass's PASS record, as bytes.
            inputs: normalised rows as activations in the step layout of ``input_rows`` rows (any number), whose f32
                form is in :attr:`wide`.
            x: float32 [rows, hidden].
            rows: most rows of the pass (a bucket).
        """
        tiles = 1 if rows <= 64 else 4
        self._route(layer, header, rows)
        self._group(header, rows, 8 * tiles)
        shape, depth = self.shape, padded_depth(self.shape.ffn)
        everything = [(layer.gate_up, layer.gate_up_format, 0)]
        if layer.shared_gate_up is not None:
            everything.append((layer.shared_gate_up, layer.shared_gate_up_format, shape.experts))
        for records, name, first in everything:
            alone = len(everything) == 1
            self._product(
                *(
                    records,
                    name,
                    first,
                    alone,
                    tiles,
                    2 * shape.ffn,
                    shape.hidden,
                    inputs,
                    input_rows,
                    self.order,
                ),
                [None, np.int32(0), self.middle, np.int32(self._pairs), np.int32(depth)],
                _SWIGLU,
            )
        everything = [(layer.down, layer.down_format, 0)]
        if layer.shared_down is not None:
            everything.append((layer.shared_down, layer.shared_down_format, shape.experts))
        for records, name, first in everything:
            alone = len(everything) == 1
            self._product(
                *(
                    records,
                    name,
                    first,
                    alone,
                    tiles,
                    shape.hidden,
                    shape.ffn,
                    self.middle,
                    self._pairs,
                    None,
                ),
                [self.results, np.int32(shape.hidden), None, np.int32(0), np.int32(0)],
                _STORE,
            )
        self.device.kernel("moe.cu", "moe_combine")(
            (-(-shape.hidden // 1024), rows, 1),
            256,
            [
                header,
                self.place,
                self.weights,
                np.int32(shape.used + 1),
                self.results,
                x,
                np.int32(shape.hidden),
            ],
        )

    @property
    def _pairs(self) -> int:
        return self.max_rows * (self.shape.used + 1)

    def _route(self, layer: DeviceExperts, header: Array, rows: int) -> None:
        """Logits of all rows."""
        outputs = self.shape.experts + 1
        per_warp = (4, 1) if rows <= 64 else (8, 2)
        defines = {
            "ROUTER_BF16": int(layer.router.dtype == np.uint16),
            "ROUTER_ROWS": per_warp[0],
            "ROUTER_OUTPUTS": per_warp[1],
        }
        self.device.kernel("moe.cu", "moe_router", defines)(
            (-(-outputs // (8 * per_warp[1])), -(-rows // per_warp[0]), 1),
            256,
            [header, self.wide, layer.router, np.int32(outputs), np.int32(self.shape.hidden), self.logits],
            early=True,
        )

    def _group(self, header: Array, rows: int, height: int) -> None:
        """Choices of all rows, and their pairs in the order of experts."""
        shape = self.shape
        counts = [np.int32(value) for value in (shape.experts, shape.used)]
        ordered = [np.int32(height), self.order, self.place, self.tiles, self.num_tiles]
        self.device.kernel("moe.cu", "moe_route")(
            (-(-rows // 4), 1, 1),
            128,
            [header, self.logits, *counts, self.chosen, self.weights],
            early=True,
        )
        if rows <= PLAN_ROWS:
            name, grid, threads, shared = "moe_plan", 1, PLAN_THREADS, 256 + 12 * (shape.experts + 1)
        else:
            name, grid, threads = "moe_group", shape.experts + 1, GROUP_THREADS
            shared = 64 + 4 * (shape.experts + 1)
        self.device.kernel("moe.cu", name)(
            (grid, 1, 1), threads, [header, self.chosen, *counts, *ordered], shared=shared, early=True
        )

    def _product(
        self,
        records: Array,
        name: str,
        first_expert: int,
        alone: bool,
        tiles: int,
        n: int,
        k: int,
        x: Array,
        x_rows: int,
        order: Array | None,
        to: list[Any],
        epilogue: int,
    ) -> None:
        plan = _launch_for(name, tiles, self.device.shared_limit)
        blocks, deep = -(-n // ROW_BLOCK), padded_depth(k) // 256
        shared_only = first_expert > 0
        kernel = self.device.kernel(
            "moe_gemm.cu",
            "moe_gemm",
            {
                "FORMAT": f"FORMAT_{name}",
                "TILES": plan.tiles,
                "WARPS": plan.warps,
                "STAGES": plan.stages,
                "EPILOGUE": epilogue,
            },
        )
        end = self.num_tiles if alone or shared_only else self.num_tiles[1:]
        kernel(
            (self.device.multiprocessors, 1, 1),
            plan.warps * 32,
            [
                *(x, np.int32(x_rows), order, np.int32(self.shape.used + 1), self.tiles),
                *(self.num_tiles[1:] if shared_only else None, end, records),
                np.int64(blocks * deep * RECORD_BYTES[name]),
                *(np.int32(value) for value in (first_expert, blocks, deep, n)),
                *to,
            ],
            shared=plan.shared(name),
            early=True,
        )


def num_values_of(pairs: int, ffn: int) -> int:
    """bf16 numbers of activations in the step layout for any number of rows."""
    return pairs * padded_depth(ffn) // 16 * 17


assert num_values_of(64, 512) == num_values(64, 512, 0)
