"""Counter-based noise for Gumbel-max sampling: one value per (seed, position, token id).

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The
key is the request's 64-bit seed, the counter is (token id // 4, position, position >> 32, stream), and word
``token id % 4`` of the block is the token's. A draw therefore depends on nothing but its own coordinates, and
sampled answers are the same with and without batching or speculation (spec speculative §8.3 B). Device
kernels use this layout too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["SAMPLING", "SEEDS", "derived_seed", "gumbel", "philox4x32", "random_words"]

SAMPLING = 0
"""Stream (last counter word) of the noise that chooses tokens."""
SEEDS = 1
"""Stream of the seeds of further choices of one request (``n`` > 1)."""

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MASK32 = 0xFFFFFFFF

_Words = npt.NDArray[np.uint64]


def philox4x32(
    counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], key: tuple[int, int]
) -> tuple[_Words, _Words, _Words, _Words]:
    """Ten rounds over arrays of counters.

    Each counter word is a 32-bit value or an array of them; the four broadcast together. The key is two
    32-bit values. Returns the four output words, 32-bit values held as uint64 (the products need 64 bits).
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW
        c2, c3 = (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return c0, c1, c2, c3


def _key(seed: int) -> tuple[int, int]:
    """A signed 64-bit seed as two words; every seed is its own key, negative ones and 0 included."""
    return seed & _MASK32, (seed >> 32) & _MASK32


def random_words(seed: int, position: int, ids: npt.NDArray[np.integer], stream: int = SAMPLING) -> _Words:
    """The 32-bit word of every token of ``ids`` [n] (ascending), as uint64 [n]."""
    tail = (position & _MASK32, position >> 32, stream)
    count = len(ids)
    if count and int(ids[-1]) < 4 * count:  # dense: one block serves four neighbours
        blocks = philox4x32((np.arange(int(ids[-1]) // 4 + 1), *tail), _key(seed))
        dense: _Words = np.stack(blocks, axis=1).ravel()[ids]
        return dense
    words = np.stack(philox4x32((ids >> 2, *tail), _key(seed)))
    picked: _Words = words[ids & 3, np.arange(count)]
    return picked


def gumbel(seed: int, position: int, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise float64 [n] of the token ids [n] (ascending) at one absolute position.

    ``-log(-log(u))`` with ``u = (word + 0.5) / 2**32``, exact in float64 and never 0 or 1: from -3.2 to 22.9.
    """
    noise = random_words(seed, position, ids).astype(np.float64)
    noise += 0.5
    noise *= 2.0**-32
    for _ in range(2):  # in place: at 248k ids fresh pages would cost more than the logarithms
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def derived_seed(seed: int, choice: int) -> int:
    """The seed of choice ``choice`` of a request: ``seed`` itself for choice 0, 63 fresh bits for others."""
    if choice == 0:
        return seed
    low, high, _, _ = philox4x32((choice & _MASK32, choice >> 32, 0, SEEDS), _key(seed))
    return (int(high) << 32 | int(low)) >> 1
