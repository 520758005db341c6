"""Same request, same bits: whatever split, neighbours, slot, blocks and dropped rows (design §6)."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce.engines.qwen35.config import MoeConfig
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import RowSource, SlotSpec
from tests.engines.harness import (
    Driver,
    Opened,
    Rows,
    image_spec,
    new_engine,
    random_ids,
    same_bits,
    text_spec,
)
from tests.engines.models import MIXTURE, NAN_TOKEN, demo_config, random_weights, tiny_model

F32 = npt.NDArray[np.float32]

LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 200, 270)


@functools.cache
def image_rows(count: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal((count, 64)).astype(np.float32)


@functools.cache
def sequence_spec(index: int) -> SlotSpec:
    """Prompts of every interesting length; every third one holds a picture."""
    length = LENGTHS[index % len(LENGTHS)]
    ids = random_ids(length, index)
    if index % 3 == 2 and length > 30:
        return image_spec([*ids[:9], (4, 10), *ids[19:]], [image_rows(10, index)])
    return text_spec(ids)


@functools.cache
def reference(index: int, moe: MoeConfig | None = None) -> F32:
    """Logits [T, V] of the prompt alone on a fresh engine."""
    engine = new_engine(*tiny_model(moe=moe), num_slots=1)
    try:
        return engine.forward_all(sequence_spec(index))[0]
    finally:
        engine.shutdown()


@pytest.fixture(
    params=[(16, None), (64, None), (64, MIXTURE)], ids=["gathered blocks", "blocks in place", "mixture"]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Qwen35Engine]:
    size, moe = request.param
    engine = new_engine(*tiny_model(moe=moe), block_size=size, num_blocks=1536 // size)
    yield engine
    engine.shutdown()


def check(engine: Qwen35Engine, sequence: Opened, index: int) -> int:
    """Every row of logits that was sampled from equals the reference's; returns how many."""
    expected = reference(index, engine.config.text.moe)
    for position, logits in sequence.recorder.logits.items():
        assert same_bits(logits, expected[position - 1]), (index, position)
    return len(sequence.recorder.logits)


@pytest.mark.parametrize("index", [*range(len(LENGTHS)), 12, 15, 18])
@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 1000])
def test_chunks(engine: Qwen35Engine, index: int, chunk: int) -> None:
    driver = Driver(engine, seed=chunk)
    sequence = driver.open(sequence_spec(index), slot=chunk % 4)
    length = len(sequence.spec.token_ids)
    driver.prefill(sequence, *range(chunk, length, chunk))
    assert check(engine, sequence, index) == -(-length // chunk)
    assert engine.audit(sequence.slot) == []


def test_decoded_rows_equal_prefilled_rows(engine: Qwen35Engine) -> None:
    """Generate, then prefill prompt and answer as one prompt: the same logits at every place."""
    driver = Driver(engine)
    first = driver.open(text_spec(random_ids(50, 5), max_tokens=120))
    driver.prefill(first)
    tokens = driver.decode(first, 100)
    assert len(set(tokens)) > 10, "the model must say something"
    assert engine.audit(0) == []
    whole = driver.open(text_spec([*random_ids(50, 5), *tokens[:-1]]), slot=2)
    driver.prefill(whole)
    logits = engine.forward_all(whole.spec)[0]
    for position, row in first.recorder.logits.items():
        assert same_bits(row, logits[position - 1]), position
    assert same_bits(whole.recorder.logits[150], logits[149])


def test_dropped_rows_leave_no_trace(engine: Qwen35Engine) -> None:
    """The start of the next segment is the commit: rows past it are void, across a multiple of 64 too."""
    index = 8
    driver = Driver(engine)
    sequence = driver.open(sequence_spec(index))
    driver.step([Rows(sequence, 0, 60, sample=False)])
    for end in (61, 64, 66, 100, 124):  # all rows from 60 on are void each time
        driver.step([Rows(sequence, 60, end - 60)])
        check(engine, sequence, index)
    driver.step([Rows(sequence, 63, 10)])
    driver.step([Rows(sequence, 65, 5)])
    (gone,) = driver.step([Rows(sequence, 63, 1)])
    assert gone.error is not None and "committed" in gone.error, "row 64 was committed by a start at 65"


def test_commit_waits_for_a_start_past_the_boundary(engine: Qwen35Engine) -> None:
    driver = Driver(engine)
    sequence = driver.open(sequence_spec(9))
    driver.step([Rows(sequence, 0, 50)])
    driver.step([Rows(sequence, 50, 30)])
    base = engine.call(lambda _, slots: slots[0].base)
    assert base == 0, "rows past 64 are computed but 64 is not committed"
    driver.step([Rows(sequence, 60, 4)])
    driver.step([Rows(sequence, 64, 1)])
    assert engine.call(lambda _, slots: slots[0].base) == 64
    check(engine, sequence, 9)
    assert engine.audit(0) == []


@st.composite
def scenarios(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Actions (sequence, rows, rows to drop first), a few of them in each step."""
    actions = st.tuples(st.integers(0, 3), st.integers(1, 90), st.sampled_from([0, 0, 0, 1, 2, 30]))
    return draw(st.lists(actions, min_size=4, max_size=24))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    indices=st.lists(st.integers(0, 29), min_size=4, max_size=4),
    script=scenarios(),
    widths=st.lists(st.integers(1, 4), min_size=24, max_size=24),
    seed=st.integers(0, 99),
    sick=st.sampled_from(["none", "nan", "closed"]),
    block_size=st.sampled_from([16, 24, 32, 64, 128]),
    moe=st.sampled_from([None, MIXTURE]),
)
def test_random_neighbours_splits_drops_and_places(
    indices: list[int],
    script: list[tuple[int, int, int]],
    widths: list[int],
    seed: int,
    sick: str,
    block_size: int,
    moe: MoeConfig | None,
) -> None:
    engine = new_engine(*tiny_model(moe=moe), block_size=block_size, num_blocks=1536 // block_size)
    try:
        driver = Driver(engine, seed)
        slots = driver.random.sample(range(4), 4)
        sequences = [driver.open(sequence_spec(i), slot) for i, slot in zip(indices, slots, strict=True)]
        if sick == "nan":  # the last one is a sequence that turns into NaN
            driver.close(sequences[3])
            sequences[3] = driver.open(text_spec([1, NAN_TOKEN, *random_ids(250, 7)]), slots[3])
        at = 0
        for width in widths:
            wanted: dict[int, Rows] = {}
            for who, rows, drop in script[at : at + width]:
                sequence = sequences[who]
                low = engine.call(lambda _, s, sequence=sequence: s[sequence.slot].start)
                start = max(low, sequence.high - drop)
                count = min(rows, len(sequence.spec.token_ids) - start)
                if count > 0 and who not in wanted:
                    wanted[who] = Rows(sequence, start, count)
            at += width
            if wanted:
                outcomes = driver.step(list(wanted.values()))
                for who, outcome in zip(wanted, outcomes, strict=True):
                    assert (outcome.error is not None) == (
                        sick == "nan" and who == 3 and sequences[3].high > 1
                    )
            if sick == "closed" and at == widths[0]:
                driver.close(sequences[3])  # its blocks and slot are NaN now, and somebody else gets them
                sequences[3] = driver.open(sequence_spec(indices[3]), slots[3])
        for who, sequence in enumerate(sequences):
            if sick == "nan" and who == 3:
                continue
            check(engine, sequence, indices[who])
            assert engine.audit(sequence.slot) == []
    finally:
        engine.shutdown()


def test_nan_neighbour_is_really_nan(engine: Qwen35Engine) -> None:
    """Arms the trap of the test above: the neighbour fails, in the same step, and only it."""
    driver = Driver(engine)
    good = driver.open(sequence_spec(4), 0)
    bad = driver.open(text_spec([1, NAN_TOKEN, 2]), 1)
    outcomes = driver.step([Rows(good, 0, 65), Rows(bad, 0, 3)])
    assert outcomes[0].error is None and outcomes[1].error is not None
    assert check(engine, good, 4) == 1
    again = driver.step([Rows(bad, 3, 1, RowSource.LAST_SAMPLED)])
    assert "failed before" in (again[0].error or "")
    driver.close(bad)
    healthy = driver.open(sequence_spec(5), 1, blocks=bad.blocks)
    driver.prefill(healthy)
    assert check(engine, healthy, 5) == 1


def test_freed_blocks_hold_nan_and_do_not_leak(engine: Qwen35Engine) -> None:
    driver = Driver(engine)
    first = driver.open(sequence_spec(8), 0)
    driver.prefill(first)
    blocks = list(first.blocks)
    driver.close(first)
    driver.step([])  # tells of the freed blocks
    size = engine.capabilities.block_size
    rows = engine.call(
        lambda runner, _: runner.pool.kv[0].v[blocks[0] * size : (blocks[0] + 1) * size].copy()
    )
    assert np.isnan(rows).all(), "the trap: the freed block is poisoned"
    second = driver.open(sequence_spec(6), 0, blocks=blocks)
    driver.prefill(second, 1, 17, 100)
    assert check(engine, second, 6) == 4
    assert engine.audit(0) == []


def test_batches_really_form(engine: Qwen35Engine) -> None:
    """Four sequences in one step, each with its own rows, equal to each alone."""
    driver = Driver(engine)
    chosen = [8, 9, 18, 19]
    sequences = [driver.open(sequence_spec(i), slot) for slot, i in enumerate(chosen)]
    plan = driver.plan([Rows(s, 0, 40 + n) for n, s in enumerate(sequences)])
    assert plan.num_rows == 166
    engine.collect(engine.launch(plan))
    for step in range(20):
        driver.step([Rows(s, s.high, 1 + step % 2) for s in sequences])
    for index, sequence in zip(chosen, sequences, strict=True):
        assert check(engine, sequence, index) == 21


@pytest.mark.parametrize("moe", [None, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("heights", [(8,), (4,), (1,)])
def test_every_tile_height_is_exact(
    heights: tuple[int, ...], moe: MoeConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where BLAS fails the check for tiles of 8 and 4, smaller ones or single rows serve; exact all the same."""
    monkeypatch.setattr("luce.compute.matrix.heights_for", lambda depth, width: heights)
    monkeypatch.setattr("luce.engines.qwen35.attention.attention_heights", lambda kv_heads, head_dim: heights)
    engine = new_engine(*tiny_model(moe=moe))
    try:
        for index in (7, 8):
            expected = engine.forward_all(sequence_spec(index))[0]
            # Sums row by row round otherwise than those of tiles, and a mixture's router passes that on.
            np.testing.assert_allclose(expected, reference(index, moe), atol=2e-3 if moe is None else 5e-3)
            for chunk in (1, 7, 50):
                driver = Driver(engine, chunk)
                one, two = driver.open(sequence_spec(index), 2), driver.open(sequence_spec(9), 1)
                length = len(one.spec.token_ids)
                for at in range(0, length, chunk):
                    driver.step([Rows(two, two.high, 1 + at % 3), Rows(one, at, min(chunk, length - at))])
                for position, logits in one.recorder.logits.items():
                    assert same_bits(logits, expected[position - 1]), (index, chunk, position)
                driver.close(one)
                driver.close(two)
    finally:
        engine.shutdown()


@functools.cache
def demo_reference() -> tuple[SlotSpec, F32]:
    config = demo_config(vocab=300)
    weights = random_weights(config, 1)
    engine = new_engine(config, weights, num_slots=1, num_blocks=4, block_size=64)
    try:
        spec = text_spec(random_ids(150, 3))
        return spec, engine.forward_all(spec)[0]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("chunk", [1, 13, 64, 150])
def test_shapes_of_the_bundled_model(chunk: int) -> None:
    """Real head sizes and widths, where BLAS picks other kernels than for tiny ones."""
    spec, expected = demo_reference()
    config = demo_config(vocab=300)
    engine = new_engine(config, random_weights(config, 1), num_blocks=16, block_size=64)
    try:
        driver = Driver(engine, chunk)
        mine, other = driver.open(spec, 3), driver.open(text_spec(random_ids(290, 4)), 0)
        for at in range(0, 150, chunk):
            rows = [Rows(mine, at, min(chunk, 150 - at))]
            if other.high < 280:
                rows.insert(at % 2, Rows(other, other.high, 1 + at % 9))
            assert all(outcome.error is None for outcome in driver.step(rows))
        assert len(mine.recorder.logits) == -(-150 // chunk)
        for position, logits in mine.recorder.logits.items():
            assert same_bits(logits, expected[position - 1]), position
        assert engine.audit(3) == [] and engine.audit(0) == []
    finally:
        engine.shutdown()
