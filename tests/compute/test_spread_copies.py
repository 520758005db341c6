"""Copies on a few threads."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute.spread_copies import LEAST_BYTES, PIECES, SpreadCopies


@pytest.mark.parametrize("rows", [0, 1, 7, 2000])
def test_pieces_are_the_whole_in_order(rows: int) -> None:
    copies = SpreadCopies()
    source = np.random.default_rng(rows).standard_normal((rows, 700)).astype(np.float32)
    target = np.zeros_like(source)
    seen = 0
    for piece in copies.each(target, source):
        assert piece.start == seen and piece.stop >= seen
        seen = piece.stop
        np.testing.assert_array_equal(target[piece], source[piece])
    assert seen == rows
    many = len(copies.pieces(source))
    assert many == PIECES if source.nbytes > PIECES * LEAST_BYTES else many == 1
    copies.close()


def test_a_copy_that_fails_says_so() -> None:
    copies = SpreadCopies()
    for size in (3, LEAST_BYTES):
        with pytest.raises(ValueError, match="broadcast"):
            copies.start(np.zeros(size + 1), np.zeros(size)).result()
    copies.close()
