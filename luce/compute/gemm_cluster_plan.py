"""How a weight GEMM of 8 or 16 rows is launched in clusters; no choice changes a bit."""

from __future__ import annotations

import attrs

from luce.compute.activations import padded_depth
from luce.compute.packing import RECORD_BYTES, RECORD_DEPTH, ROW_BLOCK

__all__ = [
    "CHUNK_DEPTH",
    "TABLE_BYTES",
    "ClusterPlan",
    "Form",
    "fit",
    "launch",
    "partial_floats",
    "plan_cluster",
    "shared_bytes",
]

CHUNK_DEPTH = 1024
"""K of a unit of work and of a partial sum (kernels/records.h)."""
_WITH_MINIMA = ("Q4_K", "Q5_K")
_SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_RESERVED = 1024
"""Shared memory that the system takes for itself from every CTA."""
TABLE_BYTES = 32768
"""Of shared memory: the table of IQ4_XS (kernels/records.h)."""
_SMALL = 24 << 20
"""Bytes of matrices of which two CTAs stand on a multiprocessor."""


def partial_floats(rows: int) -> int:
    """Floats of a partial sum of a row-block."""
    return ROW_BLOCK * rows


@attrs.frozen
class ClusterPlan:
    """A launch of kernels/gemm_cluster.cu."""

    warps: int
    """Of a CTA, that multiply."""
    stages: int
    """Of a warp's ring: pieces of a record (BF16: a half with one row-block, a quarter with two) of each row-block."""
    slots: int
    """Groups whose partial sums can be on the way to a CTA."""
    resident: int
    """CTAs that should fit on a multiprocessor."""
    blocks: int
    """Row-blocks of a group, which a warp multiplies together: 1 or 2."""
    cluster: int
    """CTAs that share K."""
    grid: int
    slice_chunks: int
    """Chunks of 1,024 K that a cluster multiplies; with fewer than all of them partial sums meet in scratch."""
    window: int
    """Chunks whose activations a CTA keeps in shared memory, at most."""
    shared: int
    """Bytes of shared memory."""
    parts: int
    """Floats of scratch for slices."""
    counts: int
    """Counters of groups of slices."""
    table: int = 0
    """Of eight bytes of codes, how many are looked up in a table in shared memory (IQ4_XS)."""

    @property
    def mergers(self) -> int:
        """Warps of a CTA that add partial sums up: several where they wait for device memory."""
        return 4 if self.counts else 1

    @property
    def all_warps(self) -> int:
        return self.warps + self.mergers


@attrs.frozen
class Form:
    """How a product may be launched; :func:`fit` makes a :class:`ClusterPlan` of it."""

    warps: int
    stages: int
    blocks: int = 1
    cluster: int = 1
    resident: int = 1
    slice_chunks: int = 0
    """0: all."""


def stage_bytes(name: str, blocks: int) -> int:
    return RECORD_BYTES[name] // 2 if name == "BF16" else RECORD_BYTES[name] * blocks


def window_chunks(chunks: int, slice_chunks: int, cluster: int) -> int:
    """The most chunks of which a CTA of a cluster has something."""
    sizes = {min(slice_chunks, chunks), chunks % slice_chunks or slice_chunks}
    return max(
        -(-(rank + 1) * size // cluster) - rank * size // cluster for size in sizes for rank in range(cluster)
    )


def shared_bytes(
    name: str,
    rows: int,
    depth: int,
    warps: int,
    stages: int,
    slots: int,
    blocks: int,
    cluster: int,
    slice_chunks: int,
) -> int:
    """Shared memory that the kernel lays out for itself."""
    deep = padded_depth(depth)
    window = window_chunks(-(-deep // CHUNK_DEPTH), slice_chunks, cluster)
    values = min(window * CHUNK_DEPTH, deep) * rows * 2
    sums = values // 16 if name in _WITH_MINIMA else 0
    return (
        warps * stages * stage_bytes(name, blocks)
        + values
        + sums
        + slots * slice_chunks * partial_floats(rows) * blocks * 4
        + (window + warps * stages + slots) * 8
        + cluster * slots * 4
    )


def launch(name: str, out: int, depth: int, rows: int, form: Form, slots: int, grid: int) -> ClusterPlan:
    """The launch in this form, whatever shared memory there is."""
    chunks = -(-depth // CHUNK_DEPTH)
    slice_chunks = min(form.slice_chunks or chunks, chunks)
    groups = -(-out // (ROW_BLOCK * form.blocks)) if slice_chunks < chunks else 0
    sizes = form.warps, form.stages, slots, form.blocks, form.cluster, slice_chunks
    return ClusterPlan(
        form.warps,
        form.stages,
        slots,
        form.resident,
        form.blocks,
        form.cluster,
        grid,
        slice_chunks,
        window_chunks(chunks, slice_chunks, form.cluster),
        shared_bytes(name, rows, depth, *sizes),
        groups * chunks * partial_floats(rows) * form.blocks,
        groups,
    )


def fit(
    name: str, out: int, depth: int, rows: int, multiprocessors: int, shared_limit: int, form: Form
) -> ClusterPlan | None:
    """The launch in this form with as many slots as its warps can fill, or down to half of them; None if none fits."""
    chunks = -(-depth // CHUNK_DEPTH)
    slice_chunks = min(form.slice_chunks or chunks, chunks)
    limit = (shared_limit + _RESERVED) // form.resident - _RESERVED
    enough = -(-(form.warps * form.cluster // slice_chunks + 2) // form.cluster) + 1
    clusters = max(multiprocessors // form.cluster, -(-chunks // slice_chunks))
    for slots in range(enough, max(1, enough // 2 - 1), -1):
        plan = launch(name, out, depth, rows, form, slots, clusters * form.cluster)
        if plan.shared <= limit:
            return plan
    return None


def plan_cluster(
    name: str, out: int, depth: int, rows: int, multiprocessors: int, shared_limit: int
) -> ClusterPlan | None:
    """The launch for a matrix [out, depth] in records of format ``name`` and 8 or 16 rows; None where none fits."""
    for form in _forms(name, out, depth, rows):
        plan = fit(name, out, depth, rows, multiprocessors, shared_limit, form)
        if plan is not None:
            return plan
    return None


def _forms(name: str, out: int, depth: int, rows: int) -> list[Form]:
    """The best one first, by what was measured on an H200."""
    blocks = -(-out // ROW_BLOCK)
    nbytes = blocks * (padded_depth(depth) // RECORD_DEPTH) * RECORD_BYTES[name]
    six = [Form(12, 2, cluster=2, slice_chunks=6), Form(8, 1, 2, 2, slice_chunks=6)]
    last = [Form(warps, stages, cluster=2) for stages in (2, 1) for warps in (15, 11, 7)] + six
    if rows <= 8:
        # Two CTAs on a multiprocessor: the next product's weights come in meanwhile.
        pair = [Form(11, 2, cluster=2, resident=2)] if nbytes < _SMALL else []
        deep = six if name in _SCALED else []
        return [*pair, Form(11, 2, 2, 2), Form(15, 1, 2, 2), Form(23, 1, cluster=2), *deep, *last]
    first = [Form(8, 2, 2, 2)] if name == "IQ4_XS" and nbytes >= _SMALL else []
    whole = [*first, Form(11, 2, 2, 2), Form(15, 2, cluster=2), Form(12, 2, cluster=2), Form(11, 1, 2, 2)]
    deep = [Form(8, 2, 2, 2, slice_chunks=6)] if name == "BF16" else six
    return [*whole, *deep, *last]
