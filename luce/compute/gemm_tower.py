"""The products of the vision tower (kernels/gemm_tower.cu): how its matrices stand, its tiles, its launch.

Tiles change no bit of a result, so they follow speed alone. The kernel is for sm_90a and the host build (warpgroup
products).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device
from luce.compute.gemm_prefill import prefill_rows

__all__ = [
    "TowerEpilogue",
    "TowerMatrix",
    "choose_tokens",
    "launch_gemm_tower",
    "tower_kernels",
    "tower_matrix_bytes",
]

F32 = npt.NDArray[np.float32]

_ROWS = 128
"""Rows of W of a tile."""
_STEP = 64
"""K of a stage."""
_THREADS = 384
_BAND = 8
"""Token tiles that are worked on together, so that weights are read from device memory once for all of them."""
TOKENS = (192, 144, 96)
"""Rows of x of a tile that launches choose from; kernels/wgmma_shared.h has products of more numbers of columns."""


class TowerEpilogue(enum.Enum):
    """What becomes of v = x W^T + bias."""

    STORE = 0
    """y [rows, N] f32 = v."""
    ADD = 1
    """y = y + v, the sum rounded once."""
    GELU = 2
    """Activations of gelu(v), tanh form, in the layout of x, without sums of 32."""
    GELU_ERF = 3
    """The same of the exact gelu."""
    HEADS = 4
    """Tiles of queries, keys and values (kernels/vision_tiles.h), of rows of W in the order of
    `luce.engines.qwen35.device.vision_attention.paired_rows`; compiled for HEADS and HEAD_DIM."""


def _padded(rows: int, depth: int) -> tuple[int, int]:
    return -(-rows // _ROWS) * _ROWS, -(-depth // _STEP) * _STEP


def tower_matrix_bytes(rows: int, depth: int) -> int:
    """Bytes of a matrix on the device."""
    rows, depth = _padded(rows, depth)
    return rows * depth * 2


@attrs.frozen(eq=False)
class TowerMatrix:
    """A matrix [rows, depth] of operands and its bias on a device, in the layout of activations."""

    rows: int
    depth: int
    values: Array
    """[K / 64, rows / 8, 8, 8, 8] with zeros behind rows and K."""
    bias: Array
    """float32 [rows]."""

    @classmethod
    def load(cls, device: Device, values: F32, bias: F32) -> TowerMatrix:
        rows, depth = values.shape
        height, width = _padded(rows, depth)
        bits = np.zeros((height, width), np.uint16)
        bits[:rows, :depth] = device.operands.hold_weights(np.ascontiguousarray(values, np.float32))
        order = bits.reshape(height // 8, 8, width // _STEP, 8, 8).transpose(2, 0, 3, 1, 4)
        return cls(
            rows,
            depth,
            device.array(np.ascontiguousarray(order)),
            device.array(np.ascontiguousarray(bias, np.float32)),
        )

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)


def _stage_bytes(tokens: int) -> int:
    """Of shared memory, with its two barriers."""
    return 16 + (_ROWS + tokens) * 2 * _STEP


def _stages(tokens: int, limit: int) -> int:
    return min(limit // _stage_bytes(tokens), 8)


def choose_tokens(rows: int, n: int, multiprocessors: int) -> int:
    """The tile that takes the least time for ``rows`` rows of x and ``n`` rows of W."""

    def time(tokens: int) -> float:
        tiles = -(-rows // tokens) * -(-n // _ROWS)
        return -(-tiles // multiprocessors) * (tokens + 50)  # 50: what a tile of W alone takes

    return min(TOKENS, key=time)


def _macros(
    epilogue: TowerEpilogue, tokens: int, shape: Mapping[str, int] | None, limit: int
) -> dict[str, int | str]:
    own = shape if shape is not None and epilogue is TowerEpilogue.HEADS else {}
    return {"EPILOGUE": epilogue.value, "TOKENS": tokens, "STAGES": _stages(tokens, limit), **own}


def tower_kernels(
    device: Device, shape: Mapping[str, int]
) -> Iterator[tuple[str, str, tuple[tuple[str, int | str], ...]]]:
    """(source, name, macros) of all that `launch_gemm_tower` may choose for a tower with heads of this ``shape``."""
    for epilogue in TowerEpilogue:
        for tokens in TOKENS:
            macros = _macros(epilogue, tokens, shape, device.shared_limit)
            yield "gemm_tower.cu", "gemm_tower", tuple(sorted(macros.items()))


def launch_gemm_tower(
    device: Device,
    matrix: TowerMatrix,
    x: Array,
    out: Array,
    *,
    live: int,
    epilogue: TowerEpilogue,
    turn: Array | None = None,
    shape: Mapping[str, int] | None = None,
    tokens: int | None = None,
    blocks: int | None = None,
) -> None:
    """Queue what ``epilogue`` makes of x W^T + bias on the current stream.

    Args:
        x: activations [live, depth] in prefill layout with one tile of `prefill_rows` rows.
        out: float32 [live, rows of W]; with the GELUs activations in the layout of ``x``, zeros up to a multiple
            of 64; with HEADS tiles.
        turn: float32 [live, head dim / 2, 2], cosine and sine; of HEADS.
        shape: HEADS and HEAD_DIM; of HEADS.
        tokens: rows of x of a tile, instead of the chosen number.
        blocks: at most so many (default: one for each multiprocessor).
    """
    gelu = epilogue in (TowerEpilogue.GELU, TowerEpilogue.GELU_ERF)
    tokens = tokens or choose_tokens(live, matrix.rows, device.multiprocessors)
    height, width = _padded(matrix.rows, matrix.depth)
    tiles = height // _ROWS * -(-live // tokens)
    macros = _macros(epilogue, tokens, shape, device.shared_limit)
    depth = -(-matrix.rows // _STEP) * _STEP if gelu else 0
    device.kernel("gemm_tower.cu", "gemm_tower", macros)(
        (min(blocks or device.multiprocessors, tiles), 1, 1),
        _THREADS,
        [
            *(x, matrix.values, out, np.int32(live), np.int32(prefill_rows(live)), np.int32(matrix.rows)),
            *map(np.int32, (height, width // _STEP, matrix.rows, depth, _BAND)),
            *(matrix.bias, turn),
        ],
        shared=_stages(tokens, device.shared_limit) * _stage_bytes(tokens),
        early=True,
    )
