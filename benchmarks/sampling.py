"""Microseconds of one ``Sampler.sample`` by vocabulary and kind of request."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Result, quiet_median, seconds_of
from luce.sampling.parameters import SamplingParams
from luce.sampling.sampler import Sampler

__all__ = ["main"]

VOCABULARIES = (2_100, 248_000)
"""The demo model's and Qwen3.5's."""

KINDS = {
    "greedy": SamplingParams(temperature=0),
    "greedy, 5 logprobs": SamplingParams(temperature=0, logprobs=5),
    "temperature 1": SamplingParams(seed=1),
    "top-k 20, top-p 0.95": SamplingParams(seed=1, temperature=0.7, top_k=20, top_p=0.95),
    "top-p 0.95": SamplingParams(seed=1, top_p=0.95),
    "min-p 0.05": SamplingParams(seed=1, min_p=0.05),
    "penalties, top-k 20": SamplingParams(
        seed=1, top_k=20, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.1
    ),
}


def main() -> list[Result]:
    results = []
    for vocabulary in VOCABULARIES:
        logits = np.random.default_rng(0).normal(0, 4, vocabulary).astype(np.float32)
        logits[:50] += np.float32(12)  # peaked, as a trained model's are
        prompt = np.arange(500, dtype=np.int32)
        for name, params in KINDS.items():
            sampler = Sampler(params, prompt, vocabulary, generated=range(300))

            def run(sampler: Sampler = sampler, logits: np.ndarray = logits) -> float:
                return 1e6 * seconds_of(lambda: sampler.sample(logits, 800))

            goal = 1000.0 if vocabulary == VOCABULARIES[0] else None
            results.append(quiet_median(f"{name}, {vocabulary:,} ids", "us/token", run, goal=goal))
    return results
