"""The engine class through the seam: tickets, depth 2, slots, failures (cases B45, B70)."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import (
    Engine,
    ImageSpan,
    PatchImage,
    RowSource,
    Segment,
    SegmentKind,
    SlotSpec,
    StepPlan,
)
from luce.errors import DeviceError, RequestError
from luce.sampling.parameters import SamplingParams
from tests.engines.harness import Driver, Rows, new_engine, random_ids, same_bits, text_spec
from tests.engines.models import NAN_TOKEN, SAMPLED_IDS, tiny_model

BLOCKS = tuple(range(16))


@pytest.fixture
def engine() -> Iterator[Qwen35Engine]:
    engine = new_engine(*tiny_model())
    yield engine
    engine.shutdown()


def prefill_plan(
    number: int,
    slot: int,
    count: int,
    *,
    blocks: tuple[int, ...] = BLOCKS,
    freed: tuple[int, ...] = (),
) -> StepPlan:
    segment = Segment(slot, SegmentKind.PREFILL, 0, count, RowSource.PROMPT, sample=True)
    return StepPlan(number, (segment,), (blocks,), fresh_blocks=blocks, freed_blocks=freed)


def decode_plan(number: int, slot: int, at: int, *, blocks: tuple[int, ...] = BLOCKS) -> StepPlan:
    segment = Segment(slot, SegmentKind.DECODE, at, 1, RowSource.LAST_SAMPLED, sample=True)
    return StepPlan(number, (segment,), (blocks,))


def test_is_an_engine(engine: Qwen35Engine) -> None:
    seam: Engine = engine
    capabilities = seam.capabilities
    assert capabilities.num_slots == 4 and capabilities.max_depth == 2 and capabilities.images
    pool = engine.pool
    states = sum(a.nbytes for layer in pool.deltanet for a in layer.arrays())
    keys = sum(layer.k.nbytes + layer.v.nbytes for layer in pool.kv)
    assert capabilities.bytes_per_slot * 4 == states
    assert capabilities.bytes_per_token * capabilities.num_blocks * capabilities.block_size == keys


def test_ticket_becomes_readable_and_is_empty_after_collect(engine: Qwen35Engine) -> None:
    engine.open(0, text_spec(random_ids(30, 1)))
    ticket = engine.launch(prefill_plan(1, 0, 30))
    assert select.select([ticket.fd], [], [], 10)[0] == [ticket.fd]
    result = engine.collect(ticket)
    assert result.number == 1 and result.seconds > 0
    assert select.select([ticket.fd], [], [], 0)[0] == [], "the next ticket on this descriptor starts empty"
    (outcome,) = result.outcomes
    assert outcome.kept == 30 and len(outcome.tokens) == 1 and outcome.error is None


def test_a_collector_may_read_the_descriptor_itself(engine: Qwen35Engine) -> None:
    engine.open(0, text_spec(random_ids(3, 1)))
    ticket = engine.launch(prefill_plan(1, 0, 3))
    select.select([ticket.fd], [], [], 10)
    assert os.eventfd_read(ticket.fd) == 1
    assert engine.collect(ticket).number == 1


def test_depth_two_gives_the_same_tokens(engine: Qwen35Engine) -> None:
    """A decode row planned before its token is known; the last row overruns and is void."""
    spec = text_spec(random_ids(60, 2))
    driver = Driver(engine)
    opened = driver.open(spec)
    driver.prefill(opened)
    alone = driver.decode(opened, 12)
    blocks = tuple(opened.blocks)
    driver.close(opened)

    engine.open(0, spec)
    first = prefill_plan(1, 0, 60, blocks=blocks, freed=blocks)
    tickets = [engine.launch(first), engine.launch(decode_plan(2, 0, 60, blocks=blocks))]
    with pytest.raises(DeviceError, match="uncollected"):
        engine.launch(decode_plan(3, 0, 61, blocks=blocks))
    tokens = []
    for number in range(3, 14):
        tokens.append(engine.collect(tickets.pop(0)).outcomes[0].tokens[0].token)
        tickets.append(engine.launch(decode_plan(number, 0, 58 + number, blocks=blocks)))
    tokens += [engine.collect(ticket).outcomes[0].tokens[0].token for ticket in tickets]
    assert tokens == alone
    engine.close(0)


def test_overrun_row_is_void(engine: Qwen35Engine) -> None:
    """After a row that was launched too far, the sequence goes on from before it as if it had never run."""
    spec = text_spec(random_ids(70, 3), max_tokens=50)
    expected = engine.forward_all(spec)[0]
    driver = Driver(engine)
    opened = driver.open(spec)
    driver.step([Rows(opened, 0, 63)])
    driver.step([Rows(opened, 63, 1, RowSource.LAST_SAMPLED)])  # a guess in place of the prompt's row 63
    assert not same_bits(opened.recorder.logits[64], expected[63]), "the trap: the guess is another token"
    driver.step([Rows(opened, 63, 7)])
    assert same_bits(opened.recorder.logits[70], expected[69])
    assert engine.audit(0) == []


def test_close_takes_effect_in_order_with_launches(engine: Qwen35Engine) -> None:
    spec = text_spec(random_ids(50, 4))
    engine.open(0, spec)
    first = engine.launch(prefill_plan(1, 0, 50))
    engine.close(0)
    engine.open(0, spec)
    second = engine.launch(prefill_plan(2, 0, 50, freed=BLOCKS))
    results = [engine.collect(ticket).outcomes[0] for ticket in (first, second)]
    assert results[0].tokens == results[1].tokens and results[0].error is None


def test_segments_that_cannot_run_fail_alone(engine: Qwen35Engine) -> None:
    driver = Driver(engine)
    good, bad = driver.open(text_spec(random_ids(20, 1)), 0), driver.open(text_spec(random_ids(20, 2)), 1)
    cases = {
        "do not follow": Rows(bad, 3, 2),
        "no token was sampled": Rows(bad, 0, 1, RowSource.LAST_SAMPLED),
        "not in the prompt": Rows(bad, 0, 21),
        "exceed": Rows(bad, 0, 500),
    }
    for n, (message, rows) in enumerate(cases.items()):
        outcomes = driver.step([Rows(good, n, 1), rows])
        assert outcomes[0].error is None and outcomes[0].kept == 1
        assert message in (outcomes[1].error or ""), message
    plan = driver.plan([Rows(good, 4, 1), Rows(bad, 0, 20)])
    short = StepPlan(plan.number, plan.segments, (plan.block_tables[0], ()))
    assert "block table" in (engine.collect(engine.launch(short)).outcomes[1].error or "")
    closed = StepPlan(99, (Segment(3, SegmentKind.PREFILL, 0, 1, RowSource.PROMPT, False),), (BLOCKS,))
    assert "not open" in (engine.collect(engine.launch(closed)).outcomes[0].error or "")
    verify = StepPlan(100, (Segment(1, SegmentKind.VERIFY, 0, 1, RowSource.PROMPT, False),), (BLOCKS,))
    assert "not served" in (engine.collect(engine.launch(verify)).outcomes[0].error or "")
    (fine,) = driver.step([Rows(bad, 0, 20)])
    assert fine.error is None, "a segment that was refused changed nothing"


def test_bad_prompts_are_refused_at_open(engine: Qwen35Engine) -> None:
    with pytest.raises(RequestError, match="tokens"):
        engine.open(0, text_spec([]))
    with pytest.raises(RequestError, match="vocabulary"):
        engine.open(0, text_spec([1, 120]))
    with pytest.raises(RequestError, match="512"):
        engine.open(0, text_spec([1] * 513))
    spec = text_spec([1, 2, 3])
    with pytest.raises(RequestError, match="positions"):
        engine.open(0, SlotSpec(spec.token_ids, spec.positions[:, :2], 0, None, 1))
    with pytest.raises(RequestError, match="span"):
        engine.open(0, SlotSpec(spec.token_ids, spec.positions, 0, None, 1, (ImageSpan(1, 3, 0),), [None]))
    for delta in (1, -4):
        with pytest.raises(RequestError, match="rope delta"):
            engine.open(0, SlotSpec(spec.token_ids, spec.positions, delta, None, 1))
    engine.open(0, spec)
    with pytest.raises(DeviceError, match="taken"):
        engine.open(0, spec)


def test_b45_every_way_out_frees_the_slot(engine: Qwen35Engine) -> None:
    """Many sequences ended in turn by length, in prefill, in decode, by NaN: slots never alias, double frees raise."""
    expected = engine.forward_all(text_spec(random_ids(66, 9)))[0]
    for n in range(60):
        slot = n % 2
        driver = Driver(engine, n)
        watch = driver.open(text_spec(random_ids(66, 9)), 1 - slot)
        ids = [1, NAN_TOKEN, 3] if n % 4 == 3 else random_ids(40, n)
        ended = driver.open(text_spec(ids), slot)
        driver.step([Rows(watch, 0, 30), Rows(ended, 0, len(ids) if n % 4 else 7)])
        if n % 4 == 1:
            driver.step([Rows(ended, 40, 1, RowSource.LAST_SAMPLED)])
        driver.close(ended)
        driver.step([Rows(watch, 30, 36)])
        assert same_bits(watch.recorder.logits[66], expected[65])
        driver.close(watch)
        with pytest.raises(DeviceError, match="not open"):
            engine.close(slot)
    assert engine.call(lambda _, slots: len(slots)) == 0


def test_b70_rows_of_several_requests_share_one_step(engine: Qwen35Engine) -> None:
    """Four equal requests: as many passes over the layers as one alone."""
    passes = []

    def count(runner: object, _: object) -> None:
        model = runner.model  # type: ignore[attr-defined]
        original = model.forward

        def forward(batch: object, *rest: object) -> object:
            passes.append(batch.rows)  # type: ignore[attr-defined]
            return original(batch, *rest)

        model.forward = forward

    engine.call(count)
    driver = Driver(engine)
    opened = [driver.open(text_spec(random_ids(12, 1)), slot) for slot in range(4)]
    driver.step([Rows(s, 0, 12) for s in opened])
    for _ in range(9):
        driver.step([Rows(s, s.high, 1, RowSource.LAST_SAMPLED) for s in opened])
    assert passes == [48] + [4] * 9
    answers = [s.recorder.logits for s in opened]
    assert all(same_bits(answers[0][p], answer[p]) for answer in answers[1:] for p in answers[0])


def test_a_step_larger_than_the_row_buffers(engine: Qwen35Engine) -> None:
    """Four prompts of 300 rows in one plan run in several passes, with the bits of each alone."""
    specs = [text_spec(random_ids(300 + n, n)) for n in range(4)]
    expected = [engine.forward_all(spec)[0][-1] for spec in specs]
    driver = Driver(engine)
    opened = [driver.open(spec, slot) for slot, spec in enumerate(specs)]
    driver.step([Rows(s, 0, len(s.spec.token_ids)) for s in opened])
    for sequence, logits in zip(opened, expected, strict=True):
        assert same_bits(sequence.recorder.logits[len(sequence.spec.token_ids)], logits)


def test_sampling_parameters_reach_the_sampler(engine: Qwen35Engine) -> None:
    spec = text_spec(random_ids(20, 1))
    spec.sampling = SamplingParams(temperature=1.0, seed=7, logprobs=2, logit_bias=((3, 100.0),))
    engine.open(0, spec)
    (outcome,) = engine.collect(engine.launch(prefill_plan(1, 0, 20))).outcomes
    (token,) = outcome.tokens
    assert token.token == 3 and token.logprob is not None and len(token.top) == 2


def test_greedy_without_parameters_takes_the_lowest_of_equals(engine: Qwen35Engine) -> None:
    spec = text_spec(random_ids(20, 1))
    logits = engine.forward_all(spec)[0][-1][:SAMPLED_IDS].astype(np.float64)
    engine.open(0, spec)
    (outcome,) = engine.collect(engine.launch(prefill_plan(1, 0, 20))).outcomes
    assert outcome.tokens[0].token == int(np.argmax(logits))
    normal = logits - logits.max()
    assert outcome.tokens[0].logprob == pytest.approx(
        float(normal.max() - np.log(np.exp(normal).sum())), abs=1e-6
    )


def test_an_unexpected_error_fails_the_step_and_the_engine_goes_on(
    engine: Qwen35Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.open(0, text_spec(random_ids(5, 1)))
    engine.open(1, text_spec(random_ids(5, 2)))
    with monkeypatch.context() as patched:
        patched.setattr("luce.engines.qwen35.step.Batch", None)
        ticket = engine.launch(prefill_plan(1, 0, 5))
        with pytest.raises(DeviceError, match="step 1 failed"):
            engine.collect(ticket)
    (bad,) = engine.collect(engine.launch(decode_plan(2, 0, 5))).outcomes
    assert "failed before" in (bad.error or "")
    (good,) = engine.collect(engine.launch(prefill_plan(3, 1, 5, blocks=(20, 21)))).outcomes
    assert good.error is None


def test_encode_runs_beside_steps_with_the_same_bits(engine: Qwen35Engine) -> None:
    rng = np.random.default_rng(0)
    images = [
        PatchImage(rng.standard_normal((gh * gw, 48)).astype(np.float32), (gh, gw), b"", gh * gw // 4)
        for gh, gw in ((4, 6), (2, 2), (40, 8))
    ]
    quiet = [engine.encode(image) for image in images]
    spec = text_spec(random_ids(200, 3))
    expected = engine.forward_all(spec)[0][-1]
    wrong: list[int] = []

    def encode() -> None:
        wrong.extend(n for n in range(60) if not same_bits(engine.encode(images[n % 3]), quiet[n % 3]))

    thread = threading.Thread(target=encode)
    thread.start()
    for n in range(10):
        driver = Driver(engine, n)
        opened = driver.open(spec)
        driver.prefill(opened, *range(20, 200, 20))
        assert same_bits(opened.recorder.logits[200], expected)
        driver.close(opened)
    thread.join()
    assert wrong == []


def test_encode_refuses_patches_that_do_not_fit(engine: Qwen35Engine) -> None:
    for grid in ((3, 4), (4, 6), (0, 0)):
        with pytest.raises(RequestError, match="do not fit"):
            engine.encode(PatchImage(np.zeros((12, 48), np.float32), grid, b"", 3))


def test_audit_finds_a_changed_value(engine: Qwen35Engine) -> None:
    """Arms the audit: one changed bit anywhere in the state is reported by name."""
    driver = Driver(engine)
    opened = driver.open(text_spec(random_ids(100, 1)))
    driver.prefill(opened, 70)
    assert engine.audit(0) == []
    places = {
        "S": lambda pool: pool.deltanet[1].s[0, 0, 0, 3, 4:5],
        "ring k": lambda pool: pool.deltanet[0].k[0, 0, 64 + 20, 2:3],
        "ring u": lambda pool: pool.deltanet[2].u[0, 1, 1, 64 + 5, 2:3],
        "ring G": lambda pool: pool.deltanet[0].g[0, 1, 64 + 6 : 64 + 7],
        "convolution rows": lambda pool: pool.deltanet[0].conv[0, 68, 4:5],
        "keys": lambda pool: pool.kv[0].k[opened.blocks[2] * 16, 0, :1],
        "values": lambda pool: pool.kv[0].v[opened.blocks[0] * 16 + 3, 1, :1],
    }
    for name, place in places.items():

        def flip(runner: object, _: object, place: object = place) -> None:
            value = place(runner.pool)  # type: ignore[operator, attr-defined]
            value.view(np.uint32)[...] ^= 1

        engine.call(flip)
        (line,) = engine.audit(0)
        assert name in line
        engine.call(flip)
    assert engine.audit(0) == []


def test_shutdown_is_idempotent_and_final() -> None:
    engine = new_engine(*tiny_model())
    engine.open(0, text_spec([1, 2, 3]))
    ticket = engine.launch(prefill_plan(1, 0, 3))
    engine.shutdown()
    engine.shutdown()
    assert engine.collect(ticket).outcomes[0].error is None, "commands given before still run"
    with pytest.raises(DeviceError, match="shut down"):
        engine.open(1, text_spec([1]))
