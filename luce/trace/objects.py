"""How many objects MessagePack would become, before any of them is made.

A byte can be an object of 64: what stands in a trace is known to be readable in little memory only once it is counted.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["MOST_OBJECTS", "check_objects"]

MOST_OBJECTS: Final = 1 << 21
"""In a frame. A block of 4,096 records has some ten thousand; what takes many bytes there is few long strings."""


def _fixed() -> list[int]:
    """Bytes of a value by its first byte, what follows it as values of their own aside; 0 where the length follows."""
    sizes = [1] * 256
    for short in range(32):
        sizes[0xA0 + short] = 1 + short
    for first in (0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD9, 0xDA, 0xDB):
        sizes[first] = 0
    for first, size in ((0xCA, 5), (0xCB, 9), (0xDC, 3), (0xDD, 5), (0xDE, 3), (0xDF, 5)):
        sizes[first] = size
    for power in range(4):
        sizes[0xCC + power] = sizes[0xD0 + power] = 1 + (1 << power)
    for power in range(5):
        sizes[0xD4 + power] = 2 + (1 << power)
    return sizes


_FIXED: Final = _fixed()
_LENGTHS: Final = {
    0xC4: (struct.Struct(">B"), 2), 0xC5: (struct.Struct(">H"), 3), 0xC6: (struct.Struct(">I"), 5),
    0xC7: (struct.Struct(">B"), 3), 0xC8: (struct.Struct(">H"), 4), 0xC9: (struct.Struct(">I"), 6),
    0xD9: (struct.Struct(">B"), 2), 0xDA: (struct.Struct(">H"), 3), 0xDB: (struct.Struct(">I"), 5),
}  # fmt: skip
"""How the length is written that follows the first byte, and the bytes before the content."""


def check_objects(data: bytes | memoryview, most: int = MOST_OBJECTS) -> None:
    """Look through MessagePack that is not decoded yet. Whether it is whole and well-formed is the decoder's matter.

    Raises:
        ValueError: it holds more than ``most`` values; says so.
    """
    view = memoryview(data)
    end = len(view)
    if end <= most:
        return
    at = count = 0
    try:
        while at < end:
            first = view[at]
            size = _FIXED[first]
            if not size:
                length, before = _LENGTHS[first]
                size = before + length.unpack_from(view, at + 1)[0]
            at += size
            count += 1
            if count > most:
                raise ValueError(f"a frame holds more than {most} values")
    except struct.error:
        return  # it ends within a length
