"""How much memory this process may still take: the machine's, or its container's limit when that is lower."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available_bytes"]

_ROOT = Path("/")


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
