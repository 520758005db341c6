"""The device engine against the numpy engine, and against itself: the same bits whatever runs beside a request."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from luce.compute.host_device import HostDevice
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.runner import Runner
from luce.engines.qwen35.slots import Slot
from luce.engines.seam import RowSource, SampledToken, Segment, SegmentKind, SlotSpec, StepPlan
from luce.errors import DeviceError
from luce.sampling.masks import mask_of
from luce.sampling.parameters import SamplingParams
from luce.sampling.sampler import Sampler
from tests.engines.device.harness import bf16_model, device_of_tests, new_device_engine
from tests.engines.harness import Driver, Rows, image_spec, new_engine, random_ids, same_bits, text_spec
from tests.engines.models import NAN_TOKEN, SAMPLED_IDS

F32 = npt.NDArray[np.float32]

PENALTIES = SamplingParams(temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.5, logprobs=2)
FILTERS = SamplingParams(temperature=1.2, seed=-7, top_k=12, top_p=0.9, min_p=0.02, logit_bias=((3, 2.0),))
EARLY = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=tuple(range(90)), logprobs=0)


@functools.cache
def spec(index: int = 0) -> SlotSpec:
    """130 rows with a picture, or 70 of text."""
    if index == 0:
        rows = np.random.default_rng(5).standard_normal((10, 64)).astype(np.float32)
        return image_spec([*random_ids(9, 1), (4, 10), *random_ids(111, 2)], [rows])
    return text_spec(random_ids(70, index))


@pytest.fixture(scope="module")
def logits(shared_engine: DeviceEngine) -> F32:
    return shared_engine.forward_all(spec())[0]


def test_logits_of_the_numpy_engine(shared_engine: DeviceEngine, logits: F32) -> None:
    """Within what rounding of activations to bfloat16 costs: a random model doubles an error every layer."""
    numpy_engine = new_engine(*bf16_model(), block_size=64, num_blocks=8)
    try:
        right, layers = numpy_engine.forward_all(spec())
    finally:
        numpy_engine.shutdown()
    mine = shared_engine.forward_all(spec())[1]
    for number, (a, b) in enumerate(zip(mine, layers, strict=True)):
        assert np.sqrt(np.mean((a - b) ** 2)) < 0.04 * np.sqrt(np.mean(b**2)), number
    assert np.sqrt(np.mean((logits - right) ** 2)) < 0.05 * np.sqrt(np.mean(right**2))


@pytest.mark.parametrize("chunk", [7, 64, 65, 1000])
def test_chunks(driver: Driver, logits: F32, chunk: int) -> None:
    sequence = driver.open(spec(), slot=chunk % 4)
    driver.prefill(sequence, *range(chunk, len(spec().token_ids), chunk))
    for position, row in sequence.recorder.logits.items():
        assert same_bits(row, logits[position - 1]), position
    assert driver.engine.audit(sequence.slot) == []


def test_row_by_row_after_dropped_rows(driver: Driver, logits: F32) -> None:
    """Across a multiple of 64, with rows dropped on the way."""
    sequence = driver.open(spec(), slot=2)
    driver.step([Rows(sequence, 0, 60, sample=False)])
    for end in (61, 100, 124):
        driver.step([Rows(sequence, 60, end - 60)])
    for at in (60, 61, 62, 63, 64, 65):
        driver.step([Rows(sequence, at, 1)])
    for position, row in sequence.recorder.logits.items():
        assert same_bits(row, logits[position - 1]), position
    assert driver.engine.audit(2) == []


def greedy(
    engine: DeviceEngine, wanted: list[SlotSpec], tokens: int, depth: int
) -> list[list[tuple[int, float | None]]]:
    """Answers of all at once, launched ``depth`` steps ahead."""
    tables = [tuple(range(4 * slot, 4 * slot + 4)) for slot in range(len(wanted))]
    blocks = tuple(range(4 * len(wanted)))
    for slot, one in enumerate(wanted):
        engine.open(slot, one)
    segments = [
        Segment(slot, SegmentKind.PREFILL, 0, len(one.token_ids), RowSource.PROMPT, True)
        for slot, one in enumerate(wanted)
    ]
    plans = [StepPlan(0, tuple(segments), tuple(tables), fresh_blocks=blocks)]
    for step in range(tokens - 1):
        segments = [
            Segment(slot, SegmentKind.DECODE, len(one.token_ids) + step, 1, RowSource.LAST_SAMPLED, True)
            for slot, one in enumerate(wanted)
        ]
        plans.append(StepPlan(step + 1, tuple(segments), tuple(tables)))
    answers: list[list[tuple[int, float | None]]] = [[] for _ in wanted]
    tickets = []
    for plan in [*plans, None]:
        if plan is not None:
            tickets.append(engine.launch(plan))
        while len(tickets) >= depth or (plan is None and tickets):
            for slot, outcome in enumerate(engine.collect(tickets.pop(0)).outcomes):
                assert outcome.error is None, outcome
                answers[slot].append((outcome.tokens[0].token, outcome.tokens[0].logprob))
    for slot in range(len(wanted)):
        assert engine.audit(slot) == []
        engine.close(slot)
    engine.collect(engine.launch(StepPlan(99, (), (), freed_blocks=blocks)))
    return answers


def test_alone_and_beside_others_at_both_depths_eager_and_from_graphs(shared_engine: DeviceEngine) -> None:
    specs = [spec(), spec(3), spec(5)]
    alone = [greedy(shared_engine, [one], 9, 1)[0] for one in specs]
    assert len({token for answer in alone for token, _ in answer}) > 5, "the model must say something"
    assert greedy(shared_engine, specs, 9, 2) == alone, "from the first captured graph on"
    assert greedy(shared_engine, specs, 9, 1) == alone
    eager = new_device_engine(*bf16_model(), eager=True)
    try:
        assert greedy(eager, specs, 9, 2) == alone
    finally:
        eager.shutdown()


def test_answers_of_many_lanes_are_those_of_one_alone() -> None:
    """17 to 64 rows of a step go through other products than a few."""
    engine = new_device_engine(*bf16_model(), num_slots=34, num_blocks=136)
    try:
        specs = [text_spec(random_ids(3 + number % 4, number)) for number in range(34)]
        together = greedy(engine, specs, 2, 2)
        assert greedy(engine, specs[:18], 2, 1) == together[:18]
        assert greedy(engine, specs[5:6], 2, 1) == together[5:6]
    finally:
        engine.shutdown()


def drawn_by(
    driver: Driver, slot: int, one: SlotSpec, count: int, between: Callable[[int, tuple[int, ...]], None]
) -> list[SampledToken]:
    """``count`` tokens of ``one`` in a slot, alone. ``between(step, block table)`` is called after each step."""
    engine, prompt = driver.engine, len(one.token_ids)
    engine.open(slot, one)
    table, drawn = tuple(driver.take(1)), list[SampledToken]()
    plan = StepPlan(
        1,
        (Segment(slot, SegmentKind.PREFILL, 0, prompt, RowSource.PROMPT, True),),
        (table,),
        fresh_blocks=table,
    )
    for step in range(count):
        (outcome,) = engine.collect(engine.launch(plan)).outcomes
        assert outcome.error is None, outcome
        drawn += outcome.tokens
        between(step, table)
        segment = Segment(slot, SegmentKind.DECODE, prompt + step, 1, RowSource.LAST_SAMPLED, True)
        plan = StepPlan(2 + step, (segment,), (table,))
    driver.free(list(table))
    driver._blocks.fresh = []
    return drawn


@pytest.mark.parametrize("params", [PENALTIES, FILTERS, EARLY], ids=["penalties", "filters", "min tokens"])
def test_tokens_are_those_of_the_host_sampler(driver: Driver, params: SamplingParams) -> None:
    """The device draws what the sampler of the numpy engine draws from the same logits."""
    one = text_spec(random_ids(20, 9))
    one.sampling = params
    drawn = drawn_by(driver, 1, one, 10, lambda step, table: None)
    whole = one.with_generated([token.token for token in drawn])
    rows = driver.engine.forward_all(whole)[0]
    sampler = Sampler(params, np.asarray(one.token_ids), SAMPLED_IDS)
    for place, token in enumerate(drawn):
        right = sampler.sample(rows[19 + place], 20 + place)
        assert token.token == right.token, place
        assert [top[0] for top in token.top] == [top[0] for top in right.top]
        if right.logprob is not None:
            assert token.logprob == pytest.approx(right.logprob, abs=1e-5)


@pytest.mark.parametrize("audited", [False, True])
def test_an_audit_leaves_what_penalties_have_counted(driver: Driver, audited: bool) -> None:
    """An audit draws, too, in a slot of the same number."""
    one = text_spec(random_ids(20, 9))
    one.sampling = SamplingParams(temperature=0.0, frequency_penalty=2.0, repetition_penalty=1.5)
    other = text_spec(random_ids(30, 4))
    other.sampling = one.sampling

    def audit(step: int, table: tuple[int, ...]) -> None:
        if audited and step == 7:
            assert driver.engine.audit_blocks(other, table, 30), "they hold something else"

    drawn = [token.token for token in drawn_by(driver, 0, one, 12, audit)]
    rows = driver.engine.forward_all(one.with_generated(drawn))[0]
    sampler = Sampler(one.sampling, np.asarray(one.token_ids), SAMPLED_IDS)
    assert drawn == [sampler.sample(rows[19 + place], 20 + place).token for place in range(12)]


def test_masks(driver: Driver) -> None:
    one, allowed = spec(7), [5, 17, 44]
    engine = driver.engine
    engine.open(0, one)
    table = tuple(driver.take(2))
    segment = Segment(0, SegmentKind.PREFILL, 0, 70, RowSource.PROMPT, True)
    mask = mask_of(allowed, SAMPLED_IDS)
    plan = StepPlan(1, (segment,), (table,), fresh_blocks=table, masks=(mask,))
    (outcome,) = engine.collect(engine.launch(plan)).outcomes
    row = engine.forward_all(one)[0][-1]
    assert outcome.tokens[0].token == allowed[int(np.argmax(row[allowed]))]
    wrong = StepPlan(2, (Segment(0, SegmentKind.DECODE, 70, 1, RowSource.LAST_SAMPLED, True),), (table,))
    wrong = StepPlan(2, wrong.segments, (table,), masks=(mask[:1],))
    assert "does not fit" in (engine.collect(engine.launch(wrong)).outcomes[0].error or "")
    driver.free(list(table))
    driver._blocks.fresh = []


def test_a_row_that_is_not_finite_fails_alone_also_where_the_next_step_was_launched(
    driver: Driver, logits: F32
) -> None:
    good = driver.open(spec(), 0)
    engine, table = driver.engine, tuple(driver.take(1))
    engine.open(1, text_spec([1, NAN_TOKEN, 2]))
    first = driver.plan([Rows(good, 0, 65)])
    segments = (
        *first.segments,
        Segment(1, SegmentKind.PREFILL, 0, 3, RowSource.PROMPT, True),
    )
    both = StepPlan(1, segments, (*first.block_tables, table), fresh_blocks=first.fresh_blocks)
    later = StepPlan(2, (Segment(1, SegmentKind.DECODE, 3, 1, RowSource.LAST_SAMPLED, True),), (table,))
    tickets = [engine.launch(both), engine.launch(later)]
    one, two = (engine.collect(ticket).outcomes for ticket in tickets)
    assert one[0].error is None and "not finite" in (one[1].error or "")
    assert "failed before" in (two[0].error or "")
    assert same_bits(good.recorder.logits[65], logits[64])
    driver.free(list(table))
    driver._blocks.fresh = []


def test_a_step_that_fails_as_a_whole(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = driver.engine
    opened, other = driver.open(spec(1), 0), driver.open(spec(2), 1)
    with monkeypatch.context() as patched:
        patched.setattr("luce.engines.qwen35.device.runner.fill_lanes", None)
        with pytest.raises(DeviceError, match="step 1 failed"):
            driver.step([Rows(opened, 0, 70)])
    (gone,) = driver.step([Rows(opened, 0, 1)])
    assert "failed before" in (gone.error or "")
    driver.prefill(other)
    assert engine.audit(1) == []


def test_kernels_for_other_gpus_have_the_same_bits(shared_engine: DeviceEngine, logits: F32) -> None:
    """What a device without bulk copies and warpgroup products runs, step by step and in one pass of all rows."""
    device = device_of_tests()
    if not isinstance(device, HostDevice):
        pytest.skip("the host build alone can pass for another device")
    other = HostDevice(operands=device.operands)
    other.arch = "sm_80"
    engine = new_device_engine(*bf16_model(), device=other)
    try:
        driver = Driver(engine)
        sequence = driver.open(spec())
        driver.step([Rows(sequence, 0, 128)])
        driver.step([Rows(sequence, 128, 1)])
        driver.step([Rows(sequence, 129, 1)])
        for position, row in sequence.recorder.logits.items():
            assert same_bits(row, logits[position - 1]), position
    finally:
        engine.shutdown()


def test_the_plan_is_what_is_allocated(shared_engine: DeviceEngine) -> None:
    """Every array that the engine holds on the device is in the plan, with its very size."""
    planned = sum(part.nbytes for part in shared_engine.plan)

    def held(runner: Runner, _: dict[int, Slot]) -> int:
        pool: DevicePool = runner.pool
        arrays = [*pool.state.values(), *pool.kv.values(), pool.tables, pool.histories]
        return sum(int(array.nbytes) for array in arrays) + runner.program.nbytes + runner.copies.nbytes

    assert shared_engine.call(held) == planned
