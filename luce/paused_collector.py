"""Python's garbage collector, out of the way for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["paused_collector"]

_lock = Lock()
_pauses = 0
"""How many hold the collector now."""
_enabled = False
"""Was it enabled before the first of them?"""


@contextmanager
def paused_collector() -> Iterator[None]:
    """No round begins by itself within, in any thread, whoever else pauses it meanwhile."""
    global _pauses, _enabled
    with _lock:
        if not _pauses:
            _enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _enabled:
                gc.enable()
