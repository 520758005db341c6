"""The device's sampler draws what the numpy sampler draws, row by row, whatever stands beside a row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pytest

from luce.compute.device import Device
from luce.engines.qwen35.device.descriptors import (
    ADJUST,
    DRAWN,
    FAULT_LOGITS,
    FAULT_MASK,
    PASS,
    SAMPLE,
)
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.engines.qwen35.device.samples import SampleTemplate
from luce.errors import DeviceError
from luce.sampling.masks import mask_of
from luce.sampling.parameters import SamplingParams
from luce.sampling.sampler import NonFiniteLogitsError, Sampler

IDS, WIDTH = 5003, 5008
ROUNDS = 3 if os.environ.get("LUCE_TEST_DEVICE", "host") == "host" else 40
SLOTS, HISTORY = 6, 64


@attrs.define
class Draw:
    """One row: what it draws from, and how."""

    logits: np.ndarray
    params: SamplingParams
    ids: Sequence[int] = (3, 1, 4)
    """Prompt, then what was generated."""
    generated: int = 0
    """How many of them were."""
    mask: np.ndarray | None = None

    def expected(self) -> Sampler:
        prompt = len(self.ids) - self.generated
        return Sampler(self.params, np.array(self.ids[:prompt]), IDS, self.ids[prompt:])


class Bench:
    """A device sampler with the buffers of a pass."""

    def __init__(self, device: Device, ids: int = IDS, width: int = WIDTH) -> None:
        self.device = device
        self.ids, self.width = ids, width
        self.captured = False
        """Launch from a graph."""
        self.sampler = DeviceSampler(device, ids, SLOTS, 8)
        self.history = device.array(np.full((SLOTS, HISTORY), 2**30, np.int32))

    def __call__(self, draws: Sequence[Draw], most: int | None = None, first_slot: int = 0) -> np.ndarray:
        """Records of the draws, each in a freshly opened slot."""
        history = self.device.numpy(self.history)
        for slot, draw in enumerate(draws, first_slot):
            self.sampler.open(slot)
            history[slot, : len(draw.ids)] = draw.ids
        self.history = self.device.array(history)
        return self.again(draws, most, first_slot)

    def again(self, draws: Sequence[Draw], most: int | None = None, first_slot: int = 0) -> np.ndarray:
        most = most or len(draws)
        samples, lists = np.zeros(most, SAMPLE), np.zeros(512, ADJUST)
        header = np.zeros(1, PASS)
        header["samples"] = len(draws)
        words = -(-self.ids // 32)
        masks = np.zeros((most, words), np.uint32)
        logits = np.full((most, self.width), np.nan, np.float32)
        used = 0
        for row, draw in enumerate(draws):
            template = SampleTemplate.of(draw.params, len(draw.ids) - draw.generated, self.ids)
            logits[row, : len(draw.logits)] = draw.logits
            if draw.mask is not None:
                masks[row] = draw.mask
            used = template.fill(
                samples[row : row + 1].reshape(()),
                lists,
                used,
                row=row,
                slot=first_slot + row,
                position=len(draw.ids),
                mask=None if draw.mask is None else row,
            )
        samples[len(draws) :].view(np.uint8)[...] = 0x7F
        drawn = self.device.array(np.full(most * DRAWN.itemsize, 0xEE, np.uint8))
        args = [
            *(self.device.array(part.view(np.uint8)) for part in (header, samples, lists)),
            self.device.array(masks),
            self.history,
            self.device.array(logits),
            drawn,
            most,
        ]
        if self.captured:
            stream = self.device.stream()
            self.device.synchronize()
            with self.device.using(stream):
                self.device.capture(lambda: self.sampler.launch(*args, early=True)).launch()
                stream.synchronize()
        else:
            self.sampler.launch(*args)
        found = self.device.numpy(drawn)
        assert (found[len(draws) * DRAWN.itemsize :] == 0xEE).all()
        return found.view(DRAWN)[: len(draws)]


def check(bench: Bench, draws: Sequence[Draw]) -> None:
    """Each row beside the others, and alone, and as numpy draws it."""
    found = bench(draws, len(draws) + 1)
    history = bench.device.numpy(bench.history)
    for row, draw in enumerate(draws):
        wanted = draw.expected().sample(draw.logits, len(draw.ids), draw.mask)
        assert found[row]["faults"] == 0
        assert found[row]["token"] == wanted.token, (row, draw.params)
        assert history[row, len(draw.ids)] == wanted.token
        if wanted.logprob is not None:
            assert found[row]["num_top"] == len(wanted.top)
            assert abs(found[row]["logprob"] - wanted.logprob) < 2e-6
            top = found[row]["top_ids"][: len(wanted.top)].tolist()
            assert top == [token for token, _ in wanted.top]
            for mine, (_, its) in zip(found[row]["top_logprobs"], wanted.top, strict=False):
                assert abs(mine - its) < 2e-6
    for row in (0, len(draws) - 1):
        alone = bench(draws[row : row + 1], first_slot=SLOTS - 1)
        assert alone.tobytes() == found[row : row + 1].tobytes()


def logits_of(seed: int, spread: float = 3.0, ids: int = IDS) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(ids) * spread).astype(np.float32)


def rows_of(options: Iterable[dict[str, object]], spread: float = 3.0, **more: object) -> list[Draw]:
    return [
        Draw(logits_of(seed, spread), SamplingParams(**{"seed": seed * 77 - 5, **option}), **more)
        for seed, option in enumerate(options)
    ]


@pytest.fixture(scope="module")
def bench(device: Device) -> Bench:
    return Bench(device)


FILTERS = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"temperature": 1e-4},
    {"temperature": 100.0},
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 1},
    {"top_k": 3, "temperature": 1.7},
    {"top_k": 384},
    {"top_k": 70, "min_p": 0.01},
    {"top_p": 0.9},
    {"top_p": 0.1},
    {"min_p": 0.05},
    {"min_p": 0.2, "top_p": 0.8, "top_k": 9, "temperature": 0.9},
    {"min_p": 1e-9},
]


@pytest.mark.parametrize("first", range(0, len(FILTERS), 3))
def test_filters_and_temperatures(bench: Bench, first: int) -> None:
    for round_ in range(ROUNDS):
        options = [{**option, "seed": 1000 * round_ + first} for option in FILTERS[first : first + 3]]
        check(bench, rows_of(options))


WIDE = [
    {"top_k": 2500},
    {"top_k": 4000, "top_p": 0.9},
    {"top_p": 0.97, "temperature": 2.0},
    {"top_p": 0.999, "min_p": 1e-4},
]


@pytest.mark.parametrize("option", WIDE)
def test_filters_that_leave_many(bench: Bench, option: dict[str, object]) -> None:
    for spread in (0.001, 2.0):
        check(bench, rows_of([{**option, "seed": seed} for seed in range(2)], spread))


@pytest.mark.parametrize(
    "option", [{"temperature": 0.0}, {}, {"top_k": 7}, {"top_k": 3000, "top_p": 0.5}, {"top_p": 0.7}]
)
@pytest.mark.parametrize("levels", [1, 4])
def test_equal_logits_go_by_their_ids(bench: Bench, option: dict[str, object], levels: int) -> None:
    values = np.array([-0.0, 0.0, 0.0, -3.0], np.float32)[:levels]
    logits = values[np.random.default_rng(levels).integers(0, levels, IDS)]
    params = SamplingParams(seed=11, logprobs=20, **option)
    check(bench, [Draw(logits, params), Draw(logits[::-1].copy(), params)])


def test_log_probabilities(bench: Bench) -> None:
    check(bench, rows_of([{"logprobs": count, "top_k": count} for count in (0, 1, 5, 20)], 5.0))
    far = logits_of(3) * 30  # most of the sum is one term
    check(bench, [Draw(far, SamplingParams(seed=0, logprobs=20, temperature=0.0))])


def test_masks(bench: Bench) -> None:
    ids = [2, 31, 32, 4000, IDS - 1]
    options = [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.6, "logprobs": 3}]
    check(bench, rows_of(options, mask=mask_of(ids, IDS)))
    check(bench, rows_of(options[:2], mask=mask_of([77], IDS)))


@pytest.mark.parametrize("allowed", [[5, 6], [5, 6, 9], [9]])
def test_ends_are_held_back_unless_nothing_else_is_allowed(bench: Bench, allowed: list[int]) -> None:
    ends = {"min_tokens": 2, "stop_token_ids": (6,), "eos_token_ids": (5, 6)}
    options = [dict(**ends), dict(temperature=0.0, **ends), dict(top_p=0.9, **ends)]
    draws = rows_of(options, mask=mask_of(allowed, IDS), ids=(1, 2), generated=1)
    check(bench, draws)
    for draw in draws:
        draw.mask = None
        draw.logits[[5, 6]] = 50.0
    check(bench, draws)
    for draw in draws:
        draw.generated = 2
    check(bench, draws)


def test_bias_and_penalties(bench: Bench) -> None:
    rng = np.random.default_rng(8)
    text = rng.integers(0, 40, 30).tolist()
    bias = {
        int(token): float(add)
        for token, add in zip(rng.permutation(IDS)[:50], rng.uniform(-9, 9, 50), strict=True)
    }
    options = [
        {"logit_bias": bias, "logprobs": 2},
        {"repetition_penalty": 1.3, "temperature": 0.0},
        {"presence_penalty": 1.5, "frequency_penalty": -0.3, "top_k": 50},
        {"repetition_penalty": 0.7, "frequency_penalty": 0.9, "logit_bias": bias, "top_p": 0.9},
    ]
    for shift in (0.0, 6.0):
        draws = rows_of(options, ids=text, generated=21)
        for draw in draws:
            draw.logits[:40] += shift
        check(bench, draws)


def test_counts_follow_the_history_forth_and_back(bench: Bench) -> None:
    rng = np.random.default_rng(2)
    params = SamplingParams(
        seed=5, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=1.1, temperature=0.0
    )
    logits = logits_of(0)
    logits[:8] += 20.0  # a few ids come again and again
    draw = Draw(logits, params, ids=[0, 5, 1], generated=0)
    wanted = draw.expected()
    found = bench([draw], first_slot=2)
    positions = [3, 4, 5, 6, 5, 6, 7, 8, 9, 6, 7, 4, 5, 6]
    for at, position in enumerate(positions):
        logits = logits + rng.standard_normal(IDS).astype(np.float32) * 0.1
        ids = [*draw.ids[:3], *wanted.generated[: position - 3]]
        step = Draw(logits if at else draw.logits, params, ids, position - 3)
        if at:
            found = bench.again([step], first_slot=2)
        assert found[0]["token"] == wanted.sample(step.logits, position).token, position
    counts = bench.device.numpy(bench.sampler.counts)[2]
    seen = np.bincount(wanted.generated[:-1], minlength=IDS)
    seen[[0, 5, 1]] |= 1 << 31
    np.testing.assert_array_equal(counts.astype(np.int64), seen)


def test_ids_of_a_prompt_that_have_no_count_are_passed_over(bench: Bench) -> None:
    """A picture's rows and ids past the tokenizer's stand in prompts, and penalties know nothing of them: counted, they
    would be another slot's tokens."""
    params = SamplingParams(seed=5, repetition_penalty=1.4, temperature=0.0)
    draws = [Draw(logits_of(slot), params, [7, -1, IDS - 1, IDS, WIDTH - 1, 9]) for slot in range(SLOTS)]
    found = bench(draws)
    for slot, draw in enumerate(draws):
        wanted = Sampler(params, np.array(draw.ids), IDS).sample(draw.logits, len(draw.ids))
        assert found[slot]["token"] == wanted.token
        assert np.flatnonzero(bench.device.numpy(bench.sampler.counts)[slot]).tolist() == [7, 9, IDS - 1]


def test_a_row_that_is_not_finite_fails_alone(bench: Bench) -> None:
    draws = rows_of([{}, {"top_k": 5, "logprobs": 4}, {"top_p": 0.5}, {}])
    wanted = bench(draws)
    for value in (np.nan, np.inf, -np.inf):
        draws[1].logits[IDS - 1] = draws[2].logits[0] = value
        with pytest.raises(NonFiniteLogitsError):
            draws[1].expected().sample(draws[1].logits, 3)
        found = bench(draws)
        assert found["faults"].tolist() == [0, FAULT_LOGITS, FAULT_LOGITS, 0]
        assert found["token"][[1, 2]].tolist() == [0, 0]
        assert found[[0, 3]].tobytes() == wanted[[0, 3]].tobytes()


def test_a_mask_of_nothing_fails_its_row_alone(bench: Bench) -> None:
    draws = rows_of([{}, {"top_p": 0.5}, {"temperature": 0.0}])
    draws[0].mask = draws[1].mask = np.zeros(-(-IDS // 32), np.uint32)
    with pytest.raises(DeviceError):
        draws[0].expected().sample(draws[0].logits, 3, draws[0].mask)
    assert bench(draws)["faults"].tolist() == [FAULT_MASK, FAULT_MASK, 0]


def test_neither_graphs_nor_the_number_of_blocks_change_a_bit(device: Device) -> None:
    draws = rows_of(
        [{"logprobs": 5}, {"top_p": 0.8, "logprobs": 2}, {"top_k": 3, "min_p": 0.1}, {"temperature": 0.0}]
    )
    found = []
    for resident, captured in ((1, False), (8, False), (1000, False), (8, True)):
        bench = Bench(device)
        bench.sampler._resident, bench.captured = resident, captured
        found.append(bench(draws).tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("ids", [1, 2, 31, 2048, 2049])
def test_small_vocabularies(device: Device, ids: int) -> None:
    small = Bench(device, ids, -(-ids // 4) * 4)
    for option in ({}, {"top_k": 20, "top_p": 0.9}, {"temperature": 0.0}, {"min_p": 0.3}):
        logits = logits_of(ids, ids=ids)
        params = SamplingParams(seed=ids, logprobs=20, **option)
        found = small([Draw(logits, params, ids=[0])])[0]
        wanted = Sampler(params, np.array([0]), ids).sample(logits, 1)
        assert found["token"] == wanted.token
        assert found["top_ids"][: found["num_top"]].tolist() == [token for token, _ in wanted.top]


def test_memory_is_what_was_announced(bench: Bench) -> None:
    parts = [
        bench.sampler.counts,
        bench.sampler.counted,
        bench.sampler._parts,
        bench.sampler._groups,
        bench.sampler._sums,
    ]
    total = sum(part.nbytes for part in [*parts, bench.sampler._better])
    assert total == DeviceSampler.num_bytes(IDS, SLOTS, 8)
