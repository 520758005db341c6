"""Host memory that serving may take on top of the memory plan: what each budget is if the operator does not say."""

from __future__ import annotations

import attrs

from luce.actors.free_memory import FreeMemory, machine_memory
from luce.actors.options import ServiceOptions
from luce.engines.seam import Capabilities

__all__ = ["CACHED_PREFIXES", "IMAGE_BYTES", "image_budget", "park_budget", "prefix_budget", "settled"]

CACHED_PREFIXES = 32
"""Snapshots that the prefix cache keeps if nobody says otherwise."""
IMAGE_BYTES = 64 << 20
"""Rows of pictures that are kept when no request needs them, if nobody says otherwise."""


def settled(
    options: ServiceOptions, capabilities: Capabilities, free: FreeMemory = machine_memory
) -> ServiceOptions:
    """The same with the budgets that are decided once, at the start, as numbers."""
    return attrs.evolve(
        options,
        prefix_bytes=prefix_budget(options.prefix_bytes, capabilities, free),
        image_bytes=image_budget(options.image_bytes, capabilities, free),
    )


def park_budget(
    asked: int | None, capabilities: Capabilities, taken: int = 0, free: FreeMemory = machine_memory
) -> int:
    """Bytes that further saved slots may take now, besides those ``taken``. Looked up anew at every save."""
    if not capabilities.parking:
        return 0
    if asked is not None:
        return asked - taken
    return (free("park") or 0) // 4


def prefix_budget(asked: int | None, capabilities: Capabilities, free: FreeMemory = machine_memory) -> int:
    """Bytes of the prefix cache's snapshots, 0 for no cache."""
    if not capabilities.snapshots:
        return 0
    if asked is not None:
        return asked
    most = capabilities.captured_bytes(capabilities.block_size - 1) * CACHED_PREFIXES
    return min(most, (free("prefix") or 0) // 4)


def image_budget(asked: int | None, capabilities: Capabilities, free: FreeMemory = machine_memory) -> int:
    """Bytes of encoded pictures that no request needs at present, 0 to keep none."""
    if not capabilities.images:
        return 0
    if asked is not None:
        return asked
    return min(IMAGE_BYTES, (free("image") or 0) // 4)
