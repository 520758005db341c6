"""Gates that a quantised file holds in float32 stay so on a device, beside the large product or before it."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.operands import Operands
from luce.engines.load_model import demo_model
from luce.engines.qwen35.device.deferred import DeferredTensor
from luce.engines.qwen35.device.loading import deferred_headers
from luce.engines.qwen35.device.products import Products, has_wide, input_height, input_tile, product_arrays
from luce.engines.qwen35.device.small import SmallMatrix
from luce.engines.qwen35.device.synthetic import SyntheticSource
from luce.engines.qwen35.device.weights import DeltaNet, Matrix, Part, Text, conversions, list_weights
from luce.engines.qwen35.loading import load_config
from luce.weights.model_files import resolve_model
from tests.engines.harness import same_bits
from tests.engines.models import demo_config, random_weights
from tests.kernels.conftest import device as device


def test_the_bundled_models_gates_stay_float32() -> None:
    """Its other matrices are Q8_0. Where all are one format, gates stand behind the others in one product."""
    files = resolve_model(demo_model(), None)
    text = list_weights(deferred_headers(files, load_config(files)))
    mixers = [layer.mixer for layer in text.layers if isinstance(layer.mixer, DeltaNet)]
    assert len(mixers) == 6
    for mixer in mixers:
        assert isinstance(mixer.gates, SmallMatrix)
        (spec,) = mixer.gates.arrays()
        assert spec.shape == (8, 256) and spec.dtype == "float32" and spec in list(text.arrays())
    assert not conversions(text, Operands.BF16)
    assert set(conversions(text, Operands.F16)) <= {("BF16", "F16")}

    of_floats = list_weights(random_weights(demo_config(512)))
    assert all(layer.mixer.gates is None for layer in of_floats.layers if isinstance(layer.mixer, DeltaNet))


def test_a_row_has_its_bits_beside_any_rows(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both products, in steps and in prompts; gates as precise as float32 makes them."""
    depth, rng = 256, np.random.default_rng(4)
    large = Matrix(
        "inputs", (Part("Q8_0", (DeferredTensor.of(SyntheticSource("Q8_0", depth), (48, depth)),)),)
    )
    small = SmallMatrix("gates", tuple(rng.standard_normal((2, 6, depth)).astype(np.float32)))
    text = Text(None, (), None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Text, "members", lambda self: iter((large, small)))
    for member in (large, small):
        member.upload(device)
    (spec,) = small.arrays()
    assert small.data.nbytes == spec.nbytes
    made = Products(
        device, text, *(device.empty(s.shape, s.dtype) for s in product_arrays(device, text)), None
    )
    x = rng.standard_normal((100, depth)).astype(np.float32)

    def both(rows: int) -> tuple[np.ndarray, np.ndarray]:
        out = device.empty((input_height(rows), 48), np.float32)
        to = device.empty((input_height(rows), 16), np.float32)
        packed = activations.pack(
            x[:rows], input_tile(rows, has_wide(device)), fill=0x7FC0, operands=device.operands
        )
        given = made.input(device.array(packed), rows, depth)
        made.store_both(large, out, small, to, given)
        return device.numpy(out)[:rows], device.numpy(to)[:rows, :12]

    alone = both(1)
    for rows in (3, 8, 33, 100):
        for found, wanted in zip(both(rows), alone, strict=True):
            assert same_bits(found[:1], wanted), rows
    exact = device.operands.rounded(x).astype(np.float64) @ np.concatenate(small.sources).T
    assert np.abs(both(100)[1] - exact).max() < 2e-6 * np.sqrt(np.mean(exact**2))
