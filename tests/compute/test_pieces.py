"""Products summed in pieces: right in every shape, nearer to the exact value than one call, always the same bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from luce.compute.blas import pin_blas
from luce.compute.pieces import ROOM, piece_length, product, tile_shape

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    pin_blas()


def operands(rows: int, depth: int, width: int, seed: int = 0) -> tuple[F32, F32, F32]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    matrix = (rng.standard_normal((depth, width)) / depth**0.5).astype(np.float32)
    return x, matrix, rng.standard_normal(width).astype(np.float32)


def exact(x: F32, matrix: F32, bias: F32) -> F64:
    return x.astype(np.float64) @ matrix.astype(np.float64) + bias.astype(np.float64)


def dirty_room() -> F32:
    return np.full(ROOM, np.nan, np.float32)


def test_length_of_pieces() -> None:
    assert [piece_length(depth, 4) for depth in (1, 16, 48, 56, 192, 768, 4304)] == [
        16,
        16,
        16,
        16,
        48,
        192,
        1080,
    ]
    assert [piece_length(depth, 16) for depth in (48, 192, 768, 4608)] == [16, 16, 48, 288]
    for depth in range(1, 5000, 7):
        for most in (1, 3, 4, 16):
            assert -(-depth // piece_length(depth, most)) <= most


@pytest.mark.parametrize("most", [1, 3, 4, 16])
@pytest.mark.parametrize("depth", [1, 5, 16, 17, 48, 56, 192, 200])
@pytest.mark.parametrize("rows", [1, 2, 7, 96])
def test_values(rows: int, depth: int, most: int) -> None:
    x, matrix, bias = operands(rows, depth, 40)
    found = product(x, matrix, bias, most, dirty_room())
    assert found.dtype == np.float32 and found.shape == (rows, 40)
    np.testing.assert_allclose(found, exact(x, matrix, bias), atol=3e-6, rtol=0)


@pytest.mark.parametrize("most", [4, 16])
@pytest.mark.parametrize("shape", [(9000, 48, 64), (100, 768, 1536), (300, 1152, 1500), (260, 4304, 600)])
def test_values_in_several_tiles(shape: tuple[int, int, int], most: int) -> None:
    rows, depth, width = shape
    length = piece_length(depth, most)
    height, columns = tile_shape(rows, width, length, -(-depth // length))
    assert height < rows or columns < width, "the trap: more than one tile"
    x, matrix, bias = operands(*shape)
    found = product(x, matrix, bias, most, dirty_room())
    np.testing.assert_allclose(found, exact(x, matrix, bias), atol=1e-5, rtol=0)


def test_tiles_fit_the_scratch() -> None:
    for width in (1, 48, 144, 192, 768, 1000, 2304, 4304, 4608, 12288):
        for depth in (48, 192, 768, 1152, 4304, 18432):
            for most in (1, 4, 16):
                length = piece_length(depth, most)
                count = -(-depth // length)
                for rows in (1, 5, 96, 5000):
                    height, columns = tile_shape(rows, width, length, count)
                    assert 1 <= height <= rows and 1 <= columns <= width
                    assert count * height * columns <= ROOM


@pytest.mark.parametrize(
    ("depth", "most", "share"), [(48, 4, 0.8), (192, 4, 0.7), (192, 16, 0.5), (768, 16, 0.6)]
)
def test_pieces_take_error_away(depth: int, most: int, share: float) -> None:
    """The error left is at most ``share`` of that of one call."""
    x, matrix, _ = operands(96, depth, 192)
    none = np.zeros(192, np.float32)
    target = exact(x, matrix, none)

    def error(found: F32) -> float:
        return float(np.sqrt(np.mean((found - target) ** 2)))

    one_call = error(x @ matrix)
    assert error(product(x, matrix, none, 1, dirty_room())) > 0.9 * one_call, (
        "the trap: one piece gains nothing"
    )
    assert error(product(x, matrix, none, most, dirty_room())) < share * one_call


def test_equal_operands_give_equal_bits() -> None:
    """Wherever they lie in memory, and whatever the scratch held."""
    x, matrix, bias = operands(84, 192, 576)
    first = product(x, matrix, bias, 4, dirty_room())
    for offset in (1, 3, 8):
        moved = []
        for array in (x, matrix, bias):
            memory = np.empty(array.size + offset, np.float32)[offset:].reshape(array.shape)
            memory[...] = array
            moved.append(memory)
        again = product(*moved, 4, np.full(ROOM + offset, np.inf, np.float32)[offset:])
        assert np.array_equal(first.view(np.uint32), again.view(np.uint32))
