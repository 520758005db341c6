"""The engine against the reference implementation: logits, positions, greedy answers, vision rows (README.md here)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import ImageSpan, RowSource, SlotSpec
from tests.engines.harness import Driver, Rows, new_engine, text_spec
from tests.engines.oracle import mrope_positions, run_request, run_vision
from tests.golden.files import NAMES, Golden, golden

LOGITS = 1e-3
VISION = 1e-4
SURE_MARGIN = 0.01


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Golden:
    return golden(request.param)


@pytest.fixture
def engine(case: Golden) -> Iterator[Qwen35Engine]:
    engine = new_engine(case.config, case.weights)
    yield engine
    engine.shutdown()


def spec_with_images(case: Golden, engine: Qwen35Engine) -> SlotSpec:
    ids = case.image["input_ids"].astype(np.int32)
    images = case.patch_images()
    pads = np.flatnonzero(ids == case.config.image_token_id)
    starts = [int(at) for at in pads if ids[at - 1] != case.config.image_token_id]
    spans = [
        ImageSpan(start, image.num_tokens, n)
        for n, (start, image) in enumerate(zip(starts, images, strict=True))
    ]
    assert len(pads) == sum(span.length for span in spans)
    positions, delta = mrope_positions(ids.tolist(), case.config.image_token_id or 0, case.grids)
    rows = [engine.encode(image) for image in images]
    return SlotSpec(ids, positions, delta, None, 64, tuple(spans), list(rows))


def agree(tokens: list[int], expected: npt.NDArray[np.int64], margins: npt.NDArray[np.float32]) -> int:
    """Compare up to the first unsure choice that differs; returns how many were compared."""
    for at, (mine, theirs, margin) in enumerate(zip(tokens, expected, margins, strict=True)):
        if mine != theirs:
            assert margin <= SURE_MARGIN, (at, mine, theirs, margin)
            return at
    return len(tokens)


@pytest.fixture
def whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder samples from ids below 115 elsewhere; here it has to choose as the reference does."""
    monkeypatch.setattr("tests.engines.harness.SAMPLED_IDS", 200)


@pytest.mark.parametrize("chunk", [1000, 64, 7, 1])
def test_text_logits(case: Golden, engine: Qwen35Engine, chunk: int) -> None:
    ids = case.text["input_ids"]
    driver = Driver(engine)
    sequence = driver.open(text_spec(ids.tolist()))
    driver.prefill(sequence, *range(chunk, len(ids), chunk))
    assert len(sequence.recorder.logits) == -(-len(ids) // chunk)
    for position, logits in sequence.recorder.logits.items():
        np.testing.assert_allclose(logits, case.text["logits"][position - 1], atol=LOGITS, rtol=0)


def test_every_layer_and_row(case: Golden, engine: Qwen35Engine) -> None:
    logits, hidden = engine.forward_all(text_spec(case.text["input_ids"].tolist()))
    np.testing.assert_allclose(logits, case.text["logits"], atol=LOGITS, rtol=0)
    assert len(hidden) == case.config.text.num_layers == len(case.text["layers"])
    for mine, theirs in zip(hidden, case.text["layers"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=LOGITS, rtol=0)


def test_vision_rows(case: Golden, engine: Qwen35Engine) -> None:
    rows = np.concatenate([engine.encode(image) for image in case.patch_images()])
    np.testing.assert_allclose(rows, case.image["vision_rows"], atol=VISION, rtol=0)


def test_vision_rows_are_nearer_to_exact_ones_than_the_reference(case: Golden, engine: Qwen35Engine) -> None:
    """Random text models make a thousandfold of the rows' rounding; so theirs has to be less than it may be."""
    config, weights = case.config.vision, case.weights.vision
    assert config is not None and weights is not None
    images = case.patch_images()
    exact = np.concatenate([run_vision(config, weights, image.patches, image.grid) for image in images])
    rows = np.concatenate([engine.encode(image) for image in images])

    def error(found: npt.NDArray[np.float32]) -> float:
        return float(np.sqrt(np.mean((found - exact) ** 2)))

    assert error(rows) < 0.5 * error(case.image["vision_rows"])


def test_positions(case: Golden) -> None:
    positions, delta = mrope_positions(
        case.image["input_ids"].tolist(), case.config.image_token_id or 0, case.grids
    )
    assert np.array_equal(positions, case.image["position_ids"])
    assert delta == case.image["rope_delta"][0]


@pytest.mark.parametrize("chunk", [1000, 16, 7, 1])
def test_image_logits(case: Golden, engine: Qwen35Engine, chunk: int) -> None:
    spec = spec_with_images(case, engine)
    driver = Driver(engine)
    sequence = driver.open(spec, slot=1)
    driver.prefill(sequence, *range(chunk, len(spec.token_ids), chunk))
    for position, logits in sequence.recorder.logits.items():
        np.testing.assert_allclose(logits, case.image["logits"][position - 1], atol=LOGITS, rtol=0)


@pytest.mark.usefixtures("whole_vocabulary")
def test_greedy_answers_in_one_batch(case: Golden, engine: Qwen35Engine) -> None:
    """Text and image prompt decode side by side with a third sequence in between; both say what the reference says."""
    driver = Driver(engine)
    text = driver.open(text_spec(case.text["greedy_prompt"].tolist()), 3)
    image = driver.open(spec_with_images(case, engine), 0)
    other = driver.open(text_spec(case.text["input_ids"].tolist()), 1)
    driver.step([Rows(text, 0, len(text.spec.token_ids)), Rows(other, 0, 20)])
    driver.step([Rows(other, 20, 3), Rows(image, 0, len(image.spec.token_ids))])
    for at in range(23):
        rows = [Rows(s, s.high, 1, RowSource.LAST_SAMPLED) for s in (text, image)]
        outcomes = driver.step([*rows, Rows(other, other.high, 1 + at % 5)])
        assert all(outcome.error is None for outcome in outcomes)
    for sequence, results in ((text, case.text), (image, case.image)):
        first = len(sequence.spec.token_ids)
        tokens = [int(np.argmax(sequence.recorder.logits[first + n])) for n in range(24)]
        assert agree(tokens, results["greedy_tokens"], results["greedy_margins"]) >= 12


def test_oracle_agrees_with_the_reference(case: Golden) -> None:
    """The float64 oracle that other tests compare with is itself right."""
    result = run_request(case.config, case.weights, case.text["input_ids"].tolist())
    np.testing.assert_allclose(result.logits, case.text["logits"], atol=LOGITS, rtol=0)
    assert case.config.vision is not None and case.weights.vision is not None
    at = 0
    for image in case.patch_images():
        rows = run_vision(case.config.vision, case.weights.vision, image.patches, image.grid)
        np.testing.assert_allclose(rows, case.image["vision_rows"][at : at + len(rows)], atol=VISION, rtol=0)
        at += len(rows)
    assert at == len(case.image["vision_rows"])
