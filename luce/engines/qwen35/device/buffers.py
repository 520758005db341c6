"""Pinned host buffers: descriptors and rows on the way in, results on the way out."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device, Event
from luce.engines.qwen35.device.descriptors import ADJUST, DRAWN, STEP_ROWS, DescriptorLayout, Descriptors

__all__ = ["MAX_LANES", "DescriptorRing", "PieceUploads", "ResultBuffer", "ResultRing"]

MAX_LANES = STEP_ROWS
"""Most lanes of any pass."""
PIECE_BYTES = 4 << 20
"""Of rows that go through a pinned buffer at once."""


class DescriptorRing:
    """The device's buffer of one kind of pass, and a few pinned ones to fill it from.

    So the host may prepare a pass while the copy of an earlier one is still to come.
    """

    def __init__(self, device: Device, layout: DescriptorLayout, buffer: Array, depth: int) -> None:
        """``buffer`` u8 [layout.nbytes] on the device; ``depth``: pinned buffers."""
        self._device, self._buffer, self._layout = device, buffer, layout
        self.parts: dict[str, Array] = {
            name: buffer[layout.offsets[name] : layout.offsets[name] + record.itemsize * count]
            for name, record, count in layout.parts
        }
        self._ring: deque[tuple[Descriptors, Event | None]] = deque(
            (Descriptors(layout, device.pinned(layout.nbytes, np.uint8)), None) for _ in range(depth)
        )

    def take(self) -> Descriptors:
        """The next pinned buffer; waits until the device is past its last copy. :meth:`upload` has to follow."""
        descriptors, event = self._ring[0]
        if event is not None:
            event.synchronize()
        return descriptors

    def upload(self, descriptors: Descriptors, lists: int) -> None:
        """Queue the copy of everything but the lists' entries from ``lists`` on."""
        used = self._layout.offsets["lists"] + lists * ADJUST.itemsize
        self._device.upload(self._buffer[:used], descriptors.buffer[:used])
        event = self._ring.popleft()[1] or self._device.event()
        event.record()
        self._ring.append((descriptors, event))


class ResultBuffer:
    """What a pass gives back, pinned: draws [64] and a word for each lane, not 0 where its last row is not finite."""

    NBYTES = STEP_ROWS * DRAWN.itemsize + MAX_LANES * 4

    def __init__(self, buffer: npt.NDArray[np.uint8]) -> None:
        self.buffer = buffer
        draws = STEP_ROWS * DRAWN.itemsize
        self.drawn: npt.NDArray[Any] = buffer[:draws].view(DRAWN)
        self.faults: npt.NDArray[np.int32] = buffer[draws:].view(np.int32)


class ResultRing:
    """The device's result buffer, and pinned ones that go back and forth between engine and waiter thread."""

    def __init__(self, device: Device, buffer: Array) -> None:
        """``buffer`` u8 [ResultBuffer.NBYTES] on the device."""
        self._device, self._buffer = device, buffer
        draws = STEP_ROWS * DRAWN.itemsize
        self.drawn: Array = buffer[:draws]
        self.faults: Array = buffer[draws:]
        self._free: deque[ResultBuffer] = deque()

    def download(self) -> ResultBuffer:
        """Queue the copy of a pass's results."""
        try:
            found = self._free.popleft()
        except IndexError:
            found = ResultBuffer(self._device.pinned(ResultBuffer.NBYTES, np.uint8))
        self._device.download(found.buffer, self._buffer)
        return found

    def give_back(self, results: ResultBuffer) -> None:
        """Nobody reads ``results`` any more. From any thread."""
        self._free.append(results)


class PieceUploads:
    """Copies rows out of any memory to the device, through two pinned buffers in turn: a copy straight out of memory
    that is not pinned is the driver's to make, which waits for the stream first."""

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES) -> None:
        self._device, self._piece_bytes = device, piece_bytes
        self._ring: deque[tuple[npt.NDArray[np.uint8], Event]] = deque()
        """Made when they are needed; the event stands behind a buffer's last copy."""

    def upload(self, to: Array, rows: npt.NDArray[np.float32]) -> None:
        """Queue the copy of ``rows`` [n, width]; they are read when this returns."""
        width = rows.shape[1] * rows.itemsize
        height = max(self._piece_bytes // width, 1)
        for at in range(0, len(rows), height):
            piece = rows[at : at + height]
            buffer, event = self._take(height * width)
            staged = buffer[: piece.size * piece.itemsize].view(rows.dtype).reshape(piece.shape)
            np.copyto(staged, piece)
            self._device.upload(to[at : at + len(piece)], staged)
            event.record()
            self._ring.append((buffer, event))

    def _take(self, nbytes: int) -> tuple[npt.NDArray[np.uint8], Event]:
        if len(self._ring) < 2:
            return self._device.pinned(nbytes, np.uint8), self._device.event()
        buffer, event = self._ring.popleft()
        assert len(buffer) >= nbytes, "rows of one width"
        event.synchronize()
        return buffer, event
