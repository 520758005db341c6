"""Row tiles: the check finds what it is there to find, and packed products keep every row's bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.compute import tiles
from luce.compute.blas import pin_blas
from luce.compute.matrix import PackedMatrix, PanelArena, packed_floats, panel_width
from luce.compute.tiles import HEIGHTS, ONE_ROW, TILE, padded, probe_operand, safe_heights, tile_spans

F32 = npt.NDArray[np.float32]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    pin_blas()


def bits(a: F32) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(a).view(np.uint32)


def rows_of(count: int, depth: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal((count, depth)).astype(np.float32)


@pytest.mark.parametrize("heights", [HEIGHTS, (8,), (4,), ONE_ROW])
@pytest.mark.parametrize("rows", range(1, 40))
def test_spans_cover_every_row_once(rows: int, heights: tuple[int, ...]) -> None:
    at = 0
    for first, count, height in tile_spans(rows, heights):
        assert first == at and height in heights
        at += count * height
    assert rows <= at <= padded(rows)


def test_four_rows_take_the_small_tile() -> None:
    assert tile_spans(1, HEIGHTS) == ((0, 1, 4),)
    assert tile_spans(12, HEIGHTS) == ((0, 1, 8), (8, 1, 4))
    assert tile_spans(13, HEIGHTS) == ((0, 1, 8), (8, 1, 8))


@pytest.mark.parametrize("depth", [48, 80, 256, 512, 640, 768, 1024, 3584])
def test_shapes_of_real_models_hold_on_this_machine(depth: int) -> None:
    """Loud where a machine has to fall back to single rows: luce still serves, but slowly."""
    assert safe_heights(probe_operand(depth, panel_width(depth))) != ONE_ROW


class Faulty:
    """numpy whose matmul computes row by row, then adds one kind of fault."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getattr__(self, name: str) -> object:
        return getattr(np, name)

    def matmul(self, x: F32, b: F32, out: F32) -> F32:
        up = np.float32(np.inf)
        for row in range(len(x)):
            out[row] = np.matmul(x[row : row + 1].copy(), b)[0]
        if self.kind == "place" and len(x) == TILE:
            out[5] = np.nextafter(out[5], up)
        elif self.kind == "nan" and np.isnan(x).any():
            out[...] = np.nan
        elif self.kind == "height" and len(x) == 4:
            out[...] = np.nextafter(out, up)
        elif self.kind == "half" and len(x) == 4:
            out[1] = np.nextafter(out[1], up)
        return out


@pytest.mark.parametrize(
    ("kind", "expected"), [("place", (4,)), ("nan", (1,)), ("height", (8,)), ("half", (8,)), ("none", (4, 8))]
)
def test_the_check_finds_each_fault(
    kind: str, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "np", Faulty(kind))
    assert safe_heights(probe_operand(64, 32)) == expected


@settings(max_examples=60, deadline=None)
@given(
    depth=st.sampled_from([16, 48, 80, 256]),
    outs=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    rows=st.integers(1, 21),
    seed=st.integers(0, 1000),
)
def test_a_packed_product_is_right_and_exact_per_row(
    depth: int, outs: list[int], rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((out, depth)).astype(np.float32) for out in outs]
    matrix = PackedMatrix(*parts)
    x = np.zeros((padded(rows), depth), np.float32)
    x[:rows] = rng.standard_normal((rows, depth))
    out = np.full((padded(rows), matrix.width + 7), np.nan, np.float32)
    matrix(x, out, rows)
    expected = x[:rows].astype(np.float64) @ np.concatenate(parts).astype(np.float64).T
    np.testing.assert_allclose(out[:rows, : matrix.out], expected, atol=1e-3)
    for part, columns in zip(parts, matrix.columns(outs), strict=True):
        assert columns.stop - columns.start == len(part)
    # Any one row alone, in another place, beside NaN.
    mine = int(rng.integers(rows))
    place, other_rows = int(rng.integers(13)), 13
    y = np.full((padded(other_rows), depth), np.nan, np.float32)
    y[place] = x[mine]
    alone = np.empty((padded(other_rows), matrix.width), np.float32)
    with np.errstate(all="ignore"):
        matrix(y, alone, other_rows)
    assert np.array_equal(bits(alone[place, : matrix.out]), bits(out[mine, : matrix.out]))


def test_single_rows_where_no_tile_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luce.compute.matrix.heights_for", lambda depth, width: ONE_ROW)
    weight = rows_of(70, 48, 1)
    matrix = PackedMatrix(weight)
    assert not matrix.tiled
    x, out = rows_of(16, 48, 2), np.empty((16, matrix.width), np.float32)
    matrix(x, out, 11)
    np.testing.assert_allclose(out[:11, :70], x[:11] @ weight.T, atol=1e-4)
    again = np.empty_like(out)
    matrix(x[3:], again[3:], 1)
    assert np.array_equal(bits(again[3, :70]), bits(out[3, :70]))


def test_arena_holds_all_panels_in_one_piece() -> None:
    weights = [rows_of(out, depth, out) for out, depth in ((70, 48), (300, 80), (64, 64))]
    arena = PanelArena(sum(packed_floats(*weight.shape) for weight in weights))
    matrices = [PackedMatrix(weight, arena=arena) for weight in weights]
    ends = [matrix.panels.__array_interface__["data"][0] for matrix in matrices]
    assert ends == sorted(ends)
    assert ends[1] - ends[0] == matrices[0].nbytes and ends[2] - ends[1] == matrices[1].nbytes
    for weight, matrix in zip(weights, matrices, strict=True):
        unpacked = matrix.panels.transpose(0, 2, 1).reshape(-1, weight.shape[1])
        assert np.array_equal(unpacked[: len(weight)], weight)
        assert not unpacked[len(weight) :].any()


def test_fingerprint_names_what_computes() -> None:
    fingerprint = pin_blas()
    assert fingerprint == pin_blas()
    assert fingerprint.threads == 1 and fingerprint.numpy == np.__version__
    assert fingerprint.kernel in str(fingerprint) and fingerprint.blas in str(fingerprint)
