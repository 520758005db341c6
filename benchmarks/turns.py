"""Whole turns a second: real actors, charts, plans, text and event stream on an engine that costs nothing.

A turn is a step and everything around it: plan, launch, collect, results to every request, their text and
deltas into token buffers, and readers that take them out.
"""

from __future__ import annotations

import time
from typing import cast

import attrs
import numpy as np
import numpy.typing as npt
import trio

from benchmarks.measure import Result, quiet_median
from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.actors.tallies import RequestTallies
from luce.actors.token_buffer import End
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.loaded import GenerationDefaults, LoadedModel, Preparer
from luce.engines.seam import ImageSpan
from luce.sampling.parameters import SamplingParams
from luce.text.tokenizer import Tokenizer

__all__ = ["main"]

PROMPT = 16
TOKENS = 400
GOALS = {4: 1500.0, 64: 500.0}
"""Turns a second by slots."""


class ByteTokenizer:
    """Ids 0 to 255 are bytes."""

    num_token_ids = 256
    vocab_size = 256

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))

    def is_special(self, token_id: int) -> bool:
        return False


@attrs.frozen(eq=False)
class Prompt:
    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rope_delta: int = 0
    spans: tuple[ImageSpan, ...] = ()
    answer_start: int = PROMPT
    turn_ends: tuple[int, ...] = ()
    starts_in_thinking: bool = False


def _model(slots: int) -> LoadedModel:
    capabilities = fake_capabilities(
        num_slots=slots, num_blocks=slots * (PROMPT + TOKENS + 16) // 16, max_context=PROMPT + TOKENS
    )
    return LoadedModel(
        name="fake",
        engine=FakeEngine(capabilities, mode=Mode.INLINE),
        tokenizer=cast(Tokenizer, ByteTokenizer()),
        preparer=cast(Preparer, None),
        eos_token_ids=(),
        defaults=GenerationDefaults(),
        created=0,
    )


def _submission(index: int) -> Submission:
    return Submission(
        id=f"request-{index}",
        prompt=Prompt(
            np.full(PROMPT, index % 256, np.int32), np.tile(np.arange(PROMPT, dtype=np.int32), (3, 1))
        ),
        images=(),
        params=SamplingParams(temperature=0, max_tokens=TOKENS),
    )


async def _read(handle: Handle) -> None:
    while not isinstance(piece := await handle.next(), End):
        pass
    assert piece.reason == "length", piece


async def _serve(slots: int, depth: int, tallied: bool = False) -> float:
    """Turns a CPU second of one full house of requests, from the first submission to the last end.

    Args:
        tallied: with what `luce serve` counts for its metrics.
    """
    service = Service(_model(slots), ServiceOptions(depth=depth, coalesce=0.0, prefill_budget=None))
    tallies = RequestTallies(service) if tallied else None
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        started = time.thread_time()
        async with trio.open_nursery() as readers:
            for index in range(slots):
                readers.start_soon(_read, service.submit(_submission(index)))
        taken = time.thread_time() - started
        steps = service.loop.metrics.steps
        assert steps >= TOKENS, "fewer steps than tokens"
        assert service.loop.metrics.max_lanes == slots, "the requests did not share their steps"
        assert tallies is None or tallies.generation_tokens == slots * TOKENS
        service.drain()
    return steps / taken


def main() -> list[Result]:
    results = []
    for slots, goal in GOALS.items():
        for depth, tallied in ((1, False), (1, True), (2, False)):

            def run(slots: int = slots, depth: int = depth, tallied: bool = tallied) -> float:
                return trio.run(_serve, slots, depth, tallied)

            counted = ", counted for metrics" if tallied else ""
            results.append(quiet_median(f"{slots} slots, depth {depth}{counted}", "turns/s", run, goal=goal))
    return results
