"""The chunk form against the recurrence in float64, for weak and strong gates (B50, B47)."""

from __future__ import annotations

import numpy as np
import pytest

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.qwen35.weights import Qwen35Weights
from tests.engines import oracle
from tests.engines.harness import Driver, new_engine, random_ids, same_bits, text_spec
from tests.engines.models import random_weights, tiny_config

LENGTH = 200


def build(ratio: int, gates: float) -> tuple[Qwen35Config, Qwen35Weights, Qwen35Engine]:
    config = tiny_config(ratio=ratio, dk=16, dv=24)
    weights = random_weights(config, seed=ratio, gates=gates)
    return config, weights, new_engine(config, weights)


@pytest.mark.parametrize("ratio", [1, 2, 3])
@pytest.mark.parametrize("gates", [0.05, 1.0, 8.0])
def test_b50_chunk_form_equals_recurrence(ratio: int, gates: float) -> None:
    config, weights, engine = build(ratio, gates)
    try:
        ids = random_ids(LENGTH, 3)
        expected = oracle.run_request(config, weights, ids)
        logits, hidden = engine.forward_all(text_spec(ids))
        np.testing.assert_allclose(logits, expected.logits, atol=2e-3, rtol=0)
        for mine, theirs in zip(hidden, expected.hidden, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-3, rtol=0)
    finally:
        engine.shutdown()


def test_b50_the_gates_reach_where_the_fault_would_show() -> None:
    """Arms the test above: decays down to e^-3 a token and below, and betas on both sides of a half."""
    config, weights, engine = build(2, 8.0)
    engine.shutdown()
    mixer = weights.layers[0].mixer
    x = oracle.rms(oracle.embed(weights, random_ids(LENGTH, 3)), weights.layers[0].input_norm, 1e-6)
    g = mixer.neg_exp_a * np.log1p(np.exp(x @ mixer.a.T + mixer.dt_bias))  # type: ignore[union-attr]
    beta = oracle.sigmoid(x @ mixer.b.T)  # type: ignore[union-attr]
    assert g.min() < -3 and g.max() > -0.3
    assert beta.min() < 0.2 and beta.max() > 0.8
    assert config.text.key_dim != config.text.value_dim


def test_b47_state_carries_over_between_passes() -> None:
    """A 200-token prompt by chunks of 1, 50, 64, 65 and all: equal logits and equal final state, bit for bit."""
    config, weights, engine = build(2, 1.0)
    try:
        spec = text_spec(random_ids(LENGTH, 4))
        expected = oracle.run_request(config, weights, random_ids(LENGTH, 4))
        assert max(np.abs(state).max() for state in expected.states) > 0.1, "the state matters"
        found = []
        for chunk in (1, 50, 64, 65, LENGTH):
            driver = Driver(engine, chunk)
            opened = driver.open(spec)
            driver.prefill(opened, *range(chunk, LENGTH, chunk))
            assert engine.audit(0) == []
            found.append(opened.recorder.logits[LENGTH])
            driver.close(opened)
        np.testing.assert_allclose(found[0], expected.logits[-1], atol=2e-3, rtol=0)
        assert all(same_bits(found[0], other) for other in found[1:])
        logits, _ = engine.forward_all(text_spec(random_ids(LENGTH, 4)[64:]))
        assert np.abs(logits[-1] - found[0]).max() > 0.1, "the trap: starting from zero at row 64 would show"
    finally:
        engine.shutdown()


def test_state_equals_the_recurrence_at_a_fold() -> None:
    config, weights, engine = build(3, 1.0)
    try:
        ids = random_ids(129, 6)
        driver = Driver(engine)
        opened = driver.open(text_spec(ids))
        driver.prefill(opened, 128)
        expected = oracle.run_request(config, weights, ids[:128])
        pool = engine.call(lambda runner, _: [layer.s[0].copy() for layer in runner.pool.deltanet])
        assert engine.call(lambda _, slots: slots[0].base) == 128
        for mine, theirs in zip(pool, expected.states, strict=True):
            np.testing.assert_allclose(mine.reshape(theirs.shape), theirs, atol=1e-4, rtol=0)
    finally:
        engine.shutdown()
