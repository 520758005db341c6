"""A weight matrix on a device and its products with few rows."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.activations import padded_depth
from luce.compute.device import Device
from luce.compute.device_packing import pack_into
from luce.compute.gemm_cluster_plan import ClusterPlan
from luce.compute.gemm_plan import (
    CHUNK_DEPTH,
    DecodePlan,
    WidePlan,
    partial_floats,
    plan_decode,
    plan_wide,
)
from luce.compute.packing import ROW_BLOCK, packed_shape, stored_format

__all__ = ["Epilogue", "GemmScratch", "Meeting", "RowNorm", "WeightMatrix", "scratch_for", "scratch_sizes"]

U8 = npt.NDArray[np.uint8]
PLAIN_ROWS = 8
"""Activations of a block of the plain GEMM in the prefill layout."""
PLAIN_WARPS = 8
BESIDE_WARPS = 4
"""Of a small product's block that finds registers beside one of :meth:`WeightMatrix.decode` (kernels/matvec_f32.cu)."""
BESIDE_ROWS = 4
"""Rows up to which a small product finds room beside a large one: registers and shared memory are left to it."""
MOST_NORMED = 8192
"""Values of rows up to which every CTA normalises them for itself."""
MOST_PIECES = 6
"""Of 256 values that a warp holds in registers."""


class Epilogue(enum.Enum):
    """What becomes of the products."""

    STORE = 0
    """y [rows, N] f32 = x W^T."""
    ADD = 1
    """y = y + x W^T, the sum rounded once."""
    SWIGLU = 2
    """Activations silu(gate) * up [rows, N / 2] in the layout of x, without sums of 32; the matrix holds gate and
    up interleaved by 8 rows (luce.compute.packing.interleave)."""


@attrs.frozen(eq=False)
class RowNorm:
    """The RMS norm in front of a product."""

    scale: Any
    """f32 [depth] on the device, the factors themselves (1 + weight)."""
    eps: float


@attrs.frozen(eq=False)
class GemmScratch:
    """Device memory in which CTAs meet; one serves all matrices of a stream."""

    parts: Any
    counts: Any


class Meeting(Protocol):
    """A launch whose CTAs meet in device memory."""

    @property
    def parts(self) -> int:
        """Floats of scratch."""

    @property
    def counts(self) -> int:
        """Counters of scratch."""


def scratch_for(device: Device, plans: Sequence[Meeting], tiles: int = 1) -> GemmScratch:
    """Scratch that is enough for all these launches, wide ones of up to ``tiles`` tiles of rows; its counters are zero
    between launches."""
    parts, counts = scratch_sizes(plans, tiles)
    return GemmScratch(device.empty(parts, np.float32), device.zeros(counts, np.uint32))


def scratch_sizes(plans: Sequence[Meeting], tiles: int = 1) -> tuple[int, int]:
    """Floats and counters of such scratch."""
    times = [tiles if isinstance(plan, WidePlan) else 1 for plan in plans]
    parts = max((plan.parts * each for plan, each in zip(plans, times, strict=True)), default=0)
    counts = max((plan.counts * each for plan, each in zip(plans, times, strict=True)), default=0)
    return max(parts, 4), max(counts, 4)


class WeightMatrix:
    """A matrix [rows, depth] in records on a device.

    Args:
        name: the format of the records (luce.compute.packing.RECORD_BYTES).
        records: uint8 on the device, of :func:`luce.compute.packing.packed_shape`.
    """

    def __init__(self, device: Device, name: str, rows: int, depth: int, records: Any) -> None:
        self.device = device
        self.format = name
        self.rows = rows
        self.depth = depth
        self.records = records

    @classmethod
    def load(cls, device: Device, name: str, raw: U8, depth: int) -> WeightMatrix:
        """From rows [N, bytes] of a file's format; packing is queued on the current stream."""
        records = device.empty(packed_shape(name, len(raw), depth), np.uint8)
        pack_into(device, records, name, raw, depth)
        return cls(device, stored_format(name), len(raw), depth, records)

    @property
    def nbytes(self) -> int:
        return int(self.records.nbytes)

    def fits(self, rows: int) -> bool:
        """Has the device the shared memory that :meth:`decode` takes for a bucket of rows?"""
        return self._plan(rows) is not None

    def plan(self, rows: int) -> DecodePlan | ClusterPlan:
        """The launch for a bucket of rows that :meth:`fits`."""
        plan = self._plan(rows)
        assert plan is not None, f"{rows} rows of {self.format} do not fit into shared memory"
        return plan

    @functools.lru_cache(maxsize=16)  # noqa: B019 - matrices live as long as their model
    def _plan(self, rows: int) -> DecodePlan | ClusterPlan | None:
        device = self.device
        return plan_decode(
            self.format,
            self.rows,
            self.depth,
            rows,
            device.multiprocessors,
            device.shared_limit,
            device.arch.startswith("sm_"),
        )

    @functools.lru_cache(maxsize=16)  # noqa: B019 - as above
    def wide_plan(self, rows: int) -> WidePlan:
        """The launch of :meth:`wide` for 32 or 64 rows."""
        return plan_wide(
            self.format, self.rows, self.depth, rows, self.device.multiprocessors, self.device.shared_limit
        )

    def norms(self, rows: int) -> bool:
        """Can, and should, :meth:`decode` make the norm of a bucket of rows itself?"""
        plan = self.plan(rows)
        whole = plan.slice_chunks * CHUNK_DEPTH >= self.depth
        fits = whole and self.depth % 8 == 0 and self.depth <= 8192
        return fits and rows * self.depth <= MOST_NORMED and self._norm_pieces(rows, plan) <= MOST_PIECES

    def _norm_pieces(self, rows: int, plan: DecodePlan | ClusterPlan) -> int:
        """Pieces of 256 values that a warp normalises."""
        return -(-rows * (padded_depth(self.depth) // 256) // plan.all_warps)

    def decode(
        self,
        x: Any,
        to: Any,
        rows: int,
        epilogue: Epilogue,
        scratch: GemmScratch,
        *,
        stride: int | None = None,
        valid: int | None = None,
        own_sums: bool = False,
        norm: RowNorm | None = None,
        followed: bool = False,
        plan: DecodePlan | ClusterPlan | None = None,
    ) -> None:
        """Launch the product of a bucket of rows.

        Args:
            x: activations in the step layout of height ``rows`` (kernels/activation.h).
            to: f32 [>= rows, stride], or (SWIGLU) activations in the step layout of the same height.
            rows: 1, 2, 4, 8, 16, 32 or 64.
            stride: floats from one row of ``to`` to the next; N when None.
            valid: rows that are written, all of the bucket when None.
            own_sums: x comes without the sums of 32 that minima multiply (as SWIGLU leaves it); they are made here.
            norm: x is f32 [>= rows, depth] instead, and its RMS norm is multiplied, where :meth:`norms` allows it.
            followed: the next launch is a small product of the same x that runs beside this one.
            plan: another launch than :meth:`plan` (tests, measurements).
        """
        plan = self.plan(rows) if plan is None else plan
        defines: dict[str, int | str] = {
            "FORMAT": f"FORMAT_{self.format}",
            "ROWS": rows,
            "WARPS": plan.warps,
            "CTAS": plan.resident,
            "EPILOGUE": epilogue.value,
            "OWN_SUMS": int(own_sums),
            "NORM": 0 if norm is None else self._norm_pieces(rows, plan),
        }
        if plan.table:
            defines["TABLE"] = plan.table
        if isinstance(plan, ClusterPlan):
            defines |= {"MERGERS": plan.mergers, "BLOCKS": plan.blocks, "CLUSTER": plan.cluster}
            name, kind = "gemm_cluster", plan.window
        else:
            name, kind = "gemm_decode", int(plan.aligned)
            if followed and rows <= BESIDE_ROWS:
                defines["BESIDE"] = BESIDE_WARPS
        self.device.kernel(f"{name}.cu", name, defines)(
            (plan.grid, 1, 1),
            plan.all_warps * 32,
            [
                *self._arguments(x, to, epilogue, scratch, rows if valid is None else valid, stride),
                np.int32(plan.slice_chunks),
                np.int32(kind),
                np.int32(plan.stages),
                np.int32(plan.slots),
                None if norm is None else norm.scale,
                np.float32(0 if norm is None else norm.eps),
                np.int32(self.depth),
                np.int32(followed),
            ],
            shared=plan.shared,
            early=True,
        )

    def _arguments(
        self, x: Any, to: Any, epilogue: Epilogue, scratch: GemmScratch, valid: int, stride: int | None
    ) -> list[Any]:
        """What both kernels for steps take first."""
        swiglu = epilogue is Epilogue.SWIGLU
        return [
            x,
            self.records,
            None if swiglu else to,
            to if swiglu else None,
            scratch.parts,
            scratch.counts,
            np.int32(valid),
            np.int32(self.rows),
            np.int32(self.rows if stride is None else stride),
            np.int32(padded_depth(self.rows // 2)),
            np.int32(-(-self.rows // ROW_BLOCK)),
            np.int32(padded_depth(self.depth) // 256),
        ]

    def wide(
        self,
        x: Any,
        to: Any,
        rows: int,
        epilogue: Epilogue,
        scratch: GemmScratch,
        *,
        tile: int,
        stride: int | None = None,
        plan: WidePlan | None = None,
    ) -> None:
        """Launch the product of 17 rows and more, with tensor cores' warpgroup products.

        Args:
            x: activations in the prefill layout with one tile of ``tile`` rows.
            to: f32 [>= rows, stride], or (SWIGLU) activations in the layout of ``x``, with sums of 32.
            rows: rows that are written.
            tile: 32, or a multiple of 64.
            stride: floats from one row of ``to`` to the next; N when None.
            plan: another launch than :meth:`wide_plan` (tests, measurements).
        """
        tokens = min(tile, 64)
        plan = self.wide_plan(tokens) if plan is None else plan
        swiglu = epilogue is Epilogue.SWIGLU
        tiles = -(-rows // tokens)
        defines: dict[str, int | str] = {
            "FORMAT": f"FORMAT_{self.format}",
            "TOKENS": tokens,
            "GROUPS": plan.groups,
            "X_STAGES": plan.x_stages,
            "BUFFERS": plan.buffers,
            "EPILOGUE": epilogue.value,
        }
        if self.format == "IQ4_XS":
            defines["TABLE"] = 8
        shape = [
            scratch.counts,
            np.int32(rows),
            np.int32(self.rows),
            np.int32(self.rows if stride is None else stride),
            np.int32(padded_depth(self.rows // 2)),
            np.int32(-(-self.rows // ROW_BLOCK)),
            np.int32(padded_depth(self.depth) // 256),
            np.int32(tile),
            np.int32(plan.slices),
            np.int32(plan.met),
        ]
        outs = [None, to] if swiglu else [to, None]
        self.device.kernel("gemm_wide.cu", "gemm_wide", defines)(
            (plan.grid, tiles, 1),
            plan.groups * 128 + 128,
            [
                *(x, self.records, *outs, scratch.parts, *shape),
                *(np.int32(size) for size in (plan.passes, plan.rest_passes, plan.held, plan.stages)),
            ],
            shared=plan.shared,
            early=True,
        )
        if rest := -(-self.rows // ROW_BLOCK) - plan.met:
            warps = rest * tokens // 8
            self.device.kernel("gemm_wide.cu", "gemm_wide_sum", defines)(
                (-(-warps // 8), tiles, 1), 256, [scratch.parts, *outs, *shape], early=True
            )

    def plain(
        self,
        x: Any,
        to: Any,
        rows: int,
        tile: int,
        epilogue: Epilogue,
        *,
        stride: int | None = None,
        valid: int | None = None,
    ) -> None:
        """As :meth:`decode` (STORE or ADD), with the kernel for any device, any number of rows and either layout.

        Args:
            rows: height of the layout, a bucket or a multiple of ``tile``.
            tile: of the prefill layout; 0: the step layout.
        """
        assert epilogue is not Epilogue.SWIGLU, "the plain GEMM stores or adds"
        height = PLAIN_ROWS if tile else rows
        chunks = -(-self.depth // CHUNK_DEPTH)
        defines: dict[str, int | str] = {
            "FORMAT": f"FORMAT_{self.format}",
            "ROWS": height,
            "WARPS": PLAIN_WARPS,
            "PREFILL": int(tile > 0),
        }
        if chunks * partial_floats(height) * 4 > self.device.shared_limit:
            defines["ROUNDS"], chunks = 1, PLAIN_WARPS
        kernel = self.device.kernel("gemm_plain.cu", "gemm_plain", defines)
        kernel(
            (-(-self.rows // ROW_BLOCK), -(-rows // height), 1),
            PLAIN_WARPS * 32,
            [
                x,
                np.int32(rows),
                np.int32(tile),
                self.records,
                to,
                np.int32(rows if valid is None else valid),
                np.int32(self.rows),
                np.int32(self.rows if stride is None else stride),
                np.int32(padded_depth(self.depth) // 256),
                np.int32(epilogue.value),
            ],
            shared=chunks * partial_floats(height) * 4,
        )
