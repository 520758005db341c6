"""The orientation tag of EXIF data, and the view that turns stored pixels upright."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

__all__ = ["exif_orientation", "turned", "upright_shape"]

_TAG, _SHORT = 0x0112, 3
_PREFIX = b"Exif\0\0"


def exif_orientation(block: bytes) -> int:
    """1 to 8; 1 where there is none or it cannot be read.

    Only the first directory is looked at, and of it only this tag: its other entries may each name megabytes, and a
    reader that fetches them all can be made to take any amount of memory.
    """
    block = block.removeprefix(_PREFIX)
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None:
        return 1
    try:
        magic, place = struct.unpack_from(f"{order}HI", block, 2)
        (entries,) = struct.unpack_from(f"{order}H", block, place)
        if magic != 42:
            return 1
        for number in range(entries):
            tag, kind, count = struct.unpack_from(f"{order}HHI", block, place + 2 + 12 * number)
            if tag == _TAG:
                (value,) = struct.unpack_from(f"{order}H", block, place + 10 + 12 * number)
                return value if kind == _SHORT and count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def upright_shape(height: int, width: int, orientation: int) -> tuple[int, int]:
    """(height, width) of a stored picture when it stands upright."""
    return (width, height) if orientation >= 5 else (height, width)


def turned(upright: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """A view of the upright picture [H, W, 3] in which its pixels stand as the file has them."""
    if orientation in (2, 3, 6, 7):
        upright = upright[:, ::-1]
    if orientation in (3, 4, 7, 8):
        upright = upright[::-1]
    return upright.transpose(1, 0, 2) if orientation >= 5 else upright
