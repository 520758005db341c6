"""The angles of the rotary embeddings: those of the reference to the last bit, also far out."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.rope import RopeTable, inverse_frequencies
from luce.engines.qwen35.vision import rotation
from tests.golden.files import golden

TEXT = """
3f800000 3f1ab32b 3ebaf81b 3e61f835 3e088d77 3da50956 3d47763f 3cf11177 3c91ad39 3c301052 3bd4ca15 3b80967d 3b1b690d
3abbd3ed 3a6301e2 3a092e02 39a5cb60 394860c1 38f22ce2 3892587e 3830df52 37d5c441 37812dab 371c1fc4 36bcb0c1 36640cc6
3609cf4a 35a68e4c 35494c57 34f3499d 3493048e 3431af44"""
VISION = """
3f800000 3f1977cc 3eb800d6 3e5c9d35 3e044133 3d9e91b6 3d3e1e95 3ce3f280 3c88a69b 3c23d70a 3bc47060 3b6b8631 3b0d3169
3aa94938 3a4af7f3 39f35a5c 3991e2e1 392ee9bf"""
"""``inv_freq`` of transformers 5.23.0 with torch 2.13.0: theta 1e7 over 64 dims, and 1e4 over 36 (vision)."""


def recorded(bits: str) -> npt.NDArray[np.float32]:
    return np.array([int(word, 16) for word in bits.split()], np.uint32).view(np.float32)


@pytest.mark.parametrize(("base", "dim", "bits"), [(1e7, 64, TEXT), (1e4, 36, VISION)])
def test_frequencies_are_those_of_the_reference(base: float, dim: int, bits: str) -> None:
    rounded_once = (base ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    assert not np.array_equal(rounded_once, recorded(bits)), "the trap: the exact values are others"
    assert np.array_equal(inverse_frequencies(base, dim), recorded(bits))


def test_far_text_turns_by_the_angle_of_the_reference() -> None:
    config = attrs.evolve(golden("r2").config.text, head_dim=256, rotary_dim=64, mrope_section=(11, 11, 10))
    place = 40_000
    cos, sin = RopeTable(config, place + 1).rows(np.full((3, 1), place))
    angle = (np.float32(place) * recorded(TEXT)).astype(np.float64)
    rounded_once = np.float32(place) * (1e7 ** (-np.arange(0, 64, 2) / 64)).astype(np.float32)
    assert np.abs(angle - rounded_once).max() > 1e-4, (
        "the trap: so far out the last bit of a frequency is seen"
    )
    np.testing.assert_allclose(cos.ravel(), np.cos(angle), atol=1e-7, rtol=0)
    np.testing.assert_allclose(sin[0, 0], [-np.sin(angle), np.sin(angle)], atol=1e-7, rtol=0)


def test_patches_turn_by_the_angle_of_the_reference() -> None:
    cos, _ = rotation((2, 256), 72, 2)
    angle = (np.float32(255) * recorded(VISION)).astype(np.float64)
    np.testing.assert_allclose(cos[-1].ravel()[18:], np.cos(angle), atol=1e-7, rtol=0)
