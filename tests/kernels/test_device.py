"""device.h and maths.h: right values on every device, by the device's self-test kernels."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import numpy as np
import pytest

from luce.compute import kernel_sources
from luce.compute.device import Device
from luce.compute.host_device import HostDevice
from luce.compute.operands import Operands
from luce.errors import DeviceError

NAMES = (
    *(
        "exp",
        "log",
        "log1p",
        "sigmoid",
        "silu",
        "softplus",
        "tanh",
        "gelu",
        "add",
        "sub",
        "mul",
        "fma",
        "div",
    ),
    *("sqrt", "bf16", "f16", "fma_bf16", "to_f16", "second_to_f16", "fma_f16", "prmt", "and_or"),
)


def maths(device: Device, x: np.ndarray, z: np.ndarray) -> dict[str, np.ndarray]:
    out = device.empty((len(NAMES), len(x)), np.float32)
    kernel = device.kernel("selftest.cu", "selftest_maths")
    kernel((2, 1, 1), 64, [device.array(x), device.array(z), out, np.int32(len(x))])
    return dict(zip(NAMES, device.numpy(out), strict=True))


def ulps(found: np.ndarray, wanted: np.ndarray) -> float:
    space = np.spacing(np.maximum(np.abs(wanted), np.finfo(np.float32).tiny).astype(np.float32))
    return float(np.max(np.abs(found.astype(np.float64) - wanted) / space))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def round_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_maths_are_near_the_true_values(device: Device) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-80, 80, 3000), rng.standard_normal(3000)]).astype(np.float32)
    z = rng.uniform(0.001, 1, len(x)).astype(np.float32)
    found = maths(device, x, z)
    wide, second = x.astype(np.float64), z.astype(np.float64)
    assert ulps(found["exp"], np.exp(wide)) <= 2
    positive = x > 0
    assert ulps(found["log"][positive], np.log(wide[positive])) <= 2
    assert np.isnan(found["log"][x < 0]).all()
    assert ulps(found["log1p"], np.log1p(second)) <= 2
    assert ulps(found["sigmoid"], 1 / (1 + np.exp(-wide))) <= 4
    assert ulps(found["silu"], wide / (1 + np.exp(-wide))) <= 4
    assert np.max(np.abs(found["softplus"] - np.logaddexp(0, wide)) / np.logaddexp(0, wide)) < 1e-6
    assert np.max(np.abs(found["tanh"] - np.tanh(wide))) < 2e-7
    assert np.max(np.abs(found["gelu"] - gelu(wide)) / np.maximum(1, np.abs(wide))) < 1e-6


def test_arithmetic_is_exact(device: Device) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(4000) * 10.0 ** rng.integers(-5, 5, 4000)).astype(np.float32)
    z = rng.standard_normal(4000).astype(np.float32)
    found = maths(device, x, z)
    for name, wanted in (("add", x + z), ("sub", x - z), ("mul", x * z), ("div", x / z)):
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)
    np.testing.assert_array_equal(found["sqrt"], np.sqrt(np.abs(x)))
    np.testing.assert_array_equal(found["bf16"], round_bf16(x))
    halves = (x.view(np.uint32) & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found["f16"], halves)
    a, b = round_bf16(x).astype(np.float64), round_bf16(z).astype(np.float64)
    np.testing.assert_array_equal(found["fma_bf16"], round_bf16((a * b + a).astype(np.float32)))
    with np.errstate(over="ignore"):
        for name in ("to_f16", "second_to_f16"):
            np.testing.assert_array_equal(found[name], x.astype(np.float16).astype(np.float32), err_msg=name)
        a, b = (v.astype(np.float16).astype(np.longdouble) for v in (x, z))
        np.testing.assert_array_equal(found["fma_f16"], (a * b + a).astype(np.float16).astype(np.float32))
    bytes_ = np.stack([*x.view(np.uint8).reshape(-1, 4).T, *z.view(np.uint8).reshape(-1, 4).T], axis=1)
    np.testing.assert_array_equal(
        found["prmt"].view(np.uint32), np.ascontiguousarray(bytes_[:, [0, 4, 2, 6]]).view(np.uint32)[:, 0]
    )
    np.testing.assert_array_equal(
        found["and_or"].view(np.uint32), x.view(np.uint32) & z.view(np.uint32) | 0x43004300
    )


def test_special_values(device: Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, 1e-40], np.float32)
    found = maths(device, x, np.ones(len(x), np.float32))
    np.testing.assert_array_equal(
        found["exp"][:7], np.array([np.nan, np.inf, 0, 1, 1, np.inf, 0], np.float32)
    )
    np.testing.assert_array_equal(found["log"][[0, 1, 3]], np.array([np.nan, np.inf, -np.inf], np.float32))
    np.testing.assert_array_equal(found["sigmoid"][1:3], np.array([1, 0], np.float32))


@pytest.mark.parametrize("threads", [32, 96, 256])
def test_a_block_works_together(device: Device, threads: int) -> None:
    x = np.random.default_rng(threads).integers(-50, 50, threads).astype(np.float32)
    out = device.empty((3, threads), np.float32)
    device.kernel("selftest.cu", "selftest_block")((1, 1, 1), threads, [device.array(x), out], shared=64)
    warps = x.reshape(-1, 32)
    negative = (warps < 0).sum(1)
    wanted = np.repeat(warps.sum(1) + negative, 32) + x.sum()
    found = device.numpy(out)
    np.testing.assert_array_equal(found[0], wanted)
    shifted = warps.copy()
    shifted[:, :29] = warps[:, 3:]
    np.testing.assert_array_equal(found[1], shifted.ravel())
    np.testing.assert_array_equal(found[2], np.repeat(warps.max(1), 32))


@pytest.mark.parametrize(
    ("operands", "name"), [(Operands.BF16, "selftest_mma"), (Operands.F16, "selftest_mma_f16")]
)
def test_matrix_instruction(device: Device, operands: Operands, name: str) -> None:
    rng = np.random.default_rng(3)
    bits = [operands.round(rng.standard_normal((rows, 16)).astype(np.float32)) for rows in (16, 8)]
    d = device.empty((16, 8), np.float32)
    device.kernel("selftest.cu", name)((1, 1, 1), 32, [*(device.array(m.view(np.uint32)) for m in bits), d])
    a, b = map(operands.widen, bits)
    np.testing.assert_allclose(device.numpy(d), a @ b.T, rtol=0, atol=2e-6)


def test_subnormal_halves_are_multiplied_as_they_are(device: Device) -> None:
    """The weights of scaled formats are such numbers (kernels/records.h); and so are small activations."""
    whole = np.arange(256, dtype=np.uint16).reshape(16, 16) * 8 % 2048
    right = (np.arange(128).reshape(8, 16) % 37 - 18).astype(np.float16)
    for a, b, power in (
        (whole.view(np.float16), right, 2.0**24),
        (right.repeat(2, 0), whole[:8].view(np.float16), 2.0**24),
    ):
        d = device.empty((16, 8), np.float32)
        words = [device.array(np.ascontiguousarray(m).view(np.uint32)) for m in (a, b)]
        device.kernel("selftest.cu", "selftest_mma_f16")((1, 1, 1), 32, [*words, d])
        exactly = a.astype(np.float64) @ b.astype(np.float64).T * power
        assert (np.abs(a.astype(np.float64)).max() < 2**-13) or (np.abs(b.astype(np.float64)).max() < 2**-13)
        np.testing.assert_array_equal(device.numpy(d) * power, exactly)


def test_matrix_loads(device: Device) -> None:
    x = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    out = device.empty((2, 4, 32), np.uint32)
    words = device.array(x.reshape(-1).view(np.uint32))
    device.kernel("selftest.cu", "selftest_ldmatrix")((1, 1, 1), 32, [words, out], shared=512)
    found = device.numpy(out).view(np.uint16).reshape(2, 4, 8, 8)
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], x.transpose(0, 2, 1))


@pytest.mark.parametrize("stages", [1, 2, 3, 7])
def test_bulk_copies(device: Device, stages: int) -> None:
    x = np.random.default_rng(4).standard_normal(stages * 256).astype(np.float32)
    out = device.empty(len(x), np.float32)
    kernel = device.kernel("selftest.cu", "selftest_bulk")
    kernel((1, 1, 1), 64, [device.array(x), out, np.int32(stages)], shared=128 + 2048, early=True)
    np.testing.assert_array_equal(device.numpy(out), x + np.float32(1))


def test_nothing_is_collected_while_a_graph_is_recorded(device: Device) -> None:
    """A round of the collector would free arrays and events of cycles that ended, which breaks a recording on a GPU."""
    out = device.zeros((3, 32), np.float32)
    x = device.array(np.arange(32, dtype=np.float32))
    kernel = device.kernel("selftest.cu", "selftest_block")
    rounds: list[str] = []
    within: list[int] = []

    def seen(phase: str, _: object) -> None:
        rounds.append(phase)

    def record() -> None:
        rounds.clear()
        kernel((1, 1, 1), 32, [x, out], shared=64)
        kept: list[object] = []
        for _ in range(100_000):
            kept.append([kept])
        within.append(len(rounds))
        kernel((1, 1, 1), 32, [x, out], shared=64)

    with device.using(device.stream()):
        gc.callbacks.append(seen)
        try:
            graph = device.capture(record)
            record()
        finally:
            gc.callbacks.remove(seen)
        graph.launch()
        assert within[0] == 0 and within[1] > 0, "it comes where nothing is recorded"
        assert gc.isenabled()


def test_graphs_replay(device: Device) -> None:
    x, out = device.array(np.arange(32, dtype=np.float32)), device.zeros((3, 32), np.float32)
    kernel = device.kernel("selftest.cu", "selftest_block")
    device.synchronize()  # zeros come in the order of another stream
    stream = device.stream()
    with device.using(stream):
        graph = device.capture(lambda: kernel((1, 1, 1), 32, [x, out], shared=64))
        stream.synchronize()
        assert not device.numpy(out).any(), "a recording does not run"
        graph.launch()
        first = device.numpy(out)
        device.upload(x, device.pinned(32, np.float32))
        graph.launch()
        assert first.any() and not device.numpy(out).any()


def test_wrong_shapes_are_refused(device: Device) -> None:
    if not isinstance(device, HostDevice):
        pytest.skip("the host build's own checks")
    kernel = device.kernel("selftest.cu", "selftest_block")
    out = device.empty((3, 512), np.float32)
    with pytest.raises(DeviceError, match="multiples of 32 up to 256"):
        kernel((1, 1, 1), 512, [out, out], shared=64)
    with pytest.raises(DeviceError, match=r"has no LUCE_EXPORT\(missing\)"):
        device.kernel("selftest.cu", "missing")
    with pytest.raises(DeviceError, match="kernel source"):
        device.kernel("missing.cu", "missing")


@pytest.mark.parametrize("operands", list(Operands))
def test_matrix_instructions_by_shuffles(device: Device, operands: Operands) -> None:
    """What stands in for them on AMD's, beside the real ones: the same places, and values up to rounding."""
    rng = np.random.default_rng(5)
    bits = [operands.round(rng.standard_normal((rows, 16)).astype(np.float32)) for rows in (16, 8)]
    a, b = map(operands.widen, bits)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    words = [device.array(m.view(np.uint32)) for m in bits]
    d = device.empty((2, 16, 8), np.float32)
    device.kernel("selftest_shuffles.cu", "selftest_shuffles_mma")(
        (1, 1, 1), 32, [*words, device.array(c), d, np.int32(operands is Operands.F16)]
    )
    wanted = c + a.astype(np.float64) @ b.T.astype(np.float64)
    np.testing.assert_allclose(device.numpy(d), np.stack([wanted, wanted]), rtol=1e-5, atol=1e-5)
    x, out = rng.integers(0, 2**32, 128).astype(np.uint32), device.empty((4, 4, 32), np.uint32)
    device.kernel("selftest_shuffles.cu", "selftest_shuffles_ldmatrix")(
        (1, 1, 1), 32, [device.array(x), out], shared=512
    )
    found = device.numpy(out)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[3], found[2])
    assert (found[0] != found[2]).any()


def test_sources_that_change_while_they_are_compiled_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled is not what the name in the cache says."""
    monkeypatch.setenv("LUCE_TEST_KERNEL_CACHE", str(tmp_path))
    kernel_sources.module_key("copies.cu", {})
    texts = {name: kernel_sources.source_path(name).read_text() for name in ("copies.cu", "host_runtime.cpp")}
    (tmp_path / "kernels").mkdir()
    for name, text in texts.items():
        changed = text.replace('#include "', f'#include "{kernel_sources.kernels_directory()}/')
        (tmp_path / "kernels" / name).write_text(changed)
    monkeypatch.setattr(kernel_sources, "kernels_directory", lambda: tmp_path / "kernels")
    with pytest.raises(DeviceError, match="edited while they were compiled"):
        HostDevice().kernel("copies.cu", "check_lanes")
    assert list(tmp_path.rglob("*.so")) == []
