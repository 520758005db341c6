"""Products of many rows at once, summed in pieces along their depth.

BLAS adds the terms of an output one after the other, so that its rounding error grows with the square root of their
number; in the vision tower that was nine tenths of the rows' error. Here the depth is cut into pieces, each one BLAS
call, and their results are added as a tree: the same multiplications with a half to a third of the error.

The shapes of all calls follow from those of the operands alone, so equal operands give equal bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.matrix import SMALL_PRODUCT

__all__ = ["ROOM", "piece_length", "product", "tile_shape"]

F32 = npt.NDArray[np.float32]

ROOM = 1 << 19
"""Floats of the scratch that :func:`product` puts the pieces' results into."""
SHORTEST = 16
"""Values in a piece, at least; shorter ones gain nothing more."""
FEW_ROWS = 16
"""Rows of a call, at least, where that makes it a small product for BLAS, whose kernels do not repack the matrix."""
MANY_ROWS = 256
"""Rows of a call, at most, where it is too large for that, so that repacking pays."""
ALIGN = 8
"""Lengths of pieces and numbers of rows are multiples of it, for the kernels."""


def piece_length(depth: int, most: int) -> int:
    """Length of the pieces of ``depth``, at most ``most`` of them; the last one may be shorter."""
    return max(SHORTEST, -(-depth // (most * ALIGN)) * ALIGN)


def tile_shape(rows: int, width: int, length: int, count: int) -> tuple[int, int]:
    """Rows and columns of the output that one call makes, for ``count`` pieces of ``length``."""
    height = SMALL_PRODUCT // (length * width)
    height = min(height, max(FEW_ROWS, ROOM // (count * width))) if height >= FEW_ROWS else MANY_ROWS
    height = min(rows, height // ALIGN * ALIGN)
    return height, min(width, max(1, ROOM // (count * height)))


def product(x: F32, matrix: F32, bias: F32, most: int, room: F32) -> F32:
    """``x @ matrix + bias`` as a new array [rows, out].

    Args:
        x: [rows, in], C-contiguous.
        matrix: [in, out], C-contiguous.
        bias: [out].
        most: pieces to cut the depth into. Four halve the error of a product; more gain more and cost more.
        room: scratch, flat, ROOM floats; what it holds is overwritten.
    """
    (rows, depth), width = x.shape, matrix.shape[1]
    length = piece_length(depth, most)
    whole, rest = divmod(depth, length)
    count = whole + (rest > 0)
    across = x[:, : whole * length].reshape(rows, whole, length).transpose(1, 0, 2)
    down = matrix[: whole * length].reshape(whole, length, width)
    out = np.empty((rows, width), np.float32)
    height, columns = tile_shape(rows, width, length, count)
    for left in range(0, width, columns):
        right = min(left + columns, width)
        for top in range(0, rows, height):
            bottom = min(top + height, rows)
            parts = room[: count * (bottom - top) * (right - left)].reshape(count, bottom - top, right - left)
            np.matmul(across[:, top:bottom], down[:, :, left:right], out=parts[:whole])
            if rest:
                np.matmul(x[top:bottom, -rest:], matrix[-rest:, left:right], out=parts[-1])
            _add_up(parts, out[top:bottom, left:right])
    out += bias
    return out


def _add_up(parts: F32, out: F32) -> None:
    """``out`` = the sum over the first axis, as a tree. Overwrites ``parts``."""
    count = len(parts)
    while count > 2:
        half = count // 2
        np.add(parts[:half], parts[count - half : count], out=parts[:half])
        count -= half
    if count == 2:
        np.add(parts[0], parts[1], out=out)
    else:
        np.copyto(out, parts[0])
