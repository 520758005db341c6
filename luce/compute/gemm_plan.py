"""How a weight GEMM for few rows is launched: a function of shape, format, rows and device that changes no bit."""

from __future__ import annotations

import itertools

import attrs

from luce.compute.activations import padded_depth
from luce.compute.gemm_cluster_plan import CHUNK_DEPTH, ClusterPlan, partial_floats, plan_cluster
from luce.compute.packing import RECORD_BYTES, RECORD_DEPTH, ROW_BLOCK

__all__ = ["CHUNK_DEPTH", "DecodePlan", "WidePlan", "partial_floats", "plan_decode", "plan_wide"]

_WITH_MINIMA = ("Q4_K", "Q5_K")
_RESERVED = 1024
"""Shared memory that the system takes for itself from every CTA."""
_RING_BYTES = 64 * 1024
"""Weights under way that keep the memory of a multiprocessor busy."""
_MOST_WARPS = {32: 16, 64: 12}
"""Of a CTA, so that the sums of so many rows stay in registers."""
_MOST_UNITS = 20
"""Of a CTA that has a warp for each."""
_MANY_UNITS = 1024
"""Chunks of row-blocks with which the warps of clusters have enough to do."""
_TINY, _SMALL = 8 << 20, 24 << 20
"""Bytes of matrices of which two CTAs stand on a multiprocessor."""


@attrs.frozen
class DecodePlan:
    """A launch of kernels/gemm_decode.cu."""

    warps: int
    stages: int
    """Pieces (a record; half of one for BF16) of a warp's ring."""
    slots: int
    """Row-blocks of a CTA whose partial sums can be under way."""
    resident: int
    """CTAs that should fit on a multiprocessor."""
    grid: int
    slice_chunks: int
    """Chunks of 1,024 K whose activations a CTA keeps in shared memory."""
    aligned: bool
    """CTAs take whole row-blocks."""
    shared: int
    """Bytes of shared memory."""
    parts: int
    """Floats of scratch for row-blocks that CTAs share."""
    counts: int
    """Counters of such row-blocks."""

    @property
    def all_warps(self) -> int:
        return self.warps


def piece_bytes(name: str) -> int:
    return RECORD_BYTES[name] // (2 if name == "BF16" else 1)


def shared_bytes(
    name: str, rows: int, depth: int, warps: int, stages: int, slots: int, slice_chunks: int
) -> int:
    """Shared memory that the kernel lays out for itself."""
    deep = padded_depth(depth)
    chunks = -(-deep // CHUNK_DEPTH)
    values = min(slice_chunks * CHUNK_DEPTH, deep) * rows * 2
    sums = values // 16 if name in _WITH_MINIMA else 0
    held = 0 if slice_chunks < chunks else max(slots * chunks, warps)
    bars = 1 + warps * stages
    return (
        warps * stages * piece_bytes(name)
        + values
        + sums
        + held * partial_floats(rows) * 4
        + bars * 8
        + slots * 8
    )


def plan_decode(
    name: str,
    out: int,
    depth: int,
    rows: int,
    multiprocessors: int,
    shared_limit: int,
    clusters: bool = False,
) -> DecodePlan | ClusterPlan:
    """The launch for a matrix [out, depth] in records of format ``name`` and a bucket of ``rows`` rows.

    Args:
        clusters: CTAs of this device can form clusters. That is quicker where activations are many and the matrix is
            large; with fewer rows it is quicker alone and slower between the other kernels of a step.

    What was quickest on an H200: as many warps as fit with two stages each, one CTA on a multiprocessor (deeper rings
    delay the activations); for small matrices two CTAs, so that the next product's weights come in meanwhile; slices of
    three chunks where the activations do not fit.
    """
    blocks, chunks = -(-out // ROW_BLOCK), -(-depth // CHUNK_DEPTH)
    nbytes = blocks * (padded_depth(depth) // RECORD_DEPTH) * RECORD_BYTES[name]
    if clusters and rows in (8, 16) and nbytes >= _TINY and blocks * chunks >= _MANY_UNITS:
        found = plan_cluster(name, out, depth, rows, multiprocessors, shared_limit)
        if found is not None:
            return found
    half = (shared_limit + _RESERVED) // 2 - _RESERVED
    tries = (
        [(2, 12, 3, half, chunks)]
        if nbytes < _TINY
        else [(2, 16, 2, half, chunks)]
        if nbytes < _SMALL
        else []
    )
    tries += [(1, warps, 2, shared_limit, chunks) for warps in (24, 16)]
    tries += [(1, warps, 2, shared_limit, 3) for warps in (24, 16) if chunks > 3]
    for warps in (24, 16, 12, 8, 4, 2):
        tries += [(1, warps, 2, shared_limit, size) for size in (chunks, 2, 1) if size <= chunks]
    few = _few_units(name, blocks, depth, rows, multiprocessors, shared_limit)
    if few is not None:
        return few
    for resident, warps, most, limit, slice_chunks in tries:
        if warps > _MOST_WARPS.get(rows, 24):
            continue
        slots = -(-warps // chunks) + 2
        room = limit - shared_bytes(name, rows, depth, warps, 0, slots, slice_chunks)
        stages = min(most, room // (warps * (piece_bytes(name) + 8)))
        if stages >= 2:
            return _launch(
                name, blocks, depth, rows, multiprocessors, warps, stages, slots, resident, slice_chunks
            )
    raise AssertionError("a slice of one chunk of 64 rows fits everywhere")


def _few_units(
    name: str, blocks: int, depth: int, rows: int, multiprocessors: int, shared_limit: int
) -> DecodePlan | None:
    """Where a CTA has few units, a warp for each, and as much of it in the ring as fits: nearly all of it is under way
    before the activations are there. CTAs take whole row-blocks, and leave room for the next grid's."""
    chunks, whole = -(-depth // CHUNK_DEPTH), -(-blocks // multiprocessors)
    warps = max(2, whole * chunks)
    if rows > 16 or warps > _MOST_UNITS:
        return None
    slots, pieces = -(-warps // chunks) + 2, CHUNK_DEPTH // RECORD_DEPTH * (2 if name == "BF16" else 1)
    half = (shared_limit + _RESERVED) // 2 - _RESERVED
    for resident, limit in ((2, half), (1, shared_limit)):
        room = limit - shared_bytes(name, rows, depth, warps, 0, slots, chunks)
        stages = min(pieces, room // (warps * (piece_bytes(name) + 8)))
        if stages >= 3:
            made = _launch(name, blocks, depth, rows, multiprocessors, warps, stages, slots, resident, chunks)
            return attrs.evolve(made, grid=-(-blocks // whole), aligned=True, parts=0, counts=0)
    return None


def _launch(
    name: str,
    blocks: int,
    depth: int,
    rows: int,
    multiprocessors: int,
    warps: int,
    stages: int,
    slots: int,
    resident: int,
    slice_chunks: int,
) -> DecodePlan:
    chunks = -(-depth // CHUNK_DEPTH)
    sliced = slice_chunks < chunks
    grid = max(multiprocessors, chunks) if sliced else multiprocessors
    whole = -(-blocks // grid)
    aligned = not sliced and (chunks == 1 or blocks >= 0.96 * whole * grid)
    shared_blocks = blocks if sliced else 0 if aligned else grid
    return DecodePlan(
        warps,
        stages,
        slots,
        resident,
        grid,
        slice_chunks,
        aligned,
        shared_bytes(name, rows, depth, warps, stages, slots, slice_chunks),
        shared_blocks * chunks * partial_floats(rows),
        shared_blocks,
    )


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
