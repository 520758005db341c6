"""Experts on a device: choices as numpy makes them, products against float64, and bits that no other row can change."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import pytest

from luce.compute import activations, packing
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.compute.operands import Operands
from luce.compute.packing import RECORD_BYTES
from luce.engines.qwen35.device.descriptors import PASS
from luce.engines.qwen35.device.experts import ExpertMatrix, Experts, Router, list_experts
from luce.engines.qwen35.device.moe import DeviceMoe, MoeShape, moe_arrays
from luce.engines.qwen35.moe import route
from luce.engines.qwen35.weights import FfnWeights, MoeWeights
from luce.weights import formats
from tests.kernels.recording import RecordingDevice
from tests.kernels.weights import random_rows

SHAPE = MoeShape(hidden=256, ffn=64, experts=11, used=3)
MAX_ROWS = 80


@attrs.frozen(eq=False)
class Layer:
    device: Experts
    router: np.ndarray
    gate_up: np.ndarray
    """[experts + 1, 2, ffn, hidden]."""
    down: np.ndarray


def matrices(name: str, rows: int, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """File bytes of a random matrix and its values."""
    raw = random_rows(name, rows, depth, seed)
    return raw, formats.decode(name, raw.reshape(-1), (rows, depth))


def layer_of(device: Device, name: str, shared: str | None = None, *, bf16_router: bool = False) -> Layer:
    gate_up, down, gate_up_values, down_values = [], [], [], []
    ffn_depth = activations.padded_depth(SHAPE.ffn)
    for expert in range(SHAPE.experts + 1):
        its = shared if shared and expert == SHAPE.experts else name
        gate, gate_values = matrices(its, SHAPE.ffn, SHAPE.hidden, 3 * expert)
        up, up_values = matrices(its, SHAPE.ffn, SHAPE.hidden, 3 * expert + 1)
        back, back_values = matrices(
            its, SHAPE.hidden, ffn_depth, 3 * expert + 2
        )  # blocks of 256 fill the rest
        gate_up.append(
            packing.pack(its, packing.interleave(gate, up), SHAPE.hidden, operands=device.operands).records
        )
        down.append(packing.pack(its, back, ffn_depth, operands=device.operands).records)
        gate_up_values.append(np.stack([gate_values, up_values]))
        down_values.append(back_values[:, : SHAPE.ffn])
    router = np.random.default_rng(99).standard_normal((SHAPE.experts + 1, SHAPE.hidden)).astype(np.float32)
    kept = Router("router", (router[:-1], router[-1:]))
    kept.data = device.array(router)
    if bf16_router:
        held = round_bf16(router)
        router = widen_bf16(held)
        kept = Bf16Router("router", kept.sources, device.array(held))
    apart: list[ExpertMatrix | None] = [None, None]
    if shared:
        apart = [held_as(device, shared, [gate_up.pop()], True), held_as(device, shared, [down.pop()], False)]
    made = Experts(kept, held_as(device, name, gate_up, True), held_as(device, name, down, False), *apart)
    return Layer(made, router, np.stack(gate_up_values), np.stack(down_values))


class Bf16Router(Router):
    @property
    def format(self) -> str:
        return "BF16"


def held_as(device: Device, name: str, records: list[np.ndarray], wide: bool) -> ExpertMatrix:
    rows, depth = (2 * SHAPE.ffn, SHAPE.hidden) if wide else (SHAPE.hidden, SHAPE.ffn)
    return ExpertMatrix("matrix", name, (), rows, depth, wide, device.array(np.stack(records)))


class Bench:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.moe = DeviceMoe(device, SHAPE, MAX_ROWS)

    def __call__(self, layer: Layer, normed: np.ndarray, x: np.ndarray, *, more: int = 0) -> np.ndarray:
        """x + the layer's feed-forward; ``more`` rows of the bucket hold nothing."""
        device, rows = self.device, len(x)
        header = np.zeros(1, PASS)
        header["rows"] = rows
        inputs = step_layout(normed, rows + more, self.device.operands)
        wide = np.full((MAX_ROWS, SHAPE.hidden), np.nan, np.float32)
        wide[:rows] = normed
        device.copy(self.moe.wide, device.array(wide))
        out = np.full((rows + more, SHAPE.hidden), 7.0, np.float32)
        out[:rows] = x
        to = device.array(out)
        self.moe.launch(
            layer.device,
            device.array(header.view(np.uint8)),
            device.array(inputs),
            rows + more,
            to,
            rows + more,
        )
        found = device.numpy(to)
        assert (found[rows:] == 7.0).all()
        return found[:rows]


def step_layout(x: np.ndarray, rows: int, operands: Operands) -> np.ndarray:
    """Activations in the step layout with any number of rows; those that are not given are NaN."""
    filled = np.full((rows, x.shape[1]), np.nan, np.float32)
    filled[: len(x)] = x
    parts = [activations.pack(filled[row : row + 1], 0, operands=operands) for row in range(rows)]
    depth = activations.padded_depth(x.shape[1])
    values = np.stack([part[:depth].reshape(-1, 32) for part in parts], axis=1)
    sums = np.stack([part[depth:].reshape(-1, 16) for part in parts], axis=1)
    return np.concatenate([values.reshape(-1), sums.reshape(-1)])


def reference(layer: Layer, normed: np.ndarray, x: np.ndarray, operands: Operands) -> np.ndarray:
    """In float64, with both products' inputs rounded."""
    logits = normed.astype(np.float64) @ layer.router.T.astype(np.float64)
    wide = operands.rounded(normed).astype(np.float64)
    chosen, weights = route(logits[:, :-1].astype(np.float32), SHAPE.used)
    gate = 1 / (1 + np.exp(-logits[:, -1]))
    out = x.astype(np.float64)
    for row in range(len(x)):
        pairs = [*zip(chosen[row], weights[row], strict=True), (SHAPE.experts, gate[row])]
        for expert, weight in pairs:
            g, u = layer.gate_up[expert] @ wide[row]
            h = operands.rounded((g / (1 + np.exp(-g)) * u).astype(np.float32))
            out[row] += weight * (layer.down[expert] @ h)
    return out


def stored(x: np.ndarray) -> np.ndarray:
    return widen_bf16(round_bf16(x.astype(np.float32)))


def rows_of(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((2, rows, SHAPE.hidden)).astype(np.float32))


@pytest.fixture(scope="module")
def bench(device: Device) -> Bench:
    return Bench(device)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("BF16", None),
        ("Q8_0", None),
        ("Q4_0", None),
        ("Q4_K", "Q8_0"),
        ("Q5_K", None),
        ("Q6_K", "BF16"),
        ("IQ4_XS", None),
    ],
)
def test_near_the_true_values_in_every_format(bench: Bench, name: str, shared: str | None) -> None:
    layer = layer_of(bench.device, name, shared)
    normed, x = rows_of(5, 1)
    found = bench(layer, normed, x, more=3)
    wanted = reference(layer, normed, x, bench.device.operands)
    error = np.sqrt(((found - wanted) ** 2).mean() / ((wanted - x) ** 2).mean())
    assert error < (1e-5 if name == "BF16" else 1e-2)  # the others' weights are rounded to bf16
    alone = bench(layer, normed[3:4], x[3:4])
    np.testing.assert_array_equal(alone[0], found[3])


@pytest.mark.parametrize("bf16_router", [False, True])
def test_choices_are_numpys(bench: Bench, bf16_router: bool) -> None:
    layer = layer_of(bench.device, "Q8_0", bf16_router=bf16_router)
    normed, x = rows_of(33, 2)
    normed[5] = 0.0  # all logits equal: by index
    bench(layer, normed, x)
    logits = bench.device.numpy(bench.moe.logits)[:33]
    np.testing.assert_allclose(logits, normed.astype(np.float64) @ layer.router.T, rtol=1e-5, atol=1e-4)
    chosen, weights = route(logits[:, :-1], SHAPE.used)
    its_chosen, its_weights = (
        bench.device.numpy(part)[:33] for part in (bench.moe.chosen, bench.moe.weights)
    )
    np.testing.assert_array_equal(its_chosen[:, :-1], chosen)
    assert (its_chosen[:, -1] == SHAPE.experts).all()
    np.testing.assert_allclose(its_weights[:, :-1], weights, rtol=1e-6)
    np.testing.assert_allclose(
        its_weights[:, -1], 1 / (1 + np.exp(-logits[:, -1].astype(np.float64))), rtol=1e-6
    )
    order, place = (bench.device.numpy(part)[: 33 * 4] for part in (bench.moe.order, bench.moe.place))
    np.testing.assert_array_equal(order, np.argsort(its_chosen, axis=None, kind="stable"))
    np.testing.assert_array_equal(place[order], np.arange(33 * 4))


@pytest.mark.parametrize(("experts", "used", "rows"), [(200, 8, 30), (512, 10, 67), (32, 1, 3)])
def test_choices_among_many(device: Device, experts: int, used: int, rows: int) -> None:
    moe = DeviceMoe(device, MoeShape(128, 8, experts, used), 72)
    rng = np.random.default_rng(experts)
    logits = rng.standard_normal((rows, experts + 1)).astype(np.float32)
    logits[1] = np.repeat(logits[1], 3)[: experts + 1]  # equal ones
    logits[2] = -0.0
    logits[2, 5:9] = 0.0
    device.copy(moe.logits[:rows], device.array(logits))
    header = np.zeros(1, PASS)
    header["rows"] = rows
    moe._group(device.array(header.view(np.uint8)), 70 if rows > 64 else rows, 8)
    chosen, weights = route(logits[:, :-1], used)
    ranks = used + 1
    its_chosen, its_weights = (device.numpy(part)[:rows] for part in (moe.chosen, moe.weights))
    np.testing.assert_array_equal(its_chosen[:, :-1], chosen)
    np.testing.assert_allclose(its_weights[:, :-1], weights, rtol=1e-6)
    order, place = (device.numpy(part)[: rows * ranks] for part in (moe.order, moe.place))
    np.testing.assert_array_equal(order, np.argsort(its_chosen, axis=None, kind="stable"))
    np.testing.assert_array_equal(place[order], np.arange(rows * ranks))
    counts = np.bincount(its_chosen.reshape(-1), minlength=experts + 1)
    first, wanted = 0, []
    for expert, count in enumerate(counts):
        wanted += [(expert, first + at, min(8, count - at)) for at in range(0, count, 8)]
        first += count
    all_tiles, routed = device.numpy(moe.num_tiles)
    assert (all_tiles, routed) == (len(wanted), len(wanted) - -(-rows // 8))
    np.testing.assert_array_equal(device.numpy(moe.tiles)[:all_tiles, :3], wanted)


@pytest.mark.parametrize("name", ["BF16", "Q4_K", "Q6_K"])
def test_a_rows_bits_do_not_depend_on_the_others(bench: Bench, name: str) -> None:
    layer = layer_of(bench.device, name)
    normed, x = rows_of(1, 5)
    alone = bench(layer, normed, x)[0]
    assert np.isfinite(alone).all()
    for rows, at, fill in (
        (2, 1, "nan"),
        (8, 0, "same"),
        (20, 13, "random"),
        (66, 65, "random"),
        (70, 3, "nan"),
    ):
        others, its_x = rows_of(rows, rows)
        if fill == "nan":
            others[::2] = np.nan
        elif fill == "same":  # all of them choose the same experts
            others[:] = normed
        others[at], its_x[at] = normed[0], x[0]
        found = bench(layer, others, its_x)
        np.testing.assert_array_equal(found[at], alone)
        if fill == "nan":
            bad = np.isnan(others).any(1)
            assert np.isnan(found[bad]).all()
            assert np.isfinite(found[~bad]).all()


@pytest.mark.parametrize("rows", [3, 67])
@pytest.mark.parametrize("name", ["BF16", "Q8_0", "Q4_K", "Q6_K"])
def test_products_have_the_bits_of_the_weight_gemm(bench: Bench, name: str, rows: int) -> None:
    """And their sum is taken rank by rank, the best expert first, in one kernel or in two."""
    device, moe = bench.device, bench.moe
    layer = layer_of(device, name)
    normed, x = rows_of(rows, 8)
    found = bench(layer, normed, x)
    pairs = moe._pairs
    place, chosen = device.numpy(moe.place).reshape(-1, 4), device.numpy(moe.chosen)
    shares = device.numpy(moe.weights)
    middle = unpack_steps(device.numpy(moe.middle), pairs, SHAPE.ffn, device.operands)
    gate_up, down = device.numpy(layer.device.gate_up.records), device.numpy(layer.device.down.records)
    for row in range(3):
        total = np.zeros(SHAPE.hidden, np.float32)
        for rank in range(4):
            expert, at = chosen[row, rank], place[row, rank]
            first = product(device, name, gate_up[expert], 2 * SHAPE.ffn, normed[row])
            gate, up = first.reshape(-1, 2, 8).transpose(1, 0, 2).reshape(2, -1)
            near = gate / (1 + np.exp(-gate.astype(np.float64))) * up
            np.testing.assert_allclose(middle[at], near, rtol=2**-8, atol=2**-21)
            term = product(device, name, down[expert], SHAPE.hidden, middle[at]) * shares[row, rank]
            total = total + term if rank else term
        np.testing.assert_array_equal(found[row], x[row] + total)


@pytest.mark.parametrize("shared_ffn", [SHAPE.ffn, 40])
def test_weights_of_a_model(bench: Bench, shared_ffn: int) -> None:
    rng = np.random.default_rng(shared_ffn)
    experts, hidden, ffn = SHAPE.experts, SHAPE.hidden, SHAPE.ffn

    def matrix(*shape: int) -> np.ndarray:
        return stored(rng.standard_normal(shape) * shape[-1] ** -0.5)

    shared = FfnWeights(matrix(shared_ffn, hidden), matrix(shared_ffn, hidden), matrix(hidden, shared_ffn))
    weights = MoeWeights(
        matrix(experts, hidden),
        matrix(experts, 2 * ffn, hidden),
        matrix(experts, hidden, ffn),
        shared,
        matrix(1, hidden),
    )
    gate_up = np.zeros((experts + 1, 2, ffn, hidden))
    gate_up[:-1] = weights.gate_up.reshape(experts, 2, ffn, hidden)
    gate_up[-1, :, :shared_ffn] = shared.gate, shared.up
    down = np.zeros((experts + 1, hidden, ffn))
    down[:-1] = weights.down
    down[-1, :, :shared_ffn] = shared.down
    router = np.concatenate([weights.router, weights.shared_gate])
    experts_of = list_experts("layer", weights)
    for member in (experts_of.router, experts_of.gate_up, experts_of.down):
        member.upload(bench.device)
        (spec,), (array,) = member.arrays(), member.held()
        assert spec.shape == array.shape and spec.nbytes == array.nbytes
    assert experts_of.shared_gate_up is None and experts_of.shared_down is None
    layer = Layer(experts_of, router, gate_up, down)
    normed, x = rows_of(6, 3)
    found, wanted = bench(layer, normed, x), reference(layer, normed, x, bench.device.operands)
    assert np.sqrt(((found - wanted) ** 2).mean() / ((wanted - x) ** 2).mean()) < 1e-3


def product(device: Device, name: str, records: np.ndarray, rows: int, x: np.ndarray) -> np.ndarray:
    """One row's product by gemm_decode."""
    matrix = WeightMatrix(device, name, rows, len(x), device.array(records))
    to = device.empty((1, rows), np.float32)
    scratch = scratch_for(device, [matrix.plan(1)])
    matrix.decode(
        device.array(activations.pack(x[None], 0, operands=device.operands)), to, 1, Epilogue.STORE, scratch
    )
    return device.numpy(to)[0]


def unpack_steps(packed: np.ndarray, rows: int, depth: int, operands: Operands) -> np.ndarray:
    """Values of activations in the step layout with any number of rows."""
    deep = activations.padded_depth(depth)
    order = packed[: rows * deep].reshape(deep // 32, rows, 4, 2, 2, 2).transpose(1, 0, 3, 4, 2, 5)
    return operands.widen(np.ascontiguousarray(order).reshape(rows, deep))[:, :depth] * operands.unit


def test_memory_is_what_was_announced(bench: Bench) -> None:
    moe = bench.moe
    parts = [moe.wide, moe.logits, moe.chosen, moe.weights, moe.order, moe.place, moe.tiles, moe.num_tiles]
    total = sum(part.nbytes for part in [*parts, moe.middle, moe.results])
    assert total == sum(spec.nbytes for spec in moe_arrays(SHAPE, MAX_ROWS))


@pytest.mark.parametrize(("used", "together"), [(8, True), (15, False)])
def test_results_meet_in_shared_memory_where_there_is_room(used: int, together: bool) -> None:
    """On an AMD GPU, which has 64 KB of it, there is not for every mixture."""
    recording = RecordingDevice("gfx1151")
    moe = DeviceMoe(recording, MoeShape(hidden=64, ffn=32, experts=32, used=used), 64)
    none = np.empty(0, np.uint8)
    wide, deep = (
        ExpertMatrix("matrix", "BF16", (), 64, depth, deep, none) for depth, deep in ((64, True), (32, False))
    )
    router = Router("router", (np.zeros((32, 64), np.float32), np.zeros((1, 64), np.float32)), none)
    moe.launch(Experts(router, wide, deep, None, None), none, none, 64, none, 64)
    asked = {name for names in recording.asked.values() for name in names}
    assert ("moe_combine" in asked) is not together


@pytest.mark.parametrize("name", ["BF16", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_blocks_of_both_products_fit_beside_each_other_at_one_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that down's weights are on their way while gate and up run; shapes of 35B-A3B on an H200."""
    recording, asked = RecordingDevice("sm_90a"), []
    monkeypatch.setattr(recording, "multiprocessors", 132)

    def kernel(source: str, name: str, defines: Mapping[str, int | str] | None = None) -> object:
        def launch(grid: object, block: int, args: object, shared: int = 0, early: bool = False) -> None:
            if source == "moe_gemm.cu":
                asked.append((block, shared))

        return launch

    monkeypatch.setattr(recording, "kernel", kernel)
    moe = DeviceMoe(recording, MoeShape(hidden=2048, ffn=512, experts=256, used=8), 64)
    none = np.empty(0, np.uint8)
    wide = ExpertMatrix("matrix", name, (), 1024, 2048, True, none)
    deep = ExpertMatrix("matrix", name, (), 2048, 512, False, none)
    layer = Experts(Router("router", (np.zeros((1, 1), np.float32),) * 2, none), wide, deep, None, None)
    moe.launch(layer, none, none, 1, none, 1)
    (first, of_first), (second, of_second) = asked
    assert of_first + of_second + 2 * 1024 <= 228 << 10  # 1 KB is each block's own
    assert first + second <= 1024  # so that a thread may have 64 registers
    assert second == 9 * 32 and of_second >= 9 * 2 * RECORD_BYTES[name]  # all that a block of down reads
    asked.clear()
    moe.launch(layer, none, none, 16, none, 16)
    assert sum(shared for _, shared in asked) > 300_000
