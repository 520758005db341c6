"""The bundled model through the engine's seam: steps of plans, pictures, and what a start checks.

Steps are timed in CPU seconds of the whole process from launch to collect: only the engine's thread works then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np

from benchmarks.measure import Result, quiet_median, seconds_of
from benchmarks.pictures import png
from luce.compute.matrix import forget_checks, heights_for
from luce.compute.selfcheck import check_operators
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, load_engine, open_model
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import PatchImage, RowSource, Segment, SegmentKind, SlotSpec, StepPlan
from luce.sampling.parameters import SamplingParams

__all__ = ["main"]

LANES = (1, 4, 8)
SHORT, LONG = 64, 3500
"""Tokens before the decoded ones."""
STEPS = 16
"""Decode steps of one run; the context grows by as many."""
CONTEXT = 4096
CHUNK = 64
"""Prompt rows in a step, as the server has it by default."""
PROMPT = 1024
PICTURE = (192, 128)
"""Width and height of the demo's charts."""


@attrs.define
class Lanes:
    """Sequences in an engine, driven as the step loop drives it, without anything else around."""

    engine: Qwen35Engine
    rows: list[int] = attrs.field(factory=list)
    """By slot: rows submitted, which is where the next segment starts."""
    steps: int = 0

    def open(self, count: int, prompt: int) -> None:
        """``count`` sequences of ``prompt`` random tokens, prefilled; each has its first token."""
        for slot in range(count):
            self.engine.open(slot, _spec(slot, prompt, self.engine.capabilities.vocab_size))
        self.rows = [0] * count
        for slot in range(count):
            self.prefill(slot, prompt, 4 * CHUNK)

    def prefill(self, slot: int, prompt: int, piece: int) -> None:
        while (start := self.rows[slot]) < prompt:
            rows = min(piece, prompt - start)
            self._run(
                Segment(slot, SegmentKind.PREFILL, start, rows, RowSource.PROMPT, start + rows == prompt)
            )

    def decode(self) -> None:
        """One row of every sequence."""
        self._run(
            *(
                Segment(slot, SegmentKind.DECODE, rows, 1, RowSource.LAST_SAMPLED, sample=True)
                for slot, rows in enumerate(self.rows)
            )
        )

    def close(self) -> None:
        for slot in range(len(self.rows)):
            self.engine.close(slot)
        self.rows = []

    def _run(self, *segments: Segment) -> None:
        self.steps += 1
        tables = tuple(self._table(segment) for segment in segments)
        fresh = tuple(range(self.engine.capabilities.num_blocks)) if self.steps == 1 else ()
        plan = StepPlan(self.steps, segments, tables, fresh_blocks=fresh)
        result = self.engine.collect(self.engine.launch(plan))
        for segment, outcome in zip(segments, result.outcomes, strict=True):
            assert outcome.error is None, outcome.error
            assert outcome.kept == segment.count and len(outcome.tokens) == segment.sample
            self.rows[segment.slot] += outcome.kept

    def _table(self, segment: Segment) -> tuple[int, ...]:
        size = self.engine.capabilities.block_size
        first = segment.slot * (CONTEXT // size)
        return tuple(range(first, first - (-(segment.start + segment.count) // size)))


def main() -> list[Result]:
    opened = open_model(demo_model(), LoadOptions(slots=max(LANES), context=CONTEXT))
    with _engine(opened) as engine:
        lanes = Lanes(engine)
        results = [_decode(lanes, count, context) for context in (SHORT, LONG) for count in LANES]
        results += [_prefill(lanes, CHUNK), _prefill(lanes, PROMPT), _encode(engine, opened)]
        shapes = list(engine.tiles)
    return [*results, *_start(opened, shapes)]


def _decode(lanes: Lanes, count: int, context: int) -> Result:
    def run() -> float:
        if not lanes.rows or context == SHORT or max(lanes.rows) + STEPS > CONTEXT:
            lanes.close()
            lanes.open(count, context)
        started = time.process_time()
        for _ in range(STEPS):
            lanes.decode()
        return 1000 * (time.process_time() - started) / STEPS

    rows = "1 row" if count == 1 else f"{count} rows"
    result = quiet_median(f"decode step, {rows}, context {context:,}", "ms", run)
    lanes.close()
    return result


def _prefill(lanes: Lanes, piece: int) -> Result:
    def run() -> float:
        lanes.engine.open(0, _spec(0, PROMPT, lanes.engine.capabilities.vocab_size))
        lanes.rows = [0]
        started = time.process_time()
        lanes.prefill(0, PROMPT, piece)
        taken = time.process_time() - started
        lanes.close()
        return PROMPT / taken

    how = "at once" if piece >= PROMPT else f"{piece} a step"
    return quiet_median(f"prefill of {PROMPT:,} rows, {how}", "rows/s", run)


def _encode(engine: Qwen35Engine, opened: OpenedModel) -> Result:
    image = picture(opened)
    width, height = PICTURE
    return quiet_median(
        f"encoding a picture of {width}x{height} ({image.num_tokens} rows)",
        "ms",
        lambda: 1000 * seconds_of(lambda: engine.encode(image)),
    )


def picture(opened: OpenedModel) -> PatchImage:
    """A preprocessed picture of the demo's size."""
    return opened.prompts.prepare_image(png(*PICTURE), field="messages")


def _start(opened: OpenedModel, shapes: list[tuple[int, int]]) -> list[Result]:
    def check() -> float:
        started = time.process_time()
        check_operators.__wrapped__()
        forget_checks()
        for shape in shapes:
            heights_for(*shape)
        return 1000 * (time.process_time() - started)

    def load() -> float:
        started = time.process_time()
        with _engine(opened):
            return 1000 * (time.process_time() - started)

    return [
        quiet_median(f"start-up check ({len(shapes)} shapes and the operators)", "ms", check),
        quiet_median("weights read, decoded, packed; engine started", "ms", load),
    ]


@contextmanager
def _engine(opened: OpenedModel) -> Iterator[Qwen35Engine]:
    engine = load_engine(opened)
    try:
        yield engine
    finally:
        engine.shutdown()


def _spec(seed: int, rows: int, vocabulary: int) -> SlotSpec:
    ids = np.random.default_rng(seed).integers(0, vocabulary // 2, rows).astype(np.int32)
    positions = np.tile(np.arange(rows, dtype=np.int32), (3, 1))
    return SlotSpec(ids, positions, 0, SamplingParams(temperature=0.0, seed=0), CONTEXT - rows)
