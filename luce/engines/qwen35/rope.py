"""Rotary tables: interleaved M-RoPE of the text model (spec qwen35 §7)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import TextConfig

__all__ = ["RopeTable", "inverse_frequencies", "mrope_axes", "rotations"]

F32 = npt.NDArray[np.float32]


def inverse_frequencies(base: float, dim: int) -> F32:
    """Radians a place turns each of ``dim`` / 2 pairs by: ``base ** (-2 j / dim)`` as the reference forms it.

    Exponent, power and reciprocal are each rounded to float32. That is up to 3 units of the last place away from the
    exact value; what counts is that far positions, which multiply the difference, turn by the reference's angle.
    """
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    power: F32 = (base ** exponent.astype(np.float64)).astype(np.float32)
    return np.float32(1) / power


def mrope_axes(section: tuple[int, int, int]) -> npt.NDArray[np.intp]:
    """Which position (0 t, 1 h, 2 w) turns pair j, for the rotary_dim / 2 pairs."""
    half = sum(section)
    axes = np.zeros(half, np.intp)
    for axis in (1, 2):
        axes[axis : 3 * section[axis] : 3] = axis
    return axes


def rotations(config: TextConfig, positions: int) -> tuple[F32, F32]:
    """Cosines and sines [positions, rotary_dim / 2] of every (position, frequency).

    Angles are formed in float32 as the reference does (position times frequency), their cosine and sine in float64.
    """
    frequency = inverse_frequencies(config.rope_theta, config.rotary_dim)
    angle = (np.arange(positions, dtype=np.float32)[:, None] * frequency).astype(np.float64)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


class RopeTable:
    """Cosine and sine of every (position, frequency), looked up per row: a row's rotation is one table entry whatever
    else is in the batch.
    """

    def __init__(self, config: TextConfig, positions: int) -> None:
        """Tables for positions 0 … ``positions`` - 1."""
        half = config.rotary_dim // 2
        self.limit = positions
        self.half = half
        self._pairs = np.arange(half)
        self._axes = mrope_axes(config.mrope_section)
        self._cos, sin = rotations(config, positions)
        self._sin = np.stack([-sin, sin], axis=-1)

    @property
    def nbytes(self) -> int:
        return self._cos.nbytes + self._sin.nbytes

    def rows(self, positions: npt.NDArray[np.integer]) -> tuple[F32, F32]:
        """For M-RoPE positions [3, R]: cosines [R, 1, 1, half] and signed sines [R, 1, 2, half].

        ``x.reshape(…, 2, half) * cos + x[halves swapped] * sin`` rotates half-split pairs.
        """
        where = positions[self._axes].T, self._pairs
        return self._cos[where][:, None, None], self._sin[where].transpose(0, 2, 1)[:, None]
