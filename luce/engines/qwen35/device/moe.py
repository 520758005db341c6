"""The feed-forward of a mixture of experts on a device: scratch and launches of kernels/moe.cu and moe_gemm.cu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from luce.compute.activations import num_values, padded_depth
from luce.compute.device import Array, Device
from luce.compute.packing import RECORD_BYTES, ROW_BLOCK
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.experts import MAX_EXPERTS, MAX_USED, ExpertMatrix, Experts
from luce.engines.qwen35.device.pool import allocate
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = ["DeviceMoe", "MoeShape", "launch_for", "moe_arrays"]

GROUP_THREADS, PLAN_THREADS = 256, 1024
PLAN_ROWS = 64
"""Most rows whose pairs one block orders."""
BLOCK_SHARED = 1024
"""Bytes of a multiprocessor's shared memory that each block costs beside what it asks for."""
_STORE, _COMBINE, _SWIGLU = 0, 1, 2
TOGETHER_ROWS = 2
"""Up to so many rows, blocks of the down product have room beside those of gate and up, to fetch weights meanwhile."""
TOGETHER_SHARED = 160 << 10
"""…of GPUs with so much shared memory."""
ALONE_BYTES = 400
"""Of struct Alone (kernels/moe_route.h), where it is aligned."""
COMBINE_STRIDE = 17
"""Floats of a result in shared memory (kernels/moe_gemm.cu)."""
SUMMED = ("Q4_K", "Q5_K")
"""Formats that read sums of their inputs."""


@attrs.frozen
class MoeShape:
    hidden: int
    """A multiple of 8."""
    ffn: int
    """Of an expert, the shared one too; a multiple of 8."""
    experts: int
    """At most 512."""
    used: int
    """At most 15."""

    @classmethod
    def of(cls, config: TextConfig) -> MoeShape:
        assert config.moe is not None
        moe = config.moe
        return cls(config.hidden, max(moe.ffn, moe.shared_ffn), moe.experts, moe.used)


def moe_arrays(shape: MoeShape, max_rows: int) -> Iterator[ArraySpec]:
    """Scratch for up to ``max_rows`` rows; one serves all layers of a stream."""
    part, ranks = "experts' working memory", shape.used + 1
    pairs = max_rows * ranks
    yield ArraySpec(part, "router inputs", (max_rows, shape.hidden))
    yield ArraySpec(part, "router logits", (max_rows, shape.experts + 1))
    yield ArraySpec(part, "chosen experts", (max_rows, ranks), "int32")
    yield ArraySpec(part, "experts' shares", (max_rows, ranks))
    yield ArraySpec(part, "pairs in order", (pairs,), "int32")
    yield ArraySpec(part, "places of pairs", (pairs,), "int32")
    yield ArraySpec(part, "tiles of experts", (pairs + shape.experts + 1, 4), "int32")
    yield ArraySpec(part, "numbers of tiles", (2,), "int32")
    yield ArraySpec(part, "experts' middle", (num_values_of(pairs, shape.ffn),), "uint16")
    yield ArraySpec(part, "experts' results", (pairs, shape.hidden))


@attrs.frozen
class _Launch:
    """How many columns a tile has, and how the blocks of moe_gemm are made. No bit depends on it."""

    tiles: int
    warps: int
    stages: int

    def shared(self, name: str) -> int:
        """Bytes of the rings, and of the sums of a team of four warps."""
        piece = RECORD_BYTES[name] // (2 if name == "BF16" else 1)
        return self.warps * self.stages * (piece + 8) + self.warps * self.tiles * 32


def launch_for(name: str, tiles: int, limit: int, busy: int = 64, team: int = 4, longest: int = 8) -> _Launch:
    """As many warps as have registers, with rings of at least two stages in ``limit`` bytes of shared memory.

    Args:
        busy: warps that have something to do; fewer have longer rings.
        team: of warps with a unit in common.
        longest: most stages.
    """
    most = min(8 if tiles > 2 else 12 if name == "BF16" else 20, -(-busy // team) * team)
    for warps in range(most, 0, -team):
        for stages in range(longest, 1, -1):
            found = _Launch(tiles, warps, stages)
            if found.shared(name) <= limit:
                return found
    raise AssertionError("four warps fit everywhere")


class DeviceMoe:
    """Scratch and launches for up to ``max_rows`` rows; one serves all layers of a stream."""

    def __init__(
        self, device: Device, shape: MoeShape, max_rows: int, arrays: Mapping[str, Array] | None = None
    ) -> None:
        """``arrays``: those of :func:`moe_arrays` by name; None: its own."""
        assert shape.hidden % 8 == 0 and shape.ffn % 8 == 0
        assert shape.experts <= MAX_EXPERTS and shape.used <= MAX_USED
        self.device, self.shape, self.max_rows = device, shape, max_rows
        if arrays is None:
            arrays = allocate(device, moe_arrays(shape, max_rows))
        self.wide = arrays["router inputs"]
        """Rows as ``rms_norm_wide`` leaves them, the router's input."""
        self.logits = arrays["router logits"]
        self.chosen, self.weights = arrays["chosen experts"], arrays["experts' shares"]
        self.order, self.place = arrays["pairs in order"], arrays["places of pairs"]
        self.tiles, self.num_tiles = arrays["tiles of experts"], arrays["numbers of tiles"]
        self.middle, self.results = arrays["experts' middle"], arrays["experts' results"]
        device.fill(self.middle, 0)  # no kernel writes past an expert's width

    def launch(
        self, layer: Experts, header: Array, inputs: Array, input_rows: int, x: Array, rows: int
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
        shape, depth = self.shape, padded_depth(self.shape.ffn)
        sums = any(m is not None and m.format in SUMMED for m in (layer.down, layer.shared_down))
        room = rows * (shape.used + 1) * COMBINE_STRIDE * 4
        combined = rows <= 64 and layer.shared_down is None and room <= self.device.shared_limit * 5 // 8
        limit, down = self.device.shared_limit, None
        route = combined and rows == 1 and layer.shared_gate_up is None
        if route:  # both products find the row's experts themselves
            room += ALONE_BYTES
        else:
            self._group(header, rows, 8 * tiles)
        if combined and rows <= TOGETHER_ROWS and limit >= TOGETHER_SHARED:
            down = self._launch_beside(layer.down, rows, room)
            limit -= down.shared(layer.down.format) + room + BLOCK_SHARED
        own = room if route else 0
        for matrix, first in self._matrices(layer.gate_up, layer.shared_gate_up):
            to = [None, np.int32(0), self.middle, np.int32(self._pairs), np.int32(depth), None]
            alone = layer.shared_gate_up is None
            busy = self._busy_warps(rows, matrix) if rows <= 64 and not sums else 64
            team = 4 if sums else 1
            plan = launch_for(matrix.format, tiles, limit - own, busy, team)
            self._product(
                *(matrix, first, alone, plan, inputs, input_rows, self.order, to, _SWIGLU),
                sums=sums,
                room=own,
                route=route,
            )
        if combined:
            plan = down or launch_for(layer.down.format, tiles, limit - room, team=1)
            to = [x, np.int32(shape.hidden), self.weights, np.int32(0), np.int32(0), header]
            self._product(
                *(layer.down, 0, True, plan, self.middle, self._pairs, self.place, to, _COMBINE),
                room=room,
                route=route,
            )
            return
        for matrix, first in self._matrices(layer.down, layer.shared_down):
            to = [self.results, np.int32(shape.hidden), None, np.int32(0), np.int32(0), None]
            alone = layer.shared_down is None
            plan = launch_for(matrix.format, tiles, limit, team=1)
            self._product(matrix, first, alone, plan, self.middle, self._pairs, None, to, _STORE)
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
            early=True,
        )

    def _launch_beside(self, down: ExpertMatrix, rows: int, room: int) -> _Launch:
        """The down product's, with rings as long as a row-block and at most two thirds of the shared memory."""
        pieces = padded_depth(down.depth) // 256 * (2 if down.format == "BF16" else 1)
        busy = rows * (self.shape.used + 1)
        most = self.device.shared_limit * 2 // 3 - room
        return launch_for(down.format, 1, most, busy, team=1, longest=min(max(pieces, 2), 8))

    def _busy_warps(self, rows: int, matrix: ExpertMatrix) -> int:
        """Of a block, about, if every row chose other experts."""
        tiles = min(rows * self.shape.used, self.shape.experts) + 1
        return -(-tiles * (-(-matrix.rows // ROW_BLOCK)) // self.device.multiprocessors)

    def _matrices(
        self, all_of_them: ExpertMatrix, shared: ExpertMatrix | None
    ) -> list[tuple[ExpertMatrix, int]]:
        """With the number of the first expert of each."""
        return [(all_of_them, 0), *([] if shared is None else [(shared, self.shape.experts)])]

    @property
    def _pairs(self) -> int:
        return self.max_rows * (self.shape.used + 1)

    def _route(self, layer: Experts, header: Array, rows: int) -> None:
        """Logits of all rows."""
        outputs = self.shape.experts + 1
        per_warp = (1, 1) if rows == 1 else (4, 1) if rows <= 64 else (8, 2)
        defines = {
            "ROUTER_BF16": int(layer.router.format == "BF16"),
            "ROUTER_ROWS": per_warp[0],
            "ROUTER_OUTPUTS": per_warp[1],
            "ROUTER_AHEAD": 4 if rows == 1 else 1 if rows <= 64 else 0,
        }
        self.device.kernel("moe.cu", "moe_router", defines)(
            (-(-outputs // (8 * per_warp[1])), -(-rows // per_warp[0]), 1),
            256,
            [
                header,
                self.wide,
                layer.router.data,
                np.int32(outputs),
                np.int32(self.shape.hidden),
                self.logits,
            ],
            early=True,
        )

    def _group(self, header: Array, rows: int, height: int) -> None:
        """Choices of all rows, and their pairs in the order of experts."""
        shape = self.shape
        counts = [np.int32(value) for value in (shape.experts, shape.used)]
        ordered = [np.int32(height), self.order, self.place, self.tiles, self.num_tiles]
        keys = {"ROUTE_KEYS": -(-shape.experts // 32)}
        choices = [header, self.logits, *counts, self.chosen, self.weights]
        if rows <= PLAN_ROWS:
            self.device.kernel("moe.cu", "moe_choose", keys)(
                (1, 1, 1),
                PLAN_THREADS,
                [*choices, *ordered],
                shared=256 + 12 * (shape.experts + 1),
                early=True,
            )
            return
        self.device.kernel("moe.cu", "moe_route", keys)((-(-rows // 4), 1, 1), 128, choices, early=True)
        self.device.kernel("moe.cu", "moe_group", keys)(
            (shape.experts + 1, 1, 1),
            GROUP_THREADS,
            [header, self.chosen, *counts, *ordered],
            shared=64 + 4 * (shape.experts + 1),
            early=True,
        )

    def _product(
        self,
        matrix: ExpertMatrix,
        first_expert: int,
        alone: bool,
        plan: _Launch,
        x: Array,
        x_rows: int,
        order: Array | None,
        to: list[Any],
        epilogue: int,
        *,
        sums: bool = False,
        room: int = 0,
        route: bool = False,
    ) -> None:
        """``room``: bytes of shared memory for results that meet there, and the choice of experts if it ``route``s."""
        name, n, records = matrix.format, matrix.rows, matrix.records
        blocks, deep = -(-n // ROW_BLOCK), padded_depth(matrix.depth) // 256
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
                "SUMS": int(sums),
                **({"ROUTE": 1, "ROUTE_KEYS": -(-self.shape.experts // 32)} if route else {}),
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
                *(*to, self.logits, np.int32(self.shape.experts)),
                *((self.chosen, self.weights) if epilogue == _SWIGLU else (None, None)),
            ],
            shared=plan.shared(name) + room,
            early=True,
        )


def num_values_of(pairs: int, ffn: int) -> int:
    """Operands of activations in the step layout for any number of rows."""
    return pairs * padded_depth(ffn) // 16 * 17


assert num_values_of(64, 512) == num_values(64, 512, 0)
