"""Sequences in an engine, driven by plans of their own: no scheduler, actors or HTTP around them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import attrs
import numpy as np

from luce.engines.seam import (
    Engine,
    Outcome,
    RowSource,
    Segment,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    Ticket,
    WorkKind,
)
from luce.errors import DeviceError
from luce.sampling.parameters import SamplingParams

__all__ = ["Lanes"]


@attrs.define(eq=False)
class Lanes:
    """Sequences by slot, each with blocks of its own.

    Args:
        depth: steps in flight at once.
        num_ids: prompts are random ids below it.
        temperature: of sampling; 0 makes sequences with equal prompts equal.
    """

    engine: Engine
    room: int
    """Tokens that every sequence has blocks for."""
    depth: int
    num_ids: int
    temperature: float = 1.0
    rows: list[int] = attrs.field(factory=list)
    """By slot: rows submitted, which is where the next segment starts."""
    _plans: int = 0
    _handles: int = 0
    _fresh: list[int] = attrs.field(factory=list)
    _freed: list[int] = attrs.field(factory=list)
    _flying: deque[tuple[Ticket, tuple[Segment, ...]]] = attrs.field(factory=deque)

    @property
    def blocks_each(self) -> int:
        return -(-self.room // self.engine.capabilities.block_size)

    def open(self, prompt: int, seed: int = 0) -> int:
        """A new sequence with a prompt of random ids, none of it computed; its slot."""
        slot = len(self.rows)
        self.engine.open(slot, self._spec(prompt, seed, slot))
        self._fresh += self._own(slot)
        self.rows.append(0)
        return slot

    def prefill(self, slot: int, until: int, piece: int, prompt: int) -> None:
        """Compute the prompt up to ``until``, ``piece`` rows a step; the last row of it is sampled from."""
        while (start := self.rows[slot]) < until:
            self.step([self.chunk(slot, min(piece, until - start), prompt)])
        self.wait()

    def chunk(self, slot: int, rows: int, prompt: int) -> Segment:
        """The next rows of a slot's prompt."""
        start = self.rows[slot]
        return Segment(slot, SegmentKind.PREFILL, start, rows, RowSource.PROMPT, start + rows == prompt)

    def fill(self, count: int, context: int, piece: int) -> None:
        """``count`` sequences of ``context`` tokens, each ready to decode.

        Where the engine can save a slot, one prompt is computed and the others are copies of it: equal keys and values
        in memory of their own. Their answers differ by their seeds.
        """
        first = self.open(context)
        self.prefill(first, context, piece, context)
        if count == 1:
            return
        if not self.engine.capabilities.parking:
            for _ in range(count - 1):
                slot = self.open(context)
                self.prefill(slot, context, piece, context)
            return
        self._handles += 1
        self._work(SlotWork(WorkKind.SAVE, first, context, self._handles))
        for _ in range(count - 1):
            slot = self.open(context)
            table = self._table(slot, context)
            self._work(SlotWork(WorkKind.RESTORE, slot, context, self._handles, table))
            self.rows[slot] = context
        discard = getattr(self.engine, "discard", None)
        assert discard is not None, "an engine that parks can discard"
        discard(self._handles)

    def decode(self, count: int, steps: int) -> float:
        """``steps`` steps of one row of each of the first ``count`` sequences; seconds from the first to the last."""
        started = time.perf_counter()
        for _ in range(steps):
            self.step([self.row(slot) for slot in range(count)])
        self.wait()
        return time.perf_counter() - started

    def row(self, slot: int) -> Segment:
        """The next row of a decoding slot."""
        return Segment(slot, SegmentKind.DECODE, self.rows[slot], 1, RowSource.LAST_SAMPLED, sample=True)

    def step(self, segments: Sequence[Segment]) -> None:
        """Launch a step, once fewer than ``depth`` others run."""
        while len(self._flying) >= self.depth:
            self._collect()
        lanes = tuple(segments)
        tables = tuple(self._table(segment.slot, segment.start + segment.count) for segment in lanes)
        self._flying.append((self.engine.launch(self._plan(lanes, tables)), lanes))
        for segment in lanes:
            self.rows[segment.slot] += segment.count

    def wait(self) -> None:
        """Until nothing runs."""
        while self._flying:
            self._collect()

    def close(self) -> None:
        """All sequences; their blocks are free again."""
        self.wait()
        for slot in range(len(self.rows)):
            self.engine.close(slot)
            self._freed += self._own(slot)
        self._fresh = [block for block in self._fresh if block not in self._freed]
        self.rows = []
        self.engine.collect(self.engine.launch(self._plan((), ())))

    def _collect(self) -> None:
        ticket, segments = self._flying.popleft()
        result = self.engine.collect(ticket)
        for segment, outcome in zip(segments, result.outcomes, strict=True):
            _check(segment, outcome)

    def _work(self, item: SlotWork) -> None:
        self.wait()
        plan = self._plan((), (), (item,))
        for outcome in self.engine.collect(self.engine.launch(plan)).work:
            if outcome.error is not None:
                raise DeviceError(f"{item.kind.value} of slot {item.slot}: {outcome.error}")

    def _plan(
        self,
        segments: tuple[Segment, ...],
        tables: tuple[tuple[int, ...], ...],
        work: tuple[SlotWork, ...] = (),
    ) -> StepPlan:
        self._plans += 1
        fresh, freed = tuple(self._fresh), tuple(self._freed)
        self._fresh, self._freed = [], []
        return StepPlan(self._plans, segments, tables, work, fresh, freed)

    def _own(self, slot: int) -> range:
        return range(slot * self.blocks_each, (slot + 1) * self.blocks_each)

    def _table(self, slot: int, rows: int) -> tuple[int, ...]:
        return tuple(self._own(slot)[: -(-rows // self.engine.capabilities.block_size)])

    def _spec(self, prompt: int, seed: int, slot: int) -> SlotSpec:
        ids = np.random.default_rng(seed).integers(0, self.num_ids, prompt).astype(np.int32)
        positions = np.tile(np.arange(prompt, dtype=np.int32), (3, 1))
        params = SamplingParams(temperature=self.temperature, seed=slot)
        return SlotSpec(ids, positions, 0, params, self.room - prompt)


def _check(segment: Segment, outcome: Outcome) -> None:
    if outcome.error is not None:
        raise DeviceError(f"slot {segment.slot}: {outcome.error}")
    if outcome.kept != segment.count or len(outcome.tokens) != segment.sample:
        raise DeviceError(
            f"slot {segment.slot}: {outcome.kept} of {segment.count} rows kept, {len(outcome.tokens)} sampled"
        )
