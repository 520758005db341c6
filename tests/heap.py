"""The heap's holes: what nobody uses any more and the C library keeps for later."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["trim"]


def trim() -> None:
    """Holes go back to the system, where the C library can be told so."""
    with contextlib.suppress(OSError, AttributeError):  # another one than glibc
        ctypes.CDLL(None).malloc_trim(0)
