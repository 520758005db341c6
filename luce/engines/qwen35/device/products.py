"""Launches the weight products: a matrix of one part or several times the rows of one input.

Up to 16 rows go through the GEMM for few rows, up to 64 through the wide one where the device has it, more through the
one for many, and what a device has no room or no instructions for through the plain one; a row's bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from luce.compute import gemm_prefill
from luce.compute.activations import BUCKETS, padded_depth
from luce.compute.device import Array, Device
from luce.compute.gemm import (
    BESIDE_ROWS,
    Epilogue,
    GemmScratch,
    Meeting,
    RowNorm,
    WeightMatrix,
    scratch_sizes,
)
from luce.compute.gemm_prefill import launch_gemm_prefill, prefill_rows
from luce.engines.qwen35.device.chains import Chains, chain_plans
from luce.engines.qwen35.device.descriptors import STEP_ROWS
from luce.engines.qwen35.device.small import SmallMatrix, launch_small
from luce.engines.qwen35.device.weights import Matrix, Part, Text
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = [
    "Input",
    "Normed",
    "Products",
    "decode_rows",
    "input_height",
    "input_tile",
    "needs_gate_up",
    "product_arrays",
]

POINTWISE_THREADS = 256
FEW_ROWS = 16
"""Most rows whose products are bound by reading the weights alone."""
SUMMED = ("Q4_K", "Q5_K")
"""Formats whose products read sums of their inputs."""


def many_rows(arch: str) -> bool:
    """Has such a device the instructions of the GEMM for more than 64 rows? Elsewhere the plain one does it."""
    return arch in ("sm_90a", "host")


WIDE_SHARED = 227 * 1024
"""Bytes of shared memory that the wide GEMM's launches are planned for; GPUs with warpgroup products have them."""


def few_rows(arch: str) -> bool:
    """The same of the GEMM for up to 64 rows."""
    return arch == "host" or (arch.startswith("sm_") and int(arch[3:].rstrip("a")) >= 90)


def decode_rows(device: Device, text: Text) -> int:
    """Most rows of a step that the GEMM for few rows multiplies with every matrix; the plain one does larger steps. 64,
    less where shared memory is too small for so many activations, 0 without bulk copies."""
    if not few_rows(device.arch):
        return 0
    matrices = [_weights(device, part) for part in _parts(text)]
    return max((rows for rows in BUCKETS if all(weights.fits(rows) for weights in matrices)), default=0)


def needs_gate_up(device: Device, text: Text) -> bool:
    """Do gate and up of some rows go through memory in float32?"""
    return decode_rows(device, text) < STEP_ROWS or not many_rows(device.arch)


def has_wide(device: Device) -> bool:
    """Has it what the wide GEMM is made of, so that 17 to 64 rows take that?"""
    return few_rows(device.arch) and many_rows(device.arch) and device.shared_limit >= WIDE_SHARED


def input_tile(rows: int, wide: bool) -> int:
    """Tile of the layout that a product's input of ``rows`` rows has; 0: the step layout.

    Args:
        wide: the device has warpgroup products.
    """
    if rows > STEP_ROWS:
        return prefill_rows(rows)
    return input_height(rows) if wide and rows > FEW_ROWS else 0


def input_height(rows: int) -> int:
    """Rows that such an input holds."""
    return next((size for size in BUCKETS if size >= rows), prefill_rows(rows))


@attrs.frozen(eq=False)
class Input:
    """Activations in one of the layouts of ``kernels/activation.h``."""

    data: Array
    rows: int
    """Rows that count."""
    width: int
    """Values of a row."""
    sums: bool = True
    """The sums of 32 are there, too."""
    wide: bool = False
    """The device has warpgroup products."""

    @property
    def height(self) -> int:
        return input_height(self.rows)

    @property
    def tile(self) -> int:
        return input_tile(self.rows, self.wide)

    @property
    def depth(self) -> int:
        return padded_depth(self.width)


@attrs.frozen(eq=False)
class Normed:
    """f32 rows whose norm the products that read them make themselves."""

    data: Array
    rows: int
    """Rows that count."""
    norm: RowNorm

    tile = 0

    @property
    def height(self) -> int:
        return input_height(self.rows)


def _parts(text: Text) -> Iterator[Part]:
    for member in text.members():
        if isinstance(member, Matrix):
            yield from member.parts


def _weights(device: Device, part: Part) -> WeightMatrix:
    return WeightMatrix(device, part.format, part.rows, part.depth, part.records)


def product_arrays(device: Device, text: Text) -> tuple[ArraySpec, ArraySpec]:
    """Scratch in which blocks of a product meet, enough for every matrix and bucket. The counters start as zeros."""
    wide, most = has_wide(device), decode_rows(device, text)
    plans: list[Meeting] = [*chain_plans(device, text)]
    for part in _parts(text):
        weights = _weights(device, part)
        for rows in BUCKETS:
            if input_tile(rows, wide):
                plans.append(weights.wide_plan(rows))
            elif rows <= most:
                plans.append(weights.plan(rows))
    parts, counts = scratch_sizes(plans)
    name = "working memory"
    return ArraySpec(name, "product parts", (parts,)), ArraySpec(name, "product counts", (counts,), "uint32")


class Products:
    """One for all matrices of a model, on one stream."""

    def __init__(
        self, device: Device, text: Text, parts: Array, counts: Array, gate_up: Array | None
    ) -> None:
        """``parts``, ``counts``: :func:`product_arrays`; ``gate_up`` f32 [rows, 2 · ffn]: :func:`needs_gate_up`."""
        self._device = device
        device.fill(counts, 0)
        self._scratch = GemmScratch(parts, counts)
        self._matrices = {id(part): _weights(device, part) for part in _parts(text)}
        self._most, self._many = decode_rows(device, text), many_rows(device.arch)
        self._wide = has_wide(device)
        self.chains = Chains(device, text, lambda part: self._matrices[id(part)], self._scratch)
        self._gate_up = gate_up
        self._pointwise = None
        if gate_up is not None:
            self._pointwise = device.kernel("pointwise.cu", "pointwise", {"FUNCTION": "SWIGLU"})

    def input(self, data: Array, rows: int, width: int) -> Input:
        """The input that ``rows`` rows of ``width`` values are in ``data``."""
        return Input(data, rows, width, wide=self._wide)

    def norms(self, rows: int, matrix: Matrix) -> bool:
        """Does the product with ``rows`` rows take them as :class:`Normed`?"""
        height = input_height(rows)
        if height > self._most or input_tile(rows, self._wide):
            return False
        return all(self._matrices[id(part)].norms(height) for part in matrix.parts)

    def store(self, matrix: Matrix, x: Input | Normed, out: Array, *, followed: bool = False) -> None:
        """``out`` f32 [rows, …] = x W^T, in its first columns. ``followed``: by a launch that runs beside it."""
        self._f32(matrix, x, out, Epilogue.STORE, followed=followed)

    def store_both(self, first: Matrix, out: Array, second: SmallMatrix, to: Array, x: Input) -> None:
        """:meth:`store` of two matrices; of few rows the second costs next to nothing, it runs beside the first."""
        beside = x.height <= min(BESIDE_ROWS, self._most)
        if not beside:
            self._small(second, x, to)
        self.store(first, x, out, followed=beside)
        if beside:
            self._small(second, x, to, beside=True)

    def _small(self, matrix: SmallMatrix, x: Input, to: Array, *, beside: bool = False) -> None:
        launch_small(
            self._device, matrix, x.data, to, rows=x.rows, height=x.height, tile=x.tile, beside=beside
        )

    def add(self, matrix: Matrix, x: Input, out: Array) -> None:
        """``out`` f32 [rows, …] += x W^T."""
        self._f32(matrix, x, out, Epilogue.ADD)

    def _f32(
        self, matrix: Matrix, x: Input | Normed, out: Array, epilogue: Epilogue, *, followed: bool = False
    ) -> None:
        stride, last = int(out.shape[1]), matrix.parts[-1]
        for part in matrix.parts:
            to, weights = out.reshape(-1)[part.first :], self._matrices[id(part)]
            if isinstance(x, Normed):
                self._normed(weights, x, to, epilogue, stride)
            elif x.tile and x.rows <= STEP_ROWS:
                weights.wide(x.data, to, x.rows, epilogue, self._scratch, tile=x.tile, stride=stride)
            elif x.tile and self._many:
                self._prefill(part, x, to, gemm_prefill.Epilogue[epilogue.name], width=stride)
            elif x.height > self._most:
                weights.plain(x.data, to, x.height, x.tile, epilogue, stride=stride, valid=x.rows)
            else:
                own = part.format in SUMMED and not x.sums
                weights.decode(
                    x.data,
                    to,
                    x.height,
                    epilogue,
                    self._scratch,
                    stride=stride,
                    valid=x.rows,
                    own_sums=own,
                    followed=followed and part is last,
                )

    def _normed(
        self, weights: WeightMatrix, x: Normed, to: Array, epilogue: Epilogue, stride: int | None = None
    ) -> None:
        weights.decode(
            x.data, to, x.height, epilogue, self._scratch, stride=stride, valid=x.rows, norm=x.norm
        )

    def swiglu(self, matrix: Matrix, x: Input | Normed, out: Array, width: int) -> Input:
        """silu(gate) · up of a matrix of both, interleaved, as an input [rows, ``width``] in ``out``."""
        (part,) = matrix.parts
        weights = self._matrices[id(part)]
        if isinstance(x, Normed):
            self._normed(weights, x, out, Epilogue.SWIGLU)
            return attrs.evolve(self.input(out, x.rows, width), sums=False)
        result = attrs.evolve(x, data=out, width=width)
        if x.tile and x.rows <= STEP_ROWS:
            weights.wide(x.data, out, x.rows, Epilogue.SWIGLU, self._scratch, tile=x.tile)
            return result
        if x.tile and self._many:
            many = gemm_prefill.Epilogue.SWIGLU
            self._prefill(part, x, out, many, out_depth=result.depth)
            return result
        if x.height <= self._most:
            weights.decode(x.data, out, x.height, Epilogue.SWIGLU, self._scratch, valid=x.rows)
            return attrs.evolve(result, sums=False)
        assert self._gate_up is not None and self._pointwise is not None
        weights.plain(x.data, self._gate_up, x.height, x.tile, Epilogue.STORE, valid=x.rows)
        self._pointwise(
            (-(-result.depth // (8 * POINTWISE_THREADS)), x.rows, 1),
            POINTWISE_THREADS,
            [
                *(None, np.int32(x.rows), self._gate_up, np.int32(part.rows), None, np.int32(width)),
                *(out, np.int32(result.height), np.int32(result.tile), np.int32(result.depth)),
            ],
            early=True,
        )
        return result

    def _prefill(
        self,
        part: Part,
        x: Input,
        out: Array,
        epilogue: gemm_prefill.Epilogue,
        *,
        width: int | None = None,
        out_depth: int = 0,
    ) -> None:
        launch_gemm_prefill(
            self._device,
            part.format,
            part.records,
            x.data,
            out,
            live=x.rows,
            rows=x.height,
            n=part.rows,
            depth=part.depth,
            epilogue=epilogue,
            width=width,
            out_depth=out_depth,
        )
