"""How a weight GEMM for few rows is launched: a function of shape, format, rows and device that changes no bit."""

from __future__ import annotations

import itertools

import attrs

from luce.compute.activations import padded_depth
from luce.compute.packing import RECORD_BYTES, RECORD_DEPTH, ROW_BLOCK

__all__ = ["CHUNK_DEPTH", "DecodePlan", "WidePlan", "partial_floats", "plan_decode", "plan_wide"]

CHUNK_DEPTH = 1024
"""K of a unit of work and of a partial sum (kernels/records.h)."""
_WITH_MINIMA = ("Q4_K", "Q5_K")
_SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_RESERVED = 1024
"""Shared memory that the system takes for itself from every CTA."""
_RING_BYTES = 64 * 1024
"""Weights under way that keep the memory of a multiprocessor busy."""
_SMALL, _LARGE = 24 << 20, 80 << 20
"""Bytes of matrices: from where on a multiprocessor has one CTA, for more rows than four and for fewer."""
_FEW_BLOCKS = 512
"""Row-blocks with which single CTAs would have unequal numbers of them."""
_FEW_UNITS = 1024
"""Chunks of row-blocks with which warps would have none if they took two at a time."""
_MOST_UNITS = 8
"""Of a CTA that has a warp for each; half as many with more than four rows, whose activations take the room."""


@attrs.frozen
class DecodePlan:
    """A launch of kernels/gemm_decode.cu."""

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

    @property
    def mergers(self) -> int:
        """Warps of a CTA that add partial sums up: several where they wait for device memory."""
        return 4 if self.counts else 1

    @property
    def all_warps(self) -> int:
        return self.warps + self.mergers


@attrs.frozen
class Form:
    """How a product may be launched; :func:`fit` makes a :class:`DecodePlan` of it."""

    warps: int
    stages: int
    blocks: int = 1
    cluster: int = 1
    resident: int = 1
    slice_chunks: int = 0
    """0: all."""


def partial_floats(rows: int) -> int:
    """Floats of a partial sum of a row-block."""
    return ROW_BLOCK * rows


def piece_bytes(name: str) -> int:
    return RECORD_BYTES[name] // (2 if name == "BF16" else 1)


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


def launch(name: str, out: int, depth: int, rows: int, form: Form, slots: int, grid: int) -> DecodePlan:
    """The launch in this form, whatever shared memory there is."""
    chunks = -(-depth // CHUNK_DEPTH)
    slice_chunks = min(form.slice_chunks or chunks, chunks)
    groups = -(-out // (ROW_BLOCK * form.blocks)) if slice_chunks < chunks else 0
    sizes = form.warps, form.stages, slots, form.blocks, form.cluster, slice_chunks
    return DecodePlan(
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
) -> DecodePlan | None:
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


def plan_decode(
    name: str, out: int, depth: int, rows: int, multiprocessors: int, shared_limit: int, clusters: bool
) -> DecodePlan:
    """The launch for a matrix [out, depth] in records of format ``name`` and a bucket of ``rows`` rows.

    Args:
        clusters: CTAs of this device can form clusters.
    """
    few = _few_units(name, out, depth, rows, multiprocessors)
    for form in [*few, *_forms(name, out, depth, rows)]:
        if form.cluster == 1 or clusters:
            plan = fit(name, out, depth, rows, multiprocessors, shared_limit, form)
            if plan is not None:
                return plan
    raise AssertionError("a warp with a slice of one chunk of the rows fits")


def _few_units(name: str, out: int, depth: int, rows: int, multiprocessors: int) -> list[Form]:
    """Where a CTA has few units: a warp for each, and nearly all of it under way before the activations are there.
    Two CTAs on a multiprocessor, so that the next product's weights come in meanwhile."""
    blocks, chunks = -(-out // ROW_BLOCK), -(-depth // CHUNK_DEPTH)
    units = -(-blocks // multiprocessors) * chunks
    if rows > 16 or units > (_MOST_UNITS if rows <= 4 else _MOST_UNITS // 2):
        return []
    pieces = CHUNK_DEPTH // RECORD_DEPTH * (2 if name == "BF16" else 1)
    least = {2: 3, 1: -(-pieces * 3 // 4)}
    return [
        Form(max(units, 2), stages, resident=resident)
        for resident in (2, 1)
        for stages in range(pieces, least[resident] - 1, -1)
    ]


def _forms(name: str, out: int, depth: int, rows: int) -> list[Form]:
    """The best one first, by what was measured on an H200; the last ones for little shared memory."""
    blocks, chunks = -(-out // ROW_BLOCK), -(-depth // CHUNK_DEPTH)
    nbytes = blocks * (padded_depth(depth) // RECORD_DEPTH) * RECORD_BYTES[name]
    few = [Form(15, 2, cluster=2)] if blocks * chunks < _FEW_UNITS else []
    six = [Form(12, 2, cluster=2, slice_chunks=6), Form(8, 1, 2, 2, slice_chunks=6)]
    last = [Form(warps, stages, cluster=2) for stages in (2, 1) for warps in (15, 11, 7)]
    slices = [Form(8, stages, cluster=2, slice_chunks=size) for size in (6, 4, 2) for stages in (2, 1)]
    slices += [Form(warps, 2, slice_chunks=size) for warps in (11, 7, 3, 1) for size in (0, 3, 2, 1)]
    last += slices
    # Two CTAs on a multiprocessor: the next product's weights come in meanwhile.
    pairs = [Form(warps, 2, cluster=2, resident=2) for warps in (15, 11)]
    if rows <= 4:
        if nbytes < _SMALL or chunks > 8 or blocks < _FEW_BLOCKS:
            return [*pairs, Form(23, 2, cluster=2), Form(15, 2, 2, 2), *last]
        middle = [Form(15, 2, resident=2), pairs[0]] if nbytes < _LARGE else []
        return [*middle, Form(23, 2), Form(15, 2), *last]
    if rows <= 8:
        pair = pairs[1:] if nbytes < _SMALL else []
        deep = six if name in _SCALED else []
        return [*pair, *few, Form(11, 2, 2, 2), Form(15, 1, 2, 2), Form(23, 1, cluster=2), *deep, *last]
    if rows <= 16:
        whole = [Form(11, 2, 2, 2), Form(15, 2, cluster=2), Form(12, 2, cluster=2), Form(11, 1, 2, 2)]
        deep = [Form(8, 2, 2, 2, slice_chunks=6)] if name == "BF16" else six
        return [*few, *whole, *deep, *last]
    return slices


@attrs.frozen
class WidePlan:
    """A launch of kernels/gemm_wide.cu; fields as those of :class:`DecodePlan`."""

    groups: int
    """Warpgroups of a CTA."""
    stages: int
    grid: int
    slice_chunks: int
    shared: int
    parts: int
    counts: int


def wide_shared_bytes(name: str, rows: int, depth: int, groups: int, stages: int, slice_chunks: int) -> int:
    """Shared memory that the kernel lays out for itself."""
    values = min(slice_chunks * CHUNK_DEPTH, padded_depth(depth)) * rows * 2
    sums = values // 16 if name in _WITH_MINIMA else 0
    rings = groups * 4 * stages * (piece_bytes(name) + 8)
    return rings + values + sums + 8 + groups * 4


def plan_wide(
    name: str, out: int, depth: int, rows: int, multiprocessors: int, shared_limit: int
) -> WidePlan:
    """The launch for a matrix [out, depth] and 32 or 64 rows: three warpgroups where their rings fit, and as many
    chunks in a slice as leave deep rings."""
    blocks, chunks = -(-out // ROW_BLOCK), -(-depth // CHUNK_DEPTH)
    quads = -(-blocks // 4)
    for groups, slice_chunks in itertools.product((3, 2, 1), range(chunks, 0, -1)):
        room = shared_limit - wide_shared_bytes(name, rows, depth, groups, 0, slice_chunks)
        stages = min(8, room // (groups * 4 * (piece_bytes(name) + 8)))
        if stages >= 2 and (slice_chunks == 1 or groups * 4 * stages * piece_bytes(name) >= _RING_BYTES):
            break
    sliced = slice_chunks < chunks
    return WidePlan(
        groups,
        stages,
        max(multiprocessors, chunks) if sliced else min(multiprocessors, quads),
        slice_chunks,
        wide_shared_bytes(name, rows, depth, groups, stages, slice_chunks),
        quads * 4 * chunks * partial_floats(rows) if sliced else 0,
        quads if sliced else 0,
    )


assert RECORD_DEPTH * 4 == CHUNK_DEPTH
