"""The weight GEMM for many rows (kernels/gemm_prefill.cu): its tiles, the shared memory they take, its launch.

Tiles change no bit of a result, so they follow speed alone. The kernel is for sm_90a and the host build (warpgroup
products).
"""

from __future__ import annotations

import enum
import functools

import attrs
import numpy as np

from luce.compute.activations import padded_depth
from luce.compute.device import Array, Device
from luce.compute.packing import RECORD_BYTES, ROW_BLOCK

__all__ = ["Epilogue", "Tiling", "choose_tiling", "launch_gemm_prefill", "prefill_rows", "shared_bytes"]

_SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_MINIMA = ("Q4_K", "Q5_K")
_ROWS = 64
"""Buffers of prefill activations hold a multiple of this many rows."""
_BAND = 8
"""Token tiles that are worked on together, so that weights are read from device memory once for all of them."""


class Epilogue(enum.IntEnum):
    """What becomes of a product (EPILOGUE_... of the kernels)."""

    STORE = 0
    """y = product, float32."""
    ADD = 1
    """y = y + product, float32."""
    SWIGLU = 2
    """bf16 activations silu(gate) up, in prefill layout, with their sums; W's rows interleave gate and up by 8."""


@attrs.frozen
class Tiling:
    """A block's tile: ``tokens`` activations x ``groups`` * 64 rows of W, and the stages of its two rings.

    ``cluster`` blocks share the activations they fetch.
    """

    tokens: int
    groups: int
    x_stages: int
    w_stages: int
    cluster: int = 1

    @property
    def threads(self) -> int:
        return (self.groups + 1) * 128

    def defines(self, name: str, epilogue: Epilogue) -> dict[str, int | str]:
        return {
            "FORMAT": f"FORMAT_{name}",
            "EPILOGUE": int(epilogue),
            "TOKENS": self.tokens,
            "GROUPS": self.groups,
            "X_STAGES": self.x_stages,
            "W_STAGES": self.w_stages,
            "CLUSTER": self.cluster,
        }


def prefill_rows(rows: int) -> int:
    """Rows of a buffer of activations for ``rows`` rows; its layout's ``tile`` is the same number."""
    return -(-rows // _ROWS) * _ROWS


def shared_bytes(name: str, epilogue: Epilogue, tiling: Tiling) -> int:
    """Shared memory of a block, as the kernel lays it out."""
    part = RECORD_BYTES[name] // (4 if name == "BF16" else 1)
    x = tiling.tokens * 128
    w = tiling.groups * 4 * part + (tiling.tokens * 32 if name in _MINIMA else 0)
    if epilogue == Epilogue.SWIGLU:
        totals = tiling.tokens * 256 * (name in _SCALED) + tiling.tokens * 16
    elif tiling.tokens <= 128:
        totals = tiling.tokens * 272
    else:
        totals = tiling.tokens * 256 * (name in _SCALED)
    bars = 16 * (tiling.x_stages + tiling.w_stages)
    return tiling.x_stages * x + tiling.w_stages * w + tiling.groups * totals + bars


@functools.cache
def _with_stages(name: str, epilogue: Epilogue, tokens: int, groups: int, cluster: int, limit: int) -> Tiling:
    """The tile with as many stages as shared memory holds: of weights about 512 k, of activations the rest."""
    w_stages = 4 if name == "BF16" else 3 if RECORD_BYTES[name] < 3000 else 2
    for x_stages in range(8, 1, -1):
        found = Tiling(tokens, groups, x_stages, w_stages, cluster)
        if shared_bytes(name, epilogue, found) <= limit:
            return found
    raise AssertionError(f"no stages fit for {name}, {tokens} x {groups}")


def choose_tiling(name: str, epilogue: Epilogue, rows: int, row_blocks: int, device: Device) -> Tiling:
    """The tile for a product of ``rows`` activations with ``row_blocks`` row-blocks."""
    best: tuple[float, int, int] | None = None
    for tokens, groups in ((128, 2), (64, 2), (64, 1)):
        tiles = -(-rows // tokens) * -(-row_blocks // (4 * groups))
        rounds = -(-tiles // device.multiprocessors)
        cost = rounds * tokens * groups * (1.0 if tokens == 128 else 1.15)
        if best is None or cost < best[0]:
            best = cost, tokens, groups
    assert best is not None
    return _with_stages(name, epilogue, best[1], best[2], 1, device.shared_limit)


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
) -> None:
    """Queue ``out`` = epilogue(x W^T) on the current stream.

    Args:
        name: the records' format, one of packing.RECORD_BYTES.
        records: packed W [n, depth].
        x: activations in prefill layout with one tile of ``rows`` rows (a multiple of 64), of which ``live`` count.
        out: float32 [live, width]; with SWIGLU activations of ``rows`` rows and ``out_depth`` k.
        width: of a row of ``out``, a multiple of 4 (default ``n``); with SWIGLU how many of its k are real (n / 2).
        out_depth: k of the activations that SWIGLU writes, a multiple of 256; those past ``width`` become zero.
        tiling: instead of the chosen one.
    """
    blocks = -(-n // ROW_BLOCK)
    if width is None:
        width = n // 2 if epilogue == Epilogue.SWIGLU else n
    assert rows % 8 == 0 and (epilogue == Epilogue.SWIGLU or width % 4 == 0)
    cover = max(blocks, out_depth // 8)
    tile = tiling or choose_tiling(name, epilogue, live, cover, device)
    tiles = -(-cover // (4 * tile.groups * tile.cluster)) * -(-live // tile.tokens)
    grid = min(device.multiprocessors // tile.cluster, tiles) * tile.cluster
    kernel = device.kernel("gemm_prefill.cu", "gemm_prefill", tile.defines(name, epilogue))
    numbers = (live, rows, n, padded_depth(depth), width, out_depth, _BAND)
    kernel(
        (grid, 1, 1),
        tile.threads,
        [x, records, out, *map(np.int32, numbers)],
        shared=shared_bytes(name, epilogue, tile),
    )
