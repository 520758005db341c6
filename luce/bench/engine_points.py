"""What is measured through the engine's seam: decoding, prompts, mixed steps and pictures."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator

import attrs
import numpy as np

from luce.bench.lanes import Lanes
from luce.bench.limits import Lane, Speeds, StateForm, WeightBytes, encode_work, prefill_seconds, step_work
from luce.bench.points import Point, of_runs
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.seam import Engine, PatchImage

__all__ = [
    "PARTS",
    "Measured",
    "Plan",
    "decode_points",
    "encode_points",
    "mixed_points",
    "prefill_points",
    "room_needed",
]

RUN_STEPS = 64
"""Decode steps of a run: a whole chunk of the gated DeltaNet, with what it does once a chunk."""
LEAST_STEPS = 4
WARM_STEPS = 2
PARTS = ("decode", "prefill", "mixed", "pictures", "http")
"""What can be measured apart from the rest."""


@attrs.frozen
class Measured:
    """The model at hand: what limits follow from."""

    engine: Engine
    config: Qwen35Config
    weights: WeightBytes
    speeds: Speeds
    kv_bytes: int
    """Of one value of a key or value in the engine's memory."""
    vision_bytes: int
    """Of one weight of the vision tower there."""
    num_ids: int
    """Prompts are of random ids below it."""


@attrs.frozen
class Plan:
    """What to measure."""

    rows: tuple[int, ...]
    """Sequences that decode at once."""
    contexts: tuple[int, ...]
    """Tokens before the decoded ones."""
    prompts: tuple[int, ...]
    """Tokens of prompts that are computed alone."""
    mixed: tuple[int, ...]
    """Prompt rows in a step beside decoding sequences."""
    pictures: tuple[int, ...]
    """Tokens that a picture takes, about."""
    piece: int
    """Prompt rows a step."""
    depth: int
    """Steps in flight."""
    runs: int
    seconds: float
    """That one run of decode steps takes at most, once it has as many steps as it must have."""
    temperature: float = 1.0
    step_seconds: float | None = None
    """That the server's steps with answers in them are to take at most, as :class:`ServiceOptions` takes it."""
    rows_before_picture: int = 1
    """Prompt rows that do not wait for the picture behind them, likewise."""
    parts: frozenset[str] = frozenset(PARTS)


def room_needed(plan: Plan) -> int:
    """Tokens that one sequence may come to have."""
    grown = (WARM_STEPS + plan.runs * RUN_STEPS) * len(plan.rows) + 1
    needed = [1]
    if "decode" in plan.parts:
        needed.append(max(plan.contexts) + grown)
    if "mixed" in plan.parts:
        steps = MIXED_STEPS * (plan.runs + 1)
        needed += [max(plan.mixed, default=0) * steps + 1, min(plan.contexts) + steps + 1]
    if "prefill" in plan.parts:
        needed += [prompt + 1 for prompt in plan.prompts]
    return max(needed)


def decode_points(plan: Plan, measured: Measured, room: int) -> Iterator[Point]:
    """For each context, sequences that are filled once and decode together, the most of them first."""
    for context in plan.contexts:
        lanes = _lanes(plan, measured, room)
        try:
            lanes.fill(max(plan.rows), context, plan.piece)
            for rows in sorted(plan.rows):
                yield _decode(plan, measured, lanes, rows, context)
        finally:
            lanes.close()


def _decode(plan: Plan, measured: Measured, lanes: Lanes, rows: int, context: int) -> Point:
    steps = _steps(plan, lanes.decode(rows, WARM_STEPS) / WARM_STEPS)
    middle = [Lane(start + steps * plan.runs // 2) for start in lanes.rows[:rows]]
    runs = [rows * steps / lanes.decode(rows, steps) for _ in range(plan.runs)]
    work, recurrent = (
        step_work(measured.config.text, measured.weights, middle, kv_bytes=measured.kv_bytes, state=form)
        for form in (StateForm.CHUNK, StateForm.RECURRENT)
    )
    return of_runs(
        f"decode, {_count(rows, 'row')}, context {context:,}",
        "tok/s",
        runs,
        rows / work.seconds(measured.speeds),
        work.bound(measured.speeds),
        step_ms=1000 * rows / statistics.median(runs),
        steps=steps,
        recurrent_limit=rows / recurrent.seconds(measured.speeds),
    )


def _steps(plan: Plan, seconds: float) -> int:
    return max(LEAST_STEPS, min(RUN_STEPS, int(plan.seconds / max(seconds, 1e-9))))


def prefill_points(plan: Plan, measured: Measured, room: int) -> Iterator[Point]:
    """Prompts alone, from the first launch until the first token is there."""
    text = measured.config.text
    for prompt in plan.prompts:
        runs = []
        for number in range(plan.runs + 1):
            lanes = _lanes(plan, measured, room)
            try:
                slot = lanes.open(prompt, seed=number)
                started = time.perf_counter()
                lanes.prefill(slot, prompt, plan.piece, prompt)
                runs.append(prompt / (time.perf_counter() - started))
            finally:
                lanes.close()
        least = prefill_seconds(
            text, measured.weights, prompt, measured.speeds, piece=plan.piece, kv_bytes=measured.kv_bytes
        )
        name = f"prefill, {prompt:,} tokens, {min(plan.piece, prompt):,} a step"
        yield of_runs(
            name, "tok/s", runs[1:], prompt / least, "FLOPs", ms=1000 * prompt / statistics.median(runs[1:])
        )


MIXED_STEPS = 4
"""Steps of a run of mixed ones."""


def mixed_points(plan: Plan, measured: Measured, room: int) -> Iterator[Point]:
    """Steps with a row of each decoding sequence and a piece of a new prompt beside them."""
    if not plan.mixed or not plan.contexts:
        return
    rows, context = max(plan.rows), min(plan.contexts)
    for piece in plan.mixed:
        lanes = _lanes(plan, measured, room)
        try:
            lanes.fill(rows, context, plan.piece)
            yield _mixed(plan, measured, lanes, rows, context, piece)
        finally:
            lanes.close()


def _mixed(plan: Plan, measured: Measured, lanes: Lanes, rows: int, context: int, piece: int) -> Point:
    prompt = piece * MIXED_STEPS * (plan.runs + 1)
    slot = lanes.open(prompt, seed=1)

    def run() -> float:
        started = time.perf_counter()
        for _ in range(MIXED_STEPS):
            lanes.step([*(lanes.row(lane) for lane in range(rows)), lanes.chunk(slot, piece, prompt)])
        lanes.wait()
        return 1000 * (time.perf_counter() - started) / MIXED_STEPS

    run()
    start = lanes.rows[slot]
    runs = [run() for _ in range(plan.runs)]
    beside = Lane((start + lanes.rows[slot]) // 2 - piece // 2, piece, samples=False)
    work = step_work(
        measured.config.text,
        measured.weights,
        [*[Lane(lanes.rows[0] - MIXED_STEPS)] * rows, beside],
        kv_bytes=measured.kv_bytes,
    )
    return of_runs(
        f"mixed step, {_count(rows, 'row')} at context {context:,}, {piece:,} prompt rows",
        "ms",
        runs,
        1000 * work.seconds(measured.speeds),
        work.bound(measured.speeds),
    )


def encode_points(plan: Plan, measured: Measured, images: Iterable[PatchImage]) -> Iterator[Point]:
    """Pictures through the vision tower, one at a time."""
    if not measured.engine.capabilities.images:
        return
    for image in images:
        patches = math.prod(image.grid)
        work = encode_work(measured.config, patches, value_bytes=measured.vision_bytes)
        measured.engine.encode(image)
        runs = []
        for _ in range(plan.runs):
            started = time.perf_counter()
            rows = measured.engine.encode(image)
            runs.append(1000 * (time.perf_counter() - started))
            assert len(rows) == image.num_tokens and np.isfinite(rows).all(), "a picture's rows are numbers"
        yield of_runs(
            f"picture of {image.num_tokens:,} tokens encoded",
            "ms",
            runs,
            1000 * work.seconds(measured.speeds),
            work.bound(measured.speeds),
            patches=patches,
        )


def _lanes(plan: Plan, measured: Measured, room: int) -> Lanes:
    return Lanes(measured.engine, room, plan.depth, measured.num_ids, plan.temperature)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
