"""What a stored state was computed from, as far as an engine can check it."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["content_digest"]


def content_digest(ids: npt.NDArray[np.integer], positions: npt.NDArray[np.integer]) -> bytes:
    """Digest of token ids [n] and their M-RoPE positions [3, n]. Pictures are not in it."""
    digest = hashlib.blake2b(ids.astype(np.int64).tobytes(), digest_size=16)
    digest.update(positions.astype(np.int64).tobytes())
    return digest.digest()
