"""Models without files: shapes that add up to the released ones, weights that compute ordinary numbers."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from luce.engines.load_model import LoadOptions, load_engine
from luce.engines.qwen35.shapes import released
from luce.engines.qwen35.synthetic import synthetic_bytes, synthetic_weights
from luce.engines.seam import SlotSpec
from luce.engines.synthetic_model import open_synthetic
from luce.errors import ConfigError
from luce.sampling.parameters import SamplingParams


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qwen3.5-0.8b", 873_438_784),
        ("qwen3.5-2b", 2_274_069_824),
        ("qwen3.5-4b", 4_659_865_088),
        ("qwen3.5-9b", 9_653_104_368),
        ("qwen3.5-27b", 27_781_427_952),
        ("qwen3.5-35b-a3b", 35_951_822_704),
    ],
)
def test_shapes_have_as_many_values_as_the_released_models(name: str, values: int) -> None:
    """Spec qwen35 §1.2, counted with the block for multi-token prediction."""
    config = released(name)
    config = attrs.evolve(config, text=attrs.evolve(config.text, num_mtp_layers=1))
    assert synthetic_bytes(config) == 4 * values


def test_weights_are_ordinary_numbers() -> None:
    opened = open_synthetic("luce-demo", LoadOptions(slots=1, context=256))
    told: list[tuple[int, int]] = []
    weights = synthetic_weights(opened.config, lambda state: told.append((state.done, state.total)))
    assert told[-1][0] == told[-1][1] == opened.file_bytes and len(told) > 50

    def arrays(value: object) -> list[np.ndarray]:
        if isinstance(value, np.ndarray):
            return [value]
        if isinstance(value, tuple):
            return [array for one in value for array in arrays(one)]
        if attrs.has(type(value)):
            return [a for field in attrs.fields(type(value)) for a in arrays(getattr(value, field.name))]
        return []

    found = arrays(weights)
    assert len(found) > 100
    for array in found:
        assert np.isfinite(array).all() and np.count_nonzero(array) == array.size
    assert len({array.tobytes()[:64] for array in found}) > 0.9 * len(found)  # tensors differ from each other
    rows = weights.layers[0].input_norm
    assert 0.9 < rows.mean() < 1.1 and (weights.embed[0] != weights.embed[1]).any()


def test_logits_are_neither_flat_nor_wild() -> None:
    engine = load_engine(open_synthetic("luce-demo", LoadOptions(slots=1, context=256)))
    try:
        ids = np.random.default_rng(0).integers(0, 1000, 90).astype(np.int32)
        positions = np.tile(np.arange(90, dtype=np.int32), (3, 1))
        logits, rows = engine.forward_all(SlotSpec(ids, positions, 0, SamplingParams(seed=0), 10))
    finally:
        engine.shutdown()
    assert np.isfinite(logits).all() and logits.std(axis=1).min() > 0.2 and logits.std(axis=1).max() < 5
    assert len(set(logits.argmax(axis=1).tolist())) > 10
    assert all(0.01 < np.sqrt((layer**2).mean()) < 30 for layer in rows)


def test_a_released_shape_is_planned_and_not_cut_by_the_bundled_models_limits() -> None:
    opened = open_synthetic("qwen3.5-0.8b", LoadOptions(slots=1, context=9000, max_memory=1 << 40))
    assert opened.context == 9000 and opened.plan.options.context == 9000
    assert opened.config.text.vocab_size == 248_320 and opened.config.image_token_id is not None
    assert opened.config.image_token_id < (opened.config.num_token_ids or 0) < 3000
    assert opened.files.preprocessor is not None and opened.files.preprocessor.min_pixels == 65_536
    with pytest.raises(ConfigError, match="over the model's own limit of 262144"):
        open_synthetic("qwen3.5-27b", LoadOptions(slots=1, context=300_000))
    with pytest.raises(ConfigError, match="1,048,576 allowed"):
        open_synthetic("qwen3.5-27b", LoadOptions(slots=1, context=300, max_memory=1 << 20))
