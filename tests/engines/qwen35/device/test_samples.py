"""Records of draws: what they hold of the parameters, and that their fractions lose nothing."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.qwen35.device import descriptors
from luce.engines.qwen35.device.descriptors import ADJUST, SAMPLE
from luce.engines.qwen35.device.samples import SampleTemplate
from luce.sampling.parameters import SamplingParams

HEADER = Path(__file__).parents[4] / "kernels" / "batch.h"


def filled(params: SamplingParams | None, position: int = 9, **more: int) -> tuple[np.void, np.ndarray, int]:
    samples, lists = np.zeros(3, SAMPLE), np.zeros(64, ADJUST)
    template = SampleTemplate.of(params, 7, 1000)
    used = template.fill(samples[1:2].reshape(()), lists, 5, row=4, slot=2, position=position, **more)
    assert not samples[[0, 2]].view(np.uint8).any()
    return samples[1], lists, used


def test_the_header_has_the_same_fields_in_the_same_order() -> None:
    text = HEADER.read_text()
    for name, record in (("Sample", SAMPLE), ("Adjust", ADJUST)):
        body = re.search(rf"struct {name} \{{.*?\n(.*?)\n\}};", text, re.DOTALL)
        assert body is not None
        declared = re.findall(r"^\s+(?:i32|u32|u64|f64) ([^;]+);", body[1], re.MULTILINE)
        names = [re.sub(r"\[.*", "", part.strip()) for line in declared for part in line.split(",")]
        assert names == list(record.names or ())
        assert f"struct {name} {{".ljust(24) + f"// {record.itemsize} bytes" in text
    for flag in re.findall(r"#define (SAMPLE_\w+) (\d+)", text):
        assert getattr(descriptors, flag[0]) == int(flag[1])


def test_a_plain_draw() -> None:
    sample, _, used = filled(SamplingParams(temperature=0.7, seed=-1, top_k=-1, min_p=0.1, top_p=0.8))
    assert (sample["row"], sample["slot"], sample["position"], sample["first_generated"]) == (4, 2, 9, 7)
    assert sample["flags"] == descriptors.SAMPLE_TOP_P | descriptors.SAMPLE_MIN_P
    assert sample["temperature"] == 0.7
    assert sample["log_min_p"] == math.log(0.1)
    assert sample["top_k"] == 0
    assert sample["seed"].tolist() == [0xFFFFFFFF, 0xFFFFFFFF]
    assert Fraction(int(sample["top_p"]), 2**64) == Fraction(0.8)
    assert used == 5


@given(st.floats(2.0**-11, 1.0, exclude_max=True), st.integers(2**40, 2**58))
def test_the_target_of_top_p_is_the_samplers(top_p: float, total: int) -> None:
    fraction = int(SampleTemplate.of(SamplingParams(top_p=top_p, seed=1), 0, 9).record["top_p"])
    assert -(-total * fraction >> 64) == math.ceil(Fraction(top_p) * total)


def test_lists_are_ascending_and_ends_only_until_enough_was_generated() -> None:
    params = SamplingParams(
        seed=1,
        logit_bias={30: -1.0, 4: 0.1, 5000: 9.0},
        min_tokens=3,
        stop_token_ids=(88, 6),
        eos_token_ids=(6,),
    )
    sample, lists, used = filled(params, mask=3)
    assert used == 9
    assert sample["flags"] == descriptors.SAMPLE_MASK
    assert sample["mask"] == 3
    at = slice(sample["bias"], sample["bias"] + sample["num_bias"])
    assert lists[at][["id", "add"]].tolist() == [(4, 0.1), (30, -1.0)]
    assert lists["id"][sample["ends"] : sample["ends"] + sample["num_ends"]].tolist() == [6, 88]
    sample, _, used = filled(params, position=10)
    assert used == 7
    assert sample["num_ends"] == 0


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(min_p=1.0), None]
)
def test_greedy_draws_need_no_seed(params: SamplingParams | None) -> None:
    sample, _, _ = filled(params)
    assert sample["flags"] & descriptors.SAMPLE_GREEDY
    assert sample["temperature"] == 1.0


def test_penalties_are_told_in_full() -> None:
    params = SamplingParams(seed=3, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=-0.7)
    sample, _, _ = filled(params)
    assert sample["flags"] == descriptors.SAMPLE_PENALTIES
    assert (sample["repetition"], sample["presence"], sample["frequency"]) == (1.1, 0.3, -0.7)
