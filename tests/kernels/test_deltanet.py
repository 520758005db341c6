"""DeltaNet kernels: right values, and the same bits however a sequence is cut into lanes and steps."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute.device import Device
from luce.engines.qwen35.device.deltanet import fragments, state_matrix
from tests.kernels.deltanet_cases import F32, Mixer, Piece, inputs, recurrence, shape, small_weights

SHAPES = [(2, 2, 32, 32), (2, 4, 32, 64), (1, 3, 64, 32), (2, 2, 16, 16), (1, 3, 16, 16), (1, 2, 128, 128)]


def bits(x: F32) -> np.ndarray:
    return x.view(np.uint32)


def nan_rows(config, count: int) -> F32:
    return np.full((count, inputs(config, 1, 0).shape[1]), np.nan, np.float32)


@pytest.mark.parametrize("heads", SHAPES)
def test_values_are_those_of_the_recurrence(device: Device, heads: tuple[int, int, int, int]) -> None:
    config = shape(*heads)
    weights = small_weights(config)
    x = inputs(config, 150, 1)
    wanted = recurrence(config, weights, x)
    size = np.sqrt((wanted**2).mean())
    mixer = Mixer(device, config, 2, rows=160, weights=weights)
    chunked = mixer.run([Piece(1, 0, x)], step=False)[0]
    rounding = 2.0**-8 * np.abs(wanted)
    assert (np.abs(chunked - wanted) <= rounding + 3e-3 * size).all()
    stepped = np.concatenate([mixer.run([Piece(0, i, x[i : i + 1])], step=True)[0] for i in range(150)])
    assert np.array_equal(bits(stepped), bits(chunked))


def commits(start: int, count: int) -> int:
    """Lowest start of a next segment (seam.Segment.commits)."""
    return start if count <= 64 else max(start, (start + count - 1) // 64 * 64)


@pytest.mark.parametrize("heads", [(1, 2, 32, 32), (2, 2, 16, 16), (1, 2, 128, 128)])
def test_any_split_gives_the_same_bits(device: Device, heads: tuple[int, int, int, int]) -> None:
    """300 tokens cut at random into steps and lanes, 200 times (less on the host build, which is slow); rows of a wrong
    guess are dropped now and then, and other sequences, random or not finite, stand before or behind."""
    config = shape(*heads)
    weights = small_weights(config)
    x = inputs(config, 300, 2)
    wrong = inputs(config, 300, 3)
    whole = Mixer(device, config, 1, rows=300, weights=weights)
    wanted = whole.run([Piece(0, 0, x)], step=False)[0]
    whole.fold(0, 300)
    state = whole.kept(0, 300)
    rng = np.random.default_rng(7)
    mixer = Mixer(device, config, 3, rows=512, weights=weights)
    slow = 8 if heads[2] == 128 else 30  # the size of which models are; four warps multiply together
    for _ in range(slow if device.arch == "host" else 200):
        mixer.base[:] = [0, 0, 0]
        at, history = 0, []
        beside = [0, 0, 0]
        while at < 300:
            one = rng.random() < 0.5
            count = 1 if one else int(min(rng.choice([2, 7, 40, 64, 65, 130, 300]), 300 - at))
            guess = rng.random() < 0.3 and at + count < 300
            right = commits(at, count) if guess else at + count  # what is final has to be right
            piece = Piece(1, at, np.concatenate([x[at:right], wrong[right : at + count]]))
            pieces = [piece]
            for other in (0, 2):
                if rng.random() < 0.3:
                    rows = (
                        nan_rows(config, 1)
                        if rng.random() < 0.5
                        else inputs(config, 1, int(rng.integers(99)))
                    )
                    if not one:
                        rows = np.concatenate([rows] * int(rng.integers(1, 70)))
                    other_piece = Piece(other, beside[other], rows)
                    beside[other] = other_piece.end
                    pieces.insert(0 if other == 0 else len(pieces), other_piece)
            spare = nan_rows(config, int(rng.integers(0, 3)))
            found = mixer.run(pieces, step=one, spare=spare)[pieces.index(piece)]
            history.append((at, count, right))
            assert np.array_equal(bits(found[: right - at]), bits(wanted[at:right])), str(history)
            at = right
        mixer.fold(1, 300)
        for name, value in mixer.kept(1, 300).items():
            assert np.array_equal(value, state[name]), name


def test_a_lane_past_an_uncommitted_boundary_can_be_taken_back(device: Device) -> None:
    """Rows 60 .. 123 read a provisional state from row 64 on; then the sequence goes on from 60 with other rows."""
    config = shape(1, 2, 32, 32)
    weights = small_weights(config)
    x, wrong = inputs(config, 200, 4), inputs(config, 200, 5)
    mixer = Mixer(device, config, 1, rows=256, weights=weights)
    wanted = mixer.run([Piece(0, 0, x)], step=False)[0]
    mixer.base[0] = 0
    found = [mixer.run([Piece(0, 0, x[:60])], step=False)[0]]
    for _ in range(2):
        mixer.run([Piece(0, 60, wrong[60:124])], step=False)
    for start, end in ((60, 124), (124, 125), (125, 128), (128, 192), (192, 200)):
        found.append(mixer.run([Piece(0, start, x[start:end])], step=False)[0])
    assert np.array_equal(bits(np.concatenate(found)), bits(wanted))


@pytest.mark.parametrize("position", [63, 64, 65, 127, 128, 129])
def test_slots_move_by_copies(device: Device, position: int) -> None:
    """A slot copied array by array goes on as the one it was copied from; void ring rows need no clearing."""
    config = shape(1, 3, 32, 32)
    weights = small_weights(config)
    x = inputs(config, 140, 6)
    mixer = Mixer(device, config, 2, rows=256, weights=weights)
    wanted = mixer.run([Piece(0, 0, x)], step=False)[0]
    mixer.base[0] = 0
    mixer.run([Piece(0, 0, x[:50])], step=False)
    mixer.run([Piece(0, 50, x[50:position])], step=False)
    mixer.fold(0, position)
    for array in mixer.state.values():
        device.copy(array[1], array[0])
    mixer.base[1] = mixer.base[0]
    found = [mixer.run([Piece(1, i, x[i : i + 1])], step=True)[0] for i in range(position, 132)]
    found.append(mixer.run([Piece(1, 132, x[132:])], step=False)[0])
    assert np.array_equal(bits(np.concatenate(found)), bits(wanted[position:]))


def test_strong_decay_keeps_what_it_must(device: Device) -> None:
    """Log decays of minus hundreds a row: sums of thousands, whose differences still count."""
    config = shape(1, 2, 32, 32)
    weights = small_weights(config)
    weights.neg_exp_a[:] = [-400.0, -0.01]
    x = inputs(config, 130, 8)
    a = config.conv_channels + 2 * 32 + 2
    x[:, a : a + 2] = np.where(
        np.random.default_rng(0).random((130, 2)) < 0.5, -9.0, 1.0
    )  # a: nearly no decay, or a lot
    wanted = recurrence(config, weights, x)
    found = Mixer(device, config, 1, rows=160, weights=weights).run([Piece(0, 0, x)], step=False)[0]
    size = np.sqrt((wanted**2).mean())
    assert (np.abs(found - wanted) <= 2.0**-8 * np.abs(wanted) + 3e-3 * size).all()


def test_a_row_that_is_not_finite_shows(device: Device) -> None:
    config = shape(1, 2, 32, 32)
    weights = small_weights(config)
    mixer = Mixer(device, config, 1, rows=64, weights=weights)
    x = inputs(config, 3, 1)
    x[2, config.conv_channels + 2 * 32 + 3] = np.nan  # an undefined decay of head 1
    found = mixer.run([Piece(0, 0, x)], step=False)[0]
    assert np.isfinite(found[:2]).all() or not np.isfinite(found[2]).all()
    assert np.isnan(found[2, 32:]).any() and np.isfinite(found[2, :32]).all()


def test_state_order(device: Device) -> None:
    """``fragments`` and ``state_matrix`` say where S stands."""
    config = shape(1, 2, 32, 48)
    weights = small_weights(config)
    x = inputs(config, 64, 1)
    mixer = Mixer(device, config, 1, rows=64, weights=weights)
    mixer.run([Piece(0, 0, x)], step=False)
    mixer.fold(0, 64)
    packed = device.numpy(mixer.state["s"])[0]
    s = state_matrix(packed, 32, 48)
    assert np.array_equal(fragments(s), packed)
    u = device.numpy(mixer.state["u"])[0, :, :64].astype(np.float64)
    k = (
        (device.numpy(mixer.state["k"])[0, :, :64].astype(np.uint32) << 16)
        .view(np.float32)
        .astype(np.float64)
    )
    g = device.numpy(mixer.state["g"])[0, :, :64] * 2.0**-40
    wanted = np.einsum("jk,hjv->hkv", k[0], u * np.exp(g[:, -1:] - g)[..., None])
    assert np.abs(s - wanted).max() < 1e-3 * np.abs(wanted).max()
