"""Philox against the published vectors, and the coordinates of a draw."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.sampling.philox import derived_seed, gumbel, philox4x32, random_words

# Random123, tests/kat_vectors, lines "philox4x32 10": counter, key, output.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
WORD = 0xFFFFFFFF
seeds = st.integers(-(2**63), 2**63 - 1)


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_published_vectors(counter: str, key: str, output: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    assert tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == words(output)


def test_vectorised_equals_one_by_one() -> None:
    counters = np.array([words(counter) for counter, _, _ in KNOWN], np.uint64).T
    together = philox4x32(tuple(counters), (5, 6))
    for column in range(3):
        alone = philox4x32(tuple(int(word) for word in counters[:, column]), (5, 6))
        assert [int(word[column]) for word in together] == [int(word) for word in alone]


@given(seeds, st.integers(0, 2**40), st.sets(st.integers(0, 300_000), min_size=1, max_size=40))
def test_a_draw_depends_on_its_own_coordinates_only(seed: int, position: int, tokens: set[int]) -> None:
    ids = np.array(sorted(tokens))
    together = random_words(seed, position, ids)
    for index, token in enumerate(ids):
        counter = (int(token) // 4, position & WORD, position >> 32, 0)
        expected = philox4x32(counter, (seed & WORD, (seed >> 32) & WORD))[int(token) % 4]
        assert int(together[index]) == int(expected)


def test_dense_and_sparse_paths_agree() -> None:
    dense = random_words(7, 3, np.arange(1001))
    sparse = random_words(7, 3, np.array([0, 999, 1000]))  # 1000 >= 4 * 3 takes the other path
    assert sparse.tolist() == dense[[0, 999, 1000]].tolist()
    assert len(random_words(7, 3, np.arange(0))) == 0


@given(seeds, seeds, st.integers(0, 1000), st.integers(0, 1000))
def test_seed_and_position_change_the_noise(seed: int, other: int, position: int, elsewhere: int) -> None:
    ids = np.arange(8)
    same = np.array_equal(random_words(seed, position, ids), random_words(other, elsewhere, ids))
    assert same == ((seed, position) == (other, elsewhere))


def test_gumbel_by_hand() -> None:
    (word,) = random_words(0, 0, np.array([0]))
    assert int(word) == 0x6627E8D5
    u = (0x6627E8D5 + 0.5) / 2**32
    assert gumbel(0, 0, np.array([0]))[0] == pytest.approx(-math.log(-math.log(u)), abs=1e-15)


def test_gumbel_moments_and_bounds() -> None:
    noise = gumbel(11, 5, np.arange(200_000))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.03)
    for extreme in (0, WORD):  # the two ends of u stay finite
        assert math.isfinite(-math.log(-math.log((extreme + 0.5) / 2**32)))


@given(seeds)
def test_derived_seeds(seed: int) -> None:
    assert derived_seed(seed, 0) == seed
    choices = [derived_seed(seed, choice) for choice in range(1, 20)]
    assert len(set(choices)) == 19
    assert all(0 <= choice < 2**63 for choice in choices)
    assert choices == [derived_seed(seed, choice) for choice in range(1, 20)]
