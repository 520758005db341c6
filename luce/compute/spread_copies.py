"""Copies within host memory on a few threads: one alone takes a quarter of what the memory gives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SpreadCopies"]

Host = npt.NDArray[Any]

THREADS = 4
PIECES = 4
LEAST_BYTES = 1 << 20
"""Of a piece, about: what is smaller is copied sooner than handed over."""


class SpreadCopies:
    """Owns its threads until :meth:`close`."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="luce-copies")

    @staticmethod
    def pieces(array: Host) -> list[slice]:
        """Its rows in a few pieces, one behind the other."""
        count = max(1, min(PIECES, array.nbytes // LEAST_BYTES, len(array)))
        bounds = [len(array) * number // count for number in range(count + 1)]
        return [slice(low, high) for low, high in pairwise(bounds)]

    def start(self, to: Host, source: Host) -> Future[None]:
        """Begin to copy between arrays of one shape; both stay until it is done. What is small is copied at once."""
        if source.nbytes >= LEAST_BYTES:
            return self._threads.submit(np.copyto, to, source)
        done: Future[None] = Future()
        np.copyto(to, source)
        done.set_result(None)
        return done

    def each(self, to: Host, source: Host) -> Iterator[slice]:
        """Copy in pieces, and tell of each in order when it is there."""
        pieces = self.pieces(source)
        copies = [self.start(to[piece], source[piece]) for piece in pieces]
        for piece, copy in zip(pieces, copies, strict=True):
            copy.result()
            yield piece

    def close(self) -> None:
        """Nothing is copied any more."""
        self._threads.shutdown()
