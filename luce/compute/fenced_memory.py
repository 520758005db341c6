"""Memory of the host build between two fences, so that a kernel that writes outside its arrays is found and named."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FENCE", "aligned", "strays", "strays_of"]

Host = npt.NDArray[Any]

FENCE = 256
"""Bytes on each side, at least. Also the alignment, as device allocations have it."""
_PLANK = 0xFE
"""Fills the fences: as f32 and as bf16 a number near -1.7e38, so that what is read there shows in any result."""


class _Memory:
    """``nbytes`` bytes between fences. The arrays in them hold it by the array interface."""

    def __init__(self, nbytes: int) -> None:
        self._raw = raw = np.empty(nbytes + 3 * FENCE, np.uint8)
        address = raw.__array_interface__["data"][0]
        self._start = FENCE + -(address + FENCE) % FENCE
        self._end = self._start + nbytes
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address + self._start, False),
            "version": 3,
        }
        self._mend()
        _live[id(self)] = weakref.ref(self)

    def _mend(self) -> None:
        self._raw[: self._start] = self._raw[self._end :] = _PLANK

    def stray(self) -> str | None:
        """What was written on a fence since the last call, if anything was."""
        raw, start, end = self._raw, self._start, self._end
        if raw[:start].tobytes() == _planks[:start] and raw[end:].tobytes() == _planks[: len(raw) - end]:
            return None
        low, high = np.flatnonzero(raw[:start] != _PLANK), np.flatnonzero(raw[end:] != _PLANK)
        self._mend()
        size = end - start
        if low.size:
            return f"wrote {start - low[0]} bytes before the start of an array of {size} bytes"
        return f"wrote {high[-1] + 1} bytes past the end of an array of {size} bytes"

    def __del__(self) -> None:
        _live.pop(id(self), None)
        if (found := self.stray()) is not None:
            _found_late.append(found)


_planks = bytes([_PLANK]) * (2 * FENCE)
_live: dict[int, weakref.ref[_Memory]] = {}
_found_late: list[str] = []


def aligned(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
    """Uninitialised memory at a multiple of :data:`FENCE` bytes, fences around it."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.asarray(_Memory(count * kind.itemsize)).view(kind).reshape(shape)


def strays_of(array: Host) -> str | None:
    """What was written outside the memory of which an array is a part, if anything was since it was last asked."""
    memory: object = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return memory.stray() if isinstance(memory, _Memory) else None


def strays() -> list[str]:
    """What was written outside any memory of this process, also such as is freed by now; each is told once."""
    found = [said for ref in list(_live.values()) if (one := ref()) is not None and (said := one.stray())]
    late, _found_late[:] = list(_found_late), []
    return found + late
