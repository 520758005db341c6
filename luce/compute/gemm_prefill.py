"""The weight GEMM for many rows (kernels/gemm_prefill.cu): its tiles, the shared memory they take, its launch.

Tiles change no bit of a result, so they follow speed alone. The kernel is for sm_90a and the host build (warpgroup
products).
"""

from __future__ import annotations

import functools

import attrs
import numpy as np

from luce.compute.activations import padded_depth
from luce.compute.device import Array, Device
from luce.compute.gemm import Epilogue
from luce.compute.packing import RECORD_BYTES, ROW_BLOCK

__all__ = ["Epilogue", "Tiling", "choose_tiling", "launch_gemm_prefill", "prefill_rows", "shared_bytes"]

_SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_MINIMA = ("Q4_K", "Q5_K")
_ROWS = 64
"""Buffers of prefill activations hold a multiple of this many rows."""
_BAND = 8
"""Token tiles that are worked on together, so that weights are read from device memory once for all of them."""


@attrs.frozen
class Tiling:
    """A block's tile: ``tokens`` activations x ``groups`` * 64 rows of W, and the stages of its two rings.

    With ``split`` the tile has 64 rows of W, and the two groups take its chunks of K in turn, each with its own rings.
    """

    tokens: int
    groups: int
    x_stages: int
    w_stages: int
    split: bool = False

    @property
    def blocks(self) -> int:
        """Row-blocks of a tile."""
        return 4 if self.split else 4 * self.groups

    @property
    def threads(self) -> int:
        return (self.groups + 1) * 128

    def defines(self, name: str, epilogue: Epilogue) -> dict[str, int | str]:
        return {
            "FORMAT": f"FORMAT_{name}",
            "EPILOGUE": epilogue.value,
            "TOKENS": self.tokens,
            "GROUPS": self.groups,
            "X_STAGES": self.x_stages,
            "W_STAGES": self.w_stages,
            "SPLIT": int(self.split),
        }


def prefill_rows(rows: int) -> int:
    """Rows of a buffer of activations for ``rows`` rows; its layout's ``tile`` is the same number."""
    return -(-rows // _ROWS) * _ROWS


def shared_bytes(name: str, epilogue: Epilogue, tiling: Tiling) -> int:
    """Shared memory of a block, as the kernel lays it out."""
    part = RECORD_BYTES[name] // (4 if name == "BF16" else 1)
    x = tiling.tokens * 128
    w = tiling.blocks * part + (tiling.tokens * 32 if name in _MINIMA else 0)
    totals = tiling.tokens * 256 if name in _SCALED or tiling.split else 0
    if epilogue is Epilogue.SWIGLU:
        totals += tiling.tokens * 16
    elif tiling.tokens <= 160:
        totals = tiling.tokens * 272
    rings = tiling.groups if tiling.split else 1
    ring = tiling.x_stages * (x + 16) + tiling.w_stages * (w + 16)
    return (
        rings * ring
        + (1 if tiling.split else tiling.groups) * totals
        + (8 * tiling.groups if tiling.split else 0)
    )


@functools.cache
def _with_stages(
    name: str, epilogue: Epilogue, tokens: int, groups: int, split: bool, limit: int
) -> Tiling | None:
    """The tile with as many stages as shared memory holds: two or three records of weights, of activations the rest."""
    most = 4 if name == "BF16" else 3
    for w_stages in (most, 2):
        for x_stages in range(8, 3 if w_stages == most else 2, -1):
            found = Tiling(tokens, groups, x_stages, w_stages, split)
            if shared_bytes(name, epilogue, found) <= limit:
                return found
    return None


_FLAT_TILES = {(192, 2, False): 147, (128, 2, False): 118, (64, 2, False): 113, (128, 2, True): 70}
_SCALED_TILES = {(160, 2, False): 137, (128, 2, False): 114, (64, 2, False): 85, (128, 2, True): 66}
"""Tiles (tokens, groups, split) and how long a round of them takes, all multiprocessors busy: measured, any unit."""


def choose_tiling(name: str, epilogue: Epilogue, rows: int, row_blocks: int, device: Device) -> Tiling:
    """The tile that takes the least time for a product of ``rows`` activations with ``row_blocks`` row-blocks."""
    best: tuple[int, Tiling] | None = None
    for (tokens, groups, split), cost in (_SCALED_TILES if name in _SCALED else _FLAT_TILES).items():
        found = _with_stages(name, epilogue, tokens, groups, split, device.shared_limit)
        if found is None:
            continue
        tiles = -(-rows // tokens) * -(-row_blocks // found.blocks)
        time = -(-tiles // device.multiprocessors) * cost
        if best is None or time < best[0]:
            best = time, found
    assert best is not None, f"no tile of {name} fits into {device.shared_limit} bytes of shared memory"
    return best[1]


def launch_gemm_prefill(
    device: Device,
    name: str,
    records: Array,
    x: Array,
    out: Array,
    *,
    live: int,
    rows: int,
    n: int,
    depth: int,
    epilogue: Epilogue,
    width: int | None = None,
    out_depth: int = 0,
    tiling: Tiling | None = None,
    blocks: int | None = None,
) -> None:
    """Queue ``out`` = epilogue(x W^T) on the current stream, with the bits of `WeightMatrix.decode`.

    Args:
        name: the records' format, one of packing.RECORD_BYTES.
        records: packed W [n, depth].
        x: activations [live, depth] in prefill layout with one tile of ``rows`` rows, :func:`prefill_rows`.
        out: float32 [live, width], of whose rows the first ``n`` are written; with SWIGLU activations [live, n / 2] in
            the layout of ``x``, whose sums of 32 and the zeros that pad their depth are written too.
        width: floats from one row of ``out`` to the next (default ``n``).
        out_depth: padded depth of the activations that SWIGLU writes.
        tiling: instead of the chosen one.
        blocks: at most so many (default: one for each multiprocessor).
    """
    assert rows % 8 == 0 and (epilogue is not Epilogue.SWIGLU or out_depth >= padded_depth(n // 2))
    cover = max(-(-n // ROW_BLOCK), out_depth // 8)
    tile = tiling or choose_tiling(name, epilogue, live, cover, device)
    tiles = -(-cover // tile.blocks) * -(-live // tile.tokens)
    kernel = device.kernel("gemm_prefill.cu", "gemm_prefill", tile.defines(name, epilogue))
    numbers = (live, rows, n, padded_depth(depth), n if width is None else width, out_depth, _BAND)
    kernel(
        (min(blocks or device.multiprocessors, tiles), 1, 1),
        tile.threads,
        [x, records, out, *map(np.int32, numbers)],
        shared=shared_bytes(name, epilogue, tile),
        early=True,
    )
