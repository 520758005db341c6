"""How a weight GEMM for few rows is launched: a function of shape, format, rows and device that changes no bit."""

from __future__ import annotations

import functools
import itertools
import math

import attrs

from luce.compute.activations import padded_depth
from luce.compute.gemm_cluster_plan import CHUNK_DEPTH, TABLE_BYTES, ClusterPlan, partial_floats, plan_cluster
from luce.compute.packing import RECORD_BYTES, RECORD_DEPTH, ROW_BLOCK

__all__ = ["CHUNK_DEPTH", "DecodePlan", "WidePlan", "partial_floats", "plan_decode", "plan_wide"]

_WITH_MINIMA = ("Q4_K", "Q5_K")
_SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_RESERVED = 1024
"""Shared memory that the system takes for itself from every CTA."""
_MOST_WARPS = {32: 16, 64: 12}
"""Of a CTA, so that the sums of so many rows stay in registers."""
_MOST_UNITS = 20
"""Of a CTA that has a warp for each."""
_MANY_UNITS = 1024
"""Chunks of row-blocks with which the warps of clusters have enough to do."""
_TABLE, _TABLE_OF_CLUSTERS = 4, 8
"""Of eight bytes of codes of IQ4_XS, how many are looked up in a table: of 0, 4, 6 and 8 the quickest on an H200."""
_TINY, _SMALL = 8 << 20, 24 << 20
"""Bytes of matrices of which two CTAs stand on a multiprocessor."""
_CHUNKS = {1: 4.6, 2: 4.8, 3: 5.6, 4: 6.6, 5: 8.0}
_SLOW, _SLOW_CHUNKS = ("Q8_0", "Q6_K", "Q5_K"), {1: 6.3, 2: 6.6, 3: 6.6, 4: 7.3, 5: 9.0}
_CTA_BYTES, _PASS, _MEETING, _SLICE, _PARTS = 33e3, 2.0, 3.0, 0.35, 0.57e6
"""Of gemm_wide on an H200: microseconds of a chunk of K by the warpgroups that multiply it, in most formats and in
those that take longer to unpack; bytes of weights that a CTA gets in a microsecond; microseconds of a pass, of a
meeting and of each slice that meets; floats that meet in a microsecond."""


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
    table: int = 0
    """Of eight bytes of codes, how many are looked up in a table in shared memory (IQ4_XS)."""

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


@functools.cache
def plan_decode(
    name: str,
    out: int,
    depth: int,
    rows: int,
    multiprocessors: int,
    shared_limit: int,
    clusters: bool = False,
) -> DecodePlan | ClusterPlan | None:
    """The launch for a matrix [out, depth] in records of format ``name`` and a bucket of ``rows`` rows; None where
    shared memory does not hold so many activations of a chunk of K beside weights: 64 rows in 99 KiB, 32 in 64 KiB.

    Args:
        clusters: CTAs of this device can form clusters. That is quicker where activations are many and the matrix is
            large; with fewer rows it is quicker alone and slower between the other kernels of a step.

    What was quickest on an H200: as many warps as fit with two stages each, one CTA on a multiprocessor (deeper rings
    delay the activations); for small matrices two CTAs, so that the next product's weights come in meanwhile; slices of
    three chunks where the activations do not fit.
    """
    if name == "IQ4_XS" and rows <= 16:
        room = shared_limit - TABLE_BYTES
        plan = _plan_decode(name, out, depth, rows, multiprocessors, room, clusters)
        if plan is not None and plan.resident == 1:
            table = _TABLE_OF_CLUSTERS if isinstance(plan, ClusterPlan) else _TABLE
            return attrs.evolve(plan, shared=plan.shared + TABLE_BYTES, table=table)
    return _plan_decode(name, out, depth, rows, multiprocessors, shared_limit, clusters)


def _plan_decode(
    name: str,
    out: int,
    depth: int,
    rows: int,
    multiprocessors: int,
    shared_limit: int,
    clusters: bool,
) -> DecodePlan | ClusterPlan | None:
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
    tries += [
        (1, warps, 2, shared_limit, chunks)
        for warps in (_even_warps(blocks, chunks, multiprocessors), 24, 16)
    ]
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
    return None


def _even_warps(blocks: int, chunks: int, multiprocessors: int) -> int:
    """Of 16 to 24, in fours, as few as need no more rounds for a CTA's units."""
    units = (
        -(-blocks // multiprocessors) * chunks
        if _whole(blocks, chunks, multiprocessors)
        else -(-blocks * chunks // multiprocessors)
    )
    rounds = -(-units // 24)
    return max(16, -(-units // (4 * rounds)) * 4)


def _whole(blocks: int, chunks: int, grid: int) -> bool:
    """Are row-blocks so many that CTAs take whole ones?"""
    return chunks == 1 or blocks >= 0.96 * -(-blocks // grid) * grid


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
    aligned = not sliced and _whole(blocks, chunks, grid)
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
    """A launch of kernels/gemm_wide.cu."""

    groups: int
    """Warpgroups of a CTA."""
    stages: int
    """Pieces of a warp's ring (a record; a quarter of one for BF16)."""
    buffers: int
    """Fragments of weights of a warp: 2 are made while products run."""
    x_stages: int
    """Stages of 256 k of activations."""
    grid: int
    met: int
    """Row-blocks that are taken over all of K; a multiple of 4, or all of them."""
    passes: int
    """Of a CTA over those, each with other row-blocks."""
    slices: int
    """Of K for the others: their sums meet in scratch and gemm_wide_sum adds them up."""
    rest_passes: int
    """Of a CTA over its slice of those."""
    held: int
    """Row-blocks of a pass, at most."""
    shared: int
    """Bytes of shared memory."""
    parts: int
    """Floats of scratch for 64 rows."""
    counts: int
    """Counters of scratch for 64 rows."""


def wide_shared_bytes(name: str, rows: int, groups: int, held: int, stages: int, x_stages: int) -> int:
    """Shared memory that the kernel lays out for itself."""
    sums = x_stages * rows * 32 if name in _WITH_MINIMA else 0
    in_registers = 0 if name in _WITH_MINIMA else 3 if name in _SCALED else 4
    totals = held * partial_floats(rows) * 4 if groups > in_registers else 0
    pieces = held * stages * (wide_piece_bytes(name) + 16)
    table = TABLE_BYTES if name == "IQ4_XS" else 0
    return table + x_stages * (rows * 512 + 16) + sums + totals + pieces


def wide_piece_bytes(name: str) -> int:
    return RECORD_BYTES[name] // (4 if name == "BF16" else 1)


def slice_ctas(chunks: int, slices: int, grid: int) -> list[tuple[int, int]]:
    """Chunks and CTAs of each slice of K, as the kernel deals them out."""
    bounds = [chunks * i // slices for i in range(slices + 1)]
    ctas = [grid * at // chunks for at in bounds]
    return [(bounds[i + 1] - bounds[i], ctas[i + 1] - ctas[i]) for i in range(slices)]


def wide_plan(
    name: str,
    blocks: int,
    depth: int,
    rows: int,
    grid: int,
    shared_limit: int,
    *,
    slices: int = 1,
    passes: int = 1,
    x_stages: int = 2,
    buffers: int = 0,
    met: int | None = None,
    rest_passes: int = 1,
) -> WidePlan | None:
    """The launch with these, and rings as deep as fit; None where it does not fit. ``met``: row-blocks that are taken
    over all of K in ``passes`` passes, the others in ``slices`` and ``rest_passes``; None: all, or with slices none
    (then in ``passes`` too)."""
    chunks = -(-depth // CHUNK_DEPTH)
    if met is None:
        met, passes, rest_passes = (blocks, passes, 0) if slices == 1 else (0, 0, passes)
    shares = slice_ctas(chunks, slices, grid)
    if any(ctas == 0 for _, ctas in shares):
        return None
    held = math.ceil(math.ceil(met / grid) / passes) if met else 0
    if met < blocks:
        held = max(held, *(math.ceil(math.ceil((blocks - met) / ctas) / rest_passes) for _, ctas in shares))
    groups = -(-held // 4)
    if groups > (4 if name in _SCALED else 5):  # what fits into registers
        return None
    room = shared_limit - wide_shared_bytes(name, rows, groups, held, 0, x_stages)
    stages = min(8, room // (held * (wide_piece_bytes(name) + 16)))
    if stages < 2:
        return None
    return WidePlan(
        groups,
        stages,
        buffers or (1 if groups > 3 else 2),
        x_stages,
        grid,
        met,
        passes,
        slices,
        rest_passes,
        held,
        wide_shared_bytes(name, rows, groups, held, stages, x_stages),
        (blocks - met) * (chunks - chunks // slices + 1) * partial_floats(rows),
        -(-blocks // 4),
    )


def _wide_cost(name: str, plan: WidePlan, blocks: int, depth: int, rows: int) -> float:
    """Microseconds, about."""
    multiply = (_SLOW_CHUNKS if name in _SLOW else _CHUNKS)[plan.groups] * (0.8 if rows == 32 else 1)
    all_chunks = -(-depth // CHUNK_DEPTH)

    def of_pass(chunks: int, row_blocks: float, passes: int) -> float:
        held = math.ceil(row_blocks / passes)
        return passes * (_PASS + chunks * max(multiply, held * 4 * RECORD_BYTES[name] / _CTA_BYTES))

    taken = of_pass(all_chunks, plan.met / plan.grid, plan.passes) if plan.met else 0.0
    rest = blocks - plan.met
    if rest:
        shares = slice_ctas(all_chunks, plan.slices, plan.grid)
        taken += max(of_pass(chunks, rest / ctas, plan.rest_passes) for chunks, ctas in shares)
        taken += _MEETING + _SLICE * plan.slices + plan.parts / _PARTS
    return taken


@functools.cache
def plan_wide(
    name: str, out: int, depth: int, rows: int, multiprocessors: int, shared_limit: int
) -> WidePlan:
    """The launch for a matrix [out, depth] and tiles of 32 or 64 rows that takes the least time by measured costs."""
    blocks, chunks = -(-out // ROW_BLOCK), -(-depth // CHUNK_DEPTH)
    found: list[WidePlan | None] = []
    sizes = (name, blocks, depth, rows)
    for slices in range(1, chunks + 1):
        grid = max(multiprocessors, slices)
        least = 1 + blocks * slices // (20 * grid)
        for passes, x_stages in itertools.product(range(least, 2 * least + 3), (3, 2)):
            found.append(
                wide_plan(*sizes, grid, shared_limit, slices=slices, passes=passes, x_stages=x_stages)
            )
    # Whole rounds of row-blocks over all of K, the rest in as many slices as there are chunks.
    for held, passes, rest_passes in itertools.product((4, 8, 12, 16), (1, 2, 3), (1, 2, 3)):
        met = held * passes * multiprocessors
        if met < blocks and chunks > 1 and multiprocessors >= chunks:
            found.append(
                wide_plan(
                    *sizes,
                    multiprocessors,
                    shared_limit,
                    met=met,
                    passes=passes,
                    slices=chunks,
                    rest_passes=rest_passes,
                )
            )
    plans = [plan for plan in found if plan is not None]
    assert plans, f"no launch of {name} fits into {shared_limit} bytes of shared memory"
    return min(plans, key=lambda plan: (_wide_cost(name, plan, blocks, depth, rows), plan.stages < 3))


assert RECORD_DEPTH * 4 == CHUNK_DEPTH
