"""Experts from files of every form to records on a device: those of the float32 weights, or of the file's own bytes."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from luce.compute.host_device import HostDevice
from luce.compute.packing import interleave, pack
from luce.engines.qwen35.config import MoeConfig
from luce.engines.qwen35.device.deferred import DeferredTensor
from luce.engines.qwen35.device.experts import Experts, list_experts
from luce.engines.qwen35.device.loading import deferred_headers, load_deferred
from luce.engines.qwen35.device.synthetic import synthetic_device_weights
from luce.engines.qwen35.device.weights import list_weights, upload
from luce.engines.qwen35.loading import load_config, load_weights
from luce.engines.qwen35.weights import MoeWeights, Qwen35Weights
from luce.errors import ConfigError
from luce.weights import formats
from luce.weights.gguf_file import open_gguf
from luce.weights.model_files import resolve_model
from tests.engines.models import tiny_config
from tests.weights.test_loading import one_by_one
from tests.weights.writers import K_QUANT_SHAPE, MOE_SHAPE, random_model, write_gguf, write_hf

DEVICE = HostDevice()
MIXED = attrs.evolve(K_QUANT_SHAPE, experts=3, used=2, expert_ffn=256, shared_ffn=512)
"""The shared expert is wider."""
SCALES = {"Q4_K": 64, "Q6_K": 32, "Q8_0": 256, "IQ4_XS": 32}
"""Bytes at a record's end that multiply all of its weights."""


def experts_of(weights: Qwen35Weights) -> list[Experts]:
    """Uploaded; the plan of the memory must say what is there."""
    text = list_weights(weights)
    upload(DEVICE, text)
    assert [(spec.shape, spec.nbytes) for spec in text.arrays()] == [
        (array.shape, array.nbytes) for array in text.held()
    ]
    return [layer.ffn for layer in text.layers if isinstance(layer.ffn, Experts)]


def deferred(path: Path) -> list[Experts]:
    files = resolve_model(path)
    config = load_config(files)
    weights = load_deferred(files, config)
    ffn = weights.layers[0].ffn
    assert isinstance(ffn, MoeWeights) and isinstance(ffn.gate_up, DeferredTensor)
    planned = list_weights(deferred_headers(files, config))
    assert list(planned.arrays()) == list(list_weights(weights).arrays())
    return experts_of(weights)


@pytest.mark.parametrize("form", ["together", "apart", "gguf", "fused gguf"])
def test_16_bit_files_hold_what_the_float32_weights_are(form: str, tmp_path: Path) -> None:
    model = random_model(MOE_SHAPE, seed=21)
    if "gguf" in form:
        path = write_gguf(tmp_path, model, quant="BF16", fused=form == "fused gguf")
    else:
        path = write_hf(tmp_path, one_by_one(model) if form == "apart" else model)
    files = resolve_model(path)
    right = experts_of(load_weights(files, load_config(files)))
    found = deferred(path)
    assert len(found) == len(right) == MOE_SHAPE.num_layers
    for a, b in zip(found, right, strict=True):
        np.testing.assert_array_equal(a.gate_up.records, b.gate_up.records)
        np.testing.assert_array_equal(a.down.records, b.down.records)
        assert len(np.unique(a.gate_up.records, axis=0)) == MOE_SHAPE.experts + 1
        router = a.router.data if a.router.format == "F32" else a.router.data.astype(np.uint32) << 16
        np.testing.assert_array_equal(router.view(np.float32), b.router.data)
    assert found[0].router.format == ("F32" if "gguf" in form else "BF16")


@pytest.mark.parametrize("quant", ["Q4_K", "Q6_K", "Q8_0", "IQ4_XS"])
@pytest.mark.parametrize("fused", [False, True])
def test_quantised_experts_keep_their_bytes(quant: str, fused: bool, tmp_path: Path) -> None:
    path = write_gguf(tmp_path, random_model(MIXED, seed=22), quant=quant, fused=fused)
    found = deferred(path)[1]
    opened, width, depth = open_gguf(path), MIXED.expert_ffn, MIXED.hidden
    assert found.gate_up.format == found.down.format == quant and found.shared_down is None

    def raw(name: str, columns: int) -> np.ndarray:
        return opened.raw(f"blk.1.{name}.weight").reshape(-1, formats.num_bytes(quant, (1, columns)))

    if fused:
        both = raw("ffn_gate_up_exps", depth).reshape(3, 2, width, -1)
    else:
        both = np.stack([raw(f"ffn_{part}_exps", depth).reshape(3, width, -1) for part in ("gate", "up")], 1)
    down = raw("ffn_down_exps", width).reshape(3, depth, -1)
    for number in range(3):
        wide = pack(
            quant, interleave(both[number, 0], both[number, 1]), depth, operands=DEVICE.operands
        ).records
        np.testing.assert_array_equal(found.gate_up.records[number, : len(wide)], wide)
        rest = found.gate_up.records[number, len(wide) :]  # rows that only the shared expert has
        assert rest.size and not rest[..., -SCALES[quant] :].any()
        deep = pack(quant, down[number], width, operands=DEVICE.operands).records
        np.testing.assert_array_equal(found.down.records[number][:, : deep.shape[1]], deep)
        rest = found.down.records[number][:, deep.shape[1] :]
        assert rest.size and not rest[..., -SCALES[quant] :].any()
    shared = [raw(f"ffn_{part}_shexp", depth) for part in ("gate", "up")]
    np.testing.assert_array_equal(
        found.gate_up.records[3], pack(quant, interleave(*shared), depth, operands=DEVICE.operands).records
    )


def test_random_experts_are_full_and_routers_choose_among_all() -> None:
    config = tiny_config(moe=MoeConfig(experts=9, used=2, ffn=96, shared_ffn=96))
    for form, router in (("BF16", "BF16"), ("Q8_0", "F32")):
        found = experts_of(synthetic_device_weights(config, form))[0]
        assert found.router.format == router and len(np.unique(found.router.data, axis=0)) == 10
        records = found.gate_up.records
        assert records.shape[:2] == (10, 12) and (records.reshape(-1, records.shape[-1]) != 255).any(1).all()


def test_too_many_experts_are_refused() -> None:
    config = tiny_config(moe=MoeConfig(experts=513, used=2, ffn=8, shared_ffn=8))
    ffn = synthetic_device_weights(config, "BF16").layers[0].ffn
    assert isinstance(ffn, MoeWeights)
    with pytest.raises(ConfigError, match="513 of 8") as refused:
        list_experts("layer", ffn)
    assert refused.value.flag == "--device"
