"""Products in one launch: the bits of the same products one by one, whatever the launch."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from luce.compute import activations
from luce.compute.activations import num_values, padded_depth
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, GemmScratch, WeightMatrix, scratch_for
from luce.compute.gemm_chain import (
    ChainForm,
    ChainPlan,
    Gates,
    Link,
    Source,
    chain_runs,
    fit_chain,
    launch_chain,
)
from luce.compute.norms import NORM_SHARED, norm_threads
from luce.compute.packing import interleave
from luce.engines.qwen35.device.small import SmallMatrix, launch_small
from tests.kernels.test_norm import rms
from tests.kernels.weights import random_rows

EPS = 1e-6


@attrs.define(eq=False)
class Layer:
    """What a layer's chain computes with: out, gate and up, down, inputs of the next layer and its gates."""

    device: Device
    name: str
    rows: int
    valid: int
    hidden: int = 1280
    mixed: int = 1536
    ffn: int = 2304
    inputs: int = 176
    gate_rows: int = 7
    norm: Source = Source.NORM
    with_gates: bool = True
    matrices: list[WeightMatrix] = attrs.field(init=False)
    scales: list[Any] = attrs.field(init=False)
    gates: SmallMatrix = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        device, rng = self.device, np.random.default_rng(5)

        def matrix(out: int, depth: int, seed: int) -> WeightMatrix:
            return WeightMatrix.load(device, self.name, random_rows(self.name, out, depth, seed), depth)

        gate, up = (random_rows(self.name, self.ffn, self.hidden, seed) for seed in (2, 3))
        both = WeightMatrix.load(device, self.name, interleave(gate, up), self.hidden)
        self.matrices = [
            matrix(self.hidden, self.mixed, 1),
            both,
            matrix(self.hidden, self.ffn, 4),
            matrix(self.inputs, self.hidden, 6),
        ]
        self.scales = [device.array(rng.uniform(0.5, 2, self.hidden).astype(np.float32)) for _ in range(2)]
        self.gates = SmallMatrix(
            "gates", (rng.standard_normal((self.gate_rows, self.hidden)).astype(np.float32),)
        )
        self.gates.upload(device)

    def start(self, seed: int = 0) -> dict[str, Any]:
        device, rng, rows = self.device, np.random.default_rng([seed, 9]), self.rows
        x = rng.standard_normal((64, self.hidden)).astype(np.float32)[:rows]
        mixed = rng.standard_normal((64, self.mixed)).astype(np.float32)[:rows]
        x[self.valid :], mixed[self.valid :] = np.nan, np.nan
        return {
            "x": device.array(x),
            "mixed": device.array(activations.pack(mixed, 0, operands=device.operands)),
            "middle": device.array(np.full(num_values(rows, self.ffn, 0), 0x7FC0, np.uint16)),
            "inputs": device.array(np.full((rows, self.inputs + 48), -7, np.float32)),
            "gates": device.array(np.full((rows, 128), -7, np.float32)),
        }

    def links(self, at: dict[str, Any]) -> list[Link]:
        out, both, down, inputs = self.matrices
        stride = self.inputs + 48
        gates = Gates(self.gates.data, self.gate_rows, at["gates"], 128) if self.with_gates else None
        return [
            Link(out, at["mixed"], Source.SUMMED, at["x"], Epilogue.ADD),
            Link(both, at["x"], self.norm, at["middle"], Epilogue.SWIGLU, scale=self.scales[0]),
            Link(down, at["middle"], Source.BARE, at["x"], Epilogue.ADD),
            Link(inputs, at["x"], self.norm, at["inputs"], Epilogue.STORE, stride, self.scales[1], gates),
        ]

    def one_by_one(self, at: dict[str, Any]) -> dict[str, np.ndarray]:
        device, rows, valid = self.device, self.rows, self.valid
        scratch = scratch_for(device, [matrix.plan(rows) for matrix in self.matrices])
        normed = device.empty(num_values(rows, self.hidden, 0), np.uint16)
        norm = device.kernel("norm.cu", "rms_norm")
        header = device.array(np.array([valid, 0, 0, 0, 0, 0, 0, 0], np.int32))
        for link in self.links(at):
            if link.source is self.norm:
                norm(
                    (rows, 1, 1),
                    norm_threads(self.hidden),
                    [
                        *(header, None, at["x"], link.scale, np.float32(EPS), np.int32(self.hidden)),
                        *(normed, np.int32(rows), np.int32(0), np.int32(padded_depth(self.hidden))),
                    ],
                    shared=NORM_SHARED,
                )
            x = link.x if link.source in (Source.SUMMED, Source.BARE) else normed
            link.matrix.decode(
                x,
                link.to,
                rows,
                link.epilogue,
                scratch,
                stride=link.stride,
                valid=valid,
                own_sums=link.source is Source.BARE,
            )
        if self.with_gates:
            launch_small(device, self.gates, normed, at["gates"], rows=valid, height=rows, tile=0)
        return self.result(at)

    def result(self, at: dict[str, Any]) -> dict[str, np.ndarray]:
        found = {name: self.device.numpy(array) for name, array in at.items()}
        middle = found.pop("middle")
        found["middle"] = activations.unpack(middle, self.valid, self.ffn, 0, operands=self.device.operands)[
            0
        ]
        return {name: array[: self.valid] if name != "mixed" else array for name, array in found.items()}

    def plan(self, form: ChainForm, grid: int) -> ChainPlan:
        shapes = tuple(link.shape for link in self.links(self.start()))
        gates = self.gate_rows if self.with_gates else 0
        plan = fit_chain(self.name, shapes, self.rows, grid, self.device.shared_limit, gates, form)
        assert plan is not None
        return plan

    def chained(self, at: dict[str, Any], plan: ChainPlan) -> dict[str, np.ndarray]:
        device = self.device
        scratch = GemmScratch(
            device.empty(max(plan.parts, 4), np.float32), device.zeros(plan.counts, np.uint32)
        )
        normed = device.empty(num_values(self.rows, self.hidden, 0), np.uint16)
        launch_chain(device, self.links(at), self.rows, self.valid, EPS, scratch, plan, normed)
        found = self.result(at)
        assert not device.numpy(scratch.counts).any()
        return found


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


FORMS = {
    "one warp": (ChainForm(1, 2), 2),
    "whole": (ChainForm(4, 2), 4),
    "mergers": (ChainForm(3, 3, mergers=3), 3),
    "slices": (ChainForm(4, 2, slices=(1, 0, 2)), 4),
    "clusters": (ChainForm(3, 2, cluster=2, slices=(0, 0, 2), mergers=2), 4),
    "few slots": (ChainForm(5, 2, slices=(0, 0, 1), slots=1), 4),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "rows", "valid"), [("Q4_K", 1, 1), ("BF16", 4, 3), ("Q6_K", 2, 2), ("Q4_K", 8, 5)]
)
def test_a_chain_has_the_bits_of_its_products(
    device: Device, name: str, rows: int, valid: int, form: str
) -> None:
    chosen, grid = FORMS[form]
    norm = Source.ROWS if rows > 2 else Source.NORM
    layer = Layer(device, name, rows, valid, norm=norm)
    wanted = layer.one_by_one(layer.start())
    assert np.isfinite(wanted["inputs"]).all()
    plan = layer.plan(chosen, grid)
    assert chain_runs(device, name, rows, plan)
    if device.arch != "host":  # which always can
        assert not chain_runs(device, name, rows, attrs.evolve(plan, grid=3000))
    same(layer.chained(layer.start(), plan), wanted)


def squares_sum(
    x: np.ndarray, *, eights: int = 1, lanes: tuple[int, ...] = (16, 8, 4, 2, 1), pieces: int = 1
) -> np.float32:
    """Of a row, in the order of kernels/norm.h: eight values in turn, lanes, pieces of 256; or in another one."""
    values = np.zeros((-(-len(x) // 256), 32, 8))
    values.reshape(-1)[: len(x)] = x
    sums = np.zeros(values.shape[:2], np.float32)
    for value in np.moveaxis(values, 2, 0)[::eights]:
        sums = (value * value + sums).astype(np.float32)  # fma: the product is exact in float64

    def of_lanes(parts: np.ndarray) -> np.ndarray:
        for mask in lanes:
            parts = parts + parts[..., np.arange(32) ^ mask]
        return parts[..., 0]

    whole = np.zeros(32, np.float32)
    whole[: len(values)] = of_lanes(sums)
    return np.float32(of_lanes(whole) if pieces > 0 else np.add.accumulate(whole)[-1])


OTHER_ORDERS: dict[str, dict[str, Any]] = {
    "eights": {"eights": -1},
    "lanes": {"lanes": (1, 2, 4, 8, 16)},
    "pieces": {"pieces": -1},
}


def inverse_length(total: np.float32, width: int) -> np.float32:
    return np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(EPS))


@pytest.mark.parametrize(
    ("norm", "rows", "valid"), [(Source.NORM, 1, 1), (Source.NORM, 4, 3), (Source.ROWS, 4, 4)]
)
def test_norms_have_the_last_bit_of_the_norm_kernel(
    device: Device, norm: Source, rows: int, valid: int
) -> None:
    """Activations have so few bits that sums in another order mostly give the same ones. Here they do not: rows whose
    length shows the order, and factors that make of the first row's values what lies between two activations."""
    layer = Layer(device, "BF16", rows, valid, 1272, 256, 64, 48, norm=norm)
    plan = layer.plan(ChainForm(3, 2, cluster=2, mergers=2), 4)
    unseen = set(OTHER_ORDERS)
    for seed in range(200):
        wanted = layer.one_by_one(layer.start(seed))
        x = wanted["x"][0]
        length = inverse_length(squares_sum(x), len(x))
        others = {
            name: inverse_length(squares_sum(x, **order), len(x)) for name, order in OTHER_ORDERS.items()
        }
        shown = {name for name in unseen if others[name] != length}
        if not shown:
            continue
        unseen -= shown
        y = x * length
        held = device.operands.hold_activations(np.abs(y))
        low, high = (device.operands.widen(held + np.uint16(add)) * device.operands.unit for add in (0, 1))
        between = np.copysign((low + high) / 2, y).astype(np.float32)
        factor = between / y
        for _ in range(4):
            factor = np.where(y * factor == between, factor, np.nextafter(factor, np.float32(9)))
        right, *wrong = (
            device.operands.rounded(x * by * factor) for by in (length, *(others[name] for name in shown))
        )
        assert min((right != other).sum() for other in wrong) > 200, "the trap is set"
        made = activations.unpack(rms(device, x[None], factor, 0), 1, len(x), 0, operands=device.operands)[0]
        np.testing.assert_array_equal(made[0], right)
        scales, layer.scales = layer.scales, [layer.scales[0], device.array(factor)]
        wanted = layer.one_by_one(layer.start(seed))
        same(layer.chained(layer.start(seed), plan), wanted)
        layer.scales = scales
        if not unseen:
            return
    pytest.fail(f"no row shows {unseen}")


@pytest.mark.parametrize("norm", [Source.NORM, Source.ROWS])
def test_a_small_chain(device: Device, norm: Source) -> None:
    """Few threads, so that sanitizers can follow them: a warp each for products, sums and gates. In clusters, since
    stores into the one block of a cluster are faults to NVIDIA's tool."""
    layer = Layer(device, "Q4_K", 2, 2, 256, 512, 512, 48, 3, norm)
    wanted = layer.one_by_one(layer.start())
    same(layer.chained(layer.start(), layer.plan(ChainForm(1, 2, cluster=2), 2)), wanted)


def test_values_from_a_table(device: Device) -> None:
    layer = Layer(device, "IQ4_XS", 1, 1)
    plan = layer.plan(ChainForm(4, 2, cluster=2, table=4), 4)
    same(layer.chained(layer.start(), plan), layer.one_by_one(layer.start()))
