"""Masks of the seam, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from luce.engines.seam import Mask
from luce.errors import DeviceError

__all__ = ["allowed_ids", "mask_of"]


def allowed_ids(mask: Mask, num_ids: int) -> npt.NDArray[np.bool_]:
    """bool [num_ids]: may the id be sampled? A new array.

    Raises:
        DeviceError: none of them, or the mask is of another size.
    """
    if len(mask) != (num_ids + 31) // 32:
        raise DeviceError(f"a mask of {len(mask)} words does not fit {num_ids} token ids")
    little = mask.astype("<u4", copy=False).view(np.uint8)
    allowed = np.unpackbits(little, count=num_ids, bitorder="little").view(np.bool_)
    if not allowed.any():
        raise DeviceError("the mask allows no token")
    return allowed


def mask_of(ids: Iterable[int], num_ids: int) -> Mask:
    """The mask that allows ``ids``. Read-only."""
    bits = np.zeros((num_ids + 31) // 32 * 32, np.uint8)
    bits[list(ids)] = 1
    mask = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
    mask.setflags(write=False)
    return mask
