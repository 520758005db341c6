"""Products of a step that follow one another in one launch (kernels/gemm_chain.cu): what each reads waits for the one
before, its weights do not."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from luce.compute.activations import padded_depth
from luce.compute.device import Device, Kernel
from luce.compute.gemm import Epilogue, GemmScratch, WeightMatrix
from luce.compute.gemm_cluster_plan import (
    CHUNK_DEPTH,
    TABLE_BYTES,
    partial_floats,
    window_chunks,
)
from luce.compute.gemm_plan import piece_bytes
from luce.compute.packing import ROW_BLOCK

__all__ = [
    "ChainForm",
    "ChainPlan",
    "Gates",
    "Link",
    "LinkShape",
    "Source",
    "chain_runs",
    "launch_chain",
    "plan_chain",
]

_WITH_MINIMA = ("Q4_K", "Q5_K")
CLUSTER = 2
"""CTAs of a cluster, where they are many."""
_ROUND = 10
"""What a round costs beside its warps' units, in units: at four rows 15 warps take 79 us for a layer of 27B, 16 80 and
19 85, and 12 take 53 for one of 9B, 15 and 16 55."""
_LINK_BYTES = 128
"""Of shared memory: struct Operation."""


class Source(enum.Enum):
    """What a product reads."""

    SUMMED = 0
    """Activations in the step layout with sums of 32."""
    BARE = 1
    """The same without sums (as SWIGLU leaves it)."""
    NORM = 2
    """f32 rows, whose RMS norm every CTA makes for itself."""
    ROWS = 3
    """As NORM; one CTA a row makes it for all."""


@attrs.frozen(eq=False)
class Gates:
    """A small float32 product of what the last link reads."""

    weights: Any
    """f32 [rows, padded depth]."""
    rows: int
    to: Any
    """f32 [>= rows of x, stride]."""
    stride: int


@attrs.frozen(eq=False)
class Link:
    """One product of a chain."""

    matrix: WeightMatrix
    x: Any
    source: Source
    to: Any
    epilogue: Epilogue
    stride: int | None = None
    """Floats from one row of ``to`` to the next; N when None."""
    scale: Any = None
    """NORM: f32 [depth], the factors."""
    gates: Gates | None = None

    @property
    def shape(self) -> LinkShape:
        return LinkShape(self.matrix.rows, self.matrix.depth, self.source)


@attrs.frozen
class LinkShape:
    out: int
    depth: int
    source: Source

    @property
    def chunks(self) -> int:
        return -(-self.depth // CHUNK_DEPTH)


@attrs.frozen
class ChainForm:
    """How a chain may be launched; no choice changes a bit."""

    warps: int
    """Of a CTA, that multiply."""
    stages: int
    """Of a warp's ring."""
    cluster: int = 1
    """CTAs that share K."""
    slices: tuple[int, ...] = ()
    """Chunks of a cluster for each link; 0, or none: all."""
    mergers: int = 1
    slots: int = 0
    """Row-blocks whose partial sums can be on the way to a CTA; 0: as many as its warps can fill."""
    table: int = 0
    """Of eight bytes of codes, how many are looked up in a table in shared memory (IQ4_XS)."""


@attrs.frozen
class ChainPlan:
    form: ChainForm
    grid: int
    slices: tuple[int, ...]
    slots: int
    norm: int
    """Pieces of 256 values whose norm a warp makes."""
    x_bytes: int
    gate_outputs: int
    """Rows of the small product that a cluster makes, at most."""
    gate_bytes: int
    shared: int
    parts: int
    """Floats of scratch for slices."""
    counts: int
    """Counters of scratch."""

    @property
    def all_warps(self) -> int:
        return self.form.warps + self.form.mergers + (self.gate_bytes > 0)


@functools.cache
def fit_chain(
    name: str,
    links: tuple[LinkShape, ...],
    rows: int,
    grid: int,
    shared_limit: int,
    gates: int,
    form: ChainForm,
) -> ChainPlan | None:
    """The launch in this form; None where it does not fit."""
    cluster = form.cluster
    wanted = (form.slices + (0,) * len(links))[: len(links)]
    slices = tuple(min(size or link.chunks, link.chunks) for size, link in zip(wanted, links, strict=True))
    windows = [
        link.chunks if link.source is Source.NORM else window_chunks(link.chunks, size, cluster)
        for link, size in zip(links, slices, strict=True)
    ]
    held = [
        min(window * CHUNK_DEPTH, padded_depth(link.depth))
        for window, link in zip(windows, links, strict=True)
    ]
    x_bytes = max(held) * rows * 2
    gate_chunks = links[-1].chunks
    if gates and (slices[-1] < links[-1].chunks or gate_chunks > 8):
        return None
    gate_bytes = 4 * CHUNK_DEPTH * window_chunks(gate_chunks, gate_chunks, cluster) if gates else 0
    gate_outputs = -(-gates // (grid // cluster))
    slots = form.slots or -(-(form.warps * cluster // min(slices) + 2) // cluster) + 1
    all_warps = form.warps + form.mergers + (gates > 0)
    normed = [
        (padded_depth(link.depth) // 256, rows if link.source is Source.NORM else 1)
        for link in links
        if link.source in (Source.NORM, Source.ROWS)
    ]
    if any(records > 32 for records, _ in normed):
        return None
    norm = max((-(-height * records // all_warps) for records, height in normed), default=0)
    partial = partial_floats(rows) * 4
    shared = (
        (TABLE_BYTES if form.table else 0)
        + form.warps * form.stages * piece_bytes(name)
        + x_bytes
        + (x_bytes // 16 if name in _WITH_MINIMA else 0)
        + gate_bytes
        + gate_outputs * 8 * rows * 4
        + slots * max(slices) * partial
        + (rows * 128 if norm else 0)
        + len(links) * _LINK_BYTES
        + (form.warps * form.stages + slots + 3) * 8
        + cluster * slots * 4
    )
    few_clusters = any(
        -(-link.chunks // size) > grid // cluster for link, size in zip(links, slices, strict=True)
    )
    if shared > shared_limit or all_warps > 32 or few_clusters:
        return None
    shared_blocks = [
        -(-link.out // ROW_BLOCK) if size < link.chunks else 0
        for link, size in zip(links, slices, strict=True)
    ]
    parts = [count * link.chunks * partial // 4 for count, link in zip(shared_blocks, links, strict=True)]
    sizes = norm, x_bytes, gate_outputs, gate_bytes, shared, max(parts), 2 * len(links) + max(shared_blocks)
    return ChainPlan(form, grid // cluster * cluster, slices, slots, *sizes)


def plan_chain(
    name: str,
    links: tuple[LinkShape, ...],
    rows: int,
    multiprocessors: int,
    shared_limit: int,
    gates: int,
) -> ChainPlan | None:
    """The launch for matrices in records of format ``name`` and a bucket of ``rows`` rows; None where none fits.

    Args:
        gates: rows of the small product beside the last link; 0 without.
    """
    for form in _forms(name, links, rows, multiprocessors, gates > 0):
        plan = fit_chain(name, links, rows, multiprocessors, shared_limit, gates, form)
        if plan is not None:
            return plan
    return None


def _forms(
    name: str, links: tuple[LinkShape, ...], rows: int, multiprocessors: int, gates: bool
) -> list[ChainForm]:
    """The best one first, by what was measured on an H200.

    Warps of a CTA are a multiple of four, so that each of a multiprocessor's schedulers has as many. How many of them
    multiply is a matter of rounds: a CTA's units of a link are dealt to them in turn, and the last round is seldom
    full.
    """
    if multiprocessors < 8:  # the host build: fewer threads, and everything else of it
        return [ChainForm(3, 2, slices=(1, 0, 1)), ChainForm(3, 2)]
    counts = [(warps, 4 + (not gates)) for warps in (7, 11, 15, 19)]
    counts += [(warps, 3 + (not gates)) for warps in (8, 12, 16, 20)]
    counts.sort(key=lambda count: _rounds(links, multiprocessors // CLUSTER, count[0]) * (_ROUND + count[0]))
    found = []
    for warps, mergers in counts:
        for slices in ((), (0, 0, 6)):
            form = ChainForm(warps, 2, CLUSTER, slices, mergers, table=4 if name == "IQ4_XS" else 0)
            if name == "Q4_K" and rows == 1:
                found.append(attrs.evolve(form, stages=4))
            found += [form] if not slices else [attrs.evolve(form, slots=slots) for slots in (5, 3)]
    return found


def _rounds(links: tuple[LinkShape, ...], clusters: int, warps: int) -> int:
    """In which so many warps of a CTA come to their units, over all links."""
    blocks = [-(-link.out // (ROW_BLOCK * clusters)) for link in links]
    units = [-(-count * link.chunks // CLUSTER) for count, link in zip(blocks, links, strict=True)]
    return sum(-(-count // warps) for count in units)


def _kernel(device: Device, name: str, rows: int, plan: ChainPlan) -> Kernel:
    form = plan.form
    defines: dict[str, int | str] = {
        "FORMAT": f"FORMAT_{name}",
        "ROWS": rows,
        "WARPS": form.warps,
        "MERGERS": form.mergers,
        "GATES": plan.gate_outputs,
        "CLUSTER": form.cluster,
        "STAGES": form.stages,
        "SLOTS": plan.slots,
        "OPERATIONS": len(plan.slices),
        "NORM": plan.norm,
    }
    if form.table:
        defines["TABLE"] = form.table
    if device.arch == "host":
        defines["TOGETHER"] = plan.grid
    return device.kernel("gemm_chain.cu", "gemm_chain", defines)


def chain_runs(device: Device, name: str, rows: int, plan: ChainPlan) -> bool:
    """Can all CTAs of the launch run at once on this device? If not, they would wait for each other forever."""
    kernel, block = _kernel(device, name, rows, plan), plan.all_warps * 32
    return device.runs_at_once(kernel, plan.grid, plan.form.cluster, block, plan.shared)


def launch_chain(
    device: Device,
    links: Sequence[Link],
    rows: int,
    valid: int,
    eps: float,
    scratch: GemmScratch,
    plan: ChainPlan,
    normed: Any = None,
) -> None:
    """Launch the products of a bucket of rows, if they run (:func:`chain_runs`).

    Args:
        links: of one format.
        rows: the bucket. Activations are in the step layout of this height.
        valid: rows that are written.
        eps: of the norms.
        normed: room for the activations that ``Source.ROWS`` makes.
    """
    widths = [link.matrix.depth for link in links if link.source in (Source.NORM, Source.ROWS)]
    arguments = [
        *(
            scratch.counts,
            scratch.parts,
            normed,
            np.int32(valid),
            np.int32(plan.x_bytes),
            np.int32(plan.gate_bytes),
        ),
        *(np.int32(max(plan.slices)), np.int32(max(widths, default=0)), np.float32(eps)),
    ]
    for link, size in zip(links, plan.slices, strict=True):
        arguments += _operation(link, size)
    kernel = _kernel(device, links[0].matrix.format, rows, plan)
    kernel((plan.grid, 1, 1), plan.all_warps * 32, arguments, shared=plan.shared, early=True)


def _operation(link: Link, size: int) -> list[Any]:
    matrix, gates = link.matrix, link.gates
    stride = matrix.rows if link.stride is None else link.stride
    if link.epilogue is Epilogue.SWIGLU:
        stride = padded_depth(matrix.rows // 2)
    return [
        *(matrix.records, link.x, link.to, link.scale),
        *((None, None) if gates is None else (gates.weights, gates.to)),
        np.int32(-(-matrix.rows // ROW_BLOCK)),
        np.int32(padded_depth(matrix.depth) // 256),
        *(np.int32(matrix.rows), np.int32(stride), np.int32(size)),
        *(np.int32(link.epilogue.value), np.int32(link.source.value)),
        *(np.int32(0 if gates is None else gates.rows), np.int32(0 if gates is None else gates.stride)),
    ]
