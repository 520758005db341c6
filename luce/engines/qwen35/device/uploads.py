"""Random matrices on a device: a few rows stand for all of them."""

from __future__ import annotations

from luce.compute.device import Array, Device

__all__ = ["repeat"]


def repeat(device: Device, array: Array, made: int) -> None:
    """Fill the rest of ``array`` with its first ``made`` entries, over and over."""
    while made < len(array):
        count = min(made, len(array) - made)
        device.copy(array[made : made + count], array[:count])
        made += count
