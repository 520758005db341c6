"""How much memory this process may still take: the machine's, or its container's limit when that is lower; and how it
keeps what it takes."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

__all__ = ["available_bytes", "spare_what_stays", "use_one_heap"]

YOUNG = 20_000
"""Objects that may be made, beyond those that went, before the garbage collector looks at the young ones."""
_ROOT = Path("/")
_M_ARENA_MAX = -8
"""glibc's malloc.h."""


def use_one_heap() -> bool:
    """Have threads that come from now on allocate from the main heap. False where the C library knows no such thing.

    glibc gives threads heaps of their own, up to eight for each core, so that they need not wait for each other. A
    server's threads seldom allocate at the same time, because they hold Python's lock, and pass on what they made:
    freed arrays of preparation, encoder and steps lie about in each heap, for use in that one alone.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1))
    except (OSError, AttributeError):
        return False


def available_bytes(root: Path = _ROOT) -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say.

    Args:
        root: where ``proc`` and ``sys`` are found (tests give another).
    """
    found = [size for size in (_machine(root), _container(root)) if size is not None]
    return min(found) if found else None


def _machine(root: Path) -> int | None:
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container(root: Path) -> int | None:
    """cgroup 2: limit minus what is in use, file cache that can be dropped apart."""
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text().strip()
        if not limit.isdecimal():
            return None
        used = int((group / "memory.current").read_text())
        stat = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + int(stat.get("inactive_file", "0")))
    except (OSError, ValueError):
        return None


def spare_what_stays() -> None:
    """Take everything that lives now, modules and the loaded model, out of the garbage collector's rounds, and let
    these come less often than for a program that makes a few objects at a time.

    A full round over all that holds up every request for some 50 ms, a few times a minute under load; without it, for
    5. Rounds over young objects came every other step at 64 slots and were a twentieth of the scheduler's time. What
    an ended request leaves is let go without the collector (`luce/actors/request.py`).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 50)
