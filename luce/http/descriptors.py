"""File descriptors: how many connections the system lets this process have."""

from __future__ import annotations

import logging
import resource

__all__ = ["SPARE", "room_for"]

log = logging.getLogger("luce.http")

SPARE = 128
"""Descriptors for everything but connections: model files, threads' wake-ups, logs, connections that are refused."""


def room_for(connections: int) -> int:
    """Raise this process's soft limit of descriptors as far as needed; then as many connections as fit, at most
    ``connections``. Each takes one descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (OSError, ValueError):  # as some systems cap it lower than they say
            log.debug("the limit of descriptors stays %d", soft)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(1, soft - SPARE)
    log.warning("connections: %d at most, not %d: the system allows %d descriptors", room, connections, soft)
    return room
