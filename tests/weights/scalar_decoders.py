"""Decoders of quantised blocks, one value at a time, after the layouts of ggml's C structures.

A second opinion beside the ``gguf`` package: float32 products in the order of the C code, no vector tricks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

__all__ = ["SCALAR_DECODERS"]

F = np.float32
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def half(block: bytes, at: int) -> np.float32:
    return F(np.frombuffer(block, "<f2", 1, at)[0])


def q4_0(b: bytes) -> list[np.float32]:
    d = half(b, 0)
    return [d * F((q & 15) - 8) for q in b[2:]] + [d * F((q >> 4) - 8) for q in b[2:]]


def q4_1(b: bytes) -> list[np.float32]:
    d, m = half(b, 0), half(b, 2)
    return [d * F(q & 15) + m for q in b[4:]] + [d * F(q >> 4) + m for q in b[4:]]


def _fives(high: int, low: bytes) -> list[int]:
    first = [(q & 15) | ((high >> j) & 1) << 4 for j, q in enumerate(low)]
    return first + [(q >> 4) | ((high >> (j + 16)) & 1) << 4 for j, q in enumerate(low)]


def q5_0(b: bytes) -> list[np.float32]:
    d = half(b, 0)
    return [d * F(q - 16) for q in _fives(struct.unpack_from("<I", b, 2)[0], b[6:])]


def q5_1(b: bytes) -> list[np.float32]:
    d, m = half(b, 0), half(b, 2)
    return [d * F(q) + m for q in _fives(struct.unpack_from("<I", b, 4)[0], b[8:])]


def q8_0(b: bytes) -> list[np.float32]:
    d = half(b, 0)
    return [d * F(q) for q in struct.unpack_from("<32b", b, 2)]


def _scale_min(j: int, s: bytes) -> tuple[int, int]:
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4


def q4_k(b: bytes) -> list[np.float32]:
    d, low, scales, qs = half(b, 0), half(b, 2), b[4:16], b[16:]
    out = []
    for part in range(8):
        sc, m = _scale_min(part, scales)
        scale, offset = d * F(sc), low * F(m)
        codes = qs[part // 2 * 32 : part // 2 * 32 + 32]
        out += [scale * F(q >> 4 if part % 2 else q & 15) - offset for q in codes]
    return out


def q5_k(b: bytes) -> list[np.float32]:
    d, low, scales, qh, qs = half(b, 0), half(b, 2), b[4:16], b[16:48], b[48:]
    out = []
    for part in range(8):
        sc, m = _scale_min(part, scales)
        scale, offset = d * F(sc), low * F(m)
        for j, q in enumerate(qs[part // 2 * 32 : part // 2 * 32 + 32]):
            value = (q >> 4 if part % 2 else q & 15) + (16 if qh[j] >> part & 1 else 0)
            out.append(scale * F(value) - offset)
    return out


def q6_k(b: bytes) -> list[np.float32]:
    ql, qh, scales, d = b[:128], b[128:192], struct.unpack_from("<16b", b, 192), half(b, 208)
    out = [F(0)] * 256
    for n in range(2):
        for j in range(32):
            h, one, two = qh[32 * n + j], ql[64 * n + j], ql[64 * n + j + 32]
            lows = (one & 15, two & 15, one >> 4, two >> 4)
            for k, low in enumerate(lows):
                q = (low | (h >> 2 * k & 3) << 4) - 32
                out[128 * n + 32 * k + j] = d * F(scales[8 * n + 2 * k + j // 16]) * F(q)
    return out


def iq4_xs(b: bytes) -> list[np.float32]:
    d, high, low, qs = half(b, 0), struct.unpack_from("<H", b, 2)[0], b[4:8], b[8:]
    out = []
    for part in range(8):
        ls = (low[part // 2] >> 4 * (part % 2) & 15) | (high >> 2 * part & 3) << 4
        scale = d * F(ls - 32)
        codes = qs[16 * part : 16 * part + 16]
        out += [scale * F(IQ4_VALUES[q & 15]) for q in codes] + [scale * F(IQ4_VALUES[q >> 4]) for q in codes]
    return out


SCALAR_DECODERS: dict[str, Callable[[bytes], list[np.float32]]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_XS": iq4_xs,
}
